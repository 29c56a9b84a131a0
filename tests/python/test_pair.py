"""bench/pair.py, on fixed figures and on trees that only pretend to measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import pair


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("{python}", sys.executable), encoding="utf-8")
    path.chmod(0o755)


def test_figures_that_are_worse_are_listed_with_their_spread() -> None:
    rounds = [({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 1.2, "b": 1.5, "c": 2.0}),
              ({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 1.1, "b": 0.9, "c": 1.0}),
              ({"a": 1.0, "b": 1.0}, {"a": 1.3, "b": 1.2})]
    rows = pair.compare(rounds)
    assert [(row[0], row[3]) for row in rows] == [("a", 1.2), ("b", 1.2)]  # c is not in every round
    said = "\n".join(pair.lines_of(rows, "abc1234"))
    assert "2 of 2 figures are worse by more than 5 %, 0 are better by as much; the median" in said
    assert "1.100 to 1.300: worse in every round, by chance 1 in 8" in said
    assert "0.900 to 1.500: noise: better in 1 rounds" in said


def test_a_count_that_was_zero_has_a_ratio() -> None:
    rows = pair.compare([({"allocations": 0, "none": 0}, {"allocations": 2, "none": 0})])
    assert [(row[0], row[3]) for row in rows] == [("allocations", float("inf")), ("none", 1.0)]
    assert "inf to inf: worse in every round" in pair.lines_of(rows, "abc1234")[-1]


def test_figures_of_each_kind_of_json() -> None:
    assert pair.figures({"cases": {"heap": {"bytes": 4, "us": [1, 3, 2]}}, "counts": {"allocations": 0}}) == {
        "heap": 2, "allocations": 0}
    assert pair.figures({"rows": [{"collective": "reduce", "bytes": 4, "heap": 1.5, "mpi": 2.5}],
                         "latency": {"mpi": {"p50_us": 3.5, "p99_us": 9}}}) == {
        "reduce 4 heap": 1.5, "reduce 4 mpi": 2.5, "latency mpi p50": 3.5}
    assert pair.figures({"seconds": {"sync": {"heap": 0.5}}}) == {"sync heap": 0.5}
    assert pair.figures({"figures": {"init": 2.0}}) == {"init": 2.0}
    cell = {"ranks": 2, "operation": "all_reduce", "size": 64, "bytes": 64, "by": "heap", "p50_us": 2.0}
    assert pair.figures({"cells": [cell]}) == {"2 ranks all_reduce 64 heap": 2.0}


BENCH_OF_A_TREE = """#!{python}
import json, os, sys
if "--help" in sys.argv:
    print("usage: --json")
else:
    open(os.path.join(os.path.dirname(sys.argv[0]), "..", "turns"), "a").write(NAME)
    print("a line before")
    print(json.dumps(dict(rows=[dict(collective="reduce", bytes=4, heap=TIME)])))
"""


def test_the_trees_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    for name, time in (("A", "1.0"), ("B", "1.5")):
        program(tmp_path / name / "run", BENCH_OF_A_TREE.replace("NAME", repr(name)).replace("TIME", time))
    monkeypatch.setattr(pair, "checkout", lambda commit: (tmp_path / "A", commit))
    monkeypatch.setattr(pair, "ROOT", tmp_path / "B")
    monkeypatch.setattr(sys, "argv", ["pair.py", "abc1234", "collectives", "-n", "2", "--pair-rounds", "3",
                                      "--pair-json", str(tmp_path / "out.json")])
    assert pair.main() == 0
    assert (tmp_path / "turns").read_text() == "ABBAAB"
    assert "./run bench collectives -n 2, 3 rounds" in capsys.readouterr().out
    figure = json.loads((tmp_path / "out.json").read_text())["figures"][0]
    assert figure == {"figure": "reduce 4 heap", "abc1234": 1.0, "working tree": 1.5, "ratio": 1.5,
                      "rounds": [1.5, 1.5, 1.5]}


def test_figures_that_a_side_lost_are_listed() -> None:
    both = {"a": 1.0, "b": 1.0}
    assert pair.lost([(both, both), (both, both)]) == ([], [])
    assert pair.lost([({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0})]) == (["c"], ["b"])
    assert pair.lost([(both, both), (both, {"a": 1.0})]) == ([], ["b"])
    assert pair.lost([(both, both), ({"a": 1.0}, {"a": 1.0})]) == ([], [])  # no side has b in every round


def test_a_working_tree_that_lost_a_figure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("A", "B"):
        text = BENCH_OF_A_TREE.replace("NAME", repr(name)).replace("TIME", "1.0")
        program(tmp_path / name / "run", text.replace("heap=", "mpi=") if name == "B" else text)
    monkeypatch.setattr(pair, "checkout", lambda commit: (tmp_path / "A", commit))
    monkeypatch.setattr(pair, "ROOT", tmp_path / "B")
    monkeypatch.setattr(sys, "argv", ["pair.py", "abc1234", "collectives", "--pair-rounds", "1"])
    assert pair.main() == 1
    said = capsys.readouterr().out
    assert "not in every round of abc1234: reduce 4 mpi\nnot in every round of the working tree: reduce 4 heap" in said


def test_a_commit_without_json_is_an_error(tmp_path: Path) -> None:
    program(tmp_path / "run", "#!{python}\nprint('usage')\n")
    with pytest.raises(SystemExit, match="of abc1234 has no --json: without JSON no figures can be compared"):
        pair.prepare(tmp_path, "abc1234", "groups", [])
