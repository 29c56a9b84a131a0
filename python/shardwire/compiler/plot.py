"""A picture of the traffic between ranks: ribbons from senders to receivers, and a matrix of the same bytes."""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Mapping
from html import escape
from typing import Any

# One hue per sending rank, distinct for colour-blind eyes too; repeated past twelve.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#994455", "#004488", "#997700", "#44aa99",
           "#882255", "#6699cc")
INK, FAINT, PAPER = "#222222", "#888888", "#ffffff"
TITLE_SIZE, _TITLE_LINES = 19.0, 3


def save_picture(traffic: Mapping[str, Any], path: str | os.PathLike[str], title: str | None = None) -> None:
    """Draws ``traffic`` (keys name, world_size, edges of {src, dst, bytes, pieces}, lower_bound_bytes or None; unit:
    the word for the drawn things in place of "rank") into ``path``.

    .svg is written directly; .png needs matplotlib (ImportError names matplotlib). ValueError for other endings,
    OSError when the file cannot be written.
    """
    path = os.fspath(path)
    ending = os.path.splitext(path)[1].lower()
    if ending == ".svg":
        text = svg_picture(traffic, title)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    elif ending == ".png":
        _save_png(traffic, path, title)
    else:
        raise ValueError(f"cannot draw into {path!r}: give a name that ends in .svg or .png")


def human_bytes(count: float) -> str:
    """A short size: "0", "512 B", "1.5 KiB", "474 MiB"."""
    if count == 0:
        return "0"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1000 or unit == "TiB":
            digits = 0 if unit == "B" or count >= 99.5 else 1
            return f"{count:.{digits}f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def byte_matrix(traffic: Mapping[str, Any]) -> list[list[int]]:
    """matrix[src][dst] in bytes, group ranks."""
    size = int(traffic["world_size"])
    matrix = [[0] * size for _ in range(size)]
    for edge in traffic["edges"]:
        matrix[edge["src"]][edge["dst"]] += int(edge["bytes"])
    return matrix


def svg_picture(traffic: Mapping[str, Any], title: str | None = None) -> str:
    """The whole SVG document."""
    matrix = byte_matrix(traffic)
    size = len(matrix)
    what = escape(str(traffic.get("unit", "rank")))
    cell = 64 if size <= 8 else 46
    flow_width = 460
    width = flow_width + 130 + cell * (size + 1) + 30
    between = sum(matrix[s][d] for s in range(size) for d in range(size) if s != d)
    own = sum(matrix[r][r] for r in range(size))
    heading = drawable(title or traffic.get("name") or "compiled op")
    lines = heading_lines(heading, TITLE_SIZE, width - 48)
    least = traffic.get("lower_bound_bytes", 0)
    known = (f"of rank {traffic.get('rank')} only, another rank planned" if least is None
             else f"least possible between ranks {human_bytes(int(least))}" if what == "rank" else "")
    facts = ", ".join(each for each in (f"{human_bytes(between)} between {what}s", f"{human_bytes(own)} within", known)
                      if each)
    line = 1.3 * TITLE_SIZE
    below = line * (len(lines) - 1)  # space for the title's further lines
    height = math.ceil(max(420, 170 + cell * (size + 1)) + below)
    parts = [
        (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
         'font-family="sans-serif">'),
        f"<title>{escape(heading)}</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        *(svg_text(24, 34 + line * number, text, TITLE_SIZE, anchor="start", weight="bold")
          for number, text in enumerate(lines)),
        svg_text(24, 56 + below, facts, 13, anchor="start", fill=FAINT),
        *svg_flow(matrix, 24, 100 + below, flow_width - 48, height - below - 130, what),
        *_matrix(matrix, flow_width + 90, 118 + below, cell, what),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def text_width(text: str, size: float) -> float:
    """The approximate width of `text` in a bold sans-serif of this size, never less than in DejaVu Sans Bold, the
    widest of the usual fonts."""
    return size * sum(_char_width(char) for char in text)


def _char_width(char: str) -> float:
    if not char.isascii():
        return 0.0 if unicodedata.combining(char) else 1.3
    if char in "ijlIJ',.:;/\\| -":
        return 0.42
    if char in "frt()[]!_`\"*csz?":
        return 0.6
    return 1.11 if char in "mwMW%@" else 0.88 if char.isupper() or char in "#+<=>^~&" else 0.72


def heading_lines(text: str, size: float, room: float, most: int = _TITLE_LINES) -> list[str]:
    """`text` in at most `most` lines, none wider than `room`. A wider word, such as a path, loses its beginning; a text
    with too many lines loses its end."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split():
            word = _end_of(word, size, room)
            longer = f"{line} {word}" if line else word
            if text_width(longer, size) <= room:
                line = longer
            else:
                lines.append(line)
                line = word
        lines.append(line)
    if len(lines) > most:
        last = lines[most - 1] + "…"
        while text_width(last, size) > room:
            last = last[:-2].rstrip() + "…"
        lines[most - 1 :] = [last]
    return lines


def _end_of(word: str, size: float, room: float) -> str:
    """The end of a word that fits, after a "…"; for a path whole names, as long as the last name fits."""
    if text_width(word, size) <= room:
        return word
    start = next(start for start in range(1, len(word) + 1)
                 if text_width("…" + word[start:], size) <= room or start == len(word))
    folder = word.find("/", start)
    return "…" + word[folder if 0 <= folder < len(word) - 1 else start :]


def drawable(text: Any) -> str:
    """Replaces characters not allowed in XML or UTF-8: a path may have any bytes."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def svg_text(x: float, y: float, text: str, size: float, anchor: str = "middle", fill: str = INK,
             weight: str = "normal") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}" '
            f'font-weight="{weight}">'
            f"{escape(text)}</text>")


def svg_flow(matrix: list[list[int]], x: float, y: float, width: float, height: float, what: str) -> list[str]:
    """Bars of senders at the left, of receivers at the right, as high as their bytes; a ribbon per edge. Idle ranks
    keep a thin bar."""
    size = len(matrix)
    sent = [sum(row) for row in matrix]
    received = [sum(row[d] for row in matrix) for d in range(size)]
    total = sum(sent)
    gap = min(14.0, height / (3.0 * size))
    unit = (height - gap * (size - 1) - 3.0 * size) / total if total else 0.0
    bar, label = 16.0, 74.0
    left, right = x + label, x + width - label
    parts = [svg_text(left + bar / 2, y - 12, "sends", 13, fill=FAINT),
             svg_text(right - bar / 2, y - 12, "receives", 13, fill=FAINT)]

    def stack(totals: list[int]) -> list[float]:
        tops, at = [], y
        for amount in totals:
            tops.append(at)
            at += amount * unit + 3.0 + gap
        return tops

    from_top, to_top = stack(sent), stack(received)
    from_at, to_at = list(from_top), list(to_top)
    for source in range(size):
        for target in range(size):
            amount = matrix[source][target]
            if amount == 0:
                continue
            thick = amount * unit
            a, b, middle = from_at[source], to_at[target], (left + bar + right - bar) / 2
            from_at[source] += thick
            to_at[target] += thick
            x0, x1 = left + bar, right - bar
            shape = (f"M{x0:.1f},{a:.2f} C{middle:.1f},{a:.2f} {middle:.1f},{b:.2f} {x1:.1f},{b:.2f} "
                     f"L{x1:.1f},{b + max(thick, 0.6):.2f} C{middle:.1f},{b + max(thick, 0.6):.2f} "
                     f"{middle:.1f},{a + max(thick, 0.6):.2f} {x0:.1f},{a + max(thick, 0.6):.2f} Z")
            parts.append(f'<path d="{shape}" fill="{COLOURS[source % len(COLOURS)]}" fill-opacity="0.5">'
                         f"<title>{what} {source} to {what} {target}: {human_bytes(amount)}</title></path>")
    for side_x, tops, totals, anchor, text_x in ((left, from_top, sent, "end", left - 8),
                                                 (right - bar, to_top, received, "start", right + 8)):
        for rank in range(size):
            tall = max(totals[rank] * unit, 3.0)
            colour = COLOURS[rank % len(COLOURS)] if totals[rank] else "#cccccc"
            parts.append(f'<rect x="{side_x:.1f}" y="{tops[rank]:.2f}" width="{bar:g}" height="{tall:.2f}" rx="2" '
                         f'fill="{colour}"/>')
            middle = tops[rank] + tall / 2
            room = tall + gap >= 26
            parts.append(svg_text(text_x, middle + (-2 if room and totals[rank] else 4), f"{what} {rank}",
                                  12 if size <= 8 else 10, anchor=anchor, fill=INK if totals[rank] else FAINT))
            if room and totals[rank]:
                parts.append(svg_text(text_x, middle + 12, human_bytes(totals[rank]), 10.5, anchor=anchor, fill=FAINT))
    return parts


def _matrix(matrix: list[list[int]], x: float, y: float, cell: float, what: str) -> list[str]:
    """Rows send, columns receive; darker cells have more bytes; the last row and column are sums."""
    size = len(matrix)
    most = max((amount for row in matrix for amount in row), default=0)
    font = 12 if cell >= 60 else 9
    parts = [svg_text(x + size * cell / 2, y - 30, f"to {what}", 13, fill=FAINT)]
    parts.append(f'<g transform="translate({x - 40:.1f},{y + size * cell / 2:.1f}) '
                 f'rotate(-90)">{svg_text(0, 0, f"from {what}", 13, fill=FAINT)}</g>')
    for rank in range(size):
        parts.append(svg_text(x + (rank + 0.5) * cell, y - 10, str(rank), 13, weight="bold"))
        parts.append(svg_text(x - 18, y + (rank + 0.5) * cell + 5, str(rank), 13, weight="bold"))
    parts.append(svg_text(x + (size + 0.5) * cell, y - 10, "sum", 12, fill=FAINT))
    parts.append(svg_text(x - 20, y + (size + 0.5) * cell + 5, "sum", 12, fill=FAINT))
    for source in range(size):
        for target in range(size):
            amount = matrix[source][target]
            share = math.sqrt(amount / most) if most else 0.0
            colour = COLOURS[source % len(COLOURS)]
            parts.append(f'<rect x="{x + target * cell:.1f}" y="{y + source * cell:.1f}" width="{cell - 2:.1f}" '
                         f'height="{cell - 2:.1f}" rx="3" fill="{colour if amount else "#f2f2f2"}" '
                         f'fill-opacity="{0.12 + 0.55 * share if amount else 1:.3f}"/>')
            parts.append(svg_text(x + (target + 0.5) * cell - 1, y + (source + 0.5) * cell + 4,
                                  human_bytes(amount) if amount else "·", font, fill=INK if amount else FAINT))
        parts.append(svg_text(x + (size + 0.5) * cell, y + (source + 0.5) * cell + 4, human_bytes(sum(matrix[source])),
                              font, fill=FAINT))
    for target in range(size):
        received = sum(row[target] for row in matrix)
        parts.append(
            svg_text(x + (target + 0.5) * cell, y + (size + 0.5) * cell + 4, human_bytes(received), font, fill=FAINT))
    return parts


def _save_png(traffic: Mapping[str, Any], path: str, title: str | None) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a PNG needs matplotlib, which is not installed; give a name that ends in .svg, which needs "
                          "nothing") from None
    matrix = byte_matrix(traffic)
    size = len(matrix)
    what = str(traffic.get("unit", "rank"))
    most = max((amount for row in matrix for amount in row), default=0)
    figure = Figure(figsize=(2.5 + 0.8 * size, 2.2 + 0.8 * size), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(111)
    axes.imshow([[math.sqrt(amount) for amount in row] for row in matrix], cmap="Blues", vmin=0,
                vmax=math.sqrt(most) * 1.3 or 1)
    for source in range(size):
        for target in range(size):
            if matrix[source][target]:
                axes.text(target, source, human_bytes(matrix[source][target]), ha="center", va="center", fontsize=9)
    axes.set_xticks(range(size))
    axes.set_yticks(range(size))
    axes.set_xlabel(f"to {what}")
    axes.set_ylabel(f"from {what}")
    points = 12.0
    # A pair of dollar signs would be read as mathematics
    heading = drawable(title or traffic.get("name") or "compiled op").replace("$", r"\$")
    lines = heading_lines(heading, points, 72 * figure.get_figwidth() - 2 * points)
    # Over the whole figure: the axes are narrower, and would cut a title.
    figure.suptitle("\n".join(lines), fontsize=points, weight="bold")
    figure.tight_layout()
    figure.savefig(path)
