"""publish and subscribe: two jobs in separate processes. Every version has different values in every element, so that a
mixture of versions shows.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from ranks import await_file, error_of as raised
from two_jobs import Job, group, jobs, report

import shardwire
from shardwire import _C, FusedLayout, Layout, NameMap, Part, Replicate, Shard
from shardwire.groups.mpi import tcp_store
from shardwire.launch import free_port
from shardwire.weights.meeting_place import Address, FolderPlace, RecordPlace, signed
from shardwire.records.client import RecordClient
from shardwire.records.server import RecordServer
from shardwire.weights import publishing
from shardwire.weights.publishing import Publication, _SeenNotes
from shardwire.weights.versions import Versions

pytestmark = pytest.mark.any_torch

F32 = torch.float32
SHAPES = {"w": (64, 48), "b": (37,), "e": (5, 4, 6)}


def in_a_child(test: Any) -> Any:
    """Runs the test in a separate process: a process that forks later must not have had groups, stores or a heap."""
    @functools.wraps(test)
    def wrapper(**named: Any) -> None:
        with jobs() as start:
            start(1, lambda rank: test(**named)).results()
    return wrapper


def value_of(name: str, version: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> torch.Tensor:
    """Exact in float32 for versions below 16000."""
    shape = shapes[name]
    return ((torch.arange(float(torch.Size(shape).numel())) + len(name)) % 1000 + 1000 * version).reshape(shape)


def url_of(kind: str, tmp_path: Path) -> str:
    return f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"file://{tmp_path}/meeting"


def state_of(rank: int, ranks: int, version: int = 0) -> dict[str, Any]:
    """w cut by rows, b whole on each rank, e on the last rank alone."""
    cut = Layout(list(range(ranks)), [Shard(0)], SHAPES["w"], F32)
    state: dict[str, Any] = {"w": (cut, cut.take(value_of("w", version), rank).clone()), "b": value_of("b", version)}
    if rank == ranks - 1:
        state["e"] = value_of("e", version)
    return state


def advance(state: dict[str, Any], rank: int, version: int) -> None:
    for name, item in state.items():
        layout, tensor = item if isinstance(item, tuple) else (None, item)
        whole = value_of(name, version)
        tensor.copy_(whole if layout is None else layout.take(whole, rank))


def check(target: dict[str, Any], wanted: dict[str, Any], rank: int, version: int) -> None:
    for name, layout in wanted.items():
        whole = value_of(name, version)
        expected = layout.take(whole, rank) if isinstance(layout, Layout) else whole
        got = target[name]
        if expected is None:
            assert got is None
        else:
            assert torch.equal(got.float(), expected.to(got.dtype).float()), (
                f"{name} is not version {version}: {got.reshape(-1)[:4]} for {expected.reshape(-1)[:4]}")


def columns(ranks: int) -> dict[str, Any]:
    """w cut by columns, b cut, e whole."""
    mesh = list(range(ranks))
    return {"w": Layout(mesh, [Shard(1)], SHAPES["w"], F32), "b": Layout(mesh, [Shard(0)], SHAPES["b"], F32),
            "e": Layout(mesh, [Replicate()], SHAPES["e"], F32)}


def publisher(rank: int, url: str, ranks: int, versions: int = 3, pause: float = 0.0,
              options: dict[str, Any] | None = None) -> None:
    """Commits versions 1, 2, ... and serves until the test ends the process."""
    state = state_of(rank, ranks)
    pub = shardwire.publish(url, "policy", state, group(), timeout=60, **(options or {}))
    for version in range(1, versions + 1):
        advance(state, rank, version)
        begin = time.monotonic()
        pub.commit(version)
        report("committed", version, time.monotonic() - begin)
        advance(state, rank, 15000)  # the committed values do not change any more
        time.sleep(pause)
    while True:
        time.sleep(0.05)
        report("serves", pub.subscribers)


# The fetched values.

def reader(rank: int, url: str, ranks: int) -> int:
    wanted = columns(ranks)
    sub = shardwire.subscribe(url, "policy", wanted, group(), timeout=60 if rank else float("inf"))
    assert sub.version is None
    for version in (2, 3):
        assert sub.fetch(version) == version == sub.version
        check(sub.target, wanted, rank, version)
    for tensor in sub.target.values():
        tensor.zero_()
    assert sub.fetch() == 3
    check(sub.target, wanted, rank, 3)
    kind, text = raised(lambda: sub.fetch(1))
    assert kind == "ValueError" and "version 1 of 'policy' is gone: it has 2, 3" in text, text
    kind, text = raised(lambda: sub.fetch(4, timeout=0.2))
    assert kind == "TimeoutError" and "version 4" in text and "it has 2, 3" in text, text
    kind, text = raised(lambda: sub.fetch(newer=True, timeout=0.2))
    assert kind == "TimeoutError" and "a version after 3" in text, text
    assert (raised(lambda: sub.fetch(-3))[0] == raised(lambda: sub.fetch(timeout=60 if rank else -1))[0] == "ValueError"
            and raised(lambda: sub.fetch("new"))[0] == "TypeError")  # type: ignore[arg-type]
    assert "rank 0: RuntimeError: Bool" in raised(lambda: sub.fetch(newer=torch.ones(2 - rank % 2)))[1]
    assert sub.version == 3, "nothing moved, so the target is what it was"
    assert sub.fetch(3, timeout=60 if rank else float("inf")) == 3
    sub.close()
    assert raised(sub.fetch)[0] == "AbortedError"
    return 3


@pytest.mark.parametrize(("kind", "publishers", "subscribers", "transport"),
                         [("tcp", 2, 2, "shm"), ("file", 2, 1, "shm"), ("tcp", 1, 3, "shm"), ("tcp", 2, 2, "tcp")])
def test_fetch(kind: str, publishers: int, subscribers: int, transport: str, tmp_path: Path) -> None:
    with jobs() as start:
        url, environment = url_of(kind, tmp_path), {"SHARDWIRE_TRANSPORTS": transport, "SHARDWIRE_JOB_TOKEN": "ours"}
        served = start(publishers, publisher, url, publishers, environment=environment)
        served.until(lambda: all(("committed", 3) == words[:2] for said in served.reports for words in said[2:3])
                             and all(len(said) > 2 for said in served.reports), 60, "three commits")
        assert start(subscribers, reader, url, subscribers, environment=environment).results() == [3] * subscribers
        served.until(lambda: all(said[-1] == ("serves", 0) for said in served.reports), 20, "the subscriber's leave")


def early_reader(rank: int, url: str) -> list[int]:
    """Waits for the publisher, and then for each version."""
    sub = shardwire.subscribe(url, "policy", None, group(), cast=torch.bfloat16, timeout=60)
    seen = []
    while not seen or seen[-1] < 5:
        seen.append(sub.fetch(newer=True, timeout=30))
        assert sub.target["w"].dtype == torch.bfloat16
        check(sub.target, dict.fromkeys(SHAPES), rank, seen[-1])
    return seen


def test_a_subscriber_may_come_first_and_have_everything_cast(tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of("tcp", tmp_path)
        early = start(1, early_reader, url)
        time.sleep(0.3)  # by then the reader mostly looks for a publisher already
        start(2, publisher, url, 2, 5, 0.1)
        (seen,) = early.results()
        assert seen == sorted(set(seen)) and seen[-1] == 5


def fused_publisher(rank: int, url: str) -> None:
    state = {name: value_of("w", index) for index, name in enumerate("qkv", 1)}
    pub = shardwire.publish(url, "policy", state, group(), buffers=1, timeout=60)
    pub.commit(7)
    while True:
        time.sleep(0.05)


def fused_reader(rank: int, url: str) -> None:
    parts = [Layout([0, 1], [Shard(0)], SHAPES["w"], torch.bfloat16) for _ in "qkv"]
    names = NameMap(lambda name: Part("qkv", "qkv".index(name), 3), lambda name: name)
    sub = shardwire.subscribe(url, "policy", {"qkv": FusedLayout(parts)}, group(), mapping=names, timeout=60)
    assert sub.fetch() == 7
    expected = torch.cat([parts[0].take(value_of("w", index), rank) for index in (1, 2, 3)]).to(torch.bfloat16)
    assert torch.equal(sub.target["qkv"], expected)
    sub.close()
    kind, text = raised(
        lambda: shardwire.subscribe(url, "policy", {"q": parts[0], "other": parts[1]}, group(), timeout=60))
    assert kind == "ValueError" and "'other'" in text and "'k'" in text and "'v'" in text, text
    different = NameMap(lambda name: f"{name}{rank}", lambda name: f"{name}{rank}")
    kind, text = raised(
        lambda: shardwire.subscribe(url, "policy", {"q": parts[0]}, group(), mapping=different, timeout=60))
    assert kind == "MismatchError" and "mapping" in text, text
    shardwire.subscribe(url, "policy", {"q": parts[0]}, group(), strict=False, timeout=60).fetch()


def test_names_are_mapped_and_what_does_not_fit_is_listed_on_the_subscriber_alone(tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of("tcp", tmp_path)
        served = start(1, fused_publisher, url)
        start(2, fused_reader, url).results()
        assert served.running() == [0]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight


@in_a_child
def test_modules_and_tied_weights(tmp_path: Path) -> None:
    url, source, target, absent = f"file://{tmp_path}", Model(), Model(), Model().to("meta")
    absent.head.weight = absent.embed.weight
    pub = shardwire.publish(url, "policy", source, changes=True)
    subs = [shardwire.subscribe(url, "policy", module, timeout=20) for module in (target, absent)]
    optimizer = torch.optim.SGD(source.parameters(), lr=0.1)
    for version in range(3):
        source.head(source.body(source.embed(torch.tensor([version, 3])))).square().sum().backward()
        optimizer.step()
        pub.commit(version)
        then = {name: tensor.clone() for name, tensor in source.state_dict().items()}
        optimizer.step()
        for sub, module in zip(subs, (target, absent)):
            assert (sub.fetch(changed=True) == version and sub.target is module
                    and module.head.weight is module.embed.weight)
            assert all(torch.equal(tensor, then[name]) for name, tensor in module.state_dict().items())
    assert raised(lambda: shardwire.subscribe(url, "policy", target, cast=torch.bfloat16))[0] == "TypeError"
    for each in (*subs, pub):
        each.close()


@in_a_child
def test_without_layouts_a_subscriber_gets_what_a_state_dict_has(tmp_path: Path) -> None:
    """vLLM's load_weights refuses other names, and modules of transformers have such buffers."""
    url, source = f"file://{tmp_path}", torch.nn.BatchNorm1d(6)
    source.register_buffer("frequencies", torch.ones(3), persistent=False)
    pub = shardwire.publish(url, "policy", source)
    pub.commit(1)
    with shardwire.subscribe(url, "policy", timeout=20) as whole:
        whole.fetch()
        assert whole.target.keys() == source.state_dict().keys()
    target = torch.nn.BatchNorm1d(6)
    target.register_buffer("frequencies", torch.zeros(3), persistent=False)
    with shardwire.subscribe(url, "policy", target, timeout=20) as sub:
        sub.fetch()
        assert target.frequencies.tolist() == [1.0] * 3
    pub.close()


@in_a_child
def test_contexts_and_asyncio(tmp_path: Path) -> None:
    url, target = f"file://{tmp_path}", {"b": torch.zeros(3)}

    async def fetched(sub: shardwire.Subscription) -> tuple[int, int]:
        turns = 0
        waiting = asyncio.ensure_future(sub.fetch_async(newer=True, timeout=30))
        while not waiting.done():
            turns += 1
            if turns == 3:
                pub.commit(1)
            await asyncio.sleep(0.001)
        return await waiting, turns

    with shardwire.publish(url, "policy", {"b": torch.ones(3)}) as pub:
        pub.commit(0)
        with shardwire.subscribe(url, "policy", target, timeout=20) as sub:
            assert sub.fetch() == 0
            version, turns = asyncio.run(fetched(sub))
            assert version == 1 and turns >= 3  # the loop went on while the fetch waited
        assert raised(sub.fetch)[0] == "AbortedError"
    assert raised(lambda: pub.commit(2))[0] == "AbortedError"


@pytest.mark.parametrize("kind", ["HashStore", "TCPStore", "FileStore"])
@in_a_child
def test_stores_of_torch(kind: str, tmp_path: Path) -> None:
    import torch.distributed as dist
    store = ({"HashStore": dist.HashStore,
              "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), 1), "TCPStore": lambda: tcp_store(
                  "127.0.0.1", free_port(), None, True, datetime.timedelta(seconds=20))}[kind]())
    pub = shardwire.publish(store, "policy", {"b": torch.ones(3)})
    pub.commit(5)
    for _ in range(2):
        sub = shardwire.subscribe(store, "policy", timeout=20)
        assert sub.fetch() == 5 and sub.target["b"].tolist() == [1.0] * 3
        sub.close()
    pub.close()


# Changed blocks.

def changing_publisher(rank: int, url: str, buffers: int) -> None:
    rows = torch.zeros(4000, 64)  # 1 MB on each of two ranks, in blocks of 64 KiB
    cut = Layout([0, 1], [Shard(0)], (8000, 64), F32)
    small = torch.zeros(10)
    pub = shardwire.publish(url, "policy", {"w": (cut, rows), "s": small}, group(), buffers=buffers, changes=True,
                            timeout=60)
    for version in range(1, 7):
        if rank == 1:
            rows[100 * version] = version
        pub.commit(version)
        report("committed", version)
        group().barrier().wait()
        while not os.path.exists(f"{url[7:]}.{version}"):
            time.sleep(0.01)
        group().barrier().wait()
    time.sleep(60)


def changing_reader(rank: int, url: str) -> None:
    sub = shardwire.subscribe(url, "policy", {"w": Layout([0], [Shard(0)], (8000, 64), torch.bfloat16),
                                              "s": torch.ones(10)}, group(), timeout=60)
    expected = torch.zeros(8000, 64)
    for version in range(1, 7):
        expected[4000 + 100 * version] = version
        if version == 5:
            Path(f"{url[7:]}.5").touch()
            continue  # two steps at once
        assert sub.fetch(version, changed=True) == version
        assert torch.equal(sub.target["w"].float(), expected), version
        if version == 3:
            sub.target["w"][7000] = expected[7000] = 99  # a row of an unchanged block
            sub.target["s"].fill_(5)
        if version > 3:
            assert (sub.target["s"] == 5).all(), "only what changed moves"
        Path(f"{url[7:]}.{version}").touch()
    sub.fetch(6, changed=True)
    assert (sub.target["w"][7000] == 99).all(), "nothing changed, nothing moves"
    sub.fetch(6)
    assert (sub.target["w"][7000] == 0).all() and (sub.target["s"] == 0).all(), "everything moves"


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_fetch_of_what_changed(buffers: int, tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of("file", tmp_path)
        start(2, changing_publisher, url, buffers)
        start(1, changing_reader, url).results()


# Permission, and processes that come and go.

def refused(rank: int, url: str, text: str) -> None:
    begin = time.monotonic()
    kind, said = raised(lambda: shardwire.subscribe(url, "policy", columns(1), group(), timeout=30))
    assert kind == "MismatchError" and "SHARDWIRE_JOB_TOKEN" in said and text in said, (kind, said)
    assert time.monotonic() - begin < 20


def test_the_jobs_token(tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of("tcp", tmp_path)
        served = start(1, publisher, url, 1, environment={"SHARDWIRE_JOB_TOKEN": "ours"})
        served.until(lambda: len(served.reports[0]) > 3, 30, "commits")
        for environment, text in (({"SHARDWIRE_JOB_TOKEN": "theirs"}, "has another"),
                                  ({"SHARDWIRE_JOB_TOKEN": ""}, "has none")):
            start(1, refused, url, text, environment=environment).results()
        start(1, reader, url, 1, environment={"SHARDWIRE_JOB_TOKEN": "ours"}).results()
        assert served.running() == [0]


@in_a_child
def test_the_publisher_refuses_foreign_notes(tmp_path: Path) -> None:
    """The writer can write into the store, but does not know the token."""
    from shardwire.weights import subscribing
    address = Address(f"file://{tmp_path}", "policy")
    before = os.environ.get("SHARDWIRE_JOB_TOKEN")
    os.environ["SHARDWIRE_JOB_TOKEN"] = "ours"
    try:
        pub = publishing.publish(f"file://{tmp_path}", "policy", {"b": torch.zeros(3)})
        place = address.open(1.0)
        strange = [signed("subscriber", {"id": pub._id, "nonce": "n", **more})
                   for more in ({"size": 0, "seconds": 1}, {"size": 1, "seconds": float("nan")},
                                {"size": "1", "seconds": 1}, {"size": 1, "seconds": "1"}, {"size": 1})]
        for data in (*strange, b"junk", b'{"body": "{}", "proof": ""}', b'{"body": "[]", "proof": 3}',
                     b'{"body": "{}", "proof": "ab"}', b"[]"):
            note = place.post(pub._id, data)
            limit = time.monotonic() + 10
            while place.peek(f"{pub._id}/{note}.answer.0") is None:
                assert time.monotonic() < limit
                time.sleep(0.01)
            assert b'"no"' in place.peek(f"{pub._id}/{note}.answer.0")
        assert pub.subscribers == 0
        pub.commit(1)
        # of the same process, too
        sub = subscribing.subscribe(f"file://{tmp_path}", "policy", {"b": torch.ones(3)}, timeout=20)
        assert sub.fetch() == 1 and (sub.target["b"] == 0).all()
        sub.close()
        pub.close()
        assert raised(lambda: pub.commit(2))[0] == "AbortedError"
        kind, text = raised(lambda: subscribing.subscribe(f"file://{tmp_path}", "policy", None, timeout=0.3))
        assert kind == "TimeoutError"
        assert text.startswith("shardwire.subscribe: rank 0: there is no publisher of 'policy'"), text
    finally:
        os.environ.pop("SHARDWIRE_JOB_TOKEN")
        if before is not None:
            os.environ["SHARDWIRE_JOB_TOKEN"] = before


@in_a_child
def test_wrong_arguments(tmp_path: Path) -> None:
    state = {"b": torch.zeros(3)}
    url = f"file://{tmp_path}"
    for store, name, text in (("http://x", "p", "tcp://HOST:PORT"), ("tcp://x", "p", "tcp://HOST:PORT"),
                              (url, "a/b", "name"), (url, "", "name"), (3, "p", "store")):
        for call in (lambda: shardwire.publish(store, name, state), lambda: shardwire.subscribe(store, name, state)):
            kind, said = raised(call)
            assert kind in ("ValueError", "TypeError") and text in said, said
    for buffers in (0, 5, True, "2"):
        assert (raised(lambda: shardwire.publish(url, "p", state, buffers=buffers))[0]  # type: ignore[arg-type]
                == "ValueError")
    assert raised(lambda: shardwire.subscribe(url, "p", state, cast=torch.int8))[0] == "TypeError"
    assert raised(lambda: shardwire.subscribe(url, "p", state, cast=torch.bfloat16))[0] == "ValueError"
    assert raised(lambda: shardwire.publish(url, "p", {}))[0] == "ValueError"
    pub = shardwire.publish(url, "p", state)
    pub.commit(3)
    for version, kind in ((3, "ValueError"), (-1, "ValueError"), (2.0, "TypeError"), (True, "TypeError"),
                          (1 << 62, "ValueError")):
        assert raised(lambda: pub.commit(version))[0] == kind  # type: ignore[arg-type]
    state["b"] = torch.zeros(4)
    kind, text = raised(lambda: pub.commit(4))
    assert kind == "ValueError" and "'b'" in text and "[4]" in text
    state["b"] = torch.ones(3)
    pub.commit(4)
    pub.close()
    pub.close()


@in_a_child
def test_a_version_that_is_committed_while_a_fetch_asks_is_not_gone(tmp_path: Path) -> None:
    url, real = url_of("file", tmp_path), Versions.pin_all
    pub = shardwire.publish(url, "policy", {"b": torch.zeros(3)})
    pub.commit(1)
    sub = shardwire.subscribe(url, "policy", timeout=20)

    def overtaken(self: Versions, reader: Any) -> Any:
        held = real(self, reader)
        if self.newest == 1:
            pub.commit(2)
        return held

    Versions.pin_all = overtaken  # type: ignore[method-assign]
    assert sub.fetch(2) == 2
    sub.close()
    pub.close()


@pytest.mark.parametrize("kind", ["file", "tcp"])
@in_a_child
def test_nothing_is_kept_of_subscribers_that_left(kind: str, tmp_path: Path) -> None:
    from shardwire.compiler.compile_op import _numbers
    url = url_of(kind, tmp_path)
    pub = shardwire.publish(url, "policy", {"b": torch.zeros(3)})
    pub.commit(1)
    for _ in range(20):
        with shardwire.subscribe(url, "policy", timeout=20) as sub:
            assert sub.fetch() == 1
    limit = time.monotonic() + 20
    while pub._nonces or pub._servings or pub._ended:  # until the publisher's next look
        assert time.monotonic() < limit, (pub._nonces, pub._servings, pub._ended)
        time.sleep(0.05)
    assert not [name for name in _numbers if "subscriber" in name]
    pub.close()


@in_a_child
def test_a_fetch_reports_its_progress_and_refuses_a_target_that_no_run_can_take(tmp_path: Path) -> None:
    url, calls = url_of("file", tmp_path), []
    pub = shardwire.publish(url, "policy", {"b": torch.arange(300.0)})
    pub.commit(1)
    kind, text = raised(lambda: shardwire.subscribe(url, "policy", {"b": torch.zeros(1).expand(300)}, timeout=20))
    assert kind == "ValueError" and "'b'" in text, text
    with shardwire.subscribe(url, "policy", {"b": torch.zeros(300)}, timeout=20,
                             progress=lambda done, total: calls.append((done, total))) as sub:
        assert sub.fetch() == 1
    assert calls and calls[-1] == (1200, 1200), calls
    pub.close()


def test_seen_notes_are_forgotten_when_they_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RecordServer("127.0.0.1", 0)
    try:
        folder = FolderPlace(tmp_path)
        records = RecordPlace(RecordClient("127.0.0.1", int(server.address.rpartition(":")[2]), 5.0), "p")
        for place in (folder, records):
            seen = _SeenNotes("box")
            for number in range(50):
                note = place.post("box", str(number).encode())
                assert seen.read_new(place) == [(note, str(number).encode())] and seen.read_new(place) == []
                place.remove(f"box/{note}")
            assert seen.read_new(place) == [] and len(seen._names) == 0
        # Numbers whose note was never written, and one that is written late.
        for _ in range(3):
            records._client.ask("add", "p/box.count", 1)
        last = records.post("box", b"last")
        assert seen.read_new(records) == [(last, b"last")] and len(seen._names) == 1
        records.put("box/52", b"late")
        assert seen.read_new(records) == [("52", b"late")]
        monkeypatch.setattr(publishing, "_EMPTY_S", 0.0)
        assert seen.read_new(records) == [] and not seen._names and seen._before == int(last) == 54
    finally:
        server.close()


# Deaths.

def following(rank: int, url: str, ranks: int, seconds: float = 5.0) -> None:
    """Fetches until the test ends the process, and reports versions and errors."""
    wanted = columns(ranks)
    sub = shardwire.subscribe(url, "policy", wanted, group(), timeout=60)
    while True:
        try:
            version = sub.fetch(timeout=seconds)
            check(sub.target, wanted, rank, version)
            report("fetched", version)
        except shardwire.ShardwireError as error:
            report("failed", type(error).__name__, str(error))
            if "make another" in str(error):
                return
        time.sleep(0.002)


def fetched(job: Job, rank: int = 0) -> list[int]:
    return [words[1] for words in job.reports[rank] if words[0] == "fetched"]


def failed(job: Job, rank: int = 0, kind: str = "") -> list[tuple[str, str]]:
    return [words[1:] for words in job.reports[rank] if words[0] == "failed" and kind in ("", words[1])]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_publisher_is_named_and_the_next_one_is_found(victim: int, tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of("tcp", tmp_path)
        first = start(2, publisher, url, 2, 1)
        follower = start(2, following, url, 2, environment={"SHARDWIRE_RECORD_FILE": str(tmp_path / "trace_")})
        follower.until(lambda: len(fetched(follower)) > 3 and len(fetched(follower, 1)) > 3, 60, "fetches")
        first.kill(victim)
        follower.until(lambda: bool(failed(follower)) and bool(failed(follower, 1)), 30, "an error on both ranks")
        for rank in range(2):
            kind, text = failed(follower, rank)[0]
            assert kind == "PeerFailedError" and f"the publisher's rank {victim}" in text and "died" in text, text
        assert failed(follower)[0] == failed(follower, 1)[0], "the same error on both ranks"
        assert not list(tmp_path.glob("trace_*"))  # the members of the failed group have no ranks of one job
        first.kill()
        first.until(lambda: not first.running(), 10, "the deaths")  # the port is free then
        start(2, publisher, url, 2, 4)
        follower.until(lambda: 4 in fetched(follower) and 4 in fetched(follower, 1), 60,
                       "a version of the next publisher")


def test_a_publisher_that_died_before_the_subscriber_came_is_named(tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of("file", tmp_path)
        first = start(2, publisher, url, 2, 1)
        first.until(lambda: all(first.reports), 30, "a commit")
        first.kill(1)
        first.until(lambda: first.ended[1] is not None, 10, "the death")

        def late(rank: int) -> tuple[str, str]:
            return raised(lambda: shardwire.subscribe(url, "policy", columns(1), group(), timeout=1.0))

        ((kind, text),) = start(1, late).results()
        assert (kind == "TimeoutError" and "rank 1 (pid" in text
                and "rank 0 (" not in text.split("does not answer", 1)[1]), text
        assert not list(tmp_path.rglob("*.answer.*"))  # the subscriber takes its note back


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_subscriber_is_a_line_in_the_publishers_log(victim: int, tmp_path: Path) -> None:
    with jobs() as start:
        url, log = url_of("tcp", tmp_path), tmp_path / "log"
        served = start(2, publisher, url, 2, 300, 0.01, stderr=str(log))
        one, other = start(2, following, url, 2), start(1, following, url, 1)
        for job in (one, other):
            job.until(lambda: len(fetched(job)) > 3, 60, "fetches")
        one.kill(victim)
        one.until(lambda: one.ended == [one.ended[0], one.ended[1]] and one.ended[victim] is not None
                          and bool(failed(one, 1 - victim, "PeerFailedError")), 30, "an error on the other rank")
        assert "died" in failed(one, 1 - victim, "PeerFailedError")[0][1], failed(one, 1 - victim)
        before = len(fetched(other))
        other.until(lambda: len(fetched(other)) > before + 20, 30, "fetches of the other subscriber")
        assert not failed(other, kind="PeerFailedError"), failed(other)
        served.until(lambda: all(said and said[-1] == ("serves", 1) for said in served.reports), 30,
                     "the end of one subscription")
        slow = [words for said in served.reports for words in said if words[0] == "committed" and words[2] > 9]
        assert not slow, slow
        lines = [line for line in log.read_text().splitlines() if "publish 'policy'" in line]
        assert (len(lines) == 1 and "is gone" in lines[0] and f"pid {one.pids[victim]}" in lines[0]
                and "died" in lines[0]), log.read_text()


def test_a_subscriber_that_stops_in_a_fetch_is_sent_away(tmp_path: Path) -> None:
    with jobs() as start:
        url, log = url_of("tcp", tmp_path), tmp_path / "log"

        def large(rank: int) -> None:
            """A publisher of tensors too large for a ring."""
            tensor = torch.zeros(1 << 20)
            pub = shardwire.publish(url, "policy", {f"w{rank}": tensor}, group(), patience=0.5, timeout=60)
            for version in range(1 << 20):
                tensor.fill_(version)
                begin = time.monotonic()
                pub.commit(version)
                report("committed", version, time.monotonic() - begin)
                # in step, like the ranks of a training: else a rank may be ahead by more versions than are kept
                group().barrier().wait()
                time.sleep(0.02)

        def stopping(rank: int) -> tuple[str, str]:
            from shardwire.weights.fetching import Joint
            sub = shardwire.subscribe(url, "policy", None, group(), timeout=60)
            sub.fetch()
            ask = Joint.answer

            def stop(self: Joint, *args: Any) -> Any:
                rows = ask(self, *args)
                report("stops")
                os.kill(os.getpid(), signal.SIGSTOP)
                return rows

            Joint.answer = stop  # type: ignore[method-assign]
            result = raised(lambda: sub.fetch(timeout=30))
            assert sub.version is None
            Joint.answer = ask  # type: ignore[method-assign]
            version = sub.fetch(timeout=30)  # and comes back
            assert all((tensor == version).all() for tensor in sub.target.values())
            return result

        served = start(2, large, stderr=str(log))
        stopped = start(1, stopping)
        stopped.until(lambda: ("stops",) in stopped.reports[0], 60, "the stop")
        served.until(lambda: "was sent away" in log.read_text(), 30, "a line about it")
        count = len(served.reports[0])
        served.until(lambda: len(served.reports[0]) > count + 20, 30, "commits after it")
        assert not stopped.reports[0][1:], "still stopped"
        stopped.kill(number=signal.SIGCONT)
        ((kind, text),) = stopped.results()
        assert kind in ("AbortedError", "PeerFailedError") and "publisher" in text, (kind, text)
        longest = max(words[2] for said in served.reports for words in said if words[0] == "committed")
        assert 0.4 < longest < 20, longest


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_a_publisher_that_stops_is_a_timeout_and_is_found_again(kind: str, tmp_path: Path) -> None:
    with jobs() as start:
        url = url_of(kind, tmp_path)
        served = start(2, publisher, url, 2)

        def patient(rank: int) -> None:
            sub = shardwire.subscribe(url, "policy", columns(2), group(), timeout=60)
            sub.fetch()
            report("fetched")
            await_file(tmp_path / "stopped")
            for attempt in range(2):  # in a fetch, and in a new join
                begin = time.monotonic()
                assert raised(lambda: sub.fetch(timeout=0.5))[0] == "TimeoutError" and sub.version is None
                assert time.monotonic() - begin < 15
            report("gave up")
            version = sub.fetch(timeout=60)
            check(sub.target, columns(2), rank, version)

        job = start(2, patient)
        job.until(lambda: all(job.reports), 60, "a fetch")
        served.kill(number=signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        job.until(lambda: all(said[-1] == ("gave up",) for said in job.reports), 60, "two timeouts")
        served.kill(number=signal.SIGCONT)
        job.results()
        assert served.running() == [0, 1]


def test_all_ranks_of_the_subscriber_have_one_outcome(tmp_path: Path) -> None:
    """The answer reached one rank, and the publisher's death the other rank."""
    def apart(rank: int) -> None:
        from shardwire.weights.fetching import Joint
        sub = shardwire.subscribe(url, "policy", columns(2), group(), timeout=60)
        ask = Joint.answer

        def fail(self: Joint, *args: Any) -> Any:
            rows = ask(self, *args)
            if rows[0][2]:
                raise shardwire.PeerFailedError("made up")
            return rows

        if rank == 1:
            Joint.answer = fail  # type: ignore[method-assign]
        for _ in range(3):
            kind, text = raised(lambda: sub.fetch(99, timeout=0.2))
            assert kind == "PeerFailedError" and text.startswith("shardwire.fetch: rank 1: made up"), (kind, text)
            version = sub.fetch()
            check(sub.target, columns(2), rank, version)

    with jobs() as start:
        url = url_of("tcp", tmp_path)
        start(2, publisher, url, 2)
        start(2, apart).results()


def test_an_interrupted_fetch_ends_the_subscription_and_nothing_else(tmp_path: Path) -> None:
    def interrupted(rank: int) -> tuple[str, str]:
        sub = shardwire.subscribe(url, "policy", columns(2), group(), timeout=60)
        sub.fetch()
        report("waits")
        try:
            sub.fetch(99, timeout=60)
        except KeyboardInterrupt:
            assert rank == 0
            return raised(sub.fetch)
        except shardwire.ShardwireError as error:
            assert rank == 1 and isinstance(error, (shardwire.AbortedError, shardwire.PeerFailedError)), error
            return raised(sub.fetch)
        raise AssertionError("nothing was raised")

    with jobs() as start:
        url = url_of("tcp", tmp_path)
        served = start(2, publisher, url, 2)
        job = start(2, interrupted)
        job.until(lambda: all(("waits",) in said for said in job.reports), 60, "the wait")
        time.sleep(0.2)  # the rank reports just before the wait
        begin = time.monotonic()
        job.kill(0, number=signal.SIGINT)
        assert all(kind == "AbortedError" and "make another" in text for kind, text in job.results())
        assert time.monotonic() - begin < 30
        assert start(1, reader, url, 1).results() == [3] and served.running() == [0, 1]


# The campaign: kills at random moments.

BIG = {"w": (1024, 512), "b": (1000,)}


def trainer(rank: int, url: str, first: int) -> None:
    """Steps with the trainer's own collectives between, which subscribers must not disturb."""
    cut = Layout([0, 1], [Shard(0)], BIG["w"], F32)
    local, whole = torch.zeros(cut.local_shape(rank)), torch.zeros(BIG["b"])
    pub = shardwire.publish(url, "policy", {"w": (cut, local), "b": whole}, group(), changes=first % 2 == 0,
                            buffers=1 + first // 100 % 3, timeout=30)
    for version in range(first, first + 99):
        local.copy_(cut.take(value_of("w", version, BIG), rank))
        whole.copy_(value_of("b", version, BIG))
        pub.commit(version)
        total = torch.ones(1)
        group().allreduce([total]).wait()
        assert total.item() == 2
        report("committed", version)
        time.sleep(0.01 if version < first + 90 else 0.3)
    time.sleep(600)


def campaigner(rank: int, url: str, ranks: int, seed: int) -> None:
    rng = random.Random(seed)  # the same on all ranks
    mesh = list(range(ranks))
    wanted = {"w": Layout(mesh, [rng.choice([Shard(1), Shard(0), Replicate()])], BIG["w"], F32),
              "b": Layout(mesh, [Shard(0)], BIG["b"], F32)}
    staged = rng.random() < 0.5
    sub: Any = None
    while sub is None:
        try:
            sub = shardwire.subscribe(url, "policy", wanted, group(), staged=staged, timeout=60)
        except shardwire.ShardwireError as error:  # the publisher was killed meanwhile, or one of us
            report("failed", type(error).__name__, str(error))
            if "shardwire:0" in str(error):  # the group of our own job
                return
    before = None
    while True:
        error = None
        try:
            version = sub.fetch(timeout=10, newer=rng.random() < 0.3, changed=rng.random() < 0.5)
        except shardwire.ShardwireError as failure:
            error = failure
        if error is None:
            before = version
        elif staged and sub.version != before:
            report("mixture", f"version {sub.version} after {before} and {error}")
            return
        for name, layout in wanted.items() if sub.version is not None else ():  # after an error as well
            expected = layout.take(value_of(name, sub.version, BIG), rank)
            if not torch.equal(sub.target[name], expected):
                report("mixture", name, sub.version, sorted(set((sub.target[name] // 1000).reshape(-1).tolist()))[:9],
                       str(error))
                return
        if error is None:
            report("fetched", version)
            continue
        report("failed", type(error).__name__, str(error))
        if "make another" in str(error):
            return

def reader_with_a_late_rank(rank: int, url: str, folder: Path) -> int:
    wanted = columns(2)
    create = _C.create_backend
    if rank == 1:
        def when_the_store_has_ended(*args: Any, **named: Any) -> Any:
            report("joins")
            await_file(folder / "ended")
            return create(*args, **named)
        _C.create_backend = when_the_store_has_ended
    sub = shardwire.subscribe(url, "policy", wanted, group(), timeout=60)
    _C.create_backend = create
    version = sub.fetch(3)
    check(sub.target, wanted, rank, 3)
    return version


def test_the_publishers_store_ends_while_the_subscribers_join(tmp_path: Path) -> None:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    with jobs() as start:
        store = RecordServer("127.0.0.1", port)
        readers = start(2, reader_with_a_late_rank, url, tmp_path)
        readers.until(lambda: bool(readers.reports[1]), 30, "rank 1's step")
        time.sleep(0.3)  # for rank 0's part of the same step
        store.close()
        (tmp_path / "ended").touch()
        start(1, publisher, url, 1)
        assert readers.results() == [3, 3]


def test_random_kills(tmp_path: Path) -> None:
    """SHARDWIRE_TEST_KILLS is the number of kills; the seed is printed."""
    kills, seed = (int(os.environ.get("SHARDWIRE_TEST_KILLS", "12")),
                   int(os.environ.get("SHARDWIRE_TEST_SEED", random.randrange(1 << 30))))
    print(f"seed {seed}")
    rng = random.Random(seed)
    port = free_port()
    with jobs() as start:
        # In half of the campaigns the store outlives the publishers; in the other half the rank 0 of the publishers
        # serves the store.
        store = RecordServer("127.0.0.1", port) if seed % 2 else None
        url, log = f"tcp://127.0.0.1:{port}", str(tmp_path / "log")
        first, kills_of = 100, {"publisher": 0, "subscriber": 0}
        publishing = start(2, trainer, url, first, stderr=log)
        readers = [start(ranks, campaigner, url, ranks, rng.randrange(1 << 30), stderr=log) for ranks in (1, 2)]
        everyone = list(readers)

        def look(seconds: float) -> None:
            limit = time.monotonic() + seconds
            while True:
                for job in (publishing, *readers):
                    job.poll(0.005)
                mixed = [words for job in everyone for said in job.reports for words in said
                         if words[0] in ("mixture", "error")]
                assert not mixed, f"seed {seed}: {mixed[0]}"
                if time.monotonic() > limit:
                    return

        for _ in range(kills):
            look(rng.choice([0.02, 0.3, 1.0]) * rng.random())
            if rng.random() < 0.35:
                kills_of["publisher"] += 1
                victims = rng.choice([[0], [1], [0, 1]])
                publishing.kill(*victims)
                look(0.3 * rng.random())
                publishing.end()
                first += 100
                publishing = start(2, trainer, url, first, stderr=log)
            else:
                kills_of["subscriber"] += 1
                which = rng.randrange(len(readers))
                readers[which].kill(rng.randrange(readers[which].size))
                look(0.2 * rng.random())
                readers[which].end()
                ranks = readers[which].size
                readers[which] = start(ranks, campaigner, url, ranks, rng.randrange(1 << 30), stderr=log)
                everyone.append(readers[which])
        for job in readers:
            for rank in range(job.size):
                job.until(lambda: any(version >= first for version in fetched(job, rank)), 60,
                          f"seed {seed}: a version of the last publisher on rank {rank}")
        look(0.2)
        assert publishing.running() == [0, 1], f"seed {seed}: {publishing.reports}"
        count = sum(len(fetched(job, rank)) for job in everyone for rank in range(job.size))
        print(f"{kills_of}, {count} fetches, "
              f"{sum(len(failed(job, rank)) for job in everyone for rank in range(job.size))} errors")
        if store is not None:
            store.close()


@in_a_child
def test_a_newer_publisher_takes_the_name(tmp_path: Path) -> None:
    url, state = f"file://{tmp_path}", {"b": torch.zeros(3)}
    older = shardwire.publish(url, "policy", state)
    older.commit(1)
    sub = shardwire.subscribe(url, "policy", timeout=20)
    assert sub.fetch() == 1
    newer = shardwire.publish(url, "policy", state)
    newer.commit(9)
    limit = time.monotonic() + 10
    while older.subscribers and time.monotonic() < limit:
        time.sleep(0.01)
    kind, text = raised(lambda: older.commit(2))
    assert kind == "AbortedError" and "another publisher took its name" in text
    assert raised(sub.fetch)[0] in ("AbortedError", "PeerFailedError")
    assert sub.version is None and sub.fetch() == 9
    older.close()
    assert sub.fetch() == 9, "the older one's end leaves the newer one's record alone"
    sub.close()
    newer.close()


ANOTHER = {"id": "another", "size": 1, "who": ["another"]}


def overtaken(rank: int, url: str, folder: Path) -> None:
    """Another publisher takes the name before any rank looks for its own record."""
    announce, is_replaced = Publication._announce, Publication._is_replaced

    def announce_both(self: Publication) -> None:
        announce(self)
        self._place.put("publisher", signed("publisher", ANOTHER))
        (folder / "overtaken").touch()

    def look_later(self: Publication, place: Any) -> bool:
        await_file(folder / "overtaken")
        return is_replaced(self, place)

    Publication._announce, Publication._is_replaced = announce_both, look_later  # type: ignore[method-assign]
    pub = shardwire.publish(url, "policy", {"b": torch.zeros(3)}, group())
    limit = time.monotonic() + 20
    while not pub._over:
        assert time.monotonic() < limit, "it did not see that another one has the name"
        time.sleep(0.01)
    kind, text = raised(lambda: pub.commit(1))
    assert kind == "AbortedError" and "another publisher took its name" in text
    (folder / f"over{rank}").touch()
    await_file(folder / f"over{1 - rank}")  # rank 0 may serve the store


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_a_publisher_that_never_saw_its_own_record_finds_the_newer_one(kind: str, tmp_path: Path) -> None:
    with jobs() as start:
        start(2, overtaken, url_of(kind, tmp_path), tmp_path).results()


@in_a_child
def test_an_older_publishers_record_is_not_taken_for_a_newer_one(tmp_path: Path) -> None:
    """The look for a newer record begins before our record is there, and ends after."""
    url, peek, announce = url_of("file", tmp_path), FolderPlace.peek, Publication._announce
    Address(url, "policy").open(5.0).put("publisher", signed("publisher", ANOTHER))
    begun, announced, looks = threading.Event(), threading.Event(), []

    def slow_peek(self: FolderPlace, key: str) -> bytes | None:
        found = peek(self, key)
        if key == "publisher" and threading.current_thread().name.startswith("shardwire-publish"):
            begun.set()
            assert announced.wait(20)
            looks.append(found)
        return found

    def announce_and_report(self: Publication) -> None:
        assert begun.wait(20)
        announce(self)
        announced.set()
        limit = time.monotonic() + 10
        while len(looks) < 2 and time.monotonic() < limit:
            time.sleep(0.01)

    FolderPlace.peek, Publication._announce = slow_peek, announce_and_report  # type: ignore[method-assign]
    pub = shardwire.publish(url, "policy", {"b": torch.zeros(3)})
    assert len(looks) >= 2 and b"another" in (looks[0] or b""), looks
    pub.commit(1)
    pub.close()


@in_a_child
def test_lazy_views_numbers_of_numpy_and_several_threads(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    state = torch.tensor([1j, 2j, 3 + 1j])
    pub = shardwire.publish(url, "policy", {"c": state.conj(), "i": state.conj().imag}, changes=True)
    sub = shardwire.subscribe(url, "policy", timeout=30)
    for step in numpy.arange(6, 9):
        pub.commit(step)
        assert sub.fetch(step, changed=True) == step == sub.version and type(sub.version) is int
        assert torch.equal(sub.target["c"], state.conj().resolve_conj()) and torch.equal(sub.target["i"], -state.imag)
        state += 1j
    errors: list[BaseException] = []

    def fetch_again_and_again() -> None:
        try:
            for _ in range(10):
                sub.fetch()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fetch_again_and_again) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and pub.subscribers == 1, errors
    sub.close()
    pub.close()
