"""Starts N local ranks of a script: ``python -m shardwire.launch -n 4 train.py --epochs 3``.

Works alike with all torch versions that shardwire supports, also where torchrun does not. Each rank gets RANK, LOCAL_RANK, WORLD_SIZE,
LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, so ``init_process_group("shardwire")`` needs no further arguments. When a rank fails, the others are
stopped, the rank is named, and its exit code is this program's (128 + N for one that signal N killed). Signals to this program go to all ranks.

This file imports the standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import BinaryIO

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A TCP port of this host that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, size: int, address: str, port: int) -> dict[str, str]:
    """This process's environment with what ``init_method="env://"`` reads on rank ``rank``."""
    environment = dict(os.environ)
    environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR=address,
                       MASTER_PORT=str(port))
    environment.setdefault("OMP_NUM_THREADS", "1")
    # Debian's torch 2.6 was built without libuv and yet asks for it; the plain TCPStore exists everywhere.
    environment.setdefault("USE_LIBUV", "0")
    return environment


class Launcher:
    """The ranks of one job on this host. Used by one thread; signal handlers run on it too."""

    def __init__(self, command: Sequence[str], size: int, address: str = "127.0.0.1", port: int = 0, prefix: bool = False,
                 grace: float = 5.0) -> None:
        self._command = list(command)
        self._size = size
        self._address = address
        self._port = port or free_port()
        self._prefix = prefix
        self._grace = grace
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._printers: list[threading.Thread] = []
        self._output_lock = threading.Lock()
        self._signal = 0
        self._stopping = False

    def run(self) -> int:
        """Starts all ranks, waits for all, and returns the exit code for this program."""
        previous = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        try:
            for rank in range(self._size):
                self._start(rank)
            return self._wait()
        finally:
            self._kill_all(signal.SIGKILL)
            for printer in self._printers:
                printer.join(timeout=self._grace)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self, rank: int) -> None:
        pipe = subprocess.PIPE if self._prefix else None
        process = subprocess.Popen(self._command, env=rank_environment(rank, self._size, self._address, self._port), stdout=pipe, stderr=pipe,
                                   stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)
        self._ranks.append(process)
        if process.stdout is not None and process.stderr is not None:
            for source, target in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                printer = threading.Thread(target=self._print_lines, args=(rank, source, target), daemon=True)
                printer.start()
                self._printers.append(printer)
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._ended.put(rank)

    def _print_lines(self, rank: int, source: BinaryIO, target: BinaryIO) -> None:
        for line in iter(source.readline, b""):
            with self._output_lock:
                target.write(b"[rank %d] " % rank + line + (b"" if line.endswith(b"\n") else b"\n"))
                target.flush()

    def _wait(self) -> int:
        code = 0
        left = self._size
        deadline: float | None = None
        while left:
            try:
                rank = self._ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._kill_all(signal.SIGKILL)
                deadline = None
                continue
            if rank is not None:
                left -= 1
                if self._ranks[rank].returncode != 0 and code == 0 and not self._signal:
                    code = self._report(rank, left)
            if (code or self._signal) and not self._stopping:
                self._stopping = True
                deadline = time.monotonic() + self._grace
                if not self._signal:
                    self._kill_all(signal.SIGTERM)
        return 128 + self._signal if self._signal else code

    def _report(self, rank: int, others: int) -> int:
        """Says which rank failed and how; returns the code to exit with."""
        process = self._ranks[rank]
        returned = process.returncode
        how = f"exited with code {returned}" if returned > 0 else f"was killed by {_signal_name(-returned)}"
        rest = f"; stopping the other {others}" if others else ""
        with self._output_lock:
            sys.stderr.write(f"shardwire.launch: rank {rank} (pid {process.pid}) {how}{rest}\n")
            sys.stderr.flush()
        return returned if returned > 0 else 128 - returned

    def _forward(self, number: int, _frame: object) -> None:
        self._signal = number
        self._kill_all(number)
        self._ended.put(None)  # wakes _wait, which starts the grace time

    def _kill_all(self, number: int) -> None:
        for process in self._ranks:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, number)  # with what the rank itself started
                except ProcessLookupError:
                    pass


def _die_with_parent() -> None:
    """In a new rank: end with this program, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shardwire.launch", description="Starts N local ranks of a script.")
    parser.add_argument("-n", "--nproc", type=int, required=True, metavar="N", help="how many ranks to start")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module's name, as in python -m")
    parser.add_argument("--prefix", action="store_true", help="put [rank k] before each line of output")
    parser.add_argument("--master-addr", default="127.0.0.1", help="address of rank 0's store (default: %(default)s)")
    parser.add_argument("--master-port", type=int, default=0, help="its port (default: a free one)")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds between asking ranks to stop and killing them (default: %(default)s)")
    parser.add_argument("script", help="the Python file (or module, with -m) to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.nproc < 1:
        parser.error(f"-n is {options.nproc}; give at least 1")
    if not options.module and not os.path.isfile(options.script):
        parser.error(f"there is no file {options.script!r}")
    script = ["-m", options.script] if options.module else [options.script]
    command = [sys.executable, "-u", *script, *options.args]
    return Launcher(command, options.nproc, options.master_addr, options.master_port, options.prefix, options.grace).run()


if __name__ == "__main__":
    sys.exit(main())
