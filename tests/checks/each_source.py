"""For the clang checks: the core's sources and the units that include the sources, with compile commands, and a loop
over all on all cores.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def find_clang(program):
    """A clang tool by the plain or a versioned name, the newest last; None if there is none."""
    for name in [program] + [f"{program}-{version}" for version in range(25, 13, -1)]:
        if shutil.which(name):
            return shutil.which(name)
    return None


def sources_of(file):
    """The sources included by a unit that CMake wrote (merged.cmake), or the file alone."""
    if file.parent.name != "Unity":
        return [file]
    return [pathlib.Path(name).resolve() for name in re.findall(r'^#include "(.*)"$', file.read_text(), re.M)]


def core_units(path):
    """(compiled file, sources, -I, -D, -std and other front-end words) for the units of ops/ and backend/ in a
    compile_commands.json.
    """
    for entry in json.loads(pathlib.Path(path).read_text()):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        sources = sources_of(file)
        if all(re.match(r"(ops|backend)/", os.path.relpath(source, ROOT)) for source in sources):
            words = shlex.split(entry["command"])
            kept, follows = [], False
            for word in words:
                if follows or word.startswith(("-I", "-D", "-std", "-m", "-isystem")):
                    kept.append(word)
                follows = not follows and word in ("-isystem", "-I", "-D")
            yield file, sources, kept


def core_commands(path):
    """(source, words) for each source of ops/ and backend/, alone, however the source is compiled."""
    for _, sources, words in core_units(path):
        for source in sources:
            yield source, words


def on_each(commands, command_of):
    """Runs command_of(source, words) for each source; returns (how many, outputs of the failed commands)."""
    commands = list(commands)

    def one(item):
        done = subprocess.run(command_of(*item), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        return "" if done.returncode == 0 else f"{os.path.relpath(item[0], ROOT)}:\n{done.stdout}{done.stderr}"

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SHARDWIRE_JOBS", os.cpu_count() or 1))) as pool:
        return len(commands), [text for text in pool.map(one, commands) if text]
