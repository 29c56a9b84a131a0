"""The symmetric memory behind ``Experts``, and the exchanges of its ranks.

An exchange is one dispatch or one combine, of the values or of their gradients. All ranks count exchanges, and
exchange n uses slot n % 2 of each rank's block. A slot has rows, numbers that travel with the rows (scales or weights),
and the order of the rows. Every rank puts a head into every peer's block (the called function, the rows for each
expert, or an error) and then sets its word in the peer's block to n. A rank that has seen the words of all ranks reads
all heads, so all ranks find the same error. The rows for each expert are in the heads of dispatches that route anew.

No barrier is needed. A rank that begins exchange n has seen the words n - 1 of all ranks. So all ranks have ended
exchange n - 2 and no longer use the slot, which a rank may then write: its own slot for a dispatch, the peers' slots
for a combine.

Where every rank addresses all peers' memory, a dispatch copies the tokens once into the own slot, and the peers pick
rows. Otherwise the sender brings the rows into the order of the experts. So the rows from one rank for all experts of
another rank are one run of bytes in the slot of the tokens' owner, and one request moves them; at the experts' rank
they are sorted by expert, and a copy brings them from the one order into the other. Long runs for one expert move
without this copy, a request for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _C
from ..errors import MismatchError, UnsupportedError
from ..plain.tensor_bytes import item_bytes

# The numbers at the begin of a head; the rows for each expert follow, and then the text of an error.
_NUMBERS = 6
_TEXT_WORDS = 64
_ALIGN = 256
# Between hosts, runs of rows for one expert that are shorter than this move with all others of their rank.
_REGROUP_BELOW = 64 << 10
_CALLS = ("dispatch", "combine", "backward of dispatch", "backward of combine", "dispatch with a handle")
_WITH_COUNTS = 0  # the call that sends the rows for each expert: dispatch
_ERRORS: tuple[type[Exception], ...] = (ValueError, TypeError, RuntimeError, MismatchError)


class ExpertBlock:
    """One rank's block, made by all ranks of a group together with equal arguments.

    num_rows: rows in a slot. hidden: elements of a row. dtypes: of the rows of a dispatch and of a combine.
    side_width: numbers that travel with a row.
    """

    def __init__(self, backend: Any, size: int, num_experts: int, num_rows: int, hidden: int,
                 dtypes: Sequence[torch.dtype], side_width: int, timeout: float | None) -> None:
        self.rank = _C.rank(backend)
        self._size, self._timeout = size, timeout
        self._peers = [rank for rank in range(size) if rank != self.rank]
        head_words = _NUMBERS + num_experts + _TEXT_WORDS
        with torch.inference_mode(False):  # later calls may come outside of the caller's inference mode
            words = _C.symm_make(backend, [2 * size * head_words + size], torch.int64, "", True, timeout)
        heads = words[:2 * size * head_words].view(2, size, head_words)
        self._heads = [heads[slot] for slot in range(2)]
        self._own_heads = [(heads[slot, self.rank], heads[slot, self.rank, :_NUMBERS + num_experts])
                           for slot in range(2)]
        self._numbers = [heads[slot, :, :_NUMBERS] for slot in range(2)]
        self.counts = [heads[slot, :, _NUMBERS:_NUMBERS + num_experts] for slot in range(2)]
        self.own_counts = [counts[self.rank] for counts in self.counts]
        arrived = words[-size:]
        self._arrived = [arrived[rank] for rank in range(size)]
        row_bytes = [_aligned(num_rows * hidden * item_bytes(dtype)) for dtype in dtypes]
        side_bytes, order_bytes = _aligned(4 * num_rows * side_width), _aligned(4 * num_rows)
        with torch.inference_mode(False):
            slots = _C.symm_make(backend, [2, max(row_bytes) + side_bytes + order_bytes], torch.uint8, "", False,
                                 timeout)

        def part(slot: int, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            count = torch.Size(shape).numel()
            return slots[slot, at:at + count * item_bytes(dtype)].view(dtype).view(shape)
        self.rows = {dtype: [part(slot, 0, (num_rows, hidden), dtype) for slot in range(2)] for dtype in set(dtypes)}
        self.side = [part(slot, max(row_bytes), (num_rows, side_width), torch.float32) for slot in range(2)]
        self.order = [part(slot, max(row_bytes) + side_bytes, (num_rows,), torch.int32) for slot in range(2)]
        self.is_direct = self._find_peers(backend)
        self._number = 0
        self._failure = ""

    def _find_peers(self, backend: Any) -> bool:
        """Whether all ranks address all peers; then the peers' parts are found here, too."""
        try:
            self._peer_rows = {dtype: [self._of_all(rows) for rows in slots] for dtype, slots in self.rows.items()}
            self._peer_side = [self._of_all(side) for side in self.side]
            self._peer_order = [self._of_all(order) for order in self.order]
            reaches = b"1"
        except UnsupportedError:
            reaches = b"0"
        return all(each == b"1" for each in _C.exchange(backend, "shardwire.distributed.Experts", "paths", reaches))

    def _of_all(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [_C.symm_peer(part, rank) for rank in range(self._size)]

    def begin(self) -> int:
        """The slot of the next exchange. RuntimeError after a failure."""
        if self._failure:
            raise RuntimeError(f"an earlier call on this Experts failed on this rank ({self._failure}), so its memory "
                               "is in no known state; make another Experts on all ranks")
        return (self._number + 1) % 2

    def meet(self, call: int, handle: int, grads: tuple[bool, bool], error: Exception | None) -> bool:
        """Ends the sender's half of an exchange: the peers get this rank's head, and this rank waits for theirs.
        Returns whether any rank needs gradients. The own counts lie in ``own_counts`` already.

        call: index of the called function. handle: the exchange that the call continues, or 0. grads: whether this
            rank's tensors require gradients, and whether gradients are recorded. Raises the same error on all ranks
            where a rank gives an error or the calls differ.
        """
        self._number += 1
        slot = self._number % 2
        text = b"" if error is None else str(error).encode()[:8 * _TEXT_WORDS]
        kind = next((place for place, cls in enumerate(_ERRORS) if isinstance(error, cls)), 2) + 1 if error else 0
        whole, head = self._own_heads[slot]
        head = head if call == _WITH_COUNTS else head[:_NUMBERS]
        head[:_NUMBERS] = torch.tensor([call, handle, grads[0], grads[1], kind, len(text)], device="cpu")
        if error is not None:
            head = whole
            whole[-_TEXT_WORDS:] = torch.frombuffer(bytearray(text.ljust(8 * _TEXT_WORDS)), dtype=torch.int64)
        try:
            for rank in self._peers:
                _C.symm_put(head, head, rank)
                _C.symm_atomic(self._arrived[self.rank], "set", rank, self._number, fetches=False)
            for rank in self._peers:
                _C.symm_wait(self._arrived[rank], "ge", self._number, self._timeout, [rank])
        except BaseException as failure:  # an interrupt too: the other ranks count this exchange
            self._failure = f"{type(failure).__name__}: {failure}"
            raise
        return self._agree(slot, error)

    def _agree(self, slot: int, error: Exception | None) -> bool:
        facts = self._numbers[slot].tolist()
        for rank, (call, _, _, _, kind, length) in enumerate(facts):
            if kind:
                text = bytes(self._heads[slot][rank, -_TEXT_WORDS:].view(torch.uint8).tolist())[:length]
                raise _ERRORS[kind - 1](f"shardwire.distributed.Experts: {_CALLS[call]}: rank {rank}: "
                                        f"{text.decode(errors='replace')}") from error
        call, handle, _, records, _, _ = facts[0]
        needs = any(each[2] for each in facts)
        for rank, each in enumerate(facts):
            if each[0] != call:
                raise MismatchError(f"shardwire.distributed.Experts: ranks are doing different things: rank 0 called "
                                    f"{_CALLS[call]}, rank {rank} called {_CALLS[each[0]]}")
            if each[1] != handle:
                raise MismatchError(f"shardwire.distributed.Experts: {_CALLS[call]}: rank 0 gave the handle of "
                                    f"exchange {handle}, rank {rank} of exchange {each[1]}; give the handle of the "
                                    "same dispatch on all ranks")
            if needs and each[3] != records:
                raise MismatchError(f"shardwire.distributed.Experts: {_CALLS[call]}: rank {0 if records else rank} "
                                    f"records gradients and rank {rank if records else 0} is under no_grad; call alike "
                                    "on all ranks")
        return needs

    @property
    def number(self) -> int:
        """The number of the exchange that ended last."""
        return self._number

    # ---- dispatch: the owner of the tokens writes its slot, and the experts' ranks read

    def offer(self, slot: int, tokens: torch.Tensor, order: torch.Tensor, top_k: int,
              side: torch.Tensor | None) -> None:
        """Writes the rows for the peers. order: the choices by expert. side: by choice in this order."""
        rows = self.rows[tokens.dtype][slot]
        if self.is_direct:
            if order.data_ptr() != self.order[slot].data_ptr():
                self.order[slot][:order.shape[0]] = order
            mine = rows[:tokens.shape[0]]
            _C.symm_put(mine, tokens, self.rank)
        else:
            table = torch.tensor([[0, order.shape[0], 0]], device="cpu")
            _C.experts_gather(rows, [tokens.contiguous()], [order], table, top_k)
        if side is not None:
            self.side[slot][:side.shape[0], :side.shape[1]] = side

    def fetch(self, slot: int, dtype: torch.dtype, table: torch.Tensor, num_rows: int, top_k: int,
              side_width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows for this rank's experts, and their numbers."""
        rows = _C.heap_empty([num_rows, self.rows[dtype][slot].shape[1]], dtype)
        side = None
        if side_width:
            side = torch.empty(num_rows, self.side[slot].shape[1], dtype=torch.float32, device="cpu")
        if self.is_direct:
            _C.experts_gather(rows, self._peer_rows[dtype][slot], self._peer_order[slot], table, top_k)
            if side is not None:
                _C.experts_gather(side, self._peer_side[slot], [], table, top_k)
        else:
            self._get(table, [(rows, self.rows[dtype][slot])] + ([] if side is None else [(side, self.side[slot])]))
        return rows, None if side is None else side[:, :side_width]

    def _get(self, table: torch.Tensor, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Gets the rows of all ranks. pairs: of the rows here, and of the part of the slot from which they come."""
        rows, part = pairs[0]
        if not self._regroups(table, rows):
            self._get_all([(to[at:at + count], part[first:first + count], source)
                           for source, first, count, at in self._chunks(table) for to, part in pairs])
            return
        firsts, counts, inner = self._runs(table)
        staged = [torch.split(_C.heap_empty(list(to.shape), to.dtype), counts) for to, _ in pairs]
        self._get_all([(runs[source], part[first:first + len(runs[source])], source)
                       for source, first in enumerate(firsts) if counts[source]
                       for (_, part), runs in zip(pairs, staged)])
        for (to, _), runs in zip(pairs, staged):
            _C.experts_gather(to, runs, [], inner, 1)

    def _regroups(self, table: torch.Tensor, rows: torch.Tensor) -> bool:
        """Whether one request for each rank and a copy are cheaper than one request for each rank and expert."""
        runs = table.shape[0]
        return runs > self._size and rows.numel() * item_bytes(rows.dtype) < _REGROUP_BELOW * runs

    def _runs(self, table: torch.Tensor) -> tuple[list[int], list[int], torch.Tensor]:
        """Of each rank the first row in its slot and the number of rows, and the table with places in these runs."""
        inner = table.clone()
        by_source = inner.view(-1, self._size, 3)
        firsts = by_source[0, :, 0].clone()
        by_source[:, :, 0] -= firsts
        return firsts.tolist(), by_source[:, :, 1].sum(0).tolist(), inner

    @staticmethod
    def _get_all(gets: list[tuple[torch.Tensor, torch.Tensor, int]]) -> None:
        """Gets all (to, part, rank). A rank answers in the order of the requests, so only the last get from each rank
        waits: one round trip for each rank, and not one for each chunk."""
        last = {rank: place for place, (_, _, rank) in enumerate(gets)}
        for place, (to, part, rank) in enumerate(gets):
            if place != last[rank]:
                _C.symm_get(to, part, rank, True)
        for place in last.values():
            _C.symm_get(*gets[place])

    # ---- combine: the experts' ranks write the slots of the tokens' owners

    def give_back(self, slot: int, rows: torch.Tensor, table: torch.Tensor, with_own: bool) -> None:
        """Writes the experts' rows to their owners; this rank's own only ``with_own``."""
        if self.is_direct:
            targets: list[torch.Tensor | None] = list(self._peer_rows[rows.dtype][slot])
            if not with_own:
                targets[self.rank] = None
            _C.experts_return(targets, rows, table)
            return
        part = self.rows[rows.dtype][slot]
        if not self._regroups(table, rows):
            for source, first, count, at in self._chunks(table):
                if with_own or source != self.rank:
                    _C.symm_put(part[first:first + count], rows[at:at + count], source)
            return
        firsts, counts, inner = self._runs(table)
        runs: list[torch.Tensor | None] = list(torch.split(_C.heap_empty(list(rows.shape), rows.dtype), counts))
        if not with_own:
            runs[self.rank] = None
        _C.experts_return(runs, rows, inner)
        for source, run in enumerate(runs):
            if run is not None and counts[source]:
                _C.symm_put(part[firsts[source]:firsts[source] + counts[source]], run, source)

    def _chunks(self, table: torch.Tensor) -> list[tuple[int, int, int, int]]:
        """(source, first row there, rows, first row here) of each chunk that is not empty."""
        return [(place % self._size, first, count, at) for place, (first, count, at) in enumerate(table.tolist())
                if count]


def _aligned(count: int) -> int:
    return (count + _ALIGN - 1) // _ALIGN * _ALIGN
