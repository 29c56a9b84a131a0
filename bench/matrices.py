"""The common parts of ./run bench matmul and ./run bench solver: options, the ranks' group, ScaLAPACK, the comparison.

A bench has a function for each kind of rank. The parent runs the bench's own file with --child NAME on every rank, and
each rank writes its numbers to a file: seconds of each repeat, by case. The name of a case may have a setting behind a
comma. "limit CASE" is the limit of a case.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import processes
import record

LIBRARIES = ("libscalapack-openmpi.so", "libscalapack-openmpi.so.2.2", "libscalapack-openmpi.so.2.1")


def parser_of(part, text, cases, contestants, repeats, dtype):
    """The options that both benches have. repeats, dtype: the defaults. In the ranks' processes dtype is one."""
    parser = argparse.ArgumentParser(prog=f"./run bench {part}", description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2048,4096")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--dtype", default=dtype, help="float32, float64, or both with a comma between")
    parser.add_argument("--only", default=",".join(contestants), help="contestants, separated by commas")
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser


def grid_of(ranks):
    """The squarest grid."""
    rows = max(rows for rows in range(1, ranks + 1) if ranks % rows == 0 and rows * rows <= ranks)
    return rows, ranks // rows


# The ranks.

def start(backend, folder):
    """This rank and the number of ranks, in a default group."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    return dist.get_rank(), dist.get_world_size()


def scalapack_library():
    """MPI's library and ScaLAPACK's. OSError without ScaLAPACK."""
    mpi = ctypes.CDLL(ctypes.util.find_library("mpi") or "libmpi.so.40", ctypes.RTLD_GLOBAL)
    names, failure = [os.environ.get("SHARDWIRE_SCALAPACK", "")], OSError("no name")
    for name in filter(None, [*names, *LIBRARIES]):
        try:
            return mpi, ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError as error:
            failure = error
    raise failure


def number(value):
    """An int as Fortran's interface takes it: every argument is a pointer."""
    return ctypes.byref(ctypes.c_int(value))


def pointer(array):
    """The elements of a numpy array."""
    return array.ctypes.data_as(ctypes.c_void_p)


class Scalapack:
    """ScaLAPACK on a grid of all ranks. at: this rank's row and column in the grid."""

    def __init__(self):
        self.mpi, self.library = scalapack_library()
        rank, ranks = ctypes.c_int(), ctypes.c_int()
        self.library.Cblacs_pinfo(ctypes.byref(rank), ctypes.byref(ranks))
        self.rank, self.ranks = rank.value, ranks.value

    def arrange(self, grid):
        """Later descriptors are of this grid."""
        self.grid, self.at, self._context = grid, divmod(self.rank, grid[1]), ctypes.c_int()
        self.library.Cblacs_get(-1, 0, ctypes.byref(self._context))
        self.library.Cblacs_gridinit(ctypes.byref(self._context), b"Row", *grid)

    def constant(self, name):
        """Open MPI's ompi_mpi_NAME."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.mpi, f"ompi_mpi_{name}")))

    def barrier(self):
        self.mpi.MPI_Barrier(self.constant("comm_world"))

    def descriptor(self, rows, columns, block, leading):
        """Of a matrix in square blocks, of which this rank has ``leading`` rows."""
        made, failed = (ctypes.c_int * 9)(), ctypes.c_int()
        self.library.descinit_(made, number(rows), number(columns), number(block), number(block), number(0), number(0),
                               ctypes.byref(self._context), number(max(1, leading)), ctypes.byref(failed))
        if failed.value:
            raise SystemExit(f"descinit: {failed.value}")
        return made

    def end(self):
        self.library.Cblacs_exit(0)


def write_numbers(options, rank, numbers):
    pathlib.Path(options.folder, f"{rank}.json").write_text(json.dumps(numbers), encoding="utf-8")


# The parent.

def why_not(name):
    """Why a contestant cannot run here, or None."""
    if name == "shardwire":
        return None
    if name == "scalapack" and shutil.which("mpirun") is None:
        return "no mpirun here (Debian: openmpi-bin)"
    probe = ("import sys; sys.path.insert(0, sys.argv[1]); import matrices; matrices.scalapack_library()"
             if name == "scalapack" else "import torch.distributed.tensor")
    found = subprocess.run([sys.executable, "-c", probe, str(pathlib.Path(__file__).parent)], capture_output=True,
                           text=True, check=False, stdin=subprocess.DEVNULL)
    return None if found.returncode == 0 else (found.stderr.strip().splitlines() or ["?"])[-1]


def run(program, options, arguments, name, size, ranks):
    """Numbers of one run by cases: for each repeat the slowest rank's time."""
    command = ([sys.executable, "-m", "shardwire.launch", "-n", str(ranks)] if name != "scalapack"
               else ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory(prefix="shardwire-matrices-") as folder:
        done = processes.run([*command, program, "--child", name, "--sizes", size, "--repeats", str(options.repeats),
                              "--dtype", options.dtype, "--cases", options.cases, "--folder", folder, *arguments],
                             env=environment)
        if done.returncode != 0:
            raise SystemExit(f"{name} failed on {size}:\n{done.stdout}{done.stderr}")
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(folder).glob("*.json"))]
    return {case: [max(each) for each in zip(*(rank[case] for rank in found))] for case in found[0]}


def in_turns(program, options, arguments, names, size, ranks):
    """All contestants on one size: the times by case and contestant."""
    gathered = {}
    for _ in range(options.rounds):
        for name in names:
            for case, times in run(program, options, arguments, name, size, ranks).items():
                what, _, rest = case.partition(", ")
                key = (what[6:], "limit") if what.startswith("limit ") else (what, f"{name} {rest}".strip())
                gathered.setdefault(key, []).extend(times)
    return gathered


def blas_of_system():
    """The file of the BLAS that ScaLAPACK and Debian's torch call; "" where there is none. Debian's alternatives are a
    libblas.so.3 that loads the library with the code."""
    if not (name := ctypes.util.find_library("blas")):
        return ""
    ctypes.CDLL(name)
    files = {pathlib.Path(line.split()[-1]).name
             for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines() if "blas" in line}
    return min(files, key=lambda file: (file.startswith("libblas"), file))


def compare(program, options, cases, arguments=(), about="", takes=lambda name: True):
    """Runs, prints and records the comparison. program: the bench's file. cases: that exist. arguments: for the ranks,
    besides the common ones. about: for the heading. takes: whether a contestant has one of the chosen cases."""
    part = pathlib.Path(program).stem
    if unknown := [case for case in options.cases.split(",") if case not in cases]:
        raise SystemExit(f"{part}.py: --cases has {', '.join(unknown)}; give some of {', '.join(cases)}")
    if unknown := {*options.dtype.split(",")} - {"float32", "float64"}:
        raise SystemExit(f"{part}.py: --dtype has {', '.join(sorted(unknown))}; give some of float32, float64")
    names, absent, tables, results = [], {}, [], {}
    blas = blas_of_system()
    if blas.startswith("libblas"):
        print("# the system's BLAS is Debian's reference, whose figures say nothing: "
              "apt-get install libopenblas0-pthread")
    for name in options.only.split(","):
        if missing := why_not(name):
            print(f"# without {name}: {missing}")
            absent[name] = missing
        elif takes(name):
            names.append(name)
    for dtype in options.dtype.split(","):
        medians, options.dtype = {}, dtype
        for ranks in map(int, options.ranks.split(",")):
            print(f"# {ranks} ranks, {dtype}{about}, medians of {options.rounds} rounds of {options.repeats}, in ms; "
                  "the least in parentheses")
            for size in options.sizes.split(","):
                gathered = in_turns(program, options, arguments, names, size, ranks)
                for case in options.cases.split(","):
                    cells = [f"{who} {1e3 * statistics.median(times):.2f} ({1e3 * min(times):.2f})"
                             for (what, who), times in gathered.items() if what == case]
                    print(f"{size:>6}  {case:<14}{'   '.join(cells)}", flush=True)
                for (what, who), times in gathered.items():
                    medians.setdefault((ranks, size, what), {})[who] = 1e3 * statistics.median(times)
                results[f"{dtype}, {size}, {ranks} ranks"] = {f"{what}, {who}": times
                                                              for (what, who), times in gathered.items()}
        columns = {name for row in medians.values() for name in row} - {"limit"}
        ours = [name for name in columns if name.startswith("shardwire")]
        tables.append(record.table(f"Medians of the slowest rank, {dtype}, ms; the system's BLAS is {blas or 'absent'}",
                                   ["ranks", "n", "case"], medians, ours, columns - {*ours}))
    if options.json:
        record.write(options.json, part, tables, absent, results=results)
