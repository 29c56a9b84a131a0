"""Puts each defect of tests/simulate/bugs back, and checks that the simulation finds it.

Usage: find_bugs.py [--search] [--many-faults] [NAME...]. Works in a git worktree of HEAD under build/bugs, and takes
half a minute for each defect on two cores with a warm ccache. Prints one line for each; exit status 1 when a defect was
not found.
--search: runs the seeds from 1 on in place of the patch's seed, and prints the first seed that finds the defect.
--many-faults: searches with this option of the simulation, whatever the patch's seed needs.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUGS = ROOT / "tests" / "simulate" / "bugs"
TREE = ROOT / "build" / "bugs" / "tree"


def git(*words, at=ROOT):
    subprocess.run(["git", *words], cwd=at, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seed_of(patch):
    """The seed for the defect, and the simulation's options for this seed: named in the first line of the patch."""
    found = re.match(r"(Seed|Join seed|Seed with many faults|Join seed with many faults) (\d+)\.",
                     patch.read_text(encoding="utf-8"))
    return found[2], (["--joins"] if "Join" in found[1] else []) + (["--many-faults"] if "many" in found[1] else [])


MOST_SEEDS = 40000  # of a search


def find(patch, searches, options):
    git("checkout", "-f", "--detach", subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, text=True,
                                                     capture_output=True).stdout.strip(), at=TREE)
    git("apply", str(patch), at=TREE)
    seed, own_options = seed_of(patch)
    seeds = ["--seed", "1", "--seeds", str(MOST_SEEDS)] if searches else ["--seed", seed]
    seeds += sorted({*own_options, *options})
    ran = subprocess.run([TREE / "run", "simulate", *seeds], cwd=TREE, capture_output=True, text=True)
    found = re.search(r"seed (\d+) FAILS:\n(.*)", ran.stdout) if ran.returncode == 1 else None
    by = f"found by seed {found[1]}" if found else f"NOT FOUND by {' '.join(seeds)}"
    print(f"{patch.stem}: {by}: {(found[2] if found else ran.stderr[-300:]).strip()[:160]}", flush=True)
    return found is not None


def main():
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    searches = "--search" in sys.argv
    options = ["--many-faults"] if searches and "--many-faults" in sys.argv else []
    patches = [BUGS / f"{name}.patch" for name in names] or sorted(BUGS.glob("*.patch"))
    git("worktree", "prune")
    if not TREE.exists():
        TREE.parent.mkdir(parents=True, exist_ok=True)
        git("worktree", "add", "--detach", str(TREE))
    return 0 if all([find(patch, searches, options) for patch in patches]) else 1


if __name__ == "__main__":
    sys.exit(main())
