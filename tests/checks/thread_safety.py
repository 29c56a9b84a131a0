"""clang reads every source of the core: its warnings, and the thread-safety annotations (what GUARDED_BY and REQUIRES promise) as errors.

Usage: thread_safety.py COMPILE_COMMANDS.json. Status 77 where no clang is installed.
"""

import subprocess
import sys

from each_source import SKIPPED, core_commands, find_clang, on_each

WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wthread-safety", "-Wthread-safety-beta", "-Werror"]


def main():
    clang = find_clang("clang++")
    if clang is None:
        print("NOT CHECKED: no clang++ here")
        return SKIPPED
    count, failed = on_each(
        core_commands(sys.argv[1]), lambda source, words: [clang, "-fsyntax-only", *WARNINGS, "-Wno-unknown-warning-option", *words, str(source)]
    )
    for text in failed:
        print(text)
    version = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    print(f"{count} sources, {len(failed)} with findings ({version})")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())
