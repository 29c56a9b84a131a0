"""Planning without ranks: against compile_op in real groups, against numbers by hand, and the command."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import shardwire
from shardwire import Layout, Partial, Replicate, Shard, Topology
from shardwire.offline.description import plan_description
from shardwire.offline.ready import READY
from shardwire.offline.topology import REDUCE_RATE

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))
CASES = 40
SIZE = 4
PAGE = Path(__file__).resolve().parents[2] / "docs" / "offline.md"


def random_layout(chance, shape, may_be_partial):
    mesh = chance.choice(
        [torch.arange(4), torch.arange(4).reshape(2, 2), torch.tensor([3, 1]), torch.tensor([[2], [0]])])
    kinds = [Replicate()] + [Shard(dim) for dim in range(len(shape))] + ([Partial()] if may_be_partial else [])
    return Layout(mesh, [chance.choice(kinds) for _ in range(mesh.dim())], shape, torch.float32)


def random_boxes(chance):
    """compile_op's lists of each rank: boxes of a matrix of 8 by 6, anywhere."""
    def box():
        begin = [chance.randrange(8), chance.randrange(6)]
        return {"offset": begin, "shape": [chance.randint(0, 8 - begin[0]), chance.randint(0, 6 - begin[1])]}
    return [{"inputs": [box() for _ in range(chance.randrange(3))],
             "outputs": [box() for _ in range(chance.randrange(2))]} for _ in range(SIZE)]


def cases():
    """Per case: the common arguments of all ranks, and the arguments of each rank."""
    chance = random.Random(SEED)
    made = []
    for number in range(CASES):
        if number % 2:
            shapes = {f"t{index}": [chance.randint(1, 7) for _ in range(chance.randint(1, 3))]
                      for index in range(chance.randint(1, 3))}
            made.append(({"inputs": {name: [random_layout(chance, shape, True)] for name, shape in shapes.items()},
                          "outputs": {name: [random_layout(chance, shape, False)] for name, shape in shapes.items()}},
                         None))
        else:
            given = {"shape": [8, 6], "dtype": torch.float32, "allow_gaps": chance.random() < 0.8,
                     "overlap": chance.choice([None, "any", "error"])}
            made.append((given, random_boxes(chance)))
    return made


def by_compile_op(rank, size):
    found = []
    for given, own in cases():
        try:
            op = shardwire.compile_op(None, **given, **(own[rank] if own else {}))
            found.append((op.traffic()["edges"],
                          {name: count for name, count in op.stats().items()
                           if name.startswith(("bytes_sent", "bytes_rec", "num_moves", "plan_bytes"))}))
        except (TypeError, ValueError, NotImplementedError) as error:
            found.append((type(error).__name__, str(error)))
    return found


def by_plan(given, own):
    try:
        return shardwire.plan(SIZE, **given, each_rank=None if own is None else lambda rank: own[rank])
    except (TypeError, ValueError, NotImplementedError) as error:
        return type(error).__name__, str(error)


def test_it_says_what_compile_op_does(run_ranks):
    print("seed", SEED)
    real = run_ranks(SIZE, by_compile_op)
    outcomes = set()
    for number, (given, own) in enumerate(cases()):
        found = by_plan(given, own)
        outcomes.add(type(found))
        for rank in range(SIZE):
            expected = real[rank][number]
            if isinstance(found, tuple):
                assert expected == found, (number, given, own)
                continue
            assert found.traffic()["edges"] == expected[0], (number, given, own)
            counted = found.ranks[rank]
            assert expected[1] == {name: counted[name] for name in expected[1]}, (number, given, own)
    assert len(outcomes) == 2  # some cases fit, some are refused


def wrong_on_one_rank(rank, size):
    try:
        shardwire.compile_op(None, [4], torch.float32, **wrong(rank))
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)


def wrong(rank):
    return {"inputs": [{"offset": [0], "shape": [4]}] if rank != 1 else [{"offset": [0]}]}


def test_a_wrong_list_is_compile_ops_error(run_ranks):
    expected = run_ranks(2, wrong_on_one_rank)[0]
    with pytest.raises((TypeError, ValueError)) as found:
        shardwire.plan(2, [4], torch.float32, each_rank=wrong)
    assert (found.type.__name__, str(found.value)) == expected


def test_reductions_take_time():
    """Four ranks each hold an addend of 4 x 4 KiB and want a row of the sum: each combines 4 addends of 4 KiB."""
    mesh = torch.arange(4)
    given = {"inputs": [Layout(mesh, [Partial()], [4, 1024], torch.float32)],
             "outputs": [Layout(mesh, [Shard(0)], [4, 1024], torch.float32)]}
    links = {"within_host_GB_per_s": 100}
    found = shardwire.plan(4, **given, topology=links)
    assert [rank["bytes_combined"] for rank in found.ranks] == [4 * 4096] * 4
    assert (found.busiest.what == "reduction of a rank" and found.busiest.bytes_of == (4 * 4096,) * 4
            and found.seconds == pytest.approx(4 * 4096 / REDUCE_RATE))
    assert "reduction of a rank: at most 16.0 KiB" in found.explain()
    slow = shardwire.plan(4, **given, topology={**links, "reduce_GB_per_s": 2})
    assert slow.seconds == pytest.approx(4 * 4096 / 2e9)
    fast = shardwire.plan(4, **given, topology={**links, "reduce_GB_per_s": 1000})  # then the links take the most time
    assert fast.busiest.what.startswith("rank ") and fast.seconds == pytest.approx(3 * 4096 / 100e9)
    free = shardwire.plan(4, **given, topology={**links, "reduce_GB_per_s": None})
    assert free.seconds == fast.seconds
    assert shardwire.plan(4, **given).seconds is None  # nothing known
    with pytest.raises(ValueError, match="reduce_GB_per_s is 'fast'; give a positive number"):
        shardwire.plan(4, **given, topology={"reduce_GB_per_s": "fast"})
    copies = shardwire.plan(4, inputs=given["outputs"], outputs=[Layout(mesh, [Replicate()], [4, 1024], torch.float32)],
                            topology=links)
    assert "reduction of a rank" not in [load.what for load in copies.loads] and copies.ranks[0]["bytes_combined"] == 0


LINKS = {"ranks_per_host": 2, "links_per_host": 2, "within_host_GB_per_s": 4, "between_hosts_GB_per_s": 1,
         "copy_GB_per_s": 8, "latency_us": 10}


def test_numbers_by_hand():
    """Four ranks on two hosts, each with a row of 4 x 4 KiB, want columns: 4 KiB from each to each."""
    mesh = torch.arange(4)
    found = shardwire.plan(4, inputs=[Layout(mesh, [Shard(0)], [4, 4096], torch.float32)],
                           outputs=[Layout(mesh, [Shard(1)], [4, 4096], torch.float32)], topology=LINKS, name="turn")
    assert (found.tensors == [("", (4, 4096), 65536)] and found.edges.shape == (16, 4)
            and set(found.edges[:, 2].tolist()) == {4096})
    assert (found.bytes_between, found.least_between, found.over_least) == (12 * 4096, 12 * 4096, 1.0)
    assert found.hosts == [{"ranks": 2, "bytes_out": 4 * 4096, "bytes_in": 4 * 4096, "least_in": 4 * 4096}] * 2
    assert {load.what: (load.bytes_of, load.balance) for load in found.loads} == {
        "rank to its own host": ((4096,) * 4, 1.0), "rank from its own host": ((4096,) * 4, 1.0),
        "link out of a host": ((8192,) * 4, 1.0), "link into a host": ((8192,) * 4, 1.0),
        "copy within a rank": ((4096,) * 4, 1.0)}
    assert found.seconds == pytest.approx(8192 / 1e9 + 10e-6) and found.busiest.what == "link out of a host"
    text = found.explain()
    assert ("turn: 4 ranks on 2 hosts, 1 tensors of 64.0 KiB" in text
            and "between ranks 48.0 KiB, the least possible 48.0 KiB (1.00); within ranks 16.0 KiB" in text)
    assert "one run takes at least 18.2 us; the busiest: link out of a host" in text


def test_replicas_on_one_host_are_counted_once_in_the_least():
    held, wanted = Layout([0], [Replicate()], [100], torch.float64), Layout([2, 3], [Replicate()], [100], torch.float64)
    found = shardwire.plan(4, inputs=[held], outputs=[wanted], topology={"hosts": [0, 0, 1, 1]})
    assert (found.hosts[1] == {"ranks": 2, "bytes_out": 0, "bytes_in": 1600, "least_in": 800}
            and found.over_least == 1.0 and found.seconds is None)
    assert [load.balance for load in found.loads if load.what == "link out of a host"] == [1.0]  # only one link is used


def test_addends_that_must_come_are_over_the_least():
    held, wanted = (Layout(torch.arange(4), [Partial()], [8], torch.float32),
                    Layout(torch.arange(4), [Shard(0)], [8], torch.float32))
    found = shardwire.plan(4, inputs=[held], outputs=[wanted])
    assert found.bytes_between == 3 * 32 and found.least_between == 0


@pytest.mark.parametrize("name", sorted(READY))
def test_ready_descriptions_move_the_least(name):
    given = READY[name]()
    for tensor in given["tensors"]:
        tensor["repeat"] = min(tensor.get("repeat", 1), 2)
        if tensor["repeat"] == 1:
            del tensor["repeat"]
        tensor["name"] = tensor["name"] if "repeat" in tensor else tensor["name"].replace("{}", "0")
    if name == "all-to-all":  # of fewer ranks, to be quick
        given.update(world_size=64, meshes={"all": {"shape": [64]}})
    found = plan_description(given)
    assert found.over_least == 1.0 and found.bytes_between > 0
    for load in found.loads:
        if load.what.startswith("link"):
            assert load.balance < 1.01, (load.what, load.balance)
    assert found.seconds is not None and found.busiest is not None


TOPOLOGIES = [
    ({"ranks_per_host": 0}, "topology: ranks_per_host is 0; give a positive int"),
    ({"hosts": [0, 0]}, "topology has the hosts of 2 ranks, there are 4"),
    ({"hosts": [0, 2, 2, 0]}, "hosts are numbered from 0 without gaps"),
    ({"rate": 1}, "topology has the unknown key 'rate'"),
    ({"latency_us": "x"}, "topology: latency_us is 'x'; give a positive number"),
    ({"hosts": [0, 0, 1, 1], "ranks_per_host": 2}, "topology has hosts and ranks_per_host"),
    (3, "topology is 3; give a Topology"), (Topology((0,)), "topology has the hosts of 1 ranks"),
]


@pytest.mark.parametrize("given, text", TOPOLOGIES)
def test_wrong_topologies(given, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        shardwire.plan(4, [4], torch.float32, topology=given)


def small(**changes):
    tensor = {"name": "t.{}", "repeat": 2, "shape": [8, 4], "dtype": "float32", "to_dtype": "bfloat16",
              "from": ["a", "S(0)"], "to": ["b", "R", "SS(1,2)"]}
    given = {"name": "small", "topology": LINKS,
             "meshes": {"a": {"shape": [2]}, "b": {"shape": [2, 1], "ranks": [3, 2]}}, "tensors": [tensor]}
    for place, value in changes.items():
        (tensor if place in ("shape", "dtype", "repeat", "to") or place == "from_" else given)[place.rstrip("_")] = (
            value)
    return given


DESCRIPTIONS = [
    (small(dtype="int99"), "tensors[0]: dtype is 'int99'"),
    (small(from_=["c", "R"]), "tensors[0]: from: no mesh is named 'c'; there are 'a', 'b'"),
    (small(from_=["a", "Q"]), "'Q' is no placement"), (small(from_=["a", "S(0, rows)"]), "'S(0, rows)' is no"),
    (small(from_=["a", "S(2)"]), "tensors[0]: from: placements[0]: dim 2 does not exist"),
    (small(repeat=0), "tensors[0]: repeat is 0"), (small(to="b"), "tensors[0]: to is 'b'; give a list"),
    (small(meshes={"a": {"shape": [0]}}), "meshes['a']: shape is [0]"),
    (small(meshes={"a": {"shape": [2], "ranks": [1]}}), "meshes['a']: ranks must be a list of 2 ranks"),
    (small(colour=1), "the description has the unknown key 'colour'"), (small(tensors=3), "tensors is 3; give a list"),
]


@pytest.mark.parametrize("given, text", DESCRIPTIONS)
def test_wrong_descriptions(given, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        plan_description(given)


def command(folder, *words):
    return subprocess.run([sys.executable, "-m", "shardwire.offline", *map(str, words)], cwd=folder,
                          capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.any_torch
def test_the_command(tmp_path):
    (tmp_path / "links.json").write_text(json.dumps(LINKS))
    (tmp_path / "spec.json").write_text(json.dumps(small(topology="links.json")))
    done = command(tmp_path.parent, tmp_path / "spec.json", "--json", tmp_path / "out.json", "--picture",
                   tmp_path / "out.svg", "--write", tmp_path / "again.json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("small: 4 ranks on 2 hosts, 2 tensors of 256 B\n")
    found = json.loads((tmp_path / "out.json").read_text())
    expected = plan_description(small())
    assert {name: value for name, value in found.items() if name != "planning_seconds"} == {
        name: value for name, value in json.loads(json.dumps(expected.as_dict())).items() if name != "planning_seconds"}
    assert ((tmp_path / "out.svg").read_text().startswith("<svg")
            and json.loads((tmp_path / "again.json").read_text()) == small(topology="links.json"))
    (tmp_path / "spec.json").write_text("{")
    done = command(tmp_path, "spec.json")
    assert (done.returncode == 2 and done.stderr.startswith("shardwire.offline: spec.json is no JSON")
            and done.stdout == "")


def test_many_ranks_are_drawn_as_hosts_or_blocks():
    mesh = torch.arange(64)
    layouts = {"inputs": [Layout(mesh, [Shard(0)], [64, 64], torch.int8)],
               "outputs": [Layout(mesh, [Shard(1)], [64, 64], torch.int8)]}
    by_hosts = shardwire.plan(64, **layouts, topology={"ranks_per_host": 16})._drawn()
    assert (by_hosts["world_size"] == 4 and by_hosts["unit"] == "host"
            and {edge["bytes"] for edge in by_hosts["edges"]} == {256})
    blocks = shardwire.plan(64, **layouts)._drawn()
    assert (blocks["world_size"] == 32 and blocks["unit"] == "block" and blocks["name"] == "(blocks of 2 ranks)"
            and sum(edge["bytes"] for edge in blocks["edges"]) == 4096)


@pytest.mark.any_torch
def test_the_example_of_the_page(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    (description,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert plan_description(json.loads(description)).over_least == 1.0
    script = tmp_path / "page.py"
    script.write_text(code + "\nimport shardwire.offline\nassert shardwire.plan(1, [4], torch.int8).world_size == 1\n")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert ("train to serve: 16 ranks on 2 hosts" in done.stdout and (tmp_path / "train-to-serve.svg").exists()
            and (tmp_path / "train-to-serve.json").exists())
