"""A subscriber's search for the publisher of a name: read the publisher's record, post a note, and wait until each of
the publisher's ranks has accepted the note."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import time
from typing import Any

from ..errors import MismatchError, ShardwireError, SystemFailure
from ..errors import TimeoutError as GroupTimeoutError
from .meeting_place import Address, Place, signed, tidy, verified
from .progress import SILENT, Progress

_LOOK_S = 0.01
# A record or a store with another token may be an earlier job's, and may soon be replaced
_FOREIGN_S = 2.0
MAX_RANKS = 1 << 20  # of a publisher, and of a subscriber
# Errors of a folder that no waiting ends
_STAYING = (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


class Malformed(ValueError):
    """A record that no process of shardwire wrote."""


def open_place(address: Address, deadline: float, shown: Progress = SILENT) -> Place:
    foreign_until: float | None = None
    while True:
        shown.look()
        try:
            return address.open(max(0.5, deadline - time.monotonic()))
        except SystemFailure as error:
            if time.monotonic() > deadline:
                raise GroupTimeoutError(f"there is no publisher of {address.name!r}: {error}") from None
        except MismatchError:
            foreign_until = foreign_until or time.monotonic() + _FOREIGN_S
            if time.monotonic() > min(deadline, foreign_until):
                raise
        time.sleep(_LOOK_S)


def find(address: Address, size: int, deadline: float, shown: Progress = SILENT) -> dict[str, Any]:
    """The publisher of the name, after all its ranks accepted this subscriber: the id, the size, and the name of the
    posted note. A newer publisher replaces an older one."""
    place: Place | None = None
    seen, note, record = "", "", {}
    foreign_since: float | None = None
    foreign: MismatchError | None = None
    missing: list[int] = []
    trouble = ""  # the last error; "" after a look without an error
    while True:
        shown.look()
        try:
            place = place or open_place(address, deadline, shown)
            found, foreign = _record(place, address)
            if foreign is not None:
                foreign_since = foreign_since or time.monotonic()
                if time.monotonic() - foreign_since > _FOREIGN_S:
                    raise foreign
            if found and found["id"] != seen:
                seen, record = found["id"], found
                ask = {"id": seen, "size": size, "seconds": max(0.0, deadline - time.monotonic()),
                       "nonce": secrets.token_hex(8), "who": f"pid {os.getpid()} on {socket.gethostname()}"}
                note = place.post(seen, signed("subscriber", ask))
            if found:
                missing = _missing(place, record, note)
                if not missing:
                    place.put(f"{seen}/{note}.go", b"go")
                    return {"id": seen, "size": record["size"], "note": note}
            place.rest(min(0.25, max(0.0, deadline - time.monotonic())))
            trouble = ""
        except (RuntimeError, OSError, Malformed) as error:
            if isinstance(error, ShardwireError):
                _take_back(place, seen, note)
                raise
            if address.is_folder and isinstance(error, OSError) and error.errno in _STAYING:
                raise SystemFailure(f"{address.text} cannot be used: {error}") from error
            # The store's server ended, or the record is no publisher's; the next publisher starts or writes another
            trouble = f"; the last error there: {error}"
            place, seen, record = None, "", {}
            time.sleep(_LOOK_S)
        if time.monotonic() > deadline:
            _take_back(place, seen, note)
            raise _nobody(address, record, missing, trouble)


def _take_back(place: Place | None, publication: str, note: str) -> None:
    """Ranks of a publisher remove served notes only, not refused notes or notes of a subscriber that stops waiting."""
    if place is not None and publication:
        tidy(place, f"{publication}/{note}")


def _record(place: Place, address: Address) -> tuple[dict[str, Any] | None, MismatchError | None]:
    """The publisher's record; None without a record, or when the publication was closed or is another job's."""
    data = place.peek("publisher")
    if data is None:
        return None, None
    what = f"the publisher of {address.name!r} in {address.text}"
    try:
        record = verified("publisher", data, what)
    except MismatchError as error:
        return None, error
    except ValueError as error:
        raise Malformed(str(error)) from None
    if not _is_publisher(record):
        raise Malformed(f"{what} cannot be read: the record is of another form")
    return (None if _is_closed(place, record["id"]) else record), None


def _is_publisher(record: dict[str, Any]) -> bool:
    publication, size, who = record.get("id"), record.get("size"), record.get("who")
    return (isinstance(publication, str) and publication.isalnum() and type(size) is int and 0 < size < MAX_RANKS
            and isinstance(who, list) and len(who) == size)


def closed_key(publication: str) -> str:
    return f"{publication}.closed"


def _is_closed(place: Place, publication: str) -> bool:
    data = place.peek(closed_key(publication))
    try:
        return data is not None and verified("closed", data, "the publisher's last record")["id"] == publication
    except (MismatchError, ValueError, KeyError):
        return False  # a foreign job's record


def _missing(place: Place, record: dict[str, Any], note: str) -> list[int]:
    """The publisher's ranks that have not answered the note yet. Raises the answer of a rank that refused."""
    missing = []
    for rank in range(record["size"]):
        answered = place.peek(f"{record['id']}/{note}.answer.{rank}")
        if answered is None:
            missing.append(rank)
            continue
        try:
            answer, reason = json.loads(answered)
        except (ValueError, TypeError, RecursionError):
            raise Malformed(f"the answer of the publisher's rank {rank} cannot be read") from None
        if answer != "yes":
            raise MismatchError(f"the publisher's rank {rank} refused this job: {reason}")
    return missing


def _nobody(address: Address, record: dict[str, Any], missing: list[int], trouble: str) -> Exception:
    if not record:
        return GroupTimeoutError(f"there is no publisher of {address.name!r} in {address.text}{trouble}")
    who = ", ".join(f"rank {rank} ({record['who'][rank]})" for rank in missing[:8]) + (
        f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return GroupTimeoutError(f"the publisher of {address.name!r} does not answer: {who} of {record['size']} died or "
                             "stopped; a new publisher of that name would be found")
