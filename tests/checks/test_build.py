"""Tests what ./run configures and when: with the test's own programs in place of cmake, ninja and dpkg-query, on the
real .ci/build.sh. Also tests which sources are compiled together.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import each_source
import one_definition

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Sourced as in ./run; `root` is the folder of logs and builds.
SCRIPT = """
set -euo pipefail
root=$1 torch_choice=debian python=/usr/bin/python3
. {root}/.ci/machine.sh
. {root}/.ci/build.sh
build_dir "$root/build/one" all "building one" -DOPTION=ON
"""


class Machine:
    """A machine with packages and programs that the test chooses."""

    def __init__(self, folder):
        self.root, self.bin, self.packages = folder / "root", folder / "bin", folder / "packages"
        self.bin.mkdir()
        self.root.mkdir()
        self.packages.write_text("")
        self.program("cmake", f'echo configured >>{folder}/calls; mkdir -p {self.root}/build/one; touch '
                              f'{self.root}/build/one/build.ninja; cat {folder}/said')
        self.program("ninja", f"echo built >>{folder}/calls")
        self.program("dpkg-query", f"cat {self.packages}; exit 1")  # 1: some packages are unknown
        self.program("c++", "echo 'g++ (Debian) 12.2.0'")
        self.calls, self.said = folder / "calls", folder / "said"
        self.said.write_text("-- Found fmt\n")
        self.command = ["bash", "-c", SCRIPT.replace("{root}", str(ROOT)), "build", str(self.root)]

    def program(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items()
                if name not in ("CXX", "CXXFLAGS", "LDFLAGS", "CPATH", "CMAKE_PREFIX_PATH", "MPI_HOME")}
        return {**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.root), **more}

    def build(self, **env):
        """(the calls, in order, and the output)"""
        self.calls.write_text("")
        done = subprocess.run(self.command, env=self.environment(**env), capture_output=True, text=True, timeout=120,
                              check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return self.calls.read_text().split(), done.stderr


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    assert made.build()[0] == ["configured", "built"]
    assert made.build()[0] == ["built"], "nothing changed, and yet it was configured again"
    return made


def test_a_long_build_says_something_every_minute_where_there_is_no_terminal(machine):
    machine.program("ninja",
                    "echo '[1/9] Building CXX object one.cc.o'; echo '[2/9] Building CXX object two.cc.o'; sleep 4")
    lines = machine.build(say_every="1")[1].splitlines()
    assert any(re.fullmatch(r"shardwire: building one: \d+ s so far  \[2/9\] Building CXX object two.cc.o", line)
               for line in lines), lines


def test_nothing_speaks_on_behind_a_build_whose_shell_was_killed(machine):
    machine.program("ninja", "sleep 30")
    with subprocess.Popen(machine.command, env=machine.environment(say_every="1"), stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, start_new_session=True) as shell:
        assert b"building one" in shell.stderr.readline()
        shell.kill()
        assert shell.wait() != 0
        try:
            shell.communicate(timeout=20)  # until the last writer has ended
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


# Makes environments with copies of itself; its pip takes a second, and needs the environment until then.
A_PYTHON = """#!/bin/sh
case "$*" in
  -c*) echo 3.11 ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *) sleep 1; [ -e "$0" ] && echo installed >>"$CALLS" ;;
esac
"""


def test_two_runs_with_pips_torch_at_once_install_it_once(tmp_path):
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(A_PYTHON)
    python.chmod(0o755)
    script = f'set -euo pipefail; root={tmp_path} python={python}; . {ROOT}/.ci/machine.sh; pip_torch; echo "$python"'
    runs = [subprocess.Popen(["bash", "-c", script], env={**os.environ, "CALLS": str(calls)}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.communicate(timeout=60)[0] for each in runs] == [f"{tmp_path}/.venv-torch/bin/python\n"] * 2
    assert calls.read_text() == "installed\n"


def test_an_optional_package_that_comes_goes_or_is_upgraded_configures_again(machine):
    for packages in (
        "libopenmpi-dev 4.1.4-3 installed\n",
        "libopenmpi-dev 4.1.4-4 installed\n",
        "libopenmpi-dev 4.1.4-4 installed\nlibibverbs-dev 44 installed\n",
        "libibverbs-dev 44 installed\nlibopenmpi-dev 4.1.4-4 config-files\n",  # removed, the package's settings kept
        "",
    ):
        machine.packages.write_text(packages)
        assert machine.build()[0] == ["configured", "built"], packages
        assert machine.build()[0] == ["built"], packages


def test_so_do_another_mpi_and_another_compiler_where_no_package_decides(machine):
    machine.program("mpicxx", "true")
    assert machine.build()[0] == ["configured", "built"]
    assert machine.build()[0] == ["built"]
    machine.program("other-mpicxx", "true")
    (machine.bin / "mpicxx").unlink()
    (machine.bin / "mpicxx").symlink_to("other-mpicxx")  # as Debian's alternatives do
    assert machine.build()[0] == ["configured", "built"]
    machine.program("c++", "echo 'g++ (Debian) 14.2.0'")
    assert machine.build()[0] == ["configured", "built"]
    assert machine.build(CXX="other-c++")[0] == ["configured", "built"]
    assert machine.build(CXX="other-c++")[0] == ["built"]


def test_a_configuration_that_failed_is_not_remembered(machine):
    good = (machine.bin / "cmake").read_text()
    machine.program("cmake", "exit 1")
    machine.packages.write_text("libopenmpi-dev 4.1.4-3 installed\n")
    with pytest.raises(AssertionError):
        machine.build()
    (machine.bin / "cmake").write_text(good)
    assert machine.build()[0] == ["configured", "built"]


def test_what_is_left_out_is_said_with_the_package_that_brings_it(machine):
    machine.said.write_text("-- without the mpi transport: no MPI was found (Debian: libopenmpi-dev)\n-- Found fmt\n")
    machine.packages.write_text("libgtest-dev 1 installed\n")
    said = machine.build()[1]
    assert ("build/one: without the mpi transport: no MPI was found (Debian: libopenmpi-dev)" in said
            and "fmt" not in said)


def test_the_words_that_are_looked_for_are_those_of_cmake_lists():
    """build_dir and setup.py find the words by 'without the'."""
    for file, package in (("CMakeLists.txt", "libibverbs-dev"), ("backend/transport/mpi/mpi.cmake", "libopenmpi-dev")):
        assert re.search(rf'message\(STATUS "without the \w+ transport: .*\(Debian: {package}\)"\)',
                         (ROOT / file).read_text()), file


def test_every_build_gets_the_headers_of_all_transports():
    """`./run demo` on a bare machine builds with mpi and rdma; so do the parts of the tests."""
    script = (f'root={ROOT} torch_choice=debian python=/usr/bin/python3; . {ROOT}/.ci/machine.sh; for group in core '
              'demo cpp bench; do echo $group: $(packages_of $group); done')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    for line in done.stdout.splitlines():
        assert {"libopenmpi-dev", "libibverbs-dev"} <= set(line.split()), line


# ---- merged.cmake

# Answers query_torch.py as a torch would; configuring needs no more of one.
A_TORCH = """#!/bin/sh
echo TORCH_VERSION=2.0; echo TORCH_FULL_VERSION=2.0.0; echo TORCH_INCLUDE_DIRS={0}; echo TORCH_LIB_DIR={0}; echo TORCH_CXX11_ABI=1
echo PYTHON_VERSION=3.11; echo PYTHON_INCLUDE_DIR={0}; echo PYTHON_EXT_SUFFIX=.so
"""


def compiled(folder, *options):
    """{compiled unit or source: included sources}, of the whole tree as cmake configures the tree in `folder`."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(A_TORCH.format(folder))
    python.chmod(0o755)
    command = ["cmake", "-S", ROOT, "-B", folder / "build", "-G", "Ninja", f"-DSHARDWIRE_PYTHON_EXECUTABLE={python}",
               "-DSHARDWIRE_BENCH=OFF", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
    if "Could NOT find GTest" in done.stderr or "GTestConfig" in done.stderr:
        pytest.skip("no GoogleTest here")
    assert done.returncode == 0, done.stderr
    units = collections.defaultdict(list)
    for entry in json.loads((folder / "build" / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        units[file] += each_source.sources_of(file)
    return units


def sources_of(units):
    """How often each source of ours is compiled."""
    found = [source.relative_to(ROOT) for sources in units.values() for source in sources
             if source.is_relative_to(ROOT)]
    return collections.Counter(map(str, found))


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no cmake and ninja here")
    return compiled(tmp_path_factory.mktemp("merged") / "tree")


def test_every_source_is_compiled_once(merged):
    counts = sources_of(merged)
    assert [name for name, count in counts.items() if count != 1] == []
    there = {str(path.relative_to(ROOT)) for folder in ("ops", "backend", "python", "tests")
             for path in (ROOT / folder).rglob("*.cc")}
    # Sources without headers on this machine, the stand-ins, the fuzz targets, which clang compiles by ./run fuzz, the
    # cable, which run_network.py compiles, and the shims of ./run wheel.
    left_out = re.compile(r"(backend/transport/(rdma|mpi/module)|tests/(backend/transport/rdma|mpi|fuzz|network)|"
                          r"python/portable)/")
    assert sorted(name for name in there - set(counts) if not left_out.match(name)) == []


def test_the_files_of_a_folder_are_few_units(merged):
    """Each unit that includes torch costs ten seconds before the first line of ours."""
    units = collections.Counter()
    for sources in merged.values():
        folders = {source.parent for source in sources}
        assert len(folders) == 1, f"a unit of several folders: {sources}"
        folder = folders.pop()
        if folder.is_relative_to(ROOT):
            units[str(folder.relative_to(ROOT))] += 1
    assert units["backend/c10d"] <= 3 and units["python/csrc"] == 1 and units["tests/python/device"] == 1, units
    core = {folder: count for folder, count in units.items()
            if folder.startswith(("ops/", "backend")) and folder not in ("backend/c10d", "ops/reduce")}
    assert set(core.values()) == {1}, core


def test_without_merging_the_same_files_are_compiled_each_alone(merged, tmp_path):
    alone = compiled(tmp_path / "tree", "-DSHARDWIRE_MERGE=OFF")
    assert all(len(sources) == 1 for sources in alone.values())
    assert sources_of(alone) == sources_of(merged)


def test_the_clang_checks_read_every_source_of_the_core(merged):
    """Whether merged or not: thread_safety.py reads the units, tidy.py the files."""
    commands = next(iter(merged)).parents[3] / "compile_commands.json"
    assert commands.exists()
    files = {str(source.relative_to(ROOT)) for source, words in each_source.core_commands(commands)
             if "-std=c++20" in words}
    units = [source for _, sources, _ in each_source.core_units(commands) for source in sources]
    core = {name for name in sources_of(merged) if name.startswith(("ops/", "backend/"))}
    assert files == core and len(units) == len(core)


def test_clashes_of_names_are_looked_for_in_single_files_only(merged, capsys):
    with pytest.raises(SystemExit, match="SHARDWIRE_MERGE=OFF"):
        list(one_definition.objects_of(next(iter(merged)).parents[3], ROOT))


def test_ccache_shares_units_between_folders_and_copies_of_the_tree(tmp_path):
    """build/cpp, the folders of each torch, and pip's copy: with the environment of build.sh and suite.py."""
    for program in ("cmake", "ninja", "ccache", "c++"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    (tree / "room").mkdir(parents=True)
    (tree / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(small LANGUAGES CXX)\nset(CMAKE_CXX_COMPILER_LAUNCHER "
        "ccache)\nset(CMAKE_CXX_FLAGS -g1)\n"
        "include(merged.cmake)\nadd_library(small OBJECT room/one.cc room/two.cc)\ntarget_include_directories(small "
        "PRIVATE ${PROJECT_SOURCE_DIR})\nshardwire_merge(small)\n"
    )
    shutil.copy(ROOT / "merged.cmake", tree)
    for name in ("one", "two"):
        (tree / "room" / f"{name}.cc").write_text(f"const char* {name}() {{ return __FILE__; }}\n")
    shutil.copytree(tree, copy)
    hits = []
    for root, folder in ((tree, "cpp"), (tree, "torch"), (copy, "temp")):
        env = {**os.environ, "CCACHE_DIR": str(tmp_path / "cache"), "CCACHE_BASEDIR": str(root),
               "CCACHE_NOHASHDIR": "1"}
        env.pop("CCACHE_DISABLE", None)
        for command in (["cmake", "-S", root, "-B", root / "build" / folder, "-G", "Ninja"],
                        ["ninja", "-C", root / "build" / folder]):
            subprocess.run(command, env=env, check=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
        said = subprocess.run(["ccache", "--print-stats"], env=env, check=True, capture_output=True, text=True,
                              timeout=60).stdout
        counts = dict(line.split("\t") for line in said.splitlines())
        hits.append(
            (int(counts["cache_miss"]), int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])))
    assert hits == [(1, 0), (1, 1), (1, 2)]


def test_the_conda_recipe_has_the_version_of_the_project():
    project = re.search(r"project\(shardwire VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    recipe = (ROOT / ".packaging" / "conda" / "recipe.yaml").read_text()
    assert re.search(r'^  version: "(.*)"$', recipe, re.MULTILINE)[1] == project
