"""The place where two jobs find each other: small records under a name, in a store known to both jobs by URL.

A place has records (``peek``, ``put``), boxes in which any process can post and list notes, and fresh c10d stores for
groups. Only ``rest`` waits. One thread uses one place; another thread opens another place. Errors are OSError and
RuntimeError: then open the place anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

import torch.distributed as dist

from ..compiler.layout import kind_of
from ..process.log import log
from ..errors import CheckpointError, MismatchError, SystemFailure
from ..records.job_token import how_it_differs, is_proof, proof
from ..records.server import RecordServer
from ..records.client import RecordClient, RecordStore, count_of, record_of
from .regular_file import read_regular

_LOOK_S = 0.02
_ABSENT = b"?"  # no record has this value


class Place(Protocol):
    def peek(self, key: str) -> bytes | None: ...
    def put(self, key: str, value: bytes) -> None: ...
    def post(self, box: str, value: bytes) -> str:
        """Puts a note into the box and returns its name: ``peek(box + "/" + note)`` has the value."""
    def notes(self, box: str, after: int = 0) -> list[str]:
        """The names of the box's notes. Where names are numbers: of all notes ever put, those above ``after``."""
    def remove(self, note: str) -> None:
        """Removes the note, and records whose names continue the note's name."""
    def group_store(self, key: str) -> Any:
        """A c10d store; keep the store as long as the group."""
    def rest(self, seconds: float) -> None:
        """Waits until the place may have changed; about `seconds` where the place has no notifications."""


class _NumberedPlace(Place):
    """A place that counts the notes of a box: a note's name is its number."""

    def _add(self, key: str) -> int:
        raise NotImplementedError

    def post(self, box: str, value: bytes) -> str:
        note = str(self._add(f"{box}.count"))
        self.put(f"{box}/{note}", value)
        return note

    def notes(self, box: str, after: int = 0) -> list[str]:
        return [str(number) for number in range(after + 1, count_of(self.peek(f"{box}.count") or b"0") + 1)]


class StorePlace(_NumberedPlace):
    """A place in a torch.distributed store, which many connections may share."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = dist.PrefixStore(prefix, store)

    def _add(self, key: str) -> int:
        return self._store.add(key, 1)

    def peek(self, key: str) -> bytes | None:
        # The only call that reads without waiting in every store of every torch: nothing is exchanged unless the value
        # is "?".
        value = bytes(self._store.compare_set(key, _ABSENT.decode(), _ABSENT.decode()))
        return None if value == _ABSENT else value

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value.decode())

    def remove(self, note: str) -> None:
        self._store.delete_key(note)
        self._store.delete_key(f"{note}.go")

    def group_store(self, key: str) -> Any:
        return dist.PrefixStore(f"{key}/", self._store)

    def rest(self, seconds: float) -> None:
        time.sleep(min(seconds, _LOOK_S))


class RecordPlace(_NumberedPlace):
    """A place in the records served by the publisher's rank 0."""

    def __init__(self, client: RecordClient, prefix: str) -> None:
        self._client, self._prefix = client, f"{prefix}/"

    def peek(self, key: str) -> bytes | None:
        value = self._client.ask("peek", self._prefix + key)
        return None if value is None else record_of(value)

    def put(self, key: str, value: bytes) -> None:
        self._client.ask("put", self._prefix + key, value.decode("latin-1"))

    def _add(self, key: str) -> int:
        return count_of(self._client.ask("add", self._prefix + key, 1))

    def remove(self, note: str) -> None:
        self._client.ask("remove", self._prefix + note)

    def group_store(self, key: str) -> Any:
        return RecordStore(self._client, f"{self._prefix}{key}/")

    def rest(self, seconds: float) -> None:
        self._client.rest(seconds)


class FolderPlace:
    """A place in a folder visible to all hosts. A record is a file that appears whole. Each group has a separate file
    as its store, so a process killed while writing harms no other group.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def peek(self, key: str) -> bytes | None:
        try:
            return read_regular(self._path(key))
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            raise SystemFailure(str(error)) from None

    def put(self, key: str, value: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            hidden.write_bytes(value)
            hidden.replace(path)
        except BaseException:  # a full disk: the caller tries again and again
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            raise

    def post(self, box: str, value: bytes) -> str:
        note = secrets.token_hex(8)
        self.put(f"{box}/{note}", value)
        return note

    def notes(self, box: str, after: int = 0) -> list[str]:
        try:
            return [name for name in os.listdir(self._path(box)) if not name.startswith(".") and "." not in name]
        except FileNotFoundError:
            return []

    def remove(self, note: str) -> None:
        path = self._path(note)
        path.unlink(missing_ok=True)
        # Not glob(): Python keeps the compiled form of up to 32,768 patterns.
        for name in os.listdir(path.parent):
            if name.startswith(f"{path.name}."):
                (path.parent / name).unlink(missing_ok=True)

    def rest(self, seconds: float) -> None:
        time.sleep(min(seconds, _LOOK_S))

    def group_store(self, key: str) -> Any:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return dist.FileStore(str(path), -1)

    def _path(self, key: str) -> Path:
        return self._folder.joinpath(*key.split("/"))


class Address:
    """The caller's ``store``: a URL, or a store of torch.distributed. Opened anew for each use; ``text`` is for
    messages."""

    def __init__(self, where: Any, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name is {kind_of(name)}; give a str")
        if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
            raise ValueError(f"name is {name!r}; letters, digits and - _ . make a name")
        self.name = name
        self._prefix = f"shardwire.publish/{name}"
        self._store: Any = None
        self._host, self._port = "", 0
        self._folder: Path | None = None
        if isinstance(where, str):
            self._read_url(where)
        elif isinstance(where, dist.Store):
            self._store = where
            self.text = f"a {type(where).__name__}"
        else:
            raise TypeError(f"store is {kind_of(where)}; give a URL (tcp://HOST:PORT or file:///FOLDER), or a store of "
                            "torch.distributed")

    @property
    def is_folder(self) -> bool:
        return self._folder is not None

    def open(self, seconds: float) -> Place:
        """Opens the place. SystemFailure without a server."""
        if self._folder is not None:
            return FolderPlace(self._folder / self._prefix)
        if self._store is not None:
            return StorePlace(self._store, self._prefix)
        try:
            return RecordPlace(RecordClient(self._host, self._port, seconds), self._prefix)
        except OSError as error:
            raise SystemFailure(f"the store at {self.text} cannot be reached: {error}. The publisher's rank 0 serves "
                                "it where HOST is its own host") from None

    def serve(self) -> RecordServer | None:
        """A server at this address, to be kept by the caller; None where the address is not this host's or already has
        a server."""
        if not self._host:
            return None
        try:
            server = RecordServer(self._host, self._port)
        except OSError:
            # The address is another host's, or taken: open() reports the error
            return None
        log("info", f"publish {self.name!r}: the records of {self.text} are served at {server.address}")
        return server

    def _read_url(self, url: str) -> None:
        parts = urlparse(url)
        self.text = url
        if parts.scheme == "file" and parts.path.startswith("/") and parts.netloc in ("", "localhost"):
            self._folder = Path(unquote(parts.path))
            return
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme != "tcp" or not host or not port:
            raise ValueError(f"store is {url!r}; give tcp://HOST:PORT or file:///FOLDER")
        self._host, self._port = host, port


def tidy(place: Place, note: str) -> None:
    """Removes a note after its use; a store that is gone has no note either."""
    with contextlib.suppress(OSError, RuntimeError):
        place.remove(note)


# Records with a proof of the job's token.

def signed(role: str, record: dict[str, Any]) -> bytes:
    body = json.dumps(record, sort_keys=True)
    return json.dumps({"body": body, "proof": proof(role, body)}).encode()


def verified(role: str, data: bytes, what: str) -> dict[str, Any]:
    """The record. MismatchError, with ``what`` in its text, where the writer has another token than this process;
    ValueError for a malformed record."""
    try:
        whole = json.loads(data)
        body, given = whole["body"], whole["proof"]
        record = json.loads(body)
        if not isinstance(record, dict) or not isinstance(given, str):
            raise ValueError("it is of another form")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{what} cannot be read: {error}") from None
    if not is_proof(given, role, body):
        raise MismatchError(f"{what} {how_it_differs(bool(given))}")
    return record
