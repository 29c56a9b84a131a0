"""Teams by handle and by name."""

from __future__ import annotations

import copy
import secrets
import threading
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import torch

from ... import _C, symm
from ..._integers import as_count, as_integer
from ...errors import UnsupportedError
from .all_pes import NvshmemInvalid, NvshmemTeamError, world


class TeamUniqueId:
    """A number that names a team of :func:`team_init`."""

    value: int

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"TeamUniqueId({self.value})"


class TeamConfig:
    """``uniqueid``, a number or a :class:`TeamUniqueId`, names the team of :func:`team_init`; the other fields are kept
    for :func:`team_get_config`."""

    version: int
    num_contexts: int
    uniqueid: int | TeamUniqueId

    def __init__(self) -> None:
        self.version = 2
        self.num_contexts = 0
        self.uniqueid = 0


class MutableEnum:
    """Names with values, which can be added and removed: ``names.NAME``, ``names["NAME"]``."""

    def __init__(self, **kwargs: Any) -> None:
        self._members: dict[str, Any] = dict(kwargs)

    @classmethod
    def from_enum(cls, enum_cls: Any) -> MutableEnum:
        return cls(**{member.name: member.value for member in enum_cls})

    def add(self, key: str, value: Any) -> None:
        """ValueError for a name that is taken."""
        if key in self._members:
            raise ValueError(f"there is a member named {key!r} already")
        self._members[key] = value

    def remove(self, key: str) -> None:
        """ValueError for a missing name."""
        if key not in self._members:
            raise ValueError(f"there is no member named {key!r}")
        del self._members[key]

    def remove_by_value(self, value: Any) -> None:
        """Removes the first name with this value, if there is one."""
        for key, each in self._members.items():
            if each == value:
                del self._members[key]
                return

    def keys(self) -> KeysView[str]:
        return self._members.keys()

    def values(self) -> ValuesView[Any]:
        return self._members.values()

    def items(self) -> ItemsView[str, Any]:
        return self._members.items()

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("_members", {})
        if name in members:
            return members[name]
        raise AttributeError(f"no member is named {name}")

    def __getitem__(self, name: str) -> Any:
        if name not in self._members:
            raise KeyError(f"no member is named {name}")
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(f'{key}={value}' for key, value in self._members.items())}>"


class _Teams(MutableEnum):
    """``Teams.TEAM_WORLD``, ``Teams["name"]``: handles, which are numbers.

    Predefined: TEAM_WORLD; TEAM_SHARED, TEAM_NODE and TEAM_MC_SHARED, the PEs that address each other's memory;
    TEAM_SAME_MYPE_NODE, the PEs with this PE's number in the own TEAM_NODE; TEAM_SAME_GPU, this PE alone, and
    TEAM_GPU_LEADERS, all PEs, as where each PE has its own GPU. The other names are NVSHMEM's numbers.
    """

    TEAM_INVALID = -1
    TEAM_WORLD = TEAM_WORLD_INDEX = 0
    TEAM_SHARED = TEAM_SHARED_INDEX = 1
    TEAM_NODE = TEAM_NODE_INDEX = 2
    TEAM_SAME_MYPE_NODE = TEAM_SAME_MYPE_NODE_INDEX = 3
    TEAM_SAME_GPU = TEAM_SAME_GPU_INDEX = 4
    TEAM_GPU_LEADERS = TEAM_GPU_LEADERS_INDEX = 5
    TEAM_MC_SHARED = TEAM_MC_SHARED_INDEX = 6
    TEAMS_MIN = 7
    TEAM_INDEX_MAX = 32767
    _FIRST_OWN = 16

    def __init__(self) -> None:
        self._predefined = {name: value for name, value in vars(_Teams).items() if name.startswith("TEAM")}
        super().__init__(**self._predefined)
        self._teams: dict[int, symm.Team] = {}
        self._configs: dict[int, TeamConfig] = {}
        self._next = self._FIRST_OWN
        self._lock = threading.Lock()

    def begin(self, team: symm.Team) -> None:
        """Makes the predefined teams. Collective."""
        node, same = _node_teams(team)
        alone = team._part([team.rank], "alone")
        assert alone is not None
        self._teams = {self.TEAM_WORLD: team, self.TEAM_SHARED: node, self.TEAM_NODE: node,
                       self.TEAM_SAME_MYPE_NODE: same, self.TEAM_SAME_GPU: alone, self.TEAM_GPU_LEADERS: team,
                       self.TEAM_MC_SHARED: node}
        self._next = self._FIRST_OWN

    def end(self) -> None:
        everybody = self._teams.get(self.TEAM_WORLD)
        for team in self._teams.values():
            if team is not everybody:
                team.destroy()
        self._members, self._teams, self._configs = dict(self._predefined), {}, {}

    def refusal_of(self, *names: str | None) -> str:
        """Why new teams cannot have these names on this PE; empty: they can. Called before the teams are made, so that
        the other PEs get the error too."""
        for name in names:
            if not (name is None or isinstance(name, str)):
                return f"new_team_name is a {type(name).__name__}; give a str or None"
            if name in self._members:
                return f"there is a team named {name!r} already"
        return ""

    def enter(self, name: str | None, default: str, team: symm.Team, config: TeamConfig | None) -> int:
        """A handle for a new team."""
        with self._lock:
            while name is None and f"{default}_{self._next}" in self._members:
                self._next += 1
            handle = self._next
            self._next += 1
            name = f"{default}_{handle}" if name is None else name
            if name in self._members:  # another thread's, since refusal_of()
                raise NvshmemInvalid(f"there is a team named {name!r} already")
            self.add(name, handle)
            self._teams[handle] = team
            if config is not None:
                self._configs[handle] = copy.copy(config)
            return handle

    def take(self, team: int | str) -> symm.Team | None:
        """Takes a team out, with all its names. None for a number that is no team's."""
        handle = as_integer(self[team] if isinstance(team, str) else team)
        if handle is None or 0 <= handle < self._FIRST_OWN:
            raise NvshmemInvalid(f"{team!r} is no team that can be destroyed")
        self._members = {name: value for name, value in self._members.items()
                         if value != handle or name in self._predefined}
        self._configs.pop(handle, None)
        return self._teams.pop(handle, None)

    def team_of(self, team: Any) -> symm.Team:
        """The team of a handle, a name, or a :class:`shardwire.symm.Team`."""
        return team if isinstance(team, symm.Team) else self._teams[self._handle(team)]

    def config_of(self, team: Any) -> TeamConfig:
        return copy.copy(self._configs.get(self._handle(team)) or TeamConfig())

    def _handle(self, team: Any) -> int:
        everybody = world()
        handle = self._members.get(team, self.TEAM_INVALID) if isinstance(team, str) else team
        if handle not in self._teams:
            raise NvshmemTeamError(f"{team!r} is no team of this PE (of {everybody.size})")
        return handle


Teams = _Teams()


def _node_teams(everybody: symm.Team) -> tuple[symm.Team, symm.Team]:
    """The PEs that share memory with this PE, and the PEs with this PE's number in their own node. Collective."""
    probe = everybody.zeros(1, dtype=torch.int64)
    size = everybody.size
    near = torch.tensor([_is_near(probe, rank) for rank in range(size)], dtype=torch.uint8, device="cpu")
    all_near = torch.empty(size * size, dtype=torch.uint8, device="cpu")
    everybody.all_gather(all_near, near)  # a PE may address the memory of a PE that cannot address its own
    nodes = _nodes_of(all_near.view(size, size).tolist())
    own = next(node for node in nodes if everybody.rank in node)
    mine = own.index(everybody.rank)
    node = everybody if len(nodes) == 1 else everybody._part(own, "node")
    same = everybody._part(sorted(each[mine] for each in nodes if mine < len(each)), "mype")
    assert node is not None and same is not None
    return node, same


def _nodes_of(near: list[list[int]]) -> list[list[int]]:
    """The PEs in nodes whose PEs all address each other's memory. near[i][j]: PE i addresses the memory of PE j."""
    nodes: list[list[int]] = []
    for pe in range(len(near)):
        node = next((node for node in nodes if all(near[pe][other] and near[other][pe] for other in node)), None)
        if node is None:
            nodes.append([pe])
        else:
            node.append(pe)
    return nodes


def _is_near(probe: torch.Tensor, rank: int) -> bool:
    try:
        _C.symm_peer(probe, rank)
    except UnsupportedError:
        return False
    return True


def team_get_uniqueid() -> int:
    """A number for ``TeamConfig.uniqueid``: one PE takes the number, and gives it to all future members of the team of
    :func:`team_init`."""
    world()
    return secrets.randbits(63)


def get_team_unique_id() -> TeamUniqueId:
    """:func:`team_get_uniqueid`, as an object."""
    return TeamUniqueId(team_get_uniqueid())


def team_get_config(team: Any) -> TeamConfig:
    """A copy of the configuration that the team was made with."""
    return Teams.config_of(team)


def team_init(team_config: TeamConfig, config_mask: int = 0, npes: int = 1, pe_idx_in_team: int = 0,
              new_team_name: str | None = None) -> int:
    """A team of any PEs: each of the ``npes`` members calls this with its place in the team and the same
    ``team_config.uniqueid``. Other PEs do not call.

    Returns the team's handle. Raises NvshmemInvalid for a place that does not exist or is taken, and on all members
    for a name that a member has already; TimeoutError on the members when a member is missing. After an error the
    members need another uniqueid.
    """
    everybody = world()
    uid = team_config.uniqueid.value if isinstance(team_config.uniqueid, TeamUniqueId) else team_config.uniqueid
    numbers = [number for each in (npes, pe_idx_in_team, uid) if (number := as_integer(each)) is not None]
    if len(numbers) < 3 or not 0 <= numbers[1] < numbers[0] <= everybody.size:
        raise NvshmemTeamError(f"npes is {npes!r}, pe_idx_in_team {pe_idx_in_team!r} and the uniqueid "
                               f"{uid!r}; give integers, 0 <= place < npes <= {everybody.size}")
    try:
        team = everybody._meet(f"nvshmem_team{numbers[2]}", numbers[0], numbers[1], Teams.refusal_of(new_team_name))
    except ValueError as error:
        raise NvshmemTeamError(str(error)) from error
    return Teams.enter(new_team_name, "TEAM", team, team_config)


def team_my_pe(team: Any) -> int:
    """This rank in ``team``."""
    return Teams.team_of(team).rank


def team_n_pes(team: Any) -> int:
    """The number of ranks in ``team``."""
    return Teams.team_of(team).size


def _name_error(*names: str | None) -> Exception | None:
    refusal = Teams.refusal_of(*names)
    return NvshmemInvalid(refusal) if refusal else None


def team_split_strided(parent_team: Any, start: int, stride: int, size: int, config: TeamConfig | None = None,
                       config_mask: int = 0, new_team_name: str | None = None) -> int | None:
    """:meth:`shardwire.symm.Team.split_strided`: the new team's handle, None on PEs outside the new team. Collective
    over the parent. NvshmemInvalid on all PEs where a member has a team of this name already."""
    try:
        team = Teams.team_of(parent_team)._split_strided(start, stride, size, _name_error(new_team_name))
    except ValueError as error:
        raise NvshmemTeamError(str(error)) from None
    return None if team is None else Teams.enter(new_team_name, "TEAM", team, config)


def team_split_2d(parent_team: Any, xrange: int, xaxis_config: TeamConfig | None = None, xaxis_mask: int = 0,
                  yaxis_config: TeamConfig | None = None, yaxis_mask: int = 0,
                  new_team_name: str | None = None) -> tuple[int, int]:
    """:meth:`shardwire.symm.Team.split_2d`: the handles of this PE's row and column. Collective over the parent. Raises
    as :func:`team_split_strided`."""
    names = (None, None) if new_team_name is None else (f"{new_team_name}_X", f"{new_team_name}_Y")
    try:
        across, down = Teams.team_of(parent_team)._split_2d(xrange, _name_error(*names))
    except ValueError as error:
        raise NvshmemTeamError(str(error)) from None
    return (Teams.enter(names[0], "TEAM_X", across, xaxis_config),
            Teams.enter(names[1], "TEAM_Y", down, yaxis_config))


def team_translate_pe(src_team: Any, src_pe: int, dest_team: Any) -> int:
    """The PE in ``dest_team`` of ``src_pe``; -1 for a PE outside of one of the teams."""
    source, target = Teams.team_of(src_team), Teams.team_of(dest_team)
    number = as_count(src_pe, 0)
    if number is None:
        raise NvshmemTeamError(f"src_pe is {src_pe!r}; give a number from 0")
    pe = source.translate(number, target) if number < source.size else None
    return -1 if pe is None else pe


def team_destroy(team: int | str) -> None:
    """Ends a team on this PE, by handle or name. Does nothing for TEAM_INVALID, and for the handle of a team that has
    ended, as in NVSHMEM; KeyError for a missing name."""
    world()
    ended = Teams.take(team)
    if ended is not None:
        ended.destroy()
