"""python -m shardwire.doctor [--json]: checks this machine, and reports missing or slow parts for shardwire, with
fixes.

The doctor changes nothing and needs only the standard library, so the file also runs (by path, or as ./run doctor)
where nothing is built. Each line is OK, WARN or FAIL; the exit status is 1 when a line is FAIL. --json prints the same
as {"ok": ..., "checks": [...]}.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import mmap
import os
import pathlib
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, Optional, Tuple

__all__ = ["Check", "examine", "main"]

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Check:
    """One result: level is OK, WARN or FAIL; fix is the instruction for a fix, or empty."""

    level: str
    name: str
    text: str
    fix: str = ""


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _said(command: List[str], seconds: float = 60) -> Tuple[int, str]:
    """Exit status and output of a command; 127 when the command cannot be started."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {seconds:.0f} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


# ---- Python, torch and the built module

_TORCH = """
import json, os, torch
d = torch.distributed
print(json.dumps({"version": torch.__version__, "folder": os.path.dirname(torch.__file__), "c10d": d.is_available(),
                  "gloo": d.is_available() and d.is_gloo_available() if hasattr(d, "is_gloo_available") else d.is_available(),
                  "cuda": torch.version.cuda}))
"""
_MODULE = """
import ctypes, json, os, torch, shardwire
transports, problem = getattr(shardwire._C, "transports", None), ""
if "mpi" in (transports or ()):
    try:
        # Beside the core: in a wheel for several torches the extension lies a folder deeper.
        ctypes.CDLL(os.path.join(os.path.dirname(shardwire.__file__), "libshardwire_mpi.so"))
    except OSError as error:
        problem = str(error)
print(json.dumps({"version": shardwire.__version__, "file": shardwire.__file__, "torch": torch.__version__, "transports": transports, "mpi": problem}))
"""
_RENDEZVOUS = """
import torch.distributed as d
d.TCPStore("127.0.0.1", 0, 1, True)
"""


def _last_json(text: str) -> Optional[Dict[str, object]]:
    """The last line that is a JSON object. Warnings may follow it, such as torch's without numpy."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                return found
    return None


def _python() -> Iterator[Check]:
    version = platform.python_version()
    if sys.version_info < (3, 10):
        yield Check("FAIL", "python", f"{version} at {sys.executable} is too old",
                    "use Python 3.10 or newer: PYTHON=/path/to/python ./run ...")
    else:
        yield Check("OK", "python", f"{version} at {sys.executable}")


def _torch() -> Iterator[Check]:
    status, text = _said([sys.executable, "-c", _TORCH], 180)
    facts = _last_json(text) if status == 0 else None
    if facts is None:
        reason = (text.splitlines() or ["no output"])[-1]
        yield Check(
            "FAIL",
            "torch",
            f"{sys.executable} cannot import torch: {reason}",
            "as root ./run setup (Debian's torch), or ./run --torch pip setup, or PYTHON=/path/to/python with a torch",
        )
        return
    if not facts["c10d"]:
        yield Check("FAIL", "torch", f"{facts['version']} was built without torch.distributed",
                    "use another torch: ./run --torch pip setup")
        return
    yield Check("OK", "torch", f"{facts['version']} in {facts['folder']}, CUDA {facts['cuda'] or 'none'}")
    status, text = _said([sys.executable, "-c", _RENDEZVOUS])
    if status == 0:
        yield Check("OK", "rendezvous", "a TCPStore on 127.0.0.1 works")
    elif "libuv" in text:
        yield Check(
            "WARN",
            "rendezvous",
            "this torch was built without libuv yet asks for it: env://, tcp:// and torchrun fail as they are",
            "launch with python -m shardwire.launch -n N script.py, or set USE_LIBUV=0",
        )
    else:
        yield Check("WARN", "rendezvous", f"no TCPStore on 127.0.0.1: {(text.splitlines() or [''])[-1]}",
                    "use init_method='file:///path/on/this/host'")


_FIND = ("import importlib.util as u, sys; s = u.find_spec('shardwire'); print(s.origin if s else ''); sys.exit(0 if s "
         "else 3)")


def _built_for(package: str) -> str:
    """The versions that the build wrote beside the package: torch and Python of the native part."""
    text = _read(os.path.join(os.path.dirname(package), "_build_info.py"))
    found = dict(re.findall(r'^(TORCH|PYTHON) = "([^"]*)"', text, re.M))
    return f" (built for torch {found.get('TORCH', '?')}, Python {found.get('PYTHON', '?')})" if found else ""


def _module() -> Iterator[Check]:
    status, place = _said([sys.executable, "-c", _FIND])
    if status == 3:
        yield Check("WARN", "module", f"shardwire is not built for {sys.executable}",
                    "./run setup builds it, and so does ./run demo")
        return
    status, text = _said([sys.executable, "-c", _MODULE], 180)
    facts = _last_json(text) if status == 0 else None
    if facts is None:
        reason = (text.splitlines() or ["no output"])[-1]
        yield Check("FAIL", "module", f"import shardwire fails{_built_for(place)}: {reason}",
                    "build it for this torch: ./run setup (./run clean first if it was built for another)")
    else:
        yield Check("OK", "module", f"shardwire {facts['version']} at {facts['file']} loads with torch "
                                    f"{facts['torch']}{_built_for(place)}")
        yield from _built_transports(facts)


def _signs_of_mpi() -> str:
    """A sign of MPI on this machine; empty when there is none."""
    launched = next((name for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK") if name in os.environ), "")
    return shutil.which("mpicxx") or shutil.which("mpirun") or (f"{launched} is set" if launched else "")


def _signs_of_rdma() -> str:
    for path in ("/sys/class/infiniband", "/usr/include/infiniband/verbs.h"):
        if os.path.isfile(path) or (os.path.isdir(path) and os.listdir(path)):
            return path
    return ""


def _built_transports(facts: Dict[str, object]) -> Iterator[Check]:
    """The transports in the built module. This machine may have further transports, installed after the build."""
    built = facts.get("transports")
    again = "./run setup, or pip install --force-reinstall --no-deps --no-build-isolation ."
    if not isinstance(built, list):
        yield Check("WARN", "transports", "the module is older than this doctor and does not say which transports it "
                                          "has", f"build it again: {again}")
        return
    yield Check("OK", "transports", f"built with {', '.join(built)}")
    if facts.get("mpi"):
        yield Check("WARN", "mpi transport", f"it was built, but does not load: {facts['mpi']}",
                    "as root: apt-get install libopenmpi-dev, or the MPI it was built with; else build it again: "
                    f"{again}")
    for name, package, sign in (("mpi", "libopenmpi-dev", _signs_of_mpi()),
                                ("rdma", "libibverbs-dev", _signs_of_rdma())):
        if name in built:
            continue
        if sign:
            yield Check("WARN", f"{name} transport", "missing from the built module, though this machine has it "
                                                     f"({sign})", f"as root: apt-get install {package}; then {again}")
        else:
            yield Check("OK", f"{name} transport", "not in the built module, nor is there anything of it on this "
                                                   f"machine (to have it: apt-get install {package}, then {again})")


def _number(text: str) -> Tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def _compiler() -> Iterator[Check]:
    fix = "as root: apt-get install g++ cmake ninja-build, or ./run setup"
    for program, least, name in (
        (os.environ.get("CXX") or "g++", (12, 0), "compiler"),
        ("cmake", (3, 25), "cmake"),
        ("ninja", (1, 10), "ninja"),
    ):
        status, text = _said([*program.split(), "--version"])
        first = (text.splitlines() or [""])[0]
        # "g++ (Debian 12.2.0-14) 12.2.0": the version is what follows the brackets.
        version = _number(re.sub(r"\([^)]*\)", "", first))
        if status != 0:
            yield Check("WARN", name, f"{program} is not here; needed to build, not to run", fix)
        elif version < (least if "clang" not in first else (14, 0)):
            yield Check("WARN", name, f"{first} is older than {least[0]}.{least[1]}: the build may fail", fix)
        else:
            yield Check("OK", name, first)


# ---- the machine


def _cgroup_limit(name: str) -> str:
    """A limit of this process's own control group (v2); empty when there is none or it says 'max'."""
    group = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    text = _read(f"/sys/fs/cgroup{group.rstrip('/')}/{name}") or _read(f"/sys/fs/cgroup/{name}")
    return "" if text.startswith("max") else text


def _cores() -> Iterator[Check]:
    usable = len(os.sched_getaffinity(0))
    quota = _cgroup_limit("cpu.max").split()
    share = int(quota[0]) / int(quota[1]) if len(quota) == 2 else float(usable)
    text = f"{usable} of {os.cpu_count()} usable" + (f", of which this container may use {share:.1f} at a time"
                                                     if share < usable else "")
    if min(share, usable) < 2:
        yield Check("WARN", "cores", text + ": ranks take turns, so nothing overlaps",
                    "give the process two cores or more")
    else:
        yield Check("OK", "cores", text)


def _memory() -> Iterator[Check]:
    found = re.search(r"MemAvailable:\s+(\d+)", _read("/proc/meminfo"))
    free = int(found.group(1)) * 1024 if found else 0
    limit = _cgroup_limit("memory.max")
    text = f"{_gib(free)} available" + (f", this container is held to {_gib(int(limit))}" if limit.isdigit() else "")
    least = min(free, int(limit)) if limit.isdigit() else free
    if least < 3 * 2**30:
        yield Check("WARN", "memory", text, "building takes up to 1.5 GiB a job: SHARDWIRE_JOBS=1 ./run setup")
    else:
        yield Check("OK", "memory", text)
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        yield Check(
            "WARN",
            "address space",
            f"held to {_gib(space)}; the shared heap reserves twice the machine's memory in addresses",
            "ulimit -v unlimited, or SHARDWIRE_HEAP_BYTES=" + str(max(space // 4, MIB)),
        )
    if _read("/proc/sys/vm/overcommit_memory") == "2":
        yield Check("WARN", "overcommit", "vm.overcommit_memory is 2: large reservations may be refused",
                    "sysctl vm.overcommit_memory=0, or a small SHARDWIRE_HEAP_BYTES")


def _shared_memory() -> Iterator[Check]:
    try:
        descriptor = os.memfd_create("shardwire-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, 1 << 40)  # sparse: costs nothing until touched
            with mmap.mmap(descriptor, MIB) as mapped:
                mapped[: MIB - 1 : 4096] = b"x" * len(range(0, MIB - 1, 4096))
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        yield Check("FAIL", "shared memory", f"an anonymous shared file (memfd) cannot be made: {error}",
                    "allow memfd_create in the container's seccomp profile; ulimit -f unlimited")
        return
    yield Check("OK", "shared memory", "anonymous shared files (memfd) work")
    chosen = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    pages = chosen.group(1) if chosen else "unknown"
    text = f"for shared memory: {pages}"
    if pages in ("never", "deny", "unknown"):
        text += (" (the first touch of large shared tensors is slower; as root: echo advise > "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled)")
    yield Check("OK", "huge pages", text)


def _dev_shm() -> Iterator[Check]:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        yield Check("OK", "/dev/shm", "not there; shardwire works without it (torch's DataLoader does not)")
        return
    text = f"{_gib(free)} free; shardwire keeps only measured times of its kernels there (torch's DataLoader needs it)"
    if free < 64 * MIB:
        yield Check("WARN", "/dev/shm", text, "mount -o remount,size=1g /dev/shm, or docker run --shm-size=1g")
    else:
        yield Check("OK", "/dev/shm", text)


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _siblings_can_read(allow: bool) -> Tuple[bool, str]:
    """Whether one child of this process can read another child's memory, as two ranks would; `allow`: the owner first
    allows any process to trace it."""
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.create_string_buffer(b"shardwire", 16)
    ready_read, ready_write = os.pipe()
    end_read, end_write = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            word.value = b"from peer"
            if allow:
                libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
            os.close(end_write)
            os.write(ready_write, b"r")
            os.read(end_read, 1)  # returns when the parent has closed its end
        finally:
            os._exit(0)
    os.close(end_read)
    os.read(ready_read, 1)
    reader = os.fork()
    if reader == 0:
        code = 255
        try:
            local, remote = (_Iovec(ctypes.addressof(word), 16) for _ in range(2))
            count = libc.process_vm_readv(owner, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote),
                                          ctypes.c_ulong(1), ctypes.c_ulong(0))
            code = 0 if count == 16 and word.value == b"from peer" else min(ctypes.get_errno() or 254, 254)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    for descriptor in (end_write, ready_read, ready_write):
        os.close(descriptor)
    os.waitpid(owner, 0)
    return code == 0, os.strerror(code) if 0 < code < 254 else f"status {code}"


def _cross_memory() -> Iterator[Check]:
    for allow in (False, True):
        works, why = _siblings_can_read(allow)
        if works:
            yield Check("OK", "cross-memory copy",
                        "process_vm_readv works between ranks" + (" that allow it (ptrace_scope 1)" if allow else ""))
            return
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    yield Check(
        "WARN",
        "cross-memory copy",
        f"process_vm_readv between ranks is refused ({why}; ptrace_scope {scope or 'unknown'}): ordinary tensors take "
        "the staged ring, which copies twice",
        "use shardwire.empty() or shardwire.enable_cpu_allocator(); or docker run --cap-add=SYS_PTRACE; or sysctl "
        "kernel.yama.ptrace_scope=0",
    )


def _limits() -> Iterator[Check]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files[0] < 256:
        yield Check("FAIL", "open files", f"limit {files[0]}",
                    f"ulimit -n {min(4096, files[1]) if files[1] > 0 else 4096}")
    elif files[0] < 1024:
        yield Check("WARN", "open files", f"limit {files[0]}: enough for small groups only", "ulimit -n 4096")
    else:
        yield Check("OK", "open files", f"limit {files[0]} (hard {files[1]})")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield Check("OK", "locked memory",
                "no limit" if locked == resource.RLIM_INFINITY else f"limit {locked // 1024} KiB (matters for RDMA)")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and processes < 512:
        yield Check("WARN", "processes", f"limit {processes} for this user, threads included", "ulimit -u 4096")


def _network() -> Iterator[Check]:
    name = socket.gethostname()
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
    except OSError as error:
        yield Check("FAIL", "loopback", f"cannot listen on 127.0.0.1: {error}", "ip link set lo up")
        return
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        yield Check("WARN", "loopback", f"127.0.0.1 works, but the host's own name {name!r} does not resolve "
                                        f"({error}); gloo may fail", f"echo '127.0.1.1 {name}' >> /etc/hosts")
        return
    yield Check("OK", "loopback", f"127.0.0.1 works; {name} is {address}")


def _wires() -> Iterator[Check]:
    # Loaded by path: this file may run where the package cannot be imported.
    path = pathlib.Path(__file__).resolve().parent / "process" / "wires.py"
    spec = importlib.util.spec_from_file_location("shardwire_wires", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield from (Check(*finding) for finding in module.examine_wires())


def _environment() -> Iterator[Check]:
    ours = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("SHARDWIRE_"))
    yield Check("OK", "settings", ", ".join(ours) or "no SHARDWIRE_* variable is set")
    rank_words = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
                  if name in os.environ]
    if rank_words and "RANK" not in rank_words:
        yield Check("WARN", "launch variables", f"{', '.join(rank_words)} set in this shell without RANK: left over "
                                                "from an earlier job?", "unset " + " ".join(rank_words))


def _stale() -> Iterator[Check]:
    """Leftovers of killed jobs: files of torch in shared memory whose maker is gone."""
    try:
        names = [path for path in pathlib.Path("/dev/shm").iterdir()
                 if path.name.startswith("torch_") and path.stat().st_uid == os.getuid()]
    except OSError:
        names = []
    # torch_<pid>_...: the process of this pid made the file, and is gone
    dead = [path for path in names
            if (found := re.match(r"torch_(\d+)_", path.name)) and not os.path.exists(f"/proc/{found.group(1)}")]
    if dead:
        yield Check("WARN", "left over", f"{len(dead)} files in /dev/shm whose maker is gone",
                    "rm -f " + " ".join(str(path) for path in dead[:8]))
    else:
        yield Check("OK", "left over", "nothing of earlier jobs")


EXAMINED: Tuple[Callable[[], Iterator[Check]], ...] = (
    _python,
    _torch,
    _module,
    _compiler,
    _cores,
    _memory,
    _shared_memory,
    _dev_shm,
    _cross_memory,
    _limits,
    _network,
    _wires,
    _environment,
    _stale,
)


def examine() -> List[Check]:
    """All checks, in order. A check that itself fails is a WARN, so the other checks still run."""
    checks: List[Check] = []
    for look in EXAMINED:
        try:
            checks += look()
        except Exception as error:  # a failing check must not end the other checks
            checks.append(Check("WARN", look.__name__.strip("_"), f"could not look: {type(error).__name__}: {error}"))
    return checks


def main(arguments: Optional[List[str]] = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shardwire.doctor",
                                     description="Is this machine fit for shardwire? Changes nothing.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    checks = examine()
    failed = sum(check.level == "FAIL" for check in checks)
    if options.json:
        print(json.dumps({"ok": failed == 0, "checks": [dataclasses.asdict(check) for check in checks]}, indent=1))
        return 1 if failed else 0
    for check in checks:
        print(f"{check.level:<4} {check.name}: {check.text}")
        if check.fix:
            print(f"     -> {check.fix}")
    warned = sum(check.level == "WARN" for check in checks)
    print(f"{failed} to fix, {warned} to look at" if failed or warned else "all well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
