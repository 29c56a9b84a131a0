"""The ranks of one call exchange their arguments, so that all ranks make the same plan or raise the same error."""

from __future__ import annotations

import json
import weakref
from collections import OrderedDict
from typing import Any

import torch

from .. import _C, errors
from ..compiler.compile_op import CustomOp, compile_op
from ..groups.lookup import global_ranks, resolve_backend

# Bytes of a rank in the first exchange: most calls need fewer. The first 8 are the length.
_ROW = 1024
_HEAD = 8
_KINDS: tuple[type[Exception], ...] = (ValueError, TypeError, errors.UnsupportedError, errors.MismatchError)
# The state kept for a group: its table, and the plans of one-off calls.
PLANS_PER_GROUP = 8
_tables: weakref.WeakKeyDictionary[Any, _Table] = weakref.WeakKeyDictionary()
_plans: weakref.WeakKeyDictionary[Any, OrderedDict[str, Any]] = weakref.WeakKeyDictionary()
# The number of times that this process dropped all plans. Every rank sends the number, so when one rank drops plans,
# the keys change on all ranks of its groups, and no rank finds a plan that another rank lacks.
_forgotten = 0


class _Table:
    """One row for each rank, and the op that brings every row to every rank. Compiled at a group's first call."""

    def __init__(self, group: Any) -> None:
        backend = resolve_backend(group)
        self.rank = _C.rank(backend)
        self.count = len(global_ranks(backend))
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside of the mode
            self.mine = _C.heap_empty([1, _ROW], torch.uint8)
            self.rows = _C.heap_empty([self.count, _ROW], torch.uint8)
        self.op: CustomOp = compile_op(group, shape=[self.count, _ROW], dtype=torch.uint8, inputs=[{"offset": [self.rank, 0], "shape": [1, _ROW]}],
                                       outputs=[{"offset": [0, 0], "shape": [self.count, _ROW]}], name="shardwire.distributed")


def exchange(group: Any, door: str, told: dict[str, Any], error: Exception | None = None) -> list[dict[str, Any]]:
    """The arguments of every rank, by rank of the group. Collective over ``group``.

    ``told``: any values for json. ``error``: sent instead of ``told``; then every rank raises the lowest rank's error,
    with the rank's number. ``door``: the name of the called function; MismatchError on all ranks where ranks called
    different functions.
    """
    table = _tables.get(group)
    if table is None:
        table = _tables[group] = _Table(group)
    body = b""
    if error is None:
        try:
            body = json.dumps({"door": door, "told": {**told, "forgotten": _forgotten}}).encode()
        except (TypeError, ValueError) as failure:  # the other ranks wait for this rank
            error = TypeError(f"an argument cannot be told to the other ranks: {failure}; give plain Python values")
    if error is not None:
        body = json.dumps({"door": door, "error": _encode(error)}).encode()
    answers = [json.loads(text) for text in _gather(group, table, body)]
    for rank, answer in enumerate(answers):
        if answer["door"] != answers[0]["door"]:
            raise errors.MismatchError(f"ranks are doing different things: rank 0 called shardwire.distributed.{answers[0]['door']}, rank {rank} "
                                       f"{answer['door']}; every rank of the group makes the same calls in the same order")
    for rank, answer in enumerate(answers):
        if "error" in answer:
            kind, text = answer["error"]
            raised = next((known for known in _KINDS if known.__name__ == kind), errors.ShardwireError)
            raise raised(f"{door}: rank {rank}: {text}") from error
    return [answer["told"] for answer in answers]


def _gather(group: Any, table: _Table, body: bytes) -> list[bytes]:
    row = table.mine[0]
    row[:_HEAD] = torch.frombuffer(bytearray(len(body).to_bytes(_HEAD, "little")), dtype=torch.uint8)
    short = body[:_ROW - _HEAD]
    row[_HEAD:_HEAD + len(short)] = torch.frombuffer(bytearray(short), dtype=torch.uint8)
    table.op([table.mine], [table.rows]).wait()
    raw = table.rows.numpy().tobytes()
    starts = range(0, table.count * _ROW, _ROW)
    lengths = [int.from_bytes(raw[start:start + _HEAD], "little") for start in starts]
    if max(lengths) <= _ROW - _HEAD:
        return [raw[start + _HEAD:start + _HEAD + length] for start, length in zip(starts, lengths)]
    begins = [sum(lengths[:rank]) for rank in range(table.count + 1)]
    everything = torch.empty(begins[-1], dtype=torch.uint8, device="cpu")
    op = compile_op(group, shape=[begins[-1]], dtype=torch.uint8, inputs=[{"offset": [begins[table.rank]], "shape": [len(body)]}],
                    outputs=[{"offset": [0], "shape": [begins[-1]]}], name="shardwire.distributed")
    op([torch.frombuffer(bytearray(body), dtype=torch.uint8)], [everything]).wait()
    raw = everything.numpy().tobytes()
    return [raw[begins[rank]:begins[rank + 1]] for rank in range(table.count)]


def _encode(error: Exception) -> list[str]:
    text = str(error) or type(error).__name__
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return [kind.__name__, text]
    if isinstance(error, NotImplementedError):
        return [errors.UnsupportedError.__name__, text]
    return [errors.ShardwireError.__name__, f"{type(error).__name__}: {text}"]


def kept_plans(group: Any) -> OrderedDict[str, Any]:
    """The plans of one-off calls of ``group``, the last used at the end. The keys are made from the arguments of all
    ranks, so all ranks drop the same plan."""
    return _plans.setdefault(group, OrderedDict())


def keep_plan(group: Any, key: str, plan: Any) -> None:
    """Puts ``plan`` at the end, and drops the least recently used plan when there are too many."""
    plans = kept_plans(group)
    plans[key] = plan
    plans.move_to_end(key)
    while len(plans) > PLANS_PER_GROUP:
        plans.popitem(last=False)


def forget(group: Any) -> None:
    """Drops the kept state: the plans of all groups, with their memory, and the table of ``group``."""
    global _forgotten
    _forgotten += 1
    _plans.clear()
    _tables.pop(group, None)
