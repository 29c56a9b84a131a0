"""Writes the generated sections of docs/benchmarks.md from JSON: `./run bench --write-docs [FILE...]`.

FILE is written by `./run bench PART --compare ... --json FILE`. Its cells of the page's sizes replace
bench/results/PART.json, and the page is written from all files in bench/results. Only the text between
`<!-- generated: NAME -->` and `<!-- end of NAME -->` changes. With --check nothing is written, and the exit status is 1
when the page is not what the files give.
"""

import argparse
import json
import pathlib
import re
import sys
import textwrap

from peers import table

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = (4, 256, 4 << 10, 64 << 10, 1 << 20, 64 << 20)
COLUMN = {"heap": "shardwire, heap", "ordinary": "shardwire, ordinary", "openmpi": "Open MPI", "openmpi5": "Open MPI 5",
          "intelmpi": "Intel MPI", "mpich": "MPICH", "gloo": "gloo"}
EMPTY = """No run on a quiet machine is recorded. These commands measure, and write this section:

```sh
./run bench collectives --compare openmpi,openmpi5,intelmpi,mpich,gloo --json collectives.json
./run bench reshape --compare openmpi,openmpi5,intelmpi,mpich --json reshape.json
./run bench --write-docs collectives.json reshape.json
```
"""


def shown(report):
    """The report without the cells that the page leaves out."""
    cells = [{key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in cell.items()
              if key != "rounds_us"} for cell in report["cells"] if cell["size"] in SIZES]
    return {**report, "cells": cells}


def cell_words(cell):
    return f"{table.number(cell['p50_us'])} ({table.number(cell['p99_us'])})" if cell else "-"


def operation_rows(operation, rows, names, memcpy):
    for row in rows.values():
        size = next(iter(row.values()))["bytes"]
        of, best = table.ratios(row, memcpy), table.best_peer(row)
        both = [of.get(by, (None, None)) for by in table.OURS]
        yield [operation, table.size_words(size) if size else "", *(cell_words(row.get(name)) for name in names),
               *(table.number(ratios[0]) for ratios in both), COLUMN[best["by"]] if best else "-",
               *(table.number(ratios[1]) for ratios in both)]


def operations_table(report, ranks):
    """Rows of a Markdown table."""
    cells = [cell for cell in report["cells"] if cell["ranks"] == ranks]
    names = [name for name in COLUMN if any(cell["by"] == name for cell in cells)]
    memcpy = table.memcpy_of(cells)
    head = ["operation", "bytes", *(COLUMN[name] for name in names), "heap / best", "ordinary / best", "best peer",
            "heap / memcpy", "ordinary / memcpy"]
    rows = [head, ["---"] * len(head)]
    for (_, operation), by_size in table.rows_of(cells).items():
        rows += operation_rows(operation, by_size, names, memcpy)
    return ["| " + " | ".join(row) + " |" for row in rows]


def wrapped(text, indent=""):
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def lacks_words(report, by):
    return f"; has no {', '.join(report['lacks'][by])}" if report["lacks"].get(by) else ""


def paragraphs(report):
    """Machine, method and versions, and a table for each number of ranks."""
    samples = sorted({cell["n"] for cell in report["cells"] if cell["operation"] != table.YARDSTICK})
    yield wrapped(
        f"**{report['part']}**, {report['date']}, commit {report['commit']}"
        f"{' with uncommitted changes' if report['changed'] else ''}: {report['cpu']}, {report['cores']} cores, Linux "
        f"{report['kernel']}, load {report['load_before']:.1f} before. Times in us: p50 and, in brackets, p99 of the "
        f"slowest rank. n = {samples[0]} to {samples[-1]} samples in {report['rounds']} rounds, the programs in turns. "
        f"Up to {table.size_words(report['row_up_to'])} a sample is the mean of {report['calls_in_row']} calls. "
        f"Buffers are {'' if report['rewritten'] else 'not '}rewritten before each sample. Ratios below 1 are faster.")
    yield f"```sh\n{report['command']}\n```"
    yield "\n".join(wrapped(f"* {COLUMN[by]}: {version.split(', package')[0]}{lacks_words(report, by)}", "  ")
                    for by, version in report["by"].items())
    for name, why in report["missing"].items():
        yield wrapped(f"Not measured: {COLUMN[name]} ({why}).")
    for ranks in report["ranks"]:
        yield f"{ranks} ranks, {'each on a core of its own' if ranks in report['pinned'] else 'not pinned to cores'}:"
        yield "\n".join(operations_table(report, ranks))


def beside_the_mpis(reports):
    text = [paragraph for report in reports for paragraph in paragraphs(report)]
    return "\n\n".join(text) + "\n" if text else EMPTY


SECTIONS = {"beside the MPIs": beside_the_mpis}


def page_with(page, reports):
    """The page with every generated section written anew. An error where the page lacks a section."""
    for name, write in SECTIONS.items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->\n"
        parts = re.fullmatch(f"(.*{re.escape(begin)}).*?({re.escape(end)}.*)", page, flags=re.DOTALL)
        if parts is None:
            raise ValueError(f"docs/benchmarks.md lacks the lines {begin.strip()} and {end.strip()}")
        page = f"{parts[1]}\n{write(reports)}\n{parts[2]}"
    return page


def main():
    parser = argparse.ArgumentParser(prog="./run bench --write-docs", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    results, page = options.root / "bench" / "results", options.root / "docs" / "benchmarks.md"
    for path in options.files:
        report = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if report.get("bench") != "compare":
            sys.exit(f"write_docs.py: {path} is not from ./run bench PART --compare")
        results.mkdir(exist_ok=True)
        (results / f"{report['part']}.json").write_text(json.dumps(shown(report), indent=1) + "\n", encoding="utf-8")
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    before = page.read_text(encoding="utf-8")
    after = page_with(before, reports)
    if options.check:
        print("docs/benchmarks.md is " + ("as" if before == after else "not as") + " bench/results gives it")
        return int(before != after)
    page.write_text(after, encoding="utf-8")
    print(f"{page}: {len(reports)} reports")
    return 0


if __name__ == "__main__":
    sys.exit(main())
