"""The record of one run of a bench: what `--json FILE` of each part writes, and what bench/write_docs.py shows.

A record is a dict: bench ("record"), part, the place and the day (`WHERE`), command, tables, missing (the reason of
each contestant that took no part), verdict (the faults that the part found, only of parts that look for faults; empty:
none), and whatever else the part writes for other readers (bench/pair.py). A table is what `table()` makes.
bench/compare.py writes a form of its own with the samples of each cell, and has the same place and day.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOAD_BEFORE = os.getloadavg()[0]  # benches import this file before they begin
MAINS = ("refs/heads/main", "refs/remotes/*/main")
PLACE = {"cpu": str, "cores": int, "kernel": str, "load_before": (int, float, type(None)), "date": str, "commit": str,
         "changed": bool}


def git(*words):
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True,
                              check=False).stdout.strip()
    except OSError:
        return ""  # a machine without git


def cpu_name():
    """Processors of several generations have one name in virtual machines: family and model distinguish them."""
    facts = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    if "model name" not in facts:
        return platform.machine()
    more = f" (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else ""
    return facts["model name"] + more


def torch_version():
    """Of this interpreter's torch, which the processes that are measured import; "" without one."""
    try:
        return importlib.metadata.version("torch").removesuffix("+gitunknown")
    except importlib.metadata.PackageNotFoundError:
        return ""


def machine():
    """The place and the day, for a page with the figures."""
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(), "load_before": LOAD_BEFORE,
            "torch": torch_version(), "date": datetime.date.today().isoformat(),
            "commit": git("rev-parse", "--short", "HEAD"),
            # Results of the parts before are no change of what is measured.
            "changed": bool(git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/bench/results",
                                ":!/docs/benchmarks.md"))}


WHERE = machine()  # before the run: an hour later HEAD may be another commit, and the day another day


def warn_of_commit():
    """A commit outside main's history is lost to others when the clone's commits are rebased."""
    if git("for-each-ref", *MAINS) and not git("for-each-ref", "--contains", WHERE["commit"], *MAINS):
        print(f"record.py: commit {WHERE['commit']} is not in main's history: push the commit before the result",
              file=sys.stderr)


def table(title, labels, cells, ours=(), peers=(), more_is_better=False):
    """A table from `cells`: {values of the labels: {column: figure}}. `title` says what is measured, in which unit.
    `ours` and `peers`: the columns of shardwire's ways and of the programs that they compete with.
    """
    columns = list(dict.fromkeys(name for row in cells.values() for name in row))
    return {"title": title, "labels": list(labels), "columns": columns,
            "rows": [[*key, *(row.get(name) for name in columns)] for key, row in cells.items()],
            "ours": [name for name in columns if name in ours], "peers": [name for name in columns if name in peers],
            "more_is_better": more_is_better}


def printed(title, rows):
    """A table from rows of text, the head first, as a campaign prints them."""
    return {"title": title, "labels": [], "columns": rows[0], "rows": rows[1:], "ours": [], "peers": []}


MOST_FAULTS = 10  # of a verdict in a record


def write(path, part, tables, missing=None, called="", verdict=None, **more):
    """`called`: the name by which `./run bench` knows the part, where this is another one."""
    words = list(sys.argv[1:])
    for option in ("--json", "--program"):  # of the run, not of the measurement
        if option in words:
            del words[words.index(option):words.index(option) + 2]
    warn_of_commit()
    made = {"bench": "record", "part": part, **WHERE, "tables": tables, "missing": missing or {},
            "command": f"./run bench {shlex.join([called or part, *words])}", **more}
    if verdict is not None:
        left_out = len(verdict) - MOST_FAULTS
        made["verdict"] = verdict[:MOST_FAULTS] + ([f"{left_out} more"] if left_out > 0 else [])
    pathlib.Path(path).write_text(json.dumps(check(made, path), default=str) + "\n", encoding="utf-8")


def check(record, path):
    """The record; a ValueError that names the file and the mistake where the record is none."""
    def require(fits, what):
        if not fits:
            raise ValueError(f"{path} is no result of a bench: {what}. ./run bench PART --json FILE writes one")

    require(isinstance(record, dict) and record.get("bench") in ("record", "compare"),
            '"bench" is neither "record" nor "compare"')
    for name, kind in {**PLACE, "part": str, "command": str, "missing": dict}.items():
        require(isinstance(record.get(name), kind), f'"{name}" is missing or of another type')
    require(re.fullmatch(r"[a-z][a-z0-9-]*", record["part"]), f'"part" is {record["part"]!r}')
    verdict = record.get("verdict", [])
    require(isinstance(verdict, list) and all(isinstance(each, str) for each in verdict),
            '"verdict" is no list of texts')
    require(isinstance(record.get("cells" if record["bench"] == "compare" else "tables"), list), "there are no tables")
    for each in record.get("tables", []):
        require(isinstance(each, dict) and {"title", "labels", "columns", "rows", "ours", "peers"} <= each.keys(),
                "a table lacks a part")
        width = len(each["labels"]) + len(each["columns"])
        require(all(len(row) == width for row in each["rows"]), f'a row of "{each["title"]}" has not {width} cells')
        require({*each["ours"], *each["peers"]} <= {*each["columns"]}, f'"{each["title"]}" names a missing column')
    return record


def read(path):
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no result of a bench: {error}") from None
    return check(found, path)


def slug(cpu):
    """The folder of a CPU's results: intel-xeon-processor for Intel(R) Xeon(R) Processor."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((?:r|tm)\)", "", cpu.lower())).strip("-")
