"""Plots of docs/benchmarks.md: drawn from the tables of that page when the site is made, so that no number stands
twice.

Bars as SVG, by hand: with Debian's matplotlib come 400 MB of other packages.
"""

import html
import math
import os
import re
from typing import NamedTuple

COLOURS = ("#4477aa", "#66ccee", "#ee6677", "#ccbb44")  # distinct for colour-blind readers too
MARK = re.compile(r"<!-- plot: ([\w-]+) -->\n((?:\|.*\n)+)")
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 760, 250, 70, 12, 8, 58
STYLE = "font-family: sans-serif; font-size: 12px"


class Plot(NamedTuple):
    """labels: columns that name a row. values: the drawn columns, by the words of the legend. log: lengths are
    logarithms. line: a value to compare with."""

    title: str
    unit: str
    labels: tuple
    values: dict
    log: bool = False
    line: float = 0


PLOTS = {  # bench/write_docs.py marks the first table of each of these parts
    "move": Plot("Shard(0) to Shard(1), 64 MiB, 2 ranks",
                 "us, shorter is better; each line is ten times the one before", ("case", "by"),
                 {"median": "median, us"}, log=True),
    "collectives": Plot("Collectives in C++, 2 ranks",
                        "time as a multiple of the fastest peer's, which is the line; shorter is better",
                        ("operation", "bytes"), {"tensors in the shared heap": "heap / best",
                                                 "ordinary tensors": "ordinary / best"}, line=1),
    "torch-collectives": Plot("torch.distributed, 2 ranks",
                              "us, shorter is better; each line is ten times the one before", ("call", "bytes"),
                              {"shardwire, heap": "shardwire_heap", "shardwire": "shardwire", "gloo": "gloo"},
                              log=True),
    "groups": Plot("Making groups", "ms, shorter is better; each line is ten times the one before", ("call", "ranks"),
                   {"shardwire": "shardwire", "gloo": "gloo"}, log=True),
}


def with_plots(text, folder, source):
    """The page with a picture behind each marked table. The pictures lie in `folder`; pages name them as seen from
    `source`."""
    def drawn(found):
        path = folder / f"{found[1]}.svg"
        if found[1] not in PLOTS:
            raise ValueError(f"docs/benchmarks.md marks a table to be drawn as {found[1]!r}, and docs/site/plots.py "
                             f"knows {', '.join(PLOTS)}")
        plot = PLOTS[found[1]]
        path.write_text(picture(plot, rows(found[2])), encoding="utf-8")
        return f"{found[2]}\n![{plot.title}: the table above as a picture]({os.path.relpath(path, source)})\n"

    return MARK.sub(drawn, text)


def rows(table):
    """The cells of each row, by the names of the columns."""
    head, _, *lines = [[re.sub(r"\*\*|`", "", cell).strip() for cell in line.strip("|").split("|")]
                       for line in table.splitlines()]
    return [dict(zip(head, line)) for line in lines]


def number(cell):
    """The first number of a cell; None where there is none."""
    found = re.match(r"[\d,]+(?:\.\d+)?", cell)
    return float(found[0].replace(",", "")) if found else None


def ticks(values, log):
    """Where the scale has lines: powers of ten around the values, or four steps from zero."""
    if log:
        return [10.0**power
                for power in range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)]
    step = next(step for step in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100) if step * 5 >= max(values))
    return [step * place for place in range(math.ceil(max(values) / step) + 1)]


def picture(plot, cells):
    values = [[number(each.get(column, "")) for column in plot.values.values()] for each in cells]
    marks = ticks([value for row in values for value in row if value is not None], plot.log)

    def x(value):
        share = (math.log10(value / marks[0]) / math.log10(marks[-1] / marks[0])) if plot.log else value / marks[-1]
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    each = BAR * len(plot.values) + GAP
    bottom = TOP + each * len(cells)
    svg = [(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 46}" width="{WIDTH}" '
            f'style="{STYLE}">'), f'<rect width="{WIDTH}" height="{bottom + 46}" fill="#ffffff"/>',
           text(8, 20, plot.title, "font-weight: bold; font-size: 14px")]
    for mark in marks:
        svg += [f'<path d="M{x(mark)} {TOP - 6}V{bottom}" stroke="#dddddd"/>',
                text(x(mark), bottom + 16, f"{mark:,g}", "text-anchor: middle; fill: #555555")]
    svg.append(text(LEFT, bottom + 36, plot.unit, "fill: #555555"))
    for place, what in enumerate(plot.values if len(plot.values) > 1 else ()):
        svg += [f'<rect x="{8 + 180 * place}" y="30" width="10" height="10" fill="{COLOURS[place]}"/>',
                text(24 + 180 * place, 40, what)]
    for row, (names, lengths) in enumerate(zip(cells, values)):
        y = TOP + row * each
        svg.append(text(LEFT - 8, y + (each - GAP) / 2 + 4, ", ".join(filter(None, map(names.get, plot.labels))),
                        "text-anchor: end"))
        for place, value in enumerate(lengths):
            if value is not None:
                svg += [(f'<rect x="{LEFT}" y="{y + place * BAR}" width="{max(1, round(x(value) - LEFT, 1))}" '
                         f'height="{BAR - 2}" fill="{COLOURS[place]}"/>'),
                        text(x(value) + 5, y + place * BAR + 9, f"{value:,g}", "font-size: 10px; fill: #555555")]
    if plot.line:
        svg.append(f'<path d="M{x(plot.line)} {TOP - 6}V{bottom}" stroke="#222222"/>')
    return "\n".join([*svg, "</svg>", ""])


def text(x, y, words, style=""):
    return f'<text x="{x}" y="{y}" style="{style}">{html.escape(words)}</text>'
