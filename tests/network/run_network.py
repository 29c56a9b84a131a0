"""Bad networks: two network namespaces with two ranks each, shared memory inside, tcp between, and a cable (cable.cc)
that drops, delays, reorders, duplicates, corrupts and swallows packets, or is pulled.

Usage: run_network.py [--only NAME,...]
Each case ends with right results, or with the documented error on every rank within the documented time. Prints one
line per case, the failures, and "N passed, N failed, N skipped". Without root, iproute2 or /dev/net/tun the cases are
skipped, and one line says why.
"""

import argparse
import collections
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from network_namespaces import ip, names_of_two  # noqa: E402
from two_cables import TwoCables  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent

# job: of job.py. before: the cable from the start; later: after the moment `at` of all ranks ("store": they have the
# c10d store, "working": one round is done); again: seconds until the cable is as `back` says (clean), or None. want:
# "right", or the words of which each rank's error contains one, or "ends": right or wrong results, or any error of
# shardwire or its queues. within: seconds from the change (or the start) to the last error. environment: of all ranks.
# cables: with 2 the words are those of TwoCables, and a round of the job may take `longest` seconds. killed: the ranks
# that are killed when the cable changes; each error names such a rank. rounds: of the job; 0: as many as fit into
# `seconds`.
Case = collections.namedtuple(
    "Case", "name job before at later again want within seconds timeout environment cables longest back killed rounds",
    defaults=["collectives", "", "working", "", None, "right", 0, 2, 40, {}, 1, 0.0, "", (), 0])

# seconds: tcp detects a silent peer after 8 to 10 s (docs/transports.md); on busy processors the check comes later
SILENCE = 12
SOON = 6  # at once, on busy processors
LOST = ("acknowledged nothing", "no reason came on the other connection", "Connection timed out", "No route to host",
        "died or left")
# The kernel of a host with a cable again repeats the dead process's last packet, or knows no connection of this kind.
GONE = ("the peer closed the connection", "Connection reset by peer")
NOT_JOINED = ("did not arrive", "did not answer", "the c10d store failed", "no transport joins", "died or left",
              "gave up", "timed out", "did not join")
CHANGED = ("other bytes arrived (CRC-32C",)
PLAIN = {"SHARDWIRE_TCP_TLS": "off"}  # the job has a token: tcp would encrypt
CHECKED = {"SHARDWIRE_TCP_CRC": "1", "SHARDWIRE_TCP_TLS": "off"}  # the job has a token: TLS would find the bits first
# The store's connections, which are torch's, go over the first cable.
MULTIPATH = {"SHARDWIRE_TCP_MULTIPATH": "1", "SHARDWIRE_SOCKET_IFNAME": "=second"}
CHANGED_TLS = ("bytes that TLS rejects", "rejects bytes of TLS")
CASES = [
    Case("clean"),
    Case("loss-1", before="loss=0.01"),
    Case("loss-5", before="loss=0.05"),
    Case("delay", before="delay=20 jitter=10"),
    Case("reorder", before="reorder=0.25"),
    Case("duplicate", before="duplicate=0.1"),
    Case("corrupt", before="corrupt=0.01"),
    Case("corrupt-checksums", before="corrupt=0.01", environment=CHECKED),
    Case("loss-5-plain", before="loss=0.05", environment=PLAIN),
    Case("disorder-plain", before="delay=20 jitter=10 reorder=0.25 duplicate=0.1", environment=PLAIN),
    Case("corrupt-plain", before="corrupt=0.01", environment=PLAIN),
    # 0.9 MB for each of two ranks take 3.6 s
    Case("slow", job="leaving", before="rate=4"),
    Case("slower", job="leaving", before="rate=0.8"),
    Case("slow-loss", job="leaving", before="rate=4 loss=0.03"),
    Case("slow-tls-off", job="leaving", before="rate=4", environment=PLAIN),
    Case("pulled-5s", later="cut=both", again=5, seconds=8),
    Case("pulled-5s-plain", later="cut=both", again=5, seconds=8, environment=PLAIN),
    Case("pulled", later="cut=both", want=LOST, within=SILENCE),
    Case("pulled-plain", later="cut=both", want=LOST, within=SILENCE, environment=PLAIN),
    Case("half-open", later="cut=ab", want=LOST, within=SILENCE),
    Case("half-open-plain", later="cut=ab", want=LOST, within=SILENCE, environment=PLAIN),
    # The host that gives up first resets the connection, and the reset passes where the cable still carries packets.
    Case("half-open-back", later="cut=ba", want=(*LOST, "Connection reset by peer"), within=SILENCE),
    # Rank 2, on the host of the dead rank, may see the death first: the reason has no more words then.
    Case("killed-while-pulled", later="cut=both", again=2, killed=(3,), want=(*GONE, ") died"), within=SILENCE),
    Case("rebooted", later="cut=both", again=2, back="rebooted=1", killed=(2, 3), want=GONE, within=SILENCE),
    Case("rebooted-idle", job="idle", later="cut=both", again=2, back="rebooted=1", killed=(2, 3), want=GONE,
         within=SILENCE),
    Case("mtu-hole", before="longest=600", want=NOT_JOINED, within=25, timeout=15),
    Case("mtu-hole-later", later="longest=600", want=(*LOST, *NOT_JOINED), within=25, timeout=15),
    Case("bootstrap-pulled-5s", at="store", later="cut=both", again=5),
    Case("bootstrap-pulled", at="store", later="cut=both", want=NOT_JOINED, within=20, timeout=10),
    Case("bootstrap-half-open", at="store", later="cut=ba", want=NOT_JOINED, within=20, timeout=10),
    Case("checksums", before="loss=0.01 reorder=0.1", environment=CHECKED),
    Case("changed", later="corrupt=0.01 repair=1", want=CHANGED, within=SOON, environment=CHECKED),
    Case("changed-frames", later="corrupt=0.01 repair=1", want=CHANGED, within=SOON,
         environment={**CHECKED, "SHARDWIRE_ORDINARY_PATH": "staged"}),
    Case("changed-fetches", later="corrupt=0.01 repair=1", want=CHANGED, within=SOON,
         environment={**CHECKED, "SHARDWIRE_ORDINARY_PATH": "cross_memory"}),
    # long packets only: those of the publisher's records, which have no checksums, are short
    Case("fetch-changed", job="weights", later="corrupt=0.01 repair=1 shortest=1000", want=CHANGED, within=SOON,
         environment=CHECKED),
    # No rank can detect the changed bytes. In a changed header they may let an operation wait in vain.
    Case("changed-plain", later="corrupt=0.01 repair=1", want="ends", within=30, timeout=15, rounds=40,
         environment=PLAIN),
    # few packets, and long ones: most of the changed bytes are those of tensors
    Case("changed-plain-long", later="corrupt=0.002 repair=1 shortest=1000", want="ends", within=40, timeout=15,
         rounds=20, environment=PLAIN),
    Case("changed-tls", later="corrupt=0.01 repair=1", want=CHANGED_TLS, within=SOON),
    Case("fetch-loss-5", job="weights", before="loss=0.05"),
    Case("fetch-pulled-5s", job="weights", later="cut=both", again=5, seconds=8),
    Case("fetch-pulled", job="weights", later="cut=both", want=(*LOST, *NOT_JOINED), within=25, timeout=15),
    # The longest rounds of 6 runs took 0.05 to 0.10 s (0.3 s on busy processors), 1.0 to 1.7 s, and 1.1 to 1.7 s.
    Case("one-of-two-down", before="watched", later="down", cables=2, seconds=4, environment=MULTIPATH, longest=1.0),
    Case("one-of-two-down-unwatched", later="down", cables=2, seconds=4, environment=MULTIPATH, longest=3.5),
    Case("one-of-two-lost", later="lost", cables=2, seconds=4, environment=MULTIPATH, longest=3.5),
    Case("one-of-two-down-tcp", later="down", cables=2, environment={"SHARDWIRE_SOCKET_IFNAME": "=second"}, want=LOST,
         within=SILENCE),
]


class Cable:
    """Two namespaces and the process that carries packets between them. The third namespace is the second host after
    its reboot."""

    def __init__(self, program):
        self.names = [*names_of_two("swnet"), names_of_two("swreb")[1]]
        self._process = None
        try:
            for name in self.names:
                ip("netns", "add", name)
            self._process = subprocess.Popen([program, *self.names], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, text=True, bufsize=1)
            if self._process.stdout.readline().strip() != "ready":
                raise OSError(self._process.stderr.read().strip())
            for number, name in zip((1, 2, 2), self.names):
                ip("-n", name, "addr", "add", f"10.84.0.{number}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except OSError:
            self.end()
            raise

    def treat(self, words):
        """Returns how many packets were carried, lost, corrupted so far."""
        self._process.stdin.write(words + "\n")
        return [int(word) for word in self._process.stdout.readline().split()]

    def end(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Failed(Exception):
    pass


def await_words(ranks, pipes, word, limit, outcomes, only=range(4)):
    """Until each of the ranks `only` has sent `word` or its outcome. A rank that hangs prints its stacks."""
    waiting = {rank for rank in only if rank not in outcomes}
    while waiting:
        left = limit - time.monotonic()
        ready = multiprocessing.connection.wait([pipes[rank] for rank in waiting], max(0, left))
        if not ready:
            for rank in waiting:
                os.kill(ranks[rank].pid, signal.SIGUSR1)
            time.sleep(1)
            raise Failed(f"ranks {sorted(waiting)} hang: they sent neither {word!r} nor an outcome; {outcomes}")
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            try:
                got = pipes[rank].recv()
            except EOFError:
                ranks[rank].join()
                raise Failed(f"rank {rank} died with status {ranks[rank].exitcode}; {outcomes}") from None
            if isinstance(got, tuple):
                outcomes[rank] = got
            if isinstance(got, tuple) or got == word:
                waiting.discard(rank)


def run(case, cable, port):
    """Returns the outcomes and the time of the change of the cable."""
    import job  # torch is imported once, before the ranks are forked

    fork = multiprocessing.get_context("fork")
    ranks, pipes, outcomes = [], [], {}
    alive = [rank for rank in range(job.SIZE) if rank not in case.killed]
    options = {"job": case.job, "timeout": case.timeout, "environment": case.environment, "rounds": case.rounds}
    cable.treat(case.before)
    changed = time.monotonic()
    try:
        for number in range(job.SIZE):
            mine, its = fork.Pipe()
            ranks.append(fork.Process(target=job.main, args=(number, its, cable.names[number // job.PER_HOST], port,
                                                             options)))
            ranks[-1].start()
            its.close()
            pipes.append(mine)

        def change():
            cable.treat(case.later)
            began = time.monotonic()
            for rank in case.killed:
                ranks[rank].kill()
            if case.again is not None:
                time.sleep(case.again)
                cable.treat(case.back)
            return began

        slow = time.monotonic() + case.timeout + 20
        await_words(ranks, pipes, "store", slow, outcomes)
        if case.later and case.at == "store":
            for pipe in pipes:
                pipe.send("go")
            changed = change()
        else:
            for pipe in pipes:
                pipe.send("go")
        await_words(ranks, pipes, "working", slow, outcomes)
        if case.later and case.at == "working":
            changed = change()
        if case.want == "right":
            time.sleep(max(0, case.seconds - (case.again or 0)))
        if case.want == "right" or case.job == "weights":
            if case.want != "right":  # the subscribers' error comes first; then the publisher ends normally
                await_words(ranks, pipes, "", changed + case.within + 20, outcomes, only=(2, 3))
            for rank in {"collectives": (0,), "weights": (2, 0), "leaving": ()}[case.job]:
                if rank not in outcomes:
                    pipes[rank].send("stop")
                    if case.job == "weights" and rank == 2:
                        await_words(ranks, pipes, "", time.monotonic() + 30, outcomes, only=(2, 3))
        await_words(ranks, pipes, "", time.monotonic() + max(case.within, 40) + 20, outcomes, only=alive)
        carried = cable.treat(case.later if case.again is None and case.later else case.back or case.before)
        for rank in alive:
            pipes[rank].send("end")
        ended = {}
        await_words(ranks, pipes, "ended", time.monotonic() + 25, ended, only=alive)
        return outcomes, changed, carried
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
        cable.treat("")


def judge(case, outcomes, changed):
    import shardwire

    problems, said = [], []
    for rank, (kind, text, when) in sorted(outcomes.items()):
        after = when - changed
        publisher = case.job == "weights" and rank < 2
        if case.want == "right" or publisher:
            said.append(f"{kind} {text}" if kind == "right" else kind)
            if kind != "right":
                problems.append(f"rank {rank}: {kind} after {after:.1f} s: {text}")
            elif case.longest and int(re.search(r"longest (\d+) ms", text)[1]) > 1000 * case.longest:
                problems.append(f"rank {rank}: a round was too long: {text}")
            continue
        said.append(f"{kind} {after:.1f} s" + (f" {text}" if kind == "right" else ""))
        # an operation's error begins with the own rank and the group; queues and compile_op give the reason alone
        reason = text.partition(', group "')[2] or text
        named = "[" + "".join(map(str, case.killed)) + "]" if case.killed else r"\d"
        is_named = case.at == "store" or case.before or re.search(rf"\brank {named}", reason)
        if case.want == "ends":
            if kind not in ("right", "Empty", "Full", *shardwire.errors.__all__):
                problems.append(f"rank {rank}: no error of shardwire: {kind} after {after:.1f} s: {text}")
        elif kind == "right" or not any(word in text for word in case.want) or not is_named:
            problems.append(f"rank {rank}: not a documented error: {kind} after {after:.1f} s: {text}")
        if after > case.within:
            problems.append(f"rank {rank}: late, after {after:.1f} s: {text}")
    return problems, ", ".join(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--texts", action="store_true", help="print the texts of the errors")
    options = parser.parse_args()
    cases = [case for case in CASES
             if not options.only or case.name in options.only.split(",")]
    missing = [what for what, there in (("root", os.geteuid() == 0), ("iproute2", shutil.which("ip")),
                                        ("a C++ compiler", shutil.which("c++")),
                                        ("/dev/net/tun", os.path.exists("/dev/net/tun"))) if not there]
    if missing:
        print(f"skipped: no {', '.join(missing)} here")
        print(f"0 passed, 0 failed, {len(cases)} skipped")
        return 0
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="shardwire-network-") as folder:
        program = pathlib.Path(folder) / "cable"
        subprocess.run(["c++", "-O2", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-o", program, HERE / "cable.cc"],
                       check=True)
        cables, why_none = {}, {}
        try:
            for number, case in enumerate(cases):
                begun = time.monotonic()
                if case.cables not in cables and case.cables not in why_none:
                    try:
                        cables[case.cables] = Cable(program) if case.cables == 1 else TwoCables()
                    except OSError as error:
                        why_none[case.cables] = error
                        print(f"skipped: no {case.cables} cable(s) between two network namespaces here: {error}")
                if case.cables in why_none:
                    skipped += 1
                    continue
                outcomes, said, carried = {}, "", []
                try:
                    outcomes, changed, carried = run(case, cables[case.cables], 29700 + 2 * number)
                    problems, said = judge(case, outcomes, changed)
                except Failed as error:
                    problems = [str(error)]
                except Exception:  # noqa: BLE001: the other cases run all the same
                    problems = [traceback.format_exc()]
                passed, failed = passed + (not problems), failed + bool(problems)
                print(f"{'FAIL' if problems else 'ok'} {case.name} ({time.monotonic() - begun:.1f} s): {said}",
                      flush=True)
                if options.texts:
                    problems = problems or [f"{rank}: {text}" for rank, (_, text, _) in sorted(outcomes.items())]
                    print(f"   cable {carried}")
                for problem in problems:
                    print(f"   {problem}", flush=True)
        finally:
            for cable in cables.values():
                cable.end()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    import multiprocessing.connection

    sys.exit(main())
