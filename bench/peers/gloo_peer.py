"""gloo as a peer of bench/compare.py: gloo_peer.py RANKS SETTINGS LIBRARY, where LIBRARY is libpeer_loop.so.

The loop is the C++ loop of all peers; each call goes through ctypes and torch.distributed. The results name the time of
an empty call, so that the cost of Python can be seen.
"""

import ctypes
import json
import os
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class PeerCall(ctypes.Structure):
    """As in bench/peers/loop.h."""

    _fields_ = [("operation", ctypes.c_int32), ("rank", ctypes.c_int32), ("ranks", ctypes.c_int32),
                ("elems", ctypes.c_int64), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
                ("input", ctypes.c_void_p), ("output", ctypes.c_void_p)]


CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(PeerCall))


class Peer(ctypes.Structure):
    _fields_ = [("version", ctypes.c_char_p), ("context", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("release", ctypes.c_void_p), ("prepare", CALL), ("run", CALL)]


def tensor_at(address, elems):
    return torch.frombuffer((ctypes.c_float * elems).from_address(address), dtype=torch.float32)


def send_recv(call, source, target):
    if call.rank == 0:
        dist.send(source, 1)
        dist.recv(target, 1)
    elif call.rank == 1:
        dist.recv(target, 0)
        dist.send(source, 0)


def caller(call):
    """A function that makes one call of the operation; None where gloo of this torch lacks the operation."""
    if call.operation == 7:
        return None  # no reshape
    listed = call.ranks if call.operation in (2, 3, 4) else 1
    source, target = (tensor_at(address, call.elems * listed) for address in (call.input, call.output))
    sources, targets = list(source.split(call.elems)), list(target.split(call.elems))
    found = (lambda: dist.all_reduce(source), lambda: dist.broadcast(source, 0),
             lambda: dist.all_gather(targets, sources[0]), lambda: dist.reduce_scatter(targets[0], sources),
             lambda: dist.all_to_all_single(target, source), lambda: send_recv(call, source, target), dist.barrier,
             None, lambda: None)[call.operation]
    try:
        found()  # all ranks raise alike, before any rank sends
    except (RuntimeError, NotImplementedError) as error:
        if "does not support" not in str(error) and "no support" not in str(error):
            raise
        return None
    return found


class Rank:
    def __init__(self):
        self.call = None

    def prepare(self, _, call):
        try:
            self.call = caller(call.contents)
        except Exception as error:
            print(f"gloo_peer.py: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        return 1 if self.call is not None else 0

    def run(self, *_):
        try:
            self.call()
        except Exception as error:
            print(f"gloo_peer.py: {error}", file=sys.stderr, flush=True)
            return 0
        return 1


def empty_call(run):
    """Microseconds of a call of the loop that does nothing in Python."""
    start = time.perf_counter()
    for _ in range(10000):
        run(None, None)
    return (time.perf_counter() - start) * 100


def run_rank(rank, ranks, settings, library, store):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    me = Rank()
    me.call = lambda: None
    empty = empty_call(CALL(me.run))
    version = f"gloo of torch {torch.__version__}, called from Python: an empty call takes {empty:.1f} us"
    peer = Peer(version.encode(), None, None, None, CALL(me.prepare), CALL(me.run))
    status = ctypes.CDLL(library).runPeerLoop(settings.encode(), rank, ranks, ctypes.byref(peer))
    dist.barrier()
    dist.destroy_process_group()
    if status:
        sys.exit(status)


def main():
    ranks, settings, library = sys.argv[1:]
    with open(settings, encoding="utf-8") as file:
        json.load(file)  # an unreadable file is one error, not one for each rank
    with tempfile.TemporaryDirectory(prefix="gloo_peer-") as folder:
        mp.spawn(run_rank, args=(int(ranks), settings, library, f"{folder}/store"), nprocs=int(ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
