"""sync: moves the weights of one model into another model with another layout, again and again."""

from __future__ import annotations

from typing import Any

from ..compiler.future import Future, Seconds, as_seconds
from ..compiler.agree import Attempt, Meeting, check_strict
from ..compiler.who_plans import check_name
from .descriptions import collect, describe
from .holdings import Holdings
from .matching import Match, match
from .movement import End, Movement, compile_movement
from .name_maps import as_name_map
from .problems import Problems


class WeightSync:
    """The result of :func:`sync`. ``run()`` moves the present weights."""

    __slots__ = ("_movement", "_match", "_source", "_target")

    def __init__(self, movement: Movement, found: Match, source: Holdings, target: Holdings) -> None:
        self._movement = movement
        self._match = found
        self._source = source
        self._target = target

    def run(self, timeout: Seconds = None) -> Future:
        """Starts one movement and returns its Future. Every rank of the group calls, in the same order relative to its
        other operations.

        The parameters' storage is looked up anew in each run. Until the Future is done the source must not be written
        nor the target read.
        """
        return self._movement.run(timeout)

    @property
    def target(self) -> Any:
        """The target module; for a dict a new dict with the local tensors and DTensors, allocated where missing. None
        without a target on this rank."""
        return self._target.result()

    @property
    def pairs(self) -> list[tuple[list[str], list[str]]]:
        """Source names and target names of each moved tensor; several names on one side where parts are joined or
        split."""
        return [([placed.name for placed in space.sources], [placed.name for placed in space.targets])
                for space in self._match.spaces]

    @property
    def missing(self) -> list[str]:
        """Target names without a source; these targets stay unchanged. Empty unless strict=False."""
        return list(self._match.missing)

    @property
    def unused(self) -> list[str]:
        """Source names without a target. Empty unless strict=False."""
        return list(self._match.unused)

    def explain(self) -> str:
        """The table of senders and receivers: :meth:`CustomOp.explain`."""
        return self._movement.op.explain()

    def traffic(self) -> dict[str, Any]:
        """The content of :meth:`explain` for programs: :meth:`CustomOp.traffic`."""
        return self._movement.op.traffic()

    def stats(self) -> dict[str, Any]:
        """Counters of this rank: :meth:`CustomOp.stats`."""
        return self._movement.op.stats()

    def __repr__(self) -> str:
        return f"<shardwire.WeightSync of {len(self._match.spaces)} tensors>"


def sync(source: Any, target: Any, group: Any = None, mapping: Any = None, *, strict: bool = True, device: Any = None,
         timeout: Seconds = None, name: str = "sync") -> WeightSync:
    """Compiles the movement of all parameters and buffers of ``source`` into ``target``; run the movement with
    ``.run()`` as often as you like.

    Collective: every rank of ``group`` (None: the default group) calls. Either side may be None on a rank without a
    part in this side.

    source, target: a module; a state dict; or a dict of DTensors, plain tensors, pairs (Layout or :class:`FusedLayout`,
        local tensor), and on the target Layouts alone, which are allocated. Plain tensors are whole: plain tensors of
        one name on several ranks are replicas, and readers spread over the replicas. A rank may have some of the names
        only, like a pipeline's stage. Meta tensors of the target are allocated (``device``; DTensors on their mesh's).
        Non-persistent buffers are moved where both sides have them.
    mapping: how names differ. None; "llama", "qwen", "bert" (fused names on either side, or on none), "gpt2" (the
        source is Hugging Face's; ``shardwire.weights.GPT2.inverse`` the other way); a dict of source names to target
        names (others stay); a function from a source name to the target's name, to a :class:`Part` of a target, to a
        list of the names of its parts, or to None to leave the source out; or a :class:`NameMap`.
    strict: False moves the matching names and lists the rest in ``.missing`` and ``.unused``.

    **Replicas are not compared** (:func:`shardwire.check_replicas` does). Ranks that hold one name with different
    values (DDP left out, another seed, BatchNorm statistics of each rank) give the target a mixture of the values of
    all ranks. To move rank 0's values only, give None as the source on the other ranks.

    Tied weights are moved once. Raises the same error on every rank: ValueError with the names that are missing, not
    wanted, or of different shape; UnsupportedError for dtypes that are not cast into each other; MismatchError when
    ranks make different calls; TimeoutError naming ranks that do not call.
    """
    meeting = Meeting(group, "sync", None)
    blobs = [b"", b"", b""]
    sides: list[Holdings] = []
    with Attempt() as attempt:  # which keeps any exception, also of a caller's mapping
        meeting.seconds = as_seconds(timeout)
        name = check_name(name)
        names = as_name_map(mapping)
        for which, (value, side, renames) in enumerate(
                ((source, "source", names.source), (target, "target", names.target))):
            sides.append(Holdings(value, side, meeting.global_rank, meeting.ranks))
            blobs[which] = describe(sides[which], renames)
        blobs[2] = b"1" if strict else b""
    everyone = meeting.exchange(blobs, attempt.error)
    check_strict("sync", [bool(given[2]) for given in everyone])
    problems = Problems()
    weights = [collect([given[which] for given in everyone], side, problems)
               for which, side in enumerate(("source", "target"))]
    if not weights[0] and not problems.found:
        raise ValueError("sync: no rank has a source with any weights")
    found = match(weights[0], weights[1], problems, strict)
    problems.raise_any("sync")
    ours, theirs = sides
    with Attempt() as attempt:
        theirs.allocate(frozenset(placed.name for space in found.spaces for placed in space.targets), device)
    movement = compile_movement(meeting, found, End.of(ours), End.of(theirs), name, attempt.error)
    return WeightSync(movement, found, ours, theirs)
