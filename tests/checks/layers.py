"""The layer check: which room may include what (docs/architecture.md), and one file for each file name.

Debian's torch headers lie on the default include path, so the build alone cannot keep torch out of a room.
Usage: layers.py [ROOT]. Prints one line per finding; exit status 1 when there is any.
"""

import ast
import pathlib
import re
import sys

# Each room and the rooms of ours that the room may include; the room itself is always allowed. The longest matching
# prefix decides.
CORE = ["include/shardwire"]
# The bytes of our wire formats: pure, and below every room that writes a wire format.
WIRE = ["ops/wire"]
OPS = ["ops/reduce", "ops/boxes", "ops/plan", "ops/collectives"]
# From the bottom: memory knows no peers; the fabric is the part of a process that exists once for all groups; a
# transport hands the heap's descriptor to a peer; bootstrap makes connections. The parts of one transport are private:
# the rooms above include only the headers of backend/transport/, which are the same for all.
HOW = ["backend/base", "backend/memory", "backend/fabric", "backend/transport", "backend/bootstrap", "backend/exec"]
TRANSPORTS = [f"backend/transport/{name}" for name in ("shm", "rdma", "mpi", "tcp")]
ROOMS = {
    "include/shardwire": [],
    "ops/wire": CORE,
    # Two independent branches: how bytes are moved (kernels, then boxes), and which bytes (plans, then collectives).
    "ops/reduce": CORE,
    "ops/boxes": CORE + ["ops/reduce"],
    "ops/plan": CORE + WIRE,
    "ops/collectives": CORE + ["ops/plan"],
    "backend/base": CORE + WIRE,
    "backend/memory": CORE + WIRE + HOW[:1],
    "backend/fabric": CORE + WIRE + HOW[:1],
    "backend/transport": CORE + WIRE + HOW[:3],
    **{transport: CORE + WIRE + HOW[:4] for transport in TRANSPORTS},
    "backend/bootstrap": CORE + WIRE + HOW[:4],
    "backend/exec": CORE + WIRE + OPS + HOW[:5],
    # Symmetric memory: on the heap, over the engine's links.
    "backend/symm": CORE + WIRE + OPS + HOW,
    # The visible status of a running job: reads the engines, and writes only to its own memory.
    "backend/sight": CORE + WIRE + HOW,
    # The queues that a rank holds: over links, which are groups of two ranks.
    "backend/queues": CORE + WIRE + OPS + HOW,
    # Kept plans: the facts of an op, a cache, a file.
    "backend/plans": CORE + WIRE + OPS + ["backend/base"],
    # The top of the core: the communicator connects the rooms.
    "backend/communicator": CORE + WIRE + OPS + HOW + ["backend/plans", "backend/symm", "backend/sight"],
}
ALL_BELOW_TORCH = sorted(ROOMS)
# The public headers that show torch: for a C++ program on libtorch. Only public headers of ours are installed.
PUBLIC_TORCH = [f"include/shardwire/{name}.h"
                for name in ("c10d", "stream_gate", "tensor_fft", "tensor_op", "torch_backend")]
ROOMS.update({header: CORE + PUBLIC_TORCH for header in PUBLIC_TORCH})
ROOMS["backend/c10d"] = ALL_BELOW_TORCH + PUBLIC_TORCH
ROOMS["python/csrc"] = ALL_BELOW_TORCH + ["backend/c10d"]
# Functions of newer systems, for the wheel: nothing of ours.
ROOMS["python/portable"] = []
# Programs that use every room.
ROOMS["tests"] = ALL_BELOW_TORCH
# A device of the tests' own, for torch.
ROOMS["tests/python/device"] = ALL_BELOW_TORCH + PUBLIC_TORCH + ["backend/c10d"]
# The readers of plain objects with a header that stands in for torch's, for the Python fuzz targets.
ROOMS["tests/fuzz/plain_module"] = ALL_BELOW_TORCH + ["python/csrc"]
ROOMS["bench"] = ALL_BELOW_TORCH
# The headers for a user of the installed library.
ROOMS["docs/examples"] = CORE + PUBLIC_TORCH

LOOKS_AT_VERSION = ("backend/c10d/torch_compat.h", "include/shardwire/torch_backend.h")
SEES_TORCH = ("backend/c10d", *PUBLIC_TORCH, "python/csrc", "docs/examples", "tests/python/device",
              "tests/fuzz/plain_module")

# (pattern of the include line, name of the header, test for the files that may include the header)
OUTSIDE = [
    (re.compile(r"(torch|c10|ATen|caffe2|pybind11)/|Python\.h$"), "torch, pybind11 or Python",
     lambda path, room: room in SEES_TORCH),
    (re.compile(r"(infiniband|rdma)/"), "an RDMA header",
     lambda path, room: path.startswith("backend/transport/rdma/")),
    (re.compile(r"openssl/"), "OpenSSL",
     lambda path, room: path in (
         "backend/base/digest.cc", "backend/fabric/proof.cc", "backend/transport/tcp/tcp_stream.cc",
         "tests/backend/transport/tcp/tls_test.cc", "tests/simulate/tls_calls.cc")),
    # A compiler may link its C++ library into ours, beside torch's copy. Streams then find the other copy's locale and
    # crash; fmt and <charconv> need none.
    (re.compile(r"(iostream|istream|ostream|fstream|sstream|iomanip|locale|regex)$"), "a stream of the C++ library",
     lambda path, room: path.startswith(("tests/", "bench/", "docs/", "python/portable/"))),
    (re.compile(r"mpi\.h$"), "mpi.h", lambda path, room: path.startswith("backend/transport/mpi/") or room == "bench"),
    (
        re.compile(r"(cuda|cuda_runtime|cuda_runtime_api|cuda_fp16|cuda_bf16|nvml|nccl)\.h$|(c10|ATen)/cuda/"),
        "a CUDA header",
        lambda path, room: re.search(r"_cuda\.(h|cc|cu)$", path) is not None,
    ),
    (
        re.compile(
            r"(thread|mutex|shared_mutex|condition_variable|future|semaphore|barrier|latch|stop_token|chrono|ctime|"
            r"time\.h|filesystem|cstdio|stdio\.h|fcntl\.h|unistd\.h|pthread\.h|poll\.h|sys/(?!types\.h).*|linux/.*"
            r"|netinet/.*)$"
        ),
        "I/O, threads or clocks",
        lambda path, room: not path.startswith("ops/"),
    ),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SOURCE = {".h", ".cc", ".cu", ".hpp", ".cpp", ".inc"}


def room_of(path):
    """The room of a file or of an include written from the root; None outside of our rooms."""
    found = [room for room in ROOMS if path == room or path.startswith(room + "/")]
    return max(found, key=len) if found else None


def included_room(name):
    return room_of("include/" + name) if name.startswith("shardwire/") else room_of(name)


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def findings_of(path, text):
    """The faults of one file: lines 'path:line: words'. path is written from the repository root."""
    room, found = room_of(path), []
    if room is None:
        return [f"{path}:1: this folder is no room of tests/checks/layers.py: name it there with what it may include"]
    bare = without_comments(text)
    if "fmt::join" in bare and "<fmt/ranges.h>" not in bare:
        # fmt up to 10 also has it in format.h, and another file of the unit may bring the header.
        found.append(f"{path}:1: fmt::join needs <fmt/ranges.h>")
    for number, line in enumerate(bare.split("\n"), 1):
        include = INCLUDE.match(line)
        if include:
            found += [f"{path}:{number}: {words}" for words in findings_of_include(path, room, *include.groups())]
        if re.search(r"\bTORCH_VERSION", line) and path not in LOOKS_AT_VERSION:
            found.append(f"{path}:{number}: only {' and '.join(LOOKS_AT_VERSION)} look at TORCH_VERSION")
    return found


def findings_of_include(path, room, quote, name):
    if {".", ".."} & set(name.split("/")):  # leads out of the room that its first words name
        yield f'"{name}": write includes from the repository root'
        return
    target = included_room(name)
    if target is not None and target != room and target not in ROOMS[room]:
        why = "it sees torch" if target in SEES_TORCH and room not in SEES_TORCH else f"{target} is not below it"
        yield f"{room} may not include {name}: {why}"
    if quote == '"' and target is None:
        yield f'"{name}": write includes from the repository root, or as "shardwire/x.h"'
    if target is None:
        for pattern, called, allowed in OUTSIDE:
            if pattern.match(name) and not allowed(path, room):
                yield f"<{name}> ({called}) is not allowed here"
    if room == "include/shardwire" and target is None and "/" in name:
        yield f"<{name}>: the public headers include only std and shardwire/"


# Python: the rooms of the package and the rooms that each may import; the room itself, and the loose files, always. The
# first four are the trunk: the trunk may import no feature.
TRUNK = ["groups", "process", "compiler", "plain"]
PYTHON_ROOMS = {
    "process": [], "plain": [], "groups": ["process"], "compiler": ["groups", "plain"],
    **{feature: TRUNK for feature in ("distributed", "kernels", "offline", "queues", "status", "symm")},
    "records": ["process"], "weights": [*TRUNK, "records"], "survive": [*TRUNK, "records"],
    "nvshmem": [*TRUNK, "symm"], "adapters": [*TRUNK, "weights"], "demo": [*TRUNK, "weights"],
}


def python_findings(path, text):
    """Checks the imports of a module of a room, wherever in the module: only rooms in reach, and of another room no
    name that begins with an underscore.
    """
    package = pathlib.PurePath(path).relative_to("python").parent.parts
    room = package[1] if len(package) > 1 else ""
    if room not in PYTHON_ROOMS:
        return [f"{path}:1: {room} is no room of PYTHON_ROOMS"] if room else []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = ((*package[:len(package) - node.level + 1], *(node.module or "").split(".")) if node.level
                    else tuple((node.module or "").split(".")))
            imported = [(*filter(None, base), alias.name) for alias in node.names]
        else:
            imported = [tuple(alias.name.split(".")) for alias in node.names] if isinstance(node, ast.Import) else []
        for name in imported:
            target = name[1] if name[0] == "shardwire" and len(name) > 1 else ""
            if target not in PYTHON_ROOMS or target == room:
                continue
            if target not in PYTHON_ROOMS[room]:
                found.append(f"{path}:{node.lineno}: {room} may not import {target}")
            found += [f"{path}:{node.lineno}: {part} belongs to {target} alone" for part in name[2:]
                      if part.startswith("_")]
    return found


# A file name of the product means one file, so that a name alone finds the file. The exceptions: Python's own names,
# and the binding of an interface, which has the name of the interface.
SHARED_NAMES = {"__init__.py", "__main__.py", "membership.h"}


def same_names(paths):
    """Refuses a file name that stands in two folders of the product. paths are written from the repository root."""
    by_name = {}
    for path in sorted(paths):
        name = pathlib.PurePath(path).name
        if path.startswith(("include/", "ops/", "backend/", "python/")) and name not in SHARED_NAMES:
            by_name.setdefault(name, []).append(path)
    return [f"{places[1]}:1: {places[0]} has the same file name: rename one of the two"
            for places in by_name.values() if len(places) > 1]


def sources(root):
    for top in ("include", "ops", "backend", "python", "tests", "bench", "docs"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE and path.is_file():
                yield path


def not_installed_with_torch(rules):
    """install.cmake installs the public headers that show torch with the c10d library, by a separate list."""
    listed = re.search(r"set\(SHARDWIRE_TORCH_HEADERS ([^)]*)\)", rules)
    if listed is None or sorted(listed[1].split()) != sorted(pathlib.PurePath(header).name for header in PUBLIC_TORCH):
        yield ("install.cmake:1: SHARDWIRE_TORCH_HEADERS and PUBLIC_TORCH of tests/checks/layers.py must name the same "
               "headers")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    files = list(sources(root))
    found = [words for path in files for words in findings_of(path.relative_to(root).as_posix(), path.read_text())]
    modules = sorted((root / "python" / "shardwire").rglob("*.py"))
    found += [words for path in modules
              for words in python_findings(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))]
    found += same_names(path.relative_to(root).as_posix() for path in files + modules)
    found += not_installed_with_torch((root / "install.cmake").read_text())
    for words in found:
        print(words)
    if not files:
        print(f"no sources under {root}")
        return 1
    print(f"{len(files) + len(modules)} files, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
