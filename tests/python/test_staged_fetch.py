"""A subscriber's target after a fetch fails in the middle, and fetches into a second copy (staged=True)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import error_of as raised
from test_publish import Model, in_a_child
from two_jobs import group, jobs, report

import shardwire
from shardwire import Layout, Shard
from shardwire.weights.fetching import Joint
from shardwire.weights.movement import Movement
from shardwire.weights.staging import Stage

ROWS, COLUMNS = 64, 4096
CUT = Layout([0, 1], [Shard(0)], [ROWS, COLUMNS], torch.float32)  # a publisher's rank holds half of the rows, 512 KiB
LIMIT_S = 60.0
LONG = 1 << 21  # elements: more than the lanes hold


def until(condition: Any) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


def half_a_publisher(rank: int, url: str, folder: str, first: int) -> None:
    """Commits ``first``. After the fetch commits the next version, of which rank 1 never sends any byte."""
    part = torch.full((ROWS // 2, COLUMNS), float(first))
    pub = shardwire.publish(url, "policy", {"w": (CUT, part)}, group(), changes=True, timeout=LIMIT_S)
    pub.commit(first)
    report("committed", first)
    until(Path(folder, f"fetched.{first}").exists)
    if rank == 1:
        Movement.run = lambda *_: time.sleep(600)  # type: ignore[method-assign, assignment, return-value]
    part.fill_(first + 1)
    pub.commit(first + 1)
    report("committed", first + 1)
    time.sleep(600)


def in_the_middle(rank: int, url: str, folder: str, staged: bool) -> str:
    """Each of two ranks wants all columns of every second row block, and so bytes of both publisher's ranks."""
    target = {"w": (Layout([0, 1], [Shard(1)], [ROWS, COLUMNS], torch.float32), torch.zeros(ROWS, COLUMNS // 2))}
    sub = shardwire.subscribe(url, "policy", target, group(), staged=staged, timeout=LIMIT_S)
    assert sub.fetch() == 1 and (sub.target["w"] == 1).all()
    if rank == 0:
        Path(folder, "fetched.1").touch()
    run = Movement.run

    def run_half(self: Movement, *rest: Any) -> Any:
        future = run(self, *rest)
        place = self._target.tensors()["w"]
        assert isinstance(place, torch.Tensor)
        until(lambda: bool((place[:ROWS // 2] == 2).all()))
        report("half")
        return future

    Movement.run = run_half  # type: ignore[method-assign]
    kind, text = raised(lambda: sub.fetch(2))
    Movement.run = run  # type: ignore[method-assign]
    assert kind == "PeerFailedError" and "the publisher's rank 1" in text, (kind, text)
    now = sub.target["w"]
    if staged:
        assert ((now == 1).all() and sub.version == 1
                and "the target was not touched: it is version 1, whole" in text), text
        assert "no version of 'policy' is staged whole" in raised(sub.apply)[1]
    else:
        assert (now[:ROWS // 2] == 2).all() and (now[ROWS // 2:] == 1).all(), "else this test shows nothing"
        assert (sub.version is None and "the target may hold parts of two versions now" in text
                and "staged=True" in text), text
    report("reported")
    # From the next publisher the fetch gets all bytes, also with changed=True.
    assert sub.fetch(timeout=LIMIT_S, changed=True) == 11 == sub.version and (now == 11).all()
    return text


@pytest.mark.parametrize("staged", [True, False])
def test_a_publisher_that_is_killed_in_the_middle(staged: bool, tmp_path: Path) -> None:
    with jobs() as start:
        url = f"file://{tmp_path}/meeting"
        first = start(2, half_a_publisher, url, str(tmp_path), 1)
        job = start(2, in_the_middle, url, str(tmp_path), staged)
        job.until(lambda: all(("half",) in said for said in job.reports) or job.running() != [0, 1], LIMIT_S,
                  "half of a version on both ranks")
        first.kill(1)
        job.until(lambda: all(("reported",) in said for said in job.reports) or job.running() != [0, 1], LIMIT_S,
                  "an error on both ranks")
        first.kill()
        start(2, half_a_publisher, url, str(tmp_path), 11)
        one, other = job.results()
        assert one == other, "the same error on both ranks"


class Failing:
    """Inside the with statement a fetch fails on this rank after the bytes have arrived."""

    def __enter__(self) -> None:
        self.done = Joint.done

        def fail(*_: Any) -> Any:
            raise shardwire.PeerFailedError("made up")
        Joint.done = fail  # type: ignore[method-assign]

    def __exit__(self, *_: Any) -> None:
        Joint.done = self.done  # type: ignore[method-assign]


@pytest.mark.parametrize("staged", [True, False])
def test_what_changed_is_not_counted_from_a_copy_that_is_not_whole(staged: bool, tmp_path: Path) -> None:
    """A failed fetch brought version 3. Version 2, with fewer changes since version 1, must undo all changes of version
    3.
    """
    def fetching(rank: int) -> None:
        rows = torch.zeros(1000, 256)
        url = f"file://{tmp_path}/{rank}"
        alone = shardwire.create_process_group(torch.distributed.HashStore(), 0, 1, LIMIT_S)
        pub = shardwire.publish(url, "policy", {"w": rows}, alone, buffers=3, changes=True)
        sub = shardwire.subscribe(url, "policy", None, alone, staged=staged, timeout=LIMIT_S)
        then = {}
        for version in (1, 2, 3):
            rows[version * 200] = version
            then[version] = rows.clone()
            pub.commit(version)
        assert sub.fetch(1, changed=True) == 1
        with Failing():
            assert raised(lambda: sub.fetch(3, changed=True))[0] == "PeerFailedError"
        assert sub.version == (1 if staged else None)
        if staged:
            assert torch.equal(sub.target["w"], then[1])
            report("staged")
            assert raised(lambda: sub.fetch(9, newer=True, timeout=0.1))[0] == "TimeoutError" and sub.version == 1
        assert sub.fetch(2, changed=True) == 2 and torch.equal(sub.target["w"], then[2])
        assert sub.fetch(newer=True, changed=True) == 3 and torch.equal(sub.target["w"], then[3])

    with jobs() as start:
        start(1, fetching).results()


@in_a_child
def test_halves_of_a_fetch(tmp_path: Path) -> None:
    url, source, target = f"file://{tmp_path}", Model(), Model()
    pub = shardwire.publish(url, "policy", source)
    sub = shardwire.subscribe(url, "policy", target, staged=True, timeout=20)
    plain = shardwire.subscribe(url, "policy", timeout=20)
    assert ("subscribe(staged=True)" in raised(plain.stage)[1]
            and raised(plain.apply)[0] == raised(sub.apply)[0] == "ValueError")

    def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def same(module: torch.nn.Module, expected: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())

    first = state_of(target)
    then = {}
    for version in range(3):
        with torch.no_grad():
            for tensor in source.parameters():
                tensor.add_(version + 1)
        pub.commit(version)
        then[version] = state_of(source)
        assert sub.stage(newer=version > 0) == version
        assert (same(target, first if version == 0 else then[0])
                and sub.version == (None if version == 0 else 0)), "only apply writes the target"
        if version == 0:
            assert sub.apply() == 0 == sub.version and same(target, then[0])
    target.body[0].weight.data = torch.zeros(6, 6)  # as optimizers do
    assert sub.apply() == 2 == sub.version and same(target, then[2]) and target.head.weight is target.embed.weight
    target.body[0].weight.data = torch.zeros(3, 6)
    for call in (sub.apply, sub.fetch):
        kind, text = raised(call)
        assert kind == "ValueError" and "'body.0.weight' has shape [3, 6]" in text and sub.version == 2, (kind, text)
    assert (raised(lambda: shardwire.subscribe(url, "policy", target, staged=1))[0]  # type: ignore[arg-type]
            == "TypeError")
    for each in (sub, plain, pub):
        each.close()


@in_a_child
def test_apply_is_refused_while_another_thread_stages(tmp_path: Path) -> None:
    """Also while another thread copies in a fetch: the target would hold parts of two versions."""
    url, source = f"file://{tmp_path}", torch.ones(4)
    pub = shardwire.publish(url, "policy", {"w": source})
    pub.commit(1)
    sub = shardwire.subscribe(url, "policy", {"w": torch.zeros(4)}, staged=True, timeout=20)
    sub.stage()
    goes_on = threading.Event()
    run, copy = Movement.run, Stage.copy_to_target
    try:
        for place, name, call in ((Movement, "run", run), (Stage, "copy_to_target", copy)):
            reached = threading.Event()

            def slow(*arguments: Any, call: Any = call, reached: Any = reached) -> Any:
                reached.set()
                assert goes_on.wait(20)
                return call(*arguments)

            goes_on.clear()
            setattr(place, name, slow)
            fetching = threading.Thread(target=sub.fetch)
            fetching.start()
            assert reached.wait(20)
            setattr(place, name, call)
            kind, text = raised(sub.apply)
            goes_on.set()
            fetching.join()
            assert kind == "ValueError" and "another thread is in a stage or fetch of 'policy'" in text, (kind, text)
            assert sub.apply() == 1
    finally:
        goes_on.set()
        Movement.run, Stage.copy_to_target = run, copy  # type: ignore[method-assign]
    for each in (sub, pub):
        each.close()


@pytest.mark.parametrize("staged", [True, False])
def test_an_error_of_one_ranks_target_is_raised_at_once_on_all_ranks(staged: bool, tmp_path: Path) -> None:
    def changing(rank: int) -> None:
        targets = {"w": torch.zeros(LONG), "v": torch.zeros(LONG)}
        sub = shardwire.subscribe(url, "policy", targets, group(), staged=staged, timeout=LIMIT_S)
        assert sub.fetch() == 1
        kept = targets["w"]
        if rank == 1:
            targets["w"] = torch.zeros(9)
        begin = time.monotonic()
        kind, text = raised(sub.fetch)
        assert kind == "ValueError" and "rank 1: " in text and "9" in text, (kind, text)
        assert time.monotonic() - begin < LIMIT_S / 2
        targets["w"] = kept
        assert sub.fetch() == 1
        group().barrier().wait()

    def publishing(rank: int) -> None:
        with shardwire.publish(url, "policy", {"w": torch.ones(LONG), "v": torch.ones(LONG)}, group()) as pub:
            pub.commit(1)
            until((tmp_path / "done").exists)

    url = f"file://{tmp_path}/meeting"
    with jobs() as start:
        publisher = start(1, publishing)
        start(2, changing).results()
        (tmp_path / "done").touch()
        publisher.results()


@in_a_child
def test_what_is_staged_is_cast_and_cut_as_without(tmp_path: Path) -> None:
    """Random shapes and layouts: a staged target has the bits of a target written in place. SHARDWIRE_ORACLE_SEED
    repeats a run.
    """
    seed = int(os.environ.get("SHARDWIRE_ORACLE_SEED", time.time_ns() % (1 << 30)))
    print(f"seed {seed}")
    draw = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=draw))]

    for case in range(4):
        shapes = {f"w{number}": tuple(pick(0, 1, 3, 17, 40) for _ in range(pick(0, 1, 2, 3)))
                  for number in range(pick(1, 3, 6))}
        state = {name: torch.randn(shape, generator=draw).to(pick(torch.float32, torch.bfloat16))
                 for name, shape in shapes.items()}
        dtype = pick(torch.float32, torch.bfloat16, torch.float16)
        pub = shardwire.publish(f"file://{tmp_path}/{case}", "policy", state)
        pub.commit(case)
        targets = []
        for staged in (False, True):
            sub = shardwire.subscribe(f"file://{tmp_path}/{case}", "policy",
                                      {name: torch.full(shape, 7.0).to(dtype) for name, shape in shapes.items()},
                                      staged=staged, timeout=20)
            assert sub.fetch() == case
            targets.append(sub.target)
            sub.close()
        assert all(torch.equal(targets[0][name], targets[1][name])
                   and torch.equal(targets[1][name], state[name].to(dtype)) for name in shapes), f"seed {seed}"
        pub.close()
