"""clang-tidy checks names and functions of more than 100 lines, over the core as compiled; .clang-tidy has the rules.

The rooms with torch are left out, since torch's headers cost more than all of the core. sizes.py counts the lines of
functions in these rooms, and of code skipped by this machine's preprocessor.
Usage: names.py COMPILE_COMMANDS.json. Status 77 if no clang-tidy 14 is installed.
"""

import shutil
import sys

from each_source import ROOT, SKIPPED, core_units, on_each

TIDY = "clang-tidy-14"  # other versions know other kinds of names
CHECKS = "-*,readability-function-size,readability-identifier-naming"


def command(source, words):
    return [TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", f"--checks={CHECKS}", str(source), "--", *words]


def main():
    if shutil.which(TIDY) is None:
        print(f"NOT CHECKED: no {TIDY} here")
        return SKIPPED
    units = list(core_units(sys.argv[1]))
    count, failed = on_each(((file, words) for file, _, words in units), command)
    for text in failed:
        print(text)
    print(f"{sum(len(sources) for _, sources, _ in units)} sources in {count} units, {len(failed)} with findings")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())
