"""CompiledKernel: the file of a compiled kernel, by NKIPy's name."""

from __future__ import annotations

import os
from typing import Any

from .. import _C
from ..errors import KernelError
from .package import Broken, Package, decode


class CompiledKernel:
    """A kernel and the file that it was compiled into: ``DeviceKernel.path`` of an earlier compile_and_load.

    traced_kernel: the function, or anything else that names the kernel; kept. compiled_artifact: the file;
    FileNotFoundError where the file is missing, :class:`shardwire.KernelError` for any file but a kernel's. ir: the
    file's contents: name, key, forms of inputs and outputs. ``DeviceKernel.load_from_file(kernel.compiled_artifact)``
    loads the kernel.
    """

    def __init__(self, traced_kernel: Any, compiled_artifact: str | os.PathLike[str]) -> None:
        self.traced_kernel = traced_kernel
        self.compiled_artifact = os.path.abspath(compiled_artifact)
        self.ir = read_file(self.compiled_artifact)


def read_file(path: str | os.PathLike[str]) -> Package:
    """The package in a file. The code will run in this process, so no other user may have written the file."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no compiled kernel {os.fspath(path)}")
    data = _C.read_kept(os.fspath(path))
    if data is None:
        raise KernelError(f"{os.fspath(path)} cannot be read, or belongs to another user or could be changed by one")
    try:
        return decode(data)
    except Broken as error:
        raise KernelError(f"{os.fspath(path)}: {error}") from None
