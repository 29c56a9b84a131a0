"""The planner of an operation: rank 0 for all, each rank for itself, or one process without a group. The rows of the
documents' table, and the errors of each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fork_ranks import meet
from plan_cases import layouts, run_op
from ranks import outcome
from test_offline import SIZE, cases

import shardwire
from shardwire import CustomOp, UnsupportedError

pytestmark = pytest.mark.any_torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compile.md"
SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))
F32 = torch.float32


# The rows of the table.


def rows_of_the_table(rank, size):
    each, shipped, with_cc, placed = (shardwire.compile_op(None, **layouts(size), **named) for named in (
        {}, {"is_spmd": True}, {"is_spmd": False, "cc_enabled": True},
        {"is_spmd": True, "cc_enabled": True, "rank_id": rank, "world_size": size}))
    alone = shardwire.compile_op(None, **layouts(size), cc_enabled=False)  # rank and size are the group's
    other = shardwire.compile_op(None, **layouts(3), cc_enabled=False, rank_id=2, world_size=3)
    for op in (each, shipped, with_cc, placed):
        assert op.has_group
        run_op(op, rank, size)
    assert len({op.plan_bytes() for op in (each, shipped, with_cc, placed, alone)}) == 1
    assert other.traffic()["rank"] == 2 and other.traffic()["world_size"] == 3 and not other.has_group
    whole = each.traffic()
    assert alone.traffic() == whole
    own = shipped.traffic()
    if rank == 0:
        assert own == whole
    else:
        assert (own["lower_bound_bytes"] is None
                and own["edges"] == [edge for edge in whole["edges"] if rank in (edge["src"], edge["dst"])])
        assert "another rank planned" in shipped.explain()
        shipped.plot(f"shipped{rank}.svg")
        assert f"of rank {rank} only" in Path(f"shipped{rank}.svg").read_text()
    assert {name: value for name, value in shipped.stats().items() if name.startswith("bytes_")} == {
        name: value for name, value in each.stats().items() if name.startswith("bytes_")}
    return True


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_rows_of_the_table(run_ranks, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_ranks(size, rows_of_the_table) == [True] * size


def test_many_ranks_whose_specs_rank_0_keeps(run_ranks):
    assert run_ranks(18, many) == [True] * 18


def many(rank, size):
    op = shardwire.compile_op(None, **layouts(size, 36), is_spmd=True)
    run_op(op, rank, size, 36)
    assert op.plan_bytes() == shardwire.compile_op(None, **layouts(size, 36)).plan_bytes()
    return True


ALONE = [
    ({"rank_id": 1, "world_size": 2}, None),
    ({"rank_id": 1, "world_size": 2, "is_spmd": True}, None),
    ({"rank_id": 1, "world_size": 2, "is_spmd": False, "cc_enabled": True}, None),
    ({"cc_enabled": False, "rank_id": 0, "world_size": 2}, None),
    ({"cc_enabled": False}, None),
    ({}, "ValueError: there is no default process group"),
    ({"is_spmd": True}, "ValueError: there is no default process group"),
    ({"cc_enabled": True}, "ValueError: cc_enabled is True, but rank and world size are not known"),
    ({"cc_enabled": True, "rank_id": 1}, "ValueError: cc_enabled is True, but rank and world size are not known"),
    ({"cc_enabled": True, "is_spmd": True, "rank_id": 0, "world_size": 2},
     "ValueError: is_spmd=True ships what rank 0 compiles, which needs a process group"),
    ({"rank_id": 1}, "ValueError: rank_id is given and world_size is not; give both to plan without a group"),
    ({"cc_enabled": False, "world_size": 2}, "ValueError: world_size is given and rank_id is not"),
    ({"rank_id": 2, "world_size": 2}, "ValueError: rank_id is 2, which is no rank of 0..1"),
    ({"rank_id": 0, "world_size": 0}, "ValueError: world_size is 0"),
    ({"is_spmd": 1, "cc_enabled": False}, "TypeError: is_spmd is 1"),
    ({"cc_enabled": 0, "rank_id": 0, "world_size": 2}, "TypeError: cc_enabled is 0"),
    ({"cc_enabled": False, "rank_id": "0", "world_size": 2}, "TypeError: rank_id is '0'"),
    ({"cc_enabled": False, "overlap": "first"}, "ValueError: overlap is 'first'"),
    ({"cc_enabled": False, "timeout": -1}, "ValueError: timeout is -1"),
]


@pytest.mark.parametrize("given, expected", ALONE)
def test_without_a_group(given, expected):
    found = outcome(shardwire.compile_op, None, **layouts(given.get("world_size") or 1), **given)
    assert found == expected if expected is None or found is None else ": ".join(found).startswith(expected), found


# The default planner.


def chosen(rank, size, boxes, cores):
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, every[:cores])  # only rank 0's cores count
    given = {"shape": [size, boxes, 4], "dtype": F32,
             "inputs": [{"offset": [rank, box, 0], "shape": [1, 1, 4]} for box in range(boxes)],
             "outputs": [{"offset": [(rank + 1) % size, box, 0], "shape": [1, 1, 4]} for box in range(boxes)]}
    by_default, each = shardwire.compile_op(None, **given), shardwire.compile_op(None, **given, is_spmd=False)
    assert by_default.plan_bytes() == each.plan_bytes()
    mixed = outcome(shardwire.compile_op, None, **given, is_spmd=None if rank == 17 else True)
    return by_default.origin, mixed


@pytest.mark.parametrize("size, boxes, ships", [(18, 400, True), (18, 4, False), (16, 400, False)])
def test_by_default_rank_0_plans_for_many_ranks_that_share_a_core(run_ranks, size, boxes, ships):
    found = run_ranks(size, chosen, boxes, 1)
    assert [origin for origin, _ in found] == ["planned"] + ["received" if ships else "planned"] * (size - 1)
    if size == 18:
        assert (found[0][1] is not None and "rank 0 gives is_spmd=True (rank 0 plans for all), rank 17 gives "
                                            "is_spmd=None (shardwire chooses)" in found[0][1][1])
        assert [each for _, each in found] == [found[0][1]] * size


# Offline.


def test_an_op_without_a_group_describes_itself_and_does_not_run():
    op = shardwire.compile_op(None, **layouts(3), rank_id=1, world_size=3, name="gather")
    text = op.explain()
    assert ('compile_op "gather" on 3 ranks, 1 tensor; planned without a group' in text
            and "between ranks: 192 B; the least possible: 192 B" in text)
    assert op.traffic() == {**shardwire.plan(3, **layouts(3), name="gather").traffic(), "rank": 1,
                            "tensors": op.traffic()["tensors"]}
    assert op.stats()["bytes_received"] == 64 and op.tensors[0].dtype == F32 and not op.has_group
    for call in (op, op.bind):
        with pytest.raises(UnsupportedError, match=r'compile_op "gather" was planned for rank 1 of 3 without a group, '
                                                   r'and has none to run in: attach it to a group of 3 ranks first'):
            call([torch.empty(2, 4)], [torch.empty(6, 4)])
    again = CustomOp.from_plan_bytes(op.plan_bytes())
    assert (again.plan_bytes() == op.plan_bytes() and again.traffic()["lower_bound_bytes"] is None
            and not again.has_group)
    with pytest.raises(ValueError, match="cut short or damaged"):
        CustomOp.from_plan_bytes(op.plan_bytes()[:-1])
    with pytest.raises(TypeError, match="data is 3"):
        CustomOp.from_plan_bytes(3)


def test_a_plan_has_an_op_for_each_rank():
    made = shardwire.plan(3, **layouts(3), topology={"hosts": [0, 1, 0]})
    for rank in range(3):
        op = made.op(rank)
        assert {name: op.stats()[name] for name in ("bytes_sent", "bytes_received", "num_moves")} == {
            name: made.ranks[rank][name] for name in ("bytes_sent", "bytes_received", "num_moves")}
    assert made.op(0).plan_bytes() != shardwire.plan(3, **layouts(3)).op(0).plan_bytes()  # other hosts
    for wrong in (3, -1, True):
        with pytest.raises((TypeError, ValueError), match="rank is "):
            made.op(wrong)


def attached(rank, size):
    offline = shardwire.compile_op(None, **layouts(size), cc_enabled=False, rank_id=rank, world_size=size)
    ops = [offline.attach(), CustomOp.from_plan_bytes(offline.plan_bytes()).attach(dist.group.WORLD, timeout=30),
           offline.attach()]
    for op in reversed(ops):
        assert op.has_group
        run_op(op, rank, size)
    assert ops[0].plan_bytes() == offline.plan_bytes()
    wrong = shardwire.compile_op(None, **layouts(size, 12 if rank == 1 else 6), cc_enabled=False)
    of_rank_0 = shardwire.compile_op(None, **layouts(size), cc_enabled=False, rank_id=0, world_size=size)
    found = [outcome(wrong.attach), outcome(of_rank_0.attach), outcome((ops[0] if rank == 2 else offline).attach),
             outcome(offline.attach, timeout=-1 if rank == 1 else None)]
    run_op(offline.attach(), rank, size)
    return found


def test_an_op_that_was_planned_without_a_group_gets_one(run_ranks):
    found = run_ranks(3, attached)
    assert found[0] == found[1] == found[2]
    assert [kind for kind, _ in found[0]] == ["MismatchError", "ValueError", "ValueError", "ValueError"]
    for text, (_, said) in zip(("ranks 0, 2 gave compile_op, plan", "rank 1: compile_op was planned for rank 0 of 3",
                                "rank 2: this op has a group already", "rank 1: timeout is -1"), found[0]):
        assert text in said, said


# Errors, the same on all ranks of each pattern.


def misuse(rank, size, which, is_spmd):
    given, named = layouts(size), {"is_spmd": is_spmd}
    if which == "disagree":
        named["is_spmd"] = rank != 1
    if which == "kind" and rank == 1:
        named["is_spmd"] = "yes"
    if which == "cc" and rank == 2:
        named["cc_enabled"] = 1
    if which == "rank_id":
        named["rank_id"] = 0
    if which == "world_size" and rank == 2:
        named["world_size"] = 9
    if which == "list" and rank == 1:
        given["inputs"] = [{"offset": [0]}]
    if which == "gap" and rank == 1:
        given["inputs"] = []
    if which == "flags":
        named["allow_gaps"] = rank == 2
    if which == "timeout" and rank == 1:
        named["timeout"] = -1
    found = outcome(shardwire.compile_op, None, **given, **named)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == size
    run_op(shardwire.compile_op(None, **layouts(size), is_spmd=is_spmd), rank, size)
    return found


MISUSES = {
    "disagree": ("ValueError", ("rank 0 gives is_spmd=True (rank 0 plans for all), rank 1 gives is_spmd=False (each "
                                "rank plans): give the same value on all ranks")),
    "kind": ("TypeError", "rank 1: is_spmd is 'yes'; give True or False"),
    "cc": ("TypeError", "rank 2: cc_enabled is 1; give True, False, or None to decide by the group"),
    "rank_id": ("ValueError", ("rank 1: rank_id is 0, but in the group it is 1; leave it out where there is a group (1 "
                               "more rank reported an error, the next is rank 2)")),
    "world_size": ("ValueError", "rank 2: world_size is 9, but in the group it is 3"),
    "list": ("ValueError", "rank 1: inputs[0] has no 'shape'"),
    "gap": ("GapError", "no input covers"),
    "flags": ("ValueError", "rank 0 gives allow_gaps=false, rank 2 gives allow_gaps=true"),
    "timeout": ("ValueError", "rank 1: timeout is -1"),
}


@pytest.mark.parametrize("which", MISUSES)
def test_a_misuse_is_one_error_on_all_ranks_whoever_plans(run_ranks, which):
    kind, text = MISUSES[which]
    found = [each for is_spmd in (True, False) for each in run_ranks(3, misuse, which, is_spmd)]
    assert found[0] is not None and found[0][0] == kind and text in found[0][1], found[0]
    assert found == [found[0]] * 6  # planned by rank 0 and by each rank


def never_comes(rank, size, absent, is_spmd):
    found = None
    if rank != absent:
        meet("here", size - 1)
        found = outcome(shardwire.compile_op, None, **layouts(size), is_spmd=is_spmd, timeout=2)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"left{rank}", "")
    store.wait([f"left{each}" for each in range(size)])
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_never_comes_is_named(run_ranks, absent):
    for is_spmd in (True, False):
        found = run_ranks(3, never_comes, absent, is_spmd)
        for rank in {0, 1, 2} - {absent}:
            assert found[rank][0] == "TimeoutError" and f"rank {absent}" in found[rank][1], found[rank]


def dies(rank, size):
    if rank == 0:
        os._exit(9)
    found = outcome(shardwire.compile_op, None, **layouts(size), is_spmd=True)
    dist.destroy_process_group()
    return found


def test_a_rank_0_that_dies_is_named(run_ranks):
    found = run_ranks(3, dies, may_die=(0,))
    assert all(each[0] == "PeerFailedError" and "rank 0" in each[1] for each in found[1:]), found


# Random cases: the plans and the errors are the same with every planner.


def random_cases(rank, size):
    found = []
    for given, own in cases():
        arguments = {**given, **(own[rank] if own else {})}
        outcomes = []
        for named in ({}, {"is_spmd": True}):
            try:
                outcomes.append(shardwire.compile_op(None, **arguments, **named).plan_bytes())
            except (TypeError, ValueError, NotImplementedError) as error:
                outcomes.append((type(error).__name__, str(error)))
        found.append(outcomes)
    return found


def test_random_plans_are_the_same_whoever_makes_them(run_ranks):
    print("seed", SEED)
    real = run_ranks(SIZE, random_cases)
    kinds = set()
    for number, (given, own) in enumerate(cases()):
        each_rank = None if own is None else lambda rank: own[rank]
        try:
            made = shardwire.plan(SIZE, **given, each_rank=each_rank)
            expected = [made.op(rank).plan_bytes() for rank in range(SIZE)]
        except (TypeError, ValueError, NotImplementedError) as error:
            expected = [(type(error).__name__, str(error))] * SIZE
        for rank in range(SIZE):
            kinds.add(type(expected[rank]))
            assert real[rank][number] == [expected[rank]] * 2, (number, rank, given, own)
    assert kinds == {bytes, tuple}  # some cases fit, some are refused


def test_the_example_of_the_page(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    script = tmp_path / "page.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, "-m", "shardwire.launch", "-n", "2", str(script)], cwd=tmp_path,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("compile_op on 2 ranks, 1 tensor; planned without a group") == 2
