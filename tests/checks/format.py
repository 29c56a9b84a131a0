"""The format check: the C++ sources have the layout of clang-format 14.

Other versions lay some lines out differently and cannot judge: then the check is skipped (status 77) and says so.
Usage: format.py [FILE...]; without files all sources of the tree. format.py --fix rewrites the files.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
VERSION = "14"


def formatter():
    """(path of clang-format 14 or None, why not)."""
    seen = []
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            version = re.search(r"version (\d+)", said)
            if version and version.group(1) == VERSION:
                return path, ""
            seen.append(said.strip())
    return None, "NOT CHECKED: clang-format 14 is not here" + (f" ({'; '.join(seen)})" if seen else "")


def main():
    words = [word for word in sys.argv[1:] if word != "--fix"]
    files = [pathlib.Path(word) for word in words] or [
        path
        for folder in ("include", "ops", "backend", "python", "tests", "bench", "docs")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".h", ".cc", ".cu", ".cpp"}
    ]
    path, why = formatter()
    if path is None:
        print(why)
        return SKIPPED
    if not files:
        print("no sources to check")
        return 1
    command = [path, f"--style=file:{ROOT / '.clang-format'}"]
    if "--fix" in sys.argv:
        return subprocess.run([*command, "-i", *map(str, files)], check=False).returncode
    said = subprocess.run([*command, "--dry-run", "-Werror", *map(str, files)], capture_output=True, text=True,
                          check=False)
    # One line a file: the first difference.
    first = {}
    for place in re.findall(r"^(\S+?):(\d+):\d+: error", said.stderr, flags=re.M):
        first.setdefault(place[0], place[1])
    for name, line in first.items():
        print(f"{os.path.relpath(name, ROOT)}:{line}: not as clang-format 14 writes it")
    if said.returncode and not first:
        print(said.stderr)
    print(f"{len(files)} files, {len(first)} to format"
          + ("" if said.returncode == 0 else "; do it: python3 tests/checks/format.py --fix"))
    return 1 if said.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
