"""Collectives inside a kernel: part of the compiled code where communication is on, refused where it is off."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist

import shardwire
from kernel_cases import AOTI, NO_AOTI
from ranks import outcome
from shardwire import DeviceKernel
from shardwire.compiler.compile_op import name_of_op
from shardwire.kernels.ops_inside import describe_op

if not AOTI:
    pytest.skip(NO_AOTI + ", and torch.jit.trace records no collectives", allow_module_level=True)

import torch.distributed._functional_collectives as functional

HIDDEN, RATE, STEPS = 8, 0.1, 5


def step(x, y, w1, w2, rows, turn):
    """One step of a two-layer MLP with hidden units spread over the ranks; changes the weights and returns the loss.
    Then each rank gets rows of the whole first weight.
    """
    before = x @ w1
    hidden = torch.relu(before)
    error = functional.all_reduce(hidden @ w2, "sum", dist.group.WORLD) - y
    slope = error * (2.0 / error.numel())
    through = (slope @ w2.t()) * (before > 0)
    w2.sub_(RATE * (hidden.t() @ slope))
    w1.sub_(RATE * (x.t() @ through))
    turn([w1], [rows]).wait()
    return (error * error).mean()


def whole_model():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*shape, generator=generator) for shape in ((6, 4), (6, 2), (4, HIDDEN), (HIDDEN, 2))]


def reference(rank, size):
    """The same step by one process and autograd. Call this in a separate process: autograd then has threads, and torch
    forbids autograd in a child of such a process.
    """
    x, y, *weights = whole_model()
    weights = [weight.requires_grad_() for weight in weights]
    losses = []
    for _ in range(STEPS):
        loss = ((torch.relu(x @ weights[0]) @ weights[1] - y) ** 2).mean()
        losses.append(loss.item())
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights)):
            weight.data -= RATE * gradient
    return losses, [weight.detach() for weight in weights]


def refused(rank, x, y, w1, w2, rows, turn):
    """The refusals while the kernel is traced, the same on all ranks."""
    own = [dist.new_group([0]), dist.new_group([1])][rank]
    lost = compile_turn(rank, 2)
    given = lost
    if rank == 1:
        given, lost = turn, None  # this rank's op of the name is gone
    off = {"cc_enabled": False}
    kernels = [(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD), (x,), off),
               (lambda w1, rows: turn([w1], [rows]), (w1, rows), off),
               (lambda x: functional.all_reduce(x, "sum", own), (x,), {}),
               (lambda w1: turn([w1], [torch.empty(2, HIDDEN)]).wait(), (w1,), {}),
               (functools.partial(turned, turn=given), (w1, rows), {}),
               (lambda w1, rows: turn([w1[:2]], [rows]), (w1, rows), {})]
    return [outcome(DeviceKernel.compile_and_load, kernel, *args, **named) for kernel, args, named in kernels]


def turned(w1, rows, turn):
    turn([w1], [rows])
    return rows * 2


REFUSED = [("ValueError", "communicates (_c10d_functional.all_reduce.default)"),
           ("ValueError", "the kernel calls a compiled op, and communication is off"),
           ("ValueError", "rank 1: the kernel communicates in the group"),
           ("UnsupportedError", "uses nothing of what it gives"),
           ("ValueError", "which this process does not have; keep the op"),
           ("ValueError", ("inputs[0] of a compiled op in the kernel is torch.float32[2, 4], the op was compiled for "
                           "torch.float32[4, 4]"))]


def compile_turn(rank, size, is_spmd=None):
    """From columns of the first weight to rows."""
    columns, rows = HIDDEN // size, 4 // size
    return shardwire.compile_op(None, shape=[4, HIDDEN], dtype=torch.float32,
                                inputs=[{"offset": [0, rank * columns], "shape": [4, columns]}],
                                outputs=[{"offset": [rank * rows, 0], "shape": [rows, HIDDEN]}], is_spmd=is_spmd)


def describe_turn(rank, size):
    turn = compile_turn(rank, size, is_spmd=True)
    return describe_op(name_of_op(turn))


def test_an_op_that_rank_0_planned_is_the_same_on_all_ranks(run_ranks):
    first, second = run_ranks(2, describe_turn)
    assert first == second


def train(rank, size, folder):
    x, y, w1, w2 = whole_model()
    columns = slice(rank * HIDDEN // size, (rank + 1) * HIDDEN // size)
    w1, w2, rows = w1[:, columns].contiguous(), w2[columns].contiguous(), torch.empty(4 // size, HIDDEN)
    turn = compile_turn(rank, size)
    wrong = refused(rank, x, y, w1, w2, rows, turn)
    from torch._inductor import config
    # torch 2.6 lacks the setting
    quickly = ("aot_inductor.compile_wrapper_opt_level=O0" if hasattr(config.aot_inductor, "compile_wrapper_opt_level")
               else None)
    kernel = DeviceKernel.compile_and_load(functools.partial(step, turn=turn), x, y, w1, w2, rows, build_dir=folder,
                                           additional_compiler_args=quickly)
    del turn  # the kernel keeps the op
    losses = [kernel(x, y, w1, w2, rows).item() for _ in range(STEPS)]
    alias = outcome(kernel, x, y, w1, w1.view(-1)[:w2.numel()].view(w2.shape), rows)
    return kernel.origin, wrong, losses, w1, w2, alias, rows


def test_a_tensor_parallel_mlp_whose_step_is_one_kernel(run_ranks, tmp_path):
    found = run_ranks(2, train, tmp_path, timeout=200, group_timeout=150)
    assert [each[0] for each in found] == ["compiled", "received"]
    ((losses, (w1, w2)),) = run_ranks(1, reference)
    for each in found:
        assert torch.allclose(torch.tensor(each[2]), torch.tensor(losses), rtol=1e-4)
    assert losses[-1] < losses[0]
    assert (torch.allclose(torch.cat([each[3] for each in found], 1), w1, atol=1e-5)
            and torch.allclose(torch.cat([each[4] for each in found]), w2, atol=1e-5))
    assert found[0][2] == found[1][2]  # the same bits
    assert found[0][5] == ("ValueError",
                           "the kernel changes 'w1', which shares memory with 'w2'; give it a tensor of its own")
    assert torch.allclose(torch.cat([each[6] for each in found]), w1, atol=1e-5)
    for each in found:
        for refusal, (kind, text) in zip(each[1], REFUSED):
            assert refusal is not None and refusal[0] == kind and text in refusal[1], refusal
    # With communication the texts are the same; without communication each rank has its own text.
    assert found[0][1] == found[1][1]
