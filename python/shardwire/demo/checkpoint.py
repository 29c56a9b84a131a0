"""Checkpoints as name -> tensor: safetensors (parsed here, memory-mapped), torch files, and folders of shards of either.

Nothing is executed from a file: safetensors is plain data, and torch files are read with ``weights_only=True``.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

# safetensors' names -> torch's; the second is for a torch that lacks the first: moving bits needs only the width.
_DTYPES = {
    "BOOL": ("bool",), "U8": ("uint8",), "I8": ("int8",), "I16": ("int16",), "I32": ("int32",), "I64": ("int64",),
    "U16": ("uint16", "int16"), "U32": ("uint32", "int32"), "U64": ("uint64", "int64"),
    "F16": ("float16",), "BF16": ("bfloat16",), "F32": ("float32",), "F64": ("float64",), "C64": ("complex64",),
    "F8_E4M3": ("float8_e4m3fn", "uint8"), "F8_E5M2": ("float8_e5m2", "uint8"), "F8_E8M0": ("float8_e8m0fnu", "uint8"),
}
# The format's own limit: a header larger than this is taken for a broken file.
_MAX_HEADER = 100_000_000
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_WRAPPERS = ("state_dict", "model_state_dict", "model")


class CheckpointError(ValueError):
    """The file is not a checkpoint that can be read. One line, naming the file and what is wrong with it."""


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """All tensors of a .safetensors file, a torch file, or a folder of shards, in the file's order, on the CPU.

    safetensors data stay in the page cache until they are read; tensors that share storage in a torch file (tied weights) still do. The tensors
    must not be written. Raises CheckpointError.
    """
    path = Path(path)
    try:
        tensors = _load_folder(path) if path.is_dir() else _load_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors")
    return tensors


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    size = path.stat().st_size
    if size == 0:
        raise CheckpointError(f"{path}: the file is empty")
    if path.suffix == ".safetensors":
        return _load_safetensors(path, size)
    if path.suffix in _TORCH_ENDINGS:
        return _load_torch(path)
    raise CheckpointError(f"{path}: the name ends in none of .safetensors, {', '.join(_TORCH_ENDINGS)}, and it is no folder")


# Folders.

def _load_folder(path: Path) -> dict[str, torch.Tensor]:
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (path / index).is_file():
            return _load_indexed(path, path / index)
    for endings in ((".safetensors",), _TORCH_ENDINGS):
        files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in endings)
        if files:
            return _join_shards(files)
    raise CheckpointError(f"{path}: the folder has no *.safetensors and none of {', '.join('*' + ending for ending in _TORCH_ENDINGS)}")


def _load_indexed(path: Path, index: Path) -> dict[str, torch.Tensor]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        wanted = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index}: is not an index: JSON with a weight_map of names to files is expected") from None
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for file in dict.fromkeys(wanted.values()):
        if file != os.path.basename(file):
            raise CheckpointError(f"{index}: names the shard {file!r}, which is not in its folder")
        if not (path / file).is_file():
            raise CheckpointError(f"{index}: the shard {file} is missing")
        shards[file] = _load_file(path / file)
    for name, file in wanted.items():
        if name not in shards[file]:
            raise CheckpointError(f"{index}: places {name!r} in {file}, which does not have it")
    return {name: shards[file][name] for name, file in wanted.items()}


def _join_shards(files: Iterable[Path]) -> dict[str, torch.Tensor]:
    joined: dict[str, torch.Tensor] = {}
    origin: dict[str, Path] = {}
    for file in files:
        for name, tensor in _load_file(file).items():
            if name in joined:
                raise CheckpointError(f"{file}: holds {name!r}, which {origin[name].name} holds as well")
            joined[name] = tensor
            origin[name] = file
    return joined


# safetensors: 8 bytes of little-endian header length, a JSON header, then the bytes of all tensors without holes.

def _load_safetensors(path: Path, size: int) -> dict[str, torch.Tensor]:
    with open(path, "rb") as file:
        # A private mapping is writable as far as torch can see, costs no memory until written, and outlives the descriptor.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if size < 8:
        raise CheckpointError(f"{path}: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > _MAX_HEADER or length < 2:
        raise CheckpointError(f"{path}: is no safetensors file: it would have a header of {length} bytes")
    if 8 + length > size:
        raise CheckpointError(f"{path}: truncated: the header takes {length} bytes, the file has {size - 8} after its length")
    start = 8 + length
    header = _parse_header(path, bytes(mapped[8:start]))
    entries = [_check_entry(path, name, entry) for name, entry in header.items() if name != "__metadata__"]
    end = 0
    for begin, stop, name, _, _ in sorted(entries, key=lambda entry: (entry[0], entry[1])):
        if begin != end:
            raise CheckpointError(f"{path}: the data of {name!r} begin at {begin}, but the tensors before it end at {end}")
        end = stop
    if start + end > size:
        raise CheckpointError(f"{path}: truncated: the tensors take {end} bytes, the file has {size - start} after its header")
    if start + end < size:
        raise CheckpointError(f"{path}: {size - start - end} bytes follow the last tensor, which no tensor owns")
    return {name: _view(mapped, start + begin, stop - begin, dtype, shape) for begin, stop, name, dtype, shape in entries}


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a name twice")
        return table

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: is no safetensors file: its header is not JSON with unique names") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: is no safetensors file: its header is not a JSON object")
    return header


def _check_entry(path: Path, name: str, entry: Any) -> tuple[int, int, str, torch.dtype, list[int]]:
    def natural(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

    if not name:
        raise CheckpointError(f"{path}: holds a tensor without a name")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise CheckpointError(f"{path}: the entry of {name!r} lacks dtype, shape or data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in _DTYPES:
        raise CheckpointError(f"{path}: {name!r} has the dtype {entry['dtype']!r}, which is not known")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(map(natural, shape)) or len(shape) > 16:
        raise CheckpointError(f"{path}: {name!r} has the shape {shape!r}, which is no list of up to 16 natural numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(natural, offsets)) or offsets[0] > offsets[1]:
        raise CheckpointError(f"{path}: {name!r} has the data_offsets {offsets!r}, which are no range")
    dtype = next(getattr(torch, known) for known in _DTYPES[entry["dtype"]] if hasattr(torch, known))
    expected = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    if offsets[1] - offsets[0] != expected:
        raise CheckpointError(f"{path}: {name!r} of shape {shape} and dtype {entry['dtype']} needs {expected} bytes, "
                              f"its data_offsets give {offsets[1] - offsets[0]}")
    return offsets[0], offsets[1], name, dtype, shape


def _view(mapped: mmap.mmap, offset: int, count: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=torch.uint8, count=count, offset=offset).view(dtype).reshape(shape) \
        if offset % torch.empty((), dtype=dtype).element_size() == 0 else _copy_unaligned(mapped, offset, count, dtype, shape)


def _copy_unaligned(mapped: mmap.mmap, offset: int, count: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """A header of odd length leaves the data unaligned: the format allows it, torch's views do not."""
    return torch.frombuffer(bytearray(mapped[offset:offset + count]), dtype=dtype).reshape(shape)


# torch files.

def _load_torch(path: Path) -> dict[str, torch.Tensor]:
    loaded = _torch_load(path)
    if isinstance(loaded, torch.Tensor):
        loaded = {"tensor": loaded}
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: holds a {type(loaded).__name__}; a dict of tensors is expected")
    for wrapper in _WRAPPERS:
        inner = loaded.get(wrapper)
        if isinstance(inner, dict) and any(isinstance(value, torch.Tensor) for value in inner.values()):
            loaded = inner
            break
    tensors: dict[str, torch.Tensor] = {}
    for name, value in loaded.items():
        if not isinstance(value, torch.Tensor):
            continue  # epochs, versions, optimizer state
        if value.layout != torch.strided or value.is_quantized:
            raise CheckpointError(f"{path}: {name!r} is sparse or quantized; only dense tensors can be moved")
        tensors[str(name)] = value.detach()
    return tensors


def _torch_load(path: Path) -> Any:
    attempts: list[dict[str, Any]] = [{"mmap": True}, {}]
    for number, options in enumerate(attempts):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(str(path), map_location="cpu", weights_only=True, **options)
        except Exception as error:  # whatever the unpickler of this torch raises on a broken file
            if number + 1 < len(attempts):
                continue  # this torch, or this file's old format, has no mmap
            raise CheckpointError(f"{path}: torch cannot read it as weights: {_reason(error)}") from None
    raise AssertionError("unreachable")


def _reason(error: Exception) -> str:
    """The part of torch's message that says what is wrong; around it torch advises to run the file's code."""
    text = str(error)
    unpickler = re.search(r"Weights\w*Unpickler error: *([^\n]+)", text)
    if unpickler:
        return f"{unpickler.group(1).strip()[:160]} (a file with nothing but tensors always works)"
    return (text.strip().splitlines() or [type(error).__name__])[0][:160]
