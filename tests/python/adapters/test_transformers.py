"""Hugging Face transformers' models on both ends: sharded by FSDP2, cut by a tensor parallel plan, as a serving
engine's fused tensors, and in files.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers",
                    reason="transformers is not installed: ./run frameworks makes an environment that has it")
pytest.importorskip("torch.distributed.fsdp", reason="this torch has no fully_shard").fully_shard  # noqa: B018

from ranks import group, run_ranks  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig,  # noqa: E402
                          LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM)

import shardwire  # noqa: E402
from shardwire import FusedLayout, Layout, Replicate, Shard  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 67, "max_position_embeddings": 64}


def llama(seed: int, kind: str = "llama") -> torch.nn.Module:
    torch.manual_seed(seed)
    if kind == "qwen":  # q, k and v have biases, and the head is tied to the embedding
        return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)).eval()
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def sharded(model: Any, ranks: list[int]) -> Any:
    """The model by fully_shard over ``ranks``. Every rank calls this function, since all ranks make a mesh; None on the
    other ranks.
    """
    mesh = DeviceMesh("cpu", ranks)
    if torch.distributed.get_rank() not in ranks:
        return None
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def cut(model: Any, ranks: list[int]) -> Any:
    """The model by a tensor parallel plan over ``ranks``; k and v have as many heads as there are ranks. Called like
    sharded().
    """
    mesh = DeviceMesh("cpu", ranks)
    if torch.distributed.get_rank() not in ranks:
        return None
    plan = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
             "self_attn.o_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def fused_layouts(model: Any, ranks: list[int]) -> dict[str, Any]:
    """The parts of ``model`` in a tensor parallel serving engine: qkv_proj and gate_up_proj, each rank its share of
    every part.
    """
    mesh = torch.tensor(ranks)
    whole = {name: tensor for name, tensor in model.state_dict().items()}
    wanted: dict[str, Any] = {}
    for name, tensor in whole.items():
        layer, _, last = name.rpartition(".")
        path, _, part = layer.rpartition(".")
        cut_rows = Layout(mesh, [Shard(0)], tensor.shape, tensor.dtype)
        if part in ("q_proj", "gate_proj"):
            parts = ("q_proj", "k_proj", "v_proj") if part == "q_proj" else ("gate_proj", "up_proj")
            into = f"{path}.{'qkv_proj' if part == 'q_proj' else 'gate_up_proj'}.{last}"
            wanted[into] = FusedLayout(
                [Layout(mesh, [Shard(0)], whole[f"{path}.{each}.{last}"].shape, tensor.dtype) for each in parts])
        elif part in ("o_proj", "down_proj"):
            wanted[name] = Layout(mesh, [Shard(1)], tensor.shape, tensor.dtype)
        elif part not in ("k_proj", "v_proj", "up_proj"):
            wanted[name] = (cut_rows if part == "embed_tokens"
                            else Layout(mesh, [Replicate()], tensor.shape, tensor.dtype))
    return wanted


def fused_by_hand(name: str, model: Any, index: int, count: int) -> torch.Tensor:
    """The tensor ``name`` of rank ``index`` of ``count``, from the whole model."""
    whole = model.state_dict()
    for into, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        if into in name:
            return torch.cat([whole[name.replace(into, part)].chunk(count)[index] for part in parts])
    tensor = whole[name]
    if "o_proj" in name or "down_proj" in name:
        return tensor.chunk(count, dim=1)[index]
    return tensor.chunk(count)[index] if "embed_tokens" in name else tensor


def to_fused(rank: int, kind: str) -> int:
    model = llama(1, kind)
    trainer = sharded(llama(1, kind), [0, 1])
    tied = {"lm_head.weight"} if kind == "qwen" else set()
    server = ({name: layout for name, layout in fused_layouts(model, [2, 3]).items() if name not in tied} if rank >= 2
              else None)
    names = shardwire.weights.LLAMA.without(*tied) if tied else kind
    op = shardwire.sync(trainer, server, group(), mapping=names)
    op.run().wait()
    for name, tensor in (op.target or {}).items():
        assert torch.equal(tensor, fused_by_hand(name, model, rank - 2, 2)), name
    return len(op.target or {})


@pytest.mark.parametrize("kind", ["llama", "qwen"])
def test_a_sharded_trainer_to_a_fused_server(kind: str) -> None:
    counts = run_ranks(4, to_fused, kind, default_group=True)
    assert counts[2] == counts[3] > 10


def trained(rank: int) -> float:
    """A trainer that steps, and a transformers model cut for serving, which must give the logits of a plain model with
    the trainer's weights.
    """
    trainer, served, plain = sharded(llama(1), [0, 1]), cut(llama(2), [2, 3]), llama(3)
    tokens = torch.arange(12).reshape(2, 6)
    op = shardwire.sync(trainer, served, group())
    to_plain = shardwire.sync(trainer, plain if rank >= 2 else None, group())
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=0.01) if trainer is not None else None
    worst = 0.0
    for _ in range(3):
        if optimizer is not None:
            optimizer.zero_grad()
            trainer(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        op.run().wait()
        to_plain.run().wait()
        if rank >= 2:
            with torch.no_grad():
                for (name, mine), whole in zip(served.state_dict().items(), plain.state_dict().values()):
                    full = mine.full_tensor() if isinstance(mine, DTensor) else mine
                    assert torch.equal(full, whole), name
                hidden = plain.model.embed_tokens(tokens)
                attention = plain.model.layers[0].mlp(hidden)
                worst = max(worst, float((served.model.layers[0].mlp(hidden) - attention).abs().max()))
    return worst


def test_a_trainer_that_steps_and_a_tensor_parallel_server() -> None:
    results = run_ranks(4, trained, default_group=True, timeout=90)
    assert max(results[2:]) < 1e-5, results


def back_from_fused(rank: int) -> bool:
    """The other way: a serving engine's fused tensors back into a transformers model."""
    model, target = llama(4), llama(5)
    source = None
    if rank >= 2:
        source = {name: (layout, fused_by_hand(name, model, rank - 2, 2).clone())
                  for name, layout in fused_layouts(model, [2, 3]).items()}
    shardwire.sync(source, target if rank < 2 else None, group(), mapping="llama").run().wait()
    tokens = torch.arange(8).reshape(1, 8)
    return rank >= 2 or torch.equal(target(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_fused_tensors_back_into_a_model() -> None:
    assert all(run_ranks(4, back_from_fused, default_group=True))


def files(rank: int, folder: str) -> bool:
    model, loaded = llama(6), sharded(llama(7), [0, 1])
    if rank == 0:
        model.save_pretrained(f"{folder}/theirs", max_shard_size="20KB")
    group().barrier().wait()
    shardwire.load(f"{folder}/theirs", loaded, group())
    shardwire.save(loaded, f"{folder}/ours", group())
    if rank == 0:
        model.config.save_pretrained(f"{folder}/ours")
        again = LlamaForCausalLM.from_pretrained(f"{folder}/ours").eval()
        tokens = torch.arange(8).reshape(1, 8)
        return torch.equal(again(input_ids=tokens).logits, model(input_ids=tokens).logits)
    return True


def test_its_files_are_read_and_ours_by_it(tmp_path: Any) -> None:
    assert all(run_ranks(2, files, str(tmp_path), default_group=True))


def others(rank: int) -> int:
    """The tables of names of GPT-2 (transposed) and BERT, between real models of transformers and dicts in the serving
    form."""
    torch.manual_seed(1)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=61, n_positions=32))
    linear = {name: torch.zeros(tensor.shape[::-1] if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
                                else tensor.shape)
              for name, tensor in gpt2.state_dict().items() if name != "lm_head.weight"}
    names = shardwire.weights.GPT2.without("lm_head.weight")
    shardwire.sync(gpt2 if rank == 0 else None, linear if rank == 1 else None, group(), mapping=names).run().wait()
    bert = BertModel(
        BertConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=61))
    whole = bert.state_dict()
    fused: dict[str, torch.Tensor] = {}
    for name, tensor in whole.items():
        if ".query." in name:
            fused[name.replace("query", "qkv_proj")] = torch.zeros(3 * tensor.shape[0], *tensor.shape[1:])
        elif ".key." not in name and ".value." not in name:
            fused[name] = torch.zeros_like(tensor)
    shardwire.sync(bert if rank == 0 else None, fused if rank == 1 else None, group(), mapping="bert").run().wait()
    if rank == 0:
        return 0
    for name, tensor in linear.items():
        wanted = gpt2.state_dict()[name]
        assert torch.equal(tensor, wanted if tensor.shape == wanted.shape and "c_proj" not in name or wanted.dim() == 1
                                   else wanted.T), name
    for name, tensor in fused.items():
        parts = ([whole[name.replace("qkv_proj", part)] for part in ("query", "key", "value")] if "qkv_proj" in name
                 else [whole[name]])
        assert torch.equal(tensor, torch.cat(parts) if len(parts) > 1 else parts[0]), name
    return len(linear) + len(fused)


def test_gpt2_and_bert() -> None:
    assert run_ranks(2, others, default_group=True)[1] > 40
