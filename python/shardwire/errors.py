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


class InternalError(ShardwireError):
    """An invariant of shardwire itself does not hold: please report it, with the text."""


__all__ = ["AbortedError", "InternalError", "MismatchError", "PeerFailedError", "ShardwireError", "SystemFailure", "TimeoutError",
           "UnsupportedError"]
