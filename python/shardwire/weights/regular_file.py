"""Opens a file named by the caller, without waiting: opening a pipe in a folder of weights would wait for a writer that
never comes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISCHR, "a device"),
          (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"))


def as_path(given: Any) -> Path:
    """The path; ``~`` is the user's home, as in a shell."""
    return Path(given).expanduser()


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor for reading a regular file. CheckpointError at once for anything else; OSError for a missing or
    unreadable file."""
    # Before opening: opening some devices has an effect
    _refuse_others(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _refuse_others(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The whole of a regular file, with the errors of open_regular."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def read_into(descriptor: int, view: memoryview, begin: int, where: str) -> None:
    """Fills ``view`` with the bytes of a file from byte ``begin`` on. CheckpointError for a file that ends before,
    OSError for an unreadable file."""
    while view:
        try:
            count = os.preadv(descriptor, [view[:1 << 30]], begin)
        except OSError as error:
            raise OSError(error.errno, f"{where}: cannot be read at byte {begin}: {error.strerror}") from None
        if count == 0:
            raise CheckpointError(f"{where}: truncated while it was read, at byte {begin}")
        view, begin = view[count:], begin + count


def _refuse_others(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "no file")
        raise CheckpointError(f"{os.fspath(path)}: is {kind}; give a regular file")
