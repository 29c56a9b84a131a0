"""Checkpoints as name -> tensor: safetensors (memory-mapped), torch files, folders of shards of either, and folders of
torch.distributed.checkpoint.

Nothing in a file is executed: safetensors is plain data, torch files are read with ``weights_only=True``, and the rest
as inert records.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, UnsupportedError
from ..weights.checkpoint_folder import read_index
from ..weights.dcp_folder import METADATA, DcpFolder
from ..weights.safetensors_file import DTYPES, OpenFile

# For a torch without a file's dtype: a move of bits needs only the width.
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".pt.tar")
# The keys under which training programs store the model's weights, in the order of preference; one may be nested in
# another.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params")
_NOT_WEIGHTS = re.compile("optim|sched|(^|_)scaler|(^|_)rng", re.IGNORECASE)
_MOST_LEVELS = 8
# The main files of a folder of one model, where other files may lie too (training_args.bin, the same weights in another
# form), in the order in which transformers looks.
_MAIN_FILES = ("model.safetensors", "pytorch_model.bin")


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """All tensors of a .safetensors file, a torch file, a folder of shards, or a folder of
    torch.distributed.checkpoint, in the file's order, on the CPU.

    From the nested dicts of a torch file the model's state dict is taken, by the usual names; without such a name all
    tensors except an optimizer's, named by their path ("generator.conv.weight"). safetensors data stay in the page
    cache until read; tensors with shared storage in a torch file (tied weights) still share. The tensors must not be
    written. Raises CheckpointError.
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
        return _load_safetensors(path)
    if path.name.endswith(_TORCH_ENDINGS):
        return _load_torch(path)
    raise CheckpointError(
        f"{path}: the name ends in none of .safetensors, {', '.join(_TORCH_ENDINGS)}, and it is no folder")


# Folders.

def _load_folder(path: Path) -> dict[str, torch.Tensor]:
    if (path / METADATA).is_file():
        return _load_dcp(path)
    main = [path / file for file in _MAIN_FILES if (path / file).is_file()]
    if main:
        return _load_file(main[0])
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    for ending in (".safetensors.index.json", ".bin.index.json"):
        indices = [file for file in files if file.name.endswith(ending)]
        if len(indices) > 1:
            raise CheckpointError(f"{path}: has several indices, {', '.join(file.name for file in indices)}; a folder "
                                  "of one model has one")
        if indices:
            return _load_indexed(path, indices[0])
    for endings in ((".safetensors",), _TORCH_ENDINGS):
        shards = [file for file in files if file.name.endswith(endings)]
        if shards:
            return _join_shards(shards)
    raise CheckpointError(f"{path}: the folder has no *.safetensors, none of "
                          f"{', '.join('*' + ending for ending in _TORCH_ENDINGS)}, and no {METADATA}")


def _load_dcp(path: Path) -> dict[str, torch.Tensor]:
    """Each tensor whole, in memory. torch names each tensor by its path in the saved object: "model.layer.weight",
    "optimizer.state...."."""
    try:
        folder = DcpFolder(path)
        names = [name for name in folder.tensors if not _NOT_WEIGHTS.search(name.partition(".")[0])]
        # "model" may be a part of the names themselves, as in Llama's beside lm_head. "model" is a wrapper only where
        # all names begin with the word.
        is_wrapped = {name.partition(".")[0] for name in names} in [{wrapper} for wrapper in _WRAPPERS]
        return {name.partition(".")[2] if is_wrapped else name: folder.whole(name) for name in names}
    except UnsupportedError as error:
        raise CheckpointError(str(error)) from None


def _load_indexed(path: Path, index: Path) -> dict[str, torch.Tensor]:
    wanted = read_index(index)
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for file in dict.fromkeys(wanted.values()):
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


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    file = OpenFile(path)
    try:
        return {name: file.tensor(stored, stored.dtype or _SAME_WIDTH.get(DTYPES.get(stored.dtype_name, (0, ""))[0]))
                for name, stored in file.tensors.items()}
    except UnsupportedError as error:
        raise CheckpointError(str(error)) from None
    finally:
        file.close()


# torch files.

def _load_torch(path: Path) -> dict[str, torch.Tensor]:
    loaded = _torch_load(path)
    if isinstance(loaded, torch.Tensor):
        loaded = {"tensor": loaded}
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: holds a {type(loaded).__name__}; a dict of tensors is expected")
    found = _model_in(loaded, _MOST_LEVELS)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in _tensors_in(loaded if found is None else found, "", _MOST_LEVELS):
        if value.layout != torch.strided or value.is_quantized:
            raise CheckpointError(f"{path}: {name!r} is sparse or quantized; only dense tensors can be moved")
        tensors[name] = value.detach()
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors; {_describe_keys(loaded)}")
    return tensors


def _model_in(loaded: dict[Any, Any], levels: int) -> dict[Any, Any] | None:
    """The innermost dict under the usual names with tensors inside: ["state_dict"], ["model"]["state_dict"]. None where
    there is none."""
    for wrapper in _WRAPPERS:
        inner = loaded.get(wrapper)
        if levels and isinstance(inner, dict):
            deeper = _model_in(inner, levels - 1)
            if deeper is not None:
                return deeper
            if any(_tensors_in(inner, "", levels - 1)):
                return inner
    return None


def _tensors_in(loaded: dict[Any, Any], path: str, levels: int) -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in loaded.items():
        if isinstance(value, torch.Tensor):
            yield f"{path}{key}", value
        elif isinstance(value, dict) and levels and not _NOT_WEIGHTS.search(str(key)):
            yield from _tensors_in(value, f"{path}{key}.", levels - 1)


def _describe_keys(loaded: dict[Any, Any]) -> str:
    """The top-level keys, for a user searching the weights."""
    if not loaded:
        return "the dict is empty"
    keys = [f"{str(key)[:40]!r} ({type(value).__name__})" for key, value in list(loaded.items())[:8]]
    more = f" and {len(loaded) - 8} more" if len(loaded) > 8 else ""
    return f"its top-level keys are {', '.join(keys)}{more}"


def _torch_load(path: Path) -> Any:
    attempts: list[dict[str, Any]] = [{"mmap": True}, {}]
    for number, options in enumerate(attempts):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(str(path), map_location="cpu", weights_only=True, **options)
        except Exception as error:  # any error that this torch's unpickler raises on a broken file
            if number + 1 < len(attempts):
                continue  # this torch, or this file's old format, has no mmap
            raise CheckpointError(f"{path}: torch cannot read the file as weights: {_reason(error)}") from None
    raise AssertionError("unreachable")


def _reason(error: Exception) -> str:
    """The part of torch's message with the reason; the rest of the message advises to run the file's code."""
    text = str(error)
    unpickler = re.search(r"Weights\w*Unpickler error: *([^\n]+)", text)
    if unpickler:
        return f"{unpickler.group(1).strip()[:160]} (a file with nothing but tensors always works)"
    return (text.strip().splitlines() or [type(error).__name__])[0][:160]
