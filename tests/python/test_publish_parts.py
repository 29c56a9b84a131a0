"""The parts of publish and subscribe, in one process: the version that all ranks choose, the copies of a version, and
the ranks in errors.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
import torch
from test_publish import in_a_child, raised, url_of

import shardwire
from shardwire.weights.fetching import FETCH, Request, answer_row, choose, rename_ranks
from shardwire.weights.holdings import Holdings
from shardwire.weights.meeting_place import signed
from shardwire.weights.versions import Versions

pytestmark = pytest.mark.any_torch


def test_all_ranks_choose_alike() -> None:
    rows = [answer_row(7, 100, False, {6: 10, 7: 20}), answer_row(6, 100, False, {5: 0, 6: 5})]
    assert choose(rows, Request(FETCH)).version == 6, "what every rank has"
    assert choose(rows, Request(FETCH, wanted=7)).verdict == "wait"
    assert choose(rows, Request(FETCH, wanted=5)).verdict == "gone"
    assert choose(rows, Request(FETCH, since=6, newer=1)).verdict == "wait"
    assert choose(rows, Request(FETCH, since=5, newer=1)).version == 6
    late = [answer_row(7, 100, True, {}), rows[1]]
    assert choose(late, Request(FETCH)).verdict == "late"
    some = choose(rows, Request(FETCH, since=5, changed=1))
    assert (some.version, some.whole, some.moves) == (6, False, True)
    assert choose(rows, Request(FETCH, changed=1)).whole, "it has nothing yet"
    assert choose([answer_row(6, 20, False, {6: 15})], Request(FETCH, since=5, changed=1)).whole, "most of it changed"
    assert not choose([answer_row(6, 20, False, {6: 0})], Request(FETCH, since=6, changed=1)).moves


class Sitting:
    def __init__(self) -> None:
        self.sent_away = ""

    def send_away(self, reason: str) -> None:
        self.sent_away = reason


@in_a_child
def test_a_commit_never_writes_what_is_read() -> None:
    state = {"w": torch.zeros(100, 10), "t": torch.zeros(3, dtype=torch.complex64),
             "n": torch.tensor(0, dtype=torch.int64), "f": torch.zeros(2, dtype=torch.bool)}
    state["tied"] = state["w"]
    versions = Versions(Holdings(state, "source", 0, [0]), 2, None)
    assert versions.total_bytes == 4000 + 24 + 8 + 2, "tied weights are held once"
    reader = Sitting()
    for version in range(1, 4):
        state["w"].fill_(version)
        versions.write(version, 0.0)
    held = versions.pin_all(reader)
    assert sorted(held) == [2, 3] and (held[2].tensors["tied"] == 2).all()
    state["w"].fill_(4)
    over = threading.Event()

    def commit() -> None:
        versions.write(4, float("inf"))
        over.set()

    thread = threading.Thread(target=commit)
    thread.start()
    assert not over.wait(0.1) and (held[2].tensors["w"] == 2).all() and held[2].content == 2
    assert sorted(versions.pin_all(Sitting())) == [3], "nobody new reads it"
    versions.release(reader, keep=held[3])
    assert over.wait(10)
    thread.join()
    assert held[2].content == 4 and (held[3].tensors["w"] == 3).all() and not reader.sent_away
    late = [one for buffer in held.values() for one in buffer.readers if one is not reader]
    for one in late:
        versions.release(one)

    def release_once_sent_away() -> None:
        while not reader.sent_away:
            time.sleep(0.001)
        time.sleep(0.2)
        versions.release(reader)

    begin = time.monotonic()
    threading.Thread(target=release_once_sent_away, daemon=True).start()
    versions.write(5, 0.1)
    assert reader.sent_away and 0.25 < time.monotonic() - begin < 10


@pytest.mark.parametrize("buffers", [1, 2, 3])
@in_a_child
def test_changed_rows_are_all_that_changed(buffers: int) -> None:
    rng = random.Random(buffers)
    state = {"w": torch.zeros(50, 16), "t": torch.zeros(16, 50).t(), "s": torch.tensor(0.0), "z": torch.zeros(0, 3),
             "c": torch.zeros(9, dtype=torch.complex64)}
    versions = Versions(Holdings(state, "source", 0, [0]), buffers, 256)
    history: list[dict[str, torch.Tensor]] = []
    for version in range(1, 30):
        for name, tensor in state.items():
            if tensor.numel() and rng.random() < 0.5:
                if tensor.dim():
                    tensor[rng.randrange(tensor.shape[0])] = rng.choice([version, -0.0, float("nan")])
                else:
                    tensor.fill_(version)
        if version % 9 == 4:  # a commit that fails in the middle
            kept = state["c"]
            state["c"] = torch.zeros(1, dtype=torch.complex64)
            assert raised(lambda: versions.write(version, 0.0))[0] == "ValueError"
            state["c"] = kept
        versions.write(version, 0.0)
        history.append({name: tensor.clone() for name, tensor in state.items()})
        reader = Sitting()
        for held, buffer in versions.pin_all(reader).items():
            for name, tensor in state.items():
                now = history[held - 1][name]
                assert torch.equal(torch.view_as_real(buffer.tensors[name]).nan_to_num(7) if now.is_complex()
                                   else buffer.tensors[name].nan_to_num(7),
                                   torch.view_as_real(now).nan_to_num(7) if now.is_complex() else now.nan_to_num(7))
                for since in range(1, held):
                    rows = {row for begin, end in versions.changed_rows(buffer, name, since)
                            for row in range(begin, end)}
                    then = history[since - 1][name]
                    pairs = zip(then.reshape(-1), now.reshape(-1)) if not now.dim() else zip(then, now)
                    different = {row for row, (a, b) in enumerate(pairs) if not (a.equal(b) or str(a) == str(b))}
                    assert different <= rows, (name, since, held)
                    assert len(rows) <= tensor.shape[0] if tensor.dim() else 1
        versions.release(reader)


def test_ranks_in_errors_are_those_of_the_jobs() -> None:
    text = ("rank 3 gave up: rank 1 (pid 7) died; ranks 0, 2 and 3 of 4 wait; global rank 1, rank 9; another group of "
            "its process failed (rank 1)")
    assert rename_ranks(text, 2, 2) == ("the subscriber's rank 1 gave up: the publisher's rank 1 (pid 7) died; the "
                                        "publisher's rank 0, the subscriber's rank 0 and the subscriber's rank 1 of 4 "
                                        "wait; global rank 1, rank 9; another group of its process failed (rank 1)")


@pytest.mark.parametrize("kind", ["tcp", "file"])
@in_a_child
def test_close_waits_for_no_subscriber_that_died_while_it_joined(kind: str, tmp_path: Path) -> None:
    pub = shardwire.publish(url_of(kind, tmp_path), "policy", {"b": torch.zeros(3)})
    place = pub._address.open(5.0)
    note = f"{pub._id}/" + place.post(pub._id, signed("subscriber", {"id": pub._id, "nonce": "n", "size": 1,
                                                                     "seconds": 60, "who": "a dead one"}))
    place.put(f"{note}.go", b"go")
    limit = time.monotonic() + 20
    while not pub.subscribers:
        assert time.monotonic() < limit
        time.sleep(0.01)
    pub.close()
    assert pub.subscribers == 0, "the thread that waits for the subscriber has ended"
