"""Lines of log. They go to Python's ``logging``, logger "shardwire", once the program has configured this logger or the
root logger; before, to stderr by SHARDWIRE_LOG.

Lines of the native side come from threads that must never wait for the GIL. So these threads do not call Python: they
send each line into a local socket, without waiting, and a Python thread reads the lines. When the socket is full, the
line goes to stderr. The native side's errors go to stderr too, since an error may be a process's last line. A forked
child starts again with stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import sys
import threading

from .. import _C

_LEVELS = {"error": logging.ERROR, "warn": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_logger = logging.getLogger("shardwire")
_lock = threading.Lock()
# The native side's end, and Python's end; never closed
_sockets: tuple[socket.socket, socket.socket] | None = None
_reader: threading.Thread | None = None
_END_S = 5.0  # a handler that blocks does not keep the process
# The level of native lines sent to the socket; empty: native lines go to stderr
_routed = ""


def log(level: str, text: str, is_news: bool = False) -> None:
    """Writes a line in the native side's format. is_news: the line is shown, despite a level below warnings, unless
    SHARDWIRE_LOG forbids the level."""
    text = " ".join(text.split())
    if route():
        _logger.log(_LEVELS[level], "%s", text)
        return
    chosen = os.environ.get("SHARDWIRE_LOG") or ("info" if is_news else "warn")
    if _LEVELS[level] >= _LEVELS.get(chosen.lower(), logging.WARNING):
        _write(level, text)


def _write(level: str, text: str) -> None:
    """Writes a line to stderr, as the native side does."""
    with contextlib.suppress(OSError, AttributeError, ValueError):  # stderr is closed
        os.write(sys.__stderr__.fileno(),  # type: ignore[union-attr]
                 f"shardwire {level} [{os.getpid()}]: {text}\n".encode(errors="replace"))


def route() -> bool:
    """Sends the native side's lines to the target that the program wants now, and returns whether the target is
    ``logging``. Called where groups are made, and for every line of Python's side."""
    global _routed
    is_taken = _is_configured()
    if not is_taken and not _routed:
        return False
    effective = _logger.getEffectiveLevel()
    level = (next((name for name, number in reversed(_LEVELS.items()) if number >= effective), "error") if is_taken
             else "")
    with _lock:
        if level != _routed:
            _C.send_log_to(_ends()[0].fileno() if is_taken else -1, level or os.environ.get("SHARDWIRE_LOG", "warn"))
            _routed = level
    return is_taken


def _is_configured() -> bool:
    """Whether the program configured a target for this logger. SHARDWIRE_LOG is for this logger alone, so the variable
    overrides a configuration of all loggers."""
    if _logger.handlers or _logger.level != logging.NOTSET:
        return True
    return not os.environ.get("SHARDWIRE_LOG") and (_logger.hasHandlers()
                                                    or (_logger.propagate and logging.root.level != logging.WARNING))


def _ends() -> tuple[socket.socket, socket.socket]:
    global _sockets, _reader
    if _sockets is None:
        _sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        _reader = threading.Thread(target=_read, args=(_sockets[1],), daemon=True, name="shardwire-log")
        _reader.start()
    return _sockets


def _read(ours: socket.socket) -> None:
    while line := ours.recv(1 << 16).decode(errors="replace"):  # an empty line ends the thread
        level, _, text = line.split(" ", 2)
        try:
            _logger.log(_LEVELS.get(level, logging.WARNING), "%s", text)
        # Handlers and filters are the program's, and raise anything. Without this thread all later lines would be lost.
        except Exception as error:
            _write(level, f"{text} (logging raised {' '.join(f'{type(error).__name__}: {error}'.split())})")


def _begin_anew() -> None:
    """Resets a forked child, which has neither the thread nor the lock's owner."""
    global _lock, _sockets, _routed
    _lock = threading.Lock()
    if _routed:
        _C.send_log_to(-1, os.environ.get("SHARDWIRE_LOG", "warn"))
    _sockets, _routed = None, ""


def _end() -> None:
    """Waits until the thread has logged the lines under way; later lines of the ending process go to stderr."""
    if _sockets is not None and _reader is not None and _reader.is_alive():
        _C.send_log_to(-1, os.environ.get("SHARDWIRE_LOG", "warn"))
        # A handler that blocks may have left the socket full.
        _sockets[0].settimeout(_END_S)
        with contextlib.suppress(OSError):
            _sockets[0].send(b"")
        _reader.join(_END_S)


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(_end)
