"""Ranks of one trial, as forks of this process or under mpirun: each rank writes its progress on a shared page and
makes one report.

The parent has torch and shardwire imported and holds no group, so a trial of forked ranks costs tenths of a second. A
rank without a report in time must print its stacks (SIGUSR1), and then every process of the trial is ended. Reports are
files, not pipes as in tests/python/fork_ranks.py: mpirun's ranks have no pipes to this process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes

RANKS_ON_PAGE = 64
_FIELDS = ("pid", "state", "step", "mark")
_ENTRY = struct.Struct("=4q")
READY = 1
_PR_SET_PDEATHSIG = 1


class Page:
    """Four numbers of each rank (pid, state, step and a mark of the trial), in a file that all processes map."""

    def __init__(self, folder: Path) -> None:
        path = folder / "page"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, RANKS_ON_PAGE * _ENTRY.size)
        self._map = mmap.mmap(descriptor, RANKS_ON_PAGE * _ENTRY.size)
        os.close(descriptor)
        self._words = memoryview(self._map).cast("q")

    def get(self, rank: int, field: str) -> int:
        return self._words[rank * len(_FIELDS) + _FIELDS.index(field)]

    def set(self, rank: int, field: str, value: int) -> None:
        self._words[rank * len(_FIELDS) + _FIELDS.index(field)] = value

    def await_all(self, ranks: list[int], field: str, least: int, seconds: float) -> bool:
        """Whether the field of all these ranks reached `least` in time."""
        deadline = time.monotonic() + seconds
        while any(self.get(rank, field) < least for rank in ranks):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True


class Rank:
    """The things of a rank in a trial: number, page, folder, and the place of its report."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.page = Page(folder)
        self.page.set(rank, "pid", os.getpid())

    def publish(self, field: str, value: int) -> None:
        self.page.set(self.rank, field, value)

    def report(self, value: Any) -> None:
        part = self.folder / f"report.{self.rank}.part"
        part.write_bytes(pickle.dumps(value))
        part.rename(self.folder / f"report.{self.rank}")

    def linger(self) -> None:
        """A rank that leaves counts as failed for ranks still at work. So the rank stays, and the parent ends the
        rank."""
        while True:
            time.sleep(60)


def rank_main(folder: Path, rank: int, size: int, body: Callable[..., None], *args: Any) -> None:
    """In a rank's process; never returns. When the body raises, the report is the traceback."""
    stacks = open(folder / f"stacks.{rank}", "w")  # noqa: SIM115: open to the end of the process
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    me = Rank(folder, rank, size)
    try:
        body(me, *args)
    except BaseException:
        me.report({"broken": traceback.format_exc()})
        os._exit(1)
    os._exit(0)


class Trial:
    """The processes of one trial; use the object in a with statement, which ends all remaining processes."""

    def __init__(self, size: int, name: str) -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix=f"shardwire-{name}-"))
        self.page = Page(self.folder)
        self._children: dict[int, int] = {}  # pid -> rank
        self._codes: dict[int, int] = {}  # rank -> wait status
        self._killed: set[int] = set()  # pids
        self.crashed: dict[int, int] = {}  # rank -> wait status, of ranks that ended without kill()
        self._launcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_error: object) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        if self._launcher is not None:
            for rank in range(self.size):
                self._signal(rank, signal.SIGKILL)
            self._launcher.terminate()
            try:
                self._launcher.wait(10)
            except subprocess.TimeoutExpired:
                self._launcher.kill()
                self._launcher.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fork(self, body: Callable[..., None], *args: Any, environment: dict[str, str] | None = None) -> None:
        for rank in range(self.size):
            self.fork_rank(rank, body, *args, environment=environment)

    def fork_rank(self, rank: int, body: Callable[..., None], *args: Any,
                  environment: dict[str, str] | None = None) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives this process
            log = os.open(self.folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(environment or {})
            rank_main(self.folder, rank, self.size, body, *args)
        self._children[pid] = rank
        self._codes.pop(rank, None)
        self.page.set(rank, "pid", pid)

    def mpirun(self, script: str, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        """The script is started as `script ARGUMENTS --folder FOLDER` and calls rank_main. The ranks outlive the death
        of one rank."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = ["mpirun", "-n", str(self.size), "--oversubscribe", "--enable-recovery", *root, sys.executable,
                   script, *arguments, "--folder", str(self.folder)]
        with open(self.folder / "log.all", "wb") as log:
            self._launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                              preexec_fn=processes.end_with_parent,
                                              env={**os.environ, **(environment or {})})

    def _signal(self, rank: int, number: int) -> bool:
        pid = self.page.get(rank, "pid")
        if pid == 0 or (self._launcher is None and pid not in self._children):
            return False
        try:
            if self._launcher is not None and not re.search(re.escape(self.folder.name),
                                                            Path(f"/proc/{pid}/cmdline").read_text(errors="replace")):
                return False  # a zombie, or a pid that the system gave to another program
            os.kill(pid, number)
        except (ProcessLookupError, FileNotFoundError):
            return False
        return True

    def kill(self, rank: int) -> float:
        """SIGKILL; returns when."""
        now = time.monotonic()
        if self._signal(rank, signal.SIGKILL):
            self._killed.add(self.page.get(rank, "pid"))
        return now

    def stop(self, rank: int) -> None:
        self._signal(rank, signal.SIGSTOP)

    def go_on(self, rank: int) -> None:
        self._signal(rank, signal.SIGCONT)

    def reap(self) -> dict[int, int]:
        """Wait statuses of the ranks that ended so far."""
        for pid, rank in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                self._codes[rank] = status
                # A rank that ended before the signal has another status.
                if pid not in self._killed or os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
                    self.crashed[rank] = status
                self._killed.discard(pid)  # the system may give the pid to a later rank
        return self._codes

    def collect(self, ranks: list[int], deadline: float) -> dict[int, dict[str, Any]]:
        """The reports of these ranks up to then, with one look at least; {"hung": ...} or {"ended": status} in place of
        a missing report. "ended" is also in the report of a rank that failed later."""
        reports: dict[int, dict[str, Any]] = {}
        while True:
            gone = dict(self.reap())
            for rank in ranks:
                if rank not in reports:
                    report = self._read(rank)
                    if rank in gone:
                        report = self._last(rank, report, gone[rank])
                    if report is not None:
                        reports[rank] = report
            if len(reports) == len(ranks) or time.monotonic() >= deadline:
                break
            time.sleep(0.002)
        for rank, stacks in self.stacks([rank for rank in ranks if rank not in reports]).items():
            reports[rank] = {"hung": True, "log": self.log(rank), "stacks": stacks}
        return reports

    def stacks(self, ranks: list[int]) -> dict[int, str]:
        """The stacks of the threads of these ranks, by rank."""
        for rank in ranks:
            self._signal(rank, signal.SIGUSR1)
        if ranks:
            time.sleep(0.5)
        return {rank: self._stacks(rank) for rank in ranks}

    def _last(self, rank: int, report: dict[str, Any] | None, status: int) -> dict[str, Any]:
        """Of a rank that is gone: the report, and how the rank ended if the report does not say so."""
        if report is not None and (status == 0 or report.get("over") or "broken" in report):
            return report
        return {**(report or {}), "ended": status, "log": self.log(rank), "stacks": self._stacks(rank)}

    def _read(self, rank: int) -> dict[str, Any] | None:
        try:
            value = pickle.loads((self.folder / f"report.{rank}").read_bytes())
        except FileNotFoundError:
            return None
        return value if isinstance(value, dict) else {"broken": f"a report of {type(value).__name__}"}

    def log(self, rank: int) -> str:
        path = self.folder / ("log.all" if self._launcher is not None else f"log.{rank}")
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _stacks(self, rank: int) -> str:
        path = self.folder / f"stacks.{rank}"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""


def quantile(values: list[float], part: float) -> float:
    """The value not exceeded by `part` of the values; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())
