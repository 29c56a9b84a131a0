"""Joins the reports of processes into one picture of each group, and names the waiting ranks and the ranks waited
for. Pure except for a look at silent processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .processes import Process, state_of

WAITS_AFTER = 0.5  # seconds in one operation after which a rank counts as waiting


def picture(processes: Sequence[Process], host: str, state: Callable[[int], str] = state_of) -> dict[str, Any]:
    """All groups that the processes report: ``{"groups": [...], "processes": [...]}``, as JSON values.

    A group has ``id``, ``name``, ``world_size``, ``global_ranks`` (the job's number of each rank), ``ranks`` (one entry
    per rank, whether the process answers or not), ``traffic`` (a row per rank: bytes sent to each rank), ``culprits``
    (the ranks that other ranks wait for) and ``sentences``.

    host: the name of this host. ``state`` gives the state of a pid, and is called for ranks on this host only.
    """
    answers = {process.pid: process for process in processes}
    reports: dict[str, dict[int, tuple[int, dict[str, Any]]]] = {}
    for process in processes:
        for group in (process.status or {}).get("groups", []):
            reports.setdefault(group["id"], {})[group["rank"]] = (process.pid, group)
    groups = [_group(identity, ranks, answers, host, state) for identity, ranks in reports.items()]
    groups.sort(key=lambda group: (-group["age_s"], group["name"], group["id"]))
    return {"groups": groups, "processes": [{"pid": process.pid, "state": process.state} for process in processes]}


def _group(identity: str, reports: dict[int, tuple[int, dict[str, Any]]], answers: dict[int, Process], host: str,
           state: Callable[[int], str]) -> dict[str, Any]:
    anyone = next(iter(reports.values()))[1]
    size = anyone["world_size"]
    ranks = []
    for rank in range(size):
        if rank in reports:
            ranks.append(_rank_that_reports(rank, *reports[rank]))
        else:
            peer = next((each for each in anyone["peers"] if each["rank"] == rank), {"pid": 0, "host": "?"})
            here = any(each["host"] == peer["host"] for _, group in reports.values() for each in group["peers"]
                       if each["rank"] == group["rank"])
            ranks.append(
                _silent_rank(rank, anyone["global_ranks"][rank], peer, answers, here or peer["host"] == host, state))
    traffic = [[reports[rank][1]["peers"][peer]["sent_bytes"]
                if rank in reports and peer < len(reports[rank][1]["peers"]) else 0 for peer in range(size)]
               for rank in range(size)]
    for rank in range(size):  # for a rank without a report: the peers' counts of bytes received from this rank
        for peer, (_, group) in reports.items():
            if rank not in reports and rank < len(group["peers"]):
                traffic[rank][peer] = group["peers"][rank]["received_bytes"]
    return {"id": identity, "name": anyone["name"], "world_size": size, "global_ranks": anyone["global_ranks"],
            "age_s": anyone["age_s"], "ranks": ranks, "traffic": traffic, "culprits": culprits(ranks),
            "sentences": sentences(ranks)}


def _rank_that_reports(rank: int, pid: int, group: dict[str, Any]) -> dict[str, Any]:
    mine = next((peer for peer in group["peers"] if peer["rank"] == rank), {"host": "?"})
    in_flight = group["in_flight"]
    state = "failed" if group["failure"] else "in" if in_flight else "idle"
    return {"rank": rank, "global_rank": group["global_ranks"][rank], "pid": pid, "host": mine["host"], "state": state,
            "failure": group["failure"], "in_flight": in_flight, "last": _last(group), "latest": group["latest"],
            "busy": group["busy"], "sequence": group["sequence"],
            "transports": {str(peer["rank"]): peer["transport"] for peer in group["peers"] if peer["rank"] != rank}}


def _silent_rank(rank: int, global_rank: int, peer: dict[str, Any], answers: dict[int, Process], is_here: bool,
                 state: Callable[[int], str]) -> dict[str, Any]:
    pid = peer["pid"]
    known = answers.get(pid)
    how = "elsewhere" if not is_here else known.state if known is not None and known.state != "answers" else state(pid)
    if how == "silent" and known is None:
        how = "unreported"  # the process runs, and has no socket
    if known is not None and known.state == "answers":
        how = "left"  # the process answers, but no longer has this group
    return {"rank": rank, "global_rank": global_rank, "pid": pid, "host": peer["host"], "state": how, "failure": "",
            "in_flight": [], "last": None, "latest": [], "busy": False, "sequence": None, "transports": {}}


def _last(group: dict[str, Any]) -> dict[str, Any] | None:
    """The latest finished operation, with the time since its end where the end was recorded."""
    over = [operation for operation in group["latest"] if operation["ended_s_ago"] is not None]
    if over:
        return {"operation": over[-1]["operation"], "seq": over[-1]["seq"], "seconds_ago": over[-1]["ended_s_ago"]}
    if group["last_call"] and not group["in_flight"]:
        return {"operation": group["last_call"], "seq": group["sequence"], "seconds_ago": None}
    return None


# ---- which ranks wait for which


def _waiting(ranks: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The current operation of each waiting rank."""
    return {rank["rank"]: rank["in_flight"][0] for rank in ranks
            if rank["state"] == "in" and rank["in_flight"][0]["seconds"] >= WAITS_AFTER}


def _ends(first: int, waiting: dict[int, dict[str, Any]], goes_on: Callable[[int], bool]) -> list[int]:
    """The ranks at the ends of the chains of waits from ``first``. A chain continues through each waiting rank for
    which ``goes_on`` returns True. Empty: all chains are circles."""
    ends, seen, open_ones = set(), {first}, list(waiting[first]["waits_for"])
    while open_ones:
        rank = open_ones.pop()
        if rank in seen:
            continue
        seen.add(rank)
        if rank in waiting and waiting[rank]["waits_for"] and goes_on(rank):
            open_ones += waiting[rank]["waits_for"]
        else:
            ends.add(rank)
    return sorted(ends)


def culprits(ranks: Sequence[dict[str, Any]]) -> list[int]:
    """The ranks that other ranks wait for and that wait for no rank. Where all wait for each other: the ranks waited
    for."""
    waiting = _waiting(ranks)
    found: set[int] = set()
    for rank, operation in waiting.items():
        found.update(_ends(rank, waiting, lambda _: True) or operation["waits_for"])
    return sorted(found)


# ---- sentences


def sentences(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence for each set of ranks that wait in one call for the same ranks: "ranks 0, 2 wait in all_reduce #17
    for rank 1, which ...".

    Where a rank waits for another rank in the same call, and the other rank waits too, the sentence names the ranks at
    the end of the chain.
    """
    waits = _waiting(ranks)
    waiting: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank, operation in waits.items():
        name = label(operation)
        whom = (_ends(rank, waits, lambda other, name=name: label(waits[other]) == name)  # type: ignore[misc]
                or operation["waits_for"])
        waiting.setdefault((name, tuple(whom)), []).append(rank)
    sentences = [_wait(operation, who, whom, ranks) for (operation, whom), who in waiting.items()]
    failures: dict[str, list[int]] = {}
    for one in ranks:
        if one["state"] == "failed":
            failures.setdefault(one["failure"], []).append(one["rank"])
    sentences += [f"{listed(who, ranks)} cannot use this group any more: {why}" for why, who in failures.items()]
    awaited = {rank for _, whom in waiting for rank in whom}
    gone = [rank for rank in ranks if rank["state"] in ("dead", "stopped", "silent") and rank["rank"] not in awaited]
    return sentences + [f"{listed([rank['rank']], ranks)} {_how(rank, ranks)}" for rank in gone]


def _wait(operation: str, who: list[int], whom: tuple[int, ...], ranks: Sequence[dict[str, Any]]) -> str:
    begin = f"{listed(who, ranks)} {'waits' if len(who) == 1 else 'wait'} in {operation}"
    if not whom:
        why = ranks[who[0]]["in_flight"][0]["why"]
        return f"{begin}: {why}" if why else begin
    if len(whom) == 1:
        return f"{begin} for {listed(whom, ranks)}, which {_how(ranks[whom[0]], ranks)}"
    return f"{begin} for {listed(whom, ranks)}: " + "; ".join(f"rank {rank} {_how(ranks[rank], ranks)}"
                                                              for rank in whom)


def _how(rank: dict[str, Any], ranks: Sequence[dict[str, Any]]) -> str:
    """The state of a rank, as the end of a sentence that begins with the rank."""
    state, pid = rank["state"], rank["pid"]
    if state == "in":
        operation = rank["in_flight"][0]
        whom = operation["waits_for"]
        return f"is in {label(operation)} since {seconds(operation['seconds'])}" + (
            f" and waits for {listed(whom, ranks)}" if whom else "")
    if state == "idle":
        last = rank["last"]
        if last is None:
            return "is in no operation, and was in none yet"
        ago = "" if last["seconds_ago"] is None else f", {seconds(last['seconds_ago'])} ago"
        return f"is in no operation (last: {label(last)}{ago})"
    return {"failed": f"cannot use this group any more ({rank['failure']})",
            "stopped": f"is stopped (pid {pid} got SIGSTOP, or a debugger holds it)",
            "dead": f"is dead (pid {pid} is gone)",
            "silent": f"does not answer (pid {pid} runs; its status thread gets no time)",
            "left": f"has left this group (pid {pid} runs)",
            "unreported": f"does not report (pid {pid} runs without SHARDWIRE_STATUS=1)",
            "elsewhere": f"is on another host ({rank['host']})"}[state]


def label(operation: dict[str, Any]) -> str:
    """The operation with its number, "all_reduce #17"; a message without a number."""
    text = re.sub(r"^a run of ", "", operation["operation"])
    short = re.match(r'[^(]*"[^"]*"|[^(]+', text)
    name = (short.group(0) if short else text).strip()
    return f"{name} #{operation['seq']}" if operation["seq"] else text


def listed(who: Sequence[int], ranks: Sequence[dict[str, Any]]) -> str:
    """The ranks as text: "rank 1", "ranks 0, 2, 3"; "ranks 0, 1 (global ranks 2, 3)" in a group that numbers its ranks
    otherwise than the job."""
    def text(numbers: Sequence[int]) -> str:
        return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))

    return text(who) + (f" (global {text([ranks[rank]['global_rank'] for rank in who])})" if has_other_numbers(ranks)
                        else "")


def has_other_numbers(ranks: Sequence[dict[str, Any]]) -> bool:
    """Whether the group numbers its ranks otherwise than the job."""
    return any(rank["global_rank"] != rank["rank"] for rank in ranks)


def seconds(value: float) -> str:
    """"3 ms", "1.5 s", "12 s", "5 min"."""
    if value < 1:
        return f"{value * 1e3:.0f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"
