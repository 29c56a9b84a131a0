"""all_reduce of sparse COO tensors, against the sum of the dense tensors."""

import pytest
import torch
import torch.distributed as dist

import shardwire
from conftest import TORCH, raises

# Invariants of what all_reduce made are checked by the comparison with the dense sum.
pytestmark = pytest.mark.filterwarnings("ignore:.*parse.*")


def entries(rank, shape, sparse_dims, count, dtype=torch.float32):
    """`count` entries, some at equal indices, some at indices of other ranks."""
    generator = torch.Generator().manual_seed(100 + rank)
    indices = torch.stack([torch.randint(size, (count,), generator=generator) for size in shape[:sparse_dims]])
    values = torch.randint(-4, 5, (count, *shape[sparse_dims:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape)


def check_sum(rank, size, shape, sparse_dims, counts, dtype=torch.float32):
    tensors = [entries(r, shape, sparse_dims, counts[r], dtype) for r in range(size)]
    expected = sum(tensor.to_dense() for tensor in tensors)
    mine = tensors[rank]
    dist.all_reduce(mine)
    assert mine.is_sparse and mine.is_coalesced() and mine.sparse_dim() == sparse_dims
    assert torch.equal(mine.to_dense(), expected), (mine.to_dense(), expected)
    # Only entries of some rank are stored.
    touched = {tuple(index) for r in range(size)
               for index in entries(r, shape, sparse_dims, counts[r])._indices().t().tolist()}
    assert {tuple(index) for index in mine.indices().t().tolist()} == touched


def test_sum(run_ranks):
    def body(rank, size):
        check_sum(rank, size, (5, 4), 2, [3, 6, 1])
        check_sum(rank, size, (6,), 1, [2, 2, 2])
        check_sum(rank, size, (7, 2, 3), 1, [1, 5, 4])  # as the gradient of an embedding
        check_sum(rank, size, (3, 3, 3), 3, [9, 0, 2])  # a rank with nothing
        check_sum(rank, size, (4, 4), 2, [0, 0, 0])
        for dtype in (torch.float64, torch.int64, torch.bfloat16):
            check_sum(rank, size, (4, 5), 1, [3, 4, 5], dtype)

    run_ranks(3, body)


def test_average(run_ranks):
    def body(rank, size):
        tensor = torch.sparse_coo_tensor([[rank, 2]], [4.0, 2.0], (3,))
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert tensor.to_dense().tolist() == [2.0, 2.0, 2.0]

    run_ranks(2, body)


def test_the_sum_is_as_of_dense_tensors(run_ranks):
    """Elements of 16 bits are added in float32 and rounded once. An average of integers is rounded towards zero, and
    one of bools is true only where all are."""
    def body(rank, size):
        cases = [(torch.bfloat16, (256.0, 1.0, 1.0), "SUM"), (torch.float16, (2048.0, 1.0, 1.0), "SUM"),
                 (torch.float16, (60000.0,) * 3, "AVG"), (torch.int64, (2**24 + 1,) * 3, "AVG"),
                 (torch.int64, (-3, -1, -1), "AVG"), (torch.int32, (2, 3, 3), "AVG"),
                 (torch.bool, (True, False, True), "AVG"), (torch.bool, (True,) * 3, "AVG"),
                 (torch.bool, (False, True, False), "SUM")]
        for dtype, values, op in cases:
            dense = torch.tensor([values[rank]], dtype=dtype)
            sparse = dense.to_sparse()
            dist.all_reduce(dense, getattr(dist.ReduceOp, op))
            dist.all_reduce(sparse, getattr(dist.ReduceOp, op))
            assert sparse.dtype == dtype and sparse.to_dense().tolist() == dense.tolist(), (dtype, values, sparse)
        # Entries of one rank at one index are added in the same way.
        repeated = torch.sparse_coo_tensor([[0, 0, 0]], torch.tensor([2048, 1, 1]).half(), (1,))
        dist.all_reduce(repeated)
        assert repeated.to_dense().item() == torch.tensor(2050.0 * size).half().item()

    run_ranks(3, body)


def test_asynchronous(run_ranks):
    """Two operations in flight; the wait for one is by the future."""
    def body(rank, size):
        first = torch.sparse_coo_tensor([[rank]], [1.0 + rank], (4,))
        second = torch.sparse_coo_tensor([[0]], [10.0 * rank], (4,))
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (first, second)]
        assert works[1].get_future().wait()[0].to_dense().tolist() == [10.0, 0.0, 0.0, 0.0]
        works[0].wait()
        assert works[0].is_completed() and first.to_dense().tolist() == [1.0, 2.0, 0.0, 0.0]

    run_ranks(2, body)


def test_inference_tensors(run_ranks):
    """torch changes such tensors in inference mode only, which is a thread's: the thread that computes is another."""
    def body(rank, size):
        with torch.inference_mode():
            tensor = torch.sparse_coo_tensor([[rank]], [1.0 + rank], (2,))
        dist.all_reduce(tensor)
        assert tensor.is_inference() and tensor.to_dense().tolist() == [1.0, 2.0]

    run_ranks(2, body)


def test_disagreement_is_reported_on_all_ranks(run_ranks):
    def body(rank, size):
        error = raises(shardwire.MismatchError,
                       lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4 + rank,))),
                       contains="shape [4]")
        assert "rank 1" in str(error) and "shape [5]" in str(error)
        check_sum(rank, size, (5, 4), 2, [3, 6])  # the group goes on

    run_ranks(2, body)


def test_refusals(run_ranks):
    def body(rank, size):
        sparse = torch.ones(2).to_sparse()
        raises(NotImplementedError, lambda: dist.all_reduce(sparse, op=dist.ReduceOp.MAX), contains="to_dense()")
        raises(NotImplementedError, lambda: dist.broadcast(sparse, 0), contains="sparse" if TORCH < (2, 0) else "parse")
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [2.0, 2.0]

    run_ranks(2, body)


def test_sparse_gradients_of_ddp(run_ranks):
    def body(rank, size):
        torch.manual_seed(3)
        module = torch.nn.Embedding(10, 4, sparse=True)
        plain = torch.nn.Embedding(10, 4)
        plain.load_state_dict(module.state_dict())
        wrapped = torch.nn.parallel.DistributedDataParallel(module)
        rows = [torch.tensor([r, 7, r]) for r in range(size)]
        wrapped(rows[rank]).square().sum().backward()
        (sum(plain(each).square().sum() for each in rows) / size).backward()
        assert module.weight.grad.is_sparse
        assert torch.allclose(module.weight.grad.to_dense(), plain.weight.grad)

    run_ranks(2, body)
