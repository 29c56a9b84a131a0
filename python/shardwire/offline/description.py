"""Descriptions of operations as JSON: meshes, layouts and tensors in, arguments of :func:`plan` out. ::

    {"name": "...", "world_size": 96, "topology": {...} or "file.json",
     "meshes": {"train": {"shape": [64]}, "serve": {"shape": [4, 8], "first_rank": 64}},
     "tensors": [{"name": "layers.{}.wq", "repeat": 80, "shape": [8192, 8192], "dtype": "bfloat16",
                  "to_dtype": "float8_e4m3fn", "from": ["train", "S(0)"], "to": ["serve", "R", "S(0)"]}]}

A placement is "R", "S(dim)", "P(sum)" or "SS(dim, split_factor)", one per dimension of the mesh.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import torch

from ..compiler.layout import Layout, Partial, Placement, Replicate, Shard, StridedShard, kind_of
from .planning import OfflinePlan, plan
from .topology import read_object

_KEYS = ("name", "world_size", "topology", "meshes", "tensors", "allow_gaps")
_MESH_KEYS = ("shape", "first_rank", "ranks")
_TENSOR_KEYS = ("name", "repeat", "shape", "dtype", "to_dtype", "from", "to")
_PLACEMENT = re.compile(r"\s*(R|S|P|SS)\s*(?:\(\s*([^()]*?)\s*\))?\s*$")


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The description in a JSON file. ValueError when the file holds no description."""
    return read_object(path, "a description", _KEYS)


def plan_description(given: Mapping[str, Any], topology: Any = None, folder: str = ".") -> OfflinePlan:
    """Plans a description. topology: in place of the description's own, whose file name is relative to ``folder``.
    ValueError or TypeError naming the wrong key."""
    _check_keys(given, _KEYS, ("meshes", "tensors"), "the description")
    meshes = {name: _mesh(mesh, f"meshes[{name!r}]") for name, mesh in _dict(given["meshes"], "meshes").items()}
    own = given.get("topology") if topology is None else topology
    if topology is None and isinstance(own, str):
        own = os.path.join(folder, own)
    if not isinstance(given["tensors"], list):
        raise TypeError(f"tensors is {kind_of(given['tensors'])}; give a list of objects")
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for index, tensor in enumerate(given["tensors"]):
        _add_tensor(tensor, meshes, sides, f"tensors[{index}]")
    world_size = given.get("world_size", 1 + max((int(mesh.max()) for mesh in meshes.values()), default=0))
    return plan(world_size, inputs=sides[0], outputs=sides[1], topology=own, name=str(given.get("name", "")),
                allow_gaps=given.get("allow_gaps", False) is True)


def _check_keys(given: Any, known: tuple[str, ...], needed: tuple[str, ...], where: str) -> None:
    for name in _dict(given, where):
        if name not in known:
            raise ValueError(f"{where} has the unknown key {kind_of(name)}; it may have {', '.join(known)}")
    for name in needed:
        if name not in given:
            raise ValueError(f"{where} has no {name!r}")


def _dict(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{where} is {kind_of(given)}; give an object")
    return given


def _mesh(given: Any, where: str) -> torch.Tensor:
    _check_keys(given, _MESH_KEYS, ("shape",), where)
    shape = given["shape"]
    if (not isinstance(shape, list) or not shape
            or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape)):
        raise ValueError(f"{where}: shape is {shape!r}; give a list of positive ints")
    count = int(torch.tensor(shape, device="cpu").prod())
    first = given.get("first_rank", 0)
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise ValueError(f"{where}: first_rank is {kind_of(first)}; give a rank")
    ranks = given.get("ranks", list(range(first, first + count)))
    if (not isinstance(ranks, list) or len(ranks) != count
            or not all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in ranks)):
        raise ValueError(f"{where}: ranks must be a list of {count} ranks, for shape {shape}")
    return torch.tensor(ranks, device="cpu").reshape(shape)


def _add_tensor(given: Any, meshes: Mapping[str, torch.Tensor], sides: tuple[dict[str, Any], dict[str, Any]],
                where: str) -> None:
    _check_keys(given, _TENSOR_KEYS, ("name", "shape", "dtype", "from", "to"), where)
    name, repeat = given["name"], given.get("repeat", 1)
    if not isinstance(name, str):
        raise TypeError(f"{where}: name is {kind_of(name)}; give a string")
    if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
        raise ValueError(f"{where}: repeat is {kind_of(repeat)}; give a positive int")
    if repeat > 1 and "{}" not in name:
        raise ValueError(f"{where}: {name!r} is repeated {repeat} times and has no {{}} for the number")
    dtypes = [_dtype(given["dtype"], f"{where}: dtype"),
              _dtype(given.get("to_dtype", given["dtype"]), f"{where}: to_dtype")]
    layouts = [_layout(given[side], meshes, given["shape"], dtype, f"{where}: {side}")
               for side, dtype in zip(("from", "to"), dtypes)]
    for number in range(repeat):
        own = name.replace("{}", str(number))
        for side, layout in zip(sides, layouts):
            if own in side:
                raise ValueError(f"{where}: a tensor named {own!r} is described before")
            side[own] = [layout]


def _dtype(given: Any, where: str) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{where} is {kind_of(given)}; give a dtype of torch, such as 'bfloat16'")
    return found


def _layout(given: Any, meshes: Mapping[str, torch.Tensor], shape: Any, dtype: torch.dtype, where: str) -> Layout:
    if not isinstance(given, list) or not given or not all(isinstance(item, str) for item in given):
        raise TypeError(
            f"{where} is {kind_of(given)}; give a list: the mesh's name, then a placement per dimension of it")
    if given[0] not in meshes:
        raise ValueError(f"{where}: no mesh is named {given[0]!r}; there are {', '.join(map(repr, meshes))}")
    try:
        return Layout(meshes[given[0]], [_placement(item) for item in given[1:]], shape, dtype)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise type(error)(f"{where}: {error}") from None


def _placement(text: str) -> Placement:
    match = _PLACEMENT.match(text)
    kind, inside = match.groups() if match else ("", None)
    words = (inside or "").split(",")
    numbers = [int(word) for word in words] if all(re.fullmatch(r"\s*-?\d+\s*", word) for word in words) else []
    if kind == "R" and inside is None:
        return Replicate()
    if kind == "P":
        return Partial(inside or "sum")
    if kind == "S" and len(numbers) == 1:
        return Shard(numbers[0])
    if kind == "SS" and len(numbers) == 2:
        return StridedShard(*numbers)
    raise ValueError(f"{text!r} is no placement; give 'R', 'S(dim)', 'P(sum)' or 'SS(dim, split_factor)'")
