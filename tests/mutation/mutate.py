"""Changes backend/exec, fabric and symm in small ways, one at a time, and checks that a test fails for each change.

Usage: mutate.py [FOLDER...] [--minutes M] [--seed S] [--only 12,57] [--also PROGRAM...]. Without a FOLDER all three;
the first call decides. Works in a git worktree of HEAD under build/mutation. To begin anew, remove the worktree by
`git worktree remove --force build/mutation/tree`, and then the folder build/mutation.

One build holds all changes ("mutants", found by places.py): the variable SHARDWIRE_MUTANT selects one by number, and
SHARDWIRE_MUTANT_TRACE names a file in which a program marks the reached mutants. The judges of a mutant are 150 seeds
of simulate, 60 seeds of simulate --joins, and the folders' own tests of at most 1.5 s, as far as each reaches the
mutant. A judge kills a mutant by failing, or by taking three times as long as otherwise and 10 s more.

--minutes: judges mutants in a random order drawn from --seed, until so many minutes are over; the next call goes on.
--only: judges these numbers again, for a new test. --also: judges the survivors by these programs of the build, too.
Prints the survivors; build/mutation/results.json has all results. Needs python3-clang-14; run with `nice`.
"""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time

from places import places_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutation"
TREE = WORK / "tree"
BUILD = WORK / "build"
FOLDERS = ["backend/exec", "backend/fabric", "backend/symm"]
SIMULATIONS = {"simulate": ["--seeds", "150"], "joins": ["--joins", "--seeds", "60"]}
LONGEST_TEST = 1.5
MOST_MEMORY = 6 << 30  # of a mutant with endless allocations
MARKS = 1 << 16  # as many mutants at most
HEADER = """#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
namespace shardwire_mutation {
inline const int active = [] { const char* text = ::getenv("SHARDWIRE_MUTANT"); return text ? ::atoi(text) : 0; }();
inline unsigned char* const marks = []() -> unsigned char* {
  const char* path = ::getenv("SHARDWIRE_MUTANT_TRACE");
  const int file = path ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  void* map = file < 0 ? MAP_FAILED : ::mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return map == MAP_FAILED ? nullptr : static_cast<unsigned char*>(map);
}();
}  // namespace shardwire_mutation
inline bool shardwire_mutant(int number) {
  if (shardwire_mutation::marks) shardwire_mutation::marks[number] = 1;
  return shardwire_mutation::active == number;
}
"""


# ---- writing the mutants

def rewrite(at, mutants, begin, end):
    """The text from begin to end with the mutants inside, each (first byte, last byte, what, parts, number)."""
    out, here = "", begin
    rest = [mutant for mutant in mutants if begin <= mutant[0] and mutant[1] <= end]
    while rest:
        first, last, what, parts, number = rest[0]
        inner = [mutant for mutant in rest[1:] if mutant[1] <= last]
        rest = [mutant for mutant in rest[1:] if mutant[0] >= last]
        if what == "deleted":
            changed = f"if (!shardwire_mutant({number})) {{ {rewrite(at, inner, first, last)} }}"
        elif parts:
            left, right = [rewrite(at, inner, *part) for part in parts]
            flat = f"({left}) {what} ({right})".replace("\n", " ")  # the lines keep their numbers
            changed = f"(shardwire_mutant({number}) ? {flat} : ({left}){at.text[parts[0][1]:parts[1][0]]}({right}))"
        else:
            force = f"shardwire_mutant({number}) ||" if what == "true" else f"!shardwire_mutant({number}) &&"
            changed = f"({force} ({rewrite(at, inner, first, last)}))"
        out, here = out + at.text[here:first] + changed, last
    return out + at.text[here:end]


def write(files, dropped):
    """Writes the sources with all mutants but the dropped ones, and returns what is known of each mutant."""
    mutants, number = [], 0
    for path, at in files.items():
        numbered = []
        for (begin, end, what), parts in sorted(at.found.items(), key=lambda it: (it[0][0], -it[0][1], bool(it[1]))):
            number += 1
            if number not in dropped:
                first, last = [at.text.count("\n", 0, place) + 1 for place in (begin, end)]
                numbered.append((begin, end, what, parts, number))
                mutants.append({"number": number, "file": path, "line": first, "last": last, "what": what,
                                "text": " ".join(at.text[begin:end].split())})
        text = '#include "backend/base/mutant.h"\n#line 1\n' + rewrite(at, numbered, 0, len(at.text))
        if (TREE / path).read_text(encoding="utf-8") != text:
            (TREE / path).write_text(text, encoding="utf-8")
    return mutants


def build(programs):
    made = subprocess.run(["ninja", "-C", BUILD, "-j2", "-k0", *programs], capture_output=True, text=True, check=False)
    return made.returncode == 0, made.stdout + made.stderr


def prepare(folders, programs):
    """Makes the missing ones of the tree and the build, and returns the mutants."""
    if not (TREE / "run").exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", TREE], cwd=ROOT, check=True)
    if not (BUILD / "build.ninja").exists():
        parts = {"C10D": "OFF", "PYTHON": "OFF", "BENCH": "OFF", "TESTS": "ON"}
        subprocess.run(["cmake", "-G", "Ninja", "-S", TREE, "-B", BUILD,
                        *[f"-DSHARDWIRE_{part}={value}" for part, value in parts.items()]], check=True)
    kept = WORK / "mutants.json"
    if not kept.exists():
        subprocess.run(["git", "checkout", "-f"], cwd=TREE, check=True)  # an interrupted call leaves mutants there
        files = {path: at for folder in folders for path, at in places_of(TREE, folder).items()}
        (TREE / "backend" / "base" / "mutant.h").write_text(HEADER)
        dropped = set()
        while True:
            mutants = write(files, dropped)
            print(f"{len(mutants)} mutants; {len(dropped)} dropped, which do not compile", flush=True)
            is_built, output = build(programs)
            wrong = {(path, int(line)) for path, line in re.findall(r"(backend/\S+?):(\d+):\d+: error:", output)}
            more = {mutant["number"] for mutant in mutants for line in range(mutant["line"], mutant["last"] + 1)
                    if (mutant["file"], line) in wrong}
            if is_built:
                break
            if not more:
                sys.exit(output[-3000:])
            dropped |= more
        kept.write_text(json.dumps(mutants))
    is_built, output = build(programs)
    if not is_built:
        sys.exit(output[-3000:])
    return {mutant["number"]: mutant for mutant in json.loads(kept.read_text())}


# ---- judging

def limited():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))


def run(command, within, **variables):
    """The seconds of a judge, and the reason of a failure, or nothing."""
    began = time.monotonic()
    preloads = [path for path in ["/tmp/sim/libjemalloc.so.2", "/tmp/sim/swap.so"] if os.path.exists(path)]
    if "--seeds" in command and preloads:
        variables["LD_PRELOAD"] = ":".join(preloads)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env={**os.environ, **variables}, start_new_session=True, preexec_fn=limited) as started:
        try:
            code = started.wait(within)
            why = f"exit status {code}" if code else None
        except subprocess.TimeoutExpired:
            why = "time"
        try:
            os.killpg(started.pid, signal.SIGKILL)  # children that a test has left, too
        except ProcessLookupError:
            pass
    return time.monotonic() - began, why


def program(name):
    return str(BUILD / "tests" / name)


def tests_of(name):
    listed = subprocess.run([program(name), "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    suite = ""
    for line in listed.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            yield suite + word
        elif word.endswith("."):
            suite = word


def trace(judges):
    """Adds {judge: [seconds, numbers of the reached mutants]} to the kept ones; a test that fails judges nothing."""
    kept = WORK / "reached.json"
    reached = json.loads(kept.read_text()) if kept.exists() else {}
    for judge, command in judges:
        if judge not in reached:
            marks = WORK / "marks"
            marks.write_bytes(bytes(MARKS))
            seconds, why = run(command, 120, SHARDWIRE_MUTANT_TRACE=str(marks))
            reached[judge] = [seconds, [] if why else [at for at, mark in enumerate(marks.read_bytes()) if mark]]
            if why:
                print(f"without a mutant {judge} fails, and does not judge: {why}", flush=True)
            kept.write_text(json.dumps(reached))
    return reached


def judges_of(number, reached):
    """[(seconds, name, command)], the cheapest first: simulations, and one run of the tests of each program."""
    judges, tests = [], {}
    for judge, (seconds, numbers) in reached.items():
        if number in numbers and judge in SIMULATIONS:
            judges.append((seconds, judge, [program("simulate"), *SIMULATIONS[judge]]))
        elif number in numbers and seconds <= LONGEST_TEST:
            tests.setdefault(judge.split()[0], []).append((seconds, judge.split()[1]))
    for name, found in tests.items():
        command = [program(name), "--gtest_fail_fast", "--gtest_filter=" + ":".join(test for _, test in found)]
        judges.append((sum(seconds for seconds, _ in found), name, command))
    return sorted(judges)


def judge(number, reached):
    for seconds, name, command in judges_of(number, reached):
        why = run(command, 3 * seconds + 10, SHARDWIRE_MUTANT=str(number))[1]
        if why:
            return f"{name}: {why}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=FOLDERS, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--also", nargs="*", default=[])
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    programs = [f"tests_{folder.replace('/', '_')}" for folder in given.folders] + given.also
    mutants = prepare(given.folders, ["simulate", *programs])
    reached = trace([(name, [program("simulate"), *words]) for name, words in SIMULATIONS.items()] +
                    [(f"{name} {test}", [program(name), f"--gtest_filter={test}"])
                     for name in programs for test in tests_of(name)])
    numbers = sorted({number for _, found in reached.values() for number in found} & mutants.keys())
    print(f"{len(numbers)} of {len(mutants)} mutants are reached by a judge", flush=True)
    random.Random(given.seed).shuffle(numbers)
    kept = WORK / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    if given.only:
        numbers = [int(number) for number in given.only.split(",")]
    elif given.also:
        numbers = [number for number in numbers if results.get(str(number), "") is None]
    else:
        numbers = [number for number in numbers if str(number) not in results]
    until = time.monotonic() + 60 * given.minutes
    for number in numbers:
        if time.monotonic() > until:
            break
        results[str(number)] = judge(number, reached)
        kept.write_text(json.dumps(results))
    for number, killed in sorted((int(number), killed) for number, killed in results.items()):
        if killed is None or (given.only and number in numbers):
            known = mutants[number]
            by = f" -- killed by {killed}" if killed else ""
            print(f"{known['file']}:{known['line']} [{number}] {known['what']}: {known['text'][:110]}{by}")
    killed = sum(why is not None for why in results.values())
    print(f"seed {given.seed}: {len(results)} judged, {killed} killed, {len(results) - killed} survived, score "
          f"{100 * killed / max(len(results), 1):.1f} %")


if __name__ == "__main__":
    main()
