"""Puts each defect of tests/simulate/bugs back, and checks that the simulation finds it.

Usage: find_bugs.py [NAME...]. Works in a git worktree of HEAD under build/bugs; about two minutes for each defect on
two cores. Prints one line for each; exit status 1 when a defect was not found.
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
    """The seed that finds the defect: named in the first line of the patch."""
    return re.match(r"Seed (\d+)\.", patch.read_text(encoding="utf-8")).group(1)


def find(patch):
    git("checkout", "-f", "--detach", subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, text=True,
                                                     capture_output=True).stdout.strip(), at=TREE)
    git("apply", str(patch), at=TREE)
    ran = subprocess.run([TREE / "run", "simulate", "--seed", seed_of(patch)], cwd=TREE, capture_output=True, text=True)
    is_found = ran.returncode == 1 and "FAILS" in ran.stdout
    first = ran.stdout.split("\n")[1] if is_found else ran.stderr.strip()[-300:]
    print(f"{patch.stem}: {'found' if is_found else 'NOT FOUND'} by seed {seed_of(patch)}: {first.strip()[:160]}",
          flush=True)
    return is_found


def main():
    patches = [BUGS / f"{name}.patch" for name in sys.argv[1:]] or sorted(BUGS.glob("*.patch"))
    git("worktree", "prune")
    if not TREE.exists():
        TREE.parent.mkdir(parents=True, exist_ok=True)
        git("worktree", "add", "--detach", str(TREE))
    return 0 if all([find(patch) for patch in patches]) else 1


if __name__ == "__main__":
    sys.exit(main())
