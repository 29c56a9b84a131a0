"""Misfits between source and target, gathered and raised as one error."""

from __future__ import annotations

from ..errors import UnsupportedError

# The number of names listed per kind of misfit; further names are counted only.
_LISTED = 100


class Problems:
    HEADS = {
        "contradict": "ranks contradict each other", "twice": "several weights of one side are the same one",
        "shape": "shapes differ", "dtype": "dtypes that are not cast into each other",
        "tied": ("tied in the target, but two tensors in the source, which may differ (a mapping that gives None "
                 "leaves one out)"), "missing": "missing from the source", "unused": "not wanted by the target",
    }

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def add(self, kind: str, text: str) -> None:
        self.found.setdefault(kind, []).append(text)

    def raise_any(self, call: str) -> None:
        if not self.found:
            return
        lines = []
        for kind, head in self.HEADS.items():
            texts = self.found.get(kind, [])
            if texts:
                more = f"; and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
                lines.append(f"  {head} ({len(texts)}): {'; '.join(texts[:_LISTED])}{more}")
        kinds = set(self.found)
        error: type[Exception] = UnsupportedError if kinds == {"dtype"} else ValueError
        hint = ""
        if kinds & {"missing", "unused"}:
            hint = ("\n  To fix the call: give mapping= where names differ; leave tensors out with a mapping that "
                    "gives None; or strict=False moves what matches")
        raise error(f"{call}: source and target do not fit together\n" + "\n".join(lines) + hint)
