"""The memory of the tensors of a call: freed or shrunk storages, meaningless strides, and autograd's version counters.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

import shardwire
import shardwire.distributed as swd
from conftest import raises
from shardwire import symm
from torch._subclasses.fake_tensor import FakeTensorMode
from shardwire.plain.tensor_bytes import untyped
from shardwire.distributed.distribution import Slab

N = 1 << 12  # elements: more than fit one frame


def without_memory(*shape):
    """A tensor with a freed storage, as FSDP frees the storages of unused parameters."""
    tensor = torch.ones(shape)
    untyped(tensor).resize_(0)
    return tensor


def with_less_memory(*shape):
    tensor = torch.ones(shape)
    untyped(tensor).resize_(8)
    return tensor


def whole_op():
    """Moves N elements of rank 0 to rank 1, into a tensor of any shape."""
    rank, whole = dist.get_rank(), [{"offset": [0, 0], "shape": [1, N]}]
    return shardwire.compile_op(None, shape=(1, N), dtype=torch.float32, inputs=whole if rank == 0 else [],
                                outputs=whole if rank == 1 else [])


# ---- missing memory

def fine():
    return torch.ones(4)


CALLS = {
    "all_reduce": lambda bad: dist.all_reduce(bad(4)),
    "all_reduce, one in a list": lambda bad: dist.all_reduce_coalesced([fine(), bad(4)]),
    "broadcast": lambda bad: dist.broadcast(bad(4), 0),
    "reduce": lambda bad: dist.reduce(bad(4), 0),
    "all_gather, input": lambda bad: dist.all_gather([fine(), fine()], bad(4)),
    "all_gather, output": lambda bad: dist.all_gather([fine(), bad(4)], fine()),
    "all_gather, outputs of several sizes": lambda bad: dist.all_gather(
        [torch.ones(4), torch.ones(5)], bad(4 + dist.get_rank())),
    "all_gather_into_tensor": lambda bad: dist.all_gather_into_tensor(bad(8), fine()),
    "gather": lambda bad: dist.gather(bad(4), [fine(), fine()] if dist.get_rank() == 0 else None),
    "scatter": lambda bad: dist.scatter(bad(4), [fine(), fine()] if dist.get_rank() == 0 else None),
    "reduce_scatter": lambda bad: dist.reduce_scatter(fine(), [bad(4), fine()]),
    "reduce_scatter, several sizes": lambda bad: dist.reduce_scatter(
        torch.ones(4 + dist.get_rank()), [bad(4), torch.ones(5)]),
    "reduce_scatter_tensor": lambda bad: dist.reduce_scatter_tensor(fine(), bad(8)),
    "reduce_scatter_tensor, scaled first": lambda bad: dist.reduce_scatter_tensor(fine(), bad(8), op=scaled_sum()),
    "all_to_all_single": lambda bad: dist.all_to_all_single(fine(), bad(4)),
    "all_to_all": lambda bad: dist.all_to_all([fine(), fine()], [bad(4), fine()]),
    "send": lambda bad: dist.send(bad(4), 1 - dist.get_rank()),
    "recv": lambda bad: dist.recv(bad(4), 1 - dist.get_rank()),
    "symm.put": lambda bad: symm.put(symmetric(), bad(4), dist.get_rank()),
    "symm.get": lambda bad: symm.get(bad(4), symmetric(), dist.get_rank()),
    "Queue.put": lambda bad: run_refused.queue.put(bad(4)),
    "Queue.put, an object": lambda bad: run_refused.queue.put({"weights": bad(4)}),
    "Queue.get": lambda bad: run_refused.queue.get(out=bad(4)),
    "fft": lambda bad: swd.fft.fft(bad(4, 4), distribution=Slab.X),
    "commit": lambda bad: published(bad(4)),
    "serialize": lambda bad: shardwire.serialize({"weights": [bad(4)]}),
    "serialize, two of one storage": lambda bad: (lambda tensor: shardwire.serialize([tensor, tensor.detach()]))(
        bad(4)),
}


def scaled_sum():
    return (dist._make_nccl_premul_sum(0.5) if hasattr(dist, "_make_nccl_premul_sum")
            else torch._C._distributed_c10d._make_nccl_premul_sum(0.5))


def published(tensor):
    state = {"weights": torch.ones(4)}
    publication = shardwire.publish(dist.HashStore(), "weights", state, None)
    state["weights"] = tensor
    try:
        publication.commit(1)
    finally:
        publication.close()


def symmetric():
    return run_refused.part


def run_refused(rank, size):
    swd.initialize()
    run_refused.part, run_refused.queue = symm.zeros(4), shardwire.Queue(None, 0)
    for _ in range(4):
        run_refused.queue.put(fine())  # entries for both ranks
    warnings.simplefilter("ignore")  # all_reduce_coalesced is deprecated
    for bad, why in ((without_memory, "storage was freed"), (with_less_memory, "8")):
        for name, call in CALLS.items():
            try:
                call(bad)
            except ValueError as error:
                assert why in str(error) and "storage" in str(error), (name, str(error))
            else:
                raise AssertionError(f"{name}: no error")
        op = whole_op()
        given = lambda tensor: ([tensor], []) if rank == 0 else ([], [tensor])  # noqa: E731
        raises(ValueError, lambda: op(*given(bad(1, N))), contains=why)
        raises(ValueError, lambda: op.bind(*given(bad(1, N))), contains=why)
        tensor = torch.full((1, N), rank + 1.0)
        bound = op.bind(*given(tensor))
        bound().wait()
        assert rank == 0 or tensor[0, N - 1].item() == 1.0
        untyped(tensor).resize_(0)
        raises(ValueError, bound, contains="bind the tensors again")
        untyped(tensor).resize_(4 * N)
        if tensor.data_ptr() != 0:
            op(*given(tensor)).wait()
        total = torch.ones(1)
        dist.all_reduce(total)  # nothing was sent before: the group goes on
        assert total.item() == size


def test_tensors_without_their_memory_are_refused_before_anything_is_sent(run_ranks):
    run_ranks(2, run_refused)


def run_never_there(rank, size):
    """A FakeTensor and an efficient zero tensor have a storage with a size and without memory."""
    run_refused.queue = shardwire.Queue(None, 0)
    with FakeTensorMode():
        fake = torch.ones(1, N)
    op = whole_op()
    for tensor in (fake, torch._efficientzerotensor((1, N))):
        given = ([tensor], []) if rank == 0 else ([], [tensor])
        raises(ValueError, lambda: op(*given), contains="has no memory to move")
        raises(ValueError, lambda: op.bind(*given), contains="has no memory to move")
    zero = torch._efficientzerotensor(4)
    # Which of torch's own functions pass a tensor with memory instead depends on torch's version.
    raises(ValueError, lambda: shardwire.resolve_backend(None).allgather([[fine(), fine()]], [zero]),
           contains="input has no memory to move")
    for name in ("Queue.put", "serialize"):
        raises(ValueError, lambda: CALLS[name](lambda *shape: zero), contains="no memory")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size


def test_tensors_that_never_had_memory_are_refused(run_ranks):
    run_ranks(2, run_never_there)


def run_empty(rank, size):
    """Tensors without elements need no memory."""
    for tensor in (torch.empty(0), without_memory(4)[:0], torch.empty(3, 0, 5)):
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)


def test_tensors_without_elements_need_none(run_ranks):
    run_ranks(2, run_empty)


# ---- strides

def run_stride(rank, size):
    """One element along a dimension: the stride may be any number, also one that does not fit in bytes."""
    for stride in (1 << 61, (1 << 63) - 1, 1000000, 0):
        def odd(value):
            return torch.full((N,), value).as_strided((1, N), (stride, 1))

        tensor = odd(7.0) if rank == 0 else torch.zeros(1, N)
        op = whole_op()
        op(*(([tensor], []) if rank == 0 else ([], [tensor]))).wait()
        assert tensor[0, N - 1].item() == 7.0
        total = odd(rank + 1.0)
        dist.all_reduce(total)
        gathered = [odd(0.0) for _ in range(size)]
        dist.all_gather(gathered, total)
        assert total[0, 5].item() == 3.0 and gathered[1][0, N - 1].item() == 3.0
        # Every other element: the tensor is not contiguous for another reason.
        half = torch.full((2 * N,), rank + 1.0).as_strided((N, 1), (2, stride))
        dist.all_reduce(half)
        assert half[N - 1, 0].item() == 3.0
        pieces = torch.zeros(2, N).as_strided((2, 1, N), (N, stride, 1))
        dist.all_gather_into_tensor(pieces, half.reshape(1, N))
        assert pieces[1, 0, N - 1].item() == 3.0
        empty = torch.ones(8).as_strided((0, 5), (stride, stride))
        dist.all_reduce(empty)


def test_a_stride_that_means_nothing_is_not_looked_at(run_ranks):
    run_ranks(2, run_stride)


def lone_elements(rank, size):
    queue = shardwire.Queue(location=0)
    for tensor in (torch.arange(10.0)[::2][3:4], torch.arange(10.0)[::2][:0],
                   torch.zeros(4, 2, dtype=torch.bool)[:1, 1], torch.complex(torch.ones(4), torch.ones(4))[::2][1:]):
        assert tensor.is_contiguous() and tensor.stride() != (1,)
        assert torch.equal(shardwire.deserialize(shardwire.serialize(tensor)), tensor)
        queue.put_tensor(tensor)
        assert torch.equal(queue.get_tensor(), tensor)
        with shardwire.publish(dist.HashStore(), "lone", {"w": tensor}) as publication:
            publication.commit(1)
        copied = tensor.clone()
        shardwire.cuda_copy(tensor, copied)
        shardwire.cuda_copy(copied, tensor)


def test_a_lone_element_of_any_stride_becomes_bytes(run_ranks):
    run_ranks(1, lone_elements)


# ---- autograd is notified of writes

def is_noticed(write):
    """Whether a backward that needs the argument of `write` reports the overwritten tensor."""
    weight = torch.ones(4, requires_grad=True)
    saved = weight * 2
    result = (saved * saved).sum()
    write(saved.detach())
    try:
        result.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
        return True
    return False


def run_versions(rank, size):
    other = 1 - rank
    four = [{"offset": [0], "shape": [4]}]
    op = shardwire.compile_op(None, shape=(4,), dtype=torch.float32, inputs=four if rank == 0 else [], outputs=four)
    inputs = [torch.ones(4)] if rank == 0 else []
    part = symm.zeros(4)

    def exchange(saved):
        request = dist.isend(torch.ones(4), other)
        dist.recv(saved, other)
        request.wait()

    written = {
        "all_reduce": dist.all_reduce,
        "all_reduce, as an operation": lambda saved: dist.all_reduce(saved, async_op=True).wait(),
        "all_gather": lambda saved: dist.all_gather([saved, torch.ones(4)], torch.ones(4)),
        "all_gather_into_tensor": lambda saved: dist.all_gather_into_tensor(saved, torch.ones(2)),
        "reduce_scatter": lambda saved: dist.reduce_scatter(saved, [torch.ones(4)] * 2),
        "all_to_all_single": lambda saved: dist.all_to_all_single(saved, torch.ones(4)),
        "scatter": lambda saved: dist.scatter(saved, [torch.ones(4)] * 2 if rank == 0 else None),
        "recv": exchange,
        "a compiled op": lambda saved: op(inputs, [saved]).wait(),
        "a bound op": lambda saved: op.bind(inputs, [saved])().wait(),
        "symm.get": lambda saved: symm.get(saved, part, other),
        "sync": lambda saved: shardwire.sync({"w": torch.ones(4)}, {"w": saved}).run().wait(),
    }
    for name, write in written.items():
        assert is_noticed(write), name
    only_read = {
        "send": lambda saved: dist.isend(saved, other).wait() or dist.recv(torch.zeros(4), other),
        "all_gather": lambda saved: dist.all_gather([torch.ones(4), torch.ones(4)], saved),
        "a refused call": lambda saved: raises(ValueError, lambda: dist.all_gather_into_tensor(saved, torch.ones(3))),
    }
    for name, read in only_read.items():
        assert not is_noticed(read), name
    # The root of a broadcast, and every rank but the root of a reduce, keep the counter.
    assert is_noticed(lambda saved: dist.broadcast(saved, 0)) == (rank != 0)
    assert is_noticed(lambda saved: dist.reduce(saved, 0)) == (rank == 0)
    with torch.inference_mode():
        uncounted = torch.ones(4)  # has no counter
        dist.all_reduce(uncounted)
    dist.all_reduce(uncounted)
    op(inputs, [uncounted]).wait()
    assert uncounted.tolist() == [1.0] * 4
    parameter = torch.nn.Parameter(torch.ones(4))  # a leaf of autograd
    dist.all_reduce(parameter.data)
    assert parameter.tolist() == [2.0] * 4


def test_a_backward_that_needs_what_was_overwritten_raises(run_ranks):
    run_ranks(2, run_versions)
