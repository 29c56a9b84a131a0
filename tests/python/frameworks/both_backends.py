"""One function, run by gloo's ranks and by shardwire's, must give the same on every rank: the base of the frameworks'
tests.

``both(n, body)`` runs ``body(rank, size)`` in n processes with gloo's default group, then in n processes with
shardwire's default group, and compares the results rank by rank, down to the bits unless ``atol`` is given. A rank
returns tensors in tuples, lists and dicts; other values must be equal. The tests of a module share the processes; a
failed test's processes are replaced.
"""

from __future__ import annotations

import pickle
import random
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire  # noqa: F401  registers the backend
from conftest import TORCH
from fork_ranks import ForkedRanks

if TORCH >= (2, 0):
    # optimisers import _dynamo at the first step: seconds for each rank, unless imported before the fork
    import torch._dynamo  # noqa: F401

BACKENDS = ("gloo", "shardwire")
GLOO_AVERAGES = TORCH >= (2, 7)  # and has reduce_scatter of lists
BODY_LIMIT = 90  # seconds
torch.set_num_threads(1)


def _rank_main(rank, backend):
    """Runs one body after the other, until the order is None."""
    warnings.simplefilter("ignore")
    random.seed(0)
    dist.init_process_group(backend, init_method=f"file://{rank.store}", rank=rank.number, world_size=rank.size,
                            timeout=timedelta(seconds=30))
    while (order := pickle.loads(rank.orders.recv_bytes())) is not None:
        rank.answer(_one_body, rank, backend, *order)
    dist.barrier()
    dist.destroy_process_group()


def _one_body(rank, backend, body, args):
    assert dist.get_backend() == backend, dist.get_backend()
    torch.manual_seed(0)
    return body(rank.number, rank.size, *args)


class Both:
    def __init__(self):
        self._pools = {}  # ranks with the modules that this process had imported before the fork

    def __call__(self, size, body, *args, atol=0.0, rtol=0.0, limit=BODY_LIMIT):
        """shardwire's results by rank, compared with gloo's before; with atol or rtol 0 bit by bit."""
        results = []
        for backend in BACKENDS:
            key = (backend, size)
            if key not in self._pools:
                self._pools[key] = ForkedRanks(size, _rank_main, backend, title=f"{backend} rank")
            try:
                self._pools[key].order((body, args))
                results.append(self._pools[key].answers(limit))
            except BaseException:
                self._pools.pop(key).end()
                raise
        for rank, (wanted, found) in enumerate(zip(*results)):
            assert wanted is not None, "a body that returns nothing compares nothing"
            compare(wanted, found, atol, rtol, f"rank {rank}: ")
        return results[1]

    def close(self):
        """Each rank leaves its group normally, or is killed."""
        for pool in self._pools.values():
            pool.order(None)
            pool.answers(10, to_the_end=True, may_die=range(pool.size), may_stay=True)
            pool.end()
        self._pools.clear()


def compare(wanted, found, atol=0.0, rtol=0.0, where=""):
    """wanted is gloo's, found shardwire's."""
    assert type(wanted) is type(found), f"{where}{type(wanted)} and {type(found)}"
    if isinstance(wanted, torch.Tensor):
        assert wanted.shape == found.shape and wanted.dtype == found.dtype, (
            f"{where}{wanted.shape} {wanted.dtype} and {found.shape} {found.dtype}")
        wanted, found = wanted.detach(), found.detach()
        same = (torch.equal(wanted, found) if atol == rtol == 0.0
                else torch.allclose(found, wanted, atol=atol, rtol=rtol))
        assert same, f"{where}gloo gives\n{wanted}\nshardwire gives\n{found}"
    elif isinstance(wanted, dict):
        assert list(wanted) == list(found), f"{where}{list(wanted)} and {list(found)}"
        for key in wanted:
            compare(wanted[key], found[key], atol, rtol, f"{where}{key}: ")
    elif isinstance(wanted, (list, tuple)):
        assert len(wanted) == len(found), f"{where}{len(wanted)} and {len(found)} items"
        for number, pair in enumerate(zip(wanted, found)):
            compare(*pair, atol, rtol, f"{where}[{number}]: ")
    else:
        assert wanted == found, f"{where}{wanted!r} and {found!r}"


@pytest.fixture(scope="module")
def both():
    runs = Both()
    yield runs
    runs.close()


# ---- small models and batches, the same on every rank


def mlp(width=16, seed=1):
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
              torch.nn.Linear(width, 4))
    return torch.nn.Sequential(*layers)


def batch(rank, step=0, rows=4, width=8):
    """This rank's (input, target) of one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, width, generator=generator), torch.randn(rows, 4, generator=generator)


def train(model, rank, steps=3, optimizer=None, loss_of=torch.nn.functional.mse_loss):
    """The losses of a few steps of SGD with momentum."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        given, target = batch(rank, step)
        optimizer.zero_grad()
        loss = loss_of(model(given), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def state(model):
    """Copies of the parameters and buffers by name."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
