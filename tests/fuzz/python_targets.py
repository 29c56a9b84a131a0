"""The parsers that are Python, as targets of python_records.py. A target has inputs made by the real writer, and the
errors that the parser's documentation names.

A search does not get behind lengths and digests, so most targets compute both, and an input is the text inside.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pathlib
import pickle
import selectors
import socket
import struct
import types
import zipfile
import zlib
from collections import OrderedDict
from typing import Any, Callable, Iterator, NamedTuple

import torch

import shardwire
from shardwire import Layout, errors
from shardwire.kernels import package
from shardwire.kernels.tensor_forms import TensorForm
from shardwire.plain.serialize import PLAIN, deserialize, from_parts, serialize
from shardwire.plain.write import write
from shardwire.queues import content
from shardwire.records import client as record_client
from shardwire.records import server as record_server
from shardwire.records.job_token import proof
from shardwire.status import processes
from shardwire.weights import (checkpoint_folder, dcp_folder, descriptions, finding, meeting_place, safetensors_file,
                               torch_archive)
from shardwire.weights.holdings import Holdings
from shardwire.weights.pickles import unpickle
from shardwire.weights.problems import Problems

LONGEST_INPUT = 1 << 14


class Target(NamedTuple):
    parse: Callable[[bytes], Any]
    seeds: list[bytes]
    errors: tuple[type[BaseException], ...]
    modules: tuple[str, ...]  # their lines are counted


def tensor_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def parse_plain(data: bytes) -> None:
    """"0": the bytes of an object. "1": the head of an object, whose tensors have fixed sizes."""
    if data[:1] == b"0":
        deserialize(tensor_of(data[1:]))
    else:
        from_parts(PLAIN, data[1:], [torch.ones(size, dtype=torch.uint8) for size in (40, 8, 12, 4, 16)], False)


def parse_queue_entry(data: bytes) -> None:
    """The head of an entry, whose parts have fixed sizes. A first byte "0": the entry of another rank's queue, whose
    parts arrive after the head; "1": of this rank's."""
    sizes = [24] if data[1:2] == b"\0" else [24, 40, 12]
    entry, tensor = content.Content(data[1:]), None
    parts = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    if data[:1] == b"0":
        parts, tensor = entry.memory(sizes, None)
    entry.value(parts, tensor, None, False)


class Records(record_server.RecordServer):
    """The server without the thread and the listener, for one caller at a time."""

    def __init__(self) -> None:
        self._records, self._count, self._bytes, self._callers = {}, 0, 0, {}
        self._selector = selectors.DefaultSelector()

    def take(self, data: bytes) -> None:
        """One request in each line. The first byte is "0" for a caller without a proof of the token."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            caller = record_server._Caller(ours)
            ours.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ, caller)
            self._callers[ours.fileno()] = caller
            caller.is_proved = data[:1] != b"0"
            for line in data[1:].split(b"\n")[:20]:
                theirs.sendall(len(line).to_bytes(4, "big") + line)
                self._step(caller, self._read)
                if not self._callers:
                    break
            while caller.resting is not None and self._callers:
                caller.resting = None
                self._step(caller, lambda caller: caller.answer(self._count))
            self._drop(caller)
        self._records.clear()
        self._bytes = 0


class Publisher:
    """A place with the publisher's record, its last record, and the answer of each of its ranks: a line each."""

    def __init__(self, data: bytes) -> None:
        lines = [*data.split(b"\n"), b"", b""]
        self.record, self.closed, self.answer = (line.decode("latin-1") for line in lines[:3])

    def peek(self, key: str) -> bytes | None:
        if ".answer." in key:
            return self.answer.encode("latin-1") or None
        role = "publisher" if key == "publisher" else "closed"
        text = self.record if role == "publisher" else self.closed
        return json.dumps({"body": text, "proof": proof(role, text)}).encode() if text else None


def parse_publisher(data: bytes) -> None:
    place, address = Publisher(data), types.SimpleNamespace(name="policy", text="the store")
    record, foreign = finding._record(place, address)  # type: ignore[arg-type]
    if foreign is not None:
        raise foreign
    if record is not None:
        missing = finding._missing(place, record, "note")  # type: ignore[arg-type]
        str(finding._nobody(address, record, missing, ""))  # type: ignore[arg-type]


def parse_record_answer(data: bytes) -> None:
    """The server's answer. Its length is computed, unless the first byte is "0"."""
    size = b"" if data[:1] == b"0" else len(data[1:]).to_bytes(4, "big")
    answer = record_client._receive(Answer(size + data[1:]))  # type: ignore[arg-type]
    record_client.record_of(answer)
    record_client.count_of(answer)


def parse_description(data: bytes) -> None:
    """The text of a description, which two ranks gave, and a third rank gave an honest one. The text is compressed."""
    description, honest = zlib.compress(data), zlib.compress(description_seed())
    descriptions.moved_to(description, dict.fromkeys(descriptions.names_in(description), {}))
    descriptions.collect([description, honest, description], "source", Problems())


class Answer:
    """A connection to a process with the answer ``data``."""

    def __init__(self, data: bytes) -> None:
        self.recv = io.BytesIO(data).read

    def settimeout(self, _seconds: float) -> None: ...

    def connect(self, _path: str) -> None: ...


def parse_status(data: bytes) -> None:
    processes._receive(Answer(data), pathlib.Path("/nowhere"), 0.0)  # type: ignore[arg-type]


class Files:
    """Parsers of files: the bytes lie in a file in memory."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("shardwire-fuzz")
        self.path = pathlib.Path(f"/proc/self/fd/{self.descriptor}")

    def write(self, data: bytes) -> None:
        os.truncate(self.descriptor, 0)
        os.pwrite(self.descriptor, data, 0)

    def safetensors(self, data: bytes) -> None:
        """A header's text, then the data. The length of the header is computed."""
        end = data.rfind(b"}") + 1
        self.write(struct.pack("<Q", end) + data)
        file = safetensors_file.OpenFile(self.path)
        try:
            for stored in file.tensors.values():
                with contextlib.suppress(errors.UnsupportedError):
                    file.tensor(stored).sum()
        finally:
            file.close()

    def archive(self, data: bytes) -> None:
        """"0": an archive. "1": the pickle in an archive."""
        archive = data[1:]
        if data[:1] != b"0":
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as made:
                made.writestr("archive/data.pkl", data[1:])
                made.writestr("archive/data/0", bytes(12))
            archive = file.getvalue()
        self.write(archive)
        chunk = torch_archive.Chunk((0,), (3,), "f", 0, len(archive))
        begin, size, _ = torch_archive.find_elements(self.descriptor, chunk, "float32", "the archive")
        if begin < 0 or size < 0 or begin + size > len(archive):
            raise AssertionError(f"elements from byte {begin} on, {size} bytes, in a file of {len(archive)}")

    def index(self, data: bytes) -> None:
        self.write(data)
        checkpoint_folder.read_index(self.path)


def parse_metadata(data: bytes) -> None:
    """The metadata of torch.distributed.checkpoint, without a folder."""
    folder = dcp_folder.DcpFolder.__new__(dcp_folder.DcpFolder)
    folder.folder, folder.tensors = pathlib.Path("/nowhere"), {}
    metadata = unpickle(data, "metadata")
    with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError, IndexError):
        folder._read(metadata["state_dict_metadata"], metadata["storage_data"])


def parse_kernel(data: bytes) -> None:
    """The text of the head. Its length and the digest are computed."""
    whole = package._START.pack(package._MAGIC, package.SCHEMA, len(data)) + data + b"code"
    package.decode(whole + package.hashlib.blake2b(whole, digest_size=package._DIGEST).digest())


# ---- the first inputs

def line_of(*request: Any) -> bytes:
    return json.dumps(request).encode()


def queue_seeds() -> Iterator[bytes]:
    for value in ({"a": [1, "b"]}, ["x" * 3000], [torch.arange(6.0), "text"]):
        yield b"0" + content.of_object(value, False)[0]
        yield b"1" + content.of_object(value, False)[0]
    for tensor in (torch.arange(6.0).reshape(2, 3), torch.arange(3), torch.ones(3, dtype=torch.complex64)):
        yield b"0" + content.of_tensor(tensor)[0]
        yield b"1" + content.of_tensor(tensor)[0]


@functools.cache
def description_seed() -> bytes:
    rows = Layout([0, 1], [shardwire.Shard(0)], (4, 2), torch.float32)
    sums = Layout([[0, 1]], [shardwire.Replicate(), shardwire.Partial()], (2,), torch.float32)
    tied = torch.ones(2, dtype=torch.int8)
    held = Holdings({"w": (rows, torch.ones(2, 2)), "sums": (sums, torch.ones(2)), "x": tied, "y": tied,
                     "qk": (shardwire.FusedLayout({"q": rows, "k": rows}), torch.ones(4, 2))}, "source", 0, [0, 1])
    places: dict[str, Any] = {"w": shardwire.Part("all", 1, 2), "qk": ["q", "k"]}
    return zlib.decompress(descriptions.describe(held, lambda name: places.get(name, name)))


def publisher_seeds() -> Iterator[bytes]:
    record = json.dumps({"id": "a1", "size": 2, "who": ["pid 1 on a", "pid 2 on b"]}).encode()
    for closed in (b"", b'{"id": "another"}', b'{"id": "a1"}'):
        for answer in (b"", b'["yes", ""]', b'["no", "another size"]'):
            yield b"\n".join((record, closed, answer))


def archive_seeds() -> Iterator[bytes]:
    for value in (torch.ones(3), torch.ones(3, dtype=torch.int32), {"a": torch.ones(3)}):
        file = io.BytesIO()
        torch.save(value, file)
        yield b"0" + file.getvalue()
        yield b"1" + zipfile.ZipFile(file).read("archive/data.pkl")


class Described(types.SimpleNamespace):
    """An object of the metadata. The reader ignores most names of classes."""

    __hash__ = object.__hash__


class TensorStorageMetadata(Described):
    pass


def metadata_seed() -> bytes:
    chunks = [Described(offsets=torch.Size([at]), sizes=torch.Size([2])) for at in (0, 2)]
    stored = {Described(fqn="w", offset=each.offsets): Described(relative_path="f.distcp", offset=8, length=100)
              for each in chunks}
    tensor = TensorStorageMetadata(properties=Described(dtype=torch.float32), size=torch.Size([4]), chunks=chunks)
    return pickle.dumps(Described(state_dict_metadata={"w": tensor, "step": Described()}, storage_data=stored), 2)


def plain_seeds() -> Iterator[bytes]:
    values: list[Any] = [
        {"a": [1, (2, "three"), torch.arange(5), b"x"], 2: {3, frozenset([4])}}, OrderedDict(x=1.5, y=2j),
        [range(4), slice(1, None, 2), torch.float16, torch.Size([2]), torch.device("cpu"), None, True]]
    values.append([values, values[0], torch.ones(2, 3).t(), torch.nn.Parameter(torch.ones(1))])
    with contextlib.suppress(ImportError):
        import numpy as np
        values.append([np.arange(3), np.float32(1), np.zeros(2, "<M8[s]")])
    for value in values:
        yield b"0" + bytes(serialize(value).numpy())
        yield b"1" + write(value)[0]


def record_seeds() -> Iterator[bytes]:
    requests = [line_of("put", "a.b", "1"), line_of("add", "n", 2), line_of("peek", "n"), line_of("remove", "a"),
                line_of("rest", "0", 0.1)]
    yield b"0" + line_of("prove", "x" * 64) + b"\n" + requests[0]
    yield b"1" + b"\n".join(requests)
    yield from (b"1" + request for request in requests)


def kernel_seed() -> bytes:
    form = TensorForm("x", (2,), "torch.float32", "cpu", (1,))
    whole = package.Package("key", "name", "torchscript", [form], [form], "tensor", [0], ["g"], ["op"]).encode()
    return whole[package._START.size:-package._DIGEST]


def targets() -> dict[str, Target]:
    files, broken_file = Files(), (errors.CheckpointError, errors.UnsupportedError)
    header, _ = safetensors_file.build_header([("a", "F32", (2, 3)), ("b", "BF16", ()), ("c", "I64", (0,))], {"k": "v"})
    answers = [b"1" + json.dumps(value).encode() for value in ("welcome", 7, None, "7", "\xff", 1.5)]
    signed = meeting_place.signed("publisher", {"version": 1, "ranks": [1, 2], "name": "x"})
    pickles = [metadata_seed(), pickle.dumps({"a": [1, {2: (3, torch.float32)}]}, 2),
               pickle.dumps([torch.Size([1]), b"x", 1.5, {1}, Described], 4)]
    return {
        "serialize": Target(parse_plain, list(plain_seeds()), (ValueError,),
                            ("plain/serialize", "plain/read", "plain/keys", "plain/tensor_bytes")),
        "queue_entries": Target(parse_queue_entry, list(queue_seeds()), (ValueError,),
                                ("queues/content", "plain/serialize", "plain/read")),
        "records": Target(Records().take, list(record_seeds()), (), ("records/server",)),
        "publish_records": Target(lambda data: meeting_place.verified("publisher", data, "the record"), [signed],
                                  (ValueError, errors.MismatchError), ("weights/meeting_place", "records/job_token")),
        "publishers": Target(parse_publisher, list(publisher_seeds()), (finding.Malformed, errors.MismatchError),
                             ("weights/finding", "weights/meeting_place")),
        "record_answers": Target(parse_record_answer, [*answers, b"0\0\0\0\1" + b"7"], (OSError,), ("records/client",)),
        "descriptions": Target(parse_description, [description_seed()],
                               (errors.MismatchError, errors.UnsupportedError),
                               ("weights/descriptions", "weights/simple_layouts", "weights/name_maps")),
        "safetensors": Target(files.safetensors, [header[8:] + bytes(26), header[8:]], broken_file,
                              ("weights/safetensors_file",)),
        "checkpoint_index": Target(files.index, [b'{"metadata": {}, "weight_map": {"a": "b.safetensors"}}'],
                                   broken_file, ("weights/checkpoint_folder",)),
        "pickles": Target(parse_metadata, pickles, broken_file, ("weights/pickles", "weights/dcp_folder")),
        "torch_archives": Target(files.archive, list(archive_seeds()), broken_file, ("weights/torch_archive",)),
        "kernels": Target(parse_kernel, [kernel_seed()], (package.Broken,),
                          ("kernels/package", "kernels/tensor_forms")),
        "status": Target(parse_status, [b'{"version": 1, "pid": 7, "groups": [{"name": "a", "ranks": []}]}'],
                         (OSError, ValueError), ("status/processes",)),
    }
