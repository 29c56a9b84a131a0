"""A closing publisher signs off only for itself: the name may belong to a newer publisher by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_publish import ANOTHER, in_a_child, raised, url_of

import shardwire
from shardwire.weights.finding import _record, closed_key
from shardwire.weights.meeting_place import Address, signed
from shardwire.records.server import RecordServer


@in_a_child
def close_while_a_newer_one_comes(url: str) -> None:
    """A newer publisher comes between the older publisher's last look into the store and the older publisher's write.
    """
    state, newer = {"b": torch.zeros(3)}, []
    older = shardwire.publish(url, "policy", state)
    put = type(older._place).put

    def slow_put(self: Any, key: str, value: bytes) -> None:
        if not newer and older._closing.is_set():
            newer.append(None)
            newer[0] = shardwire.publish(url, "policy", state)
        put(self, key, value)

    type(older._place).put = slow_put  # type: ignore[method-assign]
    older.close()
    sub = shardwire.subscribe(url, "policy", timeout=20)
    newer[0].commit(7)
    assert sub.fetch() == 7
    newer[0]._place.rest(0.5)
    assert not newer[0]._is_replaced(newer[0]._place) and not newer[0]._over
    sub.close()
    newer[0].close()
    assert raised(lambda: shardwire.subscribe(url, "policy", timeout=0.5).fetch())[0] in (
        "TimeoutError", "AbortedError"), "it was closed"


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_a_publisher_that_closes_leaves_the_newer_one_alone(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    server = RecordServer("127.0.0.1", int(url.rpartition(":")[2])) if kind == "tcp" else None  # neither publisher's
    close_while_a_newer_one_comes(url=url)
    if server is not None:
        server.close()


def test_a_last_record_is_of_its_publisher_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = Address(f"file://{tmp_path}", "policy")
    place = address.open(5.0)
    place.put("publisher", signed("publisher", ANOTHER))
    for strange in (b"", b"[]", signed("closed", {"id": "older"}), signed("closed", {})):
        place.put(closed_key("another"), strange)
        assert _record(place, address) == (ANOTHER, None)
    with monkeypatch.context() as other_job:
        other_job.setenv("SHARDWIRE_JOB_TOKEN", "another job's")
        place.put(closed_key("another"), signed("closed", {"id": "another"}))
    assert _record(place, address) == (ANOTHER, None)
    place.put(closed_key("another"), signed("closed", {"id": "another"}))
    assert _record(place, address) == (None, None)
