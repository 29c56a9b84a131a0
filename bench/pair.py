"""A commit and the working tree in turns: `./run bench --pair COMMIT [PART] [ARGS of the part]`.

COMMIT is checked out under build/pair. Both trees are built by their own ./run, for the same Python and torch. Then
both run the same bench in rounds, in the order A B, B A, A B ... Each figure has the median of both and their ratio.
Figures that are worse by more than 5 % are listed with the ratios of the single rounds: a change is worse in every
round, noise is worse in some rounds and makes as many figures better. Figures that a side did not have in every round
are listed, and the exit status is 1 when the working tree lacks a figure of COMMIT. The bench must write JSON, in both
trees. Use an otherwise quiet machine.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

import processes

ROOT = pathlib.Path(__file__).resolve().parents[1]
# How a part gives its JSON: "FILE" is replaced by a path; without it the last line of the output is JSON.
PARTS = {"reshape": ("--json", "FILE"), "collectives": ("--json",), "torch-collectives": ("--json", "FILE"),
         "weights": ("--json", "FILE"), "groups": ("--json", "FILE"), "queue": ("--json", "FILE")}
COMPARED = ("--json", "FILE")  # any part with --compare
WORSE = 1.05


def figures(report):
    """{name: value} of the JSON of any part: times, where less is better."""
    found = {}
    for name, case in report.get("cases", {}).items():
        found[name] = statistics.median(case["us"])
    for name, value in report.get("counts", {}).items():
        found[name] = value
    for row in report.get("rows", []):
        label = " ".join(str(value) for value in row.values() if not isinstance(value, float))
        found.update({f"{label} {by}": value for by, value in row.items() if isinstance(value, float)})
    for by, quantiles in report.get("latency", {}).items():
        found[f"latency {by} p50"] = quantiles["p50_us"]
    for case, ways in report.get("seconds", {}).items():
        found.update({f"{case} {way}": seconds for way, seconds in ways.items()})
    for cell in report.get("cells", []):
        found[f"{cell['ranks']} ranks {cell['operation']} {cell['bytes']} {cell['by']}"] = cell["p50_us"]
    found.update(report.get("figures", {}))
    return found


def ratio(before, after):
    return after / before if before else 1.0 if not after else float("inf")


def compare(rounds):
    """Rows (name, median of A, median of B, ratio, ratios of the rounds) from [(figures of A, figures of B)]."""
    names = [name for name in rounds[0][0] if all(name in side for both in rounds for side in both)]
    rows = []
    for name in names:
        a, b = ([both[side][name] for both in rounds] for side in (0, 1))
        middle_a, middle_b = statistics.median(a), statistics.median(b)
        rows.append((name, middle_a, middle_b, ratio(middle_a, middle_b), sorted(map(ratio, a, b))))
    return rows


def lost(rounds):
    """The names that A, and that B, did not have in every round, of the figures that the other had in every round."""
    in_all = [set.intersection(*(set(both[side]) for both in rounds)) for side in (0, 1)]
    return sorted(in_all[1] - in_all[0]), sorted(in_all[0] - in_all[1])


def verdict(singles):
    """A word on a figure whose median is worse."""
    worse = sum(each > 1 for each in singles)
    better = len(singles) - worse
    return f"noise: better in {better} rounds" if better else f"worse in every round, by chance 1 in {2 ** worse}"


def lines_of(rows, commit):
    width = max([len(row[0]) for row in rows] + [6])
    lines = [f"{'figure':<{width}} {commit:>14} {'working tree':>14} {'ratio':>7}"]
    lines += [f"{name:<{width}} {a:>14.6g} {b:>14.6g} {middle:>7.3f}" for name, a, b, middle, _ in rows]
    worse, better = [row for row in rows if row[3] > WORSE], [row for row in rows if row[3] < 1 / WORSE]
    lines.append("")
    lines.append(f"{len(worse)} of {len(rows)} figures are worse by more than {100 * (WORSE - 1):.0f} %, {len(better)} "
                 "are better by as much"
                 + (f"; the median of all ratios is {statistics.median(row[3] for row in rows):.3f}" if rows else ""))
    for name, _, _, middle, singles in worse:
        lines.append(f"{name:<{width}} {middle:>7.3f}, rounds {singles[0]:.3f} to {singles[-1]:.3f}: "
                     f"{verdict(singles)}")
    return lines


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="./run bench --pair", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--pair-rounds", type=int, default=6, help="rounds, each with one run of both (%(default)s)")
    parser.add_argument("--pair-json", metavar="FILE", help="also write all figures there")
    parser.add_argument("commit")
    parser.add_argument("part", nargs="?", default="reshape", choices=PARTS)
    options, options.more = parser.parse_known_intermixed_args(arguments)
    return options


def git(*words):
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"pair.py: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def checkout(commit):
    """The folder of the commit's tree, and the commit's short name."""
    name = git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}")
    folder = ROOT / "build" / "pair" / name
    if not (folder / "run").exists():
        git("worktree", "prune")
        git("worktree", "add", "--detach", "--force", str(folder), name)
    return folder, name


def call(root, words):
    # SHARDWIRE_TORCH: PYTHON names the selected interpreter; pip must not make another.
    return processes.run([str(root / "run"), "bench", *words], cwd=root,
                         env={**os.environ, "SHARDWIRE_TORCH": "debian"}, grace=processes.GRACE_OF_BENCHES_S,
                         stderr=None)


def is_comparison(more):
    return any(word.split("=")[0] == "--compare" for word in more)


def prepare(root, name, part, more):
    """Builds the bench. The help of the bench shows whether the bench has JSON."""
    print(f"building {name} in {root}", file=sys.stderr, flush=True)
    asked = ["--compare=openmpi"] if is_comparison(more) else []
    done = call(root, [part, *asked, "--help"])
    if done.returncode:
        sys.exit(f"pair.py: {name}: ./run bench {shlex.join([part, *asked])} --help ended with {done.returncode}")
    if "--json" not in done.stdout:
        sys.exit(f"pair.py: ./run bench {shlex.join([part, *asked])} of {name} has no --json: without JSON no "
                 "figures can be compared. Choose a later commit, or compare the printed tables by hand.")


def run(root, name, part, more):
    """The figures of one run."""
    with tempfile.NamedTemporaryFile(prefix="shardwire-pair-") as file:
        form = COMPARED if is_comparison(more) else PARTS[part]
        done = call(root, [part, *more, *(file.name if word == "FILE" else word for word in form)])
        if done.returncode:
            sys.exit(f"pair.py: {name}: the bench ended with {done.returncode}:\n{done.stdout[-2000:]}")
        text = pathlib.Path(file.name).read_text(encoding="utf-8") if "FILE" in form else done.stdout
        return figures(json.loads(text.strip().splitlines()[-1] if "FILE" not in form else text))


def main():
    options = parse_arguments()
    folder, name = checkout(options.commit)
    sides = [(folder, name), (ROOT, "the working tree")]
    for root, title in sides:
        prepare(root, title, options.part, options.more)
    rounds = []
    for number in range(options.pair_rounds):
        found = [{}, {}]
        for side in ((0, 1), (1, 0))[number % 2]:
            print(f"round {number + 1} of {options.pair_rounds}: {sides[side][1]}", file=sys.stderr, flush=True)
            found[side] = run(*sides[side], options.part, options.more)
        rounds.append(tuple(found))
    rows = compare(rounds)
    print(f"./run bench {shlex.join([options.part, *options.more])}, {options.pair_rounds} rounds in turns; medians; "
          "less is better")
    print("\n".join(lines_of(rows, name)))
    missing = lost(rounds)
    for side, names in zip((name, "the working tree"), missing):
        if names:
            print(f"not in every round of {side}: {', '.join(names)}")
    if options.pair_json:
        written = [{"figure": row[0], name: row[1], "working tree": row[2], "ratio": row[3], "rounds": row[4]}
                   for row in rows]
        pathlib.Path(options.pair_json).write_text(json.dumps({"commit": name, "part": options.part,
                                                               "arguments": options.more, "figures": written},
                                                              indent=1), encoding="utf-8")
    return int(bool(missing[1]))


if __name__ == "__main__":
    sys.exit(main())
