"""Brings parts of files into the page cache, shared evenly by the ranks of a host, so that a failing disk causes an
error and no signal.

Reading a mapping ends the process with SIGBUS when a page is missing and cannot be read; here the kernel returns an
error.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CheckpointError
from .progress import SILENT, Progress
from .regular_file import read_into

if TYPE_CHECKING:
    from .checkpoint_folder import FileSet

_PIECE = 32 << 20  # read at once
_CUT = 1 << 20  # shares end at multiples of this, so no page is read twice
_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14; Python has no name for it


class Span(NamedTuple):
    """Bytes ``begin`` to ``end`` of one of the files."""

    file: int
    begin: int
    end: int


def share_of(spans: Iterable[Span], which: int, count: int) -> list[Span]:
    """Part ``which`` of ``count`` equal parts of all bytes of ``spans``, in their order."""
    spans = list(spans)
    total = sum(span.end - span.begin for span in spans)
    low, high = total * which // count, total * (which + 1) // count
    if which:
        low = -(-low // _CUT) * _CUT
    if which + 1 < count:
        high = -(-high // _CUT) * _CUT
    taken, at = [], 0
    for span in spans:
        begin, end = max(low - at, 0), min(high - at, span.end - span.begin)
        if begin < end:
            taken.append(Span(span.file, span.begin + begin, span.begin + end))
        at += span.end - span.begin
    return taken


def bring_in(files: FileSet, spans: Iterable[Span], shown: Progress = SILENT) -> None:
    """Returns when the bytes are in the page cache. Raises CheckpointError for a file that became shorter, OSError for
    an unreadable file."""
    pieces = [Span(span.file, begin, min(begin + _PIECE, span.end)) for span in spans
              for begin in range(span.begin, span.end, _PIECE)]
    shown.begin("reading", sum(piece.end - piece.begin for piece in pieces))
    for index, piece in enumerate(pieces):
        # The disk works during the wait for this piece
        for ahead in pieces[index + 1:index + 3]:
            descriptor = files.files[ahead.file].descriptor
            if not (_is_cached(descriptor, ahead.begin) and _is_cached(descriptor, ahead.end - 1)):
                os.posix_fadvise(descriptor, ahead.begin, ahead.end - ahead.begin, os.POSIX_FADV_WILLNEED)
        file = files.files[piece.file]
        if os.fstat(file.descriptor).st_size < piece.end:
            raise CheckpointError(f"{file.path}: truncated while it was read: bytes {piece.begin} to {piece.end} are "
                                  f"wanted, it has {os.fstat(file.descriptor).st_size} now, and had {file.size}")
        start = piece.begin // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            file.mapped.madvise(_POPULATE_READ, start, piece.end - start)
        except OSError:
            # An older kernel, or a failing disk: then this call reports the error
            _read_through(file.path, file.descriptor, piece)
        shown.add(piece.end - piece.begin)


def _is_cached(descriptor: int, at: int) -> bool:
    """Whether the byte is in the page cache; False where the file system cannot answer. A hint only."""
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def _read_through(path: str, descriptor: int, piece: Span) -> None:
    view = memoryview(bytearray(_CUT))
    for at in range(piece.begin, piece.end, _CUT):
        read_into(descriptor, view[:piece.end - at], at, path)
