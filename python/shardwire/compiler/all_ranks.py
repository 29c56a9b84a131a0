"""The arguments of ``compile_op`` on all ranks of a missing group: made on this rank, one rank after the
other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import _C
from .layout import kind_of
from .spec import Spec, build_spec

ARGUMENTS = ("shape", "dtype", "inputs", "outputs", "reduction", "output_dtype")
# Tensors, inputs, outputs, and instead of the lists the error, if any.
RankLists = tuple[list[_C.TensorDecl], list[_C.LocalTensor], list[_C.LocalTensor], "Exception | None"]
EachRank = Callable[[int], Mapping[str, Any]]


def spec_of_rank(rank: int, world_size: int, given: Mapping[str, Any], each_rank: EachRank | None) -> Spec:
    """The spec of one rank. given: the ARGUMENTS as all ranks give them; each_rank: as for :func:`shardwire.plan`."""
    own = given if each_rank is None else {**given, **_arguments_of(each_rank(rank))}
    return build_spec(own["shape"], own["dtype"], own["inputs"], own["outputs"], own["reduction"], own["output_dtype"],
                      rank, range(world_size))


def lists_of_all(world_size: int, given: Mapping[str, Any], each_rank: EachRank | None = None) -> list[RankLists]:
    """The lists of every rank. The error of a rank stands in place of the rank's lists, as ``compile_op`` would report
    the error to all ranks."""
    lists: list[RankLists] = []
    for rank in range(world_size):
        try:
            spec = spec_of_rank(rank, world_size, given, each_rank)
            lists.append((spec.tensors, spec.inputs.native, spec.outputs.native, None))
        except Exception as failure:
            lists.append(([], [], [], failure))
    return lists


def _arguments_of(own: Any) -> Mapping[str, Any]:
    if not isinstance(own, Mapping) or not set(own) <= set(ARGUMENTS):
        raise TypeError(f"each_rank returned {kind_of(own)}; it returns a dict of {', '.join(ARGUMENTS)}")
    return own


def check_overlap(overlap: Any) -> None:
    if overlap not in (None, "last", "any", "error"):
        raise (ValueError if isinstance(overlap, str) else TypeError)(
            f"overlap is {kind_of(overlap)}; give 'last', 'any', 'error' or None")
