"""A compiled kernel as bytes, to be sent between ranks and kept on disk. ::

    "SWKN", u32 schema, u32 bytes of the head | head: JSON | code: what torch loads | 32 bytes: blake2b of all before

Reading checks every length and the digest, and raises ``Broken`` for any bytes but the exact output of ``encode``. The
code itself is machine code (or TorchScript): a package is loaded only from a rank of the group, which proved the job's
token, or from a file that only this user can have written (``cache``).
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

from .tensor_forms import TensorForm

SCHEMA = 1
_MAGIC = b"SWKN"
_START = struct.Struct("<4sII")
_DIGEST = 32


class Broken(ValueError):
    """Bytes that are no package of this schema."""


@dataclass(slots=True)
class Package:
    """key: a hash of the graph, settings and machine (``tracing``). compiler: "aotinductor" or "torchscript". returns:
    "tensor", "tuple", "list" or "dict". changed: indices of inputs that the kernel writes to. groups: torch's names of
    the process groups of the kernel's collectives. ops: names of the compiled ops that the kernel runs
    (``ops_inside``)."""

    key: str
    name: str
    compiler: str
    inputs: list[TensorForm]
    outputs: list[TensorForm]
    returns: str
    changed: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    code: bytes = b""

    def encode(self) -> bytes:
        head = json.dumps({"key": self.key, "name": self.name, "compiler": self.compiler,
                           "inputs": [form.as_list() for form in self.inputs],
                           "outputs": [form.as_list() for form in self.outputs], "returns": self.returns,
                           "changed": self.changed, "groups": self.groups, "ops": self.ops}).encode()
        whole = _START.pack(_MAGIC, SCHEMA, len(head)) + head + self.code
        return whole + hashlib.blake2b(whole, digest_size=_DIGEST).digest()


def decode(data: bytes) -> Package:
    """The package in ``data``; raises :class:`Broken` for anything else."""
    if len(data) < _START.size + _DIGEST:
        raise Broken(f"{len(data)} bytes are too few")
    magic, schema, head_bytes = _START.unpack_from(data)
    if magic != _MAGIC:
        raise Broken("this is no kernel of shardwire")
    if schema != SCHEMA:
        raise Broken(f"schema {schema}; this version reads {SCHEMA}")
    end = len(data) - _DIGEST
    if _START.size + head_bytes > end:
        raise Broken("it was cut short")
    if hashlib.blake2b(memoryview(data)[:end], digest_size=_DIGEST).digest() != data[end:]:
        raise Broken("its digest is wrong")
    try:
        head = json.loads(data[_START.size:_START.size + head_bytes])
        return Package(code=data[_START.size + head_bytes:end], **_fields(head))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Broken(f"its head cannot be read: {error}") from None


def _fields(head: dict[str, Any]) -> dict[str, Any]:
    forms = {side: [TensorForm.from_list(form) for form in head[side]] for side in ("inputs", "outputs")}
    return {**{name: head[name] for name in ("key", "name", "compiler", "returns", "changed", "groups", "ops")},
            **forms}
