"""The files of a checkpoint while it is being written: hidden under names of their own, and moved into place when all of it is on the disk."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ..errors import CheckpointError
from .checkpoint_folder import INDEX, SINGLE, read_index
from .direct_rows import memory_of
from .fused import Rows
from .progress import SILENT, Progress
from .safetensors_file import Stored
from .save_plan import PlannedFile

_PIECE = 8 << 20  # bytes that are written before the disk is asked to begin with them
_SYNC_FILE_RANGE_WRITE = 2  # Linux's; Python has no name for it
_MOST_HELD = 64  # descriptors of replaced files; a process may have few
_removals: list[threading.Thread] = []  # that give back the blocks of replaced files


class Draft:
    """The hidden files of one save, as one rank sees them. token: the same on all ranks, and of this save only."""

    def __init__(self, folder: str, token: str, files: Sequence[PlannedFile]) -> None:
        self.folder = Path(folder)
        self.token = token
        self.files = files
        self._mapped: dict[int, mmap.mmap] = {}

    def hidden(self, number: int) -> Path:
        return self.folder / f".{number:05d}.shardwire-{self.token}.tmp"

    def _hidden_index(self) -> Path:
        return self.folder / f".index.shardwire-{self.token}.tmp"

    def create(self, number: int) -> None:
        """The whole file with its header, its blocks taken from the disk: who is told that it is full is told here."""
        file = self.files[number]
        descriptor = os.open(self.hidden(number), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with _named(self._where(number, f"its {file.size} bytes cannot be had of the disk")):
                os.posix_fallocate(descriptor, 0, file.size)
                _write(descriptor, file.header)
        finally:
            os.close(descriptor)

    def write(self, number: int, parts: Iterable[tuple[int, torch.Tensor]], shown: Progress = SILENT) -> None:
        """Contiguous CPU tensors to their places in a file, (first byte, tensor) each, in the order of places. The disk begins at once with what is there."""
        descriptor = os.open(self.hidden(number), os.O_WRONLY | os.O_CLOEXEC)
        try:
            begin = end = 0  # written, and not told to the disk
            for place, tensor in parts:
                content = memory_of(tensor)
                for at in range(0, len(content), _PIECE):
                    piece = content[at:at + _PIECE]
                    if place + at != end or end - begin >= _PIECE:
                        _begin_writing(descriptor, begin, end)
                        begin = place + at
                    end = place + at + len(piece)
                    with _named(self._where(number, f"bytes {place + at} to {end} cannot be written")):
                        _write_at(descriptor, piece, place + at)
                    shown.add(len(piece))
            _begin_writing(descriptor, begin, end)
        finally:
            os.close(descriptor)

    def view(self, number: int, stored: Stored, part: object, dtype: torch.dtype) -> torch.Tensor:
        """The memory of one tensor of a file, or of some of its rows; what is written there is in the file."""
        rows = (part.start, part.stop) if isinstance(part, Rows) else (0, stored.rows)
        shape = (rows[1] - rows[0], *stored.shape[1:]) if stored.shape else ()
        if stored.begin == stored.end:
            return torch.empty(shape, dtype=dtype, device="cpu")
        count = (rows[1] - rows[0]) * stored.row_bytes // torch.empty((), dtype=dtype, device="cpu").element_size()
        return torch.frombuffer(self._map(number), dtype=dtype, count=count, offset=stored.begin + rows[0] * stored.row_bytes).reshape(shape)

    def _map(self, number: int) -> mmap.mmap:
        if number not in self._mapped:
            with open(self.hidden(number), "r+b") as file:
                self._mapped[number] = mmap.mmap(file.fileno(), self.files[number].size, access=mmap.ACCESS_WRITE)
        return self._mapped[number]

    def sync(self, number: int) -> None:
        """All ranks' bytes of the file onto the disk; raises OSError when that fails."""
        descriptor = os.open(self.hidden(number), os.O_RDWR | os.O_CLOEXEC)
        try:
            with _named(self._where(number, f"its {self.files[number].size} bytes cannot be brought onto the disk")):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _where(self, number: int, what: str) -> str:
        return f"{self.folder}: file {number + 1} of {len(self.files)} of the checkpoint ({self.hidden(number).name}): {what}"

    def check(self) -> None:
        """That this rank, which is to move them, sees all files."""
        for number, file in enumerate(self.files):
            try:
                size = self.hidden(number).stat().st_size
            except FileNotFoundError:
                size = -1
            if size != file.size:
                raise CheckpointError(f"{self.folder}: rank {file.creator} wrote a file of {file.size} bytes there, which this rank "
                                      f"{'does not see' if size < 0 else f'sees with {size} bytes'}; save needs a folder that all ranks share")

    def publish(self, metadata: Mapping[str, str]) -> list[str]:
        """Moves the files into place. Until the last rename a reader finds the old checkpoint, if there was one, and from then on the new one."""
        old = _files_of(self.folder)
        names = self._names()
        moved: list[Path] = []
        held = _held_open([self.folder / name for name in old])
        try:
            self._move(names, old, moved, metadata)
        finally:
            _let_go(held)
        return [str(self.folder / name) for name in names] + ([str(self.folder / INDEX)] if names != [SINGLE] else [])

    def _move(self, names: Sequence[str], old: Sequence[str], moved: list[Path], metadata: Mapping[str, str]) -> None:
        is_indexed = False
        try:
            for number, name in enumerate(names):
                moved.append(self.folder / name)  # first: what ends the rename may end it when it is done
                os.rename(self.hidden(number), self.folder / name)
            _sync_folder(self.folder)
            if names != [SINGLE]:
                self._write_index(names, metadata)
                is_indexed = True  # perhaps: see below
                os.rename(self._hidden_index(), self.folder / INDEX)
        except BaseException:
            # Once the index has its name they are the checkpoint, and they stay. Ctrl-C, and some file systems, fail a rename that is done: so it counts
            # whether the index's draft is there still.
            if names != [SINGLE] and not (is_indexed and not os.path.lexists(self._hidden_index())):
                for path in moved:
                    path.unlink(missing_ok=True)  # no index names them
            raise
        if names != [SINGLE]:
            _sync_folder(self.folder)
        # What the old one alone had. model.safetensors comes first in readers' order, so it goes now, or the index that it came in place of.
        stale = [name for name in old if name not in names and name != INDEX]
        if names == [SINGLE] and INDEX in old:
            stale.insert(0, INDEX)
        for name in stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / name)
        _sync_folder(self.folder)

    def _names(self) -> list[str]:
        """As transformers names them; with the token where such names are taken, since an old index may still count on those files."""
        if len(self.files) == 1:
            return [SINGLE]
        for stem in ("model", f"model-{self.token}"):
            names = [f"{stem}-{number + 1:05d}-of-{len(self.files):05d}.safetensors" for number in range(len(self.files))]
            if not any((self.folder / name).exists() for name in names):
                return names
        raise CheckpointError(f"{self.folder}: has files of the name {names[0]} already")

    def _write_index(self, names: Sequence[str], metadata: Mapping[str, str]) -> None:
        weight_map = {stored.name: name for file, name in zip(self.files, names) for stored in file.tensors}
        total = sum(stored.end - stored.begin for file in self.files for stored in file.tensors)
        text = json.dumps({"metadata": {**metadata, "total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
        descriptor = os.open(self._hidden_index(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with _named(f"{self.folder}: the index of the checkpoint ({self._hidden_index().name}): its {len(text)} letters cannot be written"):
                _write(descriptor, text.encode())
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Removes what is left of the draft, whoever made it; after a failure."""
        self._mapped.clear()
        for path in [*(self.hidden(number) for number in range(len(self.files))), self._hidden_index()]:
            with contextlib.suppress(OSError):
                os.unlink(path)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """An OSError in here says where it was. The system's own text of a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{where}: {error.strerror}") from error


def _held_open(paths: Sequence[Path]) -> list[int]:
    """Descriptors of those that can be had; each keeps its file's blocks when its name goes."""
    held = []
    for path in paths[:_MOST_HELD]:
        with contextlib.suppress(OSError):
            held.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return held


def _let_go(descriptors: Sequence[int]) -> None:
    """Closes files that have no name any more, beside the caller: giving back the blocks and pages of some GB takes a while."""
    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)
    if descriptors:
        _removals.append(threading.Thread(target=close, daemon=True, name="shardwire-replaced-files"))
        _removals[-1].start()


def wait_for_removals() -> None:
    """Until the disk has the space of all files back that this process replaced."""
    while _removals:
        _removals.pop().join()


def _begin_writing(descriptor: int, begin: int, end: int) -> None:
    """Asks the disk to begin with these bytes of a file, and does not wait. A hint: fsync comes later, and tells what fails."""
    if begin < end:
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(begin), ctypes.c_int64(end - begin), _SYNC_FILE_RANGE_WRITE)


def _write_at(descriptor: int, content: memoryview, at: int) -> None:
    while content:
        count = os.pwrite(descriptor, content, at)
        content, at = content[count:], at + count


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view):]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_of(folder: Path) -> list[str]:
    """The files of the checkpoint that is in the folder now; none where its index cannot be read."""
    names = [name for name in (SINGLE, INDEX) if (folder / name).is_file()]
    if INDEX in names:
        with contextlib.suppress(CheckpointError):
            names += [name for name in dict.fromkeys(read_index(folder / INDEX).values()) if name.endswith(".safetensors")]
    return list(dict.fromkeys(names))
