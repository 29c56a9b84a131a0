"""shardwire.distributed by nvmath 1.0's names: process groups, conversions of distributions, options, operands."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import group, run_ranks

import shardwire.distributed as swd
from shardwire.distributed.distribution import (BindDistributionError, BlockCyclic, BlockNonCyclic, Box,
                                                ConvertDistributionError, Distribution, ProcessGrid, Slab)
from shardwire.distributed.process_group import ReductionOp


class OwnGroup(swd.ProcessGroup):
    """A class of the user's own, over a group of gloo."""

    def __init__(self, gloo):
        self.gloo = swd.TorchProcessGroup(device_id="cpu", torch_process_group=gloo)

    @property
    def rank(self):
        return self.gloo.rank

    @property
    def nranks(self):
        return self.gloo.nranks

    def broadcast_buffer(self, array, *, root=0):
        self.gloo.broadcast_buffer(array, root=root)

    def allreduce_buffer(self, array, *, op):
        raise AssertionError("the meeting takes a broadcast alone")

    allreduce_object = allreduce_buffer


class CommOfTorch:
    """The calls of mpi4py that MPIProcessGroup makes, over a group of torch."""

    def Get_rank(self):
        return dist.get_rank()

    def Get_size(self):
        return dist.get_world_size()

    def Bcast(self, array, root):
        dist.broadcast(torch.from_numpy(array), root)

    def bcast(self, sent, root):
        box = [sent]
        dist.broadcast_object_list(box, root)
        return box[0]

    def allreduce(self, obj, op):
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, obj)
        result = gathered[0]
        for each in gathered[1:]:
            result = op(result, each)
        return result


def slabs_swapped(rank):
    mine = torch.full(Slab.X.shape(rank, (4, 2)), float(rank))
    return swd.redistribute(mine, Slab.X, Slab.Y).tolist() == [[0.0], [0.0], [1.0], [1.0]]


def groups_body(rank, _):
    wrapped = swd.TorchProcessGroup(device_id="cpu", logger=logging.getLogger("groups"))
    assert (wrapped.rank, wrapped.nranks, wrapped.device_id) == (rank, 2, "cpu")
    array = np.full((2, 2), rank)
    wrapped.broadcast_buffer(array, root=1)
    assert array.tolist() == [[1, 1], [1, 1]]
    array = np.array([rank, 5.0])
    for op, expected in ((ReductionOp.SUM, [1, 10]), (ReductionOp.MAX, [1, 10]), (ReductionOp.MIN, [1, 10])):
        wrapped.allreduce_buffer(array, op=op)
        assert array.tolist() == expected
    # Old torches have no default device
    with torch.device("meta") if hasattr(torch.device, "__enter__") else contextlib.nullcontext():
        assert wrapped.allreduce_object([rank], op=lambda a, b: a + b) == [0, 1]
    assert wrapped.allreduce_object("ab"[rank] * (1 + 3000 * rank), op=lambda a, b: a + b) == "a" + "b" * 3001
    assert wrapped.allreduce_obj_buffer_size > 3000
    wrapped.allreduce_obj_buffer_size = 128
    with pytest.raises(ValueError, match="at least 128"):
        wrapped.allreduce_obj_buffer_size = 5
    with pytest.raises(ValueError, match="device_id"):
        swd.TorchProcessGroup(device_id="gpu")
    # The group itself, for a group of shardwire.
    swd.initialize(0, process_group=wrapped, backends=["nccl"])
    context = swd.get_context()
    assert context.process_group is wrapped and context.group is dist.group.WORLD and slabs_swapped(rank)
    assert (context.nvshmem_available, context.nccl_comm) == (False, None)
    swd.finalize()
    mpi = swd.MPIProcessGroup(CommOfTorch())
    array = np.array([rank])
    mpi.broadcast_buffer(array, root=1)
    assert (mpi.rank, mpi.nranks, array[0]) == (rank, 2, 1)
    assert mpi.allreduce_object([rank], op=lambda a, b: a + b) == [0, 1]
    for given in (mpi, OwnGroup(dist.new_group(backend="gloo"))):
        swd.initialize(0, given, ["nvshmem"])
        context = swd.get_context()
        assert context.size == 2 and slabs_swapped(rank) and context.nvshmem_available
        assert context.process_group is given and (given.rank, given.nranks) == (rank, 2)
        swd.finalize()
    with pytest.raises(TypeError, match="give one of them"):
        swd.initialize(process_group=wrapped, process_group_or_comm=wrapped)
    swd.initialize(0, CommOfTorch(), ["nvshmem"])
    assert isinstance(swd.get_context().process_group, swd.MPIProcessGroup)
    assert swd.get_context().process_group.rank == rank and slabs_swapped(rank)
    swd.finalize()
    swd.initialize(process_group_or_comm=dist.group.WORLD)
    assert swd.get_context().process_group is swd.get_context().group is dist.group.WORLD
    swd.finalize()


def test_process_groups():
    run_ranks(2, groups_body, None, default_group=True)


def test_distributions_by_nvmaths_names():
    rows = ProcessGrid(shape=(4, 1))
    blocks, cyclic = BlockNonCyclic(rows), BlockCyclic(rows, (2, 3))
    assert (Slab.X.name, Slab(2).name, Slab(3).name) == ("Slab.X", "Slab.Z", "Slab")
    assert blocks.block_sizes == (-1, -1) and cyclic.block_sizes == (2, 3) and blocks.first_process == (0, 0)
    assert Box((1, 2), (4, 4)).box_shape == (3, 2)
    held = np.arange(4).reshape(2, 2)
    assert ProcessGrid(process_array=held).process_array is held and rows.process_array is None
    for each in (Slab.X, blocks, cyclic, Box((0,), (1,))):
        assert each.copy() == each and each.copy() is not each
    # Without a global shape: cuts that agree for every array.
    assert blocks.to(Slab, num_ranks=4) == Slab(0) and blocks.to(Slab, ndim=3, num_ranks=4).ndim == 3
    assert Slab.X.to(BlockNonCyclic, ndim=2, num_ranks=4) == blocks
    assert Slab(0, 2).to(Slab, ndim=3, num_ranks=4).ndim == 3
    assert Slab.X.to(Slab, ndim=None) is Slab.X and Slab.X.to(Slab, copy=True) is not Slab.X
    with pytest.raises(ConvertDistributionError, match="arrays of every shape"):
        cyclic.to(Slab, num_ranks=4)
    with pytest.raises(ConvertDistributionError, match="arrays of every shape"):
        BlockNonCyclic(ProcessGrid(shape=(2, 2), layout=ProcessGrid.Layout.ROW_MAJOR)).to(Slab, num_ranks=4)
    assert cyclic.to(Slab, global_shape=(8, 3), num_ranks=4) == Slab(0)
    with pytest.raises(ValueError, match="give ndim"):
        Slab.X.to(BlockNonCyclic, num_ranks=4)
    with pytest.raises(ValueError, match="at least as many"):
        blocks.to(Slab, ndim=1, num_ranks=4)
    with pytest.raises(ConvertDistributionError, match="give global_shape"):
        Box((0,), (2,)).to(Slab, num_ranks=4)
    with pytest.raises(ValueError, match="no kind"):
        blocks.to(int, num_ranks=4)
    assert issubclass(BlockNonCyclic, BlockCyclic) and issubclass(BlockCyclic, Distribution)
    assert blocks != BlockCyclic(rows, (2, 3)) and blocks.to(BlockCyclic) is blocks
    for known in ({"ndim": 2}, {"global_shape": (6, 2)}):  # no block size cuts 6 rows as 2, 2, 1, 1
        assert Slab.X.to(BlockCyclic, num_ranks=4, **known) == blocks
    assert blocks.to(BlockCyclic, ndim=3, num_ranks=4).process_grid.shape == (4, 1, 1)
    assert blocks.to(BlockCyclic, global_shape=(8, 2), num_ranks=4) == BlockCyclic(rows, (2, 2))
    from shardwire.distributed import distribution, reshape
    assert distribution.redistribute is reshape.redistribute and distribution.Redistribute is reshape.Redistribute


def operands_body(rank, _):
    swd.initialize(None, group())
    options = swd.fft.FFTOptions("C2C", False, "even", None, True)
    assert not options.redistribute and not options.returns and swd.fft.FFTOptions(reshape=False).returns is False
    a = torch.randn(Slab.X.shape(rank, (4, 6)), dtype=torch.complex64)
    with swd.fft.FFT(a, distribution=Slab.X, options=options) as f:
        f.plan()
        b = f.execute()
        c = a * 2
        f.reset_operand_unchecked(c, distribution=Slab.X, stream=None)
        assert torch.allclose(f.execute(), b * 2, atol=1e-4)
        with pytest.raises(swd.fft.InvalidFFTState, match="call reset_operand first"):
            f.reset_operand_unchecked(b, distribution=Slab.Y)
        f.reset_operand(b, distribution=Slab.Y)
        back = f.execute(direction=swd.fft.FFTDirection.INVERSE)
        assert back.shape == a.shape and torch.allclose(back / 24, a, atol=1e-4)
        f.reset_operand_unchecked(a, distribution=Slab.X)  # both are planned for now
        assert torch.allclose(f.execute(), b, atol=1e-4)
    # One set of options for both directions: irfft is a C2R, whatever the options say, and ifft may be one.
    real, same = torch.randn(Slab.X.shape(rank, (4, 6))), swd.fft.FFTOptions(fft_type="R2C", blocking=1)
    half = swd.fft.rfft(real, distribution=Slab.X, options=same)
    for back in (swd.fft.irfft(half, distribution=Slab.X, options=same),
                 swd.fft.ifft(half, distribution=Slab.X, options={"fft_type": "C2R"})):
        assert torch.allclose(back / 24, real, atol=1e-4)
    with pytest.raises(ValueError, match="fft_type 'R2C', but fft.ifft is C2C"):
        swd.fft.ifft(half, distribution=Slab.X, options=same)
    assert swd.redistribute(a, Slab.X, Slab.Y, options={"blocking": 1}).shape == (4, 3)
    with pytest.raises(BindDistributionError, match="has shape"):
        swd.redistribute(torch.zeros(3 + rank, 2), Slab.Y, Slab.X, global_shape=(4, 4))
    lines = []
    logger = logging.getLogger("memory")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    swd.allocate_symmetric_memory((2, 3), torch, dtype=torch.float64, logger=logger)
    assert lines == ["allocate_symmetric_memory: 48 bytes in the heap that the ranks share"]
    swd.finalize()


def test_options_and_operands():
    run_ranks(2, operands_body, None)
