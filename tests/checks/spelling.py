"""The spelling check: codespell over our sources and pages, except our own words. Status 77 if codespell is not
installed. Usage: spelling.py [FILE...].
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
FOLDERS = (".ci", ".github", "backend", "bench", "docs", "include", "ops", "python", "tests")
SUFFIXES = {"", ".cc", ".cmake", ".cpp", ".cu", ".h", ".json", ".md", ".py", ".pyi", ".sh", ".supp", ".toml", ".txt",
            ".yaml", ".yml"}
# Names in code are no words: theirOwn, their_own, COO.
NAMES = r"\b(\w*[a-z][A-Z]\w*|[A-Z]{2,}\w*|\w*_\w*)\b"
# Words of ours that codespell takes for mistakes, in small letters: names of variables, and what tests misspell on
# purpose.
OURS = ("inflight", "nd", "ptd", "brodcast")


def sources():
    found = ([path for path in ROOT.iterdir() if path.is_file()]
             + [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()])
    return sorted(str(path.relative_to(ROOT)) for path in found
                  if path.suffix in SUFFIXES and "__pycache__" not in path.parts)


def main():
    if shutil.which("codespell") is None:
        print("NOT CHECKED: no codespell here")
        return SKIPPED
    files = sys.argv[1:] or sources()
    status = subprocess.run(["codespell", f"--ignore-regex={NAMES}", f"--ignore-words-list={','.join(OURS)}", *files],
                            cwd=ROOT, check=False).returncode
    print(f"{len(files)} files")
    return status


if __name__ == "__main__":
    sys.exit(main())
