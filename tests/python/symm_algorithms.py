"""The algorithms of the seed document's examples, written with shardwire.symm: the kernels' steps per thread are here
steps per rank, over whole slices.

Each algorithm takes a team and symmetric tensors made before, as a kernel takes its workspace. The classes are examples
as well: docs/symmetric.md names the classes.
"""

from __future__ import annotations

import torch

from shardwire import symm


class OneShotAllReduce:
    """Every rank reads and reduces all parts. One barrier comes before (all have written) and one after (all have
    read).
    """

    def __init__(self, team: symm.Team, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.team = team
        self.input = team.empty(shape, dtype=dtype)
        self.parts = [symm.get_peer_tensor(self.input, rank) for rank in range(team.size)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.input.copy_(x)
        self.team.barrier()
        total = self.parts[0].to(torch.float32, copy=True)
        for part in self.parts[1:]:
            total += part
        self.team.barrier()
        return total.to(x.dtype)


class LamportAllReduce:
    """One-shot without a barrier: a waiting rank looks at the bytes of the tensor. Every element not yet written is
    -0.0, which no rank sends (0.0 is sent instead). Three buffers take turns: one is being filled, a slower rank may
    still read the second, and the third is marked again meanwhile.
    """

    def __init__(self, team: symm.Team, count: int) -> None:
        self.team = team
        self.buffers = team.empty(3, team.size, count, dtype=torch.float32)
        self.buffers.fill_(-0.0)
        self.peers = [symm.get_peer_tensor(self.buffers, rank) for rank in range(team.size)]
        self.round = 0
        team.barrier()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        current, cleared = self.round % 3, (self.round + 2) % 3
        self.round += 1
        sent = x + 0.0  # -0.0 becomes 0.0
        for peer in self.peers:
            peer[current, self.team.rank].copy_(sent)
        mine = self.buffers[current]
        marks = mine.view(torch.int32)
        while bool((marks == -(1 << 31)).any()):
            pass
        total = mine.sum(0)
        # All ranks wrote into this buffer two rounds ago. This rank has the bytes of all ranks, so all ranks have come
        # to this round: no rank reads the buffer any more.
        self.buffers[cleared].fill_(-0.0)
        return total


class TwoShotAllReduce:
    """Each rank reduces its share of all parts (multimem.ld_reduce) and stores the sum to all (multimem.st). A counter
    in each part is the barrier.
    """

    def __init__(self, team: symm.Team, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.team = team
        self.buffer = team.empty(shape, dtype=dtype)
        self.count = team.zeros(1, dtype=torch.int32)
        self.multi, self.multi_count = symm.get_multicast_tensor(self.buffer), symm.get_multicast_tensor(self.count)
        self.arrivals = 0

    def meet(self) -> None:
        """multimem.red.release.add, then a wait for this rank's counter."""
        self.arrivals += self.team.size
        self.multi_count.red("add", 1)
        symm.signal_wait(self.count[0], "ge", self.arrivals)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.buffer.copy_(x)
        self.meet()
        rows = self.buffer.shape[0]
        share = slice(rows * self.team.rank // self.team.size, rows * (self.team.rank + 1) // self.team.size)
        self.multi[share].store(self.multi[share].ld_reduce(
            "add", accumulate=torch.float32 if self.buffer.dtype == torch.bfloat16 else None))
        self.meet()
        return self.buffer.clone()


class AllGatherMatmul:
    """all_gather(x) @ w: each rank's rows go to all ranks tile by tile, each tile with a signal; a tile is multiplied
    after the signal.
    """

    def __init__(self, team: symm.Team, rows: int, inner: int, tile: int) -> None:
        self.team, self.rows, self.tile = team, rows, tile
        self.gathered = team.empty(team.size * rows, inner)
        self.ready = team.zeros(team.size * rows // tile, dtype=torch.int32)
        self.round = 0

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        self.round += 1
        size, me, tiles = self.team.size, self.team.rank, self.rows // self.tile
        out = torch.empty(size * self.rows, w.shape[1])
        for step in range(size):  # to this rank first, then to the next rank: not all ranks to one rank at once
            peer = (me + step) % size
            for t in range(tiles):
                at = me * tiles + t
                symm.put_signal(self.gathered[at * self.tile:(at + 1) * self.tile],
                                x[t * self.tile:(t + 1) * self.tile], self.ready[at], self.round, peer)
        for step in range(size):
            for t in range(tiles):
                at = (me + size - step) % size * tiles + t
                symm.signal_wait(self.ready[at], "ge", self.round, source=at // tiles)
                rows = slice(at * self.tile, (at + 1) * self.tile)
                out[rows] = self.gathered[rows] @ w
        self.team.barrier()  # the next round writes where this one reads
        return out


class MatmulReduceScatter:
    """reduce_scatter(x @ w): a tile is multiplied, put to the rank that owns the rows, and signalled; the owner adds
    the tiles in rank order.
    """

    def __init__(self, team: symm.Team, rows: int, columns: int, tile: int) -> None:
        self.team, self.rows, self.tile = team, rows, tile
        self.partial = team.empty(team.size, rows, columns)
        self.arrived = team.zeros(rows // tile, dtype=torch.int32)
        self.round = 0

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        self.round += 1
        size, me, tiles = self.team.size, self.team.rank, self.rows // self.tile
        for step in range(1, size + 1):  # this rank's own rows last
            owner = (me + step) % size
            for t in range(tiles):
                rows = slice(owner * self.rows + t * self.tile, owner * self.rows + (t + 1) * self.tile)
                symm.put_signal(self.partial[me, t * self.tile:(t + 1) * self.tile], x[rows] @ w, self.arrived[t], 1,
                                owner, op="add")
        out = torch.zeros(self.rows, w.shape[1])
        for t in range(tiles):
            symm.signal_wait(self.arrived[t], "ge", self.round * size)
            for rank in range(size):
                out[t * self.tile:(t + 1) * self.tile] += self.partial[rank, t * self.tile:(t + 1) * self.tile]
        self.team.barrier()
        return out
