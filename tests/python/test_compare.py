"""The tools that compare benches: bench/compare.py and bench/write_docs.py, on fixed figures and on programs that
only pretend to measure. The C++ tests run compare.py on real programs (bench/bench.cmake).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import write_docs
from peers import plot, table

# A peer that writes the settings' sizes as times: of ordinary tensors twice as long.
PRETENDED = """#!{python}
import json, sys
way, ranks, settings = sys.argv[1], int(sys.argv[2]), json.load(open(sys.argv[3]))
cells = [dict(operation=name, size=size, bytes=size, calls=1, us=[size * (2.0 if way == "ordinary" else 1.0)] * 3)
         for name in settings["operations"] for size in settings["sizes"]]
json.dump(dict(version="none", ranks=ranks, cells=cells, lacks=[]), open(settings["results"], "w"))
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("{python}", sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


def result(times: dict[str, list[float]], ranks: int = 2) -> dict[str, Any]:
    return {"version": "1", "ranks": ranks, "lacks": [], "cells": [
        {"operation": name, "size": 64, "bytes": 64, "calls": 1, "us": us} for name, us in times.items()]}


ROUNDS = [("heap", result({"all_reduce": [1.0, 2.0, 3.0]})), ("heap", result({"all_reduce": [4.0, 5.0]})),
          ("ordinary", result({"all_reduce": [6.0], "memcpy": [0.5] * 9})), ("mpich", result({"all_reduce": [2.0]})),
          ("gloo", result({"all_reduce": [12.0]}))]


def test_samples_of_all_rounds_become_quantiles() -> None:
    heap = table.cells_of(ROUNDS)[0]
    assert (heap["by"], heap["n"], heap["p50_us"], heap["p99_us"]) == ("heap", 5, 3.0, 5.0)
    assert heap["rounds_us"] == [2.0, 4.5]
    assert table.quantile(list(range(200)), 0.99) == 198


def test_ratios_are_to_the_fastest_peer_and_to_memcpy() -> None:
    cells = table.cells_of(ROUNDS)
    row = table.rows_of(cells)[2, "all_reduce"][64]
    best = table.best_peer(row)
    assert best is not None and best["by"] == "mpich"
    assert table.ratios(row, table.memcpy_of(cells)) == {"heap": (1.5, 6.0), "ordinary": (3.0, 12.0)}
    line = table.text_table(cells, ["heap", "ordinary", "mpich", "gloo"])[-1].split()
    assert line == "64 | 3.00 5.00 | 6.00 6.00 | 2.00 2.00 | 12.0 12.0 | 1.50 6.00 | 3.00 12.0 | mpich".split()


def test_without_peers_there_is_no_ratio() -> None:
    row = table.rows_of(table.cells_of(ROUNDS[:2]))[2, "all_reduce"][64]
    assert table.ratios(row, {}) == {"heap": (None, None)}


def compare(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    program(tmp_path / "bench" / "shardwire_peer", PRETENDED)
    command = [sys.executable, "-B", BENCH / "compare.py", "collectives", "--build", tmp_path, "--peers",
               tmp_path / "peers", "--rounds", "2", "-n", "2", "--only", "all_reduce", "--max-bytes", "16", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, "PATH": str(tmp_path)})


def test_a_missing_peer_is_named_and_the_others_take_turns(tmp_path: Path) -> None:
    done = compare(tmp_path, "--compare", "openmpi", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "missing: openmpi: there is no mpicc or no mpirun" in done.stderr
    turns = [line.rpartition(": ")[2] for line in done.stderr.splitlines() if "round" in line]
    assert turns == ["heap", "ordinary", "ordinary", "heap"]
    report = json.loads((tmp_path / "out.json").read_text())
    assert list(report["missing"]) == ["openmpi"]
    assert [(cell["by"], cell["size"], cell["p50_us"]) for cell in report["cells"]
            if cell["operation"] == "all_reduce"] == [("heap", 4, 4), ("heap", 16, 16), ("ordinary", 4, 8),
                                                      ("ordinary", 16, 32)]


def test_an_unknown_peer_is_an_error(tmp_path: Path) -> None:
    done = compare(tmp_path, "--compare", "lam")
    assert done.returncode == 2 and "there is no peer lam; there are openmpi" in done.stderr


@pytest.mark.any_torch
def test_gloo_runs_in_the_loop(tmp_path: Path) -> None:
    library, settings = tmp_path / "libpeer_loop.so", tmp_path / "settings.json"
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-shared", "-fPIC", f"-I{BENCH.parent}",
                    BENCH / "peers" / "loop.cc", "-o", library], check=True, timeout=120)
    (tmp_path / "shared").touch()
    operations = ["all_reduce", "broadcast", "all_gather", "all_to_all", "send_recv", "barrier", "reshape", "memcpy"]
    settings.write_text(json.dumps(
        {"operations": operations, "sizes": [4, 64], "iterations": 2, "warmup": 1, "calls_in_row": 2, "row_up_to": 16,
         "cell_seconds": 60, "rewrite": True, "pin": False, "shared": str(tmp_path / "shared"),
         "results": str(tmp_path / "results")}))
    done = subprocess.run([sys.executable, "-B", BENCH / "peers" / "gloo_peer.py", "3", settings, library],
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results").read_text())
    assert found["lacks"] == ["reshape"] and "an empty call takes" in found["version"]
    cells = {(cell["operation"], cell["bytes"]): cell["calls"] for cell in found["cells"]}
    # Three ranks share 12 bytes at least; the parts of 64 bytes are 20 bytes each. Short calls come in rows.
    assert cells == {("all_reduce", 4): 2, ("all_reduce", 64): 1, ("broadcast", 4): 2, ("broadcast", 64): 1,
                     ("all_gather", 12): 2, ("all_gather", 60): 1, ("all_to_all", 12): 2, ("all_to_all", 60): 1,
                     ("send_recv", 4): 2, ("send_recv", 64): 1, ("barrier", 0): 2, ("memcpy", 4): 2, ("memcpy", 64): 1}
    assert all(len(cell["us"]) == 2 for cell in found["cells"])


def test_plots_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "python3-matplotlib" in plot.draw(table.cells_of(ROUNDS), ["heap"], tmp_path)


def test_plots_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot.draw(table.cells_of(ROUNDS), ["heap", "ordinary", "mpich"], tmp_path).startswith("1 plots")
    assert "mpich" in (tmp_path / "all_reduce-2.svg").read_text() or (tmp_path / "all_reduce-2.svg").stat().st_size


# --write-docs


REPORT = {"bench": "compare", "part": "collectives", "cpu": "Z80", "cores": 2, "kernel": "6.1", "load_before": 0.0,
          "date": "2026-11-25", "commit": "abc1234", "changed": False, "command": "./run bench collectives",
          "ranks": [2], "rounds": 2, "iterations": 3, "calls_in_row": 20, "row_up_to": 4096, "rewritten": True,
          "pinned": [2], "by": {"heap": "shardwire", "mpich": "MPICH 5"}, "missing": {"gloo": "no torch"},
          "lacks": {"mpich": ["reshape"]}}


def docs(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-B", BENCH / "write_docs.py", "--root", tmp_path, *words],
                          capture_output=True, text=True, check=False, timeout=60)


def test_the_page_is_written_from_json(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    (tmp_path / "bench").mkdir()
    page.write_text("before\n<!-- generated: beside the MPIs -->\nold\n<!-- end of beside the MPIs -->\nafter\n")
    cells = [{**cell, "size": size} for cell in table.cells_of(ROUNDS) for size in (64, 256)]
    (tmp_path / "run.json").write_text(json.dumps({**REPORT, "cells": cells}))
    assert docs(tmp_path, "--check").returncode == 1
    done = docs(tmp_path, str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("-->\nafter\n") and "old" not in text
    assert "**collectives**, 2026-11-25, commit abc1234: Z80, 2 cores" in text
    assert "n = 1 to 5 samples in 2 rounds" in " ".join(text.split()) and "Not measured: gloo (no torch)." in text
    assert "| all_reduce | 64 B | 3.00 (5.00) | 6.00 (6.00) | 2.00 (2.00) | 12.0 (12.0) | 1.50 | 3.00 | MPICH |" in text
    assert text.count("| all_reduce |") == 1  # one of two sizes is shown
    assert docs(tmp_path, "--check").returncode == 0


def test_the_page_of_this_tree_is_as_its_results_give_it() -> None:
    assert docs(BENCH.parent, "--check").returncode == 0


def test_a_page_without_the_section_is_an_error() -> None:
    with pytest.raises(ValueError, match="lacks the lines <!-- generated: beside the MPIs -->"):
        write_docs.page_with("nothing", [])
