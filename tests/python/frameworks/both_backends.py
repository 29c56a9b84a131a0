"""One function, run by gloo's ranks and by shardwire's, must give the same on every rank: what the tests of the frameworks stand on.

``both(n, body)`` runs ``body(rank, size)`` in n processes whose default group is gloo's, then in n others whose default group is shardwire's,
and compares what they returned, rank by rank, down to the bits unless ``atol`` says otherwise. A rank returns tensors in tuples, lists and
dicts; other values must be equal. A module's tests share the processes; those of a test that fails are replaced.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import shardwire  # noqa: F401  registers the backend
from conftest import TORCH

if TORCH >= (2, 0):
    import torch._dynamo  # noqa: F401  optimisers import it at their first step: seconds for each rank, unless it is here before the fork

BACKENDS = ("gloo", "shardwire")
GLOO_AVERAGES = TORCH >= (2, 7)  # and has reduce_scatter of lists
BODY_LIMIT = 90  # seconds
torch.set_num_threads(1)


class RankFailure(AssertionError):
    """What went wrong in which rank of which backend."""


class Pool:
    """n forked processes with one group, which run one body after the other. They know what the parent had imported when they were forked."""

    parents_ends = set()  # of the pipes of all pools: a child that kept one would keep another pool waiting for its end

    def __init__(self, backend, size, folder):
        self.backend, self.size = backend, size
        self._pids, self._to, self._from = [], [], []
        store = os.path.join(folder, f"{backend}{size}-{time.monotonic_ns()}")
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(size):
            (order_reader, order_writer), (reply_reader, reply_writer) = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                for inherited in [*self.parents_ends, order_writer, reply_reader]:
                    os.close(inherited)
                _child(backend, rank, size, store, order_reader, reply_writer)
            os.close(order_reader)
            os.close(reply_writer)
            self._pids.append(pid)
            self._to.append(order_writer)
            self._from.append(reply_reader)
            self.parents_ends.update((order_writer, reply_reader))

    def run(self, body, args, limit):
        """What body(rank, size, *args) returned, by rank."""
        order = pickle.dumps((body, args))
        for pipe in self._to:
            os.write(pipe, len(order).to_bytes(8, "little") + order)
        replies, failures = [None] * self.size, []
        deadline = time.monotonic() + limit
        waiting = {pipe: rank for rank, pipe in enumerate(self._from)}
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                failures += [f"--- {self.backend} rank {rank}: no answer" for rank in waiting.values()]
                break
            for pipe in ready:
                rank = waiting.pop(pipe)
                passed, replies[rank] = _read(pipe) or (False, "ended without a word")
                if not passed:
                    failures.append(f"--- {self.backend} rank {rank}:\n{replies[rank]}")
                    deadline = min(deadline, time.monotonic() + 5)  # the others get a moment to say why they failed too
        if failures:
            raise RankFailure("\n".join(failures))
        return replies

    def close(self, kindly):
        """Kindly: each process leaves its group in order. Otherwise they may hang, and are killed."""
        self.parents_ends.difference_update(self._to, self._from)
        for pipe in self._to:
            os.close(pipe)
        if kindly:
            for pipe in self._from:
                select.select([pipe], [], [], 10)  # readable once the process has closed it
        for pid, pipe in zip(self._pids, self._from):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)


def _read(pipe):
    def exactly(count):
        pieces = b""
        while len(pieces) < count:
            piece = os.read(pipe, min(count - len(pieces), 1 << 20))
            if not piece:
                raise EOFError
            pieces += piece
        return pieces

    try:
        return pickle.loads(exactly(int.from_bytes(exactly(8), "little")))
    except EOFError:
        return None


def _child(backend, rank, size, store, orders, replies):
    """Never returns."""
    try:
        warnings.simplefilter("ignore")
        random.seed(0)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=30))
        while (order := _read(orders)) is not None:
            faulthandler.dump_traceback_later(BODY_LIMIT - 5, file=sys.__stderr__)
            try:
                body, args = order
                assert dist.get_backend() == backend, dist.get_backend()
                torch.manual_seed(0)
                reply = pickle.dumps((True, body(rank, size, *args)))
            except BaseException:
                reply = pickle.dumps((False, traceback.format_exc()))
            faulthandler.cancel_dump_traceback_later()
            with os.fdopen(os.dup(replies), "wb") as pipe:
                pipe.write(len(reply).to_bytes(8, "little") + reply)
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
    finally:
        os.close(replies)
        os._exit(0)


class Both:
    def __init__(self, folder):
        self._folder, self._pools = folder, {}

    def __call__(self, size, body, *args, atol=0.0, rtol=0.0, limit=BODY_LIMIT):
        """shardwire's results by rank, after they were compared with gloo's; with atol or rtol 0 bit by bit."""
        results = []
        for backend in BACKENDS:
            key = (backend, size)
            if key not in self._pools:
                self._pools[key] = Pool(*key, self._folder)
            try:
                results.append(self._pools[key].run(body, args, limit))
            except BaseException:
                self._pools.pop(key).close(kindly=False)
                raise
        for rank, (wanted, found) in enumerate(zip(*results)):
            assert wanted is not None, "a body that returns nothing compares nothing"
            compare(wanted, found, atol, rtol, f"rank {rank}: ")
        return results[1]

    def close(self):
        for pool in self._pools.values():
            pool.close(kindly=True)
        self._pools.clear()


def compare(wanted, found, atol=0.0, rtol=0.0, where=""):
    """wanted is gloo's, found shardwire's."""
    assert type(wanted) is type(found), f"{where}{type(wanted)} and {type(found)}"
    if isinstance(wanted, torch.Tensor):
        assert wanted.shape == found.shape and wanted.dtype == found.dtype, f"{where}{wanted.shape} {wanted.dtype} and {found.shape} {found.dtype}"
        wanted, found = wanted.detach(), found.detach()
        same = torch.equal(wanted, found) if atol == rtol == 0.0 else torch.allclose(found, wanted, atol=atol, rtol=rtol)
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
    with tempfile.TemporaryDirectory(prefix="shardwire-both-") as folder:
        runs = Both(folder)
        yield runs
        runs.close()


# ---- small models and batches, the same on every rank


def mlp(width=16, seed=1):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
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
