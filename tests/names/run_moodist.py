"""Runs moodist's own tests over shardwire, and prints a line for each test: file, name, seconds, ok or the reason of
the failure.

    git clone --depth 1 https://github.com/facebookresearch/moodist
    ./run python tests/names/run_moodist.py moodist [--only TEXT] [--ranks N] [--limit SECONDS]

The repository may also be a git directory without a work tree, or a folder of scripts. The tests of a file run in one
job of ranks on this host; a failed test ends the job, and the later tests run in a new job. A script without moodist's
test framework counts as one test. In the ranks' processes `moodist` is shardwire, with `adapters.moodist.use()`,
`"cuda"` is `"cpu"`, and streams do nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import random
import re
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import ours
from stand_ins import cuda_on_the_cpu, module, tree_of

FOLDERS = ("tests", "benchmarks")
FRAMEWORK = "from framework import"
GRACE_S = 5.0  # for the other ranks, when the first rank has ended


def stand_in_for_moodist() -> None:
    import torch
    import torch.distributed as dist

    import shardwire
    from shardwire.adapters import moodist
    make_group = dist.init_process_group

    def make_ours(backend: Any = None, *more: Any, **named: Any) -> None:
        make_group("shardwire" if backend == "moodist" else backend, *more, **named)

    dist.init_process_group = make_ours  # type: ignore[assignment]
    moodist.use()
    torch.cuda.is_available = lambda: True  # type: ignore[assignment]
    module("moodist", __getattr__=lambda name: getattr(shardwire, ours.ours("moodist", name)[1]), __path__=[])


def tests_of(script: pathlib.Path) -> tuple[list[tuple[str, Any]], Callable[[str, Any], Any]]:
    """The tests of a script by name, and the function that runs a test."""
    if FRAMEWORK not in script.read_text():
        return [("", lambda: runpy.run_path(str(script), run_name="__main__"))], lambda _, test: test()
    framework = importlib.import_module("framework")
    runner = framework.TestRunner(framework.create_context_from_env())
    importlib.import_module("run").load_test_module(script)
    return framework.get_tests(), runner.run_test


def be_rank(script: pathlib.Path, done: int) -> None:
    """Runs the tests after the first `done`, and writes a line about each into a file for the parent."""
    def note(*facts: Any) -> None:
        with open(f"rank {os.environ['RANK']}", "a") as notes:
            notes.write(json.dumps(facts) + "\n")

    def or_end(call: Callable[..., Any]) -> Callable[..., Any]:
        """A failure ends the rank: other ranks may wait for this rank in the middle of a test."""
        def ending(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except BaseException as error:
                traceback.print_exc()
                sys.stdout.flush()
                note("failed", time.monotonic(), f"{type(error).__name__}: {error}".replace("\n", " "))
                os._exit(1)
        return ending

    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    with cuda_on_the_cpu():
        stand_in_for_moodist()
        found, run = or_end(tests_of)(script)
        note("found", [name for name, _ in found])
        for name, test in found[done:]:
            begin = time.monotonic()
            run(name, or_end(test))
            note("ok", time.monotonic() - begin)


class Rank:
    """A rank's process; the output and the notes are files."""

    def __init__(self, folder: pathlib.Path, number: int, command: list[str], environment: dict[str, str]) -> None:
        self.number, self._output, self._notes = number, folder / f"output {number}", folder / f"rank {number}"
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
                                            env={**environment, "RANK": str(number), "LOCAL_RANK": str(number)})

    def notes(self, kind: str) -> list[list[Any]]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [facts for facts in map(json.loads, lines) if facts[0] == kind]

    def errors(self) -> list[str]:
        """Lines of errors that moodist's benchmark prints and then goes on."""
        return [line.strip() for line in self._output.read_text().splitlines() if "ERROR: " in line]

    def reason(self) -> str:
        last = self._output.read_text().strip().splitlines()[-1:]
        return f"rank {self.number} ended with status {self.process.returncode}: {''.join(last)}"


def await_end(ranks: list[Rank], limit: float) -> str:
    """Waits for the ranks, and kills late ranks. Returns the reason of a failure without a note of a rank."""
    end, reason = time.monotonic() + limit, f"not done after {limit:g} s"
    while None in (statuses := [rank.process.poll() for rank in ranks]) and time.monotonic() < end:
        if any(status is not None for status in statuses):
            end, reason = min(end, time.monotonic() + GRACE_S), "a rank ended before the others"
        time.sleep(0.05)
    ended = [rank for rank in ranks if rank.process.poll()]
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()
    return ended[0].reason() if ended else reason


def run_job(script: pathlib.Path, done: int, num_ranks: int, limit: float) -> tuple[list[str], list[float], str]:
    """The names of the script's tests, the seconds of the tests that are ok after the first `done`, and why the next
    test is not."""
    # Below the ports that the kernel gives to sockets, with room for the ports of moodist's framework.
    environment = {**os.environ, "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(random.randrange(10000, 25000)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, __file__, "--rank", "--done", str(done), str(script)]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Rank(pathlib.Path(folder), number, command, environment) for number in range(num_ranks)]
        reason = await_end(ranks, limit)
        names = [names for _, names in ranks[0].notes("found")]
        seconds = [max(each) for each in zip(*([each for _, each in rank.notes("ok")] for rank in ranks))]
        failed = sorted(facts[1:] for rank in ranks for facts in rank.notes("failed"))
        errors = [line for rank in ranks for line in rank.errors()]
        return (names or [[]])[0], [] if errors else seconds, (errors or [text for _, text in failed] or [reason])[0]


def outcomes(script: pathlib.Path, num_ranks: int, limit: float) -> Iterator[tuple[str, float, str]]:
    """Name, seconds, and "ok" or a reason."""
    text = script.read_text()
    num_ranks = num_ranks if FRAMEWORK in text or "torch.distributed" in text else 1
    done, names = 0, [""]
    while done < len(names):
        begin = time.monotonic()
        found, passed, reason = run_job(script, done, num_ranks, limit)
        names = found or names
        for seconds in passed:
            yield names[done], seconds, "ok"
            done += 1
        if done < len(names):
            yield names[done], time.monotonic() - begin, reason
            done += 1


def scripts_of(tree: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Copies of the tests in the folder, with "cpu" for "cuda"."""
    inner = [tree / each for each in FOLDERS if (tree / each).is_dir()] or [tree]
    for source in [each for found in inner for each in found.glob("*.py")]:
        text = source.read_text()
        if source.name != "framework.py":  # framework.py puts the device into the names of tests
            text = re.sub(r"([\"'])cuda\1", '"cpu"', text)
        (folder / source.name).write_text(text)
    return sorted(each for each in folder.iterdir() if each.name.startswith("test") or each.name == "serialize.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=pathlib.Path, help="of moodist")
    parser.add_argument("--only", default="", help="only files whose name has this text")
    parser.add_argument("--ranks", type=int, default=3, help="processes of a job (3)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one job (300)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--done", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        be_rank(given.repository, given.done)
        return
    counts = {}
    with tree_of(given.repository.resolve(), *FOLDERS) as tree, tempfile.TemporaryDirectory() as folder:
        for script in scripts_of(tree, pathlib.Path(folder)):
            if given.only in script.name:
                results = []
                for name, seconds, result in outcomes(script, given.ranks, given.limit):
                    results.append(result)
                    print(f"{f'{script.name} {name}':<70} {seconds:6.1f} s  {result}", flush=True)
                counts[script.name] = len(results), results.count("ok")
    counts["all"] = sum(run for run, _ in counts.values()), sum(num_ok for _, num_ok in counts.values())
    for file, (run, num_ok) in counts.items():
        print(f"{file}: {run} tests, {num_ok} ok, {run - num_ok} failed")
    sys.exit(counts["all"][1] < counts["all"][0] or not counts["all"][0])


if __name__ == "__main__":
    main()
