"""Malformed specs and calls. A spec: every rank raises the same type and text, and the group stays usable. A call: only
the caller raises, and the op stays usable. The tables list all refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import group, run_ranks

import shardwire
from shardwire import Layout, Partial, Replicate, Shard, StridedShard, TensorRegion

F32 = torch.float32
RANKS = 3
Spec = dict[str, Any]


def box(offset: Any, shape: Any, **more: Any) -> dict[str, Any]:
    return {"offset": offset, "shape": shape, **more}


def good(rank: int, **changes: Any) -> Spec:
    """Every rank has a row and wants all rows."""
    return {"shape": [RANKS, 4], "dtype": F32, "inputs": [box([rank, 0], [1, 4])], "outputs": [box([0, 0], [RANKS, 4])],
            **changes}


def only(culprit: int, **changes: Any) -> Callable[[int], Spec]:
    """A spec with a mistake on one rank only."""
    return lambda rank: good(rank, **changes) if rank == culprit else good(rank)


def everywhere(**changes: Any) -> Callable[[int], Spec]:
    return lambda rank: good(rank, **changes)


def layouts(source: Any, target: Any) -> Callable[[int], Spec]:
    """Layouts made late, on the ranks, by functions without arguments."""
    return lambda rank: {"inputs": source(), "outputs": target()}


def rows(dtype: torch.dtype = F32, shape: Any = (6, 4), placement: Any = Shard(0), mesh: Any = (0, 1, 2)) -> Layout:
    return Layout(list(mesh), [placement], shape, dtype)


def unknown_region(rank: int) -> Spec:
    return good(rank, inputs=[SimpleNamespace(offset=[0, 0], shape=[1, 4])])


# name: (the spec by rank, exception, what the text must have)
SPECS: dict[str, tuple[Callable[[int], Spec], type[Exception], str]] = {
    # The arguments.
    "shape is a number": (only(1, shape=4), TypeError, r"rank 1: shape is 4; give a tuple or list of int"),
    "shape is a str": (only(1, shape="34"), TypeError, r"rank 1: shape is '34'"),
    "shape holds a float": (only(2, shape=[3, 4.0]), TypeError, r"rank 2: shape\[1\] is 4\.0"),
    "shape holds None": (only(0, shape=[3, None]), TypeError, r"rank 0: shape\[1\] is None"),
    "shape holds a bool": (only(0, shape=[3, True]), TypeError, r"rank 0: shape\[1\] is True"),
    "shape is negative": (everywhere(shape=[-3, 4]), ValueError, r"negative"),
    "shape leaves 64 bits": (only(1, shape=[2**63, 4]), ValueError, r"rank 1: shape\[0\] .* 64 bits"),
    "shape has 17 dimensions": (only(1, shape=[1] * 17), ValueError, r"rank 1: shape has 17 dimensions; at most 16"),
    "shape differs between ranks": (only(2, shape=[RANKS + 1, 4]), ValueError,
                                    r"rank 0 .*shape \[3, 4\].*rank 2.*\[4, 4\]"),
    "shape's dimensions differ from the boxes'": (only(1, shape=[3, 4, 1]), ValueError,
                                                  r"rank 1: inputs\[0\] has 2 dimensions, the tensor has 3"),
    "shape is keyed by a number": (only(1, shape={1: [3, 4]}), TypeError, r"rank 1: shape has the key 1"),
    "shape is keyed, the region has no name": (only(1, shape={"w": [3, 4]}), ValueError,
                                               r"rank 1: inputs\[0\] names no tensor"),
    "dtype is missing": (only(1, dtype=None), TypeError, r"rank 1: the tensor has no dtype"),
    "dtype is a str": (only(1, dtype="float32"), TypeError, r"rank 1: dtype is 'float32'; give a torch\.dtype"),
    "dtype is a Python type": (only(1, dtype=float), TypeError, r"rank 1: dtype is a type"),
    "dtype differs between ranks": (only(1, dtype=torch.float64), ValueError, r"rank 0 .*float32, rank 1 .*float64"),
    "dtype is quantized": (only(1, dtype=torch.qint8), NotImplementedError,
                           r"rank 1: dtype is torch\.qint8; quantized"),
    "reduction is unknown": (only(1, reduction="median"), ValueError,
                             r"rank 1: reduction is 'median'; give one of 'sum'"),
    "reduction is no str": (only(1, reduction=torch.sum), TypeError, r"rank 1: reduction is a "),
    "reduction differs between ranks": (lambda rank: good(rank, reduction=("sum", "max", "sum")[rank]), ValueError,
                                        r"rank 0 .*sum, rank 1 .*max"),
    "reduction names an unknown tensor": (only(2, reduction={"v": "sum"}), ValueError,
                                          r"rank 2: reduction names the tensor 'v'"),
    "reduction of bits on floats": (everywhere(reduction="band"), ValueError, r"band.*float32"),
    "maximum of complex numbers": (everywhere(reduction="max", dtype=torch.complex64), ValueError, r"max.*complex64"),
    "allow_gaps is a number": (only(1, allow_gaps=1), TypeError, r"rank 1: allow_gaps is 1; give True or False"),
    "allow_gaps differs between ranks": (only(1, allow_gaps=True), ValueError, r"allow_gaps"),
    "timeout is a str": (only(1, timeout="1"), TypeError, r"rank 1: timeout is a str"),
    "timeout is negative": (only(1, timeout=-1), ValueError, r"rank 1: timeout is -1"),
    "timeout is NaN": (only(1, timeout=float("nan")), ValueError, r"rank 1: timeout is nan"),
    "name is a number": (only(1, name=3), TypeError, r"rank 1: name is 3"),
    # The lists.
    "inputs is a number": (only(1, inputs=3), TypeError, r"rank 1: inputs is 3; give None, a list"),
    "inputs is a str": (only(1, inputs="w"), TypeError, r"rank 1: inputs is 'w'"),
    "outputs is one region": (only(1, outputs=box([0, 0], [1, 4])), TypeError,
                              r"rank 1: outputs is one dict spec; give a list"),
    "outputs is one TensorRegion": (only(1, outputs=TensorRegion([0, 0], [1, 4])), TypeError,
                                    r"rank 1: outputs is a TensorRegion; give a list"),
    "a region is None": (only(1, inputs=[None]), TypeError, r"rank 1: inputs\[0\] is None; give a dict"),
    "a region is a pair": (only(1, inputs=[([0, 0], [1, 4])]), TypeError, r"rank 1: inputs\[0\] is a tuple"),
    "a region is a plain tensor": (only(1, inputs=[torch.zeros(1, 4)]), TypeError,
                                   r"rank 1: inputs\[0\] is a plain tensor"),
    "a region is of another class": (unknown_region, TypeError,
                                     r"rank 0: inputs\[0\] is a SimpleNamespace.*2 more ranks"),
    "a key is unknown": (only(2, outputs=[box([0, 0], [1, 4], offsets=1)]), ValueError,
                         r"rank 2: outputs\[0\] has the unknown key 'offsets'"),
    "offset is missing": (only(2, inputs=[{"shape": [1, 4]}]), ValueError, r"rank 2: inputs\[0\] has no 'offset'"),
    "shape of a region is missing": (only(2, inputs=[{"offset": [1, 4]}]), ValueError,
                                     r"rank 2: inputs\[0\] has no 'shape'"),
    "offset is None": (only(2, inputs=[box(None, [1, 4])]), TypeError, r"rank 2: inputs\[0\]: offset is None"),
    "offset is a number": (only(2, inputs=[box(0, [1, 4])]), TypeError, r"rank 2: inputs\[0\]: offset is 0"),
    "offset holds a float": (only(2, inputs=[box([0.5, 0], [1, 4])]), TypeError,
                             r"rank 2: inputs\[0\]: offset\[0\] is 0\.5"),
    "offset leaves 64 bits": (only(2, inputs=[box([2**70, 0], [1, 4])]), ValueError,
                              r"rank 2: inputs\[0\]: offset\[0\].*64 bits"),
    "offset and shape differ in length": (
        only(2, inputs=[box([0], [1, 4])]), ValueError, r"rank 2: inputs\[0\]: offset has 1 dimensions and shape 2"),
    "region has too many dimensions": (only(0, inputs=[box([0, 0, 0], [1, 4, 1])]), ValueError,
                                       r"rank 0: inputs\[0\] has 3 dimensions, the tensor has 2"),
    "offset is negative": (only(1, inputs=[box([-1, 0], [1, 4])]), ValueError, r"rank 1, inputs\[0\].*negative"),
    "extent is negative": (only(1, outputs=[box([0, 0], [-1, 4])]), ValueError, r"rank 1, outputs\[0\].*negative"),
    "region reaches outside": (only(1, inputs=[box([2, 0], [2, 4])]), ValueError, r"rank 1, inputs\[0\].*outside"),
    "second region reaches outside": (only(1, inputs=[box([1, 0], [1, 4]), box([0, 3], [1, 2])]), ValueError,
                                      r"rank 1, inputs\[1\].*outside"),
    "offset plus extent overflows": (only(1, inputs=[box([2**63 - 1, 0], [2**62, 4])]), ValueError,
                                     r"rank 1, inputs\[0\]"),
    "local tensor too large for any machine": (lambda rank: {"dtype": F32, "inputs": [box([0, 0], [2**40, 2**40])],
                                                             "outputs": []}, ValueError, r"rank 0, inputs\[0\].*2\^63"),
    "nobody provides a row": (only(1, inputs=None), ValueError, r"\[1:2, 0:4\]"),
    "nobody provides anything": (everywhere(inputs=[]), ValueError, r"\[0:3, 0:4\]"),
    "device is unknown": (only(1, inputs=[box([1, 0], [1, 4], device="abacus")]), ValueError,
                          r"rank 1: inputs\[0\]: device 'abacus'"),
    "device is a number": (only(1, inputs=[box([1, 0], [1, 4], device=0)]), TypeError,
                           r"rank 1: inputs\[0\]: device is 0"),
    "device is not the CPU": (only(1, inputs=[box([1, 0], [1, 4], device="mps")]), NotImplementedError,
                              r"rank 1: inputs\[0\]: device 'mps'"),
    "tensor_id is a fraction": (only(1, inputs=[box([1, 0], [1, 4], tensor_id=7.5)]), TypeError,
                                r"rank 1: inputs\[0\]: tensor_id is 7.5"),
    # Several tensors.
    "keys are numbers": (only(1, inputs={0: [box([1, 0], [1, 4])]}), TypeError, r"rank 1: inputs has the key 0"),
    "a keyed list is a number": (only(1, inputs={"w": 3}), TypeError, r"rank 1: inputs\['w'\] is 3"),
    "tensor_id contradicts the key": (
        only(1, inputs={"w": [box([1, 0], [1, 4], tensor_id="v")]}), ValueError,
        r"rank 1: inputs\['w'\]\[0\]: tensor_id 'v' contradicts the key 'w'"),
    "a keyed region is wrong": (only(1, inputs={"w": [box([1, 0], [1, 4]), box([1], [1, 4])]}), ValueError,
                                r"rank 1: inputs\['w'\]\[1\]: offset has 1"),
    "a keyed tensor has no dtype": (only(1, dtype={"v": F32}, shape=None, inputs={"w": [box([1, 0], [1, 4])]},
                                         outputs=None), TypeError, r"rank 1: tensor 'w' has no dtype"),
    "boxes of one tensor differ in dimensions": (
        lambda rank: {"dtype": F32, "inputs": [box([rank], [1])] if rank else [box([0, 0], [1, 1])]}, ValueError,
        r"rank 1, inputs\[0\].*dimensions"),
    # Layouts.
    "layouts of two shapes in a flat list": (layouts(lambda: [rows()], lambda: [rows(shape=(6, 5))]), ValueError,
                                             r"rank 0: outputs\[0\] has the global shape \[6, 5\].*name the tensors"),
    "layouts of two dtypes in a flat list": (layouts(lambda: [rows(), rows(torch.float16)], lambda: []), ValueError,
                                             r"rank 0: inputs\[1\] has dtype torch\.float16.*name the tensors"),
    "layouts of types that are not cast": (
        layouts(lambda: [rows()], lambda: [rows(torch.int8)]), NotImplementedError,
        r"rank 0: the tensor goes from torch\.float32 \(inputs\[0\]\) to torch\.int8 \(outputs\[0\]\)"),
    "layout contradicts shape": (
        lambda rank: {"shape": [6, 5], "inputs": [rows()]}, ValueError,
        r"rank 0: inputs\[0\] has the global shape \[6, 4\], but shape says \[6, 5\]"),
    "layout contradicts dtype": (
        lambda rank: {"dtype": torch.int8, "inputs": [rows()]}, ValueError,
        r"rank 0: inputs\[0\] has dtype torch\.float32, but dtype says torch\.int8"),
    "mesh holds a rank outside of the group": (layouts(lambda: [rows(mesh=(0, 1, 7))], lambda: []), ValueError,
                                               r"rank 0: inputs\[0\]: the mesh holds global rank 7.*0\.\.2"),
    "output is Partial": (layouts(lambda: [rows()], lambda: [rows(placement=Partial())]), NotImplementedError,
                          r"rank 0: outputs\[0\] has the placement Partial"),
    "pending reduction contradicts the argument": (
        lambda rank: {"inputs": [rows(placement=Partial())], "outputs": [rows()], "reduction": "max"}, ValueError,
        r"rank 0: inputs\[0\] waits for the reduction 'sum', but reduction says 'max'"),
    "two pending reductions of one tensor": (
        layouts(lambda: [rows(placement=Partial()), rows(placement=Partial("max"))], lambda: [rows()]), ValueError,
        r"rank 0: inputs\[1\] waits for the reduction 'max', but inputs\[0\] says 'sum'"),
    "ranks give different layouts of the tensor": (lambda rank: {"inputs": [rows(shape=(6 + (rank == 2), 4))]},
                                                   ValueError, r"rank 0 .*\[6, 4\].*rank 2.*\[7, 4\]"),
}


def raise_then_work(rank: int, name: str) -> tuple[list[str], str]:
    try:
        shardwire.compile_op(group(), **SPECS[name][0](rank))
    except Exception as error:
        outcome = ([cls.__name__ for cls in type(error).__mro__], str(error))
    else:
        outcome = ([], "compile_op took it")
    expect_group_works(rank)
    return outcome


def expect_group_works(rank: int) -> None:
    op = shardwire.compile_op(group(), **good(rank))
    received = torch.zeros(RANKS, 4)
    op([torch.full((1, 4), float(rank))], [received]).wait()
    assert torch.equal(received, torch.arange(float(RANKS)).reshape(-1, 1).expand(-1, 4))


@pytest.mark.parametrize("name", SPECS)
def test_wrong_spec_raises_the_same_everywhere(name: str) -> None:
    _, expected, pattern = SPECS[name]
    outcomes = run_ranks(RANKS, raise_then_work, name)
    assert outcomes == [outcomes[0]] * RANKS
    kinds, text = outcomes[0]
    assert expected.__name__ in kinds, text
    assert re.search(pattern, text), text
    assert "0x" not in text and "\n" not in text.strip().splitlines()[0]


def all_cases_in_one_group(rank: int) -> list[str]:
    texts = []
    for build, _, _ in SPECS.values():
        try:
            shardwire.compile_op(group(), **build(rank))
        except Exception as error:
            texts.append(str(error))
    expect_group_works(rank)
    return texts


def test_one_group_takes_all_wrong_specs() -> None:
    assert len(SPECS) >= 60
    results = run_ranks(RANKS, all_cases_in_one_group)
    assert len(results[0]) == len(SPECS)
    assert results == [results[0]] * RANKS


# ---- the exchange of all ranks

class OwnError(shardwire.KernelError):
    pass


RAISED = [  # the error of one rank, and the error on all ranks
    (ValueError("v"), ValueError, "v"), (UnicodeError("u"), ValueError, "u"),
    (TypeError("\ud800"), TypeError, "\\ud800"),
    (KeyError("k"), shardwire.ShardwireError, "KeyError: 'k'"), (FileNotFoundError("f"), shardwire.SystemFailure, "f"),
    (NotImplementedError("n"), shardwire.UnsupportedError, "n"), (OwnError(), shardwire.KernelError, "OwnError"),
    (shardwire.CheckpointError("c"), shardwire.CheckpointError, "c"),
    (shardwire.ClosedError("o"), shardwire.ShardwireError, "o"),
    (shardwire.TimeoutError("t"), shardwire.TimeoutError, "t")]


def exchanges(rank: int) -> list[tuple[str, str]]:
    backend = shardwire.resolve_backend(group())
    caught = []

    def refused(call: str, **given: Any) -> None:
        try:
            shardwire._C.exchange(backend, call, **given)
        except Exception as error:
            caught.append((type(error).__name__, str(error)))

    for error, _, _ in RAISED:
        refused("call", error=error if rank == 1 else None)
    refused("call", error=ValueError(str(rank)) if rank else None)
    refused("another" if rank == 2 else "call", error=ValueError("not said") if rank == 1 else None)
    refused("call", text="even" if rank % 2 == 0 else "odd")
    blobs = shardwire._C.exchange(backend, "call", "text", bytes([rank, 0, 255]) * rank)
    assert blobs == [b"", b"\1\0\xff", b"\2\0\xff" * 2]
    return caught


def test_an_exchange_gives_all_blobs_or_one_error_and_leaves_the_group_usable() -> None:
    results = run_ranks(3, exchanges)
    assert results[0] == results[1] == results[2]
    assert results[0] == [(kind.__name__, f"call: rank 1: {text}") for _, kind, text in RAISED] + [
        ("ValueError", "call: rank 1: 1 (1 more of 3 ranks have errors too)"),
        ("MismatchError", "ranks are doing different things: ranks 0, 1 called call, rank 2 called another; "
                          "every rank of the group makes the same calls in the same order"),
        ("MismatchError", "call: all ranks must give the same, but ranks 0, 2 gave even, rank 1 gave odd")]


# Calls. The op moves rank r's row to all ranks; on this rank the op has one input of (1, 4) and one output of (3, 4),
# f32.

def row() -> torch.Tensor:
    return torch.zeros(1, 4)


def table() -> torch.Tensor:
    return torch.zeros(RANKS, 4)


# name: (the call, exception, what the text must have)
CALLS: dict[str, tuple[Callable[[Any], Any], type[Exception] | tuple[type[Exception], ...], str]] = {
    "no tensors": (lambda op: op([], []), ValueError, r"^compile_op.*: rank 1: inputs: 0 tensors given, 1 expected"),
    "nothing": (lambda op: op(), ValueError, r"inputs: 0 tensors given"),
    "too many inputs": (lambda op: op([row(), row()], [table()]), ValueError, r"inputs: 2 tensors given, 1 expected"),
    "too few outputs": (lambda op: op([row()], []), ValueError, r"outputs: 0 tensors given, 1 expected"),
    "inputs is a number": (lambda op: op(3, [table()]), TypeError, r"inputs is 3"),
    "an input is a list": (lambda op: op([[0.0] * 4], [table()]), TypeError, r"inputs\[0\] is a list"),
    "an output is None": (lambda op: op([row()], [None]), TypeError, r"outputs\[0\] is None"),
    "dict for a flat op": (lambda op: op({"w": [row()]}, [table()]), TypeError,
                           r"inputs is a dict, but compile_op was given a flat list"),
    "wrong shape": (lambda op: op([torch.zeros(1, 5)], [table()]), ValueError, r"inputs\[0\].*\[1, 5\]"),
    "wrong number of dimensions": (lambda op: op([torch.zeros(4)], [table()]), ValueError, r"inputs\[0\].*\[4\]"),
    "wrong output shape": (lambda op: op([row()], [torch.zeros(4, RANKS)]), ValueError, r"outputs\[0\].*\[4, 3\]"),
    "wrong dtype": (lambda op: op([row().double()], [table()]), (TypeError, ValueError), r"inputs\[0\].*float64"),
    "wrong device": (lambda op: op([torch.zeros(1, 4, device="meta")], [table()]), Exception, r"inputs\[0\].*meta"),
    "sparse input": (lambda op: op([torch.eye(1, 4).to_sparse()], [table()]), Exception, r"inputs\[0\]"),
    "expanded output": (lambda op: op([row()], [torch.zeros(1, 4).expand(RANKS, 4)]), ValueError, r"outputs\[0\]"),
    # Rank 1's input would be the row that receives rank 0's input: no order of copies is safe.
    "output is the input": (lambda op: (lambda t: op([t[:1]], [t]))(table()), ValueError, r"outputs\[0\]|inputs\[0\]"),
    "timeout is a str": (lambda op: op([row()], [table()], timeout="1"), TypeError, r"timeout is a str"),
    "timeout is negative": (lambda op: op([row()], [table()], timeout=-0.5), ValueError, r"timeout is -0\.5"),
    "bind of a wrong shape": (lambda op: op.bind([torch.zeros(2, 4)], [table()]), ValueError, r"inputs\[0\].*\[2, 4\]"),
    "bind of too few": (lambda op: op.bind([], [table()]), ValueError, r"^compile_op.*: rank 1: inputs: 0 tensors"),
    "plot into an unknown ending": (lambda op: op.plot("/tmp/picture.gif"), ValueError, r"\.svg or \.png"),
}


def wrong_calls_then_right(rank: int) -> list[tuple[str, str]]:
    op = shardwire.compile_op(group(), **good(rank))
    wrong = []
    for name, (call, expected, pattern) in CALLS.items():
        if rank != 1:
            continue
        try:
            call(op)
        except Exception as error:
            if not isinstance(error, expected) or not re.search(pattern, str(error)):
                wrong.append((name, f"{type(error).__name__}: {error}"))
        else:
            wrong.append((name, "no error"))
    received = table()
    op([torch.full((1, 4), float(rank))], [received]).wait()
    assert torch.equal(received, torch.arange(float(RANKS)).reshape(-1, 1).expand(-1, 4))
    return wrong


def test_wrong_call_raises_on_the_caller_and_leaves_the_op_usable() -> None:
    assert len(CALLS) >= 20
    results = run_ranks(RANKS, wrong_calls_then_right)
    assert results[1] == []


def keyed_calls(rank: int) -> list[str]:
    boxes = {"w": [box([rank], [1])], "b": [box([rank], [1])]}
    op = shardwire.compile_op(group(), shape={"w": [RANKS], "b": [RANKS]}, dtype=F32, inputs=boxes, outputs=boxes)
    one = torch.zeros(1)
    texts = []
    for inputs in ({"w": [one]}, {"w": [one], "c": [one]}, {"w": [one, one], "b": [one]}, {"w": 3, "b": [one]},
                   {"w": [3], "b": [one]}):
        try:
            op(inputs, {"w": [one], "b": [one]})
        except (TypeError, ValueError) as error:
            texts.append(str(error))
    return texts


def test_wrong_keyed_calls_name_the_key() -> None:
    for texts in run_ranks(RANKS, keyed_calls):
        assert len(texts) == 5
        patterns = (r"inputs\['b'\]: 0 tensors", r"the key 'c'", r"inputs\['w'\]: 2 tensors", r"inputs\['w'\] is 3",
                    r"inputs\['w'\]\[0\] is 3")
        for text, pattern in zip(texts, patterns):
            assert re.search(pattern, text), text


def no_group(rank: int) -> list[tuple[str, str]]:
    caught = []
    for wrong in ("no such group", 3, object()):
        try:
            shardwire.compile_op(wrong, **good(rank))
        except Exception as error:
            caught.append((type(error).__name__, str(error)))
    return caught


def test_what_is_no_group_is_refused_at_once() -> None:
    for caught in run_ranks(RANKS, no_group):
        assert len(caught) == 3
        assert "no such group" in caught[0][1]


class Blocked:
    """A placement of an unknown class."""

    dim = 0


@pytest.mark.parametrize(("arguments", "expected", "pattern"), [
    (([0, 1], [Shard(2)], (4, 4), F32), ValueError, r"dim 2 does not exist in a tensor of 2 dimensions"),
    (([0, 1], [Shard(-3)], (4, 4), F32), ValueError, r"dim -3 does not exist"),
    (([0, 1], [Shard("0")], (4, 4), F32), TypeError, r"dim is '0'"),
    (([0, 1], [Shard(0), Shard(1)], (4, 4), F32), ValueError, r"2 placements for a mesh of shape \[2\]"),
    (([0, 1], Shard(0), (4, 4), F32), TypeError, r"placements is a Shard; give a list"),
    (([0, 1], ["shard"], (4, 4), F32), TypeError, r"placements\[0\] is 'shard'"),
    (([0, 1], [Blocked()], (4, 4), F32), NotImplementedError, r"placements\[0\]: Blocked is not supported"),
    (([0, 1], [Partial("median")], (4, 4), F32), NotImplementedError, r"Partial\('median'\) is not supported"),
    (([0, 1], [StridedShard(0, 0)], (4, 4), F32), ValueError, r"split factor 0: it must be at least 1"),
    (([[0, 1], [2, 3]], [Partial("sum"), Partial("max")], (4, 4), F32), ValueError, r"reduction"),
    (([0, 0], [Shard(0)], (4, 4), F32), ValueError, r"0"),
    (([], [Shard(0)], (4, 4), F32), ValueError, r"mesh has no ranks"),
    (([[0, 1], [2]], [Shard(0), Shard(0)], (4, 4), F32), ValueError, r"ragged"),
    (([0, [1]], [Shard(0)], (4, 4), F32), ValueError, r"mixes ranks and lists"),
    (([0, -1], [Shard(0)], (4, 4), F32), ValueError, r"-1, which is not a rank"),
    (([0.0, 1.0], [Shard(0)], (4, 4), F32), TypeError, r"mesh holds 0\.0"),
    ((4, [Shard(0)], (4, 4), F32), TypeError, r"mesh is 4"),
    (([0, 1], [Shard(0)], 4, F32), TypeError, r"shape is 4"),
    (([0, 1], [Shard(0)], (4, -4), F32), ValueError, r"negative"),
    (([0, 1], [Replicate()], (4, 4), "float32"), TypeError, r"dtype is 'float32'"),
])
def test_wrong_layout_is_refused_when_it_is_made(arguments: tuple[Any, ...], expected: type[Exception],
                                                 pattern: str) -> None:
    with pytest.raises(expected, match=pattern):
        Layout(*arguments)
