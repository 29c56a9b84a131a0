"""Bytes of other processes that once ended a thread, took memory, or raised another error than the documented one. The
fuzz targets (tests/fuzz) found most of them.
"""

import io
import json
import os
import pickle
import resource
import socket
import struct
import threading
import time
import zipfile
import zlib

import pytest
import torch

from shardwire.errors import CheckpointError, MismatchError, UnsupportedError
from shardwire.errors import TimeoutError as GroupTimeoutError
from shardwire.kernels import package
from shardwire.queues import content
from shardwire.status import processes
from shardwire.weights.checkpoint_folder import read_index
from shardwire.weights.descriptions import collect, names_in
from shardwire.weights.finding import find
from shardwire.weights.meeting_place import Address, signed, verified
from shardwire.weights.pickles import unpickle
from shardwire.weights.problems import Problems
from shardwire.weights.safetensors_file import OpenFile
from shardwire.records.server import BANNER, NONCE_BYTES, RecordServer
from shardwire.records.client import RecordClient, count_of, record_of
from shardwire.weights.torch_archive import Chunk, find_elements

DEEP = b"[" * 100_000


def test_a_request_with_an_infinite_number_ends_the_caller_and_not_the_records() -> None:
    server = RecordServer("127.0.0.1", 0)
    port = server._listener.getsockname()[1]
    first = RecordClient("127.0.0.1", port, 5)
    first.ask("put", "a", "1")
    for request in (("add", "n", float("inf")), ("rest", float("inf"), 0.1)):
        with pytest.raises(OSError):
            RecordClient("127.0.0.1", port, 5).ask(*request)
    assert first.ask("peek", "a") == "1"
    server.close()


def test_a_record_of_many_levels_is_one_that_cannot_be_read() -> None:
    for data in (DEEP, json.dumps({"body": DEEP.decode(), "proof": ""}).encode()):
        with pytest.raises(ValueError, match="the record cannot be read"):
            verified("publisher", data, "the record")


@pytest.mark.parametrize("record", [
    b"{", DEEP, signed("publisher", {}), signed("publisher", {"id": "a", "size": 1}),
    signed("publisher", {"id": "a", "size": "1", "who": ["a"]}), signed("publisher", {"id": "a", "size": 9, "who": []}),
    signed("publisher", {"id": "../a", "size": 1, "who": ["a"]}),
    signed("publisher", {"id": "a", "size": 1 << 40, "who": ["a"]})])
def test_a_record_that_is_no_publishers_is_not_found(tmp_path, record) -> None:
    address = Address(f"file://{tmp_path}", "policy")
    address.open(5.0).put("publisher", record)
    with pytest.raises(GroupTimeoutError, match="there is no publisher of 'policy'.*cannot be read"):
        find(address, 1, time.monotonic() + 0.1)
    assert not (tmp_path / "shardwire.publish" / "a").exists()


@pytest.mark.parametrize("answer", [b"yes", b"7", b"[]", DEEP])
def test_an_answer_to_a_note_that_cannot_be_read_is_no_answer(tmp_path, monkeypatch, answer) -> None:
    address = Address(f"file://{tmp_path}", "policy")
    place = address.open(5.0)
    place.put("publisher", signed("publisher", {"id": "a", "size": 1, "who": ["pid 1"]}))
    post = type(place).post

    def answered(self, box: str, value: bytes) -> str:
        note = post(self, box, value)
        self.put(f"{box}/{note}.answer.0", answer)
        return note

    monkeypatch.setattr(type(place), "post", answered)
    with pytest.raises(GroupTimeoutError, match="the answer of the publisher's rank 0 cannot be read"):
        find(address, 1, time.monotonic() + 0.1)


@pytest.mark.parametrize("frame", [
    b"\xff\xff\xff\xff", b"\0\0\0\1{", b"\0\0\0\2\xff\xff", len(DEEP).to_bytes(4, "big") + DEEP])
def test_an_answer_of_a_store_that_cannot_be_read_is_an_oserror(frame) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            with listener.accept()[0] as caller:
                caller.sendall(BANNER + b"\xff" * NONCE_BYTES + frame)
                caller.recv(1000)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(OSError):
            RecordClient("127.0.0.1", port, 5)
        server.join()


def test_a_number_or_a_text_of_a_store_that_is_none_is_an_oserror() -> None:
    for answer in (None, "x", [1], float("inf")):
        with pytest.raises(OSError, match="in place of a number"):
            count_of(answer)
    with pytest.raises(OSError, match="no client wrote"):
        record_of("\u20ac")


def test_a_description_of_another_form_is_a_mismatch() -> None:
    for text in (b"", b"7", b"[[], [[]]]", DEEP,
                 b'[["[[1], [0], [[\\"kind_of\\", 0]], [1]]"], [["w", [1], "torch.int8", 0, -1, false, false, {}]]]'):
        with pytest.raises(MismatchError, match="the description of the source cannot be read"):
            collect([zlib.compress(text)], "source", Problems())
    with pytest.raises(MismatchError, match="cannot be read"):
        names_in(b"no zlib")


def test_the_head_of_an_entry_that_no_putter_wrote_is_a_value_error() -> None:
    whole = content.of_tensor(torch.ones(2, 3))[0]
    for head in (*(whole[:size] for size in range(len(whole))), whole[:-8] + struct.pack("<q", -3),
                 whole[:-16] + struct.pack("<2q", 0, 1 << 62)):
        with pytest.raises(ValueError, match="an entry|no dtype"):
            content.Content(head)
    entry = content.Content(whole)
    for sizes in ([], [20], [24, 0]):
        with pytest.raises(ValueError, match=r"an entry float32\[2, 3\] in"):
            entry.memory(sizes, None)
        with pytest.raises(ValueError, match=r"an entry float32\[2, 3\] in"):
            entry.value([torch.ones(size, dtype=torch.uint8) for size in sizes], None, None, False)


def test_an_index_may_name_no_file_that_cannot_be(tmp_path) -> None:
    for name in ("x" * 5000, "a\0b"):
        (tmp_path / "index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        with pytest.raises(CheckpointError, match="is missing"):
            read_index(tmp_path / "index.json")


def test_a_pickle_of_a_few_bytes_takes_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert unpickle(pickle.PROTO + b"\x02]r\xff\xff\xff\x04.", "the pickle") == []  # place 83,886,079 of the memo
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_pickle_of_a_few_bytes_names_a_bytearray_of_any_length() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="cannot be read as a pickle"):
        unpickle(pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 28) + b".", "the pickle")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_header_with_many_names_and_one_twice_is_refused_soon(tmp_path) -> None:
    names = [*(f"w{number}" for number in range(20_000)), "w19999"]
    header = ("{" + ",".join(f'"{name}":0' for name in names) + "}").encode()
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header)
    begin = time.process_time()
    with pytest.raises(CheckpointError, match="the name 'w19999' twice"):
        OpenFile(tmp_path / "a")
    assert time.process_time() - begin < 1


def archive_error(folder, data: bytes) -> pytest.ExceptionInfo:
    (folder / "archive").write_bytes(data)
    descriptor = os.open(folder / "archive", os.O_RDONLY)
    try:
        with pytest.raises((CheckpointError, UnsupportedError)) as raised:
            find_elements(descriptor, Chunk((0,), (3,), "f", 0, len(data)), "float32", "the archive")
    finally:
        os.close(descriptor)
    return raised


def test_a_compressed_or_encrypted_archive_is_refused_before_it_is_read(tmp_path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    assert archive_error(tmp_path, packed.getvalue()).match("is compressed or encrypted")
    plain = io.BytesIO()
    torch.save(torch.ones(3), plain)
    data = bytearray(plain.getvalue())
    entry = data.index(b"PK\1\2")
    data[entry + 8] |= 1
    assert archive_error(tmp_path, data).match("is compressed or encrypted")


def test_a_member_before_the_beginning_of_an_archive_is_an_error_of_the_file(tmp_path) -> None:
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    data = bytearray(plain.getvalue())
    end = data.rindex(b"PK\5\6")
    data[end + 16:end + 20] = (1000).to_bytes(4, "little")
    assert archive_error(tmp_path, data).match("a place before the beginning")


def test_a_kernel_with_a_head_of_many_levels_is_broken() -> None:
    whole = package._START.pack(package._MAGIC, package.SCHEMA, len(DEEP)) + DEEP
    with pytest.raises(package.Broken, match="its head cannot be read"):
        package.decode(whole + package.hashlib.blake2b(whole, digest_size=package._DIGEST).digest())


@pytest.mark.parametrize("answer", [b"[1]", b"7", DEEP, b'{"version": 2}', b"", b"\xff"],
                         ids=["list", "number", "deep", "version", "nothing", "no text"])
def test_a_process_that_answers_anything_else_is_silent(tmp_path, answer) -> None:
    path = tmp_path / "1.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        assert processes.ask(os.getpid(), path) == processes.Process(os.getpid(), "silent")
        server.join()
