"""redistribute: the fast stand-in for DTensor.redistribute, one compiled op per pair of layouts."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .compile_op import CustomOp, compile_op
from ..groups.lookup import shardwire_group, table_by_group
from .layout import Layout, Partial, Replicate, Shard, StridedShard, kind_of, is_device_mesh, is_dtensor, local_tensor
from ..errors import UnsupportedError
from ..plain.tensor_bytes import contiguous_strides

# Compiled ops kept per group. Every rank of a group makes the same sequence of calls, so all ranks evict the same op at
# the same time.
CACHED_OPS_PER_GROUP = 64
# By torch's group object, kept by torch until the group is destroyed: the ops of the group end with the object.
_caches: weakref.WeakKeyDictionary[Any, OrderedDict[tuple[Layout, Layout], CustomOp]] = table_by_group()


def redistribute(dtensor: Any, mesh: Any = None, placements: Sequence[Any] | None = None, group: Any = None) -> Any:
    """A new DTensor with the values of ``dtensor`` laid out by ``placements`` over ``mesh``. Each rank receives only
    the elements that it needs.

    Collective over ``group`` (None: the default group), which must hold both meshes; every rank of the group calls,
    also ranks outside of a mesh.

    dtensor: any DTensor on CPU; Partial ones are reduced on the way. mesh: a DeviceMesh, another one or None for the
        tensor's own.
    placements: torch's or shardwire's, one per mesh dimension; None keeps the tensor's own. Partial targets are refused
        unless nothing changes.

    Returns ``dtensor`` itself when nothing changes. Differentiable once: the gradient goes back the same way, as in
    DTensor.redistribute. The compiled op of each pair of layouts is kept (64 per group, least recently used out first).
    Raises TypeError, ValueError or NotImplementedError for impossible layouts, ImportError where torch has no DTensor.
    """
    dtensor_class()
    if not is_dtensor(dtensor):
        raise TypeError(f"redistribute takes a DTensor, not {kind_of(dtensor)}; for plain tensors use compile_op with "
                        "a Layout")
    mesh = dtensor.device_mesh if mesh is None else mesh
    if not is_device_mesh(mesh):
        raise TypeError(f"mesh is {kind_of(mesh)}; give a DeviceMesh, which the resulting DTensor needs")
    source = Layout.of(dtensor)
    target = Layout(mesh, dtensor.placements if placements is None else placements, source.shape, source.dtype)
    if target == source:
        return dtensor
    if target.pending_reduction is not None:
        partial = next(item for item in target.placements if isinstance(item, Partial))
        raise UnsupportedError(f"redistribute cannot make {partial}: a value has no addends of its own; use "
                               "Replicate() or Shard(dim)")
    group = shardwire_group(group)
    if dtensor.requires_grad and torch.is_grad_enabled():
        return _Redistribute.apply(dtensor, mesh, target, group)
    return _move(dtensor, source, mesh, target, group)


def clear_redistribute_cache(group: Any = None) -> None:
    """Forgets the compiled ops of ``group`` (a group or its name), or of all groups when None. Every rank of a group
    must make the same call.

    The ops of a destroyed group are forgotten automatically.
    """
    if group is None:
        _caches.clear()
    else:
        _caches.pop(shardwire_group(group), None)


def dtensor_class() -> Any:
    """torch's DTensor class. The ImportError for a torch without DTensor names the alternative."""
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:
        raise ImportError(f"torch {torch.__version__} has no torch.distributed.tensor.DTensor (it came with 2.5); "
                          "use compile_op with shardwire.Layout, which needs no DTensor") from None
    return DTensor


def _move(dtensor: Any, source: Layout, mesh: Any, target: Layout, group: Any) -> Any:
    op = _cached_op(dtensor, source, target, group)
    local = local_tensor(dtensor).detach()
    rank = dist.get_rank()
    shape = target.local_shape(rank)
    result = torch.empty((0,) if shape is None else shape, dtype=target.dtype, device=local.device)
    op([local if rank in source.ranks else None], [None if shape is None else result]).wait()
    return dtensor_around(result, mesh, target)


def dtensor_around(local: torch.Tensor, mesh: Any, layout: Layout) -> Any:
    """The DTensor of ``layout``, whose local tensor on this rank is ``local``."""
    return dtensor_class().from_local(local, mesh, [_torch_placement(item) for item in layout.placements],
                                      run_check=False, shape=torch.Size(layout.shape),
                                      stride=tuple(contiguous_strides(layout.shape)))


def _cached_op(dtensor: Any, source: Layout, target: Layout, group: Any) -> CustomOp:
    """The op from ``source``, the layout of ``dtensor``. A new op is compiled with the DTensor, so that a local tensor
    that contradicts the layout is an error on all ranks."""
    ops = _caches.setdefault(group, OrderedDict())
    op = ops.get((source, target))
    if op is None:
        op = ops[source, target] = compile_op(group, inputs=[dtensor], outputs=[target], name="redistribute")
        if len(ops) > CACHED_OPS_PER_GROUP:
            ops.popitem(last=False)
    ops.move_to_end((source, target))
    return op


def _torch_placement(item: Any) -> Any:
    import torch.distributed.tensor as dt
    if isinstance(item, Shard):
        return dt.Shard(item.dim)
    if isinstance(item, StridedShard):
        from torch.distributed.tensor.placement_types import _StridedShard
        return _StridedShard(item.dim, split_factor=item.split_factor)
    assert isinstance(item, Replicate)
    return dt.Replicate()


class _Redistribute(torch.autograd.Function):
    """The differentiable form. The gradient of a Partial input is replicated, as in torch: every addend has the value's
    gradient."""

    @staticmethod
    def forward(ctx: Any, dtensor: Any, mesh: Any, target: Layout, group: Any) -> Any:
        ctx.origin = (dtensor.device_mesh, Layout.of(dtensor), group)
        return _move(dtensor, ctx.origin[1], mesh, target, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        mesh, origin, group = ctx.origin
        placements = [Replicate() if isinstance(item, Partial) else item for item in origin.placements]
        source = Layout.of(grad)
        target = Layout(mesh, placements, source.shape, source.dtype)
        return (grad if source == target else _move(grad, source, mesh, target, group)), None, None, None
