"""Compiled ops inside a kernel. While a kernel is traced, a call of an op becomes a node of the graph with the op's
name; when the kernel runs, the node runs the op of this name.

An op's name consists of the group's name and the op's number among the ops compiled in the group, so the name is the
same on all ranks. Needs AOTInductor.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import torch

from ..compiler.compile_op import CustomOp, Tensors, flat_tensors, name_of_op, op_named
from ..errors import MismatchError, UnsupportedError

NAMESPACE = "shardwire"


class RecordedRun:
    """The result of an op's call during tracing: the run ends within the kernel before the kernel uses the results."""

    def wait(self, timeout: Any = None) -> None:
        """Does nothing."""

    synchronize = result = wait


def record(op: CustomOp, input_tensors: Tensors | None = None, output_tensors: Tensors | None = None, *,
           timeout: Any = None) -> RecordedRun:
    """Takes the place of ``op(inputs, outputs)`` while a kernel is traced."""
    if timeout is not None:
        raise UnsupportedError("a compiled op inside a kernel takes no timeout; the group's holds")
    inputs, outputs = flat_tensors(op._inputs, input_tensors), flat_tensors(op._outputs, output_tensors)
    for label, tensors, locals in (("inputs", inputs, op.inputs), ("outputs", outputs, op.outputs)):
        for index, (tensor, local) in enumerate(zip(tensors, locals)):
            decl = op.tensors[local.tensor]
            dtype = decl.dtype if label == "inputs" else decl.output_dtype
            if tuple(tensor.shape) != local.local_shape or tensor.dtype != dtype:
                raise ValueError(f"{label}[{index}] of a compiled op in the kernel is "
                                 f"{tensor.dtype}{list(tensor.shape)}, the op was compiled for "
                                 f"{dtype}{list(local.local_shape)}")
    if not outputs:
        raise UnsupportedError("a compiled op that gives this rank nothing cannot be in a kernel: torch leaves out "
                               "an op without a result, and the peers would wait; call the op outside of the kernel")
    _library()
    results = torch.ops.shardwire.run_op(inputs, outputs, name_of_op(op))
    for output, result in zip(outputs, results):
        output.copy_(result)
    return RecordedRun()


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    """torch's operator, made when first needed. Functional: new outputs that begin as copies of the given outputs,
    since an op may leave gaps."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("run_op(Tensor[] inputs, Tensor[] outputs, str op) -> Tensor[]")
    library.impl("run_op", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("shardwire::run_op", _forms, lib=library)
    return library


def _run(inputs: list[torch.Tensor], outputs: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    results = [output.clone() for output in outputs]
    _op(name)._op.run(list(inputs), results, None).wait(None)
    return results


def _forms(inputs: list[torch.Tensor], outputs: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    return [torch.empty_like(output) for output in outputs]


def _op(name: str) -> CustomOp:
    found = op_named(name)
    if found is None:
        raise ValueError(f"the kernel runs the compiled op {name!r}, which this process does not have; keep the op "
                         "that the kernel was traced with, and give is_spmd=False where each rank compiles other ops")
    return found


def held_ops(names: list[str]) -> list[CustomOp]:
    """The ops of these names, for a kernel to hold. ValueError where one is missing."""
    if names:
        _library()
    return [_op(name) for name in names]


def describe_op(name: str) -> list[str]:
    """The op's name, and one digest of the op's tensors, equal on all ranks of one op, and of the op's forms on this
    rank. The edges are left out: where rank 0 planned, each rank knows other edges."""
    op = _op(name)
    traffic = op.traffic()
    agreed = [traffic[what] for what in ("name", "world_size", "tensors")]
    forms = [[list(local.local_shape) for local in side] for side in (op.inputs, op.outputs)]
    return [name, hashlib.blake2b(json.dumps([agreed, forms], sort_keys=True).encode(), digest_size=12).hexdigest()]


def check_op(announced: list[str]) -> None:
    """MismatchError where this rank's op of the same name differs from rank 0's op."""
    if describe_op(announced[0]) != announced:
        raise MismatchError(f"the kernel runs the compiled op {announced[0]!r}, which on this rank moves something "
                            "else or takes other shapes than on rank 0; give is_spmd=False where ranks differ")


def names_in(program: Any) -> list[str]:
    """The op of each node of an exported program that runs an op and has a used result."""
    nodes = list(program.graph_module.graph.nodes)
    used = {node for node in nodes if node.op == "output"}
    for node in reversed(nodes):
        if node in used:
            used.update(node.all_input_nodes)
    return [str(node.args[2]) for node in nodes if node in used and getattr(node.target, "namespace", "") == NAMESPACE]


def check_all_used(called: list[str], kept: list[str]) -> None:
    """UnsupportedError where torch left out, or would leave out, an op that the kernel called."""
    for name in called:
        if called.count(name) != kept.count(name):
            raise UnsupportedError(f"the kernel runs the compiled op {name!r} and uses nothing of what it gives: torch "
                                   "would leave the op out, and the peers would wait; return the result, or write the "
                                   "result to an argument")
