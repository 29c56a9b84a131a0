"""./run frameworks jobs: the comparison itself, and on torch 2.5 and later one of the jobs, which needs torch alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from conftest import TORCH

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "drop_in"))
import compare  # noqa: E402

DDP = next(job for job in compare.JOBS if job.name == "ddp")


def report(backend: str, **weights: torch.Tensor) -> dict:
    return {"weights": weights, "seconds": [0.1, 0.2], "backend": backend}


def test_weights_are_compared_bit_by_bit() -> None:
    nan, zero = torch.tensor([1.0, float("nan")]), torch.tensor([0.0, 2.0])
    runs = [[report("torch", w=nan, v=zero)] * 2, [report("shardwire", w=nan.clone(), v=zero.clone())] * 2]
    assert compare.difference(*runs) == ""
    for other, where in ((report("shardwire", w=nan, v=-zero), "rank 1: v"),
                         (report("shardwire", w=nan, v=zero.double()), "rank 1: v"),
                         (report("shardwire", w=nan), "rank 1: the names of the weights")):
        assert compare.difference(runs[0], [runs[1][0], other]) == where


def test_a_run_over_the_wrong_backend_or_without_a_rank_or_weights_is_none(tmp_path: Path) -> None:
    def given(*reports: dict) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for rank, one in enumerate(reports):
            torch.save(one, folder / f"rank{rank}.pt")
        return folder

    ours, theirs = report("shardwire", w=torch.ones(2)), report("torch", w=torch.ones(2))
    assert [one["backend"] for one in compare.read(DDP, "shardwire", given(ours, ours))] == ["shardwire"] * 2
    for backend, reports, text in (("shardwire", [ours, theirs], "the group was torch's"),
                                   ("gloo", [theirs, ours], "the group was shardwire's"),
                                   ("gloo", [theirs], "rank 1 left no report"),
                                   ("gloo", [theirs, report("torch")], "rank 1 reports no weights")):
        with pytest.raises(compare.JobFailed, match=text):
            compare.read(DDP, backend, given(*reports))


def test_a_job_that_fails_is_reported_and_one_whose_package_is_missing(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = compare.Job("broken", "broken", "no_such_program.py", torchrun=False)
    lacking = compare.Job("lacking", "lacking", "with_ddp.py", packages=("no-such-package-as-this",))
    monkeypatch.setattr(compare, "JOBS", [broken, lacking])
    assert compare.main(["--runs", "1", "--steps", "1"]) == 1
    said = capsys.readouterr().out
    assert ("broken over gloo ended with status 2" in said
            and "lacking: no-such-package-as-this is not installed" in said and "0 of 2 jobs ran, 2 failures" in said)


@pytest.mark.skipif(TORCH < (2, 5), reason="torch loads no backends by itself before 2.5")
def test_ddp_by_torchrun_gives_the_same_weights(capsys: pytest.CaptureFixture[str]) -> None:
    if TORCH == (2, 6):
        pytest.skip("Debian's torchrun does not start")
    assert compare.main(["ddp", "--runs", "1", "--steps", "2", "--limit", "120"]) == 0, capsys.readouterr().out
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| DDP |")]
    assert len(rows) == 1 and rows[0].endswith("| equal |"), rows
