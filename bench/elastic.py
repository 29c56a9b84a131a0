"""Everything mixed while ranks die and new ranks join: leftovers show as growth of a rank that lives on.

    ./run bench elastic [--seconds 3600] [--settle 300] [--ranks 4] [--every 20] [--seed S]

The ranks run the rounds of soak. At random moments SIGKILL ends one rank or two. The living ranks leave the round with
an error, `shrink` and go on; then new processes join by `reconfigure`, one after the other. The last rank of the first
group is never killed, and the campaign prints the memory of this rank every --every seconds. The exit status is 1
when this rank grew (as in soak), when a rank broke or raised an error without a death, or when the ranks did not go on
within --patience seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import shutil
import sys
import time
from datetime import timedelta
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of a pool do not survive a fork

import torch
import torch.distributed as dist

import shardwire
from campaigns.soak_kinds import KINDS, Soaked
from campaigns.trial import Rank, Trial, print_table
from shardwire.groups.mpi import tcp_store
from soak import COLUMNS, footprint, grown, row_of, write_record


# The timeout of queues and publications: they wait for ranks that may be dead.
USE_S = 10.0


def live(me: Rank, args: argparse.Namespace, port: int, start: float, joins: int) -> None:
    """A rank: rounds until the parent says that the time is over. `joins`: the number of the rank's entry, 0 in the
    first group."""
    torch.set_num_threads(1)
    if joins:
        enter(me, joins)
    else:
        store = tcp_store("127.0.0.1", port, None, False, timedelta(minutes=5))
        dist.init_process_group("shardwire", store=store, rank=me.rank, world_size=me.size,
                                timeout=timedelta(seconds=60))
        shardwire.reconfigure_handles()
    me.publish("state", joins + 1)
    uses: Soaked | None = None
    epoch = number = deaths = 0
    held: list[tuple[float, int, dict[str, int]]] = []
    while True:
        try:
            if uses is None:
                epoch, number = agree(epoch + 1, number)
                uses = begin(me, epoch)
            elapsed, newcomer, over = agree(int(1e6 * (time.monotonic() - start)), entry_of(me),
                                            (me.folder / "over").exists())
            seconds = elapsed / 1e6
            if newcomer > joins:
                end(uses)
                uses, joins = None, newcomer
                take_in(me, newcomer)
                continue
            if seconds >= len(held) * args.every or over:
                held.append((seconds, number, footprint()))
                me.report({"held": held, "over": over})
            if over:
                break
            for kind in KINDS.values():
                kind(uses, number)
            number += 1
            me.publish("step", number)
        except (shardwire.ShardwireError, RuntimeError, OSError, queue.Empty) as error:
            before = len(shardwire.reconfigure_handles())
            is_late = isinstance(error, (TimeoutError, queue.Empty))
            if uses is not None:
                end(uses)
            uses = None
            if is_late:  # perhaps nobody died, and the other ranks wait for this one
                shardwire.revoke()
            shardwire.shrink()
            if len(shardwire.reconfigure_handles()) == before and not is_late and not revoked(error):
                raise AssertionError(f"an error without a death, in round {number}") from error
            deaths += before - len(shardwire.reconfigure_handles())
            me.publish("mark", deaths)
    dist.barrier()
    dist.destroy_process_group()


def revoked(error: Exception) -> bool:
    return isinstance(error, shardwire.AbortedError) and "revoked" in str(error)


def agree(*numbers: int) -> list[int]:
    """The greatest of all ranks."""
    greatest = torch.tensor(numbers)
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return [int(each) for each in greatest]


def begin(me: Rank, epoch: int) -> Soaked:
    """The uses of this group, with a folder of their own."""
    folder = me.folder / f"epoch-{epoch}"
    folder.mkdir(exist_ok=True)
    for older in me.folder.glob("epoch-*"):
        if int(older.name.rpartition("-")[2]) < epoch - 1:
            shutil.rmtree(older, ignore_errors=True)
    return Soaked(dist.get_rank(), dist.get_world_size(), folder, USE_S)


def end(uses: Soaked) -> None:
    """To be called before the group is made anew."""
    if uses.publication is not None:
        with contextlib.suppress(shardwire.ShardwireError, RuntimeError, OSError):
            uses.publication.close()


# ---- new ranks: the new process writes its handle into entry.K, and a rank of the group the list of all into list.K

def entry_of(me: Rank) -> int:
    """The number of the newest entry; 0: none yet."""
    return max((int(each.name.rpartition(".")[2]) for each in me.folder.glob("entry.*")), default=0)


def take_in(me: Rank, number: int) -> None:
    handles = [*shardwire.reconfigure_handles(), (me.folder / f"entry.{number}").read_text()]
    if dist.get_rank() == 0:
        write(me, f"list.{number}", "\n".join(handles))
    shardwire.reconfigure(None, f"entry {number}", handles)


def enter(me: Rank, number: int) -> None:
    write(me, f"entry.{number}", shardwire.reconfigure_handle())
    while not (me.folder / f"list.{number}").exists():
        time.sleep(0.005)
    shardwire.reconfigure(None, f"entry {number}", (me.folder / f"list.{number}").read_text().split("\n"))


def write(me: Rank, name: str, text: str) -> None:
    (me.folder / "part").write_text(text)
    (me.folder / "part").rename(me.folder / name)


# ---- the campaign

class Campaign:
    def __init__(self, trial: Trial, args: argparse.Namespace, port: int) -> None:
        self.trial, self.args, self.port, self.start = trial, args, port, time.monotonic()
        self.random, self.kept = random.Random(args.seed), args.ranks - 1
        self.deaths = self.joins = self.shown = 0
        self.is_over = False
        trial.fork(live, args, port, self.start, 0)

    def run(self) -> dict[str, Any]:
        """The last report of the rank that is kept."""
        quiet = min(10.0, self.args.seconds / 2)  # in the end, without deaths
        while time.monotonic() - self.start < self.args.seconds - quiet:
            self.await_step(self.trial.page.get(self.kept, "step") + 1)
            time.sleep(2 * self.random.random())
            victims = self.random.sample(range(self.kept), self.random.choice([1, 1, min(2, self.kept)]))
            for victim in victims:
                self.trial.kill(victim)
            self.deaths += len(victims)
            self.await_field(self.kept, "mark", self.deaths, f"the death of {victims}")
            self.trial.reap()
            for victim in victims:
                self.joins += 1
                self.trial.fork_rank(victim, live, self.args, self.port, self.start, self.joins)
                self.await_field(victim, "state", self.joins + 1, f"entry {self.joins}")
            self.show()
        time.sleep(quiet)
        self.check_crashes("the last rounds")
        (self.trial.folder / "over").touch()
        self.is_over = True
        deadline = time.monotonic() + self.args.patience
        while True:
            report = self.trial.collect([self.kept], deadline)[self.kept]
            if report.get("over") or "held" not in report or "ended" in report:
                self.check_crashes("the end")
                return report
            assert time.monotonic() < deadline, "the ranks did not end"
            time.sleep(0.2)

    def await_step(self, step: int) -> None:
        self.await_field(self.kept, "step", step, "a round")

    def await_field(self, rank: int, field: str, least: int, what: str) -> None:
        limit = time.monotonic() + self.args.patience
        is_there = False
        while not is_there:
            is_there = self.trial.page.await_all([rank], field, least, 0.2)
            self.check_crashes(what)
            if not is_there and time.monotonic() > limit:
                stacks = self.trial.stacks(list(range(self.args.ranks)))
                raise AssertionError(f"{what} did not come within {self.args.patience:.0f} s:\n{by_rank(stacks)}")

    def check_crashes(self, what: str) -> None:
        """An AssertionError where a rank ended that was not killed."""
        self.trial.reap()
        crashed = {rank: status for rank, status in self.trial.crashed.items() if not self.is_over or status != 0}
        if crashed:
            reports = self.trial.collect(list(crashed), time.monotonic())
            raise AssertionError(f"while the campaign waited for {what}, ranks ended by themselves:\n" + by_rank(
                {rank: report.get("broken", report) for rank, report in reports.items()}))

    def show(self) -> None:
        held = self.trial.collect([self.kept], time.monotonic() + 1)[self.kept].get("held", [])
        for look in held[self.shown:]:
            print("  ".join([*row_of(self.kept, *look), f"{self.deaths} deaths"]), flush=True)
        self.shown = max(self.shown, len(held))


def by_rank(texts: dict[int, Any]) -> str:
    return "\n".join(f"rank {rank}: {text}" for rank, text in texts.items())


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600, help="how long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=300,
                        help="seconds until caches have what they keep (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="processes, at least 3 (default: %(default)s)")
    parser.add_argument("--every", type=float, default=20, help="seconds between looks (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=120, help="seconds for a round (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the kills (default: random)")
    parser.add_argument("--json", metavar="FILE", help="also write the first and the last look there")
    args = parser.parse_args(given)
    if args.ranks < 3:
        parser.error("--ranks: one rank is kept, one is killed, and publications want two ranks")
    return args


def campaign(args: argparse.Namespace) -> bool:
    """Whether the kept rank grew, or a rank broke."""
    print(f"torch {torch.__version__}, {args.ranks} ranks, {args.seconds:.0f} s, seed {args.seed}; memory in MiB",
          flush=True)
    store = tcp_store("127.0.0.1", 0, None, True, timedelta(minutes=5))
    with Trial(args.ranks, "elastic") as trial:
        run = Campaign(trial, args, store.port)
        report = run.run()
    if not report.get("over"):
        print(f"the kept rank broke: {report}")
        return True
    print_table([["at", "round", "rank", *COLUMNS]] + [row_of(run.kept, *look) for look in report["held"]])
    what = grown(report["held"], args.settle)
    if args.json:
        write_record(args.json, "elastic", args.settle, {run.kept: report},
                     f"{run.deaths} deaths, {run.joins} new ranks; the kept rank", what)
    print(f"{run.deaths} deaths, {run.joins} new ranks, {report['held'][-1][1]} rounds; the kept rank: "
          f"{'; '.join(what) or 'nothing grew'}")
    return bool(what)


if __name__ == "__main__":
    raise SystemExit(campaign(arguments(sys.argv[1:])))
