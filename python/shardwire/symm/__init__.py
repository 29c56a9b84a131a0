"""Symmetric memory: tensors that all ranks of a group make together, each rank with access to every other rank's part.

    t = shardwire.symm.zeros(1024, dtype=torch.float32)      # collective: the same on all ranks
    theirs = shardwire.symm.get_peer_tensor(t, 1)            # rank 1's bytes, as an ordinary tensor
    ready = shardwire.symm.zeros(1, dtype=torch.int64)

    shardwire.symm.put_signal(t, mine, ready, 1, rank=1)     # on rank 0: the bytes, then the signal
    shardwire.symm.signal_wait(ready, "ge", 1, timeout=5)    # on rank 1: an error names the late or dead ranks

See docs/symmetric.md.
"""

from __future__ import annotations

from .access import fence, get, get_nbi, put, put_nbi, put_signal, quiet, signal_op, signal_wait
from .atomics import (atomic_add, atomic_and, atomic_compare_swap, atomic_fetch, atomic_fetch_add, atomic_fetch_and,
                      atomic_fetch_inc, atomic_fetch_or, atomic_fetch_xor, atomic_inc, atomic_or, atomic_set,
                      atomic_swap, atomic_xor)
from .tensors import empty, free, get_peer_tensor, is_symmetric, tensor, zeros
from .multicast import MulticastTensor, get_multicast_tensor
from .teams import Team, barrier, split_2d, split_strided, team
from .torch_api import torch_api

__all__ = [
    "MulticastTensor", "Team", "atomic_add", "atomic_and", "atomic_compare_swap", "atomic_fetch", "atomic_fetch_add",
    "atomic_fetch_and", "atomic_fetch_inc", "atomic_fetch_or", "atomic_fetch_xor", "atomic_inc", "atomic_or",
    "atomic_set", "atomic_swap", "atomic_xor", "barrier", "empty", "fence", "free", "get", "get_multicast_tensor",
    "get_nbi", "get_peer_tensor", "is_symmetric", "put", "put_nbi", "put_signal", "quiet", "signal_op", "signal_wait",
    "split_2d", "split_strided", "team", "tensor", "torch_api",
    "zeros",
]
