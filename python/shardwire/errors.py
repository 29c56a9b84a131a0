"""The exceptions of shardwire.

A wrong value is a plain :class:`ValueError`, a wrong kind of thing a plain :class:`TypeError`. What goes wrong between ranks is a
:class:`ShardwireError`, which is a :class:`RuntimeError`, as torch.distributed's own errors are. Texts name the rank, the operation, and what to
do. An error of an operation leaves the process alive; whether the group can still be used is said in each class.
"""

from __future__ import annotations

import builtins


class ShardwireError(RuntimeError):
    """Something went wrong between the ranks of a group, or below it."""


class TimeoutError(ShardwireError, builtins.TimeoutError):  # noqa: A001: the same meaning as the builtin, and caught as it
    """Ranks did not arrive in time; the text names them. From a wait with a timeout of its own: the operation goes on."""


class PeerFailedError(ShardwireError):
    """A rank of the group died or left; the text names it. The group cannot be used any more."""


class MismatchError(ShardwireError):
    """Ranks of the group are doing different things: another operation, shape, dtype or reduction. Both are shown."""


class AbortedError(ShardwireError):
    """The group was aborted or shut down on this rank. Make a new one."""


class SystemFailure(ShardwireError):
    """The operating system refused something; the text holds its reason and what to do."""


class UnsupportedError(ShardwireError, NotImplementedError):
    """Asked for something that cannot be done here, such as moving a sparse tensor."""


class CheckpointError(ShardwireError, ValueError):
    """A file of weights is missing, broken, or not what its index says; the text names file, tensor and numbers."""


class GapError(ShardwireError, ValueError):
    """No input of any rank covers part of an output; the text has the regions and the ranks that want them. Raised by ``compile_op`` on all ranks."""


class ClosedError(ShardwireError):
    """A :class:`Queue` was closed: nothing can be put into it, or everything was taken from it."""


class KernelError(ShardwireError):
    """A kernel could not be traced, compiled or loaded; the text has the compiler's words. Raised by ``DeviceKernel.compile_and_load``, on all ranks alike where rank 0 compiles."""


class InternalError(ShardwireError):
    """An invariant of shardwire itself does not hold: please report it, with the text."""


__all__ = ["AbortedError", "CheckpointError", "ClosedError", "GapError", "InternalError", "KernelError", "MismatchError", "PeerFailedError", "ShardwireError", "SystemFailure", "TimeoutError",
           "UnsupportedError"]
