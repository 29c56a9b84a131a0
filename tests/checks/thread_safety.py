"""clang reads every source of the core: violations of the thread-safety annotations (GUARDED_BY and REQUIRES) are
errors, and with SHARDWIRE_WERROR=ON all warnings are errors, too. clang reads the sources as compiled, a folder at a
time, which takes a quarter of the time. Some warnings of clang concern only the given file, such as a function without
a use; GCC gives these warnings for all files at compilation. Of backend/c10d clang reads the sources with locks, all as
one unit: reading torch's headers costs 8 s each time.

Usage: thread_safety.py COMPILE_COMMANDS.json. Status 77 if no clang is installed. The torch is the torch of the running
Python; without torch backend/c10d is left out, and the last line says so.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from each_source import ROOT, SKIPPED, core_units, find_clang, on_each

WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wthread-safety", "-Wthread-safety-beta"]
ERRORS = (["-Werror"] if os.environ.get("SHARDWIRE_WERROR") == "ON"
          else ["-Werror=thread-safety", "-Werror=thread-safety-beta"])


def torch_words(python=sys.executable):
    """The words by which clang finds the torch of `python`; None without torch."""
    said = subprocess.run([python, str(ROOT / "backend/c10d/query_torch.py")], capture_output=True, text=True,
                          check=False)
    facts = dict(line.split("=", 1) for line in said.stdout.splitlines() if "=" in line)
    if said.returncode != 0:
        return None
    # fmt as a header: torch brings a separate fmt, which need not fit the system's library.
    words = ["-std=c++20", "-DFMT_HEADER_ONLY=1", "-I", str(ROOT), "-I", str(ROOT / "include")]
    return (words
            + [word for folder in facts["TORCH_INCLUDE_DIRS"].split(";") if folder for word in ("-isystem", folder)])


def locking_sources(folder=ROOT / "backend/c10d"):
    return [path for path in sorted(folder.glob("*.cc")) if "MutexLock" in path.read_text()]


def c10d_command(scratch):
    """(source, words) of the one unit, in the form of core_commands(); None without torch."""
    words = torch_words()
    if words is None:
        return None
    unit = pathlib.Path(scratch) / "c10d_that_locks.cc"
    unit.write_text("".join(f'#include "{path}"\n' for path in locking_sources()))
    return unit, words


def main():
    clang = find_clang("clang++")
    if clang is None:
        print("NOT CHECKED: no clang++ here")
        return SKIPPED
    units = list(core_units(sys.argv[1]))
    sources = sum(len(found) for _, found, _ in units)
    with tempfile.TemporaryDirectory(prefix="shardwire-threads-") as scratch:
        c10d = c10d_command(scratch)
        # The long one first.
        commands = ([c10d] if c10d else []) + [(file, words) for file, _, words in units]
        _, failed = on_each(
            commands, lambda file, words: [clang, "-fsyntax-only", *WARNINGS, *ERRORS, "-Wno-unknown-warning-option",
                                           *words, str(file)]
        )
    for text in failed:
        print(text)
    version = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    left_out = "" if c10d else f"; backend/c10d NOT CHECKED: {sys.executable} has no torch"
    print(f"{sources} sources in {len(commands)} units, {len(failed)} with findings ({version}){left_out}")
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
