"""Symmetric memory beside Open MPI's OpenSHMEM, two processes of this host, by turns; and shardwire.symm from Python.

    ./run bench symm [--rounds 100000] [--turns 3]

C++ against C: an atomic fetch-add on the other's word, a word there and back, a put of 1 MiB, a barrier; medians of the
turns. OpenSHMEM is left out where there is no oshcc (Debian: libopenmpi-dev, openmpi-bin). From Python: what a call
costs, one_shot of 4 KiB and two_shot of 1 MiB beside ``all_reduce``; then the same under torch's own API, where this
torch has it, beside ``dist.all_reduce``, by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import processes
import record

HERE = Path(__file__).resolve().parent
ROWS = 4  # of figures that either program prints


def figures(command: list[str]) -> dict[str, float]:
    """The figures that a program printed: "name   1.234 us" each line."""
    done = processes.run(command, timeout=300)
    lines = [line.rsplit(None, 2) for line in done.stdout.splitlines() if line.endswith(" us")]
    if len(lines) < ROWS:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    if done.returncode != 0:  # Debian 12's, in shmem_finalize()
        print(f"note: {os.path.basename(command[0])} measured all and then ended with status {done.returncode}")
    return {name.strip(): float(number) for name, number, _ in lines}


def openshmem(folder: str, rounds: int) -> list[str] | None:
    if shutil.which("oshcc") is None or shutil.which("oshrun") is None:
        return None
    program = os.path.join(folder, "openshmem_bench")
    built = subprocess.run(["oshcc", "-O2", str(HERE / "openshmem_bench.c"), "-o", program], capture_output=True,
                           text=True)
    if built.returncode != 0:
        print(f"without OpenSHMEM: {built.stderr}")
        return None
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["oshrun", "-n", "2", *root, program, str(rounds)]


def beside_openshmem(program: Path, rounds: int, turns: int) -> dict[tuple[str, ...], dict[str, float]]:
    """row -> {program: us}."""
    with tempfile.TemporaryDirectory() as folder:
        commands = {"shardwire": [str(program), str(rounds)]}
        theirs = openshmem(folder, rounds)
        if theirs is not None:
            commands["OpenSHMEM"] = theirs
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        for _ in range(turns):
            for name, command in commands.items():
                taken[name].append(figures(command))
    print(f"{'':24}" + "".join(f"{name:>14}" for name in commands))
    cells = {}
    for row in taken["shardwire"][0]:
        cells[row,] = {name: statistics.median(turn[row] for turn in taken[name]) for name in commands}
        print(f"{row:24}" + "".join(f"{value:11.3f} us" for value in cells[row,].values()))
    return cells


def from_python(body: Callable[..., None], *settings: int) -> dict[str, float]:
    """call -> us, as rank 0 left them beside the store."""
    import torch
    import torch.multiprocessing

    torch.multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        processes = [torch.multiprocessing.Process(target=body, args=(rank, os.path.join(folder, "store"), *settings))
                     for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit("a rank failed")
        return dict(json.loads(Path(folder, "figures.json").read_text(encoding="utf-8")))


def python_rank(rank: int, store: str, rounds: int) -> None:
    import torch
    import torch.distributed as dist

    import shardwire
    from shardwire import symm
    group = shardwire.create_process_group(dist.FileStore(store, 2), rank, 2, 60)
    team = symm.team(group)
    word = team.zeros(2, dtype=torch.int64)
    first = word[0]
    small, large = torch.ones(1024), torch.ones(1 << 18)
    sys.path.insert(0, str(HERE.parent / "tests" / "python"))
    from symm_algorithms import OneShotAllReduce, TwoShotAllReduce
    one, two = OneShotAllReduce(team, (1024,), torch.float32), TwoShotAllReduce(team, (1 << 18,), torch.float32)
    cases: list[tuple[str, int, Callable[[], Any]]] = [
        ("team.barrier()", rounds, team.barrier),
        ("atomic_fetch_add", rounds, lambda: symm.atomic_fetch_add(first, 1, 1 - rank)),
        ("get_peer_tensor", rounds, lambda: symm.get_peer_tensor(word, 1 - rank)),
        ("one_shot 4 KiB", rounds // 10, lambda: one(small)),
        ("all_reduce 4 KiB", rounds // 10, lambda: team.all_reduce(small)),
        ("two_shot 1 MiB", rounds // 100, lambda: two(large)),
        ("all_reduce 1 MiB", rounds // 100, lambda: team.all_reduce(large)),
    ]
    found = {}
    for name, count, call in cases:
        call()
        team.barrier()
        begin = time.perf_counter()
        for _ in range(max(1, count)):
            call()
        found[name] = (time.perf_counter() - begin) / max(1, count) * 1e6
        if rank == 0:
            print(f"Python: {name:24}{found[name]:11.3f} us", flush=True)
        small.fill_(1), large.fill_(1)
        team.barrier()
    if rank == 0:
        Path(store).with_name("figures.json").write_text(json.dumps(found), encoding="utf-8")


def torch_rank(rank: int, store: str, rounds: int, turns: int) -> None:
    """torch's own API and ``dist.all_reduce`` by turns, in one group: medians of the turns."""
    import torch
    import torch.distributed as dist

    from shardwire import symm
    dist.init_process_group("shardwire", init_method=f"file://{store}", rank=rank, world_size=2)
    name = dist.group.WORLD.group_name
    symm_mem, ops = symm.torch_api(), torch.ops.symm_mem
    small, large = (symm_mem.empty(count, device="cpu").fill_(1) for count in (1 << 10, 1 << 18))
    handle = symm_mem.rendezvous(small, name)
    out = torch.empty(1 << 10)
    ordinary = {1 << 10: torch.zeros(1 << 10), 1 << 18: torch.zeros(1 << 18)}
    cases: list[tuple[str, int, Callable[[], Any]]] = [
        ("h.barrier()", rounds, handle.barrier),
        ("one_shot 4 KiB", rounds // 10, lambda: ops.one_shot_all_reduce_out(small, "sum", name, out)),
        ("dist.all_reduce 4 KiB", rounds // 10, lambda: dist.all_reduce(ordinary[1 << 10])),
        ("two_shot 1 MiB", rounds // 100, lambda: ops.two_shot_all_reduce_(large, "max", name)),
        ("dist.all_reduce 1 MiB", rounds // 100, lambda: dist.all_reduce(ordinary[1 << 18], dist.ReduceOp.MAX)),
        ("dist.all_reduce 1 MiB, symmetric", rounds // 100, lambda: dist.all_reduce(large, dist.ReduceOp.MAX)),
    ]
    taken: dict[str, list[float]] = {case[0]: [] for case in cases}
    for _ in range(turns):
        for what, count, call in cases:
            call()
            handle.barrier()
            begin = time.perf_counter()
            for _ in range(max(1, count)):
                call()
            taken[what].append((time.perf_counter() - begin) / max(1, count))
    if rank == 0:
        found = {what: statistics.median(times) * 1e6 for what, times in taken.items()}
        for what, took in found.items():
            print(f"torch: {what:25}{took:11.3f} us", flush=True)
        Path(store).with_name("figures.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--program", type=Path, help="symm_bench, as it was built")
    parser.add_argument("--json", metavar="FILE", help="also write the tables there")
    options = parser.parse_args()
    tables, missing = [], {}
    if options.program is not None:
        beside = beside_openshmem(options.program, options.rounds, options.turns)
        tables.append(record.table("C++, us", ["call"], beside, ["shardwire"], ["OpenSHMEM"]))
        if not any("OpenSHMEM" in row for row in beside.values()):
            missing["OpenSHMEM"] = "there is no oshcc or no oshrun, or openshmem_bench.c was not built"
    calls = {"shardwire.symm": from_python(python_rank, options.rounds)}
    from shardwire import _C
    if _C.has_torch_symmetric_memory:
        calls["torch's own API"] = from_python(torch_rank, options.rounds, options.turns)
    else:
        missing["torch's own API"] = "it needs torch 2.13 or later"
        print("without torch's own API: it needs torch 2.13 or later")
    if options.json:
        cells = {(api, call): {"us": took} for api, found in calls.items() for call, took in found.items()}
        record.write(options.json, "symm", [*tables, record.table("From Python", ["by", "call"], cells)], missing)


if __name__ == "__main__":
    main()
