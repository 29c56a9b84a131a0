"""The tools that compare benches and write their page: bench/compare.py, record.py, record_parts.py and write_docs.py,
on fixed figures and on pretended programs. The C++ tests run compare.py on real programs
(bench/bench.cmake).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import parts
import processes
import record
import write_docs
from peers import plot, table

# A pretended peer, whose times are the sizes: of ordinary tensors twice as long.
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


# As mpirun does: each rank leads a process group in the program's session.
STARTS_RANKS = """
import os, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setpgid(0, 0)
        break
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
while True:
    time.sleep(60)
"""
BENCH_OF_RANKS = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background, signals are ignored
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
sys.path.insert(0, {str(BENCH)!r})
import processes
processes.run([sys.executable, "-c", {STARTS_RANKS!r}, sys.argv[1]])
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_bench_that_is_cut_off_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    bench = subprocess.Popen([sys.executable, "-B", "-c", BENCH_OF_RANKS, tmp_path], stderr=subprocess.DEVNULL)
    try:
        while len(pids := [int(path.name) for path in tmp_path.iterdir()]) < 3:
            assert bench.poll() is None, "the bench ended before the signal"
            time.sleep(0.01)
        assert all(map(lives, pids))
        bench.send_signal(number)
        assert bench.wait(60) == (-signal.SIGINT if number == signal.SIGINT else 128 + number)
        assert not any(map(lives, pids)), "a process of the bench was left"
    finally:
        bench.kill()
        bench.wait()
        for path in tmp_path.iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGKILL)


def test_a_program_that_takes_too_long_is_ended_with_its_ranks(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run([sys.executable, "-c", STARTS_RANKS, str(tmp_path)], timeout=1)
    assert not any(lives(int(path.name)) for path in tmp_path.iterdir())


def docs(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-B", BENCH / "write_docs.py", "--root", tmp_path, *words],
                          capture_output=True, text=True, check=False, timeout=60)


def tree(tmp_path: Path) -> Path:
    """A page with all sections and old text in them."""
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text("before\n" + "".join(f"<!-- generated: {name} -->\nold\n<!-- end of {name} -->\n"
                                         for name in [*parts.ALL, write_docs.NOT_WON]) + "after\n")
    return page


def test_the_page_is_written_from_json(tmp_path: Path) -> None:
    page = tree(tmp_path)
    cells = [{**cell, "size": size} for cell in table.cells_of(ROUNDS) for size in (64, 256)]
    (tmp_path / "run.json").write_text(json.dumps({**REPORT, "cells": cells}))
    assert docs(tmp_path, "--check").returncode == 1
    done = docs(tmp_path, str(tmp_path / "run.json"))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("-->\nafter\n") and "old" not in text
    assert "**Z80**, 2026-11-25, commit abc1234, 2 cores" in text
    assert "n = 1 to 5 samples in 2 rounds" in " ".join(text.split()) and "Not measured: gloo (no torch)." in text
    assert "| all_reduce | 64 B | 3.00 (5.00) | 6.00 (6.00) | 2.00 (2.00) | 12.0 (12.0) | 1.50 | 3.00 | MPICH |" in text
    assert text.count("| all_reduce |") == 1  # one of two sizes is shown
    assert "| collectives | 2 ranks, all_reduce | heap | 64 B 1.50 |" in text  # not won
    assert docs(tmp_path, "--check").returncode == 0
    page.write_text(text.replace("3.00 (5.00)", "1.00 (5.00)"))
    done = docs(tmp_path, "--check")
    assert done.returncode == 1 and "docs/benchmarks.md is not as bench/results gives it" in done.stdout


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: dict[tuple[Any, ...], dict[str, float]],
            cpu: str = "Z80", missing: dict[str, str] | None = None, verdict: list[str] | None = None) -> str:
    """The path of a record as a bench writes it."""
    path = str(tmp_path / "groups.json")
    monkeypatch.setattr(sys, "argv", ["groups.py", "--rounds", "2", "--json", path])
    monkeypatch.setitem(record.WHERE, "cpu", cpu)
    made = record.table("Groups, ms", ["ranks", "call"], cells, ["shardwire"], ["gloo"])
    record.write(path, "groups", [made], missing, verdict=verdict, figures={"2 ranks init": 2.5})
    return path


def test_a_record_names_the_commit_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    before, asked = record.WHERE["commit"], []

    def git(*words: str) -> str:
        asked.append(words)
        return "" if "--contains" in words else "another commit meanwhile"
    monkeypatch.setattr(record, "git", git)
    assert record.read(written(tmp_path, monkeypatch, {(2, "init"): {"shardwire": 2.5}}))["commit"] == before
    assert ("for-each-ref", "--contains", before, *record.MAINS) in asked
    assert f"commit {before} is not in main's history" in capsys.readouterr().err


def test_a_record_comes_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tree(tmp_path)
    cells = {(2, "init"): {"shardwire": 2.5, "gloo": 2.0}, (8, "init"): {"shardwire": 3.0, "gloo": 300.0, "other": 1.0}}
    path = written(tmp_path, monkeypatch, cells, missing={"other": "needs a GPU"})
    assert record.read(path)["figures"] == {"2 ranks init": 2.5}  # for ./run bench --pair
    assert docs(tmp_path, path).returncode == 0
    text = page.read_text()
    assert "./run bench groups --rounds 2\n```" in text and "Not measured: other (needs a GPU)." in text
    assert ("Groups, ms:\n\n<!-- plot: groups -->\n| ranks | call | shardwire | gloo | other |\n"
            "| --- | --- | --- | --- | --- |\n"
            "| 2 | init | 2.50 | 2.00 | - |\n| 8 | init | 3.00 | 300.0 | 1.00 |\n") in text
    assert "| groups | Groups, ms | shardwire | ranks 2, init 1.25 |" in text and "ranks 8" not in text
    # The result of another CPU stands beside, and a newer one of this CPU replaces the older one.
    assert docs(tmp_path, written(tmp_path, monkeypatch, {(2, "init"): {"shardwire": 9.0}}, "6502")).returncode == 0
    assert docs(tmp_path, written(tmp_path, monkeypatch, {(2, "init"): {"shardwire": 7.0}})).returncode == 0
    text = page.read_text()
    assert "| 9.00 |" in text and "| 7.00 |" in text and "| 2.50 |" not in text
    assert text.count("<!-- plot: groups -->") == 1 and docs(tmp_path, "--check").returncode == 0


def test_rates_are_behind_when_they_are_lower() -> None:
    made = record.table("GB/s", ["entry"], {("a",): {"ours": 2.0, "theirs": 3.0}, ("b",): {"ours": 4.0, "theirs": 3.0}},
                        ["ours"], ["theirs"], more_is_better=True)
    assert [row[3] for row in write_docs.compared({"tables": [made]})] == [1.5, 0.75]


RECORD = {**REPORT, "bench": "record", "part": "groups", "tables": []}


@pytest.mark.parametrize(("text", "why"), [
    ("{", "Expecting property name"), ("[]", '"bench" is neither'),
    (json.dumps({**RECORD, "bench": "pair"}), '"bench" is neither'),
    (json.dumps({**RECORD, "cpu": None}), '"cpu" is missing or of another type'),
    (json.dumps({**RECORD, "verdict": "good"}), '"verdict" is no list of texts'),
    (json.dumps({**RECORD, "part": "clouds"}), "is of the part 'clouds', and docs/benchmarks.md has move, reshape"),
    (json.dumps({**RECORD, "part": "../x"}), "\"part\" is '../x'"),
    (json.dumps({**RECORD, "tables": [{"title": "a"}]}), "a table lacks a part"),
    (json.dumps({**RECORD, "tables": [{**record.table("a", ["b"], {(1,): {"c": 2}}), "rows": [[1]]}]}),
     'a row of "a" has not 2 cells')])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str, why: str) -> None:
    page = tree(tmp_path)
    before = page.read_text()
    (tmp_path / "broken.json").write_text(text)
    done = docs(tmp_path, str(tmp_path / "broken.json"))
    assert done.returncode == 1 and f"write_docs.py: {tmp_path}/broken.json is" in done.stderr and why in done.stderr
    assert page.read_text() == before and not (tmp_path / "bench").exists()


# ./run of a pretended tree: `groups` gives a result, everything else fails.
RUN = """#!{python}
import shutil, sys
if sys.argv[2] != "groups":
    sys.exit("no FFTW here")
shutil.copy("given.json", sys.argv[-1])
"""


def test_a_part_that_fails_is_on_the_page_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tree(tmp_path)
    program(tmp_path / "run", RUN)
    path = written(tmp_path, monkeypatch, {(2, "init"): {"shardwire": 2.5}}, record.cpu_name())
    os.rename(path, tmp_path / "given.json")
    for _ in range(2):  # the second time there are results before
        done = subprocess.run([sys.executable, "-B", BENCH / "record_parts.py", "--root", tmp_path, "fft,groups"],
                              capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1 and "1 of 2 parts measured" in done.stdout, done.stderr
        text = " ".join(page.read_text().split())
        assert text.count("failed: ended with 1, without a result: no FFTW here.") == 1
        assert f"./run {parts.ALL['groups']} ```" in text and "| 2 | init | 2.50 |" in text
    done = subprocess.run([sys.executable, "-B", BENCH / "record_parts.py", "--root", tmp_path, "none"],
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "there is no part none; there are move" in done.stderr


FAULTS = [f"rank {rank}: memory grew" for rank in range(12)]


@pytest.mark.parametrize(("verdict", "status", "said"), [
    (FAULTS, 0, "Faults found: rank 0: memory grew; "), (None, 1, "failed: ended with 1."),
    ([], 1, "failed: ended with 1.")])
def test_a_part_that_ends_with_an_error_has_a_result_only_with_its_faults(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: list[str] | None, status: int, said: str) -> None:
    page = tree(tmp_path)
    program(tmp_path / "run", RUN + "sys.exit(1)\n")
    path = written(tmp_path, monkeypatch, {(2, "init"): {"shardwire": 2.5}}, record.cpu_name(), verdict=verdict)
    os.rename(path, tmp_path / "given.json")
    done = subprocess.run([sys.executable, "-B", BENCH / "record_parts.py", "--root", tmp_path, "groups"],
                          capture_output=True, text=True, check=False, timeout=60)
    text = " ".join(page.read_text().split())
    assert done.returncode == status and said in text and ("| 2 | init | 2.50 |" in text) == bool(verdict), text
    assert not verdict or "rank 9: memory grew; 2 more." in text


def test_the_page_of_this_tree_is_as_its_results_give_it() -> None:
    assert docs(BENCH.parent, "--check").returncode == 0


def test_a_page_without_a_section_or_with_another_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="lacks the lines <!-- generated: move -->"):
        write_docs.page_with("nothing", [])
    with pytest.raises(ValueError, match="has a section 'beside the MPIs'; there are move"):
        write_docs.page_with("<!-- generated: beside the MPIs -->", [])
