"""Runs the parts of ./run test one after the other and sums the counts.

Called by ../../run, which has installed and selected everything; SHARDWIRE_ROOT, SHARDWIRE_BUILD and SHARDWIRE_TAG come
from ../../run. Parts run one after the other: several parts measure time. The output of a part goes to a log; after a
failure the end of the log is shown.
"""

import argparse
import collections
import contextlib
import ctypes
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(os.environ.get("SHARDWIRE_ROOT") or pathlib.Path(__file__).resolve().parents[2])
BUILD = pathlib.Path(os.environ.get("SHARDWIRE_BUILD") or ROOT / "build" / "none")
CHECKS = ROOT / "tests" / "checks"
LOGS = ROOT / "build" / "log"
SKIPPED = 77  # the exit status of a check that could not run
TOOK_TOO_LONG = 124

Count = collections.namedtuple("Count", "passed failed skipped")
NONE = Count(0, 0, 0)
PASS, FAIL, SKIP = Count(1, 0, 0), Count(0, 1, 0), Count(0, 0, 1)

# Some tests ask for more memory than there is.
SANITIZERS = {
    "asan": {
        "ASAN_OPTIONS": ("allocator_may_return_null=1:halt_on_error=1:abort_on_error=0:detect_leaks=1:"
                         "strict_string_checks=1:detect_stack_use_after_return=1"),
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    },
    "tsan": {"TSAN_OPTIONS": "allocator_may_return_null=1:halt_on_error=1:second_deadlock_stack=1:"
                             f"suppressions={ROOT / 'tests' / 'support' / 'tsan.supp'}"},
}


# Most tests wait for timeouts and dead ranks most of the time (a third of a core each): more tests than cores end
# sooner side by side.
AT_A_TIME = 1 + (os.cpu_count() or 1)


def add(counts):
    return Count(*(sum(column) for column in zip(NONE, *counts)))


def say(text):
    print(text, flush=True)


durations = []  # (seconds, test) of every counted test
# printed once more at the end: a reader of a long log reads the end, and some viewers show nothing else
complaints = []


def complain(text):
    complaints.append(text)
    say(text)


# Variables of launchers, and our own. Others of our own are choices of the caller, and stay: the device, the seeds, the
# numbers of cases and of kills, the rig's kernel. tests/mpi and tests/rig set SHARDWIRE_TEST_FOLDER for their ranks.
LEFT_OUT = re.compile(
    r"(SHARDWIRE_(?!JOBS$|APT$|WERROR$|ORACLE_|TEST_(?!FOLDER$)|RIG_)|SLURM_|OMPI_|PMIX_|PMI_|MPI_LOCAL|MASTER_|"
    r"TORCHELASTIC_|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)$)")


def clean_environment(**more):
    """The caller's environment without what would change a test that the caller did not ask to change."""
    kept = {name: value for name, value in os.environ.items() if not LEFT_OUT.match(name)}
    kept.update({name: str(value) for name, value in more.items()})
    return kept


def run(name, command, env=None, cwd=ROOT, limit=1800):
    """Runs command with the output in a log; returns (status, log). A part that hangs is ended with all children and is
    a failure.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    with open(log, "wb") as out:
        child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env or clean_environment(),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            status = wait_for(child, limit)
        except subprocess.TimeoutExpired:
            status = TOOK_TOO_LONG
            out.write(f"\nended after {limit} s: it took too long\n".encode())
            end_session(child, signal.SIGINT)
        except BaseException:
            end_session(child, signal.SIGINT)
            raise
        end_session(child)
    return status, log


INHERITED = set()  # children of the shell that became this process: `./run test > >(tee log)`


def own_orphans():
    """Processes whose parents have ended become children of this process, which can then end them with the part."""
    INHERITED.update(descendants())
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    # A background job of a shell ignores SIGINT, and so would the parts, which end by SIGINT.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


def collect_orphans(child=None):
    """Collects ended children other than `child`: tests take a process that nobody has collected for alive."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if child is not None and ended.si_pid == child.pid:
                return
            os.waitpid(ended.si_pid, 0)


def wait_for(child, limit):
    end, pause = time.monotonic() + limit, 0.001
    while child.poll() is None:
        collect_orphans(child)
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(child.args, limit)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return child.returncode


def end_session(child, first=None, patience=20):
    """No process of a part outlives the part. With `first`, a signal, the part has `patience` seconds to clean up."""
    try:
        if first is not None:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, first)
                wait_for(child, patience)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        end_descendants()


def end_descendants():
    """Ends what a part left in other sessions: mpirun, daemons, ranks of tests."""
    deadline = time.monotonic() + 10
    while True:
        collect_orphans()
        left = descendants()
        if not left or time.monotonic() > deadline:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def descendants():
    """The numbers of this process's children, their children, and so on, without INHERITED."""
    children = collections.defaultdict(list)
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children[parent].append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:  # grows
        found += [child for child in children[pid] if child not in INHERITED]
    return found[1:]


def end_of(log, lines):
    return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-lines:])


def remember(name, log, lines):
    """A complaint for the end only: the log's end was shown at length where the failure happened."""
    complaints.append(f"  FAIL {name}\n{end_of(log, lines)}")


def show_end(log, lines=60):
    say(f"    --- the end of {log}")
    say(end_of(log, lines))


def build(folder, target, title, *options):
    """One build folder, by the rules of ./run. Returns whether the build succeeded."""
    child = subprocess.Popen([str(ROOT / "run"), "_build", str(ROOT / "build" / folder), target, title, *options],
                             stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(child, math.inf)
    except BaseException:
        end_session(child, signal.SIGINT)
        raise
    if child.returncode != 0:
        complain(f"  FAIL {title}: it does not build")
    return child.returncode == 0


def junit(path, where=None):
    """Counts one JUnit file, of pytest or GoogleTest; also the failures with their texts, and the reasons of skips. The
    seconds of each test go to `durations` under the name `where`.
    """
    counted, failed, skips = NONE, [], collections.Counter()
    for case in ElementTree.parse(path).iter("testcase"):
        if not case.get("name"):  # the clean-up of a test that SIGINT has ended
            continue
        name = f"{case.get('classname', '')}.{case.get('name')}"
        if where:
            durations.append((float(case.get("time") or 0), f"{where}: {name}"))
        skip = case.find("skipped")
        failures = [*case.findall("failure"), *case.findall("error")]
        if failures:
            counted = add([counted, FAIL])
            # ctest puts what a program printed beside the failure.
            text = "\n".join([*(failure.text or failure.get("message") or "" for failure in failures),
                              case.findtext("system-out") or ""])
            failed.append(name + "".join(f"\n      {line}" for line in text.splitlines()[-25:]))
        elif skip is not None or case.get("status") == "notrun":
            counted = add([counted, SKIP])
            reason = (skip.get("message") if skip is not None else None) or "not run"
            skips[" ".join(reason.split())[-160:]] += 1
        else:
            counted = add([counted, PASS])
    return counted, failed, skips


def say_outcome(counted, failed, skips):
    for name in failed[:20]:
        complain(f"  FAIL {name}")
    if len(failed) > 20:
        say(f"  and {len(failed) - 20} more")
    for reason, times in skips.most_common():
        say(f"  skipped {times}: {reason}")


# ---- the parts


def part_checks(options):
    python_files = [str(path) for folder in ("python", "tests", "bench", "docs")
                    for path in sorted((ROOT / folder).rglob("*.py"))]
    one_line = "import sys\nfor path in sys.argv[1:]: compile(open(path, encoding='utf-8').read(), path, 'exec')"
    checks = [
        ("layers", [sys.executable, CHECKS / "layers.py"]),
        ("one-definition", [sys.executable, CHECKS / "one_definition.py"]),
        ("sizes", [sys.executable, CHECKS / "sizes.py"]),
        ("format", [sys.executable, CHECKS / "format.py"]),
        ("variables", [sys.executable, CHECKS / "variables.py"]),
        ("docs", [sys.executable, CHECKS / "docs.py"]),
        ("spelling", [sys.executable, CHECKS / "spelling.py"]),
        ("words", [sys.executable, CHECKS / "words.py"]),
        ("thread-safety", [sys.executable, CHECKS / "thread_safety.py", compiled_commands()]),
        ("python-syntax", [sys.executable, "-c", one_line, *python_files]),
        ("types", [sys.executable, CHECKS / "types_check.py"]),
        ("shell", [sys.executable, CHECKS / "shell.py"]),
    ]
    counts = [FAIL if any(word is None for word in command) else check(name, command) for name, command in checks]
    counts.append(pytest("checks-own-tests", CHECKS, options, sys.executable, clean_environment()))
    return add(counts)


def check(name, command):
    start = time.monotonic()
    status, log = run(f"check-{name}", command)
    outcome = {0: PASS, SKIPPED: SKIP}.get(status, FAIL)
    said = log.read_text(errors="replace").strip().splitlines() or [""]
    word = {PASS: "ok", SKIP: "SKIPPED"}.get(outcome, "FAIL")
    say(f"  {word} {name} ({time.monotonic() - start:.1f} s){': ' + said[-1] if outcome != FAIL and said[-1] else ''}")
    if outcome == FAIL:
        remember(name, log, 20)
        show_end(log)
    return outcome


def compiled_commands():
    """The compile commands of the torch-free tree; configuring writes the file, without compiling."""
    if not build("cpp", "help", "configuring the core", *cpp_options("cpp")):
        return None
    return ROOT / "build" / "cpp" / "compile_commands.json"


def cpp_options(folder, *more):
    # The benches run once, with little to do, beside the tests of the plain build.
    benches = "ON" if folder == "cpp" else "OFF"
    return ["-DSHARDWIRE_C10D=OFF", "-DSHARDWIRE_PYTHON=OFF", f"-DSHARDWIRE_BENCH={benches}", "-DSHARDWIRE_TESTS=ON",
            *more]


def cpp(folder, env, options, *more, target="all", only="."):
    """Builds a tree of the C++ tests and runs the programs with a name that matches the pattern `only`."""
    if not build(folder, target, f"building the C++ tests ({folder})", *cpp_options(folder, *more)):
        return FAIL
    reports = ROOT / "build" / folder / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    programs = reports / "ctest.xml"
    # The random specs: the full number is for the plain build; under a sanitizer each costs 5 to 20 times as much.
    cases = options.oracle or (10000 if options.quick else 20000)
    cases = min(cases, {"asan": 1500, "tsan": 500, "aarch64": 500}.get(folder, cases))
    limit = limit_of_programs(cases)
    status, log = run(
        f"ctest-{folder}",
        [*steady_addresses(folder), "ctest", "--test-dir", ROOT / "build" / folder, "--output-on-failure",
         "--no-tests=error", "-R", only, "--parallel", AT_A_TIME, "--timeout", limit, "--output-junit", programs],
        clean_environment(GTEST_OUTPUT=f"xml:{reports}/", GTEST_COLOR="no", SHARDWIRE_ORACLE_CASES=cases, **env),
        limit=2 * limit,
    )
    counts, failed, skips, with_failures, read = [], [], collections.Counter(), set(), set()
    for report in sorted(reports.glob("*.xml")):
        if report != programs:
            try:
                counted, names, reasons = junit(report, f"{folder}, {report.stem}")
            except ElementTree.ParseError:  # the program died while it wrote
                continue
            read.add(report.stem)
            counts.append(counted)
            failed += names
            skips += reasons
            if names:
                with_failures.add(report.stem)
    # A program that died or hung has written no report, or a report without a failure: the program counts as one
    # failure.
    if status != 0:
        ended_badly = [name.partition(".")[2] for name in (junit(programs)[1] if programs.exists() else [])]
        dead = [name for name in ended_badly if name.splitlines()[0] not in with_failures]
        if not failed and not dead:
            dead = ["ctest"]
        failed += [f"the program itself: {name}" for name in dead]
        counts.append(Count(0, len(dead), 0))
    silent = without_reports(programs, read)
    failed += [f"{name}: it ended well, and wrote no report that can be read" for name in silent]
    counts.append(Count(0, len(silent), 0))
    say_outcome(None, failed, skips)
    if status != 0:
        show_end(log)
    return add(counts) if sum(add(counts)) else FAIL


def limit_of_programs(cases):
    """Seconds for one test program. 20,000 specs take 71 s beside other programs (two cores, 28 November 2026)."""
    return max(900, cases // 50)


def without_reports(programs, read):
    """The test programs that passed by ctest's report, and are not among those whose own reports could be read."""
    cases = ElementTree.parse(programs).iter("testcase") if programs.exists() else []
    return [case.get("name") for case in cases
            if case.get("name").startswith("tests_") and case.get("status") == "run" and case.get("name") not in read]


def steady_addresses(folder):
    """TSan of GCC 12 gives up if the kernel randomises addresses by more bits than TSan expects; some containers forbid
    switching the randomisation off.
    """
    command = ["setarch", "-R"]
    if folder != "tsan" or shutil.which(command[0]) is None:
        return []
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


def part_cpp(options):
    return cpp("cpp", {}, options)


def part_alone(options):
    """The errors that merging hides: each file of the core is compiled alone, where a missing #include shows, and the
    objects are searched for clashing names. No object runs.
    """
    # -O0, where nothing is inlined. By GCC: clang's objects of one and the same definition differ
    # (docs/architecture.md).
    how = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", "-DSHARDWIRE_MERGE=OFF", "-DSHARDWIRE_C10D=OFF",
           "-DSHARDWIRE_PYTHON=OFF", "-DSHARDWIRE_BENCH=OFF", "-DSHARDWIRE_TESTS=OFF"]
    if not build("alone", "shardwire_core", "compiling each file of the core alone", *how):
        return FAIL
    return add([PASS, check("one-definition-objects",
                            [sys.executable, CHECKS / "one_definition.py", "--objects", ROOT / "build" / "alone"])])


def part_asan(options):
    """The debug build too: -Og, the assertions of the standard library, ASan and UBSan. Every C++ test."""
    flags = "-DCMAKE_CXX_FLAGS=-fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS"
    return cpp("asan", SANITIZERS["asan"], options, "-DSHARDWIRE_SANITIZE=address,undefined", flags)


def part_tsan(options):
    """The programs with threads."""
    return cpp("tsan", SANITIZERS["tsan"], options, "-DSHARDWIRE_SANITIZE=thread", target="tests_with_threads",
               only="^tests_(backend|multiprocess|oracle)")


def part_aarch64(options):
    """The core and all its tests by Debian's cross compiler. Under qemu-user run the tests that need neither deaths of
    ranks nor process_vm_readv, which qemu-user does not have (docs/limits.md).
    """
    root = ROOT / "build" / "aarch64-root"
    status, log = run("aarch64-root", [ROOT / "tests" / "aarch64" / "sysroot.sh", root], limit=600)
    if status != 0:
        remember("aarch64-root", log, 20)
        show_end(log)
        return FAIL
    toolchain = ROOT / "tests" / "aarch64" / "toolchain.cmake"
    return cpp("aarch64", {}, options, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DSHARDWIRE_ARM_ROOT={root}",
               only="^tests_(ops_|backend_(base|fabric|memory|exec|sight)$|simulate|oracle)")


def part_fuzz(options):
    """Some seconds of search with each fuzz target: in a clean tree the same inputs on a machine of the same speed."""
    if not build_package():
        return FAIL
    env = clean_environment(PYTHONPATH=package_path(), PYTHONDONTWRITEBYTECODE=1)
    return counting_script("fuzz", [ROOT / "tests" / "fuzz" / "fuzz.py"], 3600, env)


def part_tidy(options):
    """clang-tidy's searches for defects, and its check of names, each over all units of the core: minutes."""
    commands = compiled_commands()
    if commands is None:
        return FAIL
    names = check("names", [sys.executable, CHECKS / "names.py", commands])
    status, log = run("tidy", [sys.executable, CHECKS / "tidy.py", commands], limit=3600)
    if status not in (0, SKIPPED):
        remember("tidy", log, 40)
        show_end(log, 200)
    return add([names, {0: PASS, SKIPPED: SKIP}.get(status, FAIL)])


def pytest(name, where, options, python, env, *more):
    """pytest's own status 5, no test found, is a failure here, and so is a report that cannot be read."""
    report = LOGS / f"{name}.xml"
    report.unlink(missing_ok=True)
    running = LOGS / f"{name}-running"
    shutil.rmtree(running, ignore_errors=True)
    running.mkdir(parents=True)
    env["SHARDWIRE_RUNNING_TESTS"] = str(running)  # conftest.py
    # No faulthandler_timeout: the timeout's thread does not survive a fork, and a forked rank with its own timeout
    # would wait for the thread for ever.
    command = [python, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"]
    status, log = run(name, [*command, f"--junitxml={report}", *more, where], env)
    try:
        counted, failed, skips = junit(report, name)
    except (OSError, ElementTree.ParseError):
        counted, failed, skips = NONE, [], collections.Counter()
    say_outcome(counted, failed, skips)
    if status != 0 or counted == NONE:
        show_end(log, 80)
        if counted.failed == 0 or status == TOOK_TOO_LONG:
            complain(f"  FAIL {name}: pytest ended with status {status}"
                     + (" (it found no test)" if status == 5 else " and no count" if counted == NONE else ""))
            if status == TOOK_TOO_LONG:
                complaints[-1] += "\n" + end_of(log, 8)  # without xdist it has the line of the test that hung
                complaints[-1] += "".join(f"\n    the last test of {each.name}: {each.read_text()}"
                                          for each in sorted(running.iterdir()))
            counted = add([counted, FAIL])
    return counted


def package_path():
    return os.pathsep.join(filter(None, [str(BUILD / "python"), os.environ.get("PYTHONPATH", "")]))


def build_package():
    options = [f"-DSHARDWIRE_PYTHON_EXECUTABLE={sys.executable}", "-DSHARDWIRE_TESTS=OFF", "-DSHARDWIRE_BENCH=OFF"]
    return build(BUILD.name, "all", f"building shardwire for {BUILD.name}", *options)


def part_python(options):
    if not build_package():
        return FAIL
    env = clean_environment(PYTHONPATH=package_path(), PYTHONDONTWRITEBYTECODE=1)
    workers = ["-n", AT_A_TIME, "--dist", "loadfile"]
    if importlib.util.find_spec("xdist") is None:
        say(f"  {sys.executable} has no pytest-xdist: the test files run one after the other")
        workers = []
    return pytest(f"pytest-{BUILD.name}", ROOT / "tests" / "python", options, sys.executable, env, *workers,
                  *options.pytest)


def part_docs(options):
    """The site, with every warning as an error: a broken link, a page without a link to it, an unknown name in a
    docstring.
    """
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        say(f"  skipped: {sys.executable} has no {', '.join(missing)}; Debian's Python gets them from packages")
        return SKIP
    if not build_package():
        return FAIL
    command = [sys.executable, ROOT / "docs" / "site" / "build.py", ROOT / "build" / "docs"]
    status, log = run("docs", command, clean_environment(PYTHONPATH=package_path(), PYTHONDONTWRITEBYTECODE=1),
                      limit=600)
    if status != 0:
        remember("docs", log, 40)
        show_end(log)
    return PASS if status == 0 else FAIL


def part_torch_suite(options):
    """torch's own distributed tests, on shardwire alone: what fails is listed as an exception or a failure here,
    whatever gloo does.
    """
    if not build_package():
        return FAIL
    report = LOGS / f"torch-suite-{BUILD.name}.json"
    report.unlink(missing_ok=True)
    script = ROOT / "tests" / "torch_suite" / "run_suite.py"
    command = [sys.executable, script, "--world", 3, "--backend", "shardwire", "--report", report]
    status, log = run(f"torch-suite-{BUILD.name}", command,
                      clean_environment(PYTHONPATH=package_path(), SHARDWIRE_TAG=BUILD.name))
    counted = Count(**json.loads(report.read_text())) if report.exists() else FAIL
    for line in log.read_text(errors="replace").splitlines():
        say(line)
    if status != 0:
        remember("torch-suite", log, 40)
    return counted if status == 0 or counted.failed else add([counted, FAIL])


def part_example(options):
    """An installed tree, and a program with a separate CMakeLists that finds the tree: the steps of a C++ user."""
    if not build_package():
        return FAIL
    with tempfile.TemporaryDirectory(prefix="shardwire-example-") as scratch:
        prefix, out = pathlib.Path(scratch) / "prefix", pathlib.Path(scratch) / "build"
        torch = [sys.executable, "-c", "import os, torch; print(os.path.dirname(torch.__file__))"]
        torch_folder = subprocess.run(torch, capture_output=True, text=True, check=True,
                                      stdin=subprocess.DEVNULL).stdout.strip()
        paths = f"{prefix};{torch_folder}"
        steps = [
            ("install", ["cmake", "--install", BUILD, "--prefix", prefix]),
            (
                "configure",
                ["cmake", "-S", ROOT / "docs" / "examples" / "cpp", "-B", out, "-G", "Ninja",
                 f"-DCMAKE_PREFIX_PATH={paths}"] + [f"-DSHARDWIRE_PYTHON_EXECUTABLE={sys.executable}"],
            ),
            ("build", ["cmake", "--build", out, "--parallel", os.environ.get("SHARDWIRE_JOBS", "2")]),
        ]
        for step, command in steps:
            status, log = run(f"example-{step}", command, limit=900)
            if status != 0:
                complain(f"  FAIL docs/examples/cpp: {step}")
                show_end(log)
                return FAIL
        both_ways = [run_example(out / name, pathlib.Path(scratch) / f"store-{name}")
                     for name in ("transpose", "fft", "collectives")]
        status, log = run("example-forked", [out / "collectives", 3], limit=120)
        if status != 0:
            complain(f"  FAIL docs/examples/cpp: collectives 3: status {status}")
            show_end(log)
        return add([*both_ways, PASS if status == 0 else FAIL, debian_packages(pathlib.Path(scratch) / "deb")])


def debian_packages(folder):
    """The Debian package that cpack makes of the build names the right torch."""
    if shutil.which("dpkg-deb") is None:
        say("  skipped: there is no dpkg here")
        return SKIP
    status, log = run("example-deb", ["cpack", "-G", "DEB", "-B", folder, "--config", BUILD / "CPackConfig.cmake"],
                      cwd=BUILD, limit=300)
    said = [subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=False).stdout
            for package in sorted(folder.glob("libshardwire*.deb"))]
    version = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True,
                             text=True, check=True, stdin=subprocess.DEVNULL).stdout.strip()
    if (status == 0 and len(said) == 2 and f"built for torch {version}" in said[1]
            and not any("localhost" in text for text in said)):
        return PASS
    complain("  FAIL the Debian packages do not name their torch and a maintainer")
    say("\n".join(said))
    show_end(log)
    return FAIL


def run_example(program, store):
    """Two ranks, started as a launcher would."""
    ranks = [
        subprocess.Popen(
            [program],
            env=clean_environment(RANK=rank, WORLD_SIZE=2, STORE=store),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    killer = threading.Timer(120, lambda: [child.kill() for child in ranks])
    killer.start()
    said = [child.communicate()[0].strip() for child in ranks]
    killer.cancel()
    if any(child.returncode != 0 for child in ranks):
        complain(f"  FAIL docs/examples/cpp: {program.name}: status {[child.returncode for child in ranks]}")
        say("\n".join(said))
        return FAIL
    return PASS


def part_pip_install(options):
    """A source package, pip install --no-build-isolation of the package into a new environment that sees the selected
    torch, then a use of shardwire from elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="shardwire-pip-") as scratch:
        venv = pathlib.Path(scratch) / "venv"
        # The install builds beside the sources; ccache makes the repeat cheap. The tree always has one name, by which
        # ccache knows the objects.
        copy, tree = pathlib.Path(scratch) / "copy", pathlib.Path(scratch) / "tree"
        ignore = shutil.ignore_patterns("build", ".git", ".venv*", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, copy, ignore=ignore)
        sites = subprocess.run(
            [sys.executable, "-c", "import sys; print('\\n'.join(p for p in sys.path if p.endswith('-packages')))"],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
        status, log = run("pip-install-venv", [sys.executable, "-m", "venv", venv])
        if status == 0:
            # A .pth file, not --system-site-packages: the option would not see the packages of another virtual
            # environment.
            next(venv.glob("lib/python*/site-packages")).joinpath("selected.pth").write_text(sites)
            pack = f"from setuptools import build_meta; build_meta.build_sdist({scratch!r})"
            status, log = run("pip-install-sdist", [venv / "bin" / "python", "-c", pack], cwd=copy)
        if status == 0:
            (package,) = pathlib.Path(scratch).glob("shardwire-*.tar.gz")
            shutil.unpack_archive(package, scratch)
            (pathlib.Path(scratch) / package.name.removesuffix(".tar.gz")).rename(tree)
            # The same warnings as elsewhere: ccache knows the objects.
            warnings = "-DSHARDWIRE_WERROR=" + os.environ.get("SHARDWIRE_WERROR", "OFF")
            same = {"CCACHE_NOHASHDIR": 1, "CCACHE_BASEDIR": scratch, "SHARDWIRE_CMAKE_ARGS": warnings}
            env = clean_environment(PIP_NO_INDEX=1, **same)
            install = [venv / "bin" / "python", "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-v", tree]
            status, log = run("pip-install", install, env, limit=1200)
        if status == 0:
            script = CHECKS / "installed_use.py"
            status, log = run("pip-install-use", [venv / "bin" / "python", script, venv], clean_environment(),
                              cwd=scratch, limit=180)
        if status != 0:
            complain("  FAIL pip install --no-build-isolation .")
            show_end(log)
            return FAIL
    return PASS


def counting_script(name, command, limit, env=None):
    """A script of tests/ with the last line 'N passed, N failed, N skipped'; the script's own lines are shown."""
    status, log = run(name, [sys.executable, *command], env, limit=limit)
    lines = log.read_text(errors="replace").splitlines()
    said = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1]) if lines else None
    counted = Count(*map(int, said.groups())) if said else FAIL
    for line in lines[:-1] if status == 0 else []:
        say("  " + line)
    if status != 0:
        remember(name, log, 40)
        show_end(log, 120)
    return counted if status == 0 or counted.failed else add([counted, FAIL])


def with_cpp(name, command, limit):
    """The same for a script that runs programs of the C++ tests' build."""
    if not build("cpp", "all", "building the C++ tests (cpp)", *cpp_options("cpp")):
        return FAIL
    return counting_script(name, command, limit)


def part_cuda_torch(options):
    """torch's CUDA build from PyPI in a separate environment: cuda_torch.py. 6 GB, so weekly and by name, not in CI."""
    version = {"SHARDWIRE_CUDA_TORCH": os.environ.get("SHARDWIRE_CUDA_TORCH", "")}
    return counting_script("cuda-torch", [CHECKS / "cuda_torch.py"], 7200, clean_environment(**version))


def part_conda(options):
    """The conda package, built by rattler-build from PyPI."""
    return counting_script("conda", [CHECKS / "conda.py"], 1800, clean_environment())


def part_mpi(options):
    """Ranks started by mpirun, joined by the mpi transport."""
    return with_cpp("mpi", [ROOT / "tests" / "mpi" / "run_mpi.py", ROOT / "build" / "cpp",
                            *([] if options.oracle else ["--quick"])], 1800)


def rdma_command(*more):
    return [ROOT / "tests" / "rig" / "run_rdma.py", "--build", ROOT / "build" / "cpp", *more]


def part_rdma(options):
    """Small machines with soft-RoCE devices, since the verbs need a kernel with soft-RoCE. Their processors are
    emulated, so here are the tests of the transport itself, and random specs between two machines.
    """
    command = rdma_command("--only", "contract,power-cut,contract-two,compile_op-two")
    # A fifth of the random cases unless --oracle is given. 1,500 s: the limits of these parts, and boots that hung.
    return with_cpp("rdma", command + ([] if options.oracle else ["--quick"]), 1500)


def part_rdma_whole(options):
    """All of the above, with all random cases, TLS by the kernel, the failures, the communicator's tests, and a job of
    torchrun.
    """
    if not build_package():
        return FAIL
    return with_cpp("rdma-whole", rdma_command("--python", sys.executable, "--package", BUILD / "python"), 3600)


def part_network(options):
    """Two network namespaces and a cable that treats packets badly."""
    if not build_package():
        return FAIL
    env = clean_environment(PYTHONPATH=package_path(), PYTHONDONTWRITEBYTECODE=1)
    return counting_script("network", [ROOT / "tests" / "network" / "run_network.py"], 600, env)


PARTS = {
    "checks": part_checks,
    "cpp": part_cpp,
    "python": part_python,
    "docs": part_docs,
    "torch-suite": part_torch_suite,
    "alone": part_alone,
    "asan": part_asan,
    "fuzz": part_fuzz,
    "tsan": part_tsan,
    "aarch64": part_aarch64,
    "mpi": part_mpi,
    "rdma": part_rdma,
    "rdma-whole": part_rdma_whole,
    "network": part_network,
    "example": part_example,
    "pip-install": part_pip_install,
    "tidy": part_tidy,
    "conda": part_conda,
    "cuda-torch": part_cuda_torch,
}
BY_NAME = ("alone", "aarch64", "rdma-whole", "fuzz", "network", "tidy", "conda", "cuda-torch")  # .ci/weekly
SLOW = ("docs", "asan", "tsan", "mpi", "rdma", "torch-suite", "example", "pip-install")


def arguments():
    parser = argparse.ArgumentParser(prog="./run test", description="All checks and tests of shardwire.")
    parser.add_argument("--quick", action="store_true",
                        help="leave out " + ", ".join(SLOW) + " and shorten the random tests")
    parser.add_argument("--only", default="", metavar="PART[,PART]", help="some of: " + ", ".join(PARTS))
    parser.add_argument("--oracle", type=int, default=0, metavar="N",
                        help="random specs in the C++ oracle (20000, with --quick 10000; the weekly run has 400000)")
    parser.add_argument("--pytest", action="append", default=[], metavar="ARG",
                        help="one more argument for the Python tests' pytest")
    options = parser.parse_args()
    named = [word for word in options.only.split(",") if word]
    unknown = [word for word in named if word not in PARTS]
    if unknown:
        parser.error(f"no part named {unknown[0]!r}; there are " + ", ".join(PARTS))
    options.parts = named or [name for name in PARTS if name not in BY_NAME and not (options.quick and name in SLOW)]
    return options


def main():
    options = arguments()
    say(f"shardwire tests with {sys.executable}, build {BUILD.name}: {', '.join(options.parts)}")
    total, lines, start = NONE, [], time.monotonic()
    for name in options.parts:
        say(f"== {name}")
        begun = time.monotonic()
        counted = PARTS[name](options)
        if counted == NONE:
            complain(f"  FAIL {name}: it counted no test")
            counted = FAIL
        total = add([total, counted])
        lines.append(f"{name:<12} {time.monotonic() - begun:7.1f} s   {counted.passed} passed, {counted.failed} "
                     f"failed, {counted.skipped} skipped")
        say("   " + lines[-1])
    if complaints:
        say("== what failed")
        say("\n".join(complaints))
    say("== the twenty slowest tests")
    for seconds, test in sorted(durations, reverse=True)[:20]:
        say(f"   {seconds:7.1f} s   {test}")
    say("== time and outcome of each part")
    for line in lines:
        say("   " + line)
    say(f"   {'all':<12} {time.monotonic() - start:7.1f} s")
    say(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    # An end by a signal also ends the part that runs.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(ending, lambda received, _: sys.exit(128 + received))
    own_orphans()
    try:
        sys.exit(main())
    finally:
        end_descendants()
