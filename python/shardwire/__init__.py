"""shardwire: a torch.distributed backend, and a compiler of data movement between ranks.

Importing it registers the backend::

    import torch.distributed as dist, shardwire
    dist.init_process_group("shardwire")            # collectives as with any backend

    op = shardwire.compile_op(None, shape=(1024, 1024), dtype=torch.float32, inputs=[...], outputs=[...])
    op(input_tensors, output_tensors).wait()        # any movement of slices, compiled once

The native part is built for one torch (major.minor) and one Python; importing it into others raises ImportError.
"""

from __future__ import annotations

import sys

# First, always: our libraries are linked to torch's, and must find those of this interpreter.
import torch

from . import _build_info


def _check_build() -> None:
    """ImportError when this interpreter's torch or Python is not the one that the native part was built for."""
    torch_here = ".".join(torch.__version__.split(".")[:2])
    python_here = "%d.%d" % sys.version_info[:2]
    for what, here, built in (("torch", torch_here, _build_info.TORCH), ("Python", python_here, _build_info.PYTHON)):
        if here != built:
            raise ImportError(f"this build of shardwire is for {what} {built}, but this is {what} {here}; "
                              f"build it for this interpreter: cmake -DSHARDWIRE_PYTHON_EXECUTABLE={sys.executable} ...")


_check_build()

from . import _backend, errors  # noqa: E402: after the check
from ._C import Options  # noqa: E402
from ._backend import cpu_allocator_enabled, empty, enable_cpu_allocator, in_shared_heap, register  # noqa: E402
from ._compile import BoundOp, CustomOp, compile_op  # noqa: E402
from ._future import Future  # noqa: E402
from ._groups import (create_process_group, describe_collectives, describe_transports, find_process_group, global_ranks,  # noqa: E402
                      name_process_group, resolve_backend)
from ._layout import Layout, Partial, Replicate, Shard, StridedShard  # noqa: E402
from ._mpi import create_process_group_from_mpi, register_rendezvous  # noqa: E402
from ._redistribute import clear_redistribute_cache, redistribute  # noqa: E402
from ._spec import TensorRegion  # noqa: E402
from .errors import (AbortedError, InternalError, MismatchError, PeerFailedError, ShardwireError, SystemFailure,  # noqa: E402
                     TimeoutError, UnsupportedError)

__version__ = _build_info.VERSION

__all__ = [
    "AbortedError", "BoundOp", "CustomOp", "Future", "InternalError", "Layout", "MismatchError", "Options", "Partial", "PeerFailedError", "Replicate",
    "Shard", "ShardwireError", "StridedShard", "SystemFailure", "TensorRegion", "TimeoutError", "UnsupportedError",
    "clear_redistribute_cache", "compile_op", "cpu_allocator_enabled", "create_process_group", "create_process_group_from_mpi",
    "describe_collectives", "describe_transports", "empty",
    "enable_cpu_allocator", "errors", "find_process_group", "global_ranks", "in_shared_heap", "name_process_group", "redistribute", "register",
    "resolve_backend",
]

register()
register_rendezvous()
