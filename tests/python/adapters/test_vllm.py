"""shardwire.adapters.vllm: a trainer's job and a serving job, against a stand-in with vLLM's interface (vllm_stand_in
describes the interface).
"""

from __future__ import annotations

import importlib.util
import pickle
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import vllm_stand_in  # noqa: E402

if importlib.util.find_spec("vllm") is None:
    vllm_stand_in.install()

from two_jobs import Job, group, jobs  # noqa: E402,F401

import shardwire  # noqa: E402
import shardwire_autoload  # noqa: E402
from shardwire import FusedLayout, Layout, Shard  # noqa: E402

shardwire_autoload.register_in_vllm()
shardwire_autoload.register_in_vllm()  # as vLLM does, once in each process and perhaps again

from vllm.distributed.weight_transfer.factory import (WeightTransferEngineFactory,  # noqa: E402
                                                      WeightTransferTrainerFactory)

HEADS, WIDTH = 8, 6
NAMES = {"layers.0.q_proj.weight": (HEADS, WIDTH), "layers.0.k_proj.weight": (4, WIDTH),
         "layers.0.v_proj.weight": (4, WIDTH), "norm.weight": (WIDTH,)}


def whole(name: str, step: int) -> torch.Tensor:
    shape = NAMES[name]
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1000 * step
            + sum(map(ord, name)))


class Client:
    """vLLM's VLLMWeightSyncClient: four calls, here by a socket to each worker."""

    def __init__(self, ends: list[socket.socket]) -> None:
        self.ends = ends

    def _call(self, *words: Any) -> None:
        for end in self.ends:
            end.sendall(pickle.dumps(words))
        said = [pickle.loads(end.recv(1 << 16)) for end in self.ends]
        if any(said):
            raise RuntimeError(f"workers: {said}")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        self._call("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish")

    def end(self) -> None:
        self._call("end")


class Model:
    """A worker's model: fused parameters of the worker's share of heads, or whole tensors by ``load_weights``."""

    def __init__(self, rank: int) -> None:
        self.parameters = {"layers.0.qkv_proj.weight": torch.zeros((HEADS + 4 + 4) // 2, WIDTH),
                           "norm.weight": torch.zeros(WIDTH)}
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Any) -> None:
        assert (vllm_stand_in.reloads[-1:] == ["initialize"]
                or "vllm_stand_in" not in str(vllm_stand_in.WeightTransferEngine))
        self.loaded.update((name, tensor.clone()) for name, tensor in weights)


def two_way_layouts(model: Model, vllm_config: Any) -> dict[str, Any]:
    """A user's function for a model: named in init_info as "module:function"."""
    mesh = torch.arange(vllm_config.parallel_config.world_size)
    parts = [Layout(mesh, [Shard(0)], NAMES[f"layers.0.{part}_proj.weight"], torch.float32) for part in "qkv"]
    return {"layers.0.qkv_proj.weight": (FusedLayout(parts), model.parameters["layers.0.qkv_proj.weight"]),
            "norm.weight": model.parameters["norm.weight"]}


def serve(rank: int, ends: list[socket.socket], size: int, store: str) -> list[Any]:
    """A vLLM worker: calls come in the order of collective_rpc, and the worker has a torch group of another backend."""
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(world_size=size), model_config=None)
    model = Model(rank)
    engine = WeightTransferEngineFactory.create_engine(types.SimpleNamespace(backend="shardwire"), config,
                                                       torch.device("cpu"), model)
    calls = {"init": lambda info: engine.init_transfer_engine(engine.parse_init_info(info)),
             "start": engine.start_weight_update, "update": engine.update_weights,
             "finish": engine.finish_weight_update, "end": engine.shutdown}
    held = []
    word = ""
    while word != "end":
        word, *given = pickle.loads(ends[rank].recv(1 << 16))
        try:
            calls[word](*given)
            said = ""
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if word == "finish":
            held.append(({name: tensor.clone() for name, tensor in model.parameters.items()}, dict(model.loaded),
                         list(vllm_stand_in.reloads)))
        ends[rank].sendall(pickle.dumps(said))
    if size > 1:
        dist.destroy_process_group()
    return held


def train(rank: int, ends: list[socket.socket], url: str, given: dict[str, Any], steps: int, with_source: bool) -> str:
    from shardwire.adapters.vllm import ShardwireTrainerInitInfo
    mesh = torch.arange(2)
    local = {name: (Layout(mesh, [Shard(0)], shape, torch.float32), whole(name, 0).chunk(2)[rank].clone())
             for name, shape in NAMES.items()}
    source = Source() if with_source else None
    info = ShardwireTrainerInitInfo(store=url, rank=rank, state=None if with_source else local, group=group(),
                                    timeout=30.0, **given)
    client = Client(ends)
    try:
        engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for step in range(1, steps + 1):
        for name, (_, tensor) in local.items():
            tensor.copy_(whole(name, step).chunk(2)[rank])
        if source is not None:
            source.step = step
        engine.send_weights()
    if rank == 0:
        client.end()
    group().barrier().wait()
    engine.shutdown()
    return ""


class Source:
    """The part of vLLM's WeightSource that the adapter uses."""

    step = 0

    def metadata(self) -> list[Any]:
        return [vllm_stand_in.ParamMeta(name, torch.float32, shape) for name, shape in NAMES.items()]

    def __iter__(self) -> Any:
        return ((name, whole(name, self.step)) for name in NAMES)


def both(tmp_path: Path, workers: int, given: dict[str, Any], steps: int = 3,
         with_source: bool = False) -> tuple[list[str], list[Any]]:
    pairs = [socket.socketpair() for _ in range(workers)]
    (tmp_path / "meet").mkdir(exist_ok=True)
    with jobs() as start:
        serving = start(workers, serve, [pair[1] for pair in pairs], workers, str(tmp_path / "torch"))
        training = start(2, train, [pair[0] for pair in pairs], f"file://{tmp_path}/meet", given, steps, with_source)
        said = training.results(60)
        if said[0]:
            Client([pair[0] for pair in pairs]).end()
        return said, serving.results(60)


def test_sharded_weights_land_in_place_in_fused_parameters(tmp_path: Path) -> None:
    said, held = both(tmp_path, 2, {"layouts": f"{__name__}:two_way_layouts", "mapping": "llama"})
    assert said == ["", ""]
    for rank, versions in enumerate(held):
        assert len(versions) == 3
        for step, (parameters, loaded, reloads) in enumerate(versions, 1):
            wanted = torch.cat([whole(f"layers.0.{part}_proj.weight", step).chunk(2)[rank] for part in "qkv"])
            assert torch.equal(parameters["layers.0.qkv_proj.weight"], wanted), (rank, step)
            assert torch.equal(parameters["norm.weight"], whole("norm.weight", step))
            assert loaded == {} and reloads == [], "nothing is to be loaded again: it lies where it belongs"


@pytest.mark.parametrize("workers, with_source", [(1, False), (2, True)])
def test_whole_weights_go_to_load_weights(tmp_path: Path, workers: int, with_source: bool) -> None:
    said, held = both(tmp_path, workers, {}, with_source=with_source)
    assert said == ["", ""]
    for versions in held:
        for step, (_, loaded, reloads) in enumerate(versions, 1):
            assert set(loaded) == set(NAMES) and all(torch.equal(loaded[name], whole(name, step))
                                                     for name in NAMES), step
            assert reloads == ["initialize", "finalize"] * step


def test_what_does_not_fit_is_reported_to_the_trainer(tmp_path: Path) -> None:
    said, _ = both(tmp_path, 1, {"mapping": "llama"})
    assert "mapping is 'llama' without layouts" in said[0], said


def test_layouts_that_cannot_be_imported_are_named(tmp_path: Path) -> None:
    said, _ = both(tmp_path, 1, {"layouts": f"{__name__}:not_there"})
    assert "has no function not_there" in said[0], said
