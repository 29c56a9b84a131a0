"""The usual way today, for comparison: full tensors through gloo.

Parameter by parameter, the training ranks gather their shards to rank 0. Rank 0 puts the full tensor together and
broadcasts the result to the inference ranks; each inference rank copies out its own part. (DTensor.redistribute is no
alternative here: redistribute cannot change meshes.)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from shardwire.compiler.layout import Layout, Replicate
from shardwire.plain.tensor_bytes import item_bytes

if TYPE_CHECKING:
    from .job import Settings, Source

DESCRIPTION = ("today = gloo: each parameter gathered to rank 0, its full tensor broadcast to the inference ranks, "
               "which cut out their part")
# Above this many bytes one run is enough: a run takes seconds, with little spread.
_ONE_RUN_BYTES = 256 << 20


def num_runs(total_bytes: int) -> int:
    """The number of runs of the comparison, by the size of the model; equal on all ranks."""
    return 1 if total_bytes > _ONE_RUN_BYTES else 3


def measure(rank: int, settings: Settings, held: Source, wanted: Source, training: dict[str, Layout],
            inference: dict[str, Layout], meet: Callable[[], None],
            notify: Callable[[int, str], None]) -> list[tuple[float, float]]:
    """(begin, end) of each run on this rank. Writes ``wanted``."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{settings.gloo_meeting}", rank=rank,
                            world_size=settings.num_ranks, timeout=settings.timeout)
    trainers = dist.new_group(settings.training)
    receivers = dist.new_group([0] + settings.inference)
    total = sum(layout_bytes(layout) for layout in training.values())
    # gloo's threads release tensors under a lock. The end of the group takes the same lock while holding the GIL, and
    # the release of a last reference needs the GIL: if gloo's references were the last, both threads would wait for
    # ever (seen on torch 2.6). So all tensors given to gloo are kept, without their memory.
    given: list[torch.Tensor] = []
    husks: list[torch.Tensor] = []
    intervals = []
    for _ in range(num_runs(total)):
        meet()
        begin = time.perf_counter()
        for name, layout in training.items():
            full = _gather(rank, settings, held.get(name), layout, trainers, given)
            if rank == 0 or rank in settings.inference:
                full = torch.empty(layout_bytes(layout), dtype=torch.uint8) if full is None else full
                given.append(full)
                if full.numel():
                    dist.broadcast(full, src=0, group=receivers)
                if rank in settings.inference:
                    part = inference[name].take(full.view(layout.dtype).reshape(layout.shape), rank)
                    assert part is not None
                    wanted[name].copy_(part)
            husks.extend(tensor.set_() for tensor in given)
            given.clear()
        intervals.append((begin, time.perf_counter()))
        notify(sum(tensor.numel() * tensor.element_size() for tensor in wanted.values()), "today's way")
        meet()
    dist.destroy_process_group()
    return intervals


def layout_bytes(layout: Layout) -> int:
    """Bytes of the whole tensor."""
    return math.prod(layout.shape) * item_bytes(layout.dtype)


def _gather(rank: int, settings: Settings, local: torch.Tensor | None, layout: Layout, trainers: Any,
            given: list[torch.Tensor]) -> torch.Tensor | None:
    """The bytes of the full tensor on rank 0, None elsewhere. gloo gathers equal sizes only, so short shards are
    padded."""
    if local is None:
        return None
    mine = local.reshape(-1).view(torch.uint8)
    if len(settings.training) == 1 or isinstance(layout.placements[0], Replicate):
        return mine if rank == 0 else None
    shares = [layout.share(trainer) for trainer in settings.training]
    element = item_bytes(layout.dtype)
    sizes = [element * math.prod(share.local_shape) for share in shares if share is not None]
    if max(sizes) == 0:
        return mine if rank == 0 else None
    if len(mine) < max(sizes):
        mine = torch.cat([mine, torch.zeros(max(sizes) - len(mine), dtype=torch.uint8)])
    given.append(mine)
    if rank != 0:
        dist.gather(mine, None, dst=0, group=trainers)
        return None
    parts = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes]
    given.extend(parts)
    dist.gather(mine, parts, dst=0, group=trainers)
    return torch.cat([part[:size] for part, size in zip(parts, sizes)])
