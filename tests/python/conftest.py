"""The fixture run_ranks: `run_ranks(n, body)` runs `body(rank, size)` in n forks of this process (fork_ranks.py), each
with a default shardwire group.

PYTHONPATH must hold the build's `python` folder.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shardwire
from fork_ranks import ForkedRanks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from entry_points import write_entry_points  # noqa: E402, F401  for the tests

# set by a shell for background jobs: tests of Ctrl-C, and their ranks, need Python's handler
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Fails a test whose ranks print the error of a callback, unless the test reads the output. Nothing else shows the
    exception of a callback: the operation succeeds.
    """
    report = (yield).get_result()
    if call.when == "call" and report.passed and "which changes nothing for the operation" in report.capstderr:
        report.outcome = "failed"
        report.longrepr = "a callback raised an exception; see the captured stderr"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Keeps the name of the test that runs now in a file of this process, for the report about a run that hangs."""
    if (folder := os.environ.get("SHARDWIRE_RUNNING_TESTS")) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        (Path(folder) / worker).write_text(nodeid)


@pytest.fixture
def run_ranks():
    def run(size, body, *args, timeout=60, group_timeout=20, init=True, may_die=()):
        """The results of body(rank, size, *args) by rank; None for ranks of may_die that died. Fails with every rank's
        traceback, and with the stacks of ranks that do not end, of may_die or not.
        """
        with ForkedRanks(size, _rank_main, body, args, timedelta(seconds=group_timeout) if init else None) as ranks:
            return ranks.answers(timeout, to_the_end=True, may_die=may_die)

    return run


@pytest.fixture(params=["addresses", "requests"])
def links(request, monkeypatch):
    """The access of the ranks to each other's parts: by shared memory, or as between hosts."""
    if request.param == "requests":
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "tcp")
    return request.param


def _rank_main(rank, body, args, group_timeout):
    def joined():
        if group_timeout is not None:
            dist.init_process_group("shardwire", init_method=f"file://{rank.store}", rank=rank.number,
                                    world_size=rank.size, timeout=group_timeout)
        result = body(rank.number, rank.size, *args)
        if group_timeout is not None and dist.is_initialized():
            # Ranks still at work would take a rank that leaves at once for failed.
            dist.barrier()
            dist.destroy_process_group()
        return result

    rank.answer(joined)


def raises(kind, call, *args, contains=""):
    """The exception of `kind` that call(*args) raises; the text must hold `contains`. For bodies, which run in other
    processes than pytest.
    """
    try:
        call(*args)
    except kind as error:
        assert contains in str(error), f"{contains!r} is not in {str(error)!r}"
        return error
    raise AssertionError(f"{kind} was not raised")


@pytest.fixture(scope="session")
def launcher():
    """The launcher's file, to be run without importing torch first."""
    return str(Path(shardwire.__file__).parent / "launch.py")


def pytest_configure(config: pytest.Config) -> None:
    """Declares our mark. And from xdist 3.7 on, the files with most tests would come first, in whatever order the tests
    are collected."""
    config.addinivalue_line("markers", "any_torch: long, and alike with every torch; CI runs it with one torch only")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of devices come last: they load an accelerator into the process, and torch then uses the accelerator in
    tests of the CPU, too: fully_shard() moves parameters there."""
    items.sort(key=lambda item: "test_device" in item.nodeid)
