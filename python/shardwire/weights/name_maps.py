"""The correspondence of names on both sides: Hugging Face's names, the fused names of serving engines, and callers' own
names.

Each rank applies a map to its own names. The result is a :class:`Part`: a tensor's common name, and the number of the
part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ..compiler.layout import kind_of


@dataclass(frozen=True, slots=True)
class Part:
    """Part ``index`` of the ``count`` tensors that, joined along ``dim``, are the tensor ``name``.

    transposed: this side has the dimensions in reverse order. ``dim`` counts dimensions of the tensor ``name``.
    """

    name: str
    index: int = 0
    count: int = 1
    dim: int = 0
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """A source tensor made of several target tensors, joined along dimension 0."""

    names: tuple[str, ...]


Place = Union[Part, Split]
Mapped = Union[None, str, Part, Sequence[str]]
Renames = Callable[[str], Mapped]


class NameMap:
    """Two functions from names to :class:`Part`, str, or None (leave the tensor out): one for the source's names, one
    for the target's."""

    __slots__ = ("source", "target")

    def __init__(self, source: Renames, target: Renames) -> None:
        self.source = source
        self.target = target

    def __repr__(self) -> str:
        ready = next((name for name, one in READY.items() if one is self), None)
        summary = (f"weights.{ready.upper()}" if ready is not None
                   else f"source={_summary(self.source)}, target={_summary(self.target)}")
        return f"<shardwire.NameMap {summary}>"

    @property
    def inverse(self) -> NameMap:
        """The map with source and target exchanged."""
        return NameMap(self.target, self.source)

    def without(self, *names: str) -> NameMap:
        """The map, with these names left out on both sides."""
        source, target = self.source, self.target
        return NameMap(lambda name: None if name in names else source(name),
                       lambda name: None if name in names else target(name))


def _summary(renames: Renames) -> str:
    return getattr(renames, "__qualname__", None) or type(renames).__qualname__


class _Fusing:
    """Renames the last component but one: q_proj.weight becomes a part of qkv_proj.weight. Other names stay."""

    def __init__(self, fusions: Mapping[str, Sequence[str]]) -> None:
        self.parts = {name: (fused, index, len(names)) for fused, names in fusions.items()
                      for index, name in enumerate(names)}

    def __call__(self, name: str) -> Mapped:
        path = name.split(".")
        found = self.parts.get(path[-2]) if len(path) > 1 else None
        if found is None:
            return name
        fused, index, count = found
        return Part(".".join([*path[:-2], fused, path[-1]]), index, count)


def _same(name: str) -> Mapped:
    return name


_CONV1D = re.compile(r"(^|\.)(c_attn|c_proj|c_fc)\.weight$")
# Causal masks, which old checkpoints hold as buffers
_MASKS = re.compile(r"(^|\.)attn\.(bias|masked_bias)$")


def _gpt2_of_hugging_face(name: str) -> Mapped:
    if _MASKS.search(name):
        return None
    return Part(name, transposed=True) if _CONV1D.search(name) else name


def _both(fusions: Mapping[str, Sequence[str]]) -> NameMap:
    """A map with the fused names as common names: either side may have fused names or Hugging Face's names."""
    return NameMap(_Fusing(fusions), _Fusing(fusions))


_QKV_AND_GATE = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
LLAMA = _both(_QKV_AND_GATE)
QWEN = _both(_QKV_AND_GATE)
BERT = _both({"qkv_proj": ("query", "key", "value")})
# Hugging Face's GPT-2 keeps the weights of Conv1D layers as (in, out), serving engines as Linear's (out, in). Names are
# equal, so direction matters.
GPT2 = NameMap(_gpt2_of_hugging_face, _same)

READY = {"llama": LLAMA, "qwen": QWEN, "bert": BERT, "gpt2": GPT2}


def as_name_map(mapping: Any) -> NameMap:
    """Reads the argument ``mapping``: None, a ready map's name, a NameMap, a table of source names to target names, or
    a function with the same purpose."""
    if mapping is None:
        return NameMap(_same, _same)
    if isinstance(mapping, NameMap):
        return mapping
    if isinstance(mapping, str):
        if mapping not in READY:
            raise ValueError(f"mapping is {mapping!r}; the ready ones are {', '.join(map(repr, READY))}")
        return READY[mapping]
    if isinstance(mapping, Mapping):
        table = dict(mapping)
        return NameMap(lambda name: table.get(name, name), _same)
    if callable(mapping):
        return NameMap(mapping, _same)
    raise TypeError(f"mapping is {kind_of(mapping)}; give a function or a dict of source names to target names, a "
                    f"NameMap, one of {', '.join(map(repr, READY))}, or None")


def place_of(renames: Renames, name: str, what: str) -> Place | None:
    """The place of ``name``; None for a name left out. ``what`` is "source" or "target", for messages."""
    mapped = renames(name)
    if mapped is None:
        return None
    if isinstance(mapped, str):
        mapped = Part(mapped)
    if isinstance(mapped, (list, tuple)):
        if what != "source" or not mapped or not all(isinstance(item, str) for item in mapped):
            raise TypeError(f"mapping gives {mapped!r} for the {what} name {name!r}; a list holds the target's names "
                            "of a source tensor's parts")
        return Split(tuple(mapped))
    if not isinstance(mapped, Part):
        raise TypeError(f"mapping gives {kind_of(mapped)} for the {what} name {name!r}; give a str, a Part, a list of "
                        "str, or None to leave it out")
    if not mapped.name:
        raise ValueError(f"the {what} name {name!r} becomes an empty name; rename the tensor, or map it to a name")
    if not 0 <= mapped.index < mapped.count or mapped.dim < 0:
        raise ValueError(
            f"mapping gives {mapped} for the {what} name {name!r}; index counts from 0 to count - 1, dim from 0")
    return mapped
