"""Descriptions to begin with, for ``python -m shardwire.offline --ready NAME``. Shapes are taken from published models;
links are round numbers of today's machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_CLUSTER = {"ranks_per_host": 8, "links_per_host": 8, "within_host_GB_per_s": 400, "between_hosts_GB_per_s": 50,
            "copy_GB_per_s": 1500, "latency_us": 10}


def llama_70b() -> dict[str, Any]:
    """Llama-3 70B in bf16, from 64 ranks training with FSDP to 4 replicas of 8 ranks serving with tensor
    parallelism."""
    rows, columns = ["serve", "R", "S(0)"], ["serve", "R", "S(1)"]
    layer = {"attention.wq": ([8192, 8192], rows), "attention.wk": ([1024, 8192], rows),
             "attention.wv": ([1024, 8192], rows), "attention.wo": ([8192, 8192], columns),
             "feed_forward.w1": ([28672, 8192], rows), "feed_forward.w3": ([28672, 8192], rows),
             "feed_forward.w2": ([8192, 28672], columns), "attention_norm": ([8192], ["serve", "R", "R"]),
             "ffn_norm": ([8192], ["serve", "R", "R"])}
    tensors = [_tensor(f"layers.{{}}.{name}.weight", shape, ["train", "S(0)"], to, repeat=80)
               for name, (shape, to) in layer.items()]
    tensors += [_tensor("tok_embeddings.weight", [128256, 8192], ["train", "S(0)"], rows),
                _tensor("output.weight", [128256, 8192], ["train", "S(0)"], rows),
                _tensor("norm.weight", [8192], ["train", "S(0)"], ["serve", "R", "R"])]
    return {"name": "Llama-3 70B: FSDP 64 to TP 8 x DP 4", "world_size": 96, "topology": _CLUSTER,
            "meshes": {"train": {"shape": [64]}, "serve": {"shape": [4, 8], "first_rank": 64}}, "tensors": tensors}


def mixture() -> dict[str, Any]:
    """A mixture of 64 experts in bf16 on 16 ranks: from expert parallelism (4 experts a rank) to tensor parallelism
    over 8 ranks, twice."""
    experts, shared = ["experts", "S(0)"], ["experts", "R"]
    layer = {"experts.gate_proj": ([64, 1536, 4096], experts, ["tensor", "R", "S(1)"]),
             "experts.up_proj": ([64, 1536, 4096], experts, ["tensor", "R", "S(1)"]),
             "experts.down_proj": ([64, 4096, 1536], experts, ["tensor", "R", "S(2)"]),
             "router": ([64, 4096], shared, ["tensor", "R", "R"]),
             "attention.qkv": ([6144, 4096], shared, ["tensor", "R", "S(0)"]),
             "attention.out": ([4096, 4096], shared, ["tensor", "R", "S(1)"])}
    return {"name": "A mixture of 64 experts: expert- to tensor-parallel", "world_size": 16, "topology": _CLUSTER,
            "meshes": {"experts": {"shape": [16]}, "tensor": {"shape": [2, 8]}},
            "tensors": [_tensor(f"layers.{{}}.{name}.weight", shape, held, wanted, repeat=48)
                        for name, (shape, held, wanted) in layer.items()]}


def all_to_all() -> dict[str, Any]:
    """1,024 ranks, each holding rows of a matrix, want columns: 64 KiB from each rank to each rank."""
    return {"name": "All-to-all of 1,024 ranks", "world_size": 1024, "topology": _CLUSTER,
            "meshes": {"all": {"shape": [1024]}},
            "tensors": [_tensor("matrix", [131072, 131072], ["all", "S(0)"], ["all", "S(1)"], dtype="float32")]}


def _tensor(name: str, shape: list[int], held: list[str], wanted: list[str], dtype: str = "bfloat16",
            repeat: int = 1) -> dict[str, Any]:
    return {"name": name, **({"repeat": repeat} if repeat > 1 else {}), "shape": shape, "dtype": dtype, "from": held,
            "to": wanted}


READY: dict[str, Callable[[], dict[str, Any]]] = {"llama-70b": llama_70b, "mixture": mixture, "all-to-all": all_to_all}
