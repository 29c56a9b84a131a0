"""A trainer of two ranks for test_vllm_server.py: vllm_trainer.py FOLDER WORKERS [LAYOUTS]. The model is a small
LlamaForCausalLM under FSDP2. Rank 0 starts the server, and prints the tokens of each version: the server's and
transformers' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from transformers import LlamaConfig, LlamaForCausalLM
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from shardwire import FusedLayout, Layout, Replicate, Shard
from shardwire.adapters import vllm as adapter
from vllm_server import NEW, PROMPT

CONFIG = LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=32, vocab_size=128, max_position_embeddings=64,
                     tie_word_embeddings=False)


def layouts(model: Any, vllm_config: Any) -> dict[str, Any]:
    """For layouts="vllm_trainer:layouts": a worker's part of each weight of vLLM's Llama, in place."""
    dtype, mesh = vllm_config.model_config.dtype, torch.arange(vllm_config.parallel_config.world_size)
    rows, columns, whole = [Shard(0)], [Shard(1)], [Replicate()]
    width, inner, words = CONFIG.hidden_size, CONFIG.intermediate_size, CONFIG.vocab_size
    queries, keys = (heads * CONFIG.head_dim for heads in (CONFIG.num_attention_heads, CONFIG.num_key_value_heads))
    made = {"qkv_proj": FusedLayout([Layout(mesh, rows, (length, width), dtype) for length in (queries, keys, keys)]),
            "gate_up_proj": FusedLayout([Layout(mesh, rows, (inner, width), dtype)] * 2),
            "o_proj": Layout(mesh, columns, (width, queries), dtype),
            "down_proj": Layout(mesh, columns, (width, inner), dtype),
            "embed_tokens": Layout(mesh, rows, (words, width), dtype),
            "lm_head": Layout(mesh, rows, (words, width), dtype)}
    norm = Layout(mesh, whole, (width,), dtype)
    return {name: (made.get(name.split(".")[-2], norm), parameter.data) for name, parameter in model.named_parameters()}


class Server:
    """vLLM's VLLMWeightSyncClient, by a socket."""

    def __init__(self, folder: Path, workers: str) -> None:
        with Listener(str(folder / "calls")) as listener:
            # The server makes torch groups of its own.
            of_the_trainer = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            alone = {name: value for name, value in os.environ.items() if name not in of_the_trainer}
            script = Path(__file__).with_name("vllm_server.py")
            self.process = subprocess.Popen([sys.executable, str(script), str(folder / "model"), workers,
                                             str(folder / "calls")], env=alone, stdout=sys.stderr)
            self.end = listener.accept()
        assert self.end.recv() == "ready"

    def call(self, name: str, *given: Any) -> Any:
        self.end.send((name, given))
        error, result = self.end.recv()
        if error:
            raise RuntimeError(error)
        return result

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.call("finish_weight_update")


def model_of(version: int) -> LlamaForCausalLM:
    torch.manual_seed(version)
    model = LlamaForCausalLM(CONFIG).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def expected(model: LlamaForCausalLM) -> list[int]:
    prompt = torch.tensor([PROMPT])
    whole = model.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, eos_token_id=None,
                           pad_token_id=0)
    return whole[0, len(PROMPT):].tolist()


def main(folder: str, workers: str, named: str | None = None) -> None:
    dist.init_process_group("shardwire")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    server = None
    model = model_of(0)
    if rank == 0:
        model.save_pretrained(f"{folder}/model")
        server = Server(Path(folder), workers)
    dist.barrier()
    found = [] if server is None else [[server.call("tokens"), expected(model)]]
    fully_shard(model, mesh=mesh)
    adapter.register()
    info = adapter.ShardwireTrainerInitInfo(store=f"file://{folder}/meeting", state=model, rank=rank, layouts=named,
                                            mapping=named and "llama", timeout=120.0)
    said = ""
    try:
        engine = WeightTransferTrainerFactory.trainer_init(info, client=server)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    else:
        for version in (1, 2):
            fresh = model_of(version)
            with torch.no_grad():
                for old, new in zip(model.parameters(), fresh.parameters()):
                    old.copy_(distribute_tensor(new, mesh, old.placements))
            engine.send_weights()
            if server is not None:
                found.append([server.call("tokens"), expected(fresh)])
        dist.barrier()
        engine.shutdown()
    if server is not None:
        server.end.send(None)
        assert server.process.wait(120) == 0
        print("results " + json.dumps({"tokens": found, "said": said}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
