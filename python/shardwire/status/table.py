"""The picture as text for a terminal: by rich where installed, plain lines otherwise."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from .picture import has_other_numbers, label, seconds

_WORDS = {"failed": "failed", "stopped": "STOPPED", "dead": "DEAD", "silent": "SILENT", "unreported": "does not report",
          "left": "left", "elsewhere": "on another host"}
_COLUMNS = ("pid", "host", "state", "since", "waits for", "last", "transports")


def plain(picture: dict[str, Any]) -> str:
    """The whole picture as lines."""
    if not picture["groups"]:
        return nothing(picture)
    parts = []
    for group in picture["groups"]:
        rows = _rows(group)
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        parts.append("\n".join([_title(group), *lines, *(f"-> {sentence}" for sentence in group["sentences"])]))
    return "\n\n".join(parts)


def rendered(picture: dict[str, Any], width: int) -> str:
    """As :func:`plain`, by rich where installed."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        return plain(picture)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width)
    if not picture["groups"]:
        console.print(escape(nothing(picture)))
    for group in picture["groups"]:
        head, *rows = _rows(group)
        table = Table(*head, title=escape(_title(group)), title_justify="left")
        for rank, row in zip(group["ranks"], rows):
            table.add_row(*map(escape, row), style=_style(rank, group["culprits"]))
        console.print(table)
        for sentence in group["sentences"]:
            console.print(f"[bold]->[/bold] {escape(sentence)}", highlight=False)
    return out.getvalue()


def nothing(picture: dict[str, Any]) -> str:
    states = [f"process {process['pid']} is {process['state']}" for process in picture["processes"]
              if process["state"] != "answers"]
    if states:
        return "; ".join(states) + "; no other process reports groups"
    if picture["processes"]:
        return f"{len(picture['processes'])} processes answer, and have no group now"
    return ("no process of this user reports a status here; start the job with SHARDWIRE_STATUS=1, or call "
            "shardwire.status.serve() in it")


def _title(group: dict[str, Any]) -> str:
    name = f'"{group["name"]}"' if group["name"] else "without a name"
    numbers = (f" (global ranks {', '.join(map(str, group['global_ranks']))})" if has_other_numbers(group["ranks"])
               else "")
    return f"group {name} of {group['world_size']} ranks{numbers}, made {seconds(group['age_s'])} ago"


def _style(rank: dict[str, Any], culprits: list[int]) -> str:
    return ("red" if rank["state"] in ("failed", "stopped", "dead", "silent") else "yellow" if rank["rank"] in culprits
            else "")


def _rows(group: dict[str, Any]) -> list[tuple[str, ...]]:
    """The head and a row per rank."""
    if has_other_numbers(group["ranks"]):
        return [("rank", "global", *_COLUMNS),
                *((str(rank["rank"]), str(rank["global_rank"]), *_row(rank)) for rank in group["ranks"])]
    return [("rank", *_COLUMNS), *((str(rank["rank"]), *_row(rank)) for rank in group["ranks"])]


def _row(rank: dict[str, Any]) -> tuple[str, ...]:
    operation = rank["in_flight"][0] if rank["in_flight"] else None
    state = _WORDS.get(rank["state"]) or (label(operation) if operation else "idle")
    if len(rank["in_flight"]) > 1:
        state += f" and {len(rank['in_flight']) - 1} more"
    last = rank["last"]
    ago = "" if last is None or last["seconds_ago"] is None else f", {seconds(last['seconds_ago'])} ago"
    return (str(rank["pid"] or "?"), rank["host"], state, seconds(operation["seconds"]) if operation else "",
            ", ".join(map(str, operation["waits_for"])) if operation else "", f"{label(last)}{ago}" if last else "",
            _transports(rank["transports"]))


def _transports(by_peer: dict[str, str]) -> str:
    """The peers by transport: "shm to 1, 2; tcp to 3"."""
    peers: dict[str, list[str]] = {}
    for peer, text in by_peer.items():
        peers.setdefault(text.split(",")[0].split(" ")[0], []).append(peer)
    return "; ".join(f"{name} to {', '.join(who)}" for name, who in peers.items() if name)


@contextlib.contextmanager
def hidden_cursor(write: Any) -> Any:
    """A context without the cursor, while the picture is drawn again and again."""
    write("\x1b[?25l")
    try:
        yield
    finally:
        write("\x1b[?25h")
