"""Random calls of torch.distributed in real processes, on several overlapping groups, against plain torch. The seed of
a failing case is in the message.

Every rank derives a case, and all ranks' inputs, from the seed; results are compared byte by byte. Reductions are
modelled in rank order, half and eight-bit types in a wider one with one rounding at the end. SHARDWIRE_ORACLE_CASES:
the number of cases (default 4000). SHARDWIRE_ORACLE_SEED: the first seed (default 1).
"""

from __future__ import annotations

import os
import random
import warnings
from typing import Any, Callable

import collective_model
import pytest
import torch
import torch.distributed as dist
from collective_model import DTYPES, FLOATS, RAW, TORCH, UNSIGNED, bytes_of, in_memory, placed, random_values, reduced
from ranks import run_ranks

CASES = int(os.environ.get("SHARDWIRE_ORACLE_CASES", "4000"))
SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))
WORLD = 4
SUBSETS = ((0, 1, 2), (1, 3), (0, 2, 3), (2,), (0, 3))

Check = Callable[[], None]
WHOLE_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
# The op and the name in our messages.
WRONG_OPS = (("BAND", "band"), ("BOR", "bor"), ("BXOR", "bxor"))


class Case:
    """One call from this rank's view."""

    def __init__(self, seed: int, groups: list[tuple[tuple[int, ...], Any]]) -> None:
        self.seed = seed
        self.rng = random.Random(seed)  # drawn from alike on all ranks
        self.members, self.group = self.rng.choice(groups)
        self.size = len(self.members)
        self.rank = self.members.index(dist.get_rank()) if dist.get_rank() in self.members else -1
        self.mine = random.Random(f"{seed}/{self.rank}")
        self.kind = self.rng.choice(KINDS)
        self.dtype = self.rng.choice(RAW if RAW and self.kind in MOVING and self.rng.random() < 0.05 else DTYPES)
        self.op = self.random_op()
        self.factor = self.rng.choice((0.5, 0.3, 3.0))
        self.shape = self.random_shape()
        self.root = self.rng.randrange(self.size)
        self.wants_work = self.rng.random() < 0.5

    def random_op(self) -> str:
        if self.dtype.is_complex:
            return self.rng.choice(("SUM", "AVG"))  # torch refuses the other ops
        if self.dtype in UNSIGNED:
            return self.rng.choice(("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"))
        if self.dtype.is_floating_point:
            may_scale = (self.dtype in FLOATS and hasattr(dist, "_make_nccl_premul_sum")
                         and self.kind in ("all_reduce", "reduce"))
            return self.rng.choice(("SUM", "PRODUCT", "MIN", "MAX", "AVG", *(("PREMUL_SUM",) if may_scale else ())))
        return self.rng.choice(WHOLE_OPS)

    def torch_op(self) -> Any:
        return dist._make_nccl_premul_sum(self.factor) if self.op == "PREMUL_SUM" else getattr(dist.ReduceOp, self.op)

    def random_shape(self) -> tuple[int, ...]:
        draw = self.rng.random()
        if draw < 0.04:
            return (self.rng.choice((2047, 2049, 8192, 70000)),)
        if draw < 0.1:
            return (0, self.rng.randint(0, 3))
        return tuple(self.rng.randint(1, 9) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3))))

    def values(self, rank: int, index: int = 0, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        return random_values(f"{self.seed}/{rank}/{index}", self.shape if shape is None else shape, self.dtype)

    def input(self, index: int = 0, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        return in_memory(self.mine, self.values(self.rank, index, shape))

    def output(self, shape: tuple[int, ...] | None = None, contiguous: bool = False) -> torch.Tensor:
        """Holds something else before."""
        blank = random_values(f"blank/{self.seed}/{self.rank}", self.shape if shape is None else shape, self.dtype)
        return placed(self.mine, blank) if contiguous else in_memory(self.mine, blank)

    def everyone(self, index: int = 0, shape: tuple[int, ...] | None = None) -> list[torch.Tensor]:
        return [self.values(rank, index, shape) for rank in range(self.size)]

    def reduction(self, index: int = 0, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        return reduced(self.op, self.everyone(index, shape), self.factor)

    def check(self, *pairs: tuple[torch.Tensor, torch.Tensor]) -> Check:
        """A function that compares the values of each first tensor, at the time of the call, with the second tensor."""
        def compare() -> None:
            for number, (is_, expected) in enumerate(pairs):
                assert (is_.dtype == expected.dtype
                        and is_.shape == expected.shape), f"output {number}: {is_.dtype}{tuple(is_.shape)}"
                assert torch.equal(bytes_of(is_.cpu()),
                                   bytes_of(expected)), f"output {number} is\n{is_}\nexpected\n{expected}"
        return compare

    def peer(self, rank: int) -> int:
        """torch.distributed counts roots and peers in the default group."""
        return self.members[rank]


def concatenated(tensors: list[torch.Tensor]) -> torch.Tensor:
    if tensors[0].dtype not in RAW:
        return torch.cat(tensors)
    shape = (sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:])
    return torch.cat([bytes_of(tensor) for tensor in tensors]).view(tensors[0].dtype).reshape(shape)


def all_reduce(case: Case, **more: Any) -> tuple[Any, Check]:
    tensor = case.input()
    return dist.all_reduce(tensor, case.torch_op(), **more), case.check((tensor, case.reduction()))


def reduce(case: Case, **more: Any) -> tuple[Any, Check]:
    tensor = case.input()
    expected = case.reduction() if case.rank == case.root else case.values(case.rank)
    return dist.reduce(tensor, case.peer(case.root), case.torch_op(), **more), case.check((tensor, expected))


def broadcast(case: Case, **more: Any) -> tuple[Any, Check]:
    tensor = case.input()
    return dist.broadcast(tensor, case.peer(case.root), **more), case.check((tensor, case.values(case.root)))


def all_gather(case: Case, **more: Any) -> tuple[Any, Check]:
    uneven = case.rng.random() < 0.4 and case.dtype not in RAW
    shapes = [(case.rng.randint(0, 5), 3) if uneven else case.shape for _ in range(case.size)]
    outputs = [case.output(shape) for shape in shapes]
    work = dist.all_gather(outputs, case.input(0, shapes[case.rank]), **more)
    return work, case.check(*[(output, case.values(rank, 0, shapes[rank])) for rank, output in enumerate(outputs)])


def all_gather_into_tensor(case: Case, **more: Any) -> tuple[Any, Check]:
    case.shape = case.shape or (1,)
    stacks = case.rng.random() < 0.5
    expected = concatenated(case.everyone())
    expected = expected.reshape(case.size, *case.shape) if stacks else expected
    output = case.output(tuple(expected.shape), contiguous=True)
    return dist.all_gather_into_tensor(output, case.input(), **more), case.check((output, expected))


def gather(case: Case, **more: Any) -> tuple[Any, Check]:
    outputs = [case.output() for _ in range(case.size)] if case.rank == case.root else None
    work = dist.gather(case.input(), outputs, case.peer(case.root), **more)
    return work, case.check(*zip(outputs or [], case.everyone()))


def scatter(case: Case, **more: Any) -> tuple[Any, Check]:
    inputs = [case.input(index) for index in range(case.size)] if case.rank == case.root else None
    output = case.output()
    return (dist.scatter(output, inputs, case.peer(case.root), **more),
            case.check((output, case.values(case.root, case.rank))))


def reduce_scatter(case: Case, **more: Any) -> tuple[Any, Check]:
    uneven = case.rng.random() < 0.4
    shapes = [(case.rng.randint(0, 5), 2) if uneven else case.shape for _ in range(case.size)]
    output = case.output(shapes[case.rank])
    work = dist.reduce_scatter(output, [case.input(index, shapes[index]) for index in range(case.size)],
                               case.torch_op(), **more)
    return work, case.check((output, case.reduction(case.rank, shapes[case.rank])))


def reduce_scatter_tensor(case: Case, **more: Any) -> tuple[Any, Check]:
    case.shape = case.shape or (1,)
    output = case.output()
    whole = placed(case.mine, torch.cat([case.values(case.rank, index) for index in range(case.size)]))
    return (dist.reduce_scatter_tensor(output, whole, case.torch_op(), **more),
            case.check((output, case.reduction(case.rank))))


def splits(case: Case) -> list[list[int]]:
    """Rows from each rank to each other rank."""
    return [[case.rng.choice((0, 1, 2, 5)) for _ in range(case.size)] for _ in range(case.size)]


def all_to_all(case: Case, **more: Any) -> tuple[Any, Check]:
    rows = splits(case)
    outputs = [case.output((rows[rank][case.rank], 3)) for rank in range(case.size)]
    inputs = [case.input(to, (rows[case.rank][to], 3)) for to in range(case.size)]
    expected = [case.values(rank, case.rank, (rows[rank][case.rank], 3)) for rank in range(case.size)]
    return dist.all_to_all(outputs, inputs, **more), case.check(*zip(outputs, expected))


def all_to_all_single(case: Case, **more: Any) -> tuple[Any, Check]:
    even = case.rng.random() < 0.4
    rows = [[2] * case.size] * case.size if even else splits(case)
    expected = concatenated([case.values(rank, case.rank, (rows[rank][case.rank], 3)) for rank in range(case.size)])
    output = case.output(tuple(expected.shape), contiguous=True)
    whole = placed(case.mine,
                   concatenated([case.values(case.rank, to, (rows[case.rank][to], 3)) for to in range(case.size)]))
    sizes = (None, None) if even else ([rows[rank][case.rank] for rank in range(case.size)], rows[case.rank])
    return dist.all_to_all_single(output, whole, *sizes, **more), case.check((output, expected))


def coalesced(case: Case, **more: Any) -> tuple[Any, Check]:
    tensors = [case.input(index) for index in range(3)]
    if case.dtype.is_complex or case.rng.random() < 0.5:
        lists = [[case.output() for _ in tensors] for _ in range(case.size)]
        work = dist.all_gather_coalesced(lists, tensors, **more)
        return (work,
                case.check(*[(lists[rank][i], case.values(rank, i)) for rank in range(case.size) for i in range(3)]))
    return (dist.all_reduce_coalesced(tensors, case.torch_op(), **more),
            case.check(*[(tensors[i], case.reduction(i)) for i in range(3)]))


def managed(case: Case, group: Any, async_op: bool) -> tuple[Any, Check]:
    """Several calls that torch passes on as one call."""
    case.shape = case.shape or (1,)
    if case.dtype.is_complex:
        return coalesced(case, group=group, async_op=async_op)
    tensors = [case.input(index) for index in range(2)]
    with dist._coalescing_manager(group, async_ops=async_op) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, case.torch_op(), group=group)
    return manager if async_op else None, case.check(*[(tensors[i], case.reduction(i)) for i in range(2)])


def functional(case: Case, group: Any, async_op: bool) -> tuple[Any, Check]:
    import torch.distributed._functional_collectives as functions
    case.shape = case.shape or (1,)
    if case.dtype.is_complex:
        return all_gather_into_tensor(case, group=group, async_op=async_op)
    names = {"PRODUCT": "product", "PREMUL_SUM": "sum"}
    if case.op in names:
        case.op = "SUM"
    inputs = [case.input(index).contiguous() for index in range(2)]
    draw = case.rng.randrange(3)
    if draw == 0:
        results = functions.all_reduce_coalesced(inputs, case.op.lower(), group)
        expected = [case.reduction(index) for index in range(2)]
    elif draw == 1:
        results = functions.all_gather_into_tensor_coalesced(inputs, group)
        expected = [concatenated(case.everyone(index)) for index in range(2)]
    else:
        wholes = [torch.cat([case.values(case.rank, 2 * to + index) for to in range(case.size)]) for index in range(2)]
        results = functions.reduce_scatter_tensor_coalesced(wholes, case.op.lower(), [0, 0], group)
        expected = [case.reduction(2 * case.rank + index) for index in range(2)]
    return None, case.check(*[(functions.wait_tensor(result), wanted) for result, wanted in zip(results, expected)])


def messages(case: Case, group: Any, async_op: bool) -> tuple[Any, Check]:
    """A ring of sends, alone or as a batch, and one message more from each rank to the root."""
    right, left = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    if case.size == 1:
        return None, case.check()
    tag = case.rng.randrange(3)
    sent, received = case.input(), case.output()
    if case.rng.random() < 0.5:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, case.peer(right), group, tag),
                                        dist.P2POp(dist.irecv, received, case.peer(left), group, tag)])
    else:
        works = [dist.isend(sent, case.peer(right), group, tag), dist.irecv(received, case.peer(left), group, tag)]
    pairs = [(received, case.values(left))]
    if case.rank == case.root:
        for rank in range(case.size):
            if rank != case.root:
                more = case.output()
                dist.recv(more, case.peer(rank), group, tag + 10)
                pairs.append((more, case.values(rank, 1)))
    else:
        dist.send(case.input(1), case.peer(case.root), group, tag + 10)
    for work in works:
        work.wait()
    return None, case.check(*pairs)


def refused(case: Case, group: Any, async_op: bool) -> tuple[Any, Check]:
    """An undefined reduction: the same error on every rank, and nothing moves."""
    op, name = case.rng.choice(WRONG_OPS)
    case.dtype = case.rng.choice(FLOATS)
    tensor = case.input()
    try:
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group=group)
    except TypeError as error:
        assert name in str(error) and str(case.dtype).split(".")[1] in str(error), error
        return None, case.check((tensor, case.values(case.rank)))
    raise AssertionError(f"{op} of {case.dtype} was not refused")


def barrier(case: Case, **more: Any) -> tuple[Any, Check]:
    return dist.barrier(**more), case.check()


MOVING = (broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single, messages)
KINDS = [all_reduce, all_reduce, reduce, reduce_scatter, reduce_scatter_tensor, *MOVING, coalesced, refused, barrier]
if TORCH >= (2, 1):
    KINDS += [managed, functional]


def finish(rng: random.Random, work: Any, check: Check) -> None:
    if work is not None:
        if rng.random() < 0.3 and hasattr(work, "get_future"):
            work.get_future().wait()
        elif rng.random() < 0.5 and hasattr(work, "get_future"):
            doubled = work.get_future().then(lambda done: 2)
            work.wait()
            assert doubled.wait() == 2
        else:
            work.wait()
        # For accelerators' tensors the streams wait, not the CPU.
        assert collective_model.PLACE is not None or not hasattr(work, "is_completed") or work.is_completed()
    check()


def run_cases(rank: int, first: int, count: int) -> dict[str, int]:
    """The number of cases of each kind with this rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    groups = [(tuple(range(WORLD)), dist.group.WORLD),
              *[(members, dist.new_group(list(members))) for members in SUBSETS]]
    pending: list[tuple[int, Any, Check]] = []
    counted: dict[str, int] = {}
    seed = first
    try:
        for seed in range(first, first + count):
            case = Case(seed, groups)
            if case.rank < 0:
                continue
            counted[case.kind.__name__] = counted.get(case.kind.__name__, 0) + 1
            work, check = case.kind(case, group=case.group, async_op=case.wants_work)
            pending.append((seed, work, check))
            while len(pending) > case.mine.randrange(3):
                seed, work, check = pending.pop(case.mine.randrange(len(pending)))
                finish(case.mine, work, check)
        for seed, work, check in pending:
            finish(random.Random(seed), work, check)
    except Exception as error:
        text = ", ".join(f"{name} {getattr(value, '__name__', value)}"
                         for name, value in vars(Case(seed, groups)).items() if name not in ("rng", "mine", "group"))
        raise AssertionError(f"oracle: seed {seed} ({text}): {type(error).__name__}: {error}") from error
    return counted


def test_random_calls_against_plain_torch() -> None:
    print(f"oracle: seeds {SEED}..{SEED + CASES - 1}")
    results = run_ranks(WORLD, run_cases, SEED, CASES, timeout=60 + CASES * 0.05, default_group=True)
    if CASES >= 1000:
        assert set(results[0]) == {kind.__name__ for kind in KINDS}, "every kind must occur"


@pytest.mark.skipif(not RAW, reason="this torch has no types that it only stores")
def test_types_that_torch_only_stores_are_moved() -> None:
    run_ranks(2, move_raw, default_group=True)


def move_raw(rank: int) -> None:
    for dtype in RAW:
        values = [random_values(f"raw/{k}", (6,), dtype) for k in range(2)]
        tensor = bytes_of(values[rank]).clone().view(dtype)
        dist.broadcast(tensor, 1)
        assert torch.equal(bytes_of(tensor), bytes_of(values[1])), dtype
