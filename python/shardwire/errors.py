"""The exceptions of shardwire.

A wrong value is a plain :class:`ValueError`, a wrong kind of object a plain :class:`TypeError`. An error between ranks
is a :class:`ShardwireError`, which is a :class:`RuntimeError` like torch.distributed's own errors. Texts name the rank,
the operation, and the remedy. An error of an operation leaves the process alive; each class states whether the group
can still be used.
"""

from __future__ import annotations

import builtins


class ShardwireError(RuntimeError):
    """Something went wrong between the ranks of a group, or below it."""


# the same meaning as the builtin, and caught as it
class TimeoutError(ShardwireError, builtins.TimeoutError):  # noqa: A001
    """Ranks did not arrive in time; the text names these ranks. When raised by a wait with its own timeout, the
    operation continues."""


class PeerFailedError(ShardwireError):
    """A rank of the group died or left; the text names the rank. The group cannot be used any more."""


class MismatchError(ShardwireError):
    """Ranks of the group are doing different things: another operation, shape, dtype or reduction. Both are shown."""


class AbortedError(ShardwireError):
    """The group was aborted or shut down on this rank. Make a new one."""


class SystemFailure(ShardwireError):
    """The operating system refused a request; the text holds the system's reason and the remedy."""


class UnsupportedError(ShardwireError, NotImplementedError):
    """The request cannot be served here, such as moving a sparse tensor."""


class CheckpointError(ShardwireError, ValueError):
    """A file of weights is missing, broken, or in contradiction to its index; the text names file, tensor and
    numbers."""


class GapError(ShardwireError, ValueError):
    """No input of any rank covers part of an output; the text has the regions and the ranks with such outputs. Raised
    by ``compile_op`` on all ranks."""


class ClosedError(ShardwireError):
    """A :class:`Queue` was closed: no item can be put any more, or all items were taken."""


class KernelError(ShardwireError):
    """A kernel could not be traced, compiled or loaded; the text has the compiler's message. Raised by
    ``DeviceKernel.compile_and_load``, on all ranks alike where rank 0 compiles."""


class InternalError(ShardwireError):
    """An invariant of shardwire itself does not hold: please report it, with the text."""


__all__ = ["AbortedError", "CheckpointError", "ClosedError", "GapError", "InternalError", "KernelError",
           "MismatchError", "PeerFailedError", "ShardwireError", "SystemFailure", "TimeoutError", "UnsupportedError"]
