"""The ranks of one call exchange their arguments, so that all ranks make the same plan or raise the same error."""

from __future__ import annotations

import json
import weakref
from collections import OrderedDict
from typing import Any

from ..compiler import agree
from ..groups.lookup import resolve_backend, table_by_group

# The state kept for a group: the plans of one-off calls, and as many moves before or after them. Moves are small.
PLANS_PER_GROUP = 8
_plans: weakref.WeakKeyDictionary[Any, OrderedDict[str, Any]] = table_by_group()
_moves: weakref.WeakKeyDictionary[Any, OrderedDict[str, Any]] = table_by_group()
# The number of times that this process dropped all plans. Every rank sends the number, so when one rank drops plans,
# the keys change on all ranks of its groups, and no rank finds a plan that another rank lacks.
_forgotten = 0


def exchange(group: Any, call: str, facts: dict[str, Any], error: Exception | None = None) -> list[dict[str, Any]]:
    """The arguments of every rank, by rank of the group. Collective over ``group``.

    ``facts``: any values for json. ``error``: sent instead of ``facts``; then every rank raises the lowest rank's
    error, with the rank's number. ``call``: the name of the called function; MismatchError on all ranks where ranks
    called different functions.
    """
    body = b""
    if error is None:
        try:
            body = json.dumps({**facts, "forgotten": _forgotten}).encode()
        except (TypeError, ValueError) as failure:  # the other ranks wait for this rank
            error = TypeError(f"an argument cannot be sent to the other ranks: {failure}; give plain Python values")
    of_each = agree.exchange(resolve_backend(group), f"shardwire.distributed.{call}", blob=body, error=error)
    return [json.loads(blob) for blob in of_each]


def kept_plans(group: Any, moves: bool = False) -> OrderedDict[str, Any]:
    """The plans of one-off calls of ``group``, or the moves beside them, the last used at the end. The keys are made
    from the arguments of all ranks, so all ranks drop the same plan."""
    return (_moves if moves else _plans).setdefault(group, OrderedDict())


def keep_plan(group: Any, key: str, plan: Any, moves: bool = False) -> None:
    """Puts ``plan`` at the end, and drops the least recently used plan when there are too many."""
    plans = kept_plans(group, moves)
    plans[key] = plan
    plans.move_to_end(key)
    while len(plans) > PLANS_PER_GROUP:
        plans.popitem(last=False)


def forget() -> None:
    """Drops the kept state: the plans of all groups, with their memory."""
    global _forgotten
    _forgotten += 1
    _plans.clear()
    _moves.clear()
