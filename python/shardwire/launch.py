"""Starts the ranks of a script, on this host or under srun and mpirun, and sets the variables that
``init_process_group("shardwire")`` reads.

N ranks on this host::

    python -m shardwire.launch -n 4 train.py --epochs 3

The ranks of a Slurm or MPI job, on any number of hosts: the launcher's process becomes the rank::

    srun -N 2 --ntasks-per-node=4 python -m shardwire.launch train.py
    mpirun -n 8 python -m shardwire.launch train.py

One task for each host that starts N ranks there, as with torchrun::

    srun -N 2 --ntasks-per-node=1 python -m shardwire.launch -n 4 train.py

Two hosts by hand, or in two pods: run this on each, with ``--node-rank 1`` on the other::

    python -m shardwire.launch --nnodes 2 --node-rank 0 -n 4 --master-addr HOST0 --master-port 29500 train.py

Works alike with all torch versions that shardwire supports, also where torchrun does not. Each rank gets RANK,
LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Where this program starts all ranks of the job,
each rank also gets a random SHARDWIRE_JOB_TOKEN, unless one is set, so that no foreign process can join. When one of
the ranks started by this program fails, the program stops the other ranks, names the failed rank, and exits with this
rank's exit code (128 + N for a rank killed by signal N); signals to this program are sent to all ranks. Where this
program itself becomes a rank, srun or mpirun reports and ends the ranks in its own way.

This file imports the standard library only, and runs as a file too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

try:
    from .groups.launchers import FIRST_PORT, NUM_PORTS, Place, address_of, recognise, why_none, without_mpi
except ImportError:  # run as a file: Python looks first into the file's folder
    from groups.launchers import (FIRST_PORT, NUM_PORTS, Place,  # type: ignore[import-not-found,no-redef]
                                  address_of, recognise, why_none, without_mpi)

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_MOST_TRIES = 1000


def free_port() -> int:
    """A TCP port of this host without a socket, below the ports that Linux assigns by itself (ip_local_port_range,
    32768 and up). The port is still free when rank 0 opens its store there seconds later, unless a program asks for
    exactly this number."""
    for _ in range(_MOST_TRIES):
        port = FIRST_PORT + secrets.randbelow(NUM_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"none of {_MOST_TRIES} ports from {FIRST_PORT} to {FIRST_PORT + NUM_PORTS - 1}, taken at random, "
                  "was free on this host: give --master-port PORT")


@dataclass(frozen=True)
class Job:
    """The ranks started by this program, and their job."""

    count: int                       # ranks of this program
    first: int = 0                   # RANK of the first rank
    size: int = 0                    # ranks of the job; 0: these ranks are all
    first_local: int | None = 0      # LOCAL_RANK of the first rank; None: unknown from the launcher, and not set
    local_size: int | None = 0       # 0: these ranks are all of this host
    address: str = "127.0.0.1"
    port: int = 0                    # 0: a free port is chosen
    threads: int = 1                 # OMP_NUM_THREADS of a rank, where the environment has none

    def environment(self, index: int, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the variables that ``init_method="env://"`` reads on the rank of this index."""
        environment = dict(base)
        environment.update(RANK=str(self.first + index), WORLD_SIZE=str(self.size or self.count),
                           MASTER_ADDR=self.address, MASTER_PORT=str(self.port))
        for name, value in (("LOCAL_RANK", None if self.first_local is None else self.first_local + index),
                            ("LOCAL_WORLD_SIZE", self.count if self.local_size == 0 else self.local_size)):
            environment.pop(name, None)
            if value is not None:
                environment[name] = str(value)
        environment.setdefault("OMP_NUM_THREADS", str(self.threads))
        # Debian's torch 2.6 asks for libuv although built without; the plain TCPStore exists everywhere.
        environment.setdefault("USE_LIBUV", "0")
        return environment


def job_of(place: Place, count: int, address: str | None, port: int, environment: Mapping[str, str]) -> Job:
    """The job where each of the launcher's processes stands for ``count`` ranks. ValueError where the launcher's
    variables are not enough."""
    place_address, place_port = address_of(place)
    host = address or environment.get("MASTER_ADDR") or place_address
    chosen = port or _port(environment) or place_port
    lacking = []
    if place.size is None:
        lacking.append("how many ranks there are (start the ranks by srun or mpirun)")
    if not host:
        lacking.append("where rank 0 runs (give --master-addr HOST, or set MASTER_ADDR; init_method='mpi://' in the "
                       "script needs neither this program nor that)")
    if not chosen:
        lacking.append("which port rank 0's store can have (give --master-port PORT, or set MASTER_PORT)")
    if place.local_rank is None and count > 1:
        lacking.append("which of this host's processes this one is (start one rank for each process: leave out -n)")
    if lacking:
        raise ValueError(f"{place.describe()}, but not {'; nor '.join(lacking)}")
    assert place.size is not None and host is not None and chosen is not None
    return Job(count, place.rank * count, place.size * count,
               None if place.local_rank is None else place.local_rank * count,
               None if place.local_size is None else place.local_size * count, host, chosen,
               max(1, (place.cpus or 1) // count))


def job_of_nodes(nodes: int, node: int | None, count: int, address: str | None, port: int,
                 environment: Mapping[str, str]) -> Job:
    """The job of ``count`` ranks on each of ``nodes`` hosts, of which this is number ``node``. ValueError where an
    option is missing or wrong."""
    if nodes < 1:
        raise ValueError(f"--nnodes is {nodes}; give at least 1")
    node = 0 if node is None and nodes == 1 else node
    if node is None or not 0 <= node < nodes:
        given = "is not given" if node is None else f"is {node}"
        raise ValueError(f"--node-rank {given}; with --nnodes {nodes} each host has a number of its own, from 0 to "
                         f"{nodes - 1}, and rank 0 is on host 0")
    host = address or environment.get("MASTER_ADDR") or ("127.0.0.1" if nodes == 1 else None)
    chosen = port or _port(environment)
    lacking = [what for what, known in (("where rank 0 runs (give --master-addr HOST, or set MASTER_ADDR)", host), (
        "which port its store can have (give --master-port PORT, or set MASTER_PORT)", chosen or nodes == 1))
               if not known]
    if lacking:
        raise ValueError(f"--nnodes {nodes} does not determine {', nor '.join(lacking)}; the same on all hosts")
    assert host is not None
    return Job(count, node * count, 0 if nodes == 1 else nodes * count, address=host, port=chosen)


def _port(environment: Mapping[str, str]) -> int:
    text = environment.get("MASTER_PORT", "0")
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"MASTER_PORT is {text!r}; a port is a number from 1 to 65535")
    return int(text)


class Launcher:
    """The ranks of one job on this host. Used by one thread; signal handlers run on it too."""

    def __init__(self, command: Sequence[str], job: Job, environment: Mapping[str, str], prefix: bool = False,
                 grace: float = 5.0, survive: bool = False) -> None:
        self._command = list(command)
        self._job = job if job.port else replace(job, port=free_port())
        self._environment = dict(environment)
        # The environment is readable only by processes of this user, while the store is open to everybody on this host.
        # Ranks of other launchers would have another token.
        if job.size in (0, job.count) and not environment.get("SHARDWIRE_JOB_TOKEN"):
            self._environment["SHARDWIRE_JOB_TOKEN"] = secrets.token_hex(16)
        self._prefix = prefix
        self._grace = grace
        self._survive = survive
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._printers: list[threading.Thread] = []
        self._output_lock = threading.Lock()
        self._signal = 0
        self._stopping = False

    def run(self) -> int:
        """Starts all ranks, waits for all, and returns the exit code for this program."""
        # A signal that the launcher's parent ignores, as nohup does for SIGHUP, stays ignored here and in the ranks
        previous = {number: signal.signal(number, self._forward) for number in _FORWARDED
                    if signal.getsignal(number) is not signal.SIG_IGN}
        try:
            for index in range(self._job.count):
                self._start(index)
            return self._wait()
        finally:
            self._kill_all(signal.SIGKILL)
            for printer in self._printers:
                printer.join(timeout=self._grace)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self, index: int) -> None:
        pipe = subprocess.PIPE if self._prefix else None
        process = subprocess.Popen(self._command, env=self._job.environment(index, self._environment), stdout=pipe,
                                   stderr=pipe, stdin=subprocess.DEVNULL, start_new_session=True,
                                   preexec_fn=_die_with_parent)
        self._ranks.append(process)
        if process.stdout is not None and process.stderr is not None:
            for source, target in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                printer = threading.Thread(target=self._print_lines, args=(self._job.first + index, source, target),
                                           daemon=True)
                printer.start()
                self._printers.append(printer)
        threading.Thread(target=self._watch, args=(index, process), daemon=True).start()

    def _watch(self, index: int, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._ended.put(index)

    def _print_lines(self, rank: int, source: BinaryIO, target: BinaryIO) -> None:
        try:
            for line in iter(source.readline, b""):
                with self._output_lock:
                    target.write(b"[rank %d] " % rank + line + (b"" if line.endswith(b"\n") else b"\n"))
                    target.flush()
        except OSError:
            source.close()  # nobody reads the launcher's output: the rank gets EPIPE, as without --prefix

    def _wait(self) -> int:
        code = killed = 0
        left = self._job.count
        deadline: float | None = None
        while left:
            try:
                index = self._ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._kill_all(signal.SIGKILL)
                deadline = None
                continue
            if index is not None:
                left -= 1
                returned = self._ranks[index].returncode
                if returned != 0 and code == 0 and not self._signal:
                    goes_on = self._survive and returned < 0
                    failed = self._report(index, left, goes_on)
                    if goes_on:
                        killed = failed
                    else:
                        code = failed
            if (code or self._signal) and not self._stopping:
                self._stopping = True
                deadline = time.monotonic() + self._grace
                if not self._signal:
                    self._kill_all(signal.SIGTERM)
        if code == 0 and all(process.returncode != 0 for process in self._ranks):
            code = killed
        return 128 + self._signal if self._signal else code

    def _report(self, index: int, others: int, goes_on: bool) -> int:
        """Reports which rank failed and how; returns the code to exit with. goes_on: the other ranks are not
        stopped."""
        process = self._ranks[index]
        returned = process.returncode
        how = f"exited with code {returned}" if returned > 0 else f"was killed by {_signal_name(-returned)}"
        here = " of this host's" if self._job.count < self._job.size else ""
        rest = f"; {'the other' if goes_on else 'stopping the other'} {others}{here}" if others else ""
        rest += " go on" if rest and goes_on else ""
        with self._output_lock:
            sys.stderr.write(f"shardwire.launch: rank {self._job.first + index} (pid {process.pid}) {how}{rest}\n")
            sys.stderr.flush()
        return returned if returned > 0 else 128 - returned

    def _forward(self, number: int, _frame: object) -> None:
        self._signal = number
        self._kill_all(number)
        self._ended.put(None)  # wakes _wait, which starts the grace time

    def _kill_all(self, number: int) -> None:
        for process in self._ranks:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)  # includes the processes that the rank itself started


def _die_with_parent() -> None:
    """Makes a new rank end with this program, however the program ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardwire.launch", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Starts the ranks of a script: N on this host, or, under srun and mpirun, those of the job.",
        epilog="""under srun, mpirun (Open MPI) and mpiexec (MPICH, Intel):
  srun -N 2 --ntasks-per-node=4 python -m shardwire.launch train.py        each task becomes a rank
  srun -N 2 --ntasks-per-node=1 python -m shardwire.launch -n 4 train.py   each task starts 4 ranks of one job of 8
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE come from the launcher's variables. MASTER_ADDR and MASTER_PORT:
  the option, else the environment's, else 127.0.0.1 on one host or the first host of Slurm's list, and a port made of
  the job's name.""")
    parser.add_argument("-n", "--nproc", "--nproc-per-node", type=int, default=None, metavar="N",
                        help="how many ranks to start here; under srun and mpirun: for each task (default there: the "
                             "task becomes the rank)")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module's name, as in python -m")
    parser.add_argument("--prefix", action="store_true", help="put [rank k] before each line of output")
    parser.add_argument("--standalone", action="store_true",
                        help="take no notice of srun and mpirun: N ranks on this host are the whole job")
    parser.add_argument("--nnodes", type=int, default=None, metavar="N",
                        help="so many hosts, on each of which this program is started with its --node-rank and the "
                             "same -n, --master-addr and --master-port; takes no notice of srun and mpirun")
    parser.add_argument("--node-rank", type=int, default=None, metavar="K",
                        help="this host's number, from 0 to nnodes - 1")
    parser.add_argument("--master-addr", default=None,
                        help="host of rank 0's store (default: see below; 127.0.0.1 on one host)")
    parser.add_argument("--master-port", type=int, default=0,
                        help="its port (default: see below; a free one on one host)")
    parser.add_argument("--grace", type=float, default=5.0,
                        help="seconds between asking ranks to stop and killing them (default: %(default)s)")
    parser.add_argument("--survive", action="store_true",
                        help="a rank killed by a signal does not stop the others, which may go on with "
                             "shardwire.shrink(); the exit code is 0 when the others succeed")
    parser.add_argument("script", help="the Python file (or module, with -m) to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Turns this process into the rank, with the same pid and the descriptors from srun and mpirun. Returns only on
    failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(command[0], list(command), dict(environment))
    except OSError as error:
        sys.stderr.write(f"shardwire.launch: cannot run {command[0]}: {error}\n")
    return 1


def _port_trouble(job: Job) -> str | None:
    """The reason why rank 0, which will start here, could not have its store on the job's port; the other ranks would
    wait for the store."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", job.port))
        except OSError as error:
            return (f"rank 0's store cannot have port {job.port} of this host: {error.strerror}. Give --master-port, "
                    "or set MASTER_PORT, for all ranks")
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.nproc is not None and options.nproc < 1:
        parser.error(f"-n is {options.nproc}; give at least 1")
    if not 0 <= options.master_port <= 65535:
        parser.error(f"--master-port is {options.master_port}; a port is a number from 1 to 65535")
    if not options.module and not os.path.isfile(options.script):
        parser.error(f"there is no file {options.script!r}")
    script = ["-m", options.script] if options.module else [options.script]
    command = [sys.executable, "-u", *script, *options.args]
    environment: Mapping[str, str] = os.environ
    try:
        place = None if options.standalone or options.nnodes is not None else recognise(environment)
        if options.nnodes is None and options.node_rank is not None:
            parser.error("--node-rank goes with --nnodes")
        if options.nnodes is not None and options.standalone:
            parser.error("--standalone is this host alone, --nnodes several: leave one of them out")
        if options.nnodes is not None and options.nproc is not None:
            job = job_of_nodes(options.nnodes, options.node_rank, options.nproc, options.master_addr,
                               options.master_port, environment)
        elif place is not None:
            job = job_of(place, options.nproc or 1, options.master_addr, options.master_port, environment)
        elif options.nproc is None:
            parser.error("give -n N, how many ranks to start on this host"
                         + ("" if options.standalone or options.nnodes else f"; {why_none(environment)}"))
        else:
            job = Job(options.nproc, address=options.master_addr or "127.0.0.1", port=options.master_port)
    except ValueError as error:
        parser.error(str(error))
    if job.size and job.first == 0:
        trouble = _port_trouble(job)
        if trouble:
            parser.error(trouble)
    if place is not None and options.nproc is None and not options.prefix:
        return _become(command, job.environment(0, environment))
    if job.count > 1 or options.standalone or options.nnodes:
        environment = without_mpi(environment)  # only this process is known to MPI
    return Launcher(command, job, environment, options.prefix, options.grace, options.survive).run()


if __name__ == "__main__":
    sys.exit(main())
