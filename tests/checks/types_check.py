"""mypy over the package and over a user's program (user_types.py), every import from elsewhere taken as Any: torch's
own types are not ours to judge. Status 77 where no mypy is installed.
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def main():
    mypy = shutil.which("mypy")
    if mypy is None:
        print("NOT CHECKED: no mypy here")
        return SKIPPED
    options = ["--no-site-packages", "--ignore-missing-imports", "--check-untyped-defs", "--no-incremental",
               "--cache-dir=/dev/null"]
    for what in (["-p", "shardwire"], [str(ROOT / "tests" / "checks" / "user_types.py")]):
        status = subprocess.run([mypy, *options, *what], cwd=ROOT / "python", check=False,
                                stdin=subprocess.DEVNULL).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
