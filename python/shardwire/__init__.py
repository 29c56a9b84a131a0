"""shardwire: a torch.distributed backend, and a compiler of data movement between ranks.

The import registers the backend::

    import torch.distributed as dist, shardwire
    dist.init_process_group("shardwire")            # collectives as with any backend

    op = shardwire.compile_op(None, shape=(1024, 1024), dtype=torch.float32, inputs=[...], outputs=[...])
    op(input_tensors, output_tensors).wait()        # any movement of slices, compiled once

The native part is built for one torch (major.minor) and one Python; importing it into others raises ImportError. A
wheel has parts for several torches, and tries the newest part with a torch that is newer than the wheel.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

# First, always: our libraries are linked to torch's, and must find the libraries of this interpreter.
import torch

from ._glue import choose_glue

_glue_of = choose_glue(__path__, torch.__version__)  # may be the part for an older torch, which a trial accepted

from . import _build_info  # noqa: E402: of the chosen one


def _check_build() -> None:
    """ImportError when the native part was built for another torch or Python than this interpreter's."""
    torch_here = _glue_of or ".".join(torch.__version__.split(".")[:2])
    python_here = "%d.%d" % sys.version_info[:2]
    for what, here, built in (("torch", torch_here, _build_info.TORCH), ("Python", python_here, _build_info.PYTHON)):
        if here != built:
            raise ImportError(f"this build of shardwire is for {what} {built}, but this is {what} {here}; build it for "
                              f"this interpreter: cmake -DSHARDWIRE_PYTHON_EXECUTABLE={sys.executable} ...")


_check_build()

from . import errors  # noqa: E402: after the check
from ._C import Options  # noqa: E402
from .groups.lookup import (create_process_group, describe_collectives, describe_transports,  # noqa: E402
                            end_process_group, find_process_group, global_ranks, name_process_group, resolve_backend)
from .groups.torch_backend import (cpu_allocator_debug, cpu_allocator_enabled, cpu_allocator_owns,  # noqa: E402
                                   cuda_copy, empty, enable_cpu_allocator, in_shared_heap, register, stand_in_for)
from .process import ending  # noqa: E402, F401: registers what happens at the end of the program
from .process.trace import trace  # noqa: E402
from .errors import (AbortedError, CheckpointError, ClosedError, GapError, InternalError, KernelError,  # noqa: E402
                     MismatchError, PeerFailedError, ShardwireError, SystemFailure, TimeoutError, UnsupportedError)

if TYPE_CHECKING:  # the imports that __getattr__ below makes on first use
    from . import adapters, distributed, kernels, nvshmem, offline, queues, status, symm, weights
    from .adapters.moodist import (PreferKernelLessContext, ShardwireOptions, ShardwireOptionsContext,
                                   set_prefer_kernel_less)
    from .compiler.cat import cat
    from .compiler.compile_op import BoundOp, CustomOp, compile_op
    from .compiler.fused import FusedLayout, fused, unfused
    from .compiler.future import Future
    from .compiler.layout import Layout, Partial, Replicate, Shard, StridedShard
    from .compiler.redistribute import clear_redistribute_cache, redistribute
    from .compiler.shards import (ShardInfo, apply_local_reshard, compute_local_reshard, compute_shards, dtensor_shards,
                                  specs_from_dtensor)
    from .compiler.spec import TensorRegion
    from .groups.mpi import create_process_group_from_mpi
    from .survive.verdict import Agreement, agree, revoke
    from .survive.reconfigure import reconfigure, reconfigure_handle, reconfigure_handles, shrink
    from .groups.standalone import ShardwireBackend, ShardwireProcessGroup, create_shardwire_backend
    from .groups.tcp_store import TcpStore
    from .kernels import DeviceKernel, KernelTimes, clear_kernel_cache
    from .offline import OfflinePlan, Topology, plan
    from .plain.user_classes import register_plain
    from .plain.serialize import deserialize, serialize
    from .process.profile import enable_profiling
    from .queues import Empty, Queue, QueueWork, Transaction, TransactionContextManager
    from .weights import (NameMap, Part, Publication, Subscription, WeightSync, check_replicas, load, publish, save,
                          subscribe, sync)

# Imported on first use (PEP 562), so a program does not wait at its start for unused features, nor a program that calls
# collectives alone for the compiler.
_FEATURES = ("adapters", "distributed", "kernels", "nvshmem", "offline", "queues", "status", "symm", "weights")
_MODULE_OF = {name: module for module, names in {
    "adapters.moodist": ("PreferKernelLessContext", "ShardwireOptions", "ShardwireOptionsContext",
                         "set_prefer_kernel_less"),
    "groups.mpi": ("create_process_group_from_mpi",),
    "survive.verdict": ("Agreement", "agree", "revoke"),
    "survive.reconfigure": ("reconfigure", "reconfigure_handle", "reconfigure_handles", "shrink"),
    "groups.standalone": ("ShardwireBackend", "ShardwireProcessGroup", "create_shardwire_backend"),
    "groups.tcp_store": ("TcpStore",),
    "process.profile": ("enable_profiling",),
    "plain.user_classes": ("register_plain",),
    "compiler.cat": ("cat",),
    "compiler.compile_op": ("BoundOp", "CustomOp", "compile_op"),
    "compiler.fused": ("FusedLayout", "fused", "unfused"),
    "compiler.future": ("Future",),
    "compiler.layout": ("Layout", "Partial", "Replicate", "Shard", "StridedShard"),
    "compiler.redistribute": ("clear_redistribute_cache", "redistribute"),
    "plain.serialize": ("deserialize", "serialize"),
    "compiler.shards": ("ShardInfo", "apply_local_reshard", "compute_local_reshard", "compute_shards", "dtensor_shards",
                        "specs_from_dtensor"),
    "compiler.spec": ("TensorRegion",),
    "kernels": ("DeviceKernel", "KernelTimes", "clear_kernel_cache"),
    "offline": ("OfflinePlan", "Topology", "plan"),
    "queues": ("Empty", "Queue", "QueueWork", "Transaction", "TransactionContextManager"),
    "weights": ("NameMap", "Part", "Publication", "Subscription", "WeightSync", "check_replicas", "load", "publish",
                "save", "subscribe", "sync"),
}.items() for name in names}

__version__ = _build_info.VERSION

__all__ = [
    "AbortedError", "Agreement", "BoundOp", "CheckpointError", "ClosedError", "CustomOp", "DeviceKernel", "Empty",
    "FusedLayout", "Future", "GapError", "InternalError", "KernelError", "KernelTimes", "Layout", "MismatchError",
    "NameMap", "OfflinePlan", "Options", "Part", "Partial", "PeerFailedError", "PreferKernelLessContext",
    "Publication", "Queue", "QueueWork", "Replicate", "Shard", "ShardInfo", "ShardwireBackend", "ShardwireError",
    "ShardwireOptions", "ShardwireOptionsContext", "ShardwireProcessGroup", "StridedShard", "Subscription",
    "SystemFailure", "TcpStore", "TensorRegion", "TimeoutError", "Topology", "Transaction",
    "TransactionContextManager", "UnsupportedError", "WeightSync", "agree", "apply_local_reshard", "cat",
    "check_replicas", "clear_kernel_cache", "clear_redistribute_cache", "compile_op", "compute_local_reshard",
    "compute_shards", "cpu_allocator_debug", "cpu_allocator_enabled", "cpu_allocator_owns", "create_process_group",
    "create_process_group_from_mpi", "create_shardwire_backend", "cuda_copy", "describe_collectives",
    "describe_transports", "deserialize", "distributed", "dtensor_shards", "empty", "enable_cpu_allocator",
    "enable_profiling", "end_process_group", "errors", "find_process_group", "fused", "global_ranks", "in_shared_heap",
    "load", "name_process_group", "nvshmem", "plan", "publish", "reconfigure", "reconfigure_handle",
    "reconfigure_handles", "redistribute", "register", "register_plain", "resolve_backend", "revoke", "save",
    "serialize", "set_prefer_kernel_less", "shrink", "specs_from_dtensor", "stand_in_for", "status", "subscribe",
    "symm", "sync", "trace", "unfused", "weights",
]


def __getattr__(name: str) -> Any:
    """The public names of _FEATURES and _MODULE_OF, imported on first use."""
    if name in _FEATURES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MODULE_OF:
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FEATURES, *_MODULE_OF})


register()
