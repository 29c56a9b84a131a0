"""clang-tidy over every source of the core, with the checks of .clang-tidy; any finding fails. A run takes minutes, so
only by request.

Usage: tidy.py COMPILE_COMMANDS.json. Status 77 if no clang-tidy is installed.
"""

import sys

from each_source import SKIPPED, core_commands, find_clang, on_each


def main():
    tidy = find_clang("clang-tidy")
    if tidy is None:
        print("NOT CHECKED: no clang-tidy here")
        return SKIPPED
    count, failed = on_each(core_commands(sys.argv[1]),
                            lambda source, words: [tidy, "--quiet", str(source), "--", *words])
    for text in failed:
        print(text)
    print(f"{count} sources, {len(failed)} with findings")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())
