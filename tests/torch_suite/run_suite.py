"""./run suite: torch's own distributed tests (torch.testing._internal.distributed.distributed_test) on gloo and on
shardwire, side by side.

Every test that passes on gloo must pass on shardwire, and so must torch's tests of operations that gloo lacks, except
the tests in exceptions.txt, each with a reason. An exception that passes is stale: a failure too. With --as gloo the
tests ask for gloo, and shardwire takes gloo's place. The tests run in one_view.py, a separate process that is started
anew after a test hangs.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SLACK = 30  # seconds beyond a test's own limit until the test's process is ended
Result = collections.namedtuple("Result", "outcome text")
Rule = collections.namedtuple("Rule", "test torch pattern reason")


def arguments():
    parser = argparse.ArgumentParser(prog="./run suite",
                                     description="torch's own distributed tests on gloo and shardwire.")
    parser.add_argument("--world", default="3", metavar="N[,N]", help="numbers of ranks (3)")
    parser.add_argument("--backend", choices=("both", "gloo", "shardwire"), default="both")
    parser.add_argument("--as", dest="alias", choices=("gloo",),
                        help="the tests ask for gloo, and shardwire stands in for it")
    parser.add_argument("--filter", default="", metavar="PATTERN",
                        help="only tests whose name this regular expression finds")
    parser.add_argument("--limit", type=int, default=100, metavar="SECONDS", help="for one test (100)")
    parser.add_argument("--report", metavar="FILE", help="write the counts for shardwire there, as JSON")
    options = parser.parse_args()
    try:
        options.worlds = [int(word) for word in options.world.split(",")]
    except ValueError:
        parser.error(f"--world {options.world}: numbers are needed, as in --world 2,3,4")
    if min(options.worlds) < 2:
        parser.error("--world: the tests need two ranks or more")
    options.backends = ["gloo", "shardwire"] if options.backend == "both" else [options.backend]
    return options


def say(text):
    print(text, flush=True)


def torch_version():
    """1.13, 2.13; without importing torch, which would take seconds."""
    import importlib.util
    text = (pathlib.Path(importlib.util.find_spec("torch").origin).parent / "version.py").read_text()
    return re.search(r"__version__\s*=\s*['\"](\d+\.\d+)", text).group(1)


def read_rules(version, python="%d.%d" % sys.version_info[:2], alias=None):
    """{test: Rule} of this torch with this Python, as in "2.6 python3.13", or "2.6 python3.13 as gloo"."""
    rules = {}
    for number, line in enumerate((HERE / "exceptions.txt").read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 4 or not all(parts):
            sys.exit(f"exceptions.txt, line {number}: test | torch | pattern | reason are needed")
        rule = Rule(*parts)
        if re.fullmatch(rule.torch, f"{version} python{python}" + (f" as {alias}" if alias else "")):
            rules[rule.test] = rule
    return rules


# ---- running


class Child:
    """A running one_view.py; ended with its ranks on leaving the with statement."""

    def __init__(self, backend, view, world, limit, pattern, done, log, alias):
        reader, writer = os.pipe()
        stands_in = {"SHARDWIRE_AS": alias} if alias and backend == "shardwire" else {}
        command = [sys.executable, HERE / "one_view.py", "--backend", alias if stands_in else backend, "--view", view,
                   "--world", world, "--limit", limit, "--events", writer, "--filter", pattern, "--without", done]
        # Variables that a launcher or a user set for other programs would change the tests.
        clean = {name: value for name, value in os.environ.items()
                 if not re.match(r"(RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|SHARDWIRE_AS)", name)}
        # Debian 13's torch asks for libuv, and was built without libuv.
        env = {**clean, **stands_in, "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                                        stderr=subprocess.STDOUT, pass_fds=[writer], start_new_session=True, env=env)
        os.close(writer)
        self._reader, self._text = reader, b""

    def event(self, seconds):
        """The next event; None when none came in time, or the process ended."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._reader, 1 << 16) if ready else b""
            if not piece:
                return None
            self._text += piece
        line, self._text = self._text.split(b"\n", 1)
        return json.loads(line)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._reader)


def run_view(backend, view, world, limit, pattern, log_path, alias):
    """{test: Result} of the tests with names that match the pattern."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="shardwire-suite-") as folder, open(log_path, "wb") as log:
        done = pathlib.Path(folder) / "done"
        left = None
        while left is None or left:
            done.write_text("\n".join(results))
            child = Child(backend, view, world, limit, pattern, done, log, alias)
            try:
                listed = child.event(120)
                if listed is None:
                    sys.exit(f"the tests could not be loaded for {backend}; the log is {log_path}")
                left = listed[1]
                run_child(child, left, limit, results)
            finally:
                child.end()
    return results


def run_child(child, left, limit, results):
    """Reads results until no test is left, or a test hangs or ends the process: this test failed."""
    running = None
    while left:
        event = child.event(limit + SLACK)
        if event is None:
            running = running or left[0]
            text = (f"no end after {limit + SLACK} s" if child.process.poll() is None
                    else "the process that runs the tests died")
            results[running] = Result("failed", text)
            left.remove(running)
            return
        running = event[1]
        if event[0] == "end":
            results[running] = Result(*event[2:])
            left.remove(running)
            running = None


# ---- comparing


def count(results):
    outcomes = collections.Counter(result.outcome for result in results.values())
    return [len(results), outcomes["passed"], outcomes["skipped"], outcomes["failed"]]


def last_line(text):
    lines = [line for line in text.strip().splitlines()
             if line.strip() and not line.startswith(("exiting process", " exiting process"))]
    return lines[-1].strip()[:200] if lines else ""


class Verdict:
    """The report on one world size; `bad` counts the findings that fail the suite."""

    def __init__(self, rules):
        self._rules = rules
        self.bad = 0
        self.excused = 0

    def judge(self, results, reference):
        """`reference`: gloo's results of the same view, or None: then every failure counts."""
        for name, result in sorted(results.items()):
            rule = self._rules.get(name)
            if result.outcome == "failed":
                if rule is not None and re.search(rule.pattern, result.text):
                    self.excused += 1
                elif reference is not None and reference.get(name, result).outcome == "failed":
                    say(f"  fails on gloo too: {name}: {last_line(result.text)}")
                else:
                    self.bad += 1
                    why = f" (listed, but not for this: {rule.pattern!r} is not in the text)" if rule else ""
                    say(f"  FAIL {name}{why}: {last_line(result.text)}")
            elif rule is not None and result.outcome == "passed":
                self.bad += 1
                say(f"  STALE exception {name}: it passes; take it out of exceptions.txt")
            elif (reference is not None and result.outcome == "skipped"
                  and reference.get(name, result).outcome == "passed"):
                self.bad += 1
                say(f"  FAIL {name}: runs on gloo and is skipped here: {result.text[:150]}")


def run_world(world, options, version, tag, rules):
    """{passed, failed, skipped} of shardwire; a listed exception counts as skipped."""
    logs = ROOT / "build" / "log"
    logs.mkdir(parents=True, exist_ok=True)
    tables = {}
    for backend in options.backends:
        begun = time.monotonic()
        log = logs / f"torch-suite-{tag}-{backend}-{world}.log"
        tables[backend] = run_view(backend, "gloo", world, options.limit, options.filter, log, options.alias)
        # torch skips tests for gloo because gloo lacks the operation, or for small groups. For mpi torch runs these on
        # CPU tensors too.
        skipped = [name for name, result in tables[backend].items()
                   if result.outcome == "skipped" and may_run(name, result.text, world)]
        log = logs / f"torch-suite-{tag}-{backend}-{world}-mpi.log"
        more = (run_view(backend, "mpi", world, options.limit, f"^({'|'.join(skipped)})$", log, options.alias)
                if skipped else {})
        tables[backend + " as mpi"] = {name: result for name, result in more.items() if result.outcome != "skipped"}
        say(f"  {backend}, {world} ranks: {time.monotonic() - begun:.0f} s")
    if options.alias:
        say(f"shardwire as {options.alias}:")
    say(f"torch {version}, {world} ranks      run  passed  skipped  failed")
    for title, results in tables.items():
        say("  {:<24}{:>5}{:>8}{:>9}{:>8}".format(title, *count(results)))
    if "shardwire" not in tables:
        return {"passed": 0, "failed": 0, "skipped": 0}
    verdict = Verdict(rules)
    verdict.judge(tables["shardwire"], tables.get("gloo"))
    verdict.judge(tables["shardwire as mpi"], None)
    say(f"  listed exceptions: {verdict.excused}; not as they should be: {verdict.bad}")
    counts = [count(tables[title]) for title in ("shardwire", "shardwire as mpi")]
    # Tests that ran as mpi were skipped before.
    skipped = counts[0][2] - counts[1][0] + verdict.excused
    return {"passed": counts[0][1] + counts[1][1], "failed": verdict.bad, "skipped": skipped}


def may_run(name, reason, world):
    """Whether a test that is skipped for this reason can run on CPU tensors. Tests of sub-groups, which torch skips in
    small worlds, use ranks 1 and 2.
    """
    sub_group = "_group" in name and "full_group" not in name
    return not re.search("CUDA|cuda|GPU|gpu|Nccl|nccl|NCCL", reason) and (world > 2 or not sub_group)


def main():
    options = arguments()
    version = torch_version()
    tag = os.environ.get("SHARDWIRE_TAG", version)
    rules = read_rules(version, alias=options.alias)
    worlds = [run_world(world, options, version, tag, rules) for world in options.worlds]
    if options.report:
        pathlib.Path(options.report).write_text(
            json.dumps({key: sum(each[key] for each in worlds) for key in worlds[0]}))
    bad = sum(each["failed"] for each in worlds)
    say(f"torch suite: {'as it should be' if bad == 0 else f'{bad} not as they should be'}")
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
