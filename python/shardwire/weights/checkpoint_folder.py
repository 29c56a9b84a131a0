"""The safetensors files of a path, and the tensors of each file: single files, lists of files, folders with and without
an index."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..compiler.layout import kind_of
from ..errors import CheckpointError
from .descriptions import Weight
from .simple_layouts import Whole
from .matching import Match
from .progress import SILENT, Progress
from .read_ahead import Span, bring_in, share_of
from .regular_file import as_path, read_regular
from .safetensors_file import OpenFile, Stored
from .wanted import Asking, meet, wanted_ranges

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The name of one of several files. Without an index the file belongs to an unfinished or killed save: such a file is no
# checkpoint, and hides none.
_PART = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.safetensors$")


class FileSet:
    """The tensors of one or several open files by name. Every file is opened once; ``close`` closes them all."""

    def __init__(self, path: Any) -> None:
        """path: a file, a folder, or a list of files. Raises CheckpointError, UnsupportedError, TypeError, OSError."""
        self.files: list[OpenFile] = []
        # name -> (which file, where in the file)
        self.tensors: dict[str, tuple[int, Stored]] = {}
        try:
            if isinstance(path, (str, os.PathLike)):
                self._read_path(as_path(path))
            elif (isinstance(path, (list, tuple)) and path
                  and all(isinstance(item, (str, os.PathLike)) for item in path)):
                self._join([as_path(item) for item in path])
            else:
                raise TypeError(f"path is {kind_of(path)}; give a .safetensors file, a folder of them, a list of "
                                "files, or None")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files:
            file.close()

    def entries(self) -> Iterator[tuple[str, tuple[int, ...], Any]]:
        """Name, shape and dtype of each tensor; the dtype's name where this torch or the format's table lacks it."""
        for name, (_, stored) in self.tensors.items():
            yield name, stored.shape, stored.dtype or stored.torch_name

    def supply(self, found: Match, targets: dict[str, Weight], asking: Asking,
               shown: Progress = SILENT) -> tuple[dict[str, Any], dict[str, Any]]:
        """Layouts and tensors of the moved weights. Every reader has all tensors, in the page cache; each reader brings
        an even part into the cache."""
        bring_in(self, share_of(self.wanted_spans(found, targets, asking), asking.which, asking.count), shown)
        needed = [placed.name for space in found.spaces for placed in space.sources]
        tensors = {name: self.files[self.tensors[name][0]].tensor(self.tensors[name][1]) for name in needed}
        return {name: Whole(self.tensors[name][1].shape) for name in needed}, tensors

    def wanted_spans(self, found: Match, targets: dict[str, Weight], asking: Asking) -> list[Span]:
        """The requested bytes, as whole rows of the tensors: sorted, not overlapping."""
        spans = []
        for placed, ranges in wanted_ranges(found, targets, asking):
            which, stored = self.tensors[placed.name]
            whole = tuple((0, extent) for extent in stored.shape)
            for box in ranges:
                met = meet(whole, box)
                if met is not None:
                    begin, end = met[0] if met else (0, 1)
                    spans.append(Span(which, stored.begin + begin * stored.row_bytes,
                                      stored.begin + end * stored.row_bytes))
        return _merged(spans)

    def _open(self, path: Path) -> int:
        self.files.append(OpenFile(path))
        return len(self.files) - 1

    def _read_path(self, path: Path) -> None:
        if not path.is_dir():
            self._join([path])
        # first, as in transformers; save() relies on this order
        elif (path / SINGLE).is_file():
            self._join([path / SINGLE])
        elif (path / INDEX).is_file():
            self._read_indexed(path)
        else:
            files = sorted(file for file in path.iterdir()
                           if file.suffix == ".safetensors" and not file.name.startswith("."))
            whole = [file for file in files if not _PART.search(file.name)]
            if len(whole) != 1:
                raise CheckpointError(f"{path}: the folder has neither {SINGLE} nor {INDEX}, and {len(whole)} other "
                                      f"*.safetensors beside {len(files) - len(whole)} parts (-00001-of-...), which "
                                      "count with an index only; an unfinished checkpoint looks so: give the files as "
                                      "a list if they belong together")
            self._join(whole)

    def _join(self, paths: Iterable[Path]) -> None:
        for path in paths:
            which = self._open(path)
            for name, stored in self.files[which].tensors.items():
                if name in self.tensors:
                    raise CheckpointError(f"{path}: holds {name!r}, which {self.files[self.tensors[name][0]].path} "
                                          "holds as well")
                self.tensors[name] = (which, stored)

    def _read_indexed(self, folder: Path) -> None:
        opened: dict[str, int] = {}
        for name, file in read_index(folder / INDEX).items():
            if file not in opened:
                opened[file] = self._open(folder / file)
            which = opened[file]
            stored = self.files[which].tensors.get(name)
            if stored is None:
                raise CheckpointError(f"{folder / INDEX}: places {name!r} in {file}, which does not have it")
            self.tensors[name] = (which, stored)


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].file == span.file and span.begin <= merged[-1].end:
            merged[-1] = Span(span.file, merged[-1].begin, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def read_index(index: Path) -> dict[str, str]:
    """The weight_map of an index: tensor names to file names; all files exist in the index's folder."""
    try:
        weight_map = json.loads(read_regular(index).decode("utf-8"))["weight_map"]
        wanted = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{index}: is not an index: JSON with a weight_map of names to files is "
                              "expected") from None
    for file in dict.fromkeys(wanted.values()):
        if file != os.path.basename(file) or file in ("", ".", ".."):
            raise CheckpointError(f"{index}: names the shard {file!r}, which is not in its folder")
        if not os.path.isfile(index.parent / file):  # also where no file can have the name
            raise CheckpointError(f"{index}: the shard {file} is missing")
    return wanted
