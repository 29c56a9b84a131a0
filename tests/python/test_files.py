"""load and save against bytes made by hand, against the safetensors package where installed, and with ranks and disks
that fail midway.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import random
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankFailed, error_of as raised, group, run_ranks
from test_sync import Tied, filled, llama, local_of, random_model, same_on_all, sharded, value_of

import shardwire
from shardwire import FusedLayout, Layout, Shard
from shardwire.weights import read_ahead, safetensors_file, save_files, saving
from shardwire.weights.checkpoint_folder import FileSet
from shardwire.weights.movement import compile_movement
from shardwire.weights.read_ahead import Span, share_of

F32 = torch.float32
NAMES = {F32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.float64: "F64", torch.uint8: "U8",
         torch.bool: "BOOL", torch.float16: "F16"}


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def write_file(path: Path, tensors: dict[str, torch.Tensor], pad: int = 0) -> Path:
    """Writes a file by hand, after the format's description. ``pad`` spaces leave the data unaligned."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw(tensor))]}
        data += raw(tensor)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + pad)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def read_file(path: Path) -> dict[str, torch.Tensor]:
    """Reads a file by hand; asserts that every byte of the file belongs to a tensor."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    assert length % 8 == 0 and header.pop("__metadata__")["format"] == "pt"
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end
        end = stop
        dtype = dtypes[entry["dtype"]]
        tensors[name] = (torch.frombuffer(bytearray(data[begin:stop]), dtype=dtype) if stop > begin
                         else torch.empty(0, dtype=dtype)).reshape(entry["shape"])
    assert end == len(data)
    return tensors


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors in a folder written by save; asserts that the folder has no other files."""
    files = sorted(path.name for path in folder.iterdir())
    if files == ["model.safetensors"]:
        return read_file(folder / files[0])
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(files) == {*index["weight_map"].values(), "model.safetensors.index.json"}
    tensors = {file: read_file(folder / file) for file in set(index["weight_map"].values())}
    assert index["metadata"]["total_size"] == sum(len(raw(tensor)) for each in tensors.values()
                                                  for tensor in each.values())
    assert sum(map(len, tensors.values())) == len(index["weight_map"])
    return {name: tensors[file][name] for name, file in index["weight_map"].items()}


def same(found: dict[str, Any], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted), (sorted(found), sorted(wanted))
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


# There and back.

def random_models(rank: int, folder: str, seeds: range) -> int:
    """A model of random layouts is saved, read by hand, and loaded into other layouts."""
    for seed in seeds:
        rng = random.Random(seed)
        model = random_model(rng)
        most = rng.choice([1, 200, 5_000_000_000])
        place = Path(folder) / f"{seed}-{most}"
        whole = {name: value_of(name, shape, dtype) for name, shape, dtype, _, _ in model}
        source, target, wanted = {}, {}, {}
        for name, shape, dtype, out_of, into in model:
            local, goal = local_of(out_of, whole[name], rank), local_of(into, whole[name], rank)
            if local is not None:
                source[name] = local if isinstance(out_of, list) else (out_of, local)
            if goal is not None:
                wanted[name] = goal
                target[name] = torch.zeros_like(goal) if isinstance(into, list) else into
        paths = shardwire.save(source or None, place, group(), max_file_bytes=most)
        assert sorted(map(os.path.basename, paths)) == sorted(os.listdir(place)), seed
        if rank == 0:
            same(read_folder(place), whole)
        with recorded_spans() as spans:
            got = shardwire.load(place, target or None, group())
        same(got or {}, wanted)
        for name, _, dtype, _, into in model:
            elements = local_of(into, torch.arange(whole[name].numel()).reshape(whole[name].shape), rank)
            if elements is not None:
                check_brought_in(spans, name, elements.reshape(-1), torch.empty((), dtype=dtype).element_size(), seed)
    return len(seeds)


@contextlib.contextmanager
def recorded_spans() -> Iterator[list[Any]]:
    """The files and spans that load found wanted by this rank's host."""
    real, kept = FileSet.wanted_spans, []

    def recording(self: FileSet, *rest: Any) -> Any:
        kept.extend((self, spans := real(self, *rest)))
        return spans

    FileSet.wanted_spans = recording
    yield kept
    FileSet.wanted_spans = real


def check_brought_in(recorded: list[Any], name: str, elements: torch.Tensor, item: int, seed: int) -> None:
    """Every needed byte of the tensor is in one of the spans, and no span has bytes of other tensors."""
    files, spans = recorded
    which, stored = files.tensors[name]
    mine = [span for span in spans if span.file == which and span.begin < stored.end and stored.begin < span.end]
    covered = torch.zeros(stored.end - stored.begin, dtype=torch.bool)
    for span in mine:
        covered[max(0, span.begin - stored.begin):span.end - stored.begin] = True
    for byte in (0, item - 1):
        assert covered[elements * item + byte].all(), (seed, name)


@pytest.mark.parametrize("first", [100, 120])
def test_random_models_there_and_back(tmp_path: Path, first: int) -> None:
    run_ranks(4, random_models, str(tmp_path), range(first, first + 20), timeout=120)


def on_two_hosts(rank: int, store: str, folder: str, seeds: range) -> None:
    os.environ["SHARDWIRE_HOST_ID"] = f"host{rank // 2}"
    import ranks
    import torch.distributed as dist
    ranks._group = shardwire.create_process_group(dist.FileStore(store, 4), rank, 4, 60)
    random_models(rank, folder, seeds)
    # Files on one host only, and in one rank there; the other host gets its part from this rank.
    place = Path(folder) / "one"
    whole = value_of("w", (700, 1000))
    shardwire.save({"w": whole} if rank == 3 else None, place, ranks._group)
    layout = Layout([0, 1, 2, 3], [Shard(1)], whole.shape, F32)
    got = shardwire.load(place if rank == 1 else None, {"w": layout}, ranks._group)
    assert torch.equal(got["w"], layout.take(whole, rank))


def test_random_models_on_two_hosts(tmp_path: Path) -> None:
    run_ranks(4, on_two_hosts, str(tmp_path / "store"), str(tmp_path / "models"), range(200, 212), join=False,
              timeout=120)


def modules(rank: int, folder: str) -> None:
    shardwire.save(filled(Tied()) if rank != 1 else None, folder, group(), metadata={"step": "7"})
    expected = filled(Tied())
    if rank == 0:
        state = {name: tensor for name, tensor in expected.state_dict().items() if name != "head.weight"}
        content = read_folder(Path(folder))
        same(content, state)
        text = (Path(folder) / "model.safetensors").read_bytes()
        assert b'"__metadata__":{"format":"pt","step":"7"}' in text
    target = Tied()
    assert shardwire.load(folder, target, group()) is target
    same(target.state_dict(), expected.state_dict())
    assert target.head.weight is target.embed.weight
    # A plain list of files; a folder with a file of another name; ranks that do not read.
    other = Tied()
    shardwire.load([Path(folder) / "model.safetensors"] if rank == 2 else None, other if rank < 2 else None, group())
    if rank < 2:
        same(other.state_dict(), expected.state_dict())


def test_modules_with_ties_and_ranks_that_do_not_read(tmp_path: Path) -> None:
    run_ranks(3, modules, str(tmp_path / "new" / "folder"))


def mapped(rank: int, folder: str) -> None:
    """Hugging Face's names in the file, a serving engine's fused names over two ranks in the target; and saved with
    fused names.
    """
    names = llama(False)
    path = Path(folder)
    if rank == 0:
        write_file(path / "some.safetensors", names)
    shardwire.sync({"x": torch.ones(1)}, {"x": torch.zeros(1)}, group()).run().wait()  # the file is there
    fused, cut = llama(True), {}
    for name, tensor in fused.items():
        if "qkv_proj" in name:
            parts = [names[name.replace("qkv_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            cut[name] = FusedLayout([Layout([0, 1], [Shard(0)], part.shape, F32) for part in parts])
        else:
            cut[name] = Layout([0, 1], [Shard(0)], tensor.shape, F32)
    got = shardwire.load(path, cut, group(), "llama")
    for name, tensor in fused.items():
        if isinstance(cut[name], FusedLayout):
            parts = [names[name.replace("qkv_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            tensor = torch.cat([layout.take(part, rank) for layout, part in zip(cut[name].parts, parts)])
        else:
            tensor = cut[name].take(tensor, rank)
        assert torch.equal(got[name], tensor), name
    shardwire.save(names, path / "fused", group(), "llama")
    if rank == 0:
        same(read_folder(path / "fused"), fused)
    # The fused local tensors back into Hugging Face's names.
    back = shardwire.load(path / "fused", {name: torch.zeros_like(tensor) for name, tensor in names.items()}, group(),
                          "llama")
    same(back, names)


def test_names_are_mapped_on_the_way(tmp_path: Path) -> None:
    run_ranks(2, mapped, str(tmp_path))


def transposed(rank: int, path: str) -> None:
    whole = value_of("c", (6, 9))
    layout = Layout([0, 1, 2], [Shard(0)], (9, 6), F32)
    got = shardwire.load(path, {"h.c_fc.weight": layout}, group(), "gpt2")
    assert torch.equal(got["h.c_fc.weight"], layout.take(whole.t(), rank))


def test_gpt2_is_transposed_on_the_way(tmp_path: Path) -> None:
    run_ranks(3, transposed, str(
        write_file(tmp_path / "g.safetensors", {"h.c_fc.weight": value_of("c", (6, 9)), "h.attn.bias": torch.ones(2)})))


def unaligned(rank: int, path: str, tensors: dict[str, torch.Tensor]) -> None:
    same(shardwire.load(path, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, group()), tensors)


@pytest.mark.parametrize("pad", [0, 1, 3])
def test_every_dtype_and_unaligned_files(tmp_path: Path, pad: int) -> None:
    tensors = {"f": value_of("f", (3, 5)), "b": value_of("b", (7,), torch.bfloat16),
               "i": value_of("i", (2, 2), torch.int64), "none": torch.empty(0, 4),
               "scalar": torch.tensor(2.5, dtype=torch.float64), "u": torch.arange(5, dtype=torch.uint8),
               "flag": torch.tensor([True, False])}
    run_ranks(2, unaligned, str(write_file(tmp_path / "m.safetensors", tensors, pad)), tensors)


def other_default_device(rank: int, folder: str) -> None:
    whole = {"a": value_of("a", (40, 30)), "b": value_of("b", (3, 0)), "c": value_of("c", (4, 6), torch.bfloat16)}
    layouts = {name: Layout([0, 1], [Shard(0)], tuple(tensor.shape), tensor.dtype) for name, tensor in whole.items()}
    mine = sharded(whole, rank, [0, 1], 0)
    with torch.device("meta"):
        shardwire.save(mine, Path(folder) / "saved", group())
        got = shardwire.load(Path(folder) / "saved", layouts, group(), device="cpu")
    for name, layout in layouts.items():
        assert torch.equal(got[name], layout.take(whole[name], rank)), name


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_the_default_device_does_not_matter(tmp_path: Path) -> None:
    run_ranks(2, other_default_device, str(tmp_path))


def package_there_and_back(rank: int, folder: str) -> None:
    from safetensors.torch import load_file, save_file
    tensors = {name: value_of(name, shape, dtype)
               for name, shape, dtype in (("a", (40, 30), F32), ("b", (33,), torch.bfloat16), ("c", (), torch.int64),
                                          ("d", (3, 0), F32), ("e", (5, 2, 3), torch.float16))}
    for most in (100, 10**9):
        place = Path(folder) / str(most)
        paths = shardwire.save(sharded({name: tensors[name] for name in "abe"}, rank, [0, 1, 2], 0)
                               | {name: tensors[name] for name in "cd"}, place, group(), max_file_bytes=most)
        if rank == 0:
            found = {}
            for path in paths:
                if path.endswith(".safetensors"):
                    found.update(load_file(path))
            same(found, tensors)
    if rank == 0:
        save_file(tensors, Path(folder) / "theirs.safetensors", {"format": "pt"})
    shardwire.sync({"x": torch.ones(1)}, {"x": torch.zeros(1)}, group()).run().wait()
    same(shardwire.load(Path(folder) / "theirs.safetensors",
                        {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, group()), tensors)


def test_the_safetensors_package_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch", reason="the safetensors package is not here")
    run_ranks(3, package_there_and_back, str(tmp_path))


# Shares of the ranks.

def test_shares_are_even_and_cover_every_byte_once() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        spans, at = [], 0
        for file in range(rng.randint(1, 3)):
            for _ in range(rng.randint(0, 4)):
                at += rng.randint(0, 1000)
                spans.append(Span(file, at, at + rng.randint(1, 5 << 20)))
                at = spans[-1].end
        count = rng.randint(1, 5)
        shares = [share_of(spans, which, count) for which in range(count)]
        pieces = sorted(piece for share in shares for piece in share)
        joined: list[Span] = []
        for piece in pieces:
            if (joined and joined[-1].file == piece.file and joined[-1].end == piece.begin
                    and Span(piece.file, piece.begin, piece.end) not in spans):
                joined[-1] = Span(piece.file, joined[-1].begin, piece.end)
            else:
                joined.append(piece)
        total = sum(span.end - span.begin for span in spans)
        assert sum(piece.end - piece.begin for piece in pieces) == total, seed
        for before, after in zip(pieces, pieces[1:]):
            assert (before.file, before.end) <= (after.file, after.begin), seed
        sizes = [sum(piece.end - piece.begin for piece in share) for share in shares]
        assert all(abs(size - total / count) <= 2 << 20 for size in sizes), (seed, sizes)


def counted(rank: int, path: str, rows: int) -> tuple[int, dict[str, int]]:
    """The bytes that this rank requests from the file system when it wants a part of the rows."""
    asked = []
    real = read_ahead.bring_in

    def counting(files: Any, spans: Any, shown: Any) -> None:
        spans = list(spans)
        asked.extend(spans)
        real(files, spans, shown)

    import shardwire.weights.checkpoint_folder as module
    module.bring_in = counting
    layout = Layout([0, 1], [Shard(0)], (rows, 1024), F32)
    got = shardwire.load(path, {"w": layout}, group(), lambda name: name if name == "w" else None)
    assert torch.equal(got["w"], layout.take(torch.arange(rows * 1024.0).reshape(rows, 1024), rank))
    return sum(span.end - span.begin for span in asked), {}


def test_each_byte_is_read_once_by_one_rank_of_the_host(tmp_path: Path) -> None:
    rows = 2048
    path = write_file(tmp_path / "m.safetensors",
                      {"w": torch.arange(rows * 1024.0).reshape(rows, 1024), "unwanted": torch.zeros(1 << 20)})
    sizes = [size for size, _ in run_ranks(2, counted, str(path), rows)]
    assert sum(sizes) == rows * 4096 and abs(sizes[0] - sizes[1]) <= 1 << 20, sizes


# Broken files.

def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def broken(folder: Path) -> dict[str, tuple[Any, str, tuple[str, ...]]]:
    """name -> (path, the error's class, parts of the error's text)."""
    whole = write_file(folder / "good.safetensors", {"w": torch.zeros(4), "v": torch.zeros(2, 2)}).read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]

    def made(name: str, header: Any, data: bytes = b"\0" * 16) -> Path:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
        return folder / name

    def put(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    def entry(**changes: Any) -> dict[str, Any]:
        return {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}

    def made_folder(name: str, index: str | None, *files: str) -> Path:
        (folder / name).mkdir()
        for file in files:
            write_file(folder / name / file, {"w": torch.zeros(4)})
        if index is not None:
            (folder / name / "model.safetensors.index.json").write_text(index)
        return folder / name

    u8 = [{"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
          for begin, end in ((0, 8), (4, 16), (12, 16))]
    bad = "CheckpointError"
    return {
        "absent": (folder / "absent.safetensors", bad, ("no such file",)),
        "empty": (put("empty.safetensors", b""), bad, ("the file is empty",)),
        "short": (put("short.safetensors", b"\1\2"), bad, ("2 bytes are too few",)),
        "text": (put("text.safetensors", b"this is no checkpoint at all"), bad, ("would have a header of",)),
        "huge header": (put("hh.safetensors", struct.pack("<Q", 2**63) + whole[8:]), bad,
                        (f"a header of {2**63} bytes",)),
        "header too long": (put("hl.safetensors", struct.pack("<Q", len(whole)) + whole[8:]), bad,
                            (f"the header takes {len(whole)} bytes",)),
        "cut header": (put("ch.safetensors", whole[:8 + length // 2]), bad, ("truncated: the header",)),
        "cut data": (put("cd.safetensors", whole[:-3]), bad,
                     ("truncated: the tensors take 32 bytes, the file has 29",)),
        "trailing": (put("tr.safetensors", whole + b"xx"), bad, ("2 bytes follow the last tensor",)),
        "no json": (made("nj.safetensors", b"{nonsense}"), bad, ("header is not JSON",)),
        "no object": (made("no.safetensors", [1]), bad, ("not a JSON object",)),
        "deep": (made("de.safetensors", b"[" * 100000), bad, ("header is not JSON",)),
        "twice": (made("tw.safetensors", b'{"w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}, "w": {}}'),
                  bad, ("the name 'w' twice",)),
        "metadata": (made("md.safetensors", {"__metadata__": {"a": 1}, **entry()}), bad, ("__metadata__",)),
        "dtype": (made("dt.safetensors", entry(dtype="f32")), bad, ("'w' has the dtype 'f32'",)),
        "shape": (made("sh.safetensors", entry(shape=[-4])), bad, ("'w' has the shape [-4]",)),
        "size": (made("si.safetensors", entry(shape=[5])), bad,
                 ("'w' of shape [5] and dtype F32 needs 20 bytes, its data_offsets give 16",)),
        "overflow": (made("ov.safetensors", entry(shape=[2**62, 2**62])), bad, (f"needs {2**126} bytes",)),
        "backwards": (made("ba.safetensors", entry(data_offsets=[16, 0])), bad, ("data_offsets [16, 0]",)),
        "beyond": (made("be.safetensors", entry(shape=[8], data_offsets=[0, 32])), bad,
                   ("truncated: the tensors take 32 bytes, the file has 16",)),
        "overlap": (made("ol.safetensors", {"a": u8[0], "b": u8[1]}), bad,
                    ("'b' overlaps: its data begin at 4, but those of 'a' end at 8",)),
        "hole": (made("ho.safetensors", {"a": u8[0], "b": u8[2]}), bad, ("a hole: the data of 'b' begin at 12",)),
        "no such index": (made_folder("i0", "{"), bad, ("is not an index",)),
        "missing shard": (made_folder("i1", '{"weight_map": {"w": "a.safetensors"}}'), bad,
                          ("the shard a.safetensors is missing",)),
        "escape": (made_folder("i2", '{"weight_map": {"w": "../good.safetensors"}}'), bad,
                   ("'../good.safetensors', which is not in its folder",)),
        "unlisted": (made_folder("i3", '{"weight_map": {"v": "a.safetensors"}}', "a.safetensors"), bad,
                     ("places 'v' in a.safetensors",)),
        "unfinished": (made_folder("i4", None, "a.safetensors", "b.safetensors"), bad, ("and 2 other *.safetensors",)),
        "double": ([made_folder("i5", None, "a.safetensors") / "a.safetensors", folder / "good.safetensors"], bad,
                   ("holds 'w', which",)),
        "no folder": (made_folder("i6", None), bad, ("0 other *.safetensors",)),
        "dcp": (made_folder("i7", None), bad, ("cannot be read as a pickle",)),
        "kind": (17, "TypeError", ("path is 17",)),
        "pipe": (pipe(folder / "pipe.safetensors"), bad, ("pipe.safetensors: is a named pipe; give a regular file",)),
        "pipe in a folder": (pipe(made_folder("i8", None) / "model.safetensors").parent, bad,
                             ("model.safetensors: is a named pipe",)),
        "pipe for metadata": (pipe(made_folder("i9", None) / ".metadata").parent, bad, ("0 other *.safetensors",)),
        "device": ("/dev/zero", bad, ("/dev/zero: is a device",)),
        "folder": ([made_folder("i10", None)], bad, ("i10: is a folder",)),
    }


def load_all(rank: int, folder: str, cases: dict[str, tuple[Any, str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    """Only rank 1 has the broken file; the other ranks have a good file."""
    good = Path(folder) / "good.safetensors"
    results = [
        raised(lambda: shardwire.load(case[0] if rank == 1 else good, {"w": torch.zeros(4)}, group(), strict=False))
        for case in cases.values()]
    target = {"w": torch.ones(4), "v": torch.ones(2, 2)}
    shardwire.load(good, target, group())
    assert not target["w"].any() and not target["v"].any(), "the group is as usable as before"
    return results


def test_a_broken_file_of_one_rank_is_the_same_error_on_all(tmp_path: Path) -> None:
    cases = broken(tmp_path)
    (tmp_path / "i7" / ".metadata").write_bytes(b"")
    for (name, (_, kind, texts)), results in zip(cases.items(), zip(*run_ranks(2, load_all, str(tmp_path), cases))):
        text = same_on_all(list(results), kind, "rank 1: ", *texts)
        assert "\n" not in text, name


def does_not_fit(rank: int, path: str) -> list[tuple[str, str]]:
    return [raised(lambda: shardwire.load(path, {"w": torch.zeros(5), "x": torch.zeros(1)}, group())),
            raised(lambda: shardwire.load(path, {"w": torch.zeros(4).int(), "v": torch.zeros(2, 2)}, group())),
            raised(lambda: shardwire.load(None, {"w": torch.zeros(4)}, group())),
            raised(lambda: shardwire.save({"w": torch.zeros(2)}, path, group()) if rank
                           else shardwire.load(path, {"w": torch.zeros(4)}, group())),
            raised(lambda: shardwire.load(path, {"w": torch.zeros(4)}, group(), strict=bool(rank))),
            raised(lambda: shardwire.sync({"\ud800" if rank else "w": torch.zeros(4)}, {"w": torch.zeros(4)}, group())),
            raised(lambda: shardwire.save({"w": torch.zeros(4)}, path + ".new", group(),
                                          lambda name: "\udfff" if rank else name)),
            raised(lambda: shardwire.sync(
                {"w": torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.quint8) if rank else torch.zeros(4)},
                {"w": torch.zeros(4)}, group())),
            raised(lambda: shardwire.sync({"w": torch.zeros(4), "v": torch.zeros(4)}, {"w": torch.zeros(4)}, group(),
                                          strict=not rank)),
            raised(lambda: shardwire.save({"" if rank else "w": torch.zeros(4)}, path + ".new", group()))]


def load_beside_unknown(rank: int, path: str) -> tuple[str, str]:
    """The tensor 'packed' has a dtype of a newer format."""
    target = {"w": torch.zeros(4)}
    shardwire.load(path, target, group(), lambda name: None if name == "packed" else name)
    assert torch.equal(target["w"], torch.arange(4.0))
    return raised(lambda: shardwire.load(path, {"w": torch.zeros(4), "packed": torch.zeros(4)}, group()))


@pytest.mark.parametrize("dtype", ["F6_E2M3", "PRIVATE_OPS"])  # torch has an attribute PRIVATE_OPS
def test_a_dtype_that_the_format_did_not_have_bars_one_tensor_only(dtype: str, tmp_path: Path) -> None:
    header = json.dumps({"packed": {"dtype": dtype, "shape": [4], "data_offsets": [0, 3]},
                         "w": {"dtype": "F32", "shape": [4], "data_offsets": [3, 19]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(3) + raw(torch.arange(4.0)))
    same_on_all(run_ranks(2, load_beside_unknown, str(path)), "UnsupportedError",
                f"'packed' {dtype} in the source, 'packed' torch.float32 in the target")


def load_into_bfloat16(rank: int, path: str) -> bool:
    target = {"w": torch.zeros(33, 7, dtype=torch.bfloat16)}
    shardwire.load(path, target, group())
    return torch.equal(target["w"], value_of("w", (33, 7)).bfloat16())


def test_files_are_cast_on_the_way(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.safetensors", {"w": value_of("w", (33, 7))})
    assert all(run_ranks(2, load_into_bfloat16, str(path)))


def test_files_that_do_not_fit_the_target(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.safetensors", {"w": torch.zeros(4), "v": torch.zeros(2, 2)})
    cases = list(zip(*run_ranks(2, does_not_fit, str(path))))
    same_on_all(cases[0], "ValueError", "'w' [4] in the source, 'w' [5] in the target",
                "missing from the source (1): 'x'", "(1): 'v'")
    same_on_all(cases[1], "UnsupportedError", "'w' torch.float32 in the source, 'w' torch.int32 in the target")
    same_on_all(cases[2], "ValueError", "no rank gives a path")
    same_on_all(cases[3], "MismatchError", "rank 0 called shardwire.load, rank 1 called shardwire.save")
    same_on_all(cases[4], "MismatchError", "load: strict is False on rank 0 and True on rank 1")
    same_on_all(cases[5], "ValueError", "rank 1: source '\\ud800': the name has half of a surrogate pair")
    same_on_all(cases[6], "ValueError",
                "rank 1: source 'w': the name '\\udfff' that mapping gives it has half of a surrogate pair")
    same_on_all(cases[7], "UnsupportedError", "rank 1: source 'w' is quantized (torch.quint8)")
    same_on_all(cases[8], "MismatchError", "sync: strict is True on rank 0 and False on rank 1")
    same_on_all(cases[9], "ValueError", "rank 1: the source name '' becomes an empty name; rename the tensor")


def cut_while_reading(rank: int, path: str) -> tuple[str, str]:
    import shardwire.weights.checkpoint_folder as module
    real = read_ahead.bring_in

    def cut(files: Any, spans: Any, shown: Any) -> None:
        if rank == 1:
            os.truncate(path, 1 << 20)
        real(files, spans, shown)

    module.bring_in = cut
    return raised(lambda: shardwire.load(path if rank == 1 else None,
                                         {"w": torch.zeros(1 << 20)} if rank == 0 else None, group()))


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.safetensors", {"w": torch.zeros(1 << 20)})
    same_on_all(run_ranks(2, cut_while_reading, str(path)), "CheckpointError", "rank 1: ",
                "truncated while it was read")


def unreadable(rank: int, path: str) -> tuple[str, str]:
    if rank == 0:
        real = os.fstat
        os.open, kept = (lambda *args, **more: (_ for _ in ()).throw(
            PermissionError(13, "Permission denied", str(args[0])))), os.open
        try:
            return raised(lambda: shardwire.load(path, {"w": torch.zeros(4)}, group()))
        finally:
            os.open, os.fstat = kept, real
    return raised(lambda: shardwire.load(path, {"w": torch.zeros(4)}, group()))


def in_the_home(rank: int, folder: str) -> None:
    os.environ["HOME"] = folder
    saved = shardwire.save({"w": torch.ones(3)}, "~/weights", group())
    assert saved == [f"{folder}/weights/model.safetensors"], saved
    for path in ("~/weights", ["~/weights/model.safetensors"]):
        assert torch.equal(shardwire.load(path, {"w": torch.zeros(3)}, group())["w"], torch.ones(3))


def test_a_path_may_begin_with_the_users_home(tmp_path: Path) -> None:
    run_ranks(1, in_the_home, str(tmp_path))


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.safetensors", {"w": torch.zeros(4)})
    same_on_all(run_ranks(2, unreadable, str(path)), "SystemFailure", "rank 0: ", "Permission denied", "m.safetensors")


# After a failed save the old files are still there.

OLD = {"a": torch.full((300, 1000), 1.0), "b": torch.full((300, 1000), 2.0), "c": torch.full((3,), 3.0)}
NEW = {name: tensor + 10 for name, tensor in OLD.items()}
STEPS = (("posix_fallocate", 1), ("pwrite", 2), ("fsync", 1), ("fsync", 3), ("fsync", 4), ("fsync", 5), ("rename", 1),
         ("rename", 2), ("rename", 4), ("unlink", 1))


def save_old(rank: int, folder: str, most: int) -> None:
    shardwire.save(OLD if rank < 2 else None, folder, group(), max_file_bytes=most)


def save_over(rank: int, folder: str, most: int, step: str, count: int, how: str) -> tuple[str, str]:
    """The ``count``-th call of os.``step`` on rank 0, which creates and moves files, fails or ends the process; "late":
    fails after the step.
    """
    if rank == 0:
        real = getattr(save_files.os, step)
        calls = [0]

        def failing(*args: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] == count:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "late":
                    real(*args, **more)
                raise OSError(28, "No space left on device")
            return real(*args, **more)

        save_files.os = type("os", (), {**{name: getattr(os, name) for name in dir(os)}, step: staticmethod(failing)})
    try:
        return raised(lambda: shardwire.save(NEW if rank < 2 else None, folder, group(), max_file_bytes=most))
    except AssertionError:
        return "", ""


def load_whole(rank: int, folder: str) -> dict[str, torch.Tensor]:
    return shardwire.load(folder, {name: torch.zeros_like(tensor) for name, tensor in OLD.items()}, group())


@pytest.mark.any_torch
@pytest.mark.parametrize("how, old_most, new_most",
                         [("kill", 1, 1), ("kill", 10**9, 1), ("kill", 1, 10**9), ("kill", 10**9, 10**9),
                          ("fail", 1, 1), ("fail", 10**9, 10**9), ("late", 1, 1)])
def test_a_save_that_fails_leaves_a_whole_checkpoint(tmp_path: Path, how: str, old_most: int, new_most: int) -> None:
    seen = set()
    for step, count in STEPS:
        folder = tmp_path / f"{step}{count}"
        run_ranks(2, save_old, str(folder), old_most)
        try:
            results = run_ranks(2, save_over, str(folder), new_most, step, count, how)
        except RankFailed as error:
            assert how == "kill" and "SIGKILL" in str(error)
            results = []
        if results and results[0] != ("", ""):
            same_on_all(results, "SystemFailure", "rank 0: ", "No space left on device")
            assert not [name for name in os.listdir(folder) if name.endswith(".tmp")], (
                "a failed save leaves nothing hidden")
        found = run_ranks(1, load_whole, str(folder))[0]
        is_new = bool(found["c"][0] > 5)
        same(found, NEW if is_new else OLD)
        if results and not is_new:
            same(read_folder(folder), OLD)  # and nothing else is there
        seen.add(is_new)
    assert False in seen


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_save_that_is_killed_hides_no_checkpoint_of_another_name_and_is_none(tmp_path: Path, count: int) -> None:
    for folder in (tmp_path / "empty", tmp_path / "other"):
        folder.mkdir()
        if folder.name == "other":
            write_file(folder / "weights.safetensors", OLD)
        with pytest.raises(RankFailed, match="SIGKILL"):
            run_ranks(2, save_over, str(folder), 1, "rename", count, "kill")
        assert len([name for name in os.listdir(folder) if name.startswith("model-0")]) == count - 1
    same(run_ranks(1, load_whole, str(tmp_path / "other"))[0], OLD)
    with pytest.raises(RankFailed, match=f"0 other .* beside {count - 1} parts"):
        run_ranks(1, load_whole, str(tmp_path / "empty"))


def by_system_calls(rank: int, folder: str) -> list[int]:
    """The number of ops compiled to save rows, fused parts, replicas, columns, and transposed rows."""
    whole = torch.arange(4e6).reshape(2000, 2000)
    compiled: list[int] = []

    def counting(*args: Any, **more: Any) -> Any:
        compiled[-1] += 1
        return compile_movement(*args, **more)

    saving.compile_movement = counting  # type: ignore[assignment]
    parts = {f"layers.0.{part}_proj.weight": whole[at:at + 400] for part, at in (("q", 0), ("k", 400), ("v", 800))}
    cases: list[tuple[Any, Any, dict[str, torch.Tensor]]] = [
        ({**sharded({"w": whole, "e": torch.empty(0, 5)}, rank, [0, 1], 0), "s": torch.tensor(3.0)}, None,
         {"w": whole, "s": torch.tensor(3.0), "e": torch.empty(0, 5)}),
        (parts, "llama", {"layers.0.qkv_proj.weight": whole[:1200]}),
        ({"w": whole[100:1900]}, None, {"w": whole[100:1900]}),
        (sharded({"w": whole}, rank, [0, 1], 1), None, {"w": whole}),
        ({"w": whole.t()}, None, {"w": whole.t()}),
    ]
    for number, (source, mapping, expected) in enumerate(cases):
        compiled.append(0)
        (path,) = shardwire.save(source, f"{folder}/{number}", group(), mapping)
        same(read_file(Path(path)), expected)
    return compiled


def test_whole_rows_are_written_past_the_op(tmp_path: Path) -> None:
    assert run_ranks(2, by_system_calls, str(tmp_path)) == [[0, 0, 0, 1, 1]] * 2


def limited(rank: int, folder: str) -> tuple[str, str]:
    """A full disk for rank 1 only: the system refuses files above a size."""
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    return raised(lambda: shardwire.save(sharded({"a": torch.ones(300, 1000), "b": torch.ones(300, 1000)}, rank, [0, 1],
                                                 0), folder, group(), max_file_bytes=1))


def test_a_full_disk_is_reported_before_anything_is_moved(tmp_path: Path) -> None:
    same_on_all(run_ranks(2, limited, str(tmp_path)), "SystemFailure", "rank 1: ",
                f"{tmp_path}: file 2 of 2 of the checkpoint (.00001.shardwire-", "the 1200", "File too large")
    assert os.listdir(tmp_path) == []


def views(rank: int, folder: str) -> list[tuple[str, str]]:
    """Tensors on one rank that no run can take, and then the group's next call."""
    x, other = torch.tensor([1 + 2j, 3 - 4j]), torch.ones(3, 4)
    shardwire.save({"w": x, "v": other}, folder + "/ok", group())
    whole, cut = torch.zeros(8), torch.zeros(2, 4)
    mine: dict[str, Any] = {
        "save conj": lambda: shardwire.save({"w": x.conj() if rank else x}, folder, group()),
        "save neg": lambda: shardwire.save({"w": x.conj().imag if rank else x.imag}, folder, group()),
        "load expanded": lambda: shardwire.load(folder + "/ok",
                                                {"v": torch.zeros(3, 1).expand(3, 4) if rank else torch.zeros(3, 4)},
                                                group(), strict=False),
        "load conj": lambda: shardwire.load(
            folder + "/ok", {"w": torch.zeros_like(x).conj() if rank else torch.zeros_like(x)}, group(), strict=False),
        "sync overlap": lambda: shardwire.sync({"a": cut[0], "b": cut[1]},
                                               {"a": whole[:4], "b": whole[2:6] if rank else whole[4:]}, group()),
        "sync itself": lambda: shardwire.sync({"a": whole[:4] if rank else cut[0]}, {"a": whole[1:5]}, group()),
    }
    results = [raised(call) for call in mine.values()]
    target = shardwire.load(folder + "/ok", {"v": torch.zeros(3, 4)}, group(), strict=False)
    assert torch.equal(target["v"], other), "the group is as usable as before"
    return results


def test_views_that_no_run_can_take_are_refused_on_all_ranks(tmp_path: Path) -> None:
    cases = list(zip(*run_ranks(2, views, str(tmp_path), timeout=20)))
    same_on_all(cases[0], "ValueError", "rank 1: ", "source 'w' is a lazily conjugated")
    same_on_all(cases[1], "ValueError", "rank 1: ", "source 'w' is a lazily conjugated or negated view")
    same_on_all(cases[2], "ValueError", "rank 1: ", "target 'v' of rank 1 has elements that share memory")
    same_on_all(cases[3], "ValueError", "rank 1: ", "target 'w' is a lazily conjugated")
    same_on_all(cases[4], "ValueError", "rank 1: ", "target 'a' and target 'b' of rank 1 share memory")
    same_on_all(cases[5], "ValueError", "rank 1: ", "source 'a' and target 'a' of rank 1 share memory")
    assert os.listdir(tmp_path) == ["ok"]


def wrong_saves(rank: int, folder: str) -> list[tuple[str, str]]:
    one = {"w": torch.ones(2)}

    def call(source: Any, *args: Any, **more: Any) -> tuple[str, str]:
        return raised(lambda: shardwire.save(source, *args, **more))

    (Path(folder) / "file").write_text("")
    safetensors_file.MAX_HEADER = 1000
    return [call(one, f"{folder}/{rank}", group()), call(one, 3, group()), call(one, folder, group(), max_file_bytes=0),
            call(one, folder, group(), metadata={"a": 1}), call(None, folder, group()),
            call({"w": torch.ones(2, dtype=torch.complex128)}, folder, group()),
            call(one, folder, group(), lambda name: ["x", "y"]), call(one, f"{folder}/file/deeper", group()),
            call({"q_proj.weight": torch.ones(2)}, folder, group(), "llama"),
            call({"__metadata__": torch.ones(2)}, folder, group()), call({"w": torch.ones([1] * 17)}, folder, group()),
            call(one, folder, group(), metadata={"a": "b" * 1000}),
            call(one, folder, group(), metadata={"a": "\ud800"}), call(one, f"{folder}/file", group())]


def test_wrong_saves(tmp_path: Path) -> None:
    cases = list(zip(*run_ranks(2, wrong_saves, str(tmp_path))))
    same_on_all(cases[0], "MismatchError", "all ranks give the same")
    same_on_all(cases[1], "TypeError", "folder is 3")
    same_on_all(cases[2], "ValueError", "max_file_bytes is 0")
    same_on_all(cases[3], "TypeError", "metadata")
    same_on_all(cases[4], "ValueError", "no rank has a source")
    same_on_all(cases[5], "UnsupportedError", "'w' has dtype torch.complex128")
    same_on_all(cases[6], "ValueError", "whose sizes nothing says here")
    same_on_all(cases[7], "SystemFailure", "rank 0: ", "Not a directory")
    same_on_all(cases[8], "ValueError", "cannot be joined into 'qkv_proj.weight' of 3 parts")
    same_on_all(cases[9], "UnsupportedError", "the name '__metadata__'")
    same_on_all(cases[10], "UnsupportedError", "'w' has 17 dimensions")
    same_on_all(cases[11], "UnsupportedError", "for 1 weights would take 1",
                "of 1000 that are allowed; save to more files")
    same_on_all(cases[12], "ValueError", "metadata has the text '\\ud800'")
    same_on_all(cases[13], "CheckpointError", "rank 0: ", "file is a file", "give the path of a folder")
    assert sorted(os.listdir(tmp_path)) == ["0", "file"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return not super().isatty()  # ValueError where the terminal is closed


class EndsWithTheLook:
    """A future whose transfer ends while the time of a look passes."""
    over = False

    def done(self) -> bool:
        return self.over

    def synchronize(self, seconds: float) -> None:
        self.over = True
        raise shardwire.TimeoutError("is still in flight: the wait ended first")

    def wait(self) -> None:
        pass


def test_a_transfer_that_ends_with_a_look_of_the_progress_is_no_timeout() -> None:
    from shardwire.weights.progress import Progress
    seen: list[tuple[int, int]] = []
    progress = Progress("load", lambda done, total: seen.append((done, total)), 0)
    progress.begin("reads", 5)
    progress.wait(EndsWithTheLook(), 5)  # type: ignore[arg-type]
    assert progress.done == 5


class GoneTerminal(Terminal):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_ends_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwire.weights import progress
    monkeypatch.setattr(progress, "_BAR_FROM_S", 0.0)
    for terminal in (GoneTerminal(), Terminal()):
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.Progress("load", None, 0) as shown:
            shown.begin("reads", 5)
            terminal.close()  # of a Terminal a write raises ValueError from now on
            shown.add(5)
    with progress.Progress("load", None, 0) as shown:  # of the closed terminal isatty() raises
        shown.begin("reads", 5)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.Progress("load", None, 0) as shown:
        monkeypatch.setattr(sys, "stderr", None)
        shown.begin("reads", 5)


def with_progress(rank: int, folder: str) -> list[tuple[str, str]]:
    from shardwire.weights import progress
    calls: list[tuple[int, int]] = []
    tensors = {name: value_of(name, (1000, 300)) for name in "ab"}
    target = {name: torch.zeros(1000, 300) for name in tensors}

    def call(done: int, total: int) -> None:
        calls.append((done, total))

    shardwire.save(sharded(tensors, rank, [0, 1], 0), folder, group(), progress=call)
    assert calls and calls[-1] == (1_200_000, 1_200_000), calls
    calls.clear()
    shardwire.load(folder, target, group(), progress=call)
    assert calls and calls[-1][0] == calls[-1][1] > 2_400_000 and all(done <= total for done, total in calls), calls
    progress._BAR_FROM_S = progress._LINE_EVERY_S = 0.0
    shown, sys.stderr = sys.stderr, Terminal()
    shardwire.load(folder, target, group())
    bar, sys.stderr = sys.stderr.getvalue(), shown
    assert (rank == 1 and bar == ""
            or rank == 0 and f"\rload {folder} [" in bar
               and "[##############################] done, 4.5 MB of 4.5 MB, " in bar and bar.endswith("\n")), bar
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(f"{record.levelname} "  # type: ignore[method-assign]
                                                 f"{record.getMessage()}")
    logging.getLogger("shardwire").setLevel(logging.INFO)
    logging.getLogger("shardwire").addHandler(handler)
    shardwire.load(folder, target, group())
    shardwire.load(folder, target, group(), progress=False)
    lines = [line for line in records if "load" in line]
    assert (rank == 1 and not lines
            or rank == 0 and "INFO" in lines[0] and "reading, 0 B of" in lines[0] and "done" in lines[-1]), records

    def wrong(done: int, total: int) -> None:
        raise ZeroDivisionError("mine")

    shardwire.load(folder, target, group(), progress=wrong)
    assert "WARNING" in records[-1] and "progress= raised ZeroDivisionError: mine" in records[-1]
    return [raised(  # type: ignore[arg-type]
        lambda: shardwire.load(folder, target, group(), progress=3 if rank else None))]


def test_progress_is_shown_and_reported(tmp_path: Path) -> None:
    (case,) = zip(*run_ranks(2, with_progress, str(tmp_path)))
    same_on_all(list(case), "TypeError", "rank 1: progress is 3")


def save_of_my_own(rank: int, folder: str) -> bool:
    """Saves alone while the other rank does so too; whether each checkpoint is one rank's, and nothing is left over."""
    alone = shardwire.create_process_group(dist.FileStore(f"{folder}/store{rank}", 1), 0, 1, 60, "alone")
    place, names = f"{folder}/saved", [f"w{number}" for number in range(6)]
    for turn in range(20):
        group().barrier().wait()
        mine = {name: torch.full((64,), 2.0 * turn + rank) for name in names}
        shardwire.save(mine, place, alone, max_file_bytes=300, progress=False)
        group().barrier().wait()
        got = {name: torch.zeros(64) for name in names}
        shardwire.load(place, got, alone, progress=False)
        values = {float(value) for tensor in got.values() for value in tensor}
        if len(values) != 1 or not values <= {2.0 * turn, 2.0 * turn + 1} or len(os.listdir(place)) != 7:
            return False
    return True


def test_jobs_that_save_into_one_folder_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_ranks(2, save_of_my_own, str(tmp_path)) == [True, True]
    monkeypatch.setattr(save_files, "_LONGEST_TURN_S", 0.1)
    with open_folder(tmp_path / "saved") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        same_on_all(run_ranks(1, save_once, str(tmp_path / "saved")), "CheckpointError",
                    "another job has been moving its checkpoint")
        monkeypatch.undo()
        same_on_all(run_ranks(2, save_once, str(tmp_path / "saved"), 1.5), "CheckpointError",
                    "another job has been moving its checkpoint")


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def save_once(rank: int, folder: str, seconds: float | None = None) -> Any:
    return raised(lambda: shardwire.save({"w": torch.zeros(4)}, folder, group(), timeout=seconds))
