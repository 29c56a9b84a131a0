"""Kept plans: ``use_cached_if_exists`` and ``build_dir`` of compile_op. tests/backend/plan_cache_test.cc tests the
possible files.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from fork_ranks import meet
from plan_cases import layouts, run_op
from ranks import killed_in_the_middle, outcome

import shardwire
from shardwire import Layout, Replicate, Shard

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))
F32 = torch.float32


def compiled(size, folder, **named):
    """The origin of the plan, after a run; the file's place; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        op = shardwire.compile_op(None, **layouts(size), build_dir=folder, **named)
    run_op(op, dist.get_rank(), size)
    assert op.plan_bytes() == shardwire.compile_op(None, **layouts(size)).plan_bytes()
    return op.origin, op.plan_path, [str(each.message) for each in caught]


# The rows of the document's table: the place of each file.


def in_its_folder(rank, size, folder, is_spmd):
    return [compiled(size, folder, is_spmd=is_spmd), compiled(size, str(folder), is_spmd=is_spmd),
            compiled(size, folder, is_spmd=is_spmd, use_cached_if_exists=False)]


@pytest.mark.parametrize("is_spmd", [True, False, None])
def test_plans_lie_in_the_folder_of_their_pattern(run_ranks, tmp_path, is_spmd):
    plans = tmp_path / "plans"  # beside the ranks' store, which is removed with the last rank
    for again in (False, True):
        for rank, ((first, path, _), (second, *_), (anew, *_)) in enumerate(
                run_ranks(3, in_its_folder, plans, is_spmd)):
            made = "received" if is_spmd and rank else "planned"
            assert (first, second, anew) == ("disk" if again else made, "memory", made)
            assert (os.path.isfile(path)
                    and os.path.dirname(path) == str(plans / ("spmd" if is_spmd else f"rank_{rank}")))
    assert sum(len(files) for _, _, files in os.walk(plans)) == 3


def test_without_a_group_plans_lie_in_local_and_in_the_ranks_folder(tmp_path):
    def plan(**named):
        return shardwire.compile_op(None, **layouts(3), rank_id=1, world_size=3, build_dir=tmp_path, **named)

    first, again, spmd, mpmd, anew = (plan(), plan(), plan(is_spmd=True, cc_enabled=False),
                                      plan(is_spmd=False, cc_enabled=True), plan(use_cached_if_exists=False))
    assert [op.origin for op in (first, again, spmd, mpmd, anew)] == ["planned", "disk", "disk", "planned", "planned"]
    assert (os.path.dirname(first.plan_path) == str(tmp_path / "local")
            and os.path.dirname(mpmd.plan_path) == str(tmp_path / "rank_1"))
    assert (again.traffic() == first.traffic() and again.explain() == first.explain()
            and again.plan_bytes() == mpmd.plan_bytes() == first.plan_bytes())
    assert shardwire.compile_op(None, **layouts(3), rank_id=1, world_size=3).plan_path is None


# Different ranks.


def with_own_folders(rank, size, folder):
    first = compiled(size, folder / str(rank) if rank else None, is_spmd=True)
    return first


def test_ranks_with_different_caches_and_folders_agree(run_ranks, tmp_path):
    assert [origin for origin, *_ in run_ranks(3, with_own_folders, tmp_path)] == ["planned", "received", "received"]
    # Rank 0 keeps nothing, so rank 0 votes no, makes its own plan, and sends nothing.
    assert [origin for origin, *_ in run_ranks(3, with_own_folders, tmp_path)] == ["planned", "disk", "disk"]
    for name in os.listdir(tmp_path / "1" / "spmd"):
        (tmp_path / "1" / "spmd" / name).write_bytes(b"half")
    assert [origin for origin, *_ in run_ranks(3, with_own_folders, tmp_path)] == ["planned", "received", "disk"]


def named_differently(rank, size, folder):
    ops = [shardwire.compile_op(None, **layouts(size), is_spmd=True, build_dir=folder, name=f"of rank {rank}")
           for _ in range(2)]
    for op in ops:
        run_op(op, rank, size)
        assert 'compile_op "of rank 0"' in op.explain()
    return [op.origin for op in ops]


def test_ranks_may_name_an_op_differently(run_ranks, tmp_path):
    assert run_ranks(3, named_differently, tmp_path) == [["planned", "memory"]] + [["received", "memory"]] * 2


def misuse(rank, size, which, is_spmd, folder):
    named = {"build_dir": folder, "is_spmd": is_spmd}
    if which == "build_dir" and rank == 1:
        named["build_dir"] = 3
    if which == "empty" and rank == 2:
        named["build_dir"] = ""
    if which == "no text" and rank == 1:
        named["build_dir"] = "plans\udcff"
    if which == "name" and rank == 2:
        named["name"] = "half \ud800"
    if which == "use_cached" and rank == 1:
        named["use_cached_if_exists"] = None
    if which == "is_spmd":
        named["is_spmd"] = (None, True, False)[rank]
    found = outcome(shardwire.compile_op, None, **layouts(size), **named)
    compiled(size, folder, is_spmd=is_spmd)
    return found


@pytest.mark.parametrize("which, expected",
                         [("build_dir", "TypeError: rank 1: build_dir is 3; give a path or None"),
                          ("empty", "TypeError: rank 2: build_dir is ''; give a path or None"),
                          ("no text", "ValueError: rank 1: build_dir is 'plans\\udcff', which has half"),
                          ("name", "ValueError: rank 2: name is 'half \\ud800', which has half of"),
                          ("use_cached", "TypeError: rank 1: use_cached_if_exists is None; give True or False"),
                          ("is_spmd", ("ValueError: rank 0 gives is_spmd=None (shardwire chooses), rank 1 gives "
                                       "is_spmd=True (rank 0 plans for all): give the same"))])
def test_a_misuse_is_one_error_on_all_ranks(run_ranks, tmp_path, which, expected):
    for is_spmd in (True, False):
        found = run_ranks(3, misuse, which, is_spmd, tmp_path)
        kind, text = expected.split(": ", 1)
        assert found[0] is not None and found[0][0] == kind and text in found[0][1], found[0]
        assert found == [found[0]] * 3


def stale(rank, size, folder):
    found = [compiled(size, folder, is_spmd=True)[0]]
    if rank != 1:
        meet("here", size - 1)
        found.append(outcome(shardwire.compile_op, None, **layouts(size), is_spmd=True, build_dir=folder, timeout=2))
    store = dist.distributed_c10d._get_default_store()
    store.set(f"left{rank}", "")
    store.wait([f"left{each}" for each in range(size)])
    dist.destroy_process_group()
    return found


def test_a_rank_that_never_comes_is_named_by_ranks_that_have_their_plans(run_ranks, tmp_path):
    run_ranks(3, in_its_folder, tmp_path, True)
    found = run_ranks(3, stale, tmp_path)
    assert [each[0] for each in found] == ["disk"] * 3
    for rank in (0, 2):
        assert found[rank][1][0] == "TimeoutError" and "rank 1" in found[rank][1][1], found[rank]


# Disks.


def on_a_full_disk(rank, size, folder, is_spmd):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # each file ends there, as on a full disk
    found = compiled(size, folder, is_spmd=is_spmd)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)  # the store's file grows when the group ends
    return found


def test_a_full_disk_is_reported_and_leaves_no_file(run_ranks, tmp_path):
    for is_spmd in (True, False):
        (_, path, caught), (_, _, failed) = run_ranks(2, on_a_full_disk, tmp_path / str(is_spmd), is_spmd)
        assert (caught == [] and len(failed) == 1 and "could not be kept" in failed[0]
                and "File too large" in failed[0]), failed
        assert [name for _, _, files in os.walk(tmp_path / str(is_spmd)) for name in files] == [os.path.basename(path)]


def on_a_read_only_disk(rank, size, folder):
    return [compiled(size, folder, is_spmd=is_spmd) for is_spmd in (True, False)]


def test_a_folder_that_cannot_be_written_is_reported_and_not_fatal(run_ranks):
    for results in run_ranks(2, on_a_read_only_disk, "/proc/shardwire"):
        for _, _, caught in results:
            assert (len(caught) == 1 and "could not be kept in /proc/shardwire/" in caught[0]
                    and "Give a build_dir that can be written" in caught[0]), caught


def keep_one(folder, numbers):
    shardwire.compile_op(None, **layouts(1, next(numbers) % 40 + 1), rank_id=0, world_size=1, build_dir=folder,
                         use_cached_if_exists=False)


def test_a_writer_that_is_killed_leaves_whole_files(tmp_path):
    print("seed", SEED)
    chance = random.Random(SEED)
    for _ in range(10):
        killed_in_the_middle(keep_one, tmp_path, itertools.count(), after=chance.random() * 0.02)
    whole = [name for name in os.listdir(tmp_path / "local") if name.endswith(".swpf")]
    found = 0
    for rows in range(1, 41):
        op = shardwire.compile_op(None, **layouts(1, rows), rank_id=0, world_size=1, build_dir=tmp_path)
        assert op.plan_bytes() == shardwire.compile_op(None, **layouts(1, rows), rank_id=0, world_size=1).plan_bytes()
        found += op.origin == "disk"
    assert found == len(whole) > 0
    for name, age in (("old.tmp", 7200), ("new.tmp", 0)):
        (tmp_path / "local" / name).write_bytes(b"half")
        os.utime(tmp_path / "local" / name, (time.time() - age,) * 2)
    # A process looks once for what killed writers left
    program = "import itertools, sys, test_kept_plans as t; t.keep_one(sys.argv[1], itertools.count())"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=pathlib.Path(__file__).parent)
    assert not (tmp_path / "local" / "old.tmp").exists() and (tmp_path / "local" / "new.tmp").exists()


def test_16_ranks_race_for_the_same_files(run_ranks, tmp_path):
    assert [origin for origin, *_ in run_ranks(16, race_in_a_group, tmp_path)] == ["planned"] + ["received"] * 15
    assert len([name for name in os.listdir(tmp_path / "local") if name.endswith(".tmp")]) == 0


def race_in_a_group(rank, size, folder):
    chance = random.Random(SEED + rank)
    for _ in range(12):
        rows = chance.randrange(1, 4)
        op = shardwire.compile_op(None, **layouts(1, rows), cc_enabled=False, rank_id=0, world_size=1, build_dir=folder,
                                  use_cached_if_exists=chance.random() < 0.5)
        assert op.plan_bytes() == shardwire.compile_op(None, **layouts(1, rows), cc_enabled=False, rank_id=0,
                                                       world_size=1).plan_bytes()
    rows = {"inputs": [Layout(torch.arange(size), [Shard(0)], [32, 4], F32)],
            "outputs": [Layout(torch.arange(size), [Replicate()], [32, 4], F32)]}
    op = shardwire.compile_op(None, **rows, is_spmd=True, build_dir=folder)
    run_op(op, rank, size, 32)
    return op.origin, op.plan_path
