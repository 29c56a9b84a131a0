"""`./run bench --record [PART,...]`: runs the parts of bench/parts.py, and writes docs/benchmarks.md from the results.

Each part runs alone, one after the other, as `./run WORDS --json FILE`. Its result replaces
bench/results/CPU/PART.json, and the page is written anew. A part that fails leaves the result before, with the failure
beside, and the other parts run. A part that looks for faults and finds some has a result with a verdict. Run it on an
otherwise quiet machine, with nothing uncommitted.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys
import tempfile

import processes
import record
import write_docs
from parts import ALL, HOURS, PARTS


def run(name, words, root):
    """The record of one run. A ValueError has the reason of a failure."""
    with tempfile.TemporaryDirectory(prefix="shardwire-record-") as folder:
        path = pathlib.Path(folder, f"{name}.json")
        done = processes.run([str(root / "run"), *shlex.split(words), "--json", str(path)], cwd=root,
                             stderr=subprocess.STDOUT, grace=processes.GRACE_OF_BENCHES_S)
        sys.stdout.write(done.stdout)
        if not path.exists():
            said = [line for line in done.stdout.splitlines() if line.strip()] or ["nothing was printed"]
            raise ValueError(f"ended with {done.returncode}, without a result: {said[-1][:200]}")
        found = record.read(path)
        if done.returncode != 0 and not found["missing"] and not found.get("verdict"):
            raise ValueError(f"ended with {done.returncode}")
        return {**found, "part": name, "command": f"./run {words}"}


def failed(name, why, root, place):
    """The result before, if there is one, with the failure. `place`: the commit and the day of the run."""
    path = write_docs.path_of(root, place["cpu"], name)
    before = record.read(path) if path.exists() else {"bench": "record", "part": name, **place, "tables": [],
                                                      "missing": {}, "command": f"./run {ALL[name]}"}
    return {**before, "failed": {"date": place["date"], "commit": place["commit"], "why": why}}


def main():
    parser = argparse.ArgumentParser(prog="./run bench --record", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", default=",".join(PARTS), metavar="PART,...",
                        help=f"some of {', '.join(ALL)} (default: those before {next(iter(HOURS))})")
    parser.add_argument("--root", type=pathlib.Path, default=record.ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.parts.split(",")
    for name in names:
        if name not in ALL:
            parser.error(f"there is no part {name}; there are {', '.join(ALL)}")
    failures = 0
    for name in names:
        print(f"--- {name}: ./run {ALL[name]}", flush=True)
        place = record.machine()
        try:
            found = run(name, ALL[name], options.root)
        except ValueError as why:
            failures += 1
            print(f"{name} failed: {why}", file=sys.stderr, flush=True)
            found = failed(name, str(why), options.root, place)
        write_docs.store(found, options.root)
        write_docs.write_page(options.root)
    print(f"{len(names) - failures} of {len(names)} parts measured")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
