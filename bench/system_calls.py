"""The section of docs/faults.md about failing system calls, from what tests/backend/faults has reported.

    SHARDWIRE_FAULTS_REPORT=FILE build/cpp/tests/tests_backend_faults
    ./run bench faults --write-docs --system-calls FILE

Each line of FILE is one rank of one case: the call, the failure, how often, when, the transport, the rank, the outcome.
Without FILE the section of the page stays as it is.
"""

from __future__ import annotations

from pathlib import Path

HEAD = "## System calls that fail"
FAULTY = "1"
TRANSPORTS = ("shm", "tcp", "tls")
INTRODUCTION = (
    "`tests/backend/faults` lets system calls of rank 1 of three ranks fail: a part of the calls, the first calls, or "
    "all but the first. Every rank has the right bytes (*success*), or an error within 20 s. The error of ranks 0 and "
    "2 names rank 1, and the error of rank 1 has the kernel's reason. Where the ranks differ, a cell has the outcome "
    "of rank 1 first.")


def cell_of(outcomes: dict[str, str]) -> str:
    """The outcomes by rank in one cell."""
    others = " or ".join(sorted({said for rank, said in outcomes.items() if rank != FAULTY}))
    mine = outcomes.get(FAULTY, "none")
    return mine if mine == others else f"{mine}; others: {others}"


def section_of(report: Path) -> list[str]:
    """Lines of Markdown."""
    cases: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        *case, transport, rank, outcome = line.split("\t")
        cases.setdefault(tuple(case), {}).setdefault(transport, {})[rank] = outcome
    lines = ["| system call | failure | calls | when | shm | tcp | encrypted tcp |", "|---" * 7 + "|"]
    for (call, *rest), found in cases.items():
        calls = ", ".join(f"`{each}`" for each in call.split(", "))
        cells = [cell_of(found[way]) if way in found else "-" for way in TRANSPORTS]
        lines.append(f"| {' | '.join([calls, *rest, *cells])} |")
    return lines


def kept_section(page: Path) -> list[str]:
    """The table of the page as it is; empty if the page has none."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    _, _, section = text.partition(HEAD)
    return [line for line in section.splitlines() if line.startswith("|")]
