"""Runs the fuzz targets: ./run fuzz [TARGET...] [--each N | --seconds S], and the part fuzz of ./run test.

The targets of C++ are programs of libFuzzer with ASan and UBSan, NAME_fuzz.cc; those of Python are in
python_targets.py. Each search begins with messages of the real encoders, with the inputs in build/fuzz/corpus/TARGET,
which earlier searches kept, and with one number (--seed). So without the folder a search of N inputs is the same each
time. A finding is a crash, a report of a sanitizer, a call of more than ten seconds, or more than 1 GiB of memory. The
input of a finding stays in build/fuzz/findings.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import NamedTuple

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BUILD = ROOT / "build" / "fuzz"
FINDINGS = BUILD / "findings"
CORPUS = BUILD / "corpus"
PLAIN = BUILD / "plain"  # the folder of the module _plain
PYTHON = FOLDER / "python_records.py"
SECONDS = 4.5  # of each target, where nothing else is said
LONGEST = re.findall(r"kLongestInput = (\d+);", (FOLDER / "target.h").read_text(encoding="utf-8"))[0]
LIMITS = [f"-max_len={LONGEST}", "-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=1024"]
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=16:detect_stack_use_after_return=1",
              "UBSAN_OPTIONS": "print_stacktrace=1", "SHARDWIRE_LOG": "error"}
# The module has no leaks of its own to report: Python leaves objects behind at its end. Python's own allocator would
# hide an access behind a short object.
PLAIN_SANITIZERS = {**SANITIZERS, "PYTHONMALLOC": "malloc",
                    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1"}
PLAIN_FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-shared", "-shared-libasan", "-fvisibility=hidden",
               "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize=vptr,function",
               "-fno-sanitize-recover=all", "-fsanitize-coverage=edge,inline-bool-flag", "-D_GLIBCXX_ASSERTIONS"]
PLAIN_TARGETS = ("serialize", "queue_entries")  # these read plain objects
OPTIONS = ["-DSHARDWIRE_FUZZ=ON", "-DSHARDWIRE_SANITIZE=address,undefined,fuzzer-no-link",
           "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_CXX_FLAGS=-fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS",
           "-DSHARDWIRE_C10D=OFF", "-DSHARDWIRE_PYTHON=OFF", "-DSHARDWIRE_BENCH=OFF", "-DSHARDWIRE_TESTS=OFF"]


class Outcome(NamedTuple):
    passed: bool
    text: str


def cpp_targets() -> list[str]:
    return sorted(path.stem.removesuffix("_fuzz") for path in FOLDER.glob("*_fuzz.cc"))


def python_targets() -> list[str]:
    text = (FOLDER / "python_targets.py").read_text(encoding="utf-8")
    return re.findall(r'^        "(\w+)": Target\(', text, re.MULTILINE)


def program_of(target: str) -> pathlib.Path:
    return BUILD / "tests" / "fuzz" / f"fuzz_{target}"


def search_cpp(target: str, options: argparse.Namespace) -> Outcome:
    environment = {**os.environ, **SANITIZERS}
    how = [f"-runs={options.each}"] if options.each else [f"-max_total_time={round(options.seconds)}"]
    coverage = ["-print_coverage=1"] if options.coverage else []
    begun = time.monotonic()
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([program_of(target), f"--seeds={corpus}"], env=environment, capture_output=True, text=True,
                          errors="replace", check=False)
    if done.returncode == 0:
        done = subprocess.run([program_of(target), corpus, f"-seed={options.seed}", *how, *LIMITS, *coverage,
                               f"-artifact_prefix={FINDINGS}/{target}-"],
                              env=environment, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    last = re.findall(r"^#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)", said, re.MULTILINE)
    if done.returncode != 0 or not last:
        lines = [line for line in said.splitlines() if not re.match(r"(UN)?COVERED|  UNCOVERED", line)]
        return Outcome(False, "\n".join(lines[-60:]))
    inputs, edges, _, kept = last[-1]
    text = (f"{target}: {inputs} inputs, {kept} kept, {edges} edges (seed {options.seed}, "
            f"{time.monotonic() - begun:.1f} s)")
    return Outcome(True, "\n".join([text, *(covered(said) if options.coverage else [])]))


def covered(said: str) -> list[str]:
    """The edges of the called functions, by source file of the core."""
    files: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for reached, total, path in re.findall(r"^COVERED_FUNC: .*?edges: (\d+)/(\d+) .* (\S+?):\d+$", said, re.MULTILINE):
        name = path.partition(f"{ROOT}/")[2]
        if name.startswith(("ops/", "backend/")) and name.endswith(".cc"):
            files[name][0] += int(reached)
            files[name][1] += int(total)
    return [f"    {name}: {reached} of {total} edges" for name, (reached, total) in sorted(files.items())]


def build_plain() -> bool:
    """The module _plain, whose compilation needs a minute of processor time."""
    sources = [FOLDER / "plain_module" / "plain_module.cc", *(ROOT / "python" / "csrc").glob("plain_*.cc")]
    made, newest = PLAIN / "_plain.so", max(path.stat().st_mtime for path in [*sources, pathlib.Path(__file__)])
    if made.exists() and made.stat().st_mtime > newest:
        return True
    print("building the readers of plain objects for the Python targets", flush=True)
    PLAIN.mkdir(parents=True, exist_ok=True)
    torch = importlib.util.find_spec("torch")
    places = [pathlib.Path(sysconfig.get_path("include")),
              *(pathlib.Path(place) / "include" for place in torch and torch.submodule_search_locations or ())]
    included = [word for place in places if place == places[0] or (place / "pybind11").exists()
                for word in ("-isystem", place)]
    command = ["clang++", *PLAIN_FLAGS, f"-I{FOLDER / 'plain_module'}", f"-I{ROOT}", *included, *sources, "-o", made]
    return subprocess.run(command, check=False).returncode == 0


def with_plain(target: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a Python target."""
    if target not in PLAIN_TARGETS:
        return [], dict(os.environ)
    libraries = [subprocess.run(["clang++", f"-print-file-name={name}"], capture_output=True, text=True,
                                check=True).stdout.strip()
                 for name in (f"libclang_rt.asan-{os.uname().machine}.so", "libstdc++.so.6")]
    return [f"--plain={PLAIN}"], {**os.environ, **PLAIN_SANITIZERS, "LD_PRELOAD": " ".join(libraries)}


def search_python(target: str, options: argparse.Namespace) -> Outcome:
    how = [f"--each={options.each}"] if options.each else [f"--seconds={options.seconds}"]
    plain, environment = with_plain(target)
    done = subprocess.run([sys.executable, PYTHON, target, *how, *plain, f"--seed={options.seed}", f"--out={FINDINGS}",
                           f"--corpus={CORPUS / target}", *(["--show"] if options.coverage else [])],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    said = done.stdout.strip()
    if done.returncode == 0:
        return Outcome(True, said)
    return Outcome(False, f"{said}\nthe input lies in {FINDINGS / (target + '-input')} (status {done.returncode})")


def search(target: str, options: argparse.Namespace) -> bool:
    outcome = (search_cpp if target in cpp_targets() else search_python)(target, options)
    if outcome.passed:
        print(outcome.text, flush=True)
    else:
        print(f"FAIL {target}\n{outcome.text}\nTo repeat: ./run fuzz {target} --input FILE, "
              f"with the file of {FINDINGS}", flush=True)
    return outcome.passed


def replay(target: str, file: pathlib.Path) -> int:
    if target in cpp_targets():
        command, environment = [program_of(target), *LIMITS, file], {**os.environ, **SANITIZERS}
    else:
        plain, environment = with_plain(target)
        command = [sys.executable, PYTHON, target, *plain, "--input", file]
    return subprocess.run(command, env=environment, check=False).returncode


def arguments() -> argparse.Namespace:
    names = [*cpp_targets(), *python_targets()]
    parser = argparse.ArgumentParser(prog="./run fuzz", description="Searches for bytes that break a parser.")
    parser.add_argument("target", nargs="*", metavar="TARGET", help="all, or some of: " + ", ".join(names))
    parser.add_argument("--each", type=lambda text: int(float(text)), default=0, metavar="N",
                        help="inputs of each target, in place of seconds: 1e7")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"seconds of each target ({SECONDS})")
    parser.add_argument("--seed", type=int, default=1, help="another number searches elsewhere (1)")
    parser.add_argument("--coverage", action="store_true", help="what the search reached, file by file")
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="only run this input of the one TARGET")
    options = parser.parse_args()
    if unknown := set(options.target) - set(names):
        parser.error(f"no target {sorted(unknown)[0]!r}; there are " + ", ".join(names))
    if options.input is not None and len(options.target) != 1:
        parser.error("--input needs one TARGET")
    options.target = options.target or names
    return options


def build(names: list[str]) -> bool:
    if not set(names).isdisjoint(PLAIN_TARGETS) and not build_plain():
        return False
    if set(names).isdisjoint(cpp_targets()):
        return True
    wanted = "all" if len(names) > 1 else program_of(names[0]).name
    command = [ROOT / "run", "_build", BUILD, wanted, "building the fuzz targets", *OPTIONS]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def main() -> int:
    options = arguments()
    if not build(options.target):
        print("0 passed, 1 failed, 0 skipped")
        return 1
    if options.input is not None:
        return replay(options.target[0], options.input)
    shutil.rmtree(FINDINGS, ignore_errors=True)
    FINDINGS.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(lambda target: search(target, options), options.target))
    print(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed, 0 skipped")
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
