"""shardwire.load of folders written by torch.distributed.checkpoint, and load and save of models of torch's
parallelisms.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct

import pytest
import torch

from conftest import TORCH

if TORCH < (2, 7):
    pytest.skip("FSDP on CPU tensors wants torch 2.7: torch.cpu.Stream lacks record_event before",
                allow_module_level=True)

import torch.distributed.checkpoint as dcp
from both_backends import mlp
from ranks import error_of as raised, group, run_ranks
from test_sync import same_on_all
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire
from test_weight_sync import Net, same, sharded, whole


def model_of(kind):
    if kind == "fully_shard":
        return sharded(Net(), init_device_mesh("cpu", (4,)))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = mlp()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh["dp"])
    return model


def written_by_torch(rank, folder, kind):
    """A model of torch's is saved by torch, and read into a plain model, into other layouts, and by some ranks only."""
    model = model_of(kind)
    wanted = whole(model)
    dcp.save({**model.state_dict(), "step": 7}, checkpoint_id=folder)
    plain = Net() if kind == "fully_shard" else mlp(seed=8)
    with torch.no_grad():
        for tensor in plain.state_dict().values():
            tensor.zero_()
    # torch writes tied weights under each name.
    shardwire.load(folder, plain, mapping=lambda name: None if name == "head.weight" else name)
    same(whole(plain), wanted)
    layouts = {name: shardwire.Layout([3, 0, 2], [shardwire.Shard(tensor.dim() - 1)], tensor.shape, tensor.dtype)
               for name, tensor in wanted.items()}
    got = shardwire.load(folder if rank in (1, 2) else None, layouts, group())
    for name, layout in layouts.items():
        part = layout.take(wanted[name], rank)
        assert part is None or torch.equal(got[name], part), name


@pytest.mark.parametrize("kind", ["fully_shard", "two dimensions"])
def test_a_folder_of_torchs_is_read_into_any_layout(tmp_path, kind):
    run_ranks(4, written_by_torch, str(tmp_path / "dcp"), kind, default_group=True, timeout=120)


def every_dtype(rank, folder):
    torch.manual_seed(1)
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8,
              torch.bool, torch.uint16, torch.float8_e4m3fn]
    values = {str(dtype): (torch.randn(6, 5) * 3).abs().to(dtype) for dtype in dtypes}
    values["turned"] = torch.randn(4, 6).t()
    values["scalar"], values["none"] = torch.tensor(2.5), torch.empty(0, 3)
    mesh = DeviceMesh("cpu", [0, 1])
    state = {name: distribute_tensor(value, mesh, [Shard(0)]) if value.dim() and "float8" not in name else value
             for name, value in values.items()}
    state["columns"] = distribute_tensor(values["torch.float32"], mesh, [Shard(1)])
    state["copies"] = distribute_tensor(values["torch.float32"], mesh, [Replicate()])
    dcp.save(state, checkpoint_id=folder)
    values["columns"] = values["copies"] = values["torch.float32"]
    got = shardwire.load(folder, {name: torch.zeros_like(value, memory_format=torch.contiguous_format)
                                  for name, value in values.items()})
    for name, value in values.items():
        assert torch.equal(got[name].view(torch.uint8) if "float8" in name else got[name],
                           value.view(torch.uint8) if "float8" in name else value), name


def test_every_dtype_and_strides(tmp_path):
    run_ranks(2, every_dtype, str(tmp_path / "dcp"), default_group=True, timeout=120)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def broken_folders(folder):
    """name -> (folder, the error's class, parts of the error's text). ``folder/good`` is whole, with one tensor "w"."""
    good = folder / "good"
    metadata = (good / ".metadata").read_bytes()
    (data,) = [path.name for path in good.iterdir() if path.suffix == ".distcp"]

    def copy(name, change):
        shutil.copytree(good, folder / name)
        change(folder / name)
        return folder / name

    def overwritten(old, new):
        assert old in metadata and len(old) == len(new)
        return lambda place: (place / ".metadata").write_bytes(metadata.replace(old, new))

    def without_magic(place):
        content = (place / data).read_bytes()
        (place / data).write_bytes(content.replace(b"PK\5\6", b"PK\0\0"))

    def evil(place):
        value = pickle.loads(metadata)
        value.planner_data = Evil(folder / "ran")
        (place / ".metadata").write_bytes(pickle.dumps(value))
        os.unlink(place / data)

    def evil_chunk(place):
        content = io.BytesIO()
        torch.save(Evil(folder / "ran"), content)
        chunk = content.getvalue()
        value = pickle.loads(metadata)
        for place_of in value.storage_data.values():
            place_of.offset, place_of.length = 0, len(chunk)
        (place / ".metadata").write_bytes(pickle.dumps(value))
        (place / data).write_bytes(chunk)

    bad = "CheckpointError"
    return {
        "pickle": (copy("pickle", lambda place: (place / ".metadata").write_bytes(metadata[:100])), bad,
                   "cannot be read as a pickle"),
        "other": (copy("other", lambda place: (place / ".metadata").write_bytes(pickle.dumps([1, 2]))), bad,
                  "is not the metadata"),
        "missing": (copy("missing", lambda place: os.unlink(place / data)), bad, "the file is missing"),
        "cut": (copy("cut", lambda place: os.truncate(place / data, 300)), bad, "the file has 300"),
        "archive": (copy("archive", without_magic), bad, "is no archive of torch.save"),
        "escape": (copy("escape", overwritten(data.encode(), b"../" + data.encode()[3:])), bad, "would lie in"),
        "evil": (copy("evil", evil), bad, "the file is missing"),
        "evil chunk": (copy("evil-chunk", evil_chunk), "UnsupportedError", "is system"),
    }


def write_good(rank, folder):
    dcp.save({"w": torch.ones(64)}, checkpoint_id=folder)


def load_broken(rank, cases):
    return [raised(lambda: shardwire.load(place if rank == 1 else None, {"w": torch.zeros(64)}, group()))
            for place, _, _ in cases.values()]


def test_broken_folders_and_pickles_that_would_run_code(tmp_path):
    run_ranks(1, write_good, str(tmp_path / "good"), default_group=True)
    cases = broken_folders(tmp_path)
    for (name, (_, kind, text)), results in zip(cases.items(), zip(*run_ranks(2, load_broken, cases))):
        same_on_all(list(results), kind, "rank 1: ", text)
    assert not (tmp_path / "ran").exists()


def there_and_back(rank, folder):
    """A model of two dimensions is saved by us as safetensors, in several files, and read into a meta model of
    fully_shard."""
    model = model_of("two dimensions")
    wanted = whole(model)
    paths = shardwire.save(model, folder, max_file_bytes=600)
    assert len(paths) > 2
    if rank == 0:
        header = {}
        for path in paths[:-1]:
            with open(path, "rb") as file:
                header.update(json.loads(file.read(struct.unpack("<Q", file.read(8))[0])))
        assert {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"} == \
            {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    with torch.device("meta"):
        target = mlp()
    fully_shard(target, mesh=init_device_mesh("cpu", (4,)))
    assert shardwire.load(folder, target) is target
    assert all(isinstance(parameter, DTensor) and not parameter.is_meta for parameter in target.parameters())
    same(whole(target), wanted)


def test_safetensors_there_and_back(tmp_path):
    run_ranks(4, there_and_back, str(tmp_path / "saved"), default_group=True, timeout=120)
