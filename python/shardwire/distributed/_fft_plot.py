"""The plan of a transform as a picture: from left to right each local transform, and between two transforms the bytes
from rank to rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from typing import Any

from ..compiler.plot import (COLOURS, FAINT, INK, PAPER, TITLE_SIZE, drawable, svg_flow, svg_text, byte_matrix,
                             heading_lines, human_bytes)

_TRANSFORM_WIDTH, _MOVE_WIDTH, _EDGE = 190, 340, 24
# The division of the height in svg_flow, so that a rank's local boxes stand beside the rank's bars.
_ROW = 64


def save_stages(traffic: Mapping[str, Any], path: str | os.PathLike[str], title: str | None = None) -> None:
    """Draws the result of ``FFT.traffic()`` into ``path``. ValueError for names that do not end in .svg, OSError when
    the file cannot be written."""
    path = os.fspath(path)
    if not path.lower().endswith(".svg"):
        raise ValueError(f"cannot draw into {path!r}: the plan of a transform is drawn as .svg")
    text = svg_stages(traffic, title)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def svg_stages(traffic: Mapping[str, Any], title: str | None = None) -> str:
    """The whole SVG document."""
    steps, size = traffic["steps"], int(traffic["world_size"])
    widths = [_TRANSFORM_WIDTH if "transform" in step else _MOVE_WIDTH for step in steps]
    width = max(sum(widths) + 2 * _EDGE, 520)
    body = max(_ROW * size, 200)
    heading = drawable(title
                       or f"{traffic['kind']} of {_times(traffic['shape'])}, axes {traffic['axes']}, {size} ranks")
    lines = heading_lines(heading, TITLE_SIZE, width - 2 * _EDGE)
    top = 70 + 1.3 * TITLE_SIZE * len(lines)
    height = top + body + 50
    parts = [(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" viewBox="0 0 {width} '
              f'{height:.0f}" font-family="sans-serif">'),
             f"<title>{escape(heading)}</title>", f'<rect width="{width}" height="{height:.0f}" fill="{PAPER}"/>']
    parts += [svg_text(_EDGE, 34 + 1.3 * TITLE_SIZE * number, line, TITLE_SIZE, anchor="start", weight="bold")
              for number, line in enumerate(lines)]
    parts.append(svg_text(_EDGE, 34 + 1.3 * TITLE_SIZE * len(lines), f"{traffic['dtype']}, by {traffic['engine']}", 13,
                          anchor="start", fill=FAINT))
    x = float(_EDGE)
    for step, wide in zip(steps, widths):
        parts += (_transform(step, x, top, wide, body, size) if "transform" in step
                  else _exchange(step, x, top, wide, body))
        x += wide
    return "\n".join([*parts, "</svg>"]) + "\n"


def _times(shape: Any) -> str:
    return " x ".join(map(str, shape))


def _transform(step: Mapping[str, Any], x: float, y: float, wide: float, body: float, size: int) -> list[str]:
    parts = [svg_text(x + wide / 2, y - 12, f"transform axes {step['transform']}", 13, weight="bold")]
    row = body / size
    for rank, shape in enumerate(step["shapes"]):
        full = all(shape)
        parts.append(f'<rect x="{x + 14:.1f}" y="{y + rank * row + 4:.1f}" width="{wide - 28:.1f}" '
                     f'height="{row - 8:.1f}" rx="4" fill="{COLOURS[rank % len(COLOURS)] if full else "#cccccc"}" '
                     'fill-opacity="0.25"/>')
        parts.append(svg_text(x + wide / 2, y + (rank + 0.5) * row + 4,
                              f"rank {rank}: {_times(shape)}" if full else f"rank {rank}: nothing", 12,
                              fill=INK if full else FAINT))
    return parts


def _exchange(step: Mapping[str, Any], x: float, y: float, wide: float, body: float) -> list[str]:
    matrix = byte_matrix(step["move"])
    between = sum(amount for rank, row in enumerate(matrix) for other, amount in enumerate(row) if rank != other)
    return [*svg_flow(matrix, x, y, wide, body, "rank"),
            svg_text(x + wide / 2, y + body + 26, f"{human_bytes(between)} between ranks", 13, fill=FAINT)]
