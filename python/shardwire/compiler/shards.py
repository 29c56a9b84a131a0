"""Shards as plain numbers: the boxes of a tensor at a place in a mesh, and resharding without other ranks. No function
here communicates.

The rules are :class:`Layout`'s, and so DTensor's, with several mesh dimensions on one tensor dimension and strided
shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .layout import Layout, Replicate, StridedShard, _read_placement, as_dims, box_of, is_dtensor
from .spec import TensorRegion


@dataclass
class ShardInfo:
    """A box of a tensor: the offset in the global tensor, the offset in the local tensor, and the shape."""

    global_offset: list[int]
    local_offset: list[int]
    shape: list[int]


def compute_shards(shape: Sequence[int], placements: Sequence[Any],
                   indices_and_sizes: Sequence[tuple[int, int]]) -> list[ShardInfo]:
    """The boxes of a tensor of ``shape`` at one place of a mesh.

    placements: one for each mesh dimension, as :class:`Layout` takes them. indices_and_sizes: for each mesh dimension
    the place's index and the dimension's size. A place that holds nothing gives one empty box, with the shape of the
    local tensor.
    """
    dims = as_dims(shape, "shape")
    places = _places(indices_and_sizes, placements)
    if not places:
        return [ShardInfo([0] * len(dims), [0] * len(dims), list(dims))]
    layout, rank = _layout(dims, placements, places)
    return _infos(layout, rank)


def dtensor_shards(dtensor: Any, coord: Sequence[int] | None = None) -> list[ShardInfo]:
    """The boxes of a DTensor or :class:`Layout` at a coordinate of its mesh; None: this rank's boxes, an empty list for
    a rank outside of the mesh."""
    layout = dtensor if isinstance(dtensor, Layout) else Layout.of(dtensor)
    if coord is None:
        rank = dist.get_rank()
    else:
        at = as_dims(coord, "coord")
        if len(at) != len(layout.mesh_shape) or any(not 0 <= index < size
                                                    for index, size in zip(at, layout.mesh_shape)):
            raise ValueError(f"coord is {list(at)}, which is no place of a mesh of {list(layout.mesh_shape)}")
        rank = layout.ranks[_flat(at, layout.mesh_shape)]
    return _infos(layout, rank) if layout.share(rank) is not None else []


def specs_from_dtensor(dtensor: Any, tensor_id: str | int | None = None) -> list[TensorRegion]:
    """This rank's boxes of a DTensor or :class:`Layout` as regions for ``compile_op``, one local tensor each; an empty
    list outside of the mesh.

    Regions do not say that replicas are equal, unlike a DTensor: give ``compile_op`` the DTensor, or ``overlap="any"``.
    """
    device = dtensor.device if is_dtensor(dtensor) else None
    return [TensorRegion(info.global_offset, info.shape, device, tensor_id)
            for info in dtensor_shards(dtensor)]


def compute_local_reshard(local_shape: Sequence[int], current_placements: Sequence[Any],
                          target_placements: Sequence[Any], indices_and_sizes: Sequence[tuple[int, int]],
                          shape: Sequence[int] | None = None) -> list[ShardInfo]:
    """The boxes of a local tensor that make a local tensor of other placements without other ranks: ``Replicate``
    becomes ``Shard`` or ``StridedShard``. ``global_offset`` counts in the local tensor, ``local_offset`` in the new
    tensor.

    shape: the global shape; with ``shape`` any placements are compared box by box. ``shape`` can be left out where no
    two mesh dimensions cut one tensor dimension, or where only ``Shard`` placements do and the new placements come
    after the unchanged ones. ValueError when other ranks' elements are needed, or when ``shape`` is needed for the
    answer.
    """
    dims = as_dims(local_shape, "local_shape")
    places = _places(indices_and_sizes, current_placements)
    _places(indices_and_sizes, target_placements)
    num_dims = len(dims)
    current: list[Any] = [_read_placement(item, index, num_dims) for index, item in enumerate(current_placements)]
    target: list[Any] = [_read_placement(item, index, num_dims) for index, item in enumerate(target_placements)]
    if shape is not None:
        return _reshard_of(as_dims(shape, "shape"), dims, current, target, places)
    added = [index for index, (one, other) in enumerate(zip(current, target)) if one != other]
    for index in added:
        if not isinstance(current[index], Replicate) or not hasattr(target[index], "dim"):
            raise ValueError(f"{current[index]} to {target[index]} on mesh dimension {index} needs other ranks: move "
                             "it by compile_op or redistribute")
        for other, kept in enumerate(current):
            cuts_it = other not in added and getattr(kept, "dim", None) == target[index].dim
            if cuts_it and (other > index or isinstance(kept, StridedShard) or isinstance(target[index], StridedShard)):
                raise ValueError(f"mesh dimensions {index} and {other} both cut tensor dimension {target[index].dim}: "
                                 "which elements that gives depends on the global shape; give shape=")
    return compute_shards(dims, [target[index] for index in added], [places[index] for index in added])


def apply_local_reshard(tensor: torch.Tensor, chunks: Sequence[ShardInfo]) -> torch.Tensor:
    """The local tensor made of ``tensor`` by the ``chunks`` of ``compute_local_reshard``: a view for one box, else a
    copy."""
    if not chunks:
        raise ValueError("chunks is empty; give what compute_local_reshard returned")
    if len(chunks) == 1 and 0 in chunks[0].shape:
        return tensor.new_empty(chunks[0].shape)
    for chunk in chunks:
        if (len(chunk.shape) != tensor.dim()
                or any(at + size > extent for at, size, extent in zip(chunk.global_offset, chunk.shape, tensor.shape))):
            raise ValueError(f"a box at {chunk.global_offset} of {chunk.shape} does not lie in a tensor of "
                             f"{list(tensor.shape)}")
    if len(chunks) == 1:
        return box_of(tensor, chunks[0].global_offset, chunks[0].shape)
    extents = [max(chunk.local_offset[dim] + chunk.shape[dim] for chunk in chunks) for dim in range(tensor.dim())]
    result = torch.empty(extents, dtype=tensor.dtype, device=tensor.device)
    for chunk in chunks:
        box_of(result, chunk.local_offset, chunk.shape).copy_(box_of(tensor, chunk.global_offset, chunk.shape))
    return result


def _reshard_of(shape: tuple[int, ...], local_shape: tuple[int, ...], current: list[Any], target: list[Any],
                places: list[tuple[int, int]]) -> list[ShardInfo]:
    if (any(not isinstance(item, Replicate) and not hasattr(item, "dim") for item in current + target)
            and current != target):
        raise ValueError("a pending reduction needs other ranks: move it by compile_op or redistribute")
    if not places:
        return [ShardInfo([0] * len(shape), [0] * len(shape), list(shape))]
    have, rank = _layout(shape, current, places)
    if have.local_shape(rank) != local_shape:
        raise ValueError(f"the local tensor has shape {list(local_shape)}, but {current} of {list(shape)} give "
                         f"{list(have.local_shape(rank) or ())}")
    wanted = _infos(_layout(shape, target, places)[0], rank)
    found = []
    for want in wanted:
        for box in _infos(have, rank):
            begin = [max(one, other) for one, other in zip(want.global_offset, box.global_offset)]
            end = [min(one + size, other + extent)
                   for one, size, other, extent in zip(want.global_offset, want.shape, box.global_offset, box.shape)]
            extent = [last - first for first, last in zip(begin, end)]
            if all(size > 0 for size in extent):
                source = [at - there + here for at, there, here in zip(begin, box.global_offset, box.local_offset)]
                place = [at - there + here for at, there, here in zip(begin, want.global_offset, want.local_offset)]
                found.append(ShardInfo(source, place, extent))
    if sum(math.prod(one.shape) for one in found) != sum(math.prod(one.shape) for one in wanted):
        raise ValueError(f"{current} to {target} needs elements that this rank does not hold: move it by compile_op or "
                         "redistribute")
    return found or [ShardInfo([0] * len(shape), [0] * len(shape), wanted[0].shape)]


def _places(indices_and_sizes: Sequence[tuple[int, int]], placements: Sequence[Any]) -> list[tuple[int, int]]:
    places = [(int(index), int(size)) for index, size in indices_and_sizes]
    if len(places) != len(placements):
        raise ValueError(f"{len(placements)} placements, but {len(places)} pairs of index and size; give one of each "
                         "for every mesh dimension")
    for index, size in places:
        if not 0 <= index < size:
            raise ValueError(f"index {index} is no place in a mesh dimension of size {size}")
    return places


def _flat(at: Sequence[int], sizes: Sequence[int]) -> int:
    number = 0
    for index, size in zip(at, sizes):
        number = number * size + index
    return number


def _layout(shape: tuple[int, ...], placements: Sequence[Any], places: list[tuple[int, int]]) -> tuple[Layout, int]:
    sizes = [size for _, size in places]
    mesh = torch.arange(math.prod(sizes), device="cpu").reshape(sizes)
    return Layout(mesh, placements, shape, torch.uint8), _flat([index for index, _ in places], sizes)


def _infos(layout: Layout, rank: int) -> list[ShardInfo]:
    share = layout.share(rank)
    assert share is not None
    boxes = [ShardInfo(list(box.offset), list(box.local_offset), list(box.shape)) for box in share.boxes]
    return boxes or [ShardInfo([0] * len(layout.shape), [0] * len(layout.shape), list(share.local_shape))]
