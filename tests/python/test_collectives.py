"""Every collective through torch.distributed against the results of plain torch."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import TORCH, raises

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ALL_DTYPES = FLOATS + INTEGERS + [torch.bool, torch.complex64, torch.complex128]
SIZES = [1, 2, 3, 4]


def values(rank, shape, dtype):
    """Small whole numbers: sums are exact in every dtype."""
    count = max(1, torch.Size(shape).numel())
    base = (torch.arange(count) * 3 + rank * 5) % 7
    return base[: torch.Size(shape).numel()].reshape(shape).to(dtype)


def run_all_reduce(rank, size, dtype, op, combine):
    for shape in [(), (0,), (7,), (3, 5), (1000, 3)]:
        tensor = values(rank, shape, dtype)
        dist.all_reduce(tensor, op=op)
        expected = combine(torch.stack([values(r, shape, dtype) for r in range(size)])).to(dtype)
        assert torch.equal(tensor, expected), (shape, tensor, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_all_reduce_sum(run_ranks, size, dtype):
    run_ranks(size, run_all_reduce, dtype, dist.ReduceOp.SUM, lambda stacked: stacked.sum(0))


@pytest.mark.parametrize("name, combine", [
    ("PRODUCT", lambda stacked: stacked.double().prod(0)),
    ("MIN", lambda stacked: stacked.amin(0)),
    ("MAX", lambda stacked: stacked.amax(0)),
    ("AVG", lambda stacked: stacked.double().mean(0)),
])
def test_all_reduce_other_operations(run_ranks, name, combine):
    run_ranks(2, run_all_reduce, torch.float32, getattr(dist.ReduceOp, name), combine)
    run_ranks(4, run_all_reduce, torch.float64, getattr(dist.ReduceOp, name), combine)


@pytest.mark.parametrize("name, combine",
                         [("BAND", lambda a: a[0] & a[1] & a[2]), ("BOR", lambda a: a[0] | a[1] | a[2]),
                          ("BXOR", lambda a: a[0] ^ a[1] ^ a[2])])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_all_reduce_bits(run_ranks, name, combine, dtype):
    run_ranks(3, run_all_reduce, dtype, getattr(dist.ReduceOp, name), combine)


def run_complex_sum(rank, size):
    tensor = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.tensor([1 + 2j, 3 - 1j]) * 6)


def test_all_reduce_complex(run_ranks):
    run_ranks(3, run_complex_sum)


def run_premul(rank, size):
    op = dist._make_nccl_premul_sum(0.5)
    tensor = torch.full((5,), float(rank + 1))
    dist.all_reduce(tensor, op=op)
    assert torch.equal(tensor, torch.full((5,), 3.0)), tensor
    tensor = torch.full((5,), float(rank + 1))
    dist.reduce(tensor, dst=1, op=op)
    assert torch.equal(tensor, torch.full((5,), 3.0 if rank == 1 else float(rank + 1))), tensor
    raises(TypeError, lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=op), contains="PREMUL_SUM")


def test_premultiplied_sum(run_ranks):
    run_ranks(3, run_premul)


def run_refused_premul(rank, size):
    op, tensor = dist._make_nccl_premul_sum(0.5), torch.ones(5)
    shardwire.resolve_backend(None).abort()
    for call in (lambda: dist.all_reduce(tensor, op=op), lambda: dist.reduce(tensor, dst=0, op=op),
                 lambda: dist.all_reduce_coalesced([tensor], op=op)):
        raises(shardwire.AbortedError, call)
        assert tensor.tolist() == [1.0] * 5
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:torch.distributed.*will be deprecated")
def test_a_refused_premultiplied_sum_leaves_the_tensor_as_it_is(run_ranks):
    run_ranks(1, run_refused_premul)


def sum_subnormals(rank, size):
    torch.set_flush_denormal(True)  # of this thread; the thread of the group's progress keeps denormals
    seen = []
    for number in range(60):
        values = torch.full((16,), 71362, dtype=torch.int32).view(torch.float32)
        late = number % 3 == 1
        if late and rank == 1:
            time.sleep(0.003)
        work = dist.all_reduce(values, async_op=True)
        if late and rank == 0:
            time.sleep(0.006)  # its progress thread adds
        work.wait()
        seen.append(values.view(torch.int32).tolist())
    torch.set_flush_denormal(False)
    assert seen == [[2 * 71362] * 16] * 60


def test_denormals_whatever_the_threads_flush(run_ranks):
    run_ranks(2, sum_subnormals)


def run_broadcast(rank, size, dtype):
    for root in range(size):
        for shape in [(), (0, 3), (4, 5)]:
            tensor = values(root, shape, dtype) if rank == root else values(rank + 9, shape, dtype)
            dist.broadcast(tensor, src=root)
            assert torch.equal(tensor, values(root, shape, dtype)), (root, shape)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_broadcast(run_ranks, dtype):
    run_ranks(3, run_broadcast, dtype)


@pytest.mark.skipif(TORCH < (2, 3), reason="this torch has no float8, nor wide unsigned integers")
def test_broadcast_newer_dtypes(run_ranks):
    for name in ("uint16", "uint32", "uint64"):
        run_ranks(2, run_broadcast, getattr(torch, name))

    def body(rank, size):
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
            tensor = torch.full((6,), 0.5 * (rank + 1)).to(getattr(torch, name))
            dist.broadcast(tensor, src=1)
            assert tensor.float().tolist() == [1.0] * 6

    run_ranks(2, body)


def run_strided(rank, size):
    """Non-contiguous tensors without a copy before, as inputs and outputs."""
    tensor = values(rank, (6, 4), torch.float32).t()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, sum(values(r, (6, 4), torch.float32).t() for r in range(size)))
    wide = torch.zeros(8, 10)
    window = wide[2:5, 1:9:2]
    window.copy_(values(rank, (3, 4), torch.float32))
    dist.broadcast(window, src=size - 1)
    assert torch.equal(window, values(size - 1, (3, 4), torch.float32))
    assert wide.sum() == window.sum()  # nothing beside the window was touched


def run_with_a_small_heap(rank, size, store):
    if rank == 0:
        os.environ["SHARDWIRE_HEAP_BYTES"] = "4M"
    dist.init_process_group("shardwire", init_method=f"file://{store}", rank=rank, world_size=size,
                            timeout=timedelta(seconds=20))
    # 8 MB, in ordinary memory, and all_reduce needs a contiguous copy
    tensor = torch.full((1000, 2001), float(rank + 1))[:, :2000]
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((1000, 2000), 3.0))
    gathered = [torch.empty(1000, 2001)[:, :2000] for _ in range(size)]
    dist.all_gather(gathered, tensor)
    assert all(torch.equal(each, tensor) for each in gathered)
    dist.barrier()


def test_copies_of_tensors_need_no_room_in_the_heap(run_ranks, tmp_path):
    run_ranks(2, run_with_a_small_heap, str(tmp_path / "store"), init=False)


def test_strided_tensors(run_ranks):
    run_ranks(2, run_strided)
    run_ranks(3, run_strided)


def run_reduce(rank, size):
    for root in range(size):
        mine = values(rank, (9,), torch.float32)
        tensor = mine.clone()
        dist.reduce(tensor, dst=root)
        expected = sum(values(r, (9,), torch.float32) for r in range(size)) if rank == root else mine
        assert torch.equal(tensor, expected), (root, tensor)


@pytest.mark.parametrize("size", SIZES)
def test_reduce(run_ranks, size):
    run_ranks(size, run_reduce)


def run_gathers(rank, size, dtype):
    shape = (2, 3)
    mine = values(rank, shape, dtype)
    expected = [values(r, shape, dtype) for r in range(size)]
    outputs = [torch.zeros(shape, dtype=dtype) for _ in range(size)]
    dist.all_gather(outputs, mine)
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected))
    whole = torch.zeros((2 * size, 3), dtype=dtype)
    gather_base = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    gather_base(whole, mine)
    assert torch.equal(whole, torch.cat(expected))
    stacked = torch.zeros((size, 2, 3), dtype=dtype)
    gather_base(stacked, mine.t().contiguous().t())
    assert torch.equal(stacked, torch.stack(expected))
    uneven = [torch.zeros((r, 3), dtype=dtype) for r in range(size)]
    dist.all_gather(uneven, values(rank, (rank, 3), dtype))
    assert all(torch.equal(uneven[r], values(r, (r, 3), dtype)) for r in range(size))
    for root in range(size):
        outputs = [torch.zeros(shape, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(mine, outputs, dst=root)
        assert outputs is None or all(torch.equal(a, b) for a, b in zip(outputs, expected))
        received = torch.zeros(shape, dtype=dtype)
        dist.scatter(received, expected if rank == root else None, src=root)
        assert torch.equal(received, mine)


@pytest.mark.parametrize("size", SIZES)
def test_gather_and_scatter(run_ranks, size):
    run_ranks(size, run_gathers, torch.float32)
    run_ranks(size, run_gathers, torch.bool)


def run_reduce_scatter(rank, size):
    def part(r, k, rows):
        return values(r + 2 * k, (rows, 3), torch.float32)

    output = torch.zeros(4, 3)
    dist.reduce_scatter(output, [part(rank, k, 4) for k in range(size)])
    assert torch.equal(output, sum(part(r, rank, 4) for r in range(size)))
    output = torch.zeros(rank + 1, 3)
    dist.reduce_scatter(output, [part(rank, k, k + 1) for k in range(size)], op=dist.ReduceOp.MAX)
    assert torch.equal(output, torch.stack([part(r, rank, rank + 1) for r in range(size)]).amax(0))
    scatter_base = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    output = torch.zeros(4, 3)
    scatter_base(output, torch.cat([part(rank, k, 4) for k in range(size)]), op=dist.ReduceOp.AVG)
    assert torch.allclose(output, sum(part(r, rank, 4) for r in range(size)) / size)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(run_ranks, size):
    run_ranks(size, run_reduce_scatter)


def run_inference(rank, size):
    """Outside of inference mode, where torch itself refuses to change such tensors."""
    with torch.inference_mode():
        gathered, mine = [torch.zeros(r + 1) for r in range(size)], torch.ones(rank + 1)
        output, pieces = torch.zeros(rank + 1), [torch.ones(r + 1) for r in range(size)]
        total, scaled = torch.ones(3), torch.ones(3)
    dist.all_gather(gathered, mine)
    dist.reduce_scatter(output, pieces)
    dist.all_reduce(total)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(2.0))
    assert torch.equal(torch.cat(gathered), torch.cat(pieces)) and torch.equal(output, size * mine)
    assert total.tolist() == [size] * 3 and scaled.tolist() == [2 * size] * 3


def test_inference_tensors(run_ranks):
    run_ranks(2, run_inference)


def run_all_to_all(rank, size):
    inputs = [torch.full((rank + k, 2), float(10 * rank + k)) for k in range(size)]
    outputs = [torch.zeros(k + rank, 2) for k in range(size)]
    dist.all_to_all(outputs, inputs)
    assert all(torch.equal(o, torch.full((k + rank, 2), float(10 * k + rank))) for k, o in enumerate(outputs))
    result = torch.zeros(2 * size)
    dist.all_to_all_single(result, torch.arange(2.0 * size) + 100 * rank)
    assert result.tolist() == [100.0 * k + 2 * rank + i for k in range(size) for i in range(2)]
    splits_in, splits_out = [rank + k for k in range(size)], [k + rank for k in range(size)]
    result = torch.zeros(sum(splits_out), 2)
    dist.all_to_all_single(result, torch.cat(inputs), splits_out, splits_in)
    assert torch.equal(result, torch.cat([torch.full((k + rank, 2), float(10 * k + rank)) for k in range(size)]))


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(run_ranks, size):
    run_ranks(size, run_all_to_all)


def run_objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (100 * rank)})
    assert [item["rank"] for item in gathered] == list(range(size))
    objects = ["a", 2, None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["a", 2, None]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {k}" for k in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]


def test_object_collectives(run_ranks):
    run_ranks(3, run_objects)


def run_point_to_point(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(1000)
    request = dist.isend(torch.full((1000,), float(rank)), right, tag=1)
    dist.recv(received, left, tag=1)
    request.wait()
    assert received[0] == left and received[-1] == left
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            seen.add((dist.recv(received[:3], tag=5), int(received[0])))
        assert seen == {(k, k) for k in range(1, size)}
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=5)
    operations = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), right),
                  dist.P2POp(dist.irecv, received[:4], left)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    assert received[:4].tolist() == [float(left)] * 4


def test_point_to_point(run_ranks):
    run_ranks(2, run_point_to_point)
    run_ranks(3, run_point_to_point)


def run_coalesced(rank, size):
    tensors = [values(rank, (5,), torch.float32), values(rank, (2, 2), torch.float32)]
    dist.all_reduce_coalesced(tensors)
    assert torch.equal(tensors[0], sum(values(r, (5,), torch.float32) for r in range(size)))
    assert torch.equal(tensors[1], sum(values(r, (2, 2), torch.float32) for r in range(size)))
    lists = [[torch.zeros(5), torch.zeros(2, 2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [values(rank, (5,), torch.float32), values(rank, (2, 2), torch.float32)])
    assert all(torch.equal(lists[r][1], values(r, (2, 2), torch.float32)) for r in range(size))


@pytest.mark.filterwarnings("ignore:.*coalesced.*")
def test_coalesced_lists(run_ranks):
    run_ranks(2, run_coalesced)


def run_functional(rank, size):
    import torch.distributed._functional_collectives as functional
    group = dist.group.WORLD
    mine = values(rank, (4, 2), torch.float32)
    everyone = [values(r, (4, 2), torch.float32) for r in range(size)]
    assert torch.equal(functional.all_reduce(mine, "sum", group) + 0, sum(everyone))
    assert torch.equal(functional.all_gather_tensor(mine, 0, group) + 0, torch.cat(everyone))
    assert torch.equal(functional.reduce_scatter_tensor(mine, "max", 0, group) + 0,
                       torch.stack([t.chunk(size)[rank] for t in everyone]).amax(0))
    gathered = functional.all_gather_into_tensor_coalesced([mine, mine * 2], group)
    assert torch.equal(gathered[1] + 0, torch.cat(everyone) * 2)
    scattered = functional.reduce_scatter_tensor_coalesced([mine, mine * 2], "sum", [0, 0], group)
    assert torch.equal(scattered[1] + 0, sum(everyone).chunk(size)[rank] * 2)


@pytest.mark.skipif(TORCH < (2, 1), reason="this torch has no functional collectives")
def test_functional_collectives(run_ranks):
    run_ranks(2, run_functional)


def run_works(rank, size):
    tensor = torch.full((3,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    work.wait()
    assert work.is_completed()
    total = size * (size - 1) / 2
    assert future.wait()[0].tolist() == [total] * 3 and doubled.wait().tolist() == [2 * total] * 3
    backend = dist.distributed_c10d._get_default_group()
    backend = backend._get_backend(torch.device("cpu")) if hasattr(backend, "_get_backend") else backend
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 1
    if hasattr(work, "get_future_result"):
        assert work.get_future_result().wait() is not None


def test_works_and_futures(run_ranks):
    run_ranks(2, run_works)


def run_chained_futures(rank, size):
    """Operations that end in one poll, on a thread that nobody waits on; each callback waits for the next future."""
    tensors = [torch.full((3,), float(rank)) for _ in range(4)]
    if rank == 0:
        futures = [dist.all_reduce(tensor, async_op=True).get_future() for tensor in tensors]
        started = []

        def waiter(number):
            def callback(future):
                started.append(number)
                return futures[number + 1].wait()[0] if number + 1 < len(futures) else future.value()[0]
            return callback
        chained = [future.then(waiter(number)) for number, future in enumerate(futures)]
        dist.send(torch.ones(1), 1)  # only now rank 1 comes
        time.sleep(0.2)
        assert [future.wait().tolist() for future in chained] == [[1.0] * 3] * 4
        assert sorted(started) == [0, 1, 2, 3]
    else:
        dist.recv(torch.zeros(1), 0)
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
    dist.barrier()


def test_a_callback_waits_for_the_future_of_an_operation_that_ended_with_its_own(run_ranks):
    run_ranks(2, run_chained_futures)


def run_ddp(rank, size):
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    wrapped = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*[type(m)(4, 8) if i == 0 else m for i, m in enumerate(plain)]))
    wrapped.module.load_state_dict(plain.state_dict())
    batch = torch.randn(4 * size, 4, generator=torch.Generator().manual_seed(2))
    plain(batch).square().mean().backward()
    expected = [p.grad.clone() for p in plain.parameters()]
    for parameter in plain.parameters():
        parameter.grad = None
    wrapped(batch.chunk(size)[rank]).square().mean().backward()
    for parameter, wanted in zip(wrapped.parameters(), expected):
        assert torch.allclose(parameter.grad, wanted, atol=1e-6)


def test_ddp_gradients(run_ranks):
    run_ranks(2, run_ddp)
    run_ranks(3, run_ddp)


def run_refusals(rank, size):
    """Wrong calls raise here, before anything moves, and the group goes on."""
    ones = torch.ones(2)
    unsupported = (NotImplementedError,)
    raises(unsupported, lambda: dist.all_reduce(ones.to_sparse(), op=dist.ReduceOp.MAX), contains="to_dense()")
    # Newer torch's dispatcher refuses quantised tensors first, with the same class.
    raises(unsupported, lambda: dist.broadcast(torch.quantize_per_tensor(ones, 1.0, 0, torch.quint8), 0))
    raises(TypeError, lambda: dist.all_reduce(torch.ones(2).half(), op=dist.ReduceOp.BXOR), contains="bxor")
    raises(ValueError, lambda: dist.all_to_all_single(torch.zeros(size + 1), torch.zeros(size + 1)), contains="divide")
    raises(ValueError, lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size), [1] * size, [2] * size),
           contains="split sizes")
    raises(ValueError, lambda: dist.broadcast(torch.ones(1).expand(2**62 + 1), 0), contains="more bytes than any")
    raises(ValueError, lambda: dist.all_reduce(torch.ones(1).expand(4)),
           contains="all_reduce: a tensor of shape [4] and strides [0] has elements that share memory")
    raises(ValueError, lambda: dist.all_gather([torch.ones(1).expand(4)] * size, torch.ones(4)), contains="memory")
    # The sum of these wraps to the number of rows.
    wraps = [2**63 - 1, 2**63 - 1, size + 2] + [0] * (size - 3)
    raises(ValueError, lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size), wraps, wraps),
           contains="split sizes")
    gather_base = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    raises(ValueError, lambda: gather_base(torch.zeros(7), torch.zeros(3)), contains="pieces")
    raises(TypeError, lambda: gather_base(torch.zeros(3 * size), torch.zeros(3).long()), contains="dtype")
    raises(ValueError, lambda: dist.all_gather([torch.zeros(4), torch.zeros(4)], torch.zeros(3)), contains="output[0]")
    raises(ValueError, lambda: dist.all_gather([torch.zeros(4), torch.zeros(5)], torch.zeros(3)),
           contains=f"output[{rank}]")
    # torch's dispatcher resolves conjugate views before the call of a backend; a compiled op receives conjugate views.
    whole = [{"offset": [0], "shape": [2]}]
    op = shardwire.compile_op(None, (2,), torch.complex64, whole, whole)
    raises(ValueError, lambda: op([torch.zeros(2, dtype=torch.complex64).conj()],
                                  [torch.zeros(2, dtype=torch.complex64)]), contains="resolve_conj")
    raises(unsupported, lambda: op([torch.quantize_per_tensor(ones, 1.0, 0, torch.quint8)],
                                   [torch.zeros(2, dtype=torch.complex64)]), contains="quantised")
    raises(ValueError, lambda: op([torch.zeros(2, dtype=torch.complex64, device="meta")],
                                  [torch.zeros(2, dtype=torch.complex64)]), contains="meta")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


@pytest.mark.filterwarnings("ignore")
def test_wrong_calls_are_refused(run_ranks):
    run_ranks(2, run_refusals)


def more_than_2_31(rank, size, heap):
    count = 2**31 + 100
    tensor = shardwire.empty(count, dtype=torch.int8) if heap else torch.empty(count, dtype=torch.int8)
    tensor.fill_(rank + 1)
    tensor[-1] = 10 * (rank + 1)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    assert tensor[0] == size and tensor[2**31] == size and tensor[-1] == 10 * size
    tensor[2**31 + 7] = 100 + rank
    dist.broadcast(tensor, 1)
    assert tensor[2**31 + 7] == 101 and tensor[2**31 + 8] == size
    # Uneven splits beyond 2^31: rank 0 gives all but 50 elements to rank 1.
    splits = [50, count - 50] if rank == 0 else [0, 10]
    received = torch.empty(50 if rank == 0 else count - 40, dtype=torch.int8)
    dist.all_to_all_single(received, tensor if rank == 0 else tensor[:10].clone(),
                           [50, 0] if rank == 0 else [count - 50, 10], splits)
    assert received[-1] == size if rank == 1 else received[-1] == tensor[49]


def free_gib():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20


@pytest.mark.any_torch
@pytest.mark.skipif(free_gib() < 14, reason="less than 14 GiB of free memory")
@pytest.mark.parametrize("heap", [False, True])
def test_more_than_2_31_elements(run_ranks, heap):
    # the kernel is slow to give memory never touched since the boot
    run_ranks(2, more_than_2_31, heap, timeout=180, group_timeout=90)
