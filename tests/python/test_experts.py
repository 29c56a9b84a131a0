"""Dispatch and combine against a naive model in one process, with random routing: values (numpy), gradients (torch),
errors; and all_gather_v and reduce_scatter_v.

The model has all ranks' tokens and looks up the expert of each choice alone.
"""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import accelerator
import numpy
import pytest
import torch
from fork_ranks import meet
from random_campaign import RANKS_AND_WAYS, Digest, extent_of, run_campaign, wide_numpy
from ranks import error_of, group, outcome, run_ranks

import shardwire
from shardwire.distributed import _expert_block, all_gather_v, reduce_scatter_v
from shardwire.distributed.experts import Dispatched, Experts

SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "20261125"))
CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "25"))
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Tokens that travel with scales; every torch has float16.
SCALED = [getattr(torch, name) for name in ("float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                                            "float8_e5m2fnuz") if hasattr(torch, name)]
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def random_shares(rng: random.Random, num_experts: int, ranks: int) -> list[int] | None:
    """Uneven on purpose: ranks without an expert, too."""
    if rng.random() < 0.5:
        return None
    cuts = sorted(rng.randint(0, num_experts) for _ in range(ranks - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, num_experts])]


class Case:
    """One random routing, the same on all ranks."""

    def __init__(self, rng: random.Random, ranks: int, dtype: torch.dtype) -> None:
        self.ranks, self.dtype = ranks, dtype
        self.num_experts, self.hidden, self.top_k = rng.randint(1, 9), rng.choice([1, 3, 64, 1500]), rng.randint(1, 4)
        self.shares = random_shares(rng, self.num_experts, ranks)
        self.max_tokens = extent_of(rng, 40)
        generator = torch.Generator().manual_seed(rng.randint(0, 1 << 30))
        self.tokens, self.ids, self.weights, self.scales = [], [], [], []
        crowded = rng.random() < 0.2  # all tokens choose one expert
        for _ in range(ranks):
            num = rng.choice([0, self.max_tokens, rng.randint(0, self.max_tokens)])
            self.tokens.append((torch.rand(num, self.hidden, generator=generator) - 0.5).to(dtype))
            low, high = (0, 1) if crowded else (-1, self.num_experts)
            self.ids.append(torch.randint(low, high, (num, self.top_k), generator=generator))
            self.weights.append(torch.rand(num, self.top_k, generator=generator))
            self.scales.append(torch.rand(num, 2, generator=generator))

    def make(self, **options: Any) -> Experts:
        return Experts(self.num_experts, self.hidden, self.top_k, self.max_tokens, self.dtype, group=group(),
                       experts_per_rank=self.shares, **options)

    def received(self, expert: int) -> list[tuple[int, int]]:
        """(rank, token) of each row for the expert."""
        return [(rank, token) for rank in range(self.ranks) for token, row in enumerate(self.ids[rank].tolist())
                for each in row if each == expert]


def expert_of(number: int, rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Not linear, so that a gradient depends on the rows."""
    return (torch.tanh(rows.float() * (1 + factors[number])) + rows.float()).to(rows.dtype)


def apply_experts(experts: Experts, received: Dispatched, factors: torch.Tensor) -> torch.Tensor:
    """As in docs/experts.md: a rank without experts has no parts."""
    return torch.cat([received.tokens[:0], *(expert_of(number, rows, factors) for number, rows in
                                             zip(experts.local_experts, received.by_expert()))])


def model(case: Case, tokens: list[torch.Tensor], weights: list[torch.Tensor],
          factors: torch.Tensor) -> list[torch.Tensor]:
    """The results of all ranks, in float64 but for the experts' own dtype."""
    results = []
    for own, ids, weight in zip(tokens, case.ids, weights):
        rows = [sum((weight[token, j].double() * expert_of(expert, own[token], factors).double()
                     for j, expert in enumerate(ids[token].tolist()) if expert >= 0),
                    torch.zeros(case.hidden, dtype=torch.float64)) for token in range(len(own))]
        results.append(torch.stack(rows) if rows else torch.zeros(0, case.hidden, dtype=torch.float64))
    return results


def numpy_model(case: Case, rank: int) -> Any:
    """The result of one rank in float64."""
    tokens, weights, ids = (wide_numpy(each[rank]) for each in (case.tokens, case.weights, case.ids))
    result = numpy.zeros_like(tokens)
    for token, row in enumerate(tokens):
        for weight, expert in zip(weights[token], ids[token]):
            if expert >= 0:
                result[token] += weight * (numpy.tanh(row * (1 + expert / 10)) + row)
    return result


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, said: str) -> None:
    assert got.shape == wanted.shape, said
    limit = ROUNDING[dtype] * (1 + float(wanted.abs().max()) if wanted.numel() else 1)
    assert torch.allclose(got.double(), wanted.double(), rtol=ROUNDING[dtype], atol=limit), said


def check_received(case: Case, experts: Experts, received: Dispatched, said: str) -> None:
    counts = received.counts.tolist()
    for expert, rows, scales in zip(experts.local_experts, received.by_expert(), torch.split(received.scales, counts)):
        wanted = case.received(expert)
        assert len(rows) == len(wanted), said
        if wanted:
            assert torch.equal(rows, torch.stack([case.tokens[source][token] for source, token in wanted])), said
            assert torch.equal(scales, torch.stack([case.scales[source][token] for source, token in wanted])), said


def random_values(rank: int, ranks: int, seed: int, cases: int) -> str:
    rng, digest = random.Random(seed), Digest()
    for number in range(cases):
        case = Case(rng, ranks, rng.choice(DTYPES))
        said = f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {number}: {vars(case)}"
        _expert_block._REGROUP_BELOW = (number + rank) % 2 << 16
        experts = case.make(scale_width=2)
        assert experts._block.is_direct == ("SHARDWIRE_TRANSPORTS" not in os.environ)
        factors, wanted = torch.arange(case.num_experts) / 10, torch.from_numpy(numpy_model(case, rank))
        for dtype in (torch.int64, torch.int32, torch.int16):  # both slots, and one of them again
            received = experts.dispatch(case.tokens[rank], case.ids[rank].to(dtype), case.weights[rank],
                                        case.scales[rank])
            assert received.tokens.dtype == case.dtype
            check_received(case, experts, received, said)
            outputs = apply_experts(experts, received, factors)
            result = experts.combine(outputs, received.handle)
            assert result.dtype == case.dtype and not result.requires_grad
            close(result, wanted, case.dtype, said)
            assert torch.equal(experts.combine(outputs, received.handle, case.weights[rank]), result), said
            plain = experts.combine(received.tokens, received.handle, torch.ones_like(case.weights[rank]))
            times = (case.ids[rank] >= 0).sum(1, keepdim=True)
            close(plain, case.tokens[rank].double() * times, case.dtype, said)
            digest.add(received.tokens, result)
        again = experts.dispatch(-case.tokens[rank], scales=case.scales[rank], handle=received.handle)
        assert again.handle is received.handle and torch.equal(again.counts, received.counts), said
        assert torch.equal(again.tokens, -received.tokens) and torch.equal(again.scales, received.scales), said
        heavier = experts.dispatch(case.tokens[rank], None, 2 * case.weights[rank], case.scales[rank],
                                   handle=received.handle)
        sums = (2 * case.weights[rank].double() * (case.ids[rank] >= 0)).sum(1, keepdim=True)
        close(experts.combine(heavier.tokens, heavier.handle), case.tokens[rank].double() * sums, case.dtype, said)
        assert torch.equal(experts.combine(outputs, received.handle), result), said
    return str(digest)


@pytest.mark.parametrize(("ranks", "way"), RANKS_AND_WAYS)
def test_random_values(ranks: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_campaign(random_values, ranks, way, SEED, CASES, monkeypatch)


def test_random_values_of_ranks_that_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "^shm")
    run_ranks(3, random_values, 3, SEED + 10, max(1, CASES // 3), timeout=60 + CASES)


def counts_requests(rank: int, shortest: int) -> list[int]:
    """The gets of a dispatch of 24 tokens of each rank to 12 experts, two for each token, the gets that wait, and the
    puts of a combine. shortest: bytes of the runs for one expert that move alone."""
    from shardwire import _C
    _expert_block._REGROUP_BELOW = shortest
    experts = Experts(12, 8, 2, 24, scale_width=1, group=group())
    tokens, ids = torch.full((24, 8), float(rank)), torch.arange(48).view(24, 2) % 12
    get, put, gets, waits, puts = _C.symm_get, _C.symm_put, [], [], []

    def counted_get(to: torch.Tensor, part: torch.Tensor, source: int, non_blocking: bool = False) -> None:
        gets.append(source)
        waits.extend([source] * (not non_blocking))
        get(to, part, source, non_blocking)

    def counted_put(part: torch.Tensor, values: torch.Tensor, target: int) -> None:
        puts.extend([target] * (values.dtype == torch.float32))
        put(part, values, target)

    _C.symm_get, _C.symm_put = counted_get, counted_put
    received = experts.dispatch(tokens, ids, None, tokens[:, :1])
    result = experts.combine(received.tokens, received.handle)
    assert received.counts.tolist() == [12] * 4 and torch.equal(result, 2 * tokens)
    assert received.tokens[:, 0].tolist() == [float(source) for source in range(3) for _ in range(4)] * 4
    assert torch.equal(received.scales, received.tokens[:, :1])
    assert sorted(waits) == [0, 1, 2], waits
    return [len(gets), len(puts)]


@pytest.mark.parametrize("shortest, requests", [(1 << 16, [6, 2]), (0, [24, 8])])
def test_a_dispatch_between_hosts_waits_once_for_each_rank(monkeypatch: pytest.MonkeyPatch, shortest: int,
                                                           requests: list[int]) -> None:
    monkeypatch.setenv("SHARDWIRE_TRANSPORTS", "^shm")
    assert run_ranks(3, counts_requests, shortest) == [requests] * 3


def random_gradients(rank: int, ranks: int, seed: int, cases: int) -> int:
    rng = random.Random(seed)
    for number in range(cases):
        case = Case(rng, ranks, torch.float32)
        said = f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {number}: {vars(case)}"
        experts = case.make()
        learns = [rng.random() < 0.7 for _ in range(ranks)]  # the ranks with tokens and weights that require gradients
        factors = (torch.arange(case.num_experts) / 10).requires_grad_()
        tokens, weights = case.tokens[rank].clone(), case.weights[rank].clone()
        tokens.requires_grad_(learns[rank]), weights.requires_grad_(learns[rank])
        received = experts.dispatch(tokens, case.ids[rank])
        result = experts.combine(apply_experts(experts, received, factors), received.handle, weights)
        slopes = [torch.rand(each.shape, generator=torch.Generator().manual_seed(number)) for each in case.tokens]
        (result * slopes[rank]).sum().backward()

        wide = [[each.clone().requires_grad_() for each in whole] for whole in (case.tokens, case.weights)]
        wide_factors = (torch.arange(case.num_experts) / 10).requires_grad_()
        loss = sum((each * slope).sum() for each, slope in zip(model(case, *wide, wide_factors), slopes))
        if loss.requires_grad:
            loss.backward()
        if learns[rank]:
            for got, wanted in ((tokens, wide[0][rank]), (weights, wide[1][rank])):
                expected = torch.zeros_like(wanted) if wanted.grad is None else wanted.grad
                close(got.grad, expected, torch.float32, said)
        own = experts.local_experts
        if factors.grad is not None:
            close(factors.grad[own.start:own.stop], wide_factors.grad[own.start:own.stop]
                  if wide_factors.grad is not None else torch.zeros(len(own)), torch.float32, said)
    return cases


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_gradients(ranks: int) -> None:
    assert run_ranks(ranks, random_gradients, ranks, SEED + 20 + ranks, CASES, timeout=60 + CASES) == [CASES] * ranks


def routes_again(rank: int) -> list[Any]:
    """Two dispatches with one sort and equal gradients, and wrong handles on rank 1."""
    from shardwire import _C
    experts, other = (Experts(5, 4, 2, 3, group=group()) for _ in range(2))
    sort, sorts = _C.experts_sort, []

    def counted_sort(*given: Any) -> int:
        sorts.append(rank)
        return sort(*given)

    _C.experts_sort = counted_sort
    torch.manual_seed(rank)
    ids, weights, slopes = torch.randint(0, 5, (2 + rank, 2)), torch.rand(2 + rank, 2), torch.rand(2 + rank, 4)
    first = torch.rand(2 + rank, 4).requires_grad_()
    second = first.detach().clone().requires_grad_()
    received = experts.dispatch(first, ids, weights)
    again = experts.dispatch(second, handle=received.handle)
    assert len(sorts) == 1 and torch.equal(again.tokens, received.tokens)
    for each in (received, again):
        (experts.combine(3 * each.tokens, each.handle) * slopes).sum().backward()
    assert torch.equal(first.grad, second.grad) and float(first.grad.abs().sum()) > 0
    bad, tokens, handle = rank == 1, first.detach(), received.handle
    foreign, later = other.dispatch(tokens, ids).handle, experts.dispatch(tokens, ids).handle
    return [error_of(experts.dispatch, tokens, ids if bad else None, handle=handle),
            error_of(experts.dispatch, tokens[:1] if bad else tokens, handle=handle),
            error_of(experts.dispatch, tokens, handle=foreign if bad else handle),
            error_of(experts.dispatch, tokens, handle="earlier" if bad else handle),
            error_of(experts.dispatch, tokens, handle=later if bad else handle),
            error_of(experts.dispatch, tokens, None if bad else ids),
            error_of(experts.dispatch, tokens, ids if bad else None, handle=None if bad else handle)]


def test_a_dispatch_with_the_handle_of_an_earlier_one() -> None:
    first, second = run_ranks(2, routes_again)
    assert first == second
    for (kind, text), wanted, part in zip(
            first, ("ValueError", "ValueError", "ValueError", "TypeError", "MismatchError", "TypeError",
                    "MismatchError"),
            ("dispatch with a handle: rank 1: topk_ids and a handle are given",
             "rank 1: tokens has 1 rows, and the handle is of a dispatch of 3", "of another Experts",
             "handle is 'earlier'", "rank 0 gave the handle of exchange", "topk_ids is None",
             "rank 0 called dispatch with a handle, rank 1 called dispatch")):
        assert kind == wanted and part in text, (kind, text)


def bfloat16_gradients(rank: int) -> None:
    """The gradient of two choices is summed in float32: 256 + 1 - 256 would be 0 in bfloat16."""
    experts = Experts(3, 4, 3, 1, torch.bfloat16, group=group())
    tokens = torch.ones(1, 4, dtype=torch.bfloat16, requires_grad=True)
    received = experts.dispatch(tokens, torch.tensor([[0, 1, 2]]))
    factor = torch.tensor([256.0, 1.0, -256.0], dtype=torch.bfloat16)
    rows = [rows * factor[number] for number, rows in zip(experts.local_experts, received.by_expert())]
    result = experts.combine(torch.cat(rows), received.handle)
    assert torch.equal(result.detach(), torch.ones_like(tokens))
    result.sum().backward()
    assert torch.equal(tokens.grad, torch.ones_like(tokens))


def test_sums_of_bfloat16_are_in_float32() -> None:
    run_ranks(2, bfloat16_gradients)


def float8(rank: int) -> None:
    experts = Experts(4, 128, 2, 16, torch.float8_e4m3fn, scale_width=1, group=group())
    torch.manual_seed(rank)
    wide = torch.randn(16, 128)
    scales = wide.abs().amax(1, keepdim=True) / 448
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(16)])
    weights = torch.rand(16, 2)
    received = experts.dispatch((wide / scales).to(torch.float8_e4m3fn), ids, weights, scales)
    assert received.tokens.dtype == torch.float8_e4m3fn
    outputs = (received.tokens.float() * received.scales).to(torch.bfloat16)
    result = experts.combine(outputs, received.handle)
    assert result.dtype == torch.bfloat16
    assert torch.allclose(result.float(), wide * weights.sum(1, keepdim=True), rtol=0.1, atol=0.05)


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this torch has no 8-bit floats")
def test_float8_with_scales() -> None:
    run_ranks(3, float8)


def random_scaled(rank: int, ranks: int, seed: int, cases: int) -> str:
    """Narrow tokens with scales to the experts, and wider outputs back, against the same sums in float64."""
    rng, digest = random.Random(seed), Digest()
    for number in range(cases):
        dtype, out_dtype = rng.choice(SCALED), rng.choice(DTYPES)
        case = Case(rng, ranks, dtype)
        width = rng.choice([1, 2]) if case.hidden % 2 == 0 else 1
        said = (f"SHARDWIRE_ORACLE_SEED={SEED}, {ranks} ranks, case {number}: {dtype} to {out_dtype}, hidden "
                f"{case.hidden}, {width} scales, {case.num_experts} experts, top-{case.top_k}")
        tokens, ids, weights, scales = (each[rank] for each in (case.tokens, case.ids, case.weights, case.scales))
        experts = case.make(out_dtype=out_dtype, scale_width=width)
        for _ in range(3):  # both slots, and one of them again
            received = experts.dispatch(tokens, ids, weights, scales[:, :width])
            for expert, rows in zip(experts.local_experts, received.by_expert()):
                wanted = [case.tokens[source][token] for source, token in case.received(expert)]
                assert len(rows) == len(wanted), said
                if wanted:
                    assert torch.equal(rows.view(torch.uint8), torch.stack(wanted).view(torch.uint8)), said
            result = experts.combine(received.dequantized(out_dtype), received.handle)
            assert received.tokens.dtype == dtype and result.dtype == out_dtype, said
            wide = tokens.float() * scales[:, :width].repeat_interleave(case.hidden // width, 1)
            times = (weights.double() * (ids >= 0)).sum(1, keepdim=True)
            close(result, wide.to(out_dtype).double() * times, out_dtype, said)
            digest.add(received.tokens, received.scales, result)
    return str(digest)


@pytest.mark.parametrize(("ranks", "way"), [(2, ""), (4, ""), (3, "tcp")])
def test_random_scaled_tokens(ranks: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_campaign(random_scaled, ranks, way, SEED + 30, CASES, monkeypatch)


def dequantizes(rank: int) -> None:
    kinds = [getattr(torch, name) for name in ("float16", "float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
    for kind in kinds:
        bits = torch.arange(256, dtype=torch.uint8).repeat(2, 3)[:, :768]
        wide = torch.randn(4, 384) if kind == torch.float16 else bits.view(4, 384)
        tokens = wide.to(kind) if kind == torch.float16 else wide.view(kind)
        for width in (1, 3):
            scales = torch.rand(4, width) * 3
            experts = Experts(2, 384, 1, 4, kind, scale_width=width, group=group())
            received = experts.dispatch(tokens, torch.tensor([[0], [1], [0], [-1]]), None, scales)
            of_row = received.scales.repeat_interleave(384 // width, 1)
            for dtype in (torch.float32, torch.bfloat16):
                expected = (received.tokens.float() * of_row).to(dtype)
                assert torch.allclose(received.dequantized(dtype), expected, rtol=0, atol=0, equal_nan=True)
            assert received.dequantized().dtype == torch.bfloat16
            empty = experts.dispatch(tokens[:0], torch.empty(0, 1, dtype=torch.int64), None, scales[:0])
            assert empty.dequantized().shape == (0, 384)
        plain = Experts(2, 384, 1, 4, kind, group=group()).dispatch(tokens, torch.zeros(4, 1, dtype=torch.int64))
        assert torch.allclose(plain.dequantized(torch.float32), plain.tokens.float(), rtol=0, atol=0, equal_nan=True)
        odd = Experts(2, 384, 1, 4, kind, scale_width=5, group=group())
        assert "5 scales for 384 elements" in error_of(odd.dispatch(tokens, torch.zeros(4, 1, dtype=torch.int64), None,
                                                                    torch.ones(4, 5)).dequantized)[1]
        if kind != torch.float16:
            continue
        x = tokens.clone().requires_grad_()
        rows = Experts(2, 384, 1, 4, kind, scale_width=1, group=group()).dispatch(
            x, torch.zeros(4, 1, dtype=torch.int64), None, torch.full((4, 1), 0.5)).dequantized()
        rows.sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 0.5))


def test_rows_of_scaled_tokens_in_a_wider_type() -> None:
    run_ranks(2, dequantizes)


def float8_gradients(rank: int) -> None:
    """448 + 448 - 448: the sum of the first two is beyond float8_e4m3fn, so the gradients are summed wider."""
    experts = Experts(3, 16, 3, 2, torch.float8_e4m3fn, group=group())
    learns = rank == 0  # the other ranks take part in the backward pass, too
    x = torch.ones(2, 16, requires_grad=learns)
    received = experts.dispatch((x / 2).to(torch.float8_e4m3fn), torch.tensor([[0, 1, 2], [2, -1, -1]]))
    factor = torch.tensor([448.0, 448.0, -448.0])
    rows = [rows.to(torch.bfloat16) * factor[number].to(torch.bfloat16)
            for number, rows in zip(experts.local_experts, received.by_expert())]
    result = experts.combine(torch.cat(rows), received.handle)
    assert torch.equal(result.detach(), torch.tensor([[224.0], [-224.0]]).expand(2, 16).to(torch.bfloat16))
    result.sum().backward()
    if learns:
        assert torch.equal(x.grad, torch.tensor([[224.0], [-224.0]]).expand(2, 16))


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this torch has no 8-bit floats")
def test_gradients_of_float8() -> None:
    run_ranks(3, float8_gradients)


def lazily_negated(rank: int, direct: bool) -> None:
    """The imaginary part of a conjugated element is one element, in C order, whose memory has the other sign."""
    def negated(value: float) -> torch.Tensor:
        return torch.complex(torch.zeros(1, 1), torch.full((1, 1), -value)).conj().imag

    experts = Experts(2, 1, 1, 1, group=group())
    assert experts._block.is_direct == direct
    ids = torch.tensor([[1 - rank]])
    tokens = torch.full((1, 1), 3.0, requires_grad=True)
    assert experts.dispatch(negated(3.0), ids).tokens.item() == 3
    received = experts.dispatch(tokens, ids)
    assert experts.combine(negated(5.0), received.handle, negated(7.0)).item() == 35
    experts.combine(received.tokens, received.handle).backward(negated(2.0))
    assert tokens.grad is not None and tokens.grad.item() == 2


@pytest.mark.parametrize("transports", ["", "^shm"])
def test_lazily_negated_tensors(monkeypatch: pytest.MonkeyPatch, transports: str) -> None:
    if transports:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", transports)
    run_ranks(2, lazily_negated, not transports)


def under_another_default_device(rank: int, direct: bool) -> None:
    tokens, ids = torch.tensor([[3.0], [4.0]], requires_grad=True), torch.tensor([[1 - rank], [rank]])
    scales, grad = torch.tensor([[5.0], [6.0]]), torch.tensor([[7.0], [8.0]])
    with torch.device("meta"):
        experts = Experts(2, 1, 1, 2, scale_width=1, group=group())
        assert experts._block.is_direct == direct
        received = experts.dispatch(tokens, ids, None, scales)
        result = experts.combine(received.tokens, received.handle)
        result.backward(grad)
    assert torch.equal(received.scales.sort(0).values, scales)
    assert torch.equal(result, tokens) and torch.equal(tokens.grad, grad)


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
@pytest.mark.parametrize("transports", ["", "^shm"])
def test_the_default_device_does_not_matter(monkeypatch: pytest.MonkeyPatch, transports: str) -> None:
    if transports:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", transports)
    run_ranks(2, under_another_default_device, not transports)


def on_a_device(rank: int, device: Any) -> None:
    """Tensors of a device, on rank 1 of the CPU: the values and gradients are those of the CPU's tensors."""
    experts = Experts(3, 4, 2, 8, scale_width=1, group=group())
    torch.manual_seed(rank)
    tokens, ids, weights, scales = torch.rand(5, 4), torch.randint(-1, 3, (5, 2)), torch.rand(5, 2), torch.rand(5, 1)
    found = []
    for moves in (False, rank != 1):
        mine, own_ids, factors, own_scales, grad = (
            accelerator.on_device(each) if moves else each.clone()
            for each in (tokens, ids, weights, scales, tokens + 1))
        mine.requires_grad_(), factors.requires_grad_()
        received = experts.dispatch(mine, own_ids, factors, own_scales)
        again = experts.dispatch(mine.detach(), scales=own_scales, handle=received.handle)
        result = experts.combine(2 * received.tokens, received.handle)
        result.backward(grad)
        assert received.counts.device.type == "cpu"
        of_device = [received.tokens, received.scales, again.tokens, again.dequantized(torch.float32), result,
                     mine.grad, factors.grad]
        assert all(each.device == mine.device for each in of_device)
        found.append([each.detach().cpu() for each in of_device])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("transports", ["", "^shm"])
def test_tensors_of_a_device(monkeypatch: pytest.MonkeyPatch, transports: str) -> None:
    if transports:
        monkeypatch.setenv("SHARDWIRE_TRANSPORTS", transports)
    run_ranks(3, on_a_device, accelerator.load())


def in_a_sub_group(rank: int) -> None:
    import torch.distributed as dist
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    own = groups[rank % 2]
    experts = Experts(4, 8, 1, 4, group=own)
    assert experts.local_experts == (range(0, 2) if rank < 2 else range(2, 4))
    tokens = torch.full((4, 8), float(rank))
    received = experts.dispatch(tokens, torch.arange(4).view(4, 1))
    assert received.tokens[:, 0].tolist() == [rank % 2, rank % 2 + 2] * 2
    assert torch.equal(experts.combine(received.tokens, received.handle), tokens)


def test_in_a_sub_group() -> None:
    run_ranks(4, in_a_sub_group, default_group=True)


def misuse(rank: int) -> list[Any]:
    experts = Experts(4, 8, 2, 16, group=group())
    other = Experts(4, 8, 2, 16, group=group())
    good, ids = torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int64)
    found = []

    def wrong_on_rank_1(call: Any, *args: Any) -> None:
        """args: pairs of an argument of rank 1 and of the others."""
        found.append(error_of(call, *(pair[rank != 1] for pair in args)))
    far = ids.clone()
    far[3, 1] = 4
    wrong_on_rank_1(experts.dispatch, (torch.ones(17, 8), good), (torch.zeros(17, 2, dtype=torch.int64), ids))
    wrong_on_rank_1(experts.dispatch, (torch.ones(4, 7), good), (ids, ids))
    wrong_on_rank_1(experts.dispatch, (good.double(), good), (ids, ids))
    wrong_on_rank_1(experts.dispatch, (good, good), (far, ids))
    wrong_on_rank_1(experts.dispatch, (good, good), (ids.float(), ids))
    wrong_on_rank_1(experts.dispatch, (good, good), (ids, ids), (None, None), (torch.ones(4, 1), None))
    weights = torch.ones(4, 2)
    wrong_on_rank_1(experts.dispatch, (good, good), (ids, ids), (weights + 1j, weights))
    handle = experts.dispatch(good, ids).handle
    of_other = other.dispatch(good, ids).handle
    rows = torch.ones(handle.num_received, 8)
    wrong_on_rank_1(experts.combine, (rows[:, 1:], rows), (handle, handle))
    wrong_on_rank_1(experts.combine, (rows, rows), (of_other, handle))
    wrong_on_rank_1(experts.combine, (rows, rows), (None, handle))
    second = experts.dispatch(good, ids).handle
    wrong_on_rank_1(experts.combine, (rows, rows), (second, handle))
    found.append(error_of(experts.dispatch, good, ids) if rank else error_of(experts.combine, rows, handle))
    learning = good.clone().requires_grad_()
    with torch.set_grad_enabled(rank != 1):
        wrong_on_rank_1(experts.dispatch, (learning, learning), (ids, ids))
    result = experts.combine(rows, handle)  # after all errors
    assert torch.equal(result, good * 2)
    return found


def test_an_error_of_one_rank_is_the_same_on_all_ranks() -> None:
    found = run_ranks(3, misuse)
    assert found[0] == found[1] == found[2]
    kinds, texts = zip(*found[0])
    assert kinds == ("ValueError", "ValueError", "TypeError", "ValueError", "TypeError", "ValueError", "TypeError",
                     "ValueError", "ValueError", "TypeError", "MismatchError", "MismatchError", "MismatchError")
    for text, part in zip(texts, (
            "dispatch: rank 1: tokens has 17 rows, and max_tokens is 16: make Experts with max_tokens of 17 or more",
            "tokens has the shape [4, 7]; give [n, 8]", "tokens is torch.float64; this Experts takes torch.float32",
            "topk_ids[3, 1] is 4; experts are 0 to 3", "topk_ids is torch.float32", "scales are given",
            "topk_weights is torch.complex64; give real numbers",
            "combine: rank 1: outputs has the shape", "of another Experts", "handle is None",
            "rank 0 gave the handle of exchange", "rank 0 called combine, rank 1 called dispatch", "is under no_grad")):
        assert part in text, text


def wrong_arguments(rank: int) -> list[Any]:
    bad = rank == 1
    return [error_of(Experts, 0 if bad else 4, 8, 2, 16, group=group()),
            error_of(Experts, 4, 8, 2, 17 if bad else 16, group=group()),
            error_of(Experts, 4, 8, 2, 16, torch.int64 if bad else torch.float32, group=group()),
            error_of(Experts, 4, 8, 2, 16, experts_per_rank=[3, 2] if bad else [3, 1], group=group()),
            error_of(Experts, 4, 1 << 40, 2, 1 << 20, group=group()),
            error_of(Experts, 1 << 60, 8, 2, 16, group=group())]


def test_wrong_arguments_of_one_rank() -> None:
    found = run_ranks(2, wrong_arguments)
    assert found[0] == found[1]
    assert [kind for kind, _ in found[0]] == ["ValueError", "MismatchError", "TypeError", "ValueError",
                                             "ValueError", "ValueError"]
    assert "max_tokens differs between ranks: 16 on rank 0, 17 on rank 1" in found[0][1][1]


def waits_for_nobody(rank: int) -> Any:
    meet("here")
    experts = Experts(2, 8, 1, 4, group=group(), timeout=2)
    if rank == 1:
        return None  # the process stays until rank 0 has its errors
    first = outcome(experts.dispatch, torch.ones(1, 8), torch.zeros(1, 1, dtype=torch.int64))
    return first, outcome(experts.dispatch, torch.ones(1, 8), torch.zeros(1, 1, dtype=torch.int64))


def test_a_rank_that_never_calls_is_named() -> None:
    (first, second), _ = run_ranks(2, waits_for_nobody)
    assert first[0] == "TimeoutError" and "rank 1" in first[1], first
    assert second[0] == "RuntimeError" and "make another Experts" in second[1], second


def dies(rank: int) -> Any:
    experts = Experts(3, 8, 1, 4, group=group(), timeout=30)
    meet("made")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(experts.dispatch, torch.ones(1, 8), torch.zeros(1, 1, dtype=torch.int64))


def test_a_dead_rank_is_named() -> None:
    first, _, last = run_ranks(3, dies, may_die=(1,))
    for kind, text in (first, last):
        assert kind == "PeerFailedError" and "rank 1" in text, text


# ---- parts of different sizes

def gathers(rank: int, size: int) -> None:
    for sizes in ([3, 0, 5, 2][:size], [2] * size, [0] * size):
        whole = torch.arange(sum(sizes) * 3, dtype=torch.float32).view(-1, 3)
        mine = torch.split(whole, sizes)[rank].clone().requires_grad_()
        for given in (None, sizes):
            mine.grad = None
            got = all_gather_v(mine, given, group=group())
            assert torch.equal(got.detach(), whole)
            (got * (rank + 1)).sum().backward()
            assert torch.equal(mine.grad, torch.full_like(mine, size * (size + 1) / 2))
        term = (whole * (rank + 1)).requires_grad_()
        total = whole * (size * (size + 1) / 2)
        for op, divisor in (("sum", 1), ("mean", size)):
            term.grad = None
            part = reduce_scatter_v(term, sizes, op, group=group())
            assert torch.allclose(part, torch.split(total, sizes)[rank] / divisor)
            (part * (rank + 1)).sum().backward()
            expected = torch.cat([torch.full((count, 3), (each + 1) / divisor) for each, count in enumerate(sizes)])
            assert torch.allclose(term.grad, expected)
    assert torch.equal(reduce_scatter_v(torch.ones(size + 1, 2), group=group()),
                       torch.full((2 if rank == 0 else 1, 2), float(size)))


def other_dimension(rank: int) -> list[Any]:
    """Along the last dimension, also of a list of tensors as vLLM's all_gatherv takes; with gradients."""
    sizes = [3, 1]
    whole = torch.arange(8.0).view(2, 4)
    mine = torch.split(whole, sizes, 1)[rank].clone().requires_grad_()
    for given in (None, sizes):
        mine.grad = None
        got = all_gather_v(mine, given, group=group(), dim=-1)
        assert torch.equal(got, whole) and got.shape == (2, 4) and got.is_contiguous()
        (got * whole).sum().backward()
        assert torch.equal(mine.grad, 2 * mine)
        both = all_gather_v([mine.detach(), mine.detach().to(torch.int32)], given, group=group(), dim=1)
        assert [each.dtype for each in both] == [torch.float32, torch.int32]
        assert all(torch.equal(each.float(), whole) for each in both)
        part = reduce_scatter_v(whole, given, group=group(), dim=1)
        assert torch.equal(part, 2 * torch.split(whole, given or [2, 2], 1)[rank]) and part.is_contiguous()
    return [error_of(all_gather_v, torch.ones(2, 2), group=group(), dim=rank),
            error_of(all_gather_v, torch.ones(2, 2), group=group(), dim=2 if rank else 0),
            error_of(reduce_scatter_v, torch.ones(2, 2), group=group(), dim=True)]


def test_parts_along_another_dimension() -> None:
    first, second = run_ranks(2, other_dimension)
    assert first == second
    assert [kind for kind, _ in first] == ["MismatchError", "ValueError", "ValueError"]
    assert "dim differs between ranks: 0 on rank 0, 1 on rank 1" in first[0][1], first
    assert "rank 1: dim is 2, and the tensor has 2 dimensions" in first[1][1], first


def several_parts(rank: int) -> list[Any]:
    """A tuple of tensors, of which one requires gradients: all are under way at once, after one exchange at most."""
    from shardwire.distributed import _meeting, uneven
    exchange, wait, counts = _meeting.exchange, uneven._all, [0]

    def counted_exchange(*given: Any) -> Any:
        counts[0] += 1
        return exchange(*given)

    def counted_wait(started: Any) -> Any:
        counts.append(len(started))
        return wait(started)

    _meeting.exchange, uneven._all = counted_exchange, counted_wait
    sizes, whole, numbers = [2, 3], torch.arange(15.0).view(5, 3), torch.arange(5)
    mine, ids = torch.split(whole, sizes)[rank].clone().requires_grad_(), torch.split(numbers, sizes)[rank]
    plain = 2 * mine.detach()
    for given in (None, sizes):
        mine.grad = None
        learning, of_ids, others = all_gather_v((mine, ids, plain), given, group=group())
        assert torch.equal(learning, whole) and torch.equal(of_ids, numbers) and torch.equal(others, 2 * whole)
        assert learning.requires_grad and not of_ids.requires_grad and not others.requires_grad
        (learning * (rank + 1)).sum().backward()
        assert torch.equal(mine.grad, torch.full_like(mine, 3.0))
    of_ids, others = all_gather_v([ids, plain], sizes, group=group())
    assert torch.equal(of_ids, numbers) and torch.equal(others, 2 * whole)
    assert all_gather_v((), sizes, group=group()) == []
    assert counts == [2, 3, 1, 3, 1, 2], counts
    return [error_of(all_gather_v, (plain, plain[:1]), sizes, group=group())[0],
            error_of(all_gather_v, [plain] * (1 + rank), group=group())]


def test_several_parts_at_once() -> None:
    first, second = run_ranks(2, several_parts)
    assert first == second and first[0] == "ValueError"
    assert first[1][0] == "MismatchError" and "the dtype differs between ranks" in first[1][1], first


def lazily_conjugated(rank: int) -> None:
    """On rank 1 alone the tensors, and on all ranks the gradients, are lazily conjugated."""
    plain = torch.complex(torch.arange(4.0), torch.ones(4))
    mine = (plain.conj() if rank else plain).detach().requires_grad_()
    for call in (all_gather_v, reduce_scatter_v):
        mine.grad = None
        got = call(mine, group=group())
        got.backward(torch.full_like(got, 1j).conj())
        assert torch.equal(mine.grad, torch.full_like(mine, -2j if call is all_gather_v else -1j))
        whole = torch.cat([plain, plain.conj()]) if call is all_gather_v else torch.split(2 * plain.real + 0j, 2)[rank]
        assert torch.equal(got, whole)


def test_lazily_conjugated_parts() -> None:
    run_ranks(2, lazily_conjugated)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_different_sizes(size: int) -> None:
    run_ranks(size, gathers, size)


PARTS = {"all_gather_v": all_gather_v, "reduce_scatter_v": reduce_scatter_v}


def gradient_on_one_rank(rank: int, name: str, sizes: list[int] | None) -> Any:
    """Rank 0 alone would wait for the other rank in its backward pass."""
    call, mine, both = PARTS[name], torch.ones(2, 3, requires_grad=rank == 0), torch.ones(2, 3, requires_grad=True)
    with torch.no_grad():
        assert not call(mine, sizes, group=group()).requires_grad
    assert not call(mine.detach(), sizes, group=group()).requires_grad
    call(both, sizes, group=group()).sum().backward()
    assert both.grad is not None
    return error_of(call, mine, sizes, group=group())


@pytest.mark.parametrize("name, sizes, text", [
    ("all_gather_v", None, "the gradient differs between ranks: True on rank 0, False on rank 1"),
    ("all_gather_v", [2, 2], "rank 0 called shardwire.distributed.all_gather_v, but rank 1 called all_gather"),
    ("reduce_scatter_v", None,
     "rank 0 called shardwire.distributed.reduce_scatter_v, but rank 1 called reduce_scatter"),
    ("reduce_scatter_v", [1, 1],
     "rank 0 called shardwire.distributed.reduce_scatter_v, but rank 1 called reduce_scatter")])
def test_parts_that_require_gradients_on_one_rank(name: str, sizes: list[int] | None, text: str) -> None:
    for kind, said in run_ranks(2, gradient_on_one_rank, name, sizes):
        assert kind == "MismatchError" and text in said, said


def wrong_parts(rank: int) -> list[Any]:
    bad = rank == 1
    return [error_of(all_gather_v, torch.ones(2, 3 + bad), group=group()),
            error_of(all_gather_v, torch.tensor(1.0) if bad else torch.ones(2), group=group()),
            error_of(all_gather_v, torch.ones(2, device="meta" if bad else "cpu"), group=group()),
            error_of(all_gather_v, torch.ones(2).to_sparse() if bad else torch.ones(2), group=group()),
            error_of(all_gather_v, torch.ones(2), [3, 3], group=group()),
            error_of(reduce_scatter_v, torch.ones(2), [3, 3], group=group()),
            error_of(reduce_scatter_v, torch.ones(2), [1.5, 1.5], group=group()),
            error_of(Experts, 4, 8, 2, 16, experts_per_rank=[2.5, 2.5], group=group()),
            error_of(reduce_scatter_v, torch.ones(2, requires_grad=True), [1, 1], "max", group=group())]


def test_wrong_parts() -> None:
    found = run_ranks(2, wrong_parts)
    assert found[0] == found[1]
    assert [kind for kind, _ in found[0]] == ["MismatchError", "ValueError", "TypeError", "TypeError", "ValueError",
                                             "ValueError", "TypeError", "TypeError", "ValueError"]
    assert shardwire.MismatchError.__name__ == found[0][0][0]
