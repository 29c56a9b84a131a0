"""Runs a program of a bench, such as mpirun or another bench. No process of the program outlives the bench.

The program leads a separate session, since mpirun gives each rank a process group. run() ends all processes of the
session before run() returns or raises: at a timeout, at Ctrl-C, and at SIGTERM and SIGHUP, which raise SystemExit in
the bench. At SIGKILL of the bench the kernel sends SIGTERM to mpirun, and mpirun ends the ranks. shardwire.launch
starts a session for each rank, and ends the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
GRACE_S = 5.0  # from SIGTERM to SIGKILL
GRACE_OF_BENCHES_S = 3 * GRACE_S  # for programs with a call of run()


def run(command: Sequence[str], timeout: float | None = None, grace: float = GRACE_S,
        **options: Any) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` with captured text, without input; options override these choices."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                             "text": True, **options}
    with (_exit_by_signals(),
          subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent, **given) as process):
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            _end(process.pid, grace)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@contextlib.contextmanager
def _exit_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit meanwhile, unless the bench ignores or handles these signals."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP)
               if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """In a forked process: SIGTERM when the parent ends."""
    # SIGTERM, since mpirun cannot end its ranks at SIGKILL
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(session: int, grace: float) -> None:
    _signal_all(session, signal.SIGTERM)
    begin = time.monotonic()
    while _living(session):
        waited = time.monotonic() - begin
        if waited > grace:
            _signal_all(session, signal.SIGKILL)
        if waited > 2 * grace:
            return  # SIGKILL ends no process within a blocked system call
        time.sleep(0.01)


def _signal_all(session: int, number: int) -> None:
    for pid in _living(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _living(session: int) -> list[int]:
    """The processes of a session, without zombies."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            state, _, _, its_session = pathlib.Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if int(its_session) == session and state not in (b"Z", b"X"):
                found.append(int(name))
    return found
