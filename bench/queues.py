"""shardwire.Queue beside torch.multiprocessing.Queue (and ray.util.queue, where ray is installed): latency and GB/s
between two processes of this host.

    ./run bench queue [--rounds 500] [--entries 20] [--turns 3] [--bytes 65536,1048576,67108864]

``there and back``: one process puts into a queue of the other's and gets the answer from its own; a tensor of 4 floats,
a small dict, and one with three small tensors in it (shardwire's puts with ``async_op``: torch's do not wait either
until the entry is there). ``GB/s``: a producer puts ``--entries`` tensors, which the consumer gets; from the first put
to the last get. The producer rewrites its tensor before each put, as training does with its weights, so the entry must
not be the producer's memory: torch.multiprocessing shares a tensor's memory, and is given a clone. Ordinary tensors,
then (shardwire only) tensors of the shared heap got into ``out=``. The kinds take turns; figures are medians of the
turns. Each process has one thread of torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing

import processes
import record
import shardwire

LIMIT_S = 300.0


class Ours:
    """A pair of queues as the bench wants them: [0] is read by process 0, [1] by process 1."""

    def __init__(self, rank: int, folder: str, heap: bool) -> None:
        group = shardwire.create_process_group(dist.FileStore(os.path.join(folder, "store"), 2), rank, 2, LIMIT_S,
                                               "bench")
        self.queues = [shardwire.Queue(group, 0), shardwire.Queue(group, 1)]
        self.heap = heap
        self.work: shardwire.QueueWork | None = None
        self.out: torch.Tensor | None = None

    def source(self, elements: int) -> torch.Tensor:
        self.out = torch.zeros(elements) if self.heap else None
        return shardwire.empty(elements, dtype=torch.float32) if self.heap else torch.empty(elements)

    def put(self, to: int, value: Any) -> None:
        self.queues[to].put(value)

    def send(self, to: int, value: Any) -> None:
        self.work = self.queues[to].put(value, async_op=True)  # waits for the one before it

    def get(self, mine: int) -> Any:
        return self.queues[mine].get()

    def close(self) -> None:
        self.work = None

    def get_tensor(self, mine: int, elements: int) -> torch.Tensor:
        if self.heap and (self.out is None or self.out.numel() != elements):
            self.out = torch.zeros(elements)
        return self.queues[mine].get_tensor(out=self.out)


class Theirs:
    """The same over queues with put and get."""

    def __init__(self, queues: Any, clone: bool, end: Callable[[], None] = lambda: None) -> None:
        self.queues, self.clone, self.end = queues, clone, end

    def source(self, elements: int) -> torch.Tensor:
        return torch.empty(elements)

    def put(self, to: int, value: Any) -> None:
        self.queues[to].put(value.clone() if self.clone and isinstance(value, torch.Tensor) else value)

    send = put

    def get(self, mine: int) -> Any:
        return self.queues[mine].get()

    def close(self) -> None:
        self.end()

    def get_tensor(self, mine: int, _: int) -> torch.Tensor:
        return self.get(mine)


def echo(pair: Any, rounds: int) -> None:
    for _ in range(rounds):
        pair.send(0, pair.get(1))


def there_and_back(pair: Any, value: Any, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        pair.send(1, value)
        pair.get(0)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def consume(pair: Any, elements: int, entries: int) -> None:
    for number in range(entries + 1):
        tensor = pair.get_tensor(1, elements)
        if tensor[0] != number or tensor[-1] != number:
            raise SystemExit(f"entry {number} has {tensor[0]} and {tensor[-1]} in it")
        del tensor
        if number in (0, entries):
            pair.put(0, number)


def rate(pair: Any, elements: int, entries: int) -> float:
    tensor = pair.source(elements)
    tensor.fill_(0)
    pair.put(1, tensor)
    pair.get(0)  # the consumer is there, and memory was touched
    begin = time.perf_counter()
    for number in range(1, entries + 1):
        tensor.fill_(number)
        pair.put(1, tensor)
    pair.get(0)
    return elements * 4 * entries / (time.perf_counter() - begin) / 1e9


SMALL = {"step": 7, "loss": 0.25, "name": "layer.weight", "shape": (3, 4)}
ROUND_TRIPS = {"tensor, us": torch.ones(4), "dict, us": SMALL, "with tensors, us": {
    "step": 7, "ids": torch.arange(12).reshape(3, 4), "rewards": [torch.ones(3), torch.ones(1)]}}


def serve(pair: Any, sizes: list[int], args: argparse.Namespace) -> None:
    """The work of process 1: echoes and consumes."""
    echo(pair, len(ROUND_TRIPS) * (args.rounds + 1))
    for elements in sizes:
        consume(pair, elements, args.entries)
    pair.get(1)
    pair.close()


# runs a body in process 1; this one's end, and what waits for the body
Start = Callable[[Callable[[Any], None]], "tuple[Any, Callable[[], None]]"]


def forked(make: Callable[[int], Any]) -> Start:
    def start(body: Callable[[Any], None]) -> tuple[Any, Callable[[], None]]:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                processes.end_with_parent()
                body(make(1))
                code = 0
            except BaseException as error:  # never back into the parent's code
                print(f"the consumer failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(code)

        def check(*_: object) -> None:
            with contextlib.suppress(ChildProcessError):  # wait() was before
                ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None and ended.si_status:
                    raise SystemExit("the consumer failed")

        signal.signal(signal.SIGCHLD, check)  # torch's get() would wait for ever
        check()

        def wait() -> None:
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                raise SystemExit("the consumer failed")
        return make(0), wait
    return start


def by_ray(body: Callable[[Any], None]) -> tuple[Any, Callable[[], None]]:
    """Process 1 is a worker of ray's: its threads survive no fork."""
    import ray
    from ray.util.queue import Queue
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    queues = [Queue(), Queue()]
    task = ray.remote(num_cpus=1)(body).remote(Theirs(queues, clone=False))
    return Theirs(queues, clone=False, end=ray.shutdown), lambda: ray.get(task)


def one_turn(start: Start, args: argparse.Namespace) -> dict[str, float]:
    """Process 1 echoes and consumes; this one measures."""
    sizes = [int(text) // 4 for text in args.bytes.split(",")]
    pair, wait = start(lambda other: serve(other, sizes, args))
    found = {}
    for name, value in ROUND_TRIPS.items():
        there_and_back(pair, value, 1)
        found[name] = there_and_back(pair, value, args.rounds)
    for elements in sizes:
        found[f"{elements * 4} B, GB/s"] = rate(pair, elements, args.entries)
    pair.put(1, None)
    wait()
    pair.close()
    return found


def kinds() -> dict[str, Callable[[str], Start]]:
    """name -> (folder of the turn -> what starts it)."""
    def torchs(_: str) -> Start:
        context = torch.multiprocessing.get_context("fork")
        queues = [context.Queue(), context.Queue()]  # before the fork: both processes inherit them
        return forked(lambda rank: Theirs(queues, clone=True))

    found: dict[str, Callable[[str], Start]] = {
        "shardwire": lambda at: forked(lambda rank: Ours(rank, at, heap=False)),
        "shardwire, heap, out=": lambda at: forked(lambda rank: Ours(rank, at, heap=True)),
        "torch.multiprocessing": torchs}
    if importlib.util.find_spec("ray") is not None:
        found["ray.util.queue"] = lambda _: by_ray
    return found


def in_child(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Each turn in a separate process, so that no turn finds the memory or the threads of an earlier turn."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            processes.end_with_parent()
            os.write(writer, repr(work()).encode())
            code = 0
        except BaseException as error:
            print(f"{error!r}", file=sys.stderr, flush=True)
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("a turn failed")
    return dict(eval(text, {"__builtins__": {}}))  # our own child's repr of a dict of floats


def write_record(path: str, medians: dict[str, dict[str, float]]) -> None:
    tables = []
    for title, unit in (("There and back, us", ", us"), ("Entries one after the other, GB/s", ", GB/s")):
        cells = {(column.removesuffix(unit),): {name: found[column] for name, found in medians.items()}
                 for column in next(iter(medians.values())) if column.endswith(unit)}
        tables.append(record.table(title, ["entry"], cells, [name for name in medians if name.startswith("shardwire")],
                                   [name for name in medians if not name.startswith("shardwire")],
                                   more_is_better="GB" in unit))
    figures = {f"{name}: {column.replace('GB/s', 's per GB')}": 1 / value if "GB/s" in column else value
               for name, found in medians.items() for column, value in found.items()}
    record.write(path, "queue", tables, figures=figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="of there and back in a turn (default: %(default)s)")
    parser.add_argument("--entries", type=int, default=20, help="of each size in a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each kind, one after the other (default: %(default)s)")
    parser.add_argument("--bytes", default="65536,1048576,67108864", help="sizes of entries (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the medians there, rates as seconds per GB")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="shardwire-queue-") as folder:
        tempfile.tempdir = folder  # for torch.multiprocessing, whose folders stay where a process ends as these do
        chosen = kinds()
        for turn in range(args.turns):
            for number, (name, make) in enumerate(chosen.items()):
                at = os.path.join(folder, f"{turn}.{number}")
                os.mkdir(at)
                for what, value in (  # type: ignore[misc]
                        in_child(lambda make=make, at=at: one_turn(make(at), args)).items()):
                    results.setdefault(name, {}).setdefault(what, []).append(value)
    columns = list(next(iter(results.values())))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {args.turns} "
          "turns; us are there and back")
    print(f"{'':24}" + "".join(f"{column:>18}" for column in columns))
    for name, found in results.items():
        print(f"{name:24}" + "".join(f"{statistics.median(found[column]):18.2f}" for column in columns))
    if args.json:
        write_record(args.json, {name: {column: statistics.median(values) for column, values in found.items()}
                                 for name, found in results.items()})


if __name__ == "__main__":
    main()
