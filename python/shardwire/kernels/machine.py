"""The inputs of compiled code besides the graph: torch, compilers, the CPU and the compiler's settings. All of these
are part of a kernel's key."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .. import _build_info

HAS_AOTI = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6) and hasattr(torch._C, "_aoti")


def loads() -> dict[str, str]:
    """Values that must be equal on all ranks that load one package: the package is machine code for this torch on this
    kind of CPU."""
    return {"torch": torch.__version__, "shardwire": _build_info.VERSION, "python": "%d.%d" % sys.version_info[:2],
            "CPU": _cpu()}


def compiles(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Values that decide how this process compiles. Read anew each time, since settings and the environment change."""
    found: dict[str, Any] = {"settings": sorted((name, repr(value)) for name, value in settings.items())}
    if HAS_AOTI:
        from torch._inductor import config
        # The number of threads is a constant in compiled loops.
        found["torch"] = [torch.get_num_threads(), torch.get_float32_matmul_precision(),
                          torch.are_deterministic_algorithms_enabled()]
        found["inductor"] = _digest_of_settings(config)
        found["cxx"] = _compiler(os.environ.get("CXX", "g++"))
        found["flags"] = [os.environ.get(name, "")
                          for name in ("CXXFLAGS", "CPPFLAGS", "LDFLAGS", "ATEN_CPU_CAPABILITY")]
    if device != "cpu":
        found["device"] = accelerator(device)
    return found


def accelerator(device: str) -> list[str]:
    """Name and capability of this process's current device of a kind other than "cpu", as far as torch has them.
    Code for one capability may not run on another."""
    module = getattr(torch, device, None)
    return [str(getattr(module, call)()) for call in ("get_device_name", "get_device_capability")
            if hasattr(module, call)]


def _digest_of_settings(config: Any) -> str:
    """The digest of inductor's settings. A compile writes the device and machine into one setting (AOTI_DEVICE_KEY,
    ...). No user made these entries, and with them the next key of the same kernel would differ."""
    given = {name: value for name, value in config.aot_inductor.metadata.items() if not name.startswith("AOTI_")}
    with config.patch({"aot_inductor.metadata": given}):
        return str(config.get_hash().hex())


_linking = threading.Lock()


@contextlib.contextmanager
def links_with_this_torch() -> Iterator[None]:
    """A context in which AOTInductor links with the libtorch of this process. By default AOTInductor first looks into
    the folder of Python's library. Where Debian's libtorch-dev lies in the same folder, AOTInductor takes this other
    torch: the kernel compiles, and no process can load the result."""
    own = os.path.join(os.path.dirname(torch.__file__), "lib")
    variables = sysconfig.get_config_vars()
    with _linking:
        folder = variables.get("LIBDIR")
        if folder is None or not os.path.exists(os.path.join(folder, "libtorch_cpu.so")):
            yield
            return
        variables["LIBDIR"] = own
        try:
            yield
        finally:
            variables["LIBDIR"] = folder


@functools.lru_cache(maxsize=8)
def _compiler(command: str) -> str:
    """Path and version of the C++ compiler. A text where there is none, so that the compile fails and not the
    computation of the key."""
    path = shutil.which(command.split()[0]) if command.strip() else None
    if path is None:
        return f"no {command}"
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False,
                              stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    return f"{os.path.realpath(path)} {(said.splitlines() or [''])[0]}"


@functools.lru_cache(maxsize=1)
def _cpu() -> str:
    """The CPU's instructions: code is compiled for all instructions of this CPU."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
        flags = " ".join(sorted(lines[0].split(":", 1)[1].split())) if lines else ""
    except OSError:
        flags = ""
    capability = torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends, "cpu") else ""
    return f"{os.uname().machine} {capability} {hashlib.blake2b(flags.encode(), digest_size=6).hexdigest()}".strip()
