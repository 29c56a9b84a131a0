"""The base of the tests' ranks: the error names a rank that raises, dies or hangs, with all known details, and no
process is left.
"""

import os
import select
import signal
import sys
import tempfile
import time

import pytest

from fork_ranks import ForkedRanks, RankFailed
from ranks import await_file, run_ranks
from run_program import run_program


def all_but_rank_0_go_wrong(rank, path):
    if rank == 3:
        sleeps_in_rank_3(path)
    await_file(path)
    if rank == 1:
        raise ValueError("raised by rank 1")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def sleeps_in_rank_3(path):
    path.touch()
    time.sleep(600)


def test_each_rank_says_why_it_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("fork_ranks.GRACE_S", 2)
    with pytest.raises(RankFailed) as failure:
        run_ranks(4, all_but_rank_0_go_wrong, tmp_path / "slept", join=False)
    texts = dict(zip("0123", (part[part.index(":"):] for part in ("0:" + str(failure.value)).split("--- rank "))))
    assert list(texts) == list("0123") and texts["0"] == ":", texts
    assert ("ValueError: raised by rank 1" in texts["1"] and "SIGKILL" in texts["2"]
            and "without a result" in texts["2"]), texts
    assert "still running" in texts["3"] and "sleeps_in_rank_3" in texts["3"], texts


def test_who_does_not_end_fails_and_is_ended():
    def answers_and_stays(rank):
        rank.answer(os.getpid)
        rank.linger()

    with ForkedRanks(2, answers_and_stays) as ranks:
        assert ranks.answers(60) == ranks.pids
        with pytest.raises(RankFailed,
                           match="rank 0:\nwas still running after .*\n(.|\n)*answers_and_stays(.|\n)*rank 1:"):
            ranks.answers(0.1, to_the_end=True)
        assert ranks.answers(0.1, to_the_end=True, may_stay=True) == ranks.pids
        assert ranks.running() == [0, 1]
    assert ranks.running() == []
    for pid in ranks.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rank_that_may_die_fails_where_it_hangs():
    def one_hangs(rank):
        if rank.number == 0:
            rank.answer(os.getpid)
            rank.linger()
        rank.report("is about to sleep")
        time.sleep(600)

    with ForkedRanks(2, one_hangs) as ranks:
        while not all(ranks.reports):
            assert ranks.poll(60)
        with pytest.raises(RankFailed) as failure:
            ranks.answers(0.1, may_die=(1,))
        assert ranks.answers(0.1, may_die=(1,), may_stay=True) == [ranks.pids[0], None]
    text = str(failure.value)
    assert text.startswith("--- rank 1:\nwas still running after ") and "in one_hangs" in text, text
    assert "rank 0" not in text, text


def test_a_rank_that_may_die_dies_by_sigkill_only():
    def dies(rank, number):
        os.kill(os.getpid(), number)

    with ForkedRanks(1, dies, signal.SIGKILL) as ranks:
        assert ranks.answers(60, may_die=(0,)) == [None]
    with ForkedRanks(1, dies, signal.SIGTERM) as ranks:
        with pytest.raises(RankFailed, match="SIGTERM"):
            ranks.answers(60, may_die=(0,))


def test_ranks_end_with_their_parent(tmp_path):
    """The ranks end also after SIGKILL of the parent."""
    reader, writer = os.pipe()

    def parent(rank):
        tempfile.tempdir = str(tmp_path)  # no process is left to clear the folder
        inner = ForkedRanks(2, lambda inner: inner.report("here") or inner.linger())
        while not all(inner.reports):
            inner.poll(1)
        rank.report("here")
        rank.linger()

    with ForkedRanks(1, parent) as ranks:
        assert ranks.poll(60) and ranks.reports == [[("here",)]]
    os.close(writer)
    assert (select.select([reader], [], [], 60)[0]
            and os.read(reader, 1) == b""), "the last that had the pipe's other end is gone"
    os.close(reader)


def test_a_program_that_does_not_end_is_killed_with_its_processes():
    reader, writer = os.pipe()
    program = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'], close_fds=False)"
    with pytest.raises(AssertionError, match="did not end within 5 s:\nbegun"):
        run_program([sys.executable, "-c", program], 5, pass_fds=(writer,))
    os.close(writer)
    # The sleeping process has the pipe's other end, too.
    assert select.select([reader], [], [], 60)[0] and os.read(reader, 1) == b""
    os.close(reader)
