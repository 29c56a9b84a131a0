"""The team of all PEs, and the errors of this package."""

from __future__ import annotations

from typing import Any

from ... import symm


class NvshmemInvalid(ValueError):
    """A call with invalid arguments, or before :func:`init`. msg: the text."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


class NvshmemError(RuntimeError):
    """Initialization failed, or memory was registered twice or never. msg: the text."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


class NvshmemTeamError(NvshmemInvalid, NvshmemError):
    """A team that cannot be made, or a PE that a team cannot have: NvshmemError in NVSHMEM4Py."""


class Job:
    world: symm.Team | None = None
    own_group: Any = None  # made by init(), ended by finalize()
    num_inits = 0  # without a finalize()


job = Job()


def world() -> symm.Team:
    """The team of all PEs. NvshmemInvalid before :func:`init`."""
    if job.world is None:
        raise NvshmemInvalid("nvshmem is not initialized: call shardwire.nvshmem.core.init() first")
    return job.world
