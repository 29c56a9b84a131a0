"""A short, repeatable cut of bench/kills.py and bench/mismatches.py: no rank may hang, no result may be wrong, and
every error must name the cause. And some seconds of bench/soak.py and bench/elastic.py.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import elastic
import kills
import mismatches
import record
import soak
from campaigns import pauses
from campaigns import soak_kinds
from campaigns.mismatch_kinds import KINDS
from campaigns.trial import READY, Rank, Trial

pytestmark = pytest.mark.any_torch

SEED = 10


@pytest.mark.parametrize("way", ["shm", "tcp", *(f"{way}-{transport}" for way in kills.GOING_ON
                                                 for transport in ("shm", "tcp"))])
def test_survivors_of_a_kill_raise_and_name_the_dead_rank(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = kills.campaign(SEED, list(range(8)), [way], bound=20)[way]
    verdicts = [verdict for outcome in outcomes for verdict in kills.judge(outcome)]
    assert len(verdicts) >= 8 and all(("again" in verdict) == way.startswith(kills.GOING_ON) for verdict in verdicts)
    assert not any(kills.is_fault(verdict, way) for verdict in verdicts), capsys.readouterr().out


def test_a_hung_survivor_does_not_make_the_others_wrong() -> None:
    well = {"at": 1.1, "type": "PeerFailedError", "text": "rank 0 (pid 7) died", "part": False, "wrong": [],
            "again": 3.0, "again_at": 1.2}
    outcome = {"way": "survive-shm", "setting": {"part": [], "size": 4}, "victims": {0: 7}, "killed": 1.0,
               "last_killed": 1.0, "reports": {1: {"hung": True}, 2: well, 3: well}}
    assert [verdict["kind"] for verdict in kills.judge(outcome)] == ["hung", "raised", "raised"]
    outcome["reports"] = {1: {**well, "again": 2.0}, 2: well, 3: well}
    assert [verdict["kind"] for verdict in kills.judge(outcome)] == ["wrong"] * 3


def test_gloo_runs_beside() -> None:
    outcomes = kills.campaign(SEED, [0, 1], ["gloo"], bound=20)["gloo"]
    assert all("broken" not in outcome for outcome in outcomes), outcomes


def test_a_reader_paused_in_a_copy_never_reports_success_with_wrong_bytes() -> None:
    outcomes: list[dict[str, Any]] = []
    # On a busy machine some copies are over before the reader stops. If all copies are, this test has shown nothing.
    while len(outcomes) < 12 or not any(outcome["kind"] in ("raised", "right") for outcome in outcomes):
        outcomes.append(pauses.pause_once(SEED, len(outcomes)))
        assert len(outcomes) < 120, outcomes
    assert not any(pauses.is_fault(outcome) for outcome in outcomes), [
        outcome for outcome in outcomes if pauses.is_fault(outcome)]


@pytest.mark.parametrize(("owner", "reader", "is_missed", "was_stuck", "kind"), [
    ({"text": "timeout"}, {"text": "timeout"}, False, False, "raised"),
    ({"text": "timeout"}, {"wrong": 0}, False, False, "right"),
    ({"text": "timeout"}, {"wrong": 3}, False, False, "wrong"),
    ({"wrong": 0}, {"wrong": 0}, False, False, "missed"), ({"wrong": 0}, {"wrong": 0}, True, False, "missed"),
    ({"text": "timeout"}, {"wrong": 0}, False, True, "hung"), ({"hung": True}, {"wrong": 0}, False, False, "hung"),
    ({"broken": "traceback"}, {"wrong": 0}, False, True, "broken"),
    ({"text": "timeout", "ended": 11}, {"wrong": 0}, False, False, "broken")])
def test_the_verdict_on_a_pause_counts_the_owner(owner: dict[str, Any], reader: dict[str, Any], is_missed: bool,
                                                 was_stuck: bool, kind: str) -> None:
    assert pauses.verdict(owner, reader, is_missed, was_stuck) == kind


def test_pauses_and_kills_are_in_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = {"way": "shm", "number": 0, "setting": {"part": [], "size": 2}, "victims": {0: 7}, "killed": 1.0,
            "last_killed": 1.0, "reports": {1: {"hung": True}}}
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(kills, "campaign", lambda seed, numbers, ways, bound: {way: [hung] for way in ways})
    monkeypatch.setattr(pauses, "pause_once", lambda seed, number: {
        "number": number, "pause": pauses.plan(seed, number), "kind": "wrong", "reports": {0: {}, 1: {}}})
    for ways, verdict in (("shm,pause", ["pause: wrong", "shm, rank 1: hung"]), ("pause", ["pause: wrong"])):
        path = str(tmp_path / "kills.json")
        monkeypatch.setattr(sys, "argv", ["kills.py", "--ways", ways, "--trials", "1", "--seed", "3", "--json", path])
        assert kills.main() == 1
        made = record.read(path)
        assert len(made["tables"]) == len(verdict)
        assert [said.split(" (")[0].split(", dead")[0] for said in made["verdict"]] == verdict


# Four parts, so that a failure does not hide other failures. "late" is for campaigns on quiet machines: here only
# timeouts count.
@pytest.mark.parametrize("part", range(4))
def test_every_kind_of_mismatch_raises_on_every_rank(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    # The round chooses the number of ranks: 3 ranks can show most kinds.
    numbers = [len(KINDS) + kind for kind in range(len(KINDS)) if kind % 4 == part]
    outcomes = mismatches.campaign(SEED, numbers, ["shm", "tcp"][part % 2 :][:1], checked=False)
    faults = [outcome for outcome in outcomes
              if mismatches.is_fault(outcome, False) and mismatches.judge(outcome, False) != "late"]
    assert not faults, capsys.readouterr().out


def test_wrong_bytes_after_a_mismatch_are_a_fault() -> None:
    report = {"began": [1.0, 2.0, 3.0], "steps": ["call", "next"], "wrong": "next: [2, 2, 2], not 1", "at": 3.1,
              "step": "third", "type": "MismatchError", "text": "rank 1 disagrees"}
    outcome = {"planned": mismatches.plan(SEED, 0), "reports": {0: report}}
    assert mismatches.judge(outcome, False) == "wrong" and mismatches.is_fault(outcome, False)


def left_to_the_collector(rank: int, folder: Path) -> dict[str, Counter[str]]:
    """For each kind of use: the objects that only the collector of cycles would free after some rounds."""
    me, number, found = soak_kinds.Soaked(rank, 2, folder), 0, {}
    gc.disable()
    for name, kind in soak_kinds.KINDS.items():
        for counted in (False, True):  # the first rounds fill caches
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL if counted else 0)
            for number in range(number, number + 4):
                kind(me, number)
            number += 1
        gc.collect()
        gc.set_debug(0)
        found[name] = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
        gc.garbage.clear()
    return found


def test_no_use_leaves_cycles(tmp_path: Path) -> None:
    """Python's collector visits old objects seldom: a cycle keeps tensors, groups and shared memory for minutes, and
    memory rises and falls."""
    for found in run_ranks(2, left_to_the_collector, tmp_path, default_group=True):
        assert list(found) == list(soak_kinds.KINDS)
        assert not any(found.values()), {name: dict(counts) for name, counts in found.items() if counts}


def test_ranks_die_and_join_in_the_soak(capsys: pytest.CaptureFixture[str]) -> None:
    """At least one death and one new rank, with checked results before and after."""
    assert not elastic.campaign(elastic.arguments(["--seconds", "4", "--ranks", "3", "--settle", "4"])), (
        capsys.readouterr().out)
    said = capsys.readouterr().out.splitlines()[-1]
    assert "nothing grew" in said and not said.startswith("0 deaths"), said


def reporting(me: Rank) -> None:
    me.report({"held": [], "rank": me.rank})
    me.publish("state", READY)
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if me.rank == 2:
        raise RuntimeError("rank 2 is broken")
    me.linger()


def test_reports_are_read_when_the_time_is_over_and_say_how_a_rank_ended() -> None:
    with Trial(3, "reports") as trial:
        trial.fork(reporting)
        assert trial.page.await_all([0, 1, 2], "state", READY, 60)
        while len(trial.reap()) < 2:
            time.sleep(0.01)
        found = trial.collect([0, 1, 2], time.monotonic() - 1)
        assert found[0] == {"held": [], "rank": 0} and "rank 2 is broken" in found[2]["broken"]
        assert found[1]["rank"] == 1 and os.WTERMSIG(found[1]["ended"]) == signal.SIGSEGV
        assert soak.follow(trial, [0, 1, 2], 600) == found  # at once, not when the time is over
        assert soak.failure_of(found[1]).startswith("ended by itself, wait status")


def crashing(me: Rank, args: argparse.Namespace, port: int, start: float, joins: int) -> None:
    """As elastic.live, without groups: rank 0 crashes after a while."""
    for step in range(1, 1 << 30):
        if me.rank == 0 and step == 20:
            os.kill(os.getpid(), signal.SIGSEGV)
        me.publish("step", step)
        time.sleep(0.01)


def test_a_rank_that_crashes_ends_the_soak_with_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "live", crashing)
    with Trial(3, "elastic") as trial:
        campaign = elastic.Campaign(trial, elastic.arguments(["--ranks", "3", "--patience", "30"]), 0)
        with pytest.raises(AssertionError, match="ended by themselves:\nrank 0: .*Segmentation fault"):
            while True:
                campaign.await_step(trial.page.get(campaign.kept, "step") + 1)


def test_the_soak_goes_round(capsys: pytest.CaptureFixture[str]) -> None:
    """One round of every kind of use, with checked results. Only a soak of an hour shows whether memory grows."""
    assert not soak.campaign(soak.arguments(["--seconds", "1", "--ranks", "2", "--settle", "1"])), (
        capsys.readouterr().out)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here (Debian: openmpi-bin)")
def test_survivors_over_mpi_raise_and_name_the_dead_rank(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = kills.campaign(SEED, [0], ["mpi"], bound=20)["mpi"][0]
    assert not any(kills.is_fault(verdict, "mpi") for verdict in kills.judge(outcome)), capsys.readouterr().out
