"""Arrays distributed over the ranks of a group: how arrays are cut, moved from one cut to another, transformed, and
multiplied.

Every rank calls with its own part of the array (torch, numpy or DTensor) and a description of the cut::

    import shardwire.distributed as swd
    swd.initialize(None, comm)  # an mpi4py communicator, a shardwire group, or nothing
    b = swd.reshape.reshape(a, input_box, output_box)
    c = swd.fft.fft(b, distribution=swd.distribution.Slab.X)

Programs written for nvmath.distributed on the CPU run with the import renamed.
"""

from __future__ import annotations

from . import distribution, experts, fft, linalg, process_group, reshape
from ._memory import allocate_symmetric_memory, free_symmetric_memory
from ._runtime import DistributedContext, finalize, get_context, initialize
from .process_group import MPIProcessGroup, ProcessGroup, TorchProcessGroup
from .reshape import Redistribute, redistribute
from .uneven import all_gather_v, reduce_scatter_v

# nvmath's module ``distribution`` has these names. Here reshape imports distribution, so this file sets the names.
vars(distribution).update({name: getattr(reshape, name)
                           for name in ("Redistribute", "RedistributeOptions", "redistribute")})

__all__ = ["DistributedContext", "MPIProcessGroup", "ProcessGroup", "Redistribute", "TorchProcessGroup",
           "all_gather_v", "allocate_symmetric_memory", "distribution", "experts", "fft", "finalize",
           "free_symmetric_memory", "get_context", "initialize", "linalg", "process_group", "redistribute",
           "reduce_scatter_v", "reshape"]
