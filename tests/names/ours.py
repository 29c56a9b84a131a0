"""Where the names of peers.json are in shardwire, and the tables of docs/names.md: ``python tests/names/ours.py``
writes the tables into the page.

A name of a peer's module is the same name in our module (MODULES), with the peer's own name replaced (SPELLED), or the
name in RENAMED. A name in NEEDS_A_DEVICE is missing in shardwire for the one reason given there; "Class" stands for the
class with all its members, "Class.__init__" for the calls of the constructor alone.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "names.md"
BEGIN, END = "<!-- written by tests/names/ours.py -->", "<!-- end of what tests/names/ours.py wrote -->"

MODULES = {
    "nvmath.distributed": "shardwire.distributed",
    "nvmath.distributed.process_group": "shardwire.distributed.process_group",
    "nvmath.distributed.distribution": "shardwire.distributed.distribution",
    "nvmath.distributed.fft": "shardwire.distributed.fft",
    "nvmath.distributed.linalg": "shardwire.distributed.linalg",
    "nvmath.distributed.linalg.advanced": "shardwire.distributed.linalg.advanced",
    "nvmath.linalg.advanced.helpers.matmul": "shardwire.distributed.linalg.advanced.helpers.matmul",
    "nvshmem.core": "shardwire.nvshmem.core",
    "moodist": "shardwire",
    "nkipy.runtime": "shardwire.kernels",
    "spike": "shardwire.kernels",
}
SPELLED = (("Moodist", "Shardwire"), ("moodist", "shardwire"))
RENAMED = {("nkipy.runtime", "DeviceKernel.load_from_neff"): "DeviceKernel.load_from_file"}
# Parameters with another name: of load_from_file the file is no NEFF.
PARAMETERS = {"neff_path": "path"}
# Functions with two orders of positional arguments, by the arguments' types, which a signature cannot say.
# tests/python/test_moodist_names.py calls these by position.
BY_TYPE = (("moodist", "compile_op"), ("moodist", "Queue.__init__"))

_ONLY_TENSOR = 'None, the only tensor of the op, or "0" where the rank gives this name to others'
# Parameters with another default value, by "name: parameter", and the meaning of ours.
DEFAULTS = {
    ("nvmath.distributed.linalg.advanced", "MatmulOptions.__init__: inplace"):
        "True, unless an operand or a bias requires grad",
    ("moodist", "TensorRegion.__init__: tensor_id"): _ONLY_TENSOR,
    ("moodist", "specs_from_dtensor: tensor_id"): _ONLY_TENSOR,
    ("nkipy.runtime", "DeviceKernel.benchmark: warmup_iter"): "5 calls where inputs= is given, else 10",
    ("nkipy.runtime", "DeviceKernel.benchmark: benchmark_iter"):
        "5 calls where inputs= is given, else 100",
    ("nkipy.runtime", "DeviceKernel.benchmark: mode"):
        "'device' where inputs= is given, else 'host', the time that a caller sees",
}

_MODULES_OF_CUDA = "a module of device code is loaded into a CUDA context"
_NEURON = "runs on a Neuron core, with NumPy arrays copied there and back"
_MEMORY_OF_ARRAY = "maps an array's own GPU memory; numpy's stays where it is, and register_external_tensor moves"
_STRUCT = "the address of a struct for the C functions of NVSHMEM's library"
NEEDS_A_DEVICE = {
    ("nvshmem.core", "module_init"): _MODULES_OF_CUDA,
    ("nvshmem.core", "module_finalize"): _MODULES_OF_CUDA,
    ("nvshmem.core", "library_init"): _MODULES_OF_CUDA,
    ("nvshmem.core", "library_finalize"): _MODULES_OF_CUDA,
    ("nvshmem.core", "NvshmemKernelObject"): _MODULES_OF_CUDA,
    ("nvshmem.core", "DeviceLibLanguage"): "the forms of NVSHMEM's library of device code",
    ("nvshmem.core", "find_device_bitcode_library"): "finds NVSHMEM's library of device code",
    **{("nvshmem.core", name): _STRUCT for name in ("TeamConfig.ptr", "TeamUniqueId.ptr", "UniqueID.ptr",
                                                    "UniqueID.from_data", "UniqueID.from_ptr")},
    ("nvshmem.core", "NvshmemResource"): "a memory resource of cuda.core for one CUDA device",
    ("nvshmem.core", "NvshmemStream"): "wraps a CUDA stream of torch for cuda.core",
    ("nvshmem.core", "NvshmemStreamsType"): "the types of CUDA streams",
    ("nvshmem.core", "SmemAmount"): "amounts of a CUDA block's shared memory",
    ("nvshmem.core", "ask_smem"): "the shared memory that a CUDA kernel asks for at launch",
    ("nvshmem.core", "register_external_array"): _MEMORY_OF_ARRAY,
    ("nvshmem.core", "unregister_external_array"): _MEMORY_OF_ARRAY,
    ("moodist", "enable_cuda_allocator"): "puts CUDA tensors into memory that peers' GPUs map",
    ("nkipy.runtime", "BaremetalExecutor"): _NEURON,
    ("nkipy.runtime", "baremetal_jit"): _NEURON,
    ("nkipy.runtime", "baremetal_run_traced_kernel"): _NEURON,
    ("nkipy.runtime", "is_neuron_compatible"): "says whether a Neuron core is there",
    ("nkipy.runtime", "DeviceKernel.model_ref"): "the model that is loaded on a Neuron core",
    ("nkipy.runtime", "DeviceKernel.__init__"): "takes a model that is loaded on a Neuron core",
}


def peers() -> list[dict[str, Any]]:
    return json.loads((HERE / "peers.json").read_text())


def names() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(module, name, facts) of every name of the peers."""
    for peer in peers():
        for module, found in peer["modules"].items():
            for name, facts in found.items():
                yield module, name, facts


def ours(module: str, name: str) -> tuple[str, str]:
    """Our module, and the name there."""
    name = RENAMED.get((module, name), name)
    for theirs, own in SPELLED:
        name = name.replace(theirs, own)
    return MODULES[module], name


def reason(module: str, name: str) -> str | None:
    """Why the name is missing; None for a name that must resolve."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        found = NEEDS_A_DEVICE.get((module, ".".join(parts[:count])))
        if found is not None:
            return found
    return None


def tables() -> str:
    """The tables of docs/names.md."""
    rows = ["| package | module | in shardwire | names, with members | of these missing |",
            "|---|---|---|---|---|"]
    for peer in peers():
        for module, found in peer["modules"].items():
            missing = sum(reason(module, name) is not None for name in found)
            rows.append(f"| {peer['package']} {peer['version']} | `{module}` | `{MODULES[module]}` | {len(found)} | "
                        f"{missing or ''} |")
    rows += ["", "| missing | reason |", "|---|---|"]
    rows += [f"| `{module}.{name}` | needs a device: {why} |" for (module, name), why in NEEDS_A_DEVICE.items()]
    rows += ["", "| parameter with another default | the default here |", "|---|---|"]
    rows += [f"| `{module}.{name.replace('.__init__', '')}` | {value} |" for (module, name), value in DEFAULTS.items()]
    return "\n".join(rows)


def page() -> str:
    """docs/names.md with the tables of now."""
    text = PAGE.read_text()
    return f"{text.split(BEGIN)[0]}{BEGIN}\n{tables()}\n{END}{text.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
