"""Errors of a single rank of a subscriber, and of the place where the jobs meet."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import await_file, error_of as raised
from test_publish import columns, in_a_child, publisher, url_of
from two_jobs import group, jobs

import shardwire
from shardwire.weights import subscribing
from shardwire.weights.matching import _converts
from shardwire.weights.meeting_place import Address

pytestmark = pytest.mark.any_torch


def test_a_rank_that_cannot_open_the_store_is_an_error_of_all_ranks_at_once(tmp_path: Path) -> None:
    def joining(rank: int) -> None:
        if rank == 1:
            def refused(*_: Any) -> Any:
                raise shardwire.SystemFailure("made up")
            Address.open = refused  # type: ignore[method-assign]
        begin = time.monotonic()
        kind, text = raised(shardwire.subscribe, url, "policy", columns(2), group(), timeout=30)
        assert kind == "SystemFailure" and "rank 1: made up" in text, (kind, text)
        assert time.monotonic() - begin < 15

    with jobs() as start:
        url = url_of("tcp", tmp_path)
        start(1, publisher, url, 1)
        start(2, joining).results()


@in_a_child
def test_what_keeps_a_subscriber_from_the_folder_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    begin = time.monotonic()
    kind, text = raised(shardwire.subscribe, f"file://{tmp_path}/file/x", "policy", timeout=30)
    assert kind == "SystemFailure" and "cannot be used: [Errno 20] Not a directory" in text, (kind, text)
    assert time.monotonic() - begin < 15
    with shardwire.publish(f"file://{tmp_path}", "policy", {"b": torch.zeros(3)}):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))  # as a full disk
        kind, text = raised(shardwire.subscribe, f"file://{tmp_path}", "policy", timeout=0.3)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert kind == "TimeoutError" and "the last error there: [Errno 27] File too large" in text, (kind, text)
        assert not list(tmp_path.rglob(".*.tmp"))


def test_a_fetch_without_another_rank_ends_soon_after_its_timeout(tmp_path: Path) -> None:
    def alone(rank: int) -> None:
        sub = shardwire.subscribe(url, "policy", columns(2), group(), timeout=30)
        sub.fetch()
        if rank == 1:
            await_file(tmp_path / "gave up")
            return
        subscribing.SLACK_S = 0.2
        limits = []
        exchange = sub._control.exchange

        def noted(*arguments: Any) -> Any:
            limits.append(sub._control.seconds)
            return exchange(*arguments)

        sub._control.exchange = noted  # type: ignore[method-assign]
        assert raised(sub.fetch, timeout=0.2)[0] == "TimeoutError"
        assert limits == [pytest.approx(1.0), 0.4] and "make another" in raised(sub.fetch)[1]
        (tmp_path / "gave up").touch()

    with jobs() as start:
        url = url_of("tcp", tmp_path)
        start(1, publisher, url, 1)
        start(2, alone).results()


def test_a_dtype_that_this_torch_lacks_converts_to_none() -> None:
    assert not _converts("float8_e4m3fn", torch.float32) and _converts(torch.float16, torch.float32)
