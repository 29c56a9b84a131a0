"""docs/distributed.md's program and the other examples there run unchanged, and the picture of a plan is valid."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import runpy
import sys
import xml.etree.ElementTree as ET

import pytest
import torch
from ranks import group, run_ranks
from run_program import run_program

from shardwire.distributed.distribution import Pencil
from shardwire.distributed.fft import FFT

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def script(rank: int, path: str, folder: str) -> str:
    """The output of a script on this rank. The ranks are forked, with a default group: new interpreters would take most
    of the time.
    """
    os.chdir(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def test_the_page_runs(tmp_path: pathlib.Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (DOCS / "distributed.md").read_text(), flags=re.S)[0]
    (tmp_path / "arrays.py").write_text(code)
    said = run_ranks(4, script, str(tmp_path / "arrays.py"), str(tmp_path), default_group=True)[0]
    assert "C2C of [12, 10, 8]" in said and "2. exchange: " in said
    assert (tmp_path / "fft.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("name", "ranks", "says"), [("convolution", 3, "convolved 96 x 80 over 3 ranks"),
                                                     ("poisson", 4, "found the charge on 24^3 over 4 ranks")])
def test_the_examples_run(name: str, ranks: int, says: str, tmp_path: pathlib.Path) -> None:
    assert says in run_ranks(ranks, script, str(DOCS / "examples" / "distributed" / f"{name}.py"), str(tmp_path),
                             default_group=True)[0]


def picture(rank: int, path: str) -> None:
    operand = torch.zeros(Pencil((0, 1)).shape(rank, (8, 9, 6), 4), dtype=torch.float32)
    with FFT(operand, distribution=Pencil((0, 1)), group=group()) as f:
        f.plan()
        if rank == 0:
            f.plot(path, title="a <plan>")
            with pytest.raises(ValueError, match="drawn as .svg"):
                f.plot("plan.png")
            exchanges = [step["move"] for step in f.traffic()["steps"] if "move" in step]
            assert f.explain().count("exchange") == len(exchanges) and sum(len(each["edges"]) for each in exchanges) > 8


def test_the_picture(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "plan.svg")
    run_ranks(4, picture, path)
    root = ET.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a <plan>" in texts and sum(text.startswith("transform axes") for text in texts if text) == 2
    assert sum(text.endswith("between ranks") for text in texts if text) == 2


@pytest.mark.any_torch  # without --chunks: test_benches.py
def test_the_bench_runs_with_chunks(tmp_path: pathlib.Path) -> None:
    script = DOCS.parent / "bench" / "fft.py"
    done = run_program([sys.executable, str(script), "--only", "shardwire", "--shapes", "8x6x4", "--rounds", "1",
                        "--repeats", "2", "--ways", "shm,tcp", "--chunks", "auto,3"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for way in ("shm", "tcp"):
        for name, cut in ((f" shardwire:{way}, chunks auto ", "1; 1,1"), (f" shardwire:{way}, chunks 3 ", "3; 3,3")):
            (line,) = [line for line in done.stdout.splitlines() if name in line]
            assert line.endswith(f"exchanges in {cut} chunks")
    assert done.stdout.count(" limit ") == 1
