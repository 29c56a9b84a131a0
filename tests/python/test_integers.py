"""Integers of numpy and of torch, and every other object with ``__index__``, are taken where Python's int is; bool is
not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from ranks import raised, run_ranks

import shardwire.nvshmem.core as core
from shardwire import symm
from shardwire._integers import as_count, as_integer
from shardwire.distributed import fft
from shardwire.distributed.distribution import Block, ProcessGrid, Slab
from shardwire.distributed.experts import Experts
from shardwire.distributed.linalg import DirectSolver, DirectSolverOptions, advanced
from shardwire.kernels import DeviceTensor

KINDS = (int, np.int64, np.int32, np.uint8, torch.tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_an_integer_of_any_type(kind):
    assert type(as_integer(kind(3))) is int and as_integer(kind(3)) == 3
    assert as_count(kind(3), 3) == 3 and as_count(kind(3), 4) is None
    slab = Slab(kind(1))
    assert slab == Slab.Y and slab.shape(kind(1), (4, 5), 2) == (4, 2) and type(slab.partition_dim) is int
    grid = ProcessGrid(process_array=[[kind(0), kind(1)]])
    assert Block(grid).shape(kind(0), (4, 5), 2) == (4, 3)
    matmul = advanced.MatmulOptions(panels=kind(2), grid=[kind(1), kind(2), kind(1)], sm_count_communication=kind(4))
    solver, transform = DirectSolverOptions(panel_width=kind(8)), fft.FFTOptions(chunks=kind(2))
    for options in (matmul, solver, transform):
        options.check()
    assert json.dumps([matmul.panels, matmul.grid, solver.panel_width, transform.chunks]) == "[2, [1, 2, 1], 8, 2]"
    assert DeviceTensor(torch.zeros(3), kind(3), torch.float32).shape == (3,)


@pytest.mark.parametrize("wrong", [True, np.bool_(True), torch.tensor(True), 1.0, np.float64(1), "1", None, [1]])
def test_no_integer(wrong):
    assert as_integer(wrong) is None and as_count(wrong, 0) is None
    with pytest.raises(TypeError, match="partition_dim is"):
        Slab(wrong)
    if wrong is not None:
        for options in (advanced.MatmulOptions(panels=wrong), advanced.MatmulOptions(grid=(wrong, 1, 1)),
                        DirectSolverOptions(panel_width=wrong), fft.FFTOptions(chunks=wrong)):
            with pytest.raises(ValueError, match="give (a number|three numbers) from 1"):
                options.check()


def calls_body(rank, _):
    whole, other = np.int64(4), np.int64(1 - rank)
    parts = [symm.empty(whole, np.int32(2)), symm.zeros((whole, np.int32(2))), symm.tensor(whole)]
    assert [tuple(each.shape) for each in parts] == [(4, 2), (4, 2), (4,)]
    assert raised(symm.empty, np.float64(4) if rank == 0 else 4)[0] is ValueError
    world = symm.team()
    assert world.split_strided(np.int64(0), np.int32(1), np.int64(2)).size == 2
    across, down = world.split_2d(np.int64(2))
    assert (across.size, down.size) == (2, 1)
    for wrong in (True, 2.0):
        assert "the rows' length" in raised(world.split_2d, wrong)[1]
    core.init()
    box = core.array(whole, "int64")
    box[:] = rank
    core.barrier_all()
    core.atomic_add(box, 5, other, offset=np.int64(3))
    core.barrier_all()
    assert box.tolist() == [rank] * 3 + [rank + 5] and core.get_peer_array(box, other).tolist()[0] == other
    config = core.TeamConfig()
    config.uniqueid = np.int64(7)
    assert core.team_n_pes(core.team_init(config, 0, np.int64(2), np.int64(rank), "numbered")) == 2
    core.finalize()
    experts = Experts(np.int64(2), np.int64(4), np.int64(1), np.int64(3))
    received = experts.dispatch(torch.full((2, 4), float(rank)), torch.tensor([[0], [1]]))
    assert received.tokens[:, 0].tolist() == [0.0, 1.0]
    a, b = torch.eye(8)[rank * 4:][:4].clone(), torch.ones(4, 8)
    product = advanced.matmul(a, b, distributions=[Slab.X] * 3, options={"grid": [np.int64(2), 1, 1],
                                                                              "panels": np.int64(2)})
    assert product.tolist() == [[1.0] * 8] * 4
    with DirectSolver(a, b, distributions=[Slab.X] * 2, options={"panel_width": np.int64(2)}) as solver:
        solver.plan()
        solver.factorize()
        assert solver.solve().tolist() == [[1.0] * 8] * 4
    spectrum = fft.fft(torch.ones(4, 8, dtype=torch.complex64), distribution=Slab(np.int64(0)),
                       options={"chunks": np.int64(2)})
    assert spectrum.abs().sum() == (64 if rank == 0 else 0)


def test_calls_with_integers_of_numpy():
    run_ranks(2, calls_body, None, default_group=True)
