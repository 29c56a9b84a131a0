"""The demo: checkpoint readers on good and broken files, layouts on real models' names, and the program from end to
end.
"""

from __future__ import annotations

import json
import os
import re
import struct
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import TORCH
from run_program import run_program
from shardwire import Replicate, Shard, StridedShard
from shardwire.compiler.plot import heading_lines, svg_picture, text_width
from shardwire.demo.__main__ import main
from shardwire.demo.checkpoint import CheckpointError, load_checkpoint
from shardwire.demo.gpt2 import gpt2_shapes
from shardwire.demo.job import count_mismatches
from shardwire.demo.tensor_parallel import inference_placement, training_placement

pytestmark = pytest.mark.any_torch

KEYS = ["bytes", "tensors", "ranks", "compile_ms", "run_ms", "gbps", "memcpy_gbps", "ratio_to_memcpy", "today_ms",
        "extra_bytes", "mismatched_bytes"]
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL",
         torch.uint8: "U8"}


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor], metadata: Any = None, pad: int = 0) -> None:
    """A second implementation of the format, for tests."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def some_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    nan = torch.randn(6, 4, generator=generator)
    nan[0, 0] = float("nan")
    return {"wte.weight": nan, "h.0.attn.c_attn.weight": torch.randn(4, 12, generator=generator),
            "h.0.attn.c_attn.bias": torch.randn(12).bfloat16(), "h.0.mlp.c_proj.weight": torch.randn(16, 4).half(),
            "step": torch.tensor(12345), "mask": torch.tensor([True, False, True]), "ln_f.weight": torch.randn(4),
            "odd": torch.randn(5, 3, 7), "empty": torch.zeros(0, 4), "one": torch.randn(1, 1)}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and count_mismatches(a, b) == 0


# Readers.

@pytest.mark.parametrize("pad", range(0, 8))
def test_safetensors_are_read_bit_for_bit(tmp_path: Path, pad: int) -> None:
    tensors = some_tensors()
    write_safetensors(tmp_path / "m.safetensors", tensors, {"format": "pt"}, pad)
    read = load_checkpoint(tmp_path / "m.safetensors")
    assert list(read) == list(tensors)
    assert all(same(read[name], tensor) for name, tensor in tensors.items())


def test_torch_files_are_read_with_their_wrappers_and_ties(tmp_path: Path) -> None:
    tensors = some_tensors()
    tensors["lm_head.weight"] = tensors["wte.weight"]
    torch.save(tensors, tmp_path / "plain.pt")
    torch.save({"state_dict": tensors, "epoch": 3, "optimizer": {"steps": [1, 2]}}, tmp_path / "wrapped.pth")
    torch.save(tensors, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for name in ("plain.pt", "wrapped.pth", "old.bin"):
        read = load_checkpoint(tmp_path / name)
        assert list(read) == list(tensors)
        assert all(same(read[key], tensor) for key, tensor in tensors.items()), name
        assert read["lm_head.weight"].data_ptr() == read["wte.weight"].data_ptr()


def test_folders_of_shards(tmp_path: Path) -> None:
    tensors = some_tensors()
    names = list(tensors)
    parts = [{name: tensors[name] for name in names[:4]}, {name: tensors[name] for name in names[4:]}]
    for kind in ("safetensors", "pt", "indexed"):
        folder = tmp_path / kind
        folder.mkdir()
        for number, part in enumerate(parts):
            if kind == "pt":
                torch.save(part, folder / f"part{number}.pt")
            else:
                write_safetensors(folder / f"model-{number}.safetensors", part)
        if kind == "indexed":
            write_safetensors(folder / "unrelated.safetensors", {"x": torch.zeros(1)})
            weight_map = {name: f"model-{number}.safetensors" for number, part in enumerate(parts) for name in part}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        read = load_checkpoint(folder)
        assert list(read) == names and all(same(read[name], tensors[name]) for name in names), kind


WRAPPED: dict[str, Any] = {
    "chgnet": lambda tensors: {"model": {"model_args": {"dim": 64}, "state_dict": tensors},
                               "trainer_args": {"steps": 4}},
    "one": lambda tensors: {"epoch": 3, "state_dict": tensors,
                            "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}},
    "deepspeed": lambda tensors: {"module": tensors, "global_steps": 7},
    "ordered": lambda tensors: {"net": {"params": tensors}, "rng_state": torch.zeros(5)},
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("ending", [".pth.tar", ".ckpt"])
def test_state_dicts_are_found_under_their_wrappers(tmp_path: Path, kind: str, ending: str) -> None:
    tensors = some_tensors()
    torch.save(WRAPPED[kind](tensors), tmp_path / f"best{ending}")
    read = load_checkpoint(tmp_path / f"best{ending}")
    assert list(read) == list(tensors) and all(same(read[name], tensor) for name, tensor in tensors.items())


def test_tensors_under_names_of_their_own_have_their_path(tmp_path: Path) -> None:
    torch.save({"generator": {"w": torch.ones(2)}, "upscaler": {"w": torch.ones(1)},
                "critic": {"body": {"w": torch.zeros(3)}}, "step": torch.tensor(4),
                "critic_optimizer": {"state": {"w": torch.ones(9)}}, "lr_scheduler": {"last": torch.ones(1)}},
               tmp_path / "gan.pt")
    assert {name: list(tensor.shape) for name, tensor in load_checkpoint(tmp_path / "gan.pt").items()} == {
        "generator.w": [2], "upscaler.w": [1], "critic.body.w": [3], "step": []}


def test_a_file_without_tensors_says_what_it_has(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "history": [1, 2], "optimizer": {"m": torch.ones(2)}}, tmp_path / "none.pth.tar")
    with pytest.raises(CheckpointError, match=r"none\.pth\.tar: holds no tensors; its top-level keys are 'epoch' "
                                              r"\(int\), 'history' \(list\), 'optimizer' \(dict\)$"):
        load_checkpoint(tmp_path / "none.pth.tar")
    torch.save({f"key{number}": number for number in range(11)}, tmp_path / "many.pt")
    with pytest.raises(CheckpointError, match=r"'key7' \(int\) and 3 more$"):
        load_checkpoint(tmp_path / "many.pt")
    torch.save({}, tmp_path / "empty.pt.tar")
    with pytest.raises(CheckpointError, match="the dict is empty"):
        load_checkpoint(tmp_path / "empty.pt.tar")
    loop: dict[str, Any] = {}
    loop["model"] = loop
    torch.save(loop, tmp_path / "loop.pt")
    with pytest.raises(CheckpointError, match="holds no tensors"):
        load_checkpoint(tmp_path / "loop.pt")


def test_folders_as_hugging_face_has_them(tmp_path: Path) -> None:
    """Beside the model lie the trainer's arguments, the same weights in another form, and hidden files."""
    tensors = some_tensors()
    names = list(tensors)
    folder = tmp_path / "indexed"
    folder.mkdir()
    for number, part in enumerate((names[:3], names[3:])):
        write_safetensors(folder / f"model.fp16-{number}.safetensors", {name: tensors[name] for name in part})
    weight_map = {name: f"model.fp16-{number}.safetensors" for number, part in enumerate((names[:3], names[3:]))
                  for name in part}
    # transformers' name of variants, with an index unknown to the demo
    (folder / "model.safetensors.index.fp16.json").write_text("{}")
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    single = tmp_path / "single"
    single.mkdir()
    write_safetensors(single / "model.safetensors", tensors)
    write_safetensors(single / "consolidated.safetensors", {"other.name": torch.ones(3)})
    bins = tmp_path / "bins"
    bins.mkdir()
    torch.save(tensors, bins / "pytorch_model.bin")
    for each in (folder, single, bins):
        (each / "training_args.bin").write_bytes(b"no tensors")
        (each / "config.json").write_text("{}")
        (each / ".hidden.safetensors").write_bytes(b"")
        read = load_checkpoint(each)
        assert list(read) == names and all(same(read[name], tensors[name]) for name in names), each
    (folder / "another.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError,
                       match="has several indices, another.safetensors.index.json, diffusion_pytorch_model"):
        load_checkpoint(folder)


@pytest.mark.skipif(TORCH < (2, 2), reason="torch below 2.2 needs a process group to write such a checkpoint")
def test_folders_of_torch_distributed_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    tensors = {name: tensor for name, tensor in some_tensors().items() if tensor.numel()}
    dcp.save({"model": dict(tensors), "optimizer": {"state": {"exp_avg": torch.ones(3)}}, "epoch": 4},
             checkpoint_id=str(tmp_path / "nested"))
    dcp.save(dict(tensors), checkpoint_id=str(tmp_path / "flat"))
    for kind in ("nested", "flat"):
        read = load_checkpoint(tmp_path / kind)
        assert set(read) == set(tensors) and all(same(read[name], tensor) for name, tensor in tensors.items()), kind
    llama = {"model.embed.weight": torch.ones(3), "lm_head.weight": torch.zeros(2)}
    dcp.save(dict(llama), checkpoint_id=str(tmp_path / "llama"))
    assert set(load_checkpoint(tmp_path / "llama")) == set(llama)
    dcp.save({"epoch": 4, "optimizer": {"m": torch.ones(2)}}, checkpoint_id=str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="holds no tensors"):
        load_checkpoint(tmp_path / "none")
    (tmp_path / "flat" / ".metadata").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="metadata"):
        load_checkpoint(tmp_path / "flat")


def broken_files(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes broken files. File name -> the expected error."""
    good = folder / "good.safetensors"
    write_safetensors(good, some_tensors())
    raw = good.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]

    def header(entry: Any, data: bytes = b"\0" * 16) -> bytes:
        text = json.dumps(entry).encode() if not isinstance(entry, bytes) else entry
        return struct.pack("<Q", len(text)) + text + data

    def one(**changes: Any) -> bytes:
        return header({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}})

    def raw_bytes(begin: int, end: int) -> dict[str, Any]:
        return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}

    contents: dict[str, tuple[bytes, str]] = {
        "empty.safetensors": (b"", "the file is empty"),
        "empty.pt": (b"", "the file is empty"),
        "short.safetensors": (b"\x01\x02", "2 bytes are too few"),
        "text.safetensors": (b"this is no checkpoint at all", "is no safetensors file"),
        "cut-in-header.safetensors": (raw[:8 + length // 2], "truncated: the header"),
        "cut-in-data.safetensors": (raw[:-3], "truncated: the tensors"),
        "trailing.safetensors": (raw + b"xx", "2 bytes follow the last tensor"),
        "not-json.safetensors": (header(b"{nonsense}"), "header is not JSON"),
        "not-utf8.safetensors": (header(b"{\xff\xfe}"), "header is not JSON"),
        "list.safetensors": (header([1, 2]), "not a JSON object"),
        "twice.safetensors": (header(b'{"w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}, "w": {}}'),
                              "unique names"),
        "deep.safetensors": (header(b"[" * 100000), "header is not JSON"),
        "no-entry.safetensors": (header({"w": 3}), "lacks dtype"),
        "no-dtype.safetensors": (header({"w": {"shape": [4], "data_offsets": [0, 16]}}), "lacks dtype"),
        "dtype.safetensors": (one(dtype="F31"), "has the dtype F31, which cannot be read"),
        "shape.safetensors": (one(shape=[-4]), "no list of up to 16 natural numbers"),
        "shape-float.safetensors": (one(shape=[4.0]), "no list of up to 16 natural numbers"),
        "size.safetensors": (one(shape=[5]), "needs 20 bytes, its data_offsets give 16"),
        "huge.safetensors": (one(shape=[2**62, 2**62]), "needs "),
        "offsets.safetensors": (one(data_offsets=[16, 0]), "which are no range"),
        "beyond.safetensors": (one(shape=[8], data_offsets=[0, 32]), "truncated: the tensors take 32"),
        "hole.safetensors": (header({"a": raw_bytes(0, 4), "b": raw_bytes(12, 16)}), "begin at 12"),
        "overlap.safetensors": (header({"a": raw_bytes(0, 16), "b": raw_bytes(4, 8)}), "begin at 4"),
        "nothing.safetensors": (header({}, b""), "holds no tensors"),
        "nameless.safetensors": (header({"": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}),
                                 "without a name"),
        "garbage.pt": (b"garbage" * 40, "torch cannot read the file"),
        "model.onnx": (b"onnx", "ends in none of .safetensors"),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    torch.save([1, 2], folder / "list.pt")
    torch.save({"epoch": 1}, folder / "no-tensors.pt")
    torch.save({"w": torch.eye(2).to_sparse()}, folder / "sparse.pt")
    (folder / "cut.pt").write_bytes(pickled_half(folder))
    return {name: (str(folder / name), text) for name, (_, text) in contents.items()} | {
        "list.pt": (str(folder / "list.pt"), "holds a list"),
        "no-tensors.pt": (str(folder / "no-tensors.pt"), "holds no tensors"),
        "cut.pt": (str(folder / "cut.pt"), "torch cannot read the file"),
        "sparse.pt": (str(folder / "sparse.pt"), "sparse.pt"),
        "absent": (str(folder / "absent.safetensors"), "no such file")}


def pickled_half(folder: Path) -> bytes:
    torch.save(some_tensors(), folder / "whole.pt")
    content = (folder / "whole.pt").read_bytes()
    return content[:len(content) // 2]


def test_broken_files_are_clear_errors_of_one_line(tmp_path: Path) -> None:
    cases = broken_files(tmp_path)
    assert len(cases) >= 30
    for name, (path, text) in cases.items():
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)
        assert text in str(caught.value) and "\n" not in str(caught.value), f"{name}: {caught.value}"


def test_a_torch_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {tmp_path}/ran",))

    torch.save({"w": torch.zeros(2), "x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="torch cannot read the file"):
        load_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_broken_folders(tmp_path: Path) -> None:
    cases = {}
    for name in ("nothing", "double", "index", "missing", "escape", "unlisted"):
        (tmp_path / name).mkdir()
        if name != "nothing":
            write_safetensors(tmp_path / name / "a.safetensors", {"w": torch.zeros(2)})
    write_safetensors(tmp_path / "double" / "b.safetensors", {"w": torch.zeros(2)})
    for name, index in (("index", "{"), ("missing", json.dumps({"weight_map": {"w": "b.safetensors"}})),
                        ("escape", json.dumps({"weight_map": {"w": "../a.safetensors"}})),
                        ("unlisted", json.dumps({"weight_map": {"v": "a.safetensors"}}))):
        (tmp_path / name / "model.safetensors.index.json").write_text(index)
    cases = {"nothing": "has no *.safetensors", "double": "which a.safetensors holds as well",
             "index": "is not an index", "missing": "b.safetensors is missing", "escape": "is not in its folder",
             "unlisted": "which does not have it"}
    for name, text in cases.items():
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path / name)
        assert text in str(caught.value), f"{name}: {caught.value}"


# Layouts.

@pytest.mark.parametrize(("name", "shape", "expected", "rule"), [
    ("transformer.wte.weight", (50257, 768), Shard(0), "vocabulary"),
    ("wpe.weight", (1024, 768), Replicate(), "replicated"),
    ("h.0.ln_1.weight", (768,), Replicate(), "replicated"),
    ("h.11.attn.c_attn.weight", (768, 2304), StridedShard(1, 3), "column"),
    ("h.11.attn.c_attn.bias", (2304,), StridedShard(0, 3), "column"),
    ("h.3.attn.c_proj.weight", (768, 768), Shard(0), "row"),
    ("h.3.attn.c_proj.bias", (768,), Replicate(), "replicated"),
    ("h.3.mlp.c_fc.weight", (768, 3072), Shard(1), "column"),
    ("h.3.mlp.c_fc.bias", (3072,), Shard(0), "column"),
    ("h.3.mlp.c_proj.weight", (3072, 768), Shard(0), "row"),
    ("blocks.3.mlp.c_fc.weight", (3072, 768), Shard(0), "column"),      # torch Linear under GPT-2's name
    ("blocks.3.mlp.c_proj.weight", (768, 3072), Shard(1), "row"),
    ("model.embed_tokens.weight", (32000, 4096), Shard(0), "vocabulary"),
    ("model.layers.0.self_attn.q_proj.weight", (4096, 4096), Shard(0), "column"),
    ("model.layers.0.self_attn.k_proj.weight", (1024, 4096), Shard(0), "column"),
    ("model.layers.0.self_attn.v_proj.bias", (1024,), Shard(0), "column"),
    ("model.layers.0.self_attn.o_proj.weight", (4096, 4096), Shard(1), "row"),
    ("model.layers.0.mlp.gate_proj.weight", (11008, 4096), Shard(0), "column"),
    ("model.layers.0.mlp.up_proj.weight", (11008, 4096), Shard(0), "column"),
    ("model.layers.0.mlp.down_proj.weight", (4096, 11008), Shard(1), "row"),
    ("model.layers.0.input_layernorm.weight", (4096,), Replicate(), "replicated"),
    ("model.norm.weight", (4096,), Replicate(), "replicated"),
    ("lm_head.weight", (32000, 4096), Shard(0), "vocabulary"),
    ("bert.embeddings.word_embeddings.weight", (30522, 384), Shard(0), "vocabulary"),
    ("embeddings.position_embeddings.weight", (512, 384), Replicate(), "replicated"),
    ("embeddings.token_type_embeddings.weight", (2, 384), Replicate(), "replicated"),
    ("embeddings.LayerNorm.bias", (384,), Replicate(), "replicated"),
    ("encoder.layer.0.attention.self.query.weight", (384, 384), Shard(0), "column"),
    ("encoder.layer.0.attention.self.value.bias", (384,), Shard(0), "column"),
    ("encoder.layer.0.attention.output.dense.weight", (384, 384), Shard(1), "row"),
    ("encoder.layer.0.attention.output.dense.bias", (384,), Replicate(), "replicated"),
    ("encoder.layer.0.intermediate.dense.weight", (1536, 384), Shard(0), "column"),
    ("encoder.layer.0.output.dense.weight", (384, 1536), Shard(1), "row"),
    ("encoder.layer.0.attention.output.LayerNorm.weight", (384,), Replicate(), "replicated"),
    ("gpt_neox.layers.0.attention.query_key_value.weight", (6144, 2048), Shard(0), "column"),
    ("gpt_neox.layers.0.mlp.dense_4h_to_h.weight", (2048, 8192), Shard(1), "row"),
    ("strange.weight", (300, 700), Shard(1), "by shape"),
    ("strange.kernel", (64, 3, 300, 7), Shard(2), "by shape"),
    ("strange.vector", (300,), Replicate(), "by shape"),
    ("strange.small", (3, 3), Replicate(), "by shape"),
    ("strange.scalar", (), Replicate(), "replicated"),
    ("x.q_proj.weight", (1, 4), Replicate(), "column"),                 # fewer rows than ranks: not worth cutting
])
def test_inference_layout_by_name(name: str, shape: tuple[int, ...], expected: Any, rule: str) -> None:
    assert inference_placement(name, shape, 2) == (expected, rule)


def test_training_layout_and_odd_numbers_of_ranks() -> None:
    assert training_placement((5, 3)) == Shard(0) and training_placement(()) == Replicate()
    assert inference_placement("h.0.attn.c_attn.weight", (768, 2304), 5)[0] == Shard(1), (
        "2304 does not divide into 3 times 5")
    assert inference_placement("h.0.attn.c_attn.weight", (768, 2304), 1)[0] == Replicate()


def test_gpt2_has_its_real_parameters() -> None:
    shapes = gpt2_shapes()
    assert len(shapes) == 148
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 124_439_808


def test_mismatches_are_counted_in_bytes() -> None:
    values = torch.tensor([1.0, float("nan"), -0.0])
    assert count_mismatches(values, values.clone()) == 0
    changed = values.clone()
    changed[2] = 0.0
    assert count_mismatches(changed, values) == 1, "-0.0 is another bit pattern"
    assert (count_mismatches(torch.zeros(0), torch.zeros(0)) == 0
            and count_mismatches(torch.tensor(3), torch.tensor(3)) == 0)


# The picture.

# Advance widths of DejaVu Sans Bold, U+0020 to U+007E, in thousandths of its size: read from the font, the widest of
# the usual fonts.
WIDTHS = [348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696, 696,
          696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775,
          637, 995, 837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500, 500, 675,
          716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595, 478, 712, 652, 924,
          645, 652, 582, 712, 365, 712, 838]


def drawn_width(text: str, size: float) -> float:
    return size / 1000 * sum(WIDTHS[ord(char) - 32] if " " <= char <= "~" else 1000 for char in text)


def texts_in(svg: str) -> list[tuple[str, float, float, float, float, float]]:
    """(text, left, right, baseline, size, y of the surrounding element) of every text; asserts that each text lies in
    the picture.
    """
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
    found = []

    def look(element: ElementTree.Element, inherited: tuple[float, float] | None) -> None:
        for child in element:
            turned = re.fullmatch(r"translate\(([-\d.]+),([-\d.]+)\) rotate\(-90\)", child.get("transform", ""))
            assert turned or "transform" not in child.attrib, child.attrib
            look(child, (float(turned[1]), float(turned[2])) if turned else inherited)
            if not child.tag.endswith("}text"):
                continue
            text, size = child.text or "", float(child.attrib["font-size"])
            wide = drawn_width(text, size)
            left = (float(child.attrib["x"])
                    - {"start": 0.0, "middle": wide / 2, "end": wide}[child.attrib["text-anchor"]])
            base = float(child.attrib["y"])
            box = (left, left + wide, base - size, base + 0.3 * size)
            if inherited is not None:  # a quarter turn to the left about the inherited point
                box = (inherited[0] + box[2], inherited[0] + box[3], inherited[1] - box[1], inherited[1] - box[0])
            assert (0 <= box[0] and box[1] <= width and 0 <= box[2]
                    and box[3] <= height), f"{text!r} runs out of the picture: {box} in {width} x {height}"
            found.append((text, *box, size))

    look(root, None)
    return found


TITLES = {"short": "gather",
          "demo": "GPT-2 small, made-up values (124.4M elements, float32): training mesh to inference mesh", "path": "",
          "wide": "W" * 500, "many": "MW @% " * 200, "foreign": "\u4e2d\u6587" * 100,
          "unprintable": "\x01\udcff\x00 & <b>", "lines": "a\nb\nc\nd\ne", "empty": "\n", "slashes": "/" * 300}
LONG_PATH = ("/home/somebody/models/hub/models--meta-llama--Llama-3.1-8B/snapshots/"
             "0123456789abcdef0123456789abcdef01234567/model-00001-of-00004.safetensors")


TITLES["path"] = f"Training mesh to inference mesh:\n{LONG_PATH} (8030.3M elements, bfloat16, float16, float32)"


@pytest.mark.parametrize("title", list(TITLES))
@pytest.mark.parametrize("world", [1, 2, 4, 9, 17])
def test_no_text_runs_out_of_the_picture_nor_into_another(world: int, title: str) -> None:
    amounts = [round(99.4 * 2**30), 1, 0, 1023, 1000 << 20]
    edges = [{"src": s, "dst": d, "bytes": amounts[(s * world + d) % len(amounts)], "pieces": 1} for s in range(world)
             for d in range(world)]
    texts = texts_in(
        svg_picture({"name": "", "world_size": world, "edges": edges, "lower_bound_bytes": 99 << 40}, TITLES[title]))
    for number, (text, left, right, top, bottom, _) in enumerate(texts):
        for other, *box, _ in texts[number + 1:]:
            apart = right <= box[0] or box[1] <= left or bottom <= box[2] or box[3] <= top
            assert apart or min(bottom, box[3]) - max(top, box[2]) < 4, f"{text!r} lies over {other!r}"


def test_a_title_is_whole_where_there_is_room_and_a_path_keeps_its_end() -> None:
    gpt2 = "GPT-2 small, made-up values (124.4M elements, float32): training mesh to inference mesh"
    for room in (300, 500, 892):
        assert " ".join(heading_lines(gpt2, 19, room, 9)) == gpt2
    assert len(heading_lines(gpt2, 19, 892)) == 2
    assert heading_lines(LONG_PATH, 19, 892) == ["…/model-00001-of-00004.safetensors"]
    assert heading_lines("a " * 1000, 19, 200)[2].endswith("a…") and len(heading_lines("a " * 1000, 19, 200)) == 3
    for char in map(chr, range(32, 127)):
        assert text_width(char, 10) >= drawn_width(char, 10), f"{char!r} is wider than it is taken for"


def test_the_demos_picture_names_a_checkpoint_in_a_deep_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("a-folder-with-a-long-name/" * 6)
    folder.mkdir(parents=True)
    write_safetensors(folder / "m.safetensors", {"wpe.weight": torch.zeros(8, 8)})
    ended = demo("--checkpoint", str(folder / "m.safetensors"), "--ranks", "2", "--runs", "1", "--skip-today",
                 "--picture", str(tmp_path / "out.svg"))
    assert ended.returncode == 0, ended.stderr
    texts = [text for text, *_ in texts_in((tmp_path / "out.svg").read_text())]
    assert texts[0] == "Training mesh to inference mesh:" and "/m.safetensors" in "".join(texts[1:3]), texts[:4]


# The program.

def demo(*arguments: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, "-m", "shardwire.demo", *arguments], timeout,
                       env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})


def test_demo_of_two_jobs(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", some_tensors())
    ended = demo("--jobs", "2", "--checkpoint", str(tmp_path / "m.safetensors"), "--ranks", "3", "--runs", "3")
    assert ended.returncode == 0, ended.stderr
    assert " 0 bytes differ" in ended.stdout and "versions committed" in ended.stdout, ended.stdout
    assert demo("--jobs", "2", "--json", str(tmp_path / "x")).returncode == 2
    ended = demo("--jobs", "2", "--checkpoint", str(tmp_path / "none"), "--ranks", "2")
    assert ended.returncode == 2 and "none" in ended.stderr


def test_demo_casts_on_the_way(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", some_tensors())
    moved = {}
    for cast in (None, "bf16", "f64"):
        ended = demo("--checkpoint", str(tmp_path / "m.safetensors"), "--ranks", "2", "--runs", "2", "--skip-today",
                     *(["--cast", cast] if cast else []), "--json", str(tmp_path / "out.json"))
        assert ended.returncode == 0, ended.stderr
        assert cast is None or f"cast to {cast}" in ended.stdout
        result = json.loads((tmp_path / "out.json").read_text())
        assert result["mismatched_bytes"] == 0
        moved[cast] = result["bytes"]
    assert moved["bf16"] < moved[None] < moved["f64"]
    assert demo("--cast", "i8").returncode == 2


@pytest.mark.parametrize("ranks", [3, 5])
def test_demo_moves_a_checkpoint(tmp_path: Path, ranks: int) -> None:
    write_safetensors(tmp_path / "m.safetensors", some_tensors())
    ended = demo("--checkpoint", str(tmp_path / "m.safetensors"), "--ranks", str(ranks), "--runs", "2", "--json",
                 str(tmp_path / "out.json"), "--picture", str(tmp_path / "out.svg"),
                 *(["--ordinary"] if ranks == 3 else []))
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert list(result) == KEYS
    assert result["mismatched_bytes"] == 0 and result["tensors"] == len(some_tensors()) and result["ranks"] == ranks
    assert (result["run_ms"] > 0 and result["gbps"] > 0 and result["memcpy_gbps"] > 0 and result["today_ms"] > 0
            and result["compile_ms"] > 0)
    assert result["bytes"] >= sum(tensor.numel() * tensor.element_size() for tensor in some_tensors().values())
    assert "every byte equals the source" in ended.stdout and "today = gloo" in ended.stdout
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    assert ended.stderr == "" or "Traceback" not in ended.stderr


def test_demo_moves_tied_strided_and_mixed_tensors_of_a_torch_file(tmp_path: Path) -> None:
    tensors = some_tensors()
    tensors["lm_head.weight"] = tensors["wte.weight"]
    tensors["strided"] = torch.randn(6, 8).t()
    torch.save(tensors, tmp_path / "m.pt")
    ended = demo("--checkpoint", str(tmp_path / "m.pt"), "--runs", "1", "--skip-today", "--json",
                 str(tmp_path / "out.json"))
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["mismatched_bytes"] == 0 and result["today_ms"] is None and result["tensors"] == len(tensors)


def test_demo_refuses_wrong_files_and_arguments_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: seven Pythons with torch took 25 s. test_demo_of_two_jobs checks the program's own status."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # for the ranks, which main does not reach
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    good = tmp_path / "good.safetensors"
    write_safetensors(good, {"w": torch.zeros(2)})
    for arguments, text in (
            (["--checkpoint", str(tmp_path / "cut.safetensors")], "truncated"),
            (["--checkpoint", str(tmp_path / "none.pt")], "no such file"),
            (["--checkpoint", str(good), "--json", str(tmp_path / "no" / "out.json")], "cannot be written")):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert text in said and len(said.strip().splitlines()) == 1, said
    for arguments, text in ((["--ranks", "1"], "at least 2"), (["--runs", "0"], "at least 1"),
                            (["--picture", "x.gif"], ".svg or .png"), (["--timeout", "-1"], "above 0")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2 and text in capsys.readouterr().err


SPOILED = """
import sys
import time
from shardwire.demo import __main__, job
right = job.Layout.take
def take(layout, tensor, rank):
    taken = right(layout, tensor, rank)
    if taken is not None and rank == 3 and taken.numel():  # an inference rank: what it is compared with is off by some bits
        taken = taken.clone()
        taken.reshape(-1)[0] = 7
    return taken
job.Layout.take = take
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_wrong_byte_makes_the_demo_fail(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", {"wpe.weight": torch.full((8, 8), 1.5)})
    ended = run_program([sys.executable, "-c", SPOILED, "--checkpoint", str(tmp_path / "m.safetensors"), "--runs", "1",
                         "--skip-today", "--json", str(tmp_path / "out.json")],
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == 1, ended.stderr
    assert json.loads((tmp_path / "out.json").read_text())["mismatched_bytes"] > 0
    assert "BYTES DIFFER" in ended.stdout


KILLED = """
import os, signal, sys
from shardwire.demo import __main__, job
right = job.layouts_of
def layouts_of(source, settings):
    if os.getppid() == int(os.environ["DEMO_PARENT"]):
        try:
            os.close(os.open(os.environ["DEMO_MARK"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return right(source, settings)
        os.kill(os.getpid(), signal.SIGKILL)  # the first that comes
    return right(source, settings)
os.environ["DEMO_PARENT"] = str(os.getpid())
job.layouts_of = layouts_of
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", {"w": torch.zeros(8, 8)})
    ended = run_program(
        [sys.executable, "-c", KILLED, "--checkpoint", str(tmp_path / "m.safetensors"), "--runs", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DEMO_MARK": str(tmp_path / "dies")})
    assert ended.returncode == 1 and "died (exit code -9)" in ended.stderr, ended.stderr


def test_killed_whole_it_leaves_nothing_behind(tmp_path: Path) -> None:
    # A temporary folder of this test: another job may be at work on this machine.
    before = {path for path in Path("/dev/shm").iterdir() if "shardwire" in path.name}
    process = subprocess.Popen([sys.executable, "-m", "shardwire.demo", "--runs", "1000"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)})
    time.sleep(3)  # in the middle of the runs, or before
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    assert not list(tmp_path.iterdir())
    assert {path for path in Path("/dev/shm").iterdir() if "shardwire" in path.name} <= before
