"""The files of a checkpoint during a save: hidden under temporary names, and moved into place when all bytes are on the
disk."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ..errors import CheckpointError
from ..plain.tensor_bytes import bytes_of, item_bytes
from .checkpoint_folder import INDEX, SINGLE, read_index
from .simple_layouts import Rows
from .progress import SILENT, Progress
from .safetensors_file import Stored
from .save_plan import PlannedFile

_PIECE = 8 << 20  # bytes written before the disk is asked to begin with them
_SYNC_FILE_RANGE_WRITE = 2  # Linux's; Python has no name for it
_LONGEST_TURN_S = 60.0  # of another job that moves its files into the folder; it takes milliseconds
_SHARE = 0.75  # of the call's time limit, at most: the other ranks get this rank's error before their own timeout
_MOST_HELD = 64  # descriptors of replaced files; a process may have few
_removals: list[threading.Thread] = []  # threads that release the blocks of replaced files


class Draft:
    """The hidden files of one save, as one rank sees them. token: the same on all ranks, and different for each
    save."""

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
        """Creates the whole file with its header, and allocates all blocks: a full disk is reported here."""
        file = self.files[number]
        with _opened(self.hidden(number), os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
            with _named(self._where(number, f"the disk has no room for the {file.size} bytes")):
                os.posix_fallocate(descriptor, 0, file.size)
                _write(descriptor, file.header)

    def write(self, number: int, parts: Iterable[tuple[int, torch.Tensor]], shown: Progress = SILENT) -> None:
        """Writes contiguous CPU tensors to their places in a file, (first byte, tensor) each, in the order of places.
        The disk begins at once with the written bytes."""
        with _opened(self.hidden(number), os.O_WRONLY) as descriptor:
            begin = end = 0  # written, and not yet passed to the disk
            for place, tensor in parts:
                content = memoryview(bytes_of(tensor).numpy())
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

    def view(self, number: int, stored: Stored, part: object, dtype: torch.dtype) -> torch.Tensor:
        """The memory of one tensor of a file, or of some of its rows; writes to the memory go into the file."""
        rows = (part.start, part.stop) if isinstance(part, Rows) else (0, stored.rows)
        shape = (rows[1] - rows[0], *stored.shape[1:]) if stored.shape else ()
        if stored.begin == stored.end:
            return torch.empty(shape, dtype=dtype, device="cpu")
        count = (rows[1] - rows[0]) * stored.row_bytes // item_bytes(dtype)
        return torch.frombuffer(self._map(number), dtype=dtype, count=count,
                                offset=stored.begin + rows[0] * stored.row_bytes).reshape(shape)

    def _map(self, number: int) -> mmap.mmap:
        if number not in self._mapped:
            with open(self.hidden(number), "r+b") as file:
                self._mapped[number] = mmap.mmap(file.fileno(), self.files[number].size, access=mmap.ACCESS_WRITE)
        return self._mapped[number]

    def sync(self, number: int) -> None:
        """Brings the bytes of all ranks in the file onto the disk; raises OSError for a failure."""
        with _opened(self.hidden(number), os.O_RDWR) as descriptor:
            with _named(self._where(number, f"the {self.files[number].size} bytes cannot be brought onto the disk")):
                os.fsync(descriptor)

    def _where(self, number: int, what: str) -> str:
        return (f"{self.folder}: file {number + 1} of {len(self.files)} of the checkpoint "
                f"({self.hidden(number).name}): {what}")

    def check(self) -> None:
        """Checks that this rank, which moves the files, sees all files."""
        for number, file in enumerate(self.files):
            try:
                size = self.hidden(number).stat().st_size
            except FileNotFoundError:
                size = -1
            if size != file.size:
                raise CheckpointError(f"{self.folder}: rank {file.creator} wrote a file of {file.size} bytes there, "
                                      f"which this rank {'does not see' if size < 0 else f'sees with {size} bytes'}; "
                                      "save needs a folder that all ranks share")

    def publish(self, metadata: Mapping[str, str], seconds: float | None) -> list[str]:
        """Moves the files into place. Until the last rename a reader finds the old checkpoint, if any, and after the
        last rename the new one. seconds: the limit of the other ranks, which wait for this rank."""
        with _alone_in(self.folder, min(_LONGEST_TURN_S, _LONGEST_TURN_S if seconds is None else _SHARE * seconds)):
            old = _files_of(self.folder)
            names = self._names()
            moved: list[Path] = []
            held = _held_open([self.folder / name for name in old])
            try:
                self._move(names, old, moved, metadata)
            finally:
                _release(held)
        return [str(self.folder / name) for name in names] + ([str(self.folder / INDEX)] if names != [SINGLE] else [])

    def _move(self, names: Sequence[str], old: Sequence[str], moved: list[Path], metadata: Mapping[str, str]) -> None:
        is_indexed = False
        try:
            for number, name in enumerate(names):
                moved.append(self.folder / name)  # first: an interrupt may come after the rename
                os.rename(self.hidden(number), self.folder / name)
            _sync_folder(self.folder)
            if names != [SINGLE]:
                self._write_index(names, metadata)
                is_indexed = True  # perhaps: see below
                os.rename(self._hidden_index(), self.folder / INDEX)
        except BaseException:
            # Once the index has its final name, the files are the checkpoint and must stay. Ctrl-C and some file
            # systems report a completed rename as failed, so the test is whether the index's draft still exists.
            if names != [SINGLE] and not (is_indexed and not os.path.lexists(self._hidden_index())):
                for path in moved:
                    path.unlink(missing_ok=True)  # no index names these files
            raise
        if names != [SINGLE]:
            _sync_folder(self.folder)
        # Files of the old checkpoint only. Readers look for model.safetensors first: an old one goes now, or, when the
        # new checkpoint is one file, the old index.
        stale = [name for name in old if name not in names and name != INDEX]
        if names == [SINGLE] and INDEX in old:
            stale.insert(0, INDEX)
        for name in stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / name)
        _sync_folder(self.folder)

    def _names(self) -> list[str]:
        """The names that transformers uses; with the token where these names are taken, since an old index may still
        name the files."""
        if len(self.files) == 1:
            return [SINGLE]
        for stem in ("model", f"model-{self.token}"):
            names = [f"{stem}-{number + 1:05d}-of-{len(self.files):05d}.safetensors"
                     for number in range(len(self.files))]
            if not any((self.folder / name).exists() for name in names):
                return names
        raise CheckpointError(f"{self.folder}: has files of the name {names[0]} already")

    def _write_index(self, names: Sequence[str], metadata: Mapping[str, str]) -> None:
        weight_map = {stored.name: name for file, name in zip(self.files, names) for stored in file.tensors}
        total = sum(stored.end - stored.begin for file in self.files for stored in file.tensors)
        text = json.dumps(
            {"metadata": {**metadata, "total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
        with _opened(self._hidden_index(), os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            with _named(f"{self.folder}: the index of the checkpoint ({self._hidden_index().name}): its {len(text)} "
                        "letters cannot be written"):
                _write(descriptor, text.encode())
                os.fsync(descriptor)

    def discard(self) -> None:
        """Removes the rest of the draft of all ranks, after a failure."""
        self._mapped.clear()
        for path in [*(self.hidden(number) for number in range(len(self.files))), self._hidden_index()]:
            with contextlib.suppress(OSError):
                os.unlink(path)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _alone_in(folder: Path, longest: float) -> Iterator[None]:
    """Keeps other jobs from moving files into the folder meanwhile, where the file system locks folders: else the two
    checkpoints could mix. CheckpointError where another job does not end its turn."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        until = time.monotonic() + longest
        while not _is_locked(descriptor):
            if time.monotonic() >= until:
                raise CheckpointError(f"{folder}: another job has been moving its checkpoint into this folder for "
                                      f"{longest:.3g} s; save into another folder, or end that job")
            time.sleep(0.005)
        yield


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without such locks
    return True


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Adds the place to an OSError raised inside. The system's own text for a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{where}: {error.strerror}") from error


def _held_open(paths: Sequence[Path]) -> list[int]:
    """Descriptors of the files that can be opened; each descriptor keeps its file's blocks after the name is gone."""
    held = []
    for path in paths[:_MOST_HELD]:
        with contextlib.suppress(OSError):
            held.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return held


def _release(descriptors: Sequence[int]) -> None:
    """Closes files without names on a separate thread: freeing the blocks and pages of some GB takes a while."""
    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)
    if descriptors:
        _removals.append(threading.Thread(target=close, daemon=True, name="shardwire-replaced-files"))
        _removals[-1].start()


def wait_for_removals() -> None:
    """Waits until the disk has freed the space of all files replaced by this process."""
    while _removals:
        _removals.pop().join()


def _begin_writing(descriptor: int, begin: int, end: int) -> None:
    """Asks the disk to begin with these bytes of a file, and does not wait. A hint: fsync comes later, and reports
    failures."""
    if begin < end:
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(begin), ctypes.c_int64(end - begin),
                                          _SYNC_FILE_RANGE_WRITE)


def _write_at(descriptor: int, content: memoryview, at: int) -> None:
    while content:
        count = os.pwrite(descriptor, content, at)
        content, at = content[count:], at + count


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view):]


def _sync_folder(folder: Path) -> None:
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def _files_of(folder: Path) -> list[str]:
    """The files of the current checkpoint in the folder; none where the index cannot be read."""
    names = [name for name in (SINGLE, INDEX) if (folder / name).is_file()]
    if INDEX in names:
        with contextlib.suppress(CheckpointError):
            names += [name for name in dict.fromkeys(read_index(folder / INDEX).values())
                      if name.endswith(".safetensors")]
    return list(dict.fromkeys(names))
