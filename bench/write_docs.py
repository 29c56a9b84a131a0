"""Writes docs/benchmarks.md from the results of benches: `./run bench --write-docs [FILE...]`.

FILE is written by `./run bench PART --json FILE`, and replaces bench/results/CPU/PART.json; `./run bench --record` runs
the parts and does the same. The page shows the newest result of each CPU, from all files in bench/results. Only the
text between `<!-- generated: PART -->` and `<!-- end of PART -->` changes. With --check nothing is written, and the
exit status is 1 when the page is not what the files give.
"""

import argparse
import json
import pathlib
import re
import sys
import textwrap

import record
from parts import ALL
from peers import table

SIZES = (4, 256, 4 << 10, 64 << 10, 1 << 20, 64 << 20)
COLUMN = {"heap": "shardwire, heap", "ordinary": "shardwire, ordinary", "openmpi": "Open MPI", "openmpi5": "Open MPI 5",
          "intelmpi": "Intel MPI", "mpich": "MPICH", "gloo": "gloo"}
PLOTTED = ("move", "collectives", "torch-collectives", "groups")  # drawn by docs/site/plots.py
NOT_WON = "not won"
BEHIND = 1.05  # smaller differences are noise
KEPT = {"bench", "part", *record.PLACE, "torch", "command", "tables", "missing", "note", "failed", "verdict"}


def shown(report):
    """The result without what the page leaves out."""
    if report["bench"] == "record":
        tables = [{**each, "rows": [[rounded(cell) for cell in row] for row in each["rows"]]}
                  for each in report["tables"]]
        return {**{name: value for name, value in report.items() if name in KEPT}, "tables": tables}
    cells = [{key: rounded(value) for key, value in cell.items() if key != "rounds_us"} for cell in report["cells"]
             if cell["size"] in SIZES]
    return {**report, "cells": cells}


def rounded(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(words_of, row)) + " |" for row in lines)


def words_of(cell):
    return table.number(cell) if cell is None or isinstance(cell, float) else str(cell)


def wrapped(text, indent=""):
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
    cells = [cell for cell in report["cells"] if cell["ranks"] == ranks]
    names = [name for name in COLUMN if any(cell["by"] == name for cell in cells)]
    memcpy = table.memcpy_of(cells)
    head = ["operation", "bytes", *(COLUMN[name] for name in names), "heap / best", "ordinary / best", "best peer",
            "heap / memcpy", "ordinary / memcpy"]
    return markdown(head, [row for (_, operation), by_size in table.rows_of(cells).items()
                           for row in operation_rows(operation, by_size, names, memcpy)])


def lacks_words(report, by):
    return f"; has no {', '.join(report['lacks'][by])}" if report["lacks"].get(by) else ""


def comparison(report):
    """Method, versions, and a table for each number of ranks of a result of bench/compare.py."""
    samples = sorted({cell["n"] for cell in report["cells"] if cell["operation"] != table.YARDSTICK})
    yield wrapped(
        f"Times in us: p50 and, in brackets, p99 of the slowest rank. n = {samples[0]} to {samples[-1]} samples in "
        f"{report['rounds']} rounds, the programs in turns. Up to {table.size_words(report['row_up_to'])} a sample is "
        f"the mean of {report['calls_in_row']} calls. Buffers are {'' if report['rewritten'] else 'not '}rewritten "
        "before each sample. Ratios below 1 are faster.")
    yield "\n".join(wrapped(f"* {COLUMN[by]}: {version.split(', package')[0]}{lacks_words(report, by)}", "  ")
                    for by, version in report["by"].items())
    for ranks in report["ranks"]:
        yield f"{ranks} ranks, {'each on a core of its own' if ranks in report['pinned'] else 'not pinned to cores'}:"
        yield operations_table(report, ranks)


def place_words(report):
    facts = [report["date"], f"commit {report['commit']}" if report["commit"] else "",
             "uncommitted changes" if report["changed"] else "", f"{report['cores']} cores",
             f"Linux {report['kernel']}" if report["kernel"] else "",
             f"torch {report['torch']}" if report.get("torch") else "",
             f"load {report['load_before']:.1f} before" if report["load_before"] is not None else ""]
    return ", ".join(filter(None, facts))


def paragraphs(report):
    """CPU and day, command, failures, and the tables of one result."""
    yield wrapped(f"**{report['cpu']}**, {place_words(report)}:")
    yield f"```sh\n{report['command']}\n```"
    if report.get("note"):
        yield wrapped(report["note"])
    if "failed" in report:
        failed = report["failed"]
        yield wrapped(f"The run of {failed['date']} (commit {failed['commit']}) failed: {failed['why']}.")
    for name, why in report["missing"].items():
        yield wrapped(f"Not measured: {COLUMN.get(name, name)} ({why}).")
    if "verdict" in report:
        yield wrapped(f"Faults found: {'; '.join(report['verdict']) or 'none'}.")
    if report["bench"] == "compare":
        yield from comparison(report)
    for each in report.get("tables", []):
        yield wrapped(f"{each['title']}:")
        yield markdown([*each["labels"], *each["columns"]], each["rows"])


def newest_first(reports):
    return sorted(reports, key=lambda report: report["date"], reverse=True)


def part_section(name, reports):
    mine = newest_first(report for report in reports if report["part"] == name)
    if not mine:
        return f"No result is recorded: `./run bench --record {name}` measures and writes this section.\n"
    text = "\n\n".join("\n\n".join(paragraphs(report)) for report in mine)
    return (re.sub(r"^\|", f"<!-- plot: {name} -->\n|", text, count=1, flags=re.MULTILINE) if name in PLOTTED
            else text) + "\n"


def compared(report):
    """(group, label, our way, ours as a multiple of the best peer's time) of each row with a peer."""
    for (ranks, operation), rows in table.rows_of(report.get("cells", [])).items():
        for row in rows.values():
            size = next(iter(row.values()))["bytes"]
            label = table.size_words(size) if size else ""
            for by, (ratio, _) in table.ratios(row, {}).items():
                yield f"{ranks} ranks, {operation}", label, by, ratio
    for each in report.get("tables", []):
        for row in each["rows"]:
            figures = {name: value for name, value in zip(each["columns"], row[len(each["labels"]):])
                       if isinstance(value, (int, float)) and value > 0}
            peers = [figures[name] for name in each["peers"] if name in figures]
            for name in each["ours"]:
                if peers and name in figures:
                    ratio = max(peers) / figures[name] if each.get("more_is_better") else figures[name] / min(peers)
                    yield each["title"], label_of(each, row), name, ratio


def label_of(each, row):
    """The labels of a row; a number has the name of its column before."""
    return ", ".join(f"{name} {value}" if re.fullmatch(r"\d+", str(value)) else str(value)
                     for name, value in zip(each["labels"], row))


def not_won(reports):
    """For each CPU the rows that are behind the best peer."""
    text = []
    for cpu in sorted({report["cpu"] for report in reports}):
        rows = {}
        for report in sorted((each for each in reports if each["cpu"] == cpu), key=lambda each: each["part"]):
            for group, label, way, ratio in compared(report):
                if ratio is not None and ratio > BEHIND:
                    rows.setdefault((report["part"], group, way), []).append(
                        f"{label} {table.number(ratio)}".strip())
        if rows:
            head = ["part", "measured", "shardwire's way", "time as a multiple of the best peer's"]
            text += [f"**{cpu}**:", markdown(head, [[*key, ", ".join(found)] for key, found in rows.items()])]
    return "\n\n".join(text or ["No row of a recorded result is behind a peer."]) + "\n"


def page_with(page, reports, parts=ALL):
    """The page with every generated section written anew. An error where the page lacks a part, or has another one."""
    for name in re.findall(r"<!-- generated: (.*?) -->", page):
        if name not in (*parts, NOT_WON):
            raise ValueError(f"docs/benchmarks.md has a section {name!r}; there are {', '.join(parts)} and {NOT_WON}")
    for name in (*parts, NOT_WON):
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->\n"
        cut = re.fullmatch(f"(.*{re.escape(begin)}).*?({re.escape(end)}.*)", page, flags=re.DOTALL)
        if cut is None:
            raise ValueError(f"docs/benchmarks.md lacks the lines {begin.strip()} and {end.strip()}")
        page = f"{cut[1]}\n{not_won(reports) if name == NOT_WON else part_section(name, reports)}\n{cut[2]}"
    return page


def path_of(root, cpu, part):
    return root / "bench" / "results" / record.slug(cpu) / f"{part}.json"


def store(report, root):
    path = path_of(root, report["cpu"], report["part"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(laid_out(shown(report)) + "\n", encoding="utf-8")


def laid_out(value, indent=""):
    """JSON with one line for each row, so that a change of the file shows what changed."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(each, (dict, list)) for each in inner):
        return json.dumps(value)
    items = ([f"{json.dumps(name)}: {laid_out(each, indent + ' ')}" for name, each in value.items()]
             if isinstance(value, dict) else [laid_out(each, indent + " ") for each in value])
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(f"{indent} {item}" for item in items) + f"\n{indent}{end}"


def read(path):
    """A result of a part that the page has."""
    found = record.read(path)
    if found["part"] not in ALL:
        raise ValueError(f"{path} is of the part {found['part']!r}, and docs/benchmarks.md has {', '.join(ALL)}")
    return found


def written(root):
    """The page as it is, the page as the results give it, and the number of results."""
    reports = [read(path) for path in sorted((root / "bench" / "results").glob("*/*.json"))]
    page = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    return page, page_with(page, reports), len(reports)


def write_page(root):
    _, after, count = written(root)
    (root / "docs" / "benchmarks.md").write_text(after, encoding="utf-8")
    return count


def main():
    parser = argparse.ArgumentParser(prog="./run bench --write-docs", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=record.ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        for report in [read(path) for path in options.files]:
            store(report, options.root)
        if not options.check:
            print(f"docs/benchmarks.md: {write_page(options.root)} results")
            return 0
        before, after, _ = written(options.root)
    except ValueError as error:
        sys.exit(f"write_docs.py: {error}")
    print("docs/benchmarks.md is " + ("as" if before == after else "not as") + " bench/results gives it")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
