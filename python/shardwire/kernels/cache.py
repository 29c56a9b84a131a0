"""Packages made before: in memory with a bound, then on disk.

Files are written as ``backend/base/kept_file`` writes, like the files of plans: a reader sees a whole file or no file,
even while other processes write or are killed. A file that cannot be read, has another key or a wrong digest, or could
have been written by another user is a miss. When a file cannot be written, one warning says so: a compiled kernel works
without a file.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict

from .. import _C
from .package import Broken, Package, decode

MEMORY_ENTRIES = 64
MEMORY_BYTES = 256 << 20
_ENDING = ".swkn"

_lock = threading.Lock()
_kept: OrderedDict[str, Package] = OrderedDict()


def find(folder: str, key: str) -> tuple[Package, str] | None:
    """The package of ``key`` and its place, "memory" or "disk"; None when the package must be compiled."""
    with _lock:
        package = _kept.get(key)
        if package is not None:
            _kept.move_to_end(key)
            return package, "memory"
    package = _read(path_of(folder, key), key)
    if package is None:
        return None
    remember(package)
    return package, "disk"


def remember(package: Package) -> None:
    """Keeps the package in memory and drops the least recently used packages to make room. A package larger than the
    whole room is not kept."""
    if len(package.code) > MEMORY_BYTES:
        return
    with _lock:
        _kept[package.key] = package
        _kept.move_to_end(package.key)
        held = sum(len(each.code) for each in _kept.values())
        while len(_kept) > MEMORY_ENTRIES or held > MEMORY_BYTES:
            held -= len(_kept.popitem(last=False)[1].code)


def clear_kernel_cache() -> None:
    """Drops the kernels kept in memory. Files stay: remove the folder, or compile with
    ``use_cached_if_exists=False``."""
    with _lock:
        _kept.clear()


def path_of(folder: str, key: str) -> str:
    return os.path.join(folder, key + _ENDING)


def has_file(folder: str, key: str) -> bool:
    """Whether the package has a file that a later process can use."""
    return _read(path_of(folder, key), key) is not None


def store(folder: str, package: Package) -> None:
    """Writes the package's file. Never raises for an error of the system."""
    failed = _C.write_kept(folder, package.key + _ENDING, package.encode())
    if failed:
        warnings.warn(f"shardwire: the kernel {package.name!r} was compiled but could not be kept in {folder}: "
                      f"{failed}; the next process compiles it again. Give build_dir, or set SHARDWIRE_KERNEL_DIR, to "
                      "a folder that can be written", RuntimeWarning, stacklevel=2)


def _read(path: str, key: str) -> Package | None:
    data = _C.read_kept(path)  # the code will run in this process: no other user may have written the file
    if data is None:
        return None
    try:
        package = decode(data)
    except Broken:
        return None
    return package if package.key == key else None
