"""Runs the host tests, examples and perftests of NVSHMEM4Py, and CuTeDSL's distributed examples, over
shardwire.nvshmem.core, and prints a table: script and function, ranks, seconds, ok, the words with which a test skips
itself, or the reason of the failure.

    git clone --depth 1 https://github.com/NVIDIA/nvshmem
    ./run python tests/names/run_nvshmem.py nvshmem [--only TEXT] [--ranks N] [--limit SECONDS]

The repository (NVIDIA/nvshmem or NVIDIA/cutlass) may also be a git directory without a work tree, or a folder of
scripts. Needs Open MPI's mpiexec, and an mpi4py that this Python finds; CuTeDSL's examples need nvidia-cutlass-dsl too.
mpiexec starts two ranks, or more where a test says so, and torchrun's variables are set. In the script's processes
`nvshmem.core` is shardwire.nvshmem.core, each process group is of backend shardwire, `cupy` is numpy, and devices of
CUDA are the CPU. Streams and the kernels of numba, triton and CuTe do nothing, so torch.testing.assert_close does not
compare what a kernel would have computed. A test function runs alone, between its file's mpi_init() and finalize(). A
line is ok when all ranks end with status 0.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

from run_examples import FAILED, MPIEXEC, reason_of, stand_in_for_cupy
from stand_ins import Nothing, cuda_on_the_cpu, module, tree_of

FOLDERS = ("nvshmem4py/test", "nvshmem4py/examples", "nvshmem4py/perftest",
           "examples/python/CuTeDSL/cute/blackwell/kernel/distributed", "examples/python/CuTeDSL/distributed")
DEVICE_CODE = ("cuda", "numba", "triton", "nvshmem.bindings.device", "nvshmem.core.device")


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of device code that are not installed. All of their members are Nothing."""

    def __init__(self) -> None:
        self.packages = [each for each in DEVICE_CODE if "." in each or importlib.util.find_spec(each) is None]

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_here = any(name == each or name.startswith(each + ".") for each in self.packages)
        return importlib.util.spec_from_loader(name, self, is_package=True) if is_here else None

    def exec_module(self, made: types.ModuleType) -> None:
        made.__dict__["__getattr__"] = Nothing().__getattr__


class Device(Nothing):
    """A device of cuda.core. `Device()` is the current one."""

    current = 0
    compute_capability = (10, 0)

    def __init__(self, device_id: int | None = None) -> None:
        super().__init__()
        self.device_id = Device.current if device_id is None else device_id

    def set_current(self) -> None:
        Device.current = self.device_id


class Event(Nothing):
    def elapsed_time(self, _: Any) -> float:
        return 1.0


def stand_in_for_cuda(num_ranks: int) -> None:
    import torch
    system = types.SimpleNamespace(num_devices=num_ranks, get_num_devices=lambda: num_ranks)
    cuda = importlib.import_module("cuda")
    importlib.import_module("cuda.bindings")
    members = {"system": system, "Device": Device, "__path__": [], "__getattr__": Nothing().__getattr__}
    cuda.core = module("cuda.core", **members)  # type: ignore[attr-defined]
    cuda.core.experimental = module("cuda.core.experimental", **members)  # type: ignore[attr-defined]
    torch.cuda.device_count = lambda: num_ranks  # type: ignore[assignment]
    torch.cuda.is_available = lambda: True  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_: Device.compute_capability  # type: ignore[assignment]
    torch.cuda.can_device_access_peer = lambda *_: True  # type: ignore[assignment]
    torch.cuda.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.CUDAGraph = torch.cuda.graph = torch.testing.assert_close = Nothing  # type: ignore[assignment,misc]


def stand_in_for_cute() -> None:
    """Kernels are not compiled, and what is for a kernel alone is Nothing: a multicast tensor, a number of clusters."""
    import cutlass.torch
    import torch
    import torch.distributed._symmetric_memory as symm_mem
    from cutlass.cute import runtime

    import shardwire
    from_dlpack, empty = runtime.from_dlpack, symm_mem.empty

    def tensor_of(tensor: Any, **named: Any) -> Any:
        return Nothing() if isinstance(tensor, shardwire.symm.MulticastTensor) else from_dlpack(tensor, **named)

    def on_cpu(*size: Any, device: Any = None, **named: Any) -> torch.Tensor:
        return empty(*size, device="cpu", **named)

    def at_address(_: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    runtime.from_dlpack = tensor_of
    symm_mem.empty = on_cpu  # type: ignore[assignment]
    symm_mem._SymmetricMemory.has_multicast_support = lambda *_: True  # type: ignore[method-assign]
    cutlass.cute.compile = cutlass.utils.HardwareInfo = cutlass.cuda.default_stream = Nothing
    cutlass.torch.as_tensor = at_address
    cutlass.torch.convert_cute_tensor = lambda _, cute_tensor, *__, **___: cute_tensor
    module("cuda.pathfinder", load_nvidia_dynamic_lib=Nothing)
    sys.modules["cuda.bindings.driver"] = sys.modules["cuda.bindings"].driver = (  # type: ignore[attr-defined]
        Nothing())  # type: ignore[assignment]


def stand_in_for_nvshmem() -> None:
    import torch.distributed as dist

    import shardwire.nvshmem.core as core
    make_group = dist.init_process_group

    dist.init_process_group = lambda *_, **__: make_group("shardwire", init_method="mpi://")  # type: ignore[assignment]
    for name in [each for each in sys.modules if each.startswith("shardwire.nvshmem")]:
        sys.modules[name.removeprefix("shardwire.")] = sys.modules[name]
    sys.modules["nvshmem.core.nvshmem_types"] = core
    module("nvshmem.core._internal_tracking", _mr_references={})
    sys.modules["nvshmem"].bindings = module(  # type: ignore[attr-defined]
        "nvshmem.bindings", my_pe=core.my_pe, n_pes=core.n_pes, barrier_all=core.barrier_all, __path__=[])


def run_one(script: str, name: str) -> None:
    """Runs the script, or one function of the script."""
    import torch.distributed as dist

    import shardwire.nvshmem.core as core

    # numpy has the address of an array elsewhere, a buffer is a tensor, and an array needs no copy from a device.
    source = pathlib.Path(script).read_text().replace(".data.ptr", ".ctypes.data").replace(".get()", "")
    source = re.sub(r"buf\.handle\b", "buf.data_ptr()", source)
    if "import cutlass" in source:
        stand_in_for_cute()
    members: dict[str, Any] = {"__name__": "script" if name else "__main__", "__file__": script}
    exec(compile(source, script, "exec", dont_inherit=True), members)
    if name:
        device = members["mpi_init"]() if name.startswith("test_") and "mpi_init" in members else None
        members[name](*[device] * len(inspect.signature(members[name]).parameters))
        if core.init_status() == core.InitStatus.STATUS_IS_INITIALIZED:
            core.finalize()
        if dist.is_initialized():
            dist.destroy_process_group()


def be_rank(script: str, name: str) -> None:
    """Runs one rank of MPI. A failed rank ends the job: other ranks may wait for this rank."""
    from mpi4py import MPI
    rank, size = str(MPI.COMM_WORLD.rank), str(MPI.COMM_WORLD.size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    sys.argv = [script]
    sys.path[0] = str(pathlib.Path(script).parent)
    try:
        stand_in_for_cupy()
        del sys.modules["cuda"], sys.modules["cuda.core"]
        sys.meta_path.append(Missing())
        with cuda_on_the_cpu():
            stand_in_for_cuda(int(size))
            stand_in_for_nvshmem()
            run_one(script, name)
    except BaseException as error:  # pylint: disable=broad-except
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__} at `{place.line}`: {error}".replace("\n", " ")
        # One write, because mpiexec mixes the ranks' lines.
        os.write(2, f"{traceback.format_exc()}\n{FAILED}{reason}\n".encode())
        MPI.COMM_WORLD.Abort(1)


def scripts_of(tree: pathlib.Path) -> Iterator[pathlib.Path]:
    """The scripts of the host API."""
    for folder in [tree / each for each in FOLDERS if (tree / each).is_dir()] or [tree]:
        for script in sorted(folder.rglob("*.py")):
            if script.name not in ("utils.py", "conftest.py") and "device" not in script.relative_to(tree).parts:
                yield script


def functions_of(script: pathlib.Path, fewest: int) -> list[tuple[str, int]]:
    """The functions that run alone, with the number of ranks: each test of a test file, each function of a file that
    does nothing else, or "" for the script itself."""
    text = script.read_text()
    body = ast.parse(text).body
    found = [each for each in body if isinstance(each, ast.FunctionDef)]
    if "test" in (script.stem[:4], script.stem[-4:]):
        found = [each for each in found if each.name.startswith("test_")]
    elif not all(isinstance(each, (ast.FunctionDef, ast.Import, ast.ImportFrom))
                 or ast.get_docstring(ast.Module([each], [])) for each in body):
        return [("", fewest)]
    needs = {each.name: re.findall(r"(?:at least |_pes\(\) < )(\d)", ast.get_source_segment(text, each) or "")
             for each in found}
    return [(name, max([fewest, *map(int, numbers)])) for name, numbers in needs.items()]


def run(script: pathlib.Path, name: str, num_ranks: int, limit: float) -> str:
    # `timeout` ends mpiexec by SIGTERM, and mpiexec then ends the ranks.
    command = ["timeout", str(limit), MPIEXEC, "--allow-run-as-root", "--oversubscribe", "-n", str(num_ranks),
               sys.executable, __file__, "--rank", str(script), "--only", name]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 124:
        return f"not done after {limit:g} s"
    if done.returncode != 0:
        return reason_of(done.stdout + done.stderr)
    skipped = re.search(r"(?i).*\bskipping\b(?!.* check ).*", done.stdout)
    return f"skipped: {skipped[0]}" if skipped else "ok"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=pathlib.Path, help="of NVSHMEM or CUTLASS")
    parser.add_argument("--only", default="", help="only scripts and functions whose name has this text")
    parser.add_argument("--ranks", type=int, default=2, help="fewest ranks of a test function (2)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one script or function (120)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        be_rank(str(given.repository), given.only)
        return
    found = []
    with tree_of(given.repository.resolve(), *FOLDERS) as tree:
        for script in scripts_of(tree):
            for function, num_ranks in functions_of(script, given.ranks):
                name = f"{script.name} {function}".strip()
                if given.only in name:
                    begin = time.monotonic()
                    found.append(run(script, function, num_ranks, given.limit))
                    print(f"{name:<70} {num_ranks} {time.monotonic() - begin:6.1f} s  {found[-1]}", flush=True)
    num_ok, num_skipped = found.count("ok"), sum(each.startswith("skipped") for each in found)
    num_failed = len(found) - num_ok - num_skipped
    print(f"{len(found)} scripts and functions, {num_ok} ok, {num_skipped} skipped themselves, {num_failed} failed")
    sys.exit(num_failed > 0 or not found)


if __name__ == "__main__":
    main()
