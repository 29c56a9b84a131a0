"""The checks check: each check finds its faults, and is silent about allowed code."""

import collections
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).resolve().parents[1] / "support")]
import docs
import gtest_results
import layers
import names
import one_definition
import sizes
import suite
import thread_safety
import variables

ROOT = pathlib.Path(__file__).resolve().parents[2]

ALLOWED = [
    ("ops/plan/plan.cc",
     '#include "ops/plan/plan.h"\n#include <vector>\n#include "shardwire/types.h"\n#include <fmt/format.h>\n'),
    ("backend/exec/executor.cc",
     '#include "ops/plan/plan.h"\n#include "backend/memory/shared_heap.h"\n#include <thread>\n'),
    ("backend/communicator/communicator.cc", '#include "backend/exec/executor.h"\n'),
    ("backend/c10d/process_group.cc", "#include <torch/csrc/distributed/c10d/Backend.hpp>\n"),
    ("backend/c10d/torch_compat.h", "#if TORCH_VERSION_MAJOR < 2\n#endif\n"),
    ("backend/transport/rdma/verbs.cc", "#include <infiniband/verbs.h>\n"),
    ("backend/transport/mpi/mpi_connection.cc", "#include <mpi.h>\n"),
    ("bench/alltoallw.cc", "#include <mpi.h>\n"),
    ("backend/fabric/proof.cc", "#include <openssl/hmac.h>\n"),
    ("backend/exec/stream_cuda.cc", "#include <cuda_runtime.h>\n"),
    ("ops/plan/plan.cc", '#include <fmt/ranges.h>\nauto text = fmt::join(a, " ");\n'),
    ("ops/plan/plan.cc", "// #include <thread>\n/* #include <torch/torch.h>\n*/\n"),
    ("include/shardwire/c10d.h",
     '#include "shardwire/tensor_op.h"\n#include <torch/csrc/distributed/c10d/Store.hpp>\n'),
    ("docs/examples/cpp/a.cc", "#include <shardwire/c10d.h>\n#include <torch/torch.h>\n"),
    ("backend/bootstrap/own_ends.cc", '#include "backend/fabric/fabric.h"\n#include "backend/transport/endpoint.h"\n'),
    ("backend/transport/shm/ring.cc", '#include "backend/memory/shared_heap.h"\n#include "ops/wire/byte_codec.h"\n'),
    ("python/csrc/bind_op.cc", '#include <pybind11/pybind11.h>\n#include "backend/c10d/process_group.h"\n'),
]
REFUSED = [
    ("include/shardwire/types.h", '#include "ops/plan/plan.h"\n', "not below it"),
    ("include/shardwire/types.h", "#include <fmt/format.h>\n", "public headers"),
    ("include/shardwire/c10d.h", '#include "backend/c10d/process_group_shardwire.h"\n', "not below it"),
    ("ops/plan/plan.cc", '#include "backend/base/fd.h"\n', "not below it"),
    ("ops/reduce/kernel.cc", '#include "ops/collectives/builders.h"\n', "not below it"),
    ("ops/wire/byte_codec.h", '#include "ops/plan/plan.h"\n', "not below it"),
    ("ops/plan/plan.cc", '#include "ops/boxes/copy_box.h"\n', "not below it"),
    ("ops/boxes/copy_box.cc", '#include "ops/plan/plan.h"\n', "not below it"),
    ("backend/memory/shared_heap.cc", '#include "backend/transport/transport.h"\n', "not below it"),
    ("backend/fabric/link.cc", '#include "backend/transport/transport.h"\n', "not below it"),
    ("include/shardwire/communicator.h", '#include "shardwire/c10d.h"\n', "sees torch"),
    ("backend/communicator/communicator.cc", '#include "shardwire/c10d.h"\n', "sees torch"),
    ("ops/plan/plan.cc", "#include <thread>\n", "I/O, threads or clocks"),
    ("ops/reduce/kernel.cc", "#include <chrono>\n", "I/O, threads or clocks"),
    ("ops/reduce/kernel.cc", "#include <sys/mman.h>\n", "I/O, threads or clocks"),
    ("backend/bootstrap/own_ends.cc", '#include "backend/transport/shm/shm_fabric.h"\n', "not below it"),
    ("backend/exec/engine.cc", '#include "backend/transport/tcp/tcp_stream.h"\n', "not below it"),
    ("backend/transport/tcp/tcp_endpoint.cc", '#include "backend/transport/shm/shm_fabric.h"\n', "not below it"),
    ("backend/transport/shm/ring.cc", '#include "ops/plan/plan.h"\n', "not below it"),
    ("backend/transport/shm/ring.cc", '#include "backend/exec/executor.h"\n', "not below it"),
    ("backend/base/fd.cc", "#  include <torch/torch.h>\n", "torch, pybind11 or Python"),
    ("backend/exec/executor.cc", "#include <c10/util/intrusive_ptr.h>\n", "torch, pybind11 or Python"),
    ("tests/ops/plan/plan_test.cc", "#include <ATen/ATen.h>\n", "torch, pybind11 or Python"),
    ("backend/c10d/process_group.cc", "#if TORCH_VERSION_MAJOR < 2\n", "torch_compat.h"),
    ("backend/c10d/process_group.cc", '#include "python/csrc/module.h"\n', "not below it"),
    ("backend/transport/shm/ring.cc", "#include <infiniband/verbs.h>\n", "RDMA"),
    ("backend/transport/tcp/socket.cc", "#include <mpi.h>\n", "mpi.h"),
    ("backend/fabric/link.cc", "#include <openssl/hmac.h>\n", "OpenSSL"),
    ("backend/exec/executor.cc", "#include <cuda_runtime.h>\n", "CUDA"),
    ("ops/plan/plan.cc", '#include "plan.h"\n', "repository root"),
    ("ops/plan/plan.cc", '#include "../../backend/exec/engine.h"\n', "repository root"),
    ("ops/plan/plan.cc", '#include "ops/plan/../../backend/exec/engine.h"\n', "repository root"),
    ("ops/plan/plan.cc", '#include "plan/plan.h"\n', "repository root"),
    ("ops/plan/plan.cc", '#include <fmt/format.h>\nauto text = fmt::join(a, " ");\n', "fmt/ranges.h"),
    ("backendx/new_room/x.cc", "#include <vector>\n", "no room"),
]


@pytest.mark.parametrize("path, text", ALLOWED)
def test_layers_allows(path, text):
    assert layers.findings_of(path, text) == []


@pytest.mark.parametrize("path, text, words", REFUSED)
def test_layers_refuses(path, text, words):
    found = layers.findings_of(path, text)
    assert len(found) == 1 and words in found[0] and found[0].startswith(f"{path}:1: "), found


def test_layers_names_the_line_behind_a_comment():
    assert layers.findings_of("ops/plan/plan.cc", "/* a\n b */\n\n#include <thread>\n")[0].startswith(
        "ops/plan/plan.cc:4: ")


@pytest.mark.parametrize("path, text, words", [
    ("python/shardwire/queues/queue.py", ("from ..groups.lookup import store_of\nfrom .. import _C\nfrom ..errors "
                                          "import ClosedError\nfrom ._own import _private"), ""),
    ("python/shardwire/nvshmem/core/init_finalize.py", "from ... import symm", ""),
    ("python/shardwire/plain/read.py", "def f():\n    from ..queues import Queue", "plain may not import queues"),
    ("python/shardwire/kernels/a.py", "from ..weights.movement import Movement", "kernels may not import weights"),
    ("python/shardwire/nvshmem/core/init_finalize.py", "from ... import weights", "nvshmem may not import weights"),
    ("python/shardwire/queues/a.py", "import shardwire.symm", "queues may not import symm"),
    ("python/shardwire/queues/a.py", "from ..groups.lookup import _stores", "_stores belongs to groups alone"),
    ("python/shardwire/new/a.py", "", "new is no room"),
])
def test_layers_of_python(path, text, words):
    found = layers.python_findings(path, text)
    assert [words in each for each in found] == ([True] if words else []), found


def test_layers_compares_the_list_of_installed_torch_headers():
    names = [path.split("/")[-1] for path in layers.PUBLIC_TORCH]
    assert list(layers.not_installed_with_torch(f"set(SHARDWIRE_TORCH_HEADERS {' '.join(names)})\n")) == []
    assert len(list(layers.not_installed_with_torch(f"set(SHARDWIRE_TORCH_HEADERS {' '.join(names[1:])})\n"))) == 1
    assert len(list(layers.not_installed_with_torch(""))) == 1


def test_one_file_name_in_two_rooms_is_refused():
    assert layers.same_names(["backend/a/x.h", "ops/y.h", "tests/x.h", "python/a/__init__.py", "__init__.py"]) == []
    (found,) = layers.same_names(["python/shardwire/b/agree.py", "python/shardwire/a/agree.py"])
    assert found.startswith("python/shardwire/b/agree.py:1: python/shardwire/a/agree.py has the same file name")


def function(lines, head="void f(int a) {"):
    return "\n".join([head] + ["  a = 1;"] * (lines - 2) + ["}"]) + "\n"


def test_sizes_measures_functions_and_files():
    assert sizes.measure("ops/x.cc", function(100)) == ([], 100, [100])
    found, _, lengths = sizes.measure("ops/x.cc", "namespace a {\n\n" + function(101) + "\n}  // namespace a\n")
    assert lengths == [101] and len(found) == 1 and "ops/x.cc:3: a function of 101 lines" in found[0]
    assert sizes.measure("tests/x_test.cc", function(101))[0] == []
    assert "601 lines" in sizes.measure("ops/x.cc", "\n" * 601)[0][0]
    assert sizes.measure("ops/x.cc", "\n" * 600)[0] == []


def test_sizes_measures_a_constructor_with_initialisers():
    text = ("A::A(int a)\n    : a_(a),\n      b_(a) {\n  if (a) {\n    b_ = 2;\n  }\n}\n\nint g(int a,\n      int b) "
            "{\n  return a;\n}\n")
    assert list(sizes.cpp_functions(text)) == [(1, 7), (9, 4)]


def test_sizes_measures_python_functions():
    text = "def f():\n" + "    pass\n" * 100
    assert "a function of 101 lines" in sizes.measure("python/x.py", text)[0][0]


LONG = "word " * 24 + "w"  # 121 columns


@pytest.mark.parametrize("path, text, lines", [
    ("ops/x.cc", f"// {LONG[3:]}\n// {LONG}\n", [1, 2]),
    ("ops/x.h", f"{LONG[1:]}\n", []),
    ("ops/x.cmake", f"# {LONG}\n", [1]),
    (".ci/x.sh", f"a\n# {LONG}\n", [2]),
    ("run", f"# {LONG}\n", [1]),
    ("tests/CMakeLists.txt", f"# {LONG}\n", [1]),
    ("tests/x.txt", f"{LONG}\n", []),
    ("python/x.py", f"a = 1\n# {LONG}\n", [2]),
    ("python/x.py", f'"""A docstring.\n\n{LONG}\n"""\n', [3]),
    ("python/x.py", f'def f():\n    """{LONG}"""\n', [2]),
    ("python/x.py", f'PROGRAM = """\n{LONG}\n"""\n# {LONG}\n', [4]),
    ("python/x.py", f'PROGRAM = f"""\n{LONG}{{1}}\n"""\n# {LONG}\n', [4]),
    ("python/x.py", f'a = f("""{LONG}""")\n', [1]),
    ("docs/x.md", f"{LONG}\n\n* {LONG}\n\n# {LONG}\n", [1, 3, 5]),
    ("docs/x.md", f"| {LONG} |\n\n```sh\n{LONG}\n```\n\n{LONG}\n", [7]),
    ("docs/x.md", f"* https://{'a' * 120}\n* [a](https://{'a' * 120}) b\n", [2]),
])
def test_sizes_measures_lines(path, text, lines):
    found = sizes.width_findings(path, text)
    assert [int(words.split(":")[1]) for words in found] == lines, found
    assert all("columns, the limit is 120" in words for words in found)


INSIDE = "namespace shardwire::internal {\n%s\n}\n"
ONE_NAME = [
    # a pair of files, the text of each, the finding
    ("ops/a.h", "backend/b.h", "class X {\n int a;\n};", "type shardwire::internal::X"),
    ("ops/a.h", "backend/b.cc", "template <typename T>\nstruct [[nodiscard]] X final : Y<T> {};",
     "type shardwire::internal::X"),
    ("ops/a.h", "python/csrc/b.h", "SW_BEGIN\nclass SHARDWIRE_EXPORT X final : public ::c10::Y {};",
     "type shardwire::internal::X"),
    ("ops/a.h", "tests/support/b.h", "enum class X : std::uint8_t { kA = 1 };", "type shardwire::internal::X"),
    ("ops/a.h", "tests/x/b_test.cc", "inline constexpr int kX = int{1} << 3;", "variable shardwire::internal::kX"),
    ("tests/x/a_test.cc", "tests/x/b_test.cc", "std::string f(const Dims& a, int b = 2) { return {}; }",
     "function shardwire::internal::f(const Dims&, int)"),
    ("tests/x/a_test.cc", "tests/x/b_test.cc", "X::X(int a) : a_{a} {\n}", "function shardwire::internal::X::X(int)"),
    ("bench/a.h", "bench/b.h", "struct X {\n};", "type shardwire::internal::X"),
    ("ops/a.h", "backend/b.cc", "class X;\nX* f(Y y = {});\nusing Z = X;\nextern int i;", None),
    ("ops/a.h", "backend/b.cc", "namespace {\nclass X {};\nint f() { return 1; }\n}", None),
    ("ops/a.h", "backend/b.cc", "static int f(int a) { return a; }\nconstexpr int kA = 3;\nconst int kB[] = {1, 2};",
     None),
    ("ops/a.h", "backend/b.cc", "// class X {};\n#define Y class X {};\nconst char* const kText = \"class X {};\";",
     None),
    ("tests/x/a_test.cc", "tests/y/b_test.cc", "class X {};", None),
    ("bench/a.h", "tests/x/b_test.cc", "class X {};", None),
    ("backend/transport/rdma/no_verbs.cc", "backend/transport/rdma/a.cc", "int f() { return 1; }", None),
]


@pytest.mark.parametrize("one, other, text, name", ONE_NAME)
def test_one_definition_reads_sources(one, other, text, name):
    found = list(one_definition.source_findings([(one, INSIDE % text), (other, "// other\n" + INSIDE % text)]))
    assert [line.partition(" is defined")[0] for line in found] == ([name] if name else []), found
    assert name is None or f"{one}:" in found[0] and f"{other}:" in found[0]


def test_one_definition_distinguishes_overloads():
    texts = ["std::string f(const Dims& a) { return {}; }", "std::string f(const Rank& a) { return {}; }"]
    assert list(one_definition.source_findings([("ops/a.h", INSIDE % texts[0]), ("ops/b.h", INSIDE % texts[1])])) == []


def compiled(folder, name, text, *options):
    """The object of one unit, -O0."""
    (folder / f"{name}.cc").write_text(INSIDE % text)
    subprocess.run([shutil.which("g++") or shutil.which("c++"), "-O0", "-c", *options, folder / f"{name}.cc", "-o",
                    folder / f"{name}.o"], check=True)
    return (folder / f"{name}.o").read_bytes()


def test_one_definition_looks_past_the_brackets_of_a_return_type():
    texts = ["std::function<void()> A::f() { return {}; }", "std::function<void()> B::f() { return {}; }"]
    assert (list(one_definition.source_findings([("ops/a.cc", INSIDE % texts[0]), ("ops/b.cc", INSIDE % texts[1])]))
            == [])
    assert len(list(one_definition.source_findings(
        [("ops/a.cc", INSIDE % texts[0]), ("ops/b.cc", "// other\n" + INSIDE % texts[0])]))) == 1


def test_one_definition_reads_objects(tmp_path):
    text = "int g(); int h();\nstruct X { int f(int a) { return %s() + a; } };\nint %s(int a) { return X().f(a); }"
    objects = {name: compiled(tmp_path, name, text % (called, name))
               for name, called in (("one", "g"), ("same", "g"), ("other", "h"))}
    named = [("ops/one.cc", "one.o", objects["one"]), ("ops/same.cc", "same.o", objects["same"])]
    assert list(one_definition.object_findings(named)) == []
    found = list(one_definition.object_findings([*named, ("backend/other.cc", "other.o", objects["other"])]))
    assert len(found) == 1 and "_ZN9shardwire8internal1X1fEi" in found[0] and "backend/other.cc" in found[0], found
    # In two test programs each has a separate definition.
    assert list(one_definition.object_findings(
        [("tests/x/one.cc", "one.o", objects["one"]), ("tests/y/other.cc", "other.o", objects["other"])])) == []


def test_one_definition_compares_variables_and_virtual_functions(tmp_path):
    for text in ("inline int kX = %d;\nconst int* %s() { return &kX; }", "struct X { %s };\nX* %s() { return new X; }"):
        bodies = (1, 2) if "%d" in text else ("virtual int f() { return 1; }",
                                              "virtual int f() { return 1; } virtual int g() { return 1; }")
        objects = [(f"ops/{name}.cc", f"{name}.o", compiled(tmp_path, name, text % (body, name)))
                   for name, body in zip(("one", "other"), bodies)]
        assert len(list(one_definition.object_findings(objects))) == 1, text


def test_one_definition_does_not_mind_what_a_unit_knows_of_exceptions(tmp_path):
    text = "struct Y { ~Y(); };\nvoid g();\n%s\nstruct X { Y a; void f() { Y b; g(); } };\nvoid %s() { X().f(); }"
    seen = (("one", ""), ("other", "inline Y::~Y() {}\ninline void g() {}"))
    objects = [(f"ops/{name}.cc", f"{name}.o", compiled(tmp_path, name, text % (more, name))) for name, more in seen]
    assert list(one_definition.object_findings(objects)) == []


def test_one_definition_knows_a_function_of_the_unit_itself(tmp_path):
    """-fno-semantic-interposition calls the function by place, not by name."""
    text = "int g(); int h();\nstruct X { int f(int a) { return g() + a; } };\n%s\nint %s(int a) { return X().f(a); }"
    options = ["-fPIC", "-fno-semantic-interposition"]
    objects = [(f"ops/{name}.cc", f"{name}.o", compiled(tmp_path, name, text % (own, name), *options))
               for name, own in (("one", ""), ("other", "int g() { return 1; }"))]
    assert list(one_definition.object_findings(objects)) == []
    # Another function of the unit itself is a different one.
    text = text.replace("return g()", "return h()")
    objects.append(("ops/third.cc", "third.o", compiled(
        tmp_path, "third", text % ("int h() { return 1; }\nint g() { return 1; }", "third"), *options)))
    assert len(list(one_definition.object_findings(objects))) == 1


def test_one_definition_refuses_weak_symbols_for_some_processors(tmp_path):
    data = compiled(tmp_path, "kernels", "inline int f(int a) { return a; }\nint g() { return f(1); }")
    found = list(one_definition.object_findings(
        [("ops/reduce/kernels.cc", "CMakeFiles/shardwire_kernels_avx2.dir/kernels_avx2.cc.o", data)]))
    assert len(found) == 1 and "_ZN9shardwire8internal1fEi may be kept" in found[0]


def test_suite_counts_reports(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="b"/><testcase classname="a" name="c"><failure '
        'message="no"/></testcase>'
        '<testcase classname="a" name="d"><skipped message="no torch"/></testcase><testcase classname="a" name="e" '
        'status="notrun"/><testcase time="1"/>'
        "</testsuite></testsuites>"
    )
    counted, failed, skips = suite.junit(report)
    assert counted == (1, 1, 2) and failed[0].startswith("a.c") and skips["no torch"] == 1


def test_a_test_that_some_ranks_skip_has_not_passed():
    both, some = gtest_results.Outcome(6, 0, 0, ""), gtest_results.Outcome(1, 0, 5, "")
    bad = gtest_results.Outcome(4, 1, 1, "no")
    assert gtest_results.count({"a": both, "b": some, "c": bad, "d": both}) == (2, 1, 1)


def test_suite_fails_a_part_that_found_no_test(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    assert suite.pytest("nothing", tmp_path, None, sys.executable, {}).failed == 1


def test_suite_names_the_tests_of_a_part_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    monkeypatch.setattr(suite, "complaints", [])

    def hangs(name, command, env):
        (pathlib.Path(env["SHARDWIRE_RUNNING_TESTS"]) / "gw1").write_text("test_a.py::test_b")
        (tmp_path / f"{name}.log").write_text("")
        return suite.TOOK_TOO_LONG, tmp_path / f"{name}.log"

    monkeypatch.setattr(suite, "run", hangs)
    assert suite.pytest("late", tmp_path, None, sys.executable, {}) == suite.FAIL
    assert "the last test of gw1: test_a.py::test_b" in suite.complaints[-1]


def test_suite_fails_a_part_without_a_count(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    quiet = tmp_path / "python"
    quiet.write_text("#!/bin/sh\nexit 0\n")
    quiet.chmod(0o755)
    assert suite.pytest("quiet", tmp_path, None, quiet, {}) == suite.FAIL
    monkeypatch.setattr(suite, "PARTS", {"empty": lambda _: suite.NONE, "good": lambda _: suite.PASS})
    monkeypatch.setattr(suite, "complaints", [])
    monkeypatch.setattr(sys, "argv", ["suite.py"])
    assert suite.main() == 1


def test_suite_gives_many_random_specs_their_time():
    """.ci/weekly's number, at the speed of limit_of_programs()."""
    (cases,) = re.findall(r"--oracle (\d+)", (ROOT / ".ci" / "weekly").read_text())
    assert suite.limit_of_programs(int(cases)) > 3 * 71 * int(cases) / 20000 and suite.limit_of_programs(20000) == 900


def test_suite_names_programs_that_passed_without_a_report(tmp_path):
    report = tmp_path / "ctest.xml"
    report.write_text('<testsuite><testcase name="tests_a" status="run"/><testcase name="tests_b" status="run"/>'
                      '<testcase name="tests_c" status="fail"><failure/></testcase>'
                      '<testcase name="bench_a" status="run"/></testsuite>')
    assert suite.without_reports(report, {"tests_a"}) == ["tests_b"]
    assert suite.without_reports(tmp_path / "none.xml", set()) == []


def test_suite_passes_on_what_the_caller_asks_of_the_tests_and_no_other_variable_of_ours(monkeypatch):
    kept = ("SHARDWIRE_TEST_DEVICE", "SHARDWIRE_TEST_SEED", "SHARDWIRE_ORACLE_SEED", "SHARDWIRE_ORACLE_CASES",
            "SHARDWIRE_RIG_CACHE", "SHARDWIRE_JOBS", "HOME")
    dropped = ("SHARDWIRE_TEST_FOLDER", "SHARDWIRE_TRANSPORTS", "SHARDWIRE_TIMEOUT", "SLURM_PROCID", "PMI_RANK",
               "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "MASTER_ADDR", "RANK", "LOCAL_RANK")
    for name in kept + dropped:
        monkeypatch.setenv(name, "1")
    left = suite.clean_environment(SHARDWIRE_TAG="own")
    assert [name for name in kept if name not in left] == [] and left["SHARDWIRE_TAG"] == "own"
    assert [name for name in dropped if name in left] == []


def test_suite_ends_a_part_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    status, log = suite.run("hang", [sys.executable, "-c", "import time; time.sleep(60)"], limit=0.5)
    assert status == 124 and "too long" in log.read_text()


# A process that keeps orphans, as suite.py does; and a part that cleans up and leaves a process in another session.
ENDING = """
import pathlib, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import suite
suite.own_orphans()
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], start_new_session=True)
while not pathlib.Path("ready").exists():
    time.sleep(0.01)
suite.end_session(child, suite.signal.SIGINT)
print(suite.descendants())
"""
LEAVING = """
import os, pathlib, subprocess, time
left = subprocess.Popen(["sleep", "100"], start_new_session=True)
pathlib.Path("left").write_text(str(left.pid))
try:
    pathlib.Path("ready").touch()
    time.sleep(100)
finally:
    pathlib.Path("clean").touch()
"""


def test_suite_lets_a_part_clean_up_and_ends_what_is_left_in_other_sessions(tmp_path):
    done = subprocess.run([sys.executable, "-c", ENDING, pathlib.Path(suite.__file__).parent, LEAVING], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr
    assert (tmp_path / "clean").exists()
    assert not pathlib.Path("/proc", (tmp_path / "left").read_text()).exists()


def test_suite_states_what_failed_once_more_at_the_end(monkeypatch, capsys):
    def failing(_):
        suite.say_outcome(None, ["a.c\n      the reason"], collections.Counter())
        return suite.FAIL

    monkeypatch.setattr(suite, "PARTS", {"bad": failing, "good": lambda _: suite.PASS})
    monkeypatch.setattr(suite, "complaints", [])
    monkeypatch.setattr(sys, "argv", ["suite.py"])
    assert suite.main() == 1
    end = capsys.readouterr().out.partition("== what failed")[2]
    assert "FAIL a.c\n      the reason" in end and end.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_thread_safety_reads_every_c10d_source_whose_class_guards_something():
    read = {path.stem for path in thread_safety.locking_sources()}
    guarding = {path.stem for path in (thread_safety.ROOT / "backend/c10d").glob("*.h")
                if "SW_GUARDED_BY" in path.read_text()}
    assert guarding and guarding <= read, guarding - read


NAMED_WRONGLY = ("int Count();", "struct small {};", "enum class E { none };", "class C {\n  int member = 0;\n};",
                 "constexpr int limit = 3;", "void call(int A_b);")


@pytest.mark.skipif(shutil.which(names.TIDY) is None, reason="needs clang-tidy 14")
@pytest.mark.parametrize(
    "text, found", [("enum class Kind { kNone };\nclass C {\n  int member_ = 0;\n};\nconstexpr int kLimit = 3;\n", 0),
                    ("\n".join(NAMED_WRONGLY) + "\n", 6), ("void call() {\n" + "  ;\n" * 101 + "}\n", 1)])
def test_names_finds_names_and_long_functions(tmp_path, text, found):
    source = tmp_path / "x.cc"
    source.write_text(text)
    done = subprocess.run(names.command(source, ["-std=c++20"]), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "[readability-" in line]
    assert len(lines) == found and (done.returncode != 0) == bool(found), done.stdout


@pytest.mark.skipif(thread_safety.find_clang("clang++") is None, reason="needs clang++")
@pytest.mark.parametrize("lock, status", [("const MutexLock lock(mutex_);", 0), ("", 1)])
def test_thread_safety_finds_what_is_read_without_its_lock(tmp_path, lock, status):
    source = tmp_path / "counter.cc"
    source.write_text(
        '#include "backend/base/mutex.h"\nnamespace shardwire::internal {\nclass Counter {\n public:\n'
        f"  int count() {{ {lock} return count_; }}\n"
        " private:\n  Mutex mutex_;\n  int count_ SW_GUARDED_BY(mutex_) = 0;\n};\n}\n"
    )
    words = ["-std=c++20", "-I", str(thread_safety.ROOT), "-I", str(thread_safety.ROOT / "include")]
    command = [thread_safety.find_clang("clang++"), "-fsyntax-only", *thread_safety.WARNINGS, "-Werror=thread-safety",
               *words, str(source)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == status


HEADER = """struct Options {
  // How long it waits. SHARDWIRE_WAIT_S
  Duration wait = std::chrono::seconds(5);
  // Which way. SHARDWIRE_WAY=auto|far, else NCCL_WAY
  Way way = Way::kAuto;
  // Not from the environment.
  int other = 0;
};
"""


def library(root, page, source):
    for name, text in (("include/shardwire/options.h", HEADER), ("docs/variables.md", page),
                       ("backend/base/options.cc", source)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(variables.findings(root))


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@pytest.mark.parametrize("patch", sorted((ROOT / "tests" / "simulate" / "bugs").glob("*.patch")),
                         ids=lambda patch: patch.stem)
def test_the_defects_for_the_simulation_fit_the_sources(patch):
    checked = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_variables_are_those_of_the_header_and_those_that_are_read(tmp_path):
    page = f"{variables.BEGIN}\n{variables.table(HEADER)}\n{variables.END}\n| `SHARDWIRE_LOG` | x |\n"
    source = 'read("SHARDWIRE_WAIT_S"); read("SHARDWIRE_WAY"); ::getenv("SHARDWIRE_LOG");'
    assert "| `SHARDWIRE_WAY` | `auto`, `far` | auto | NCCL_WAY | Which way. |" in page
    assert "| `SHARDWIRE_WAIT_S` |  | 5 s |  | How long it waits. |" in page
    assert library(tmp_path, page, source) == []


@pytest.mark.parametrize("page, source, words", [
    (lambda page: page.replace("5 s", "6 s"), "", "is not what include/shardwire/options.h says"),
    (lambda page: page, 'getenv("SHARDWIRE_NEW");', "reads SHARDWIRE_NEW"),
    (lambda page: page + "| `SHARDWIRE_GONE` | x |\n", "", "SHARDWIRE_GONE, which nothing in the library reads"),
])
def test_variables_finds_what_is_missing(tmp_path, page, source, words):
    whole = f"{variables.BEGIN}\n{variables.table(HEADER)}\n{variables.END}\n"
    found = library(tmp_path, page(whole), 'read("SHARDWIRE_WAIT_S"); read("SHARDWIRE_WAY");' + source)
    assert len(found) == 1 and words in found[0]


A_TREE = {
    "README.md": "# A\n\n[page](docs/page.md#a-part-2)\n",
    "docs/index.md": "# I\n\n* [page](page.md)\n* [api](api.md)\n* [errors](errors.md)\n",
    "docs/page.md": "# P\n\n## A `part` 2\n\n<!-- run: 1 and 3 ranks, torch 2.6 -->\n```python\nimport a\na()\n```\n",
    "docs/api.md": "# API\n\n* `one`: x.\n* `symm.two`: x.\n\n| x | `three` |\n\n* `python -m shardwire.run`: x.\n",
    "docs/errors.md": "# E\n\n| `is wrong` | x |\n\n## The types\n",
    "backend/a.cc": 'f("it is "\n  "wrong");',
    "python/shardwire/__init__.py": '__all__ = ["one"]',
    "python/shardwire/symm/__init__.py": '__all__ = ["two"]',
    "python/shardwire/nvshmem/core/__init__.py": '__all__ = ["three"]',
    "python/shardwire/run.py": 'if __name__ == "__main__": pass',
    "python/shardwire/distributed/__init__.py": "__all__ = []",
    "python/shardwire/distributed/experts.py": "__all__ = []",
    "python/shardwire/distributed/fft.py": "__all__ = []",
    "python/shardwire/distributed/linalg/__init__.py": "__all__ = []",
    "python/shardwire/distributed/linalg/advanced/__init__.py": "__all__ = []",
    "python/shardwire/distributed/reshape.py": "__all__ = []",
}


def docs_findings(root, **changed):
    for name, text in {**A_TREE, **changed}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [*docs.link_findings(root), *docs.api_findings(root), *docs.error_findings(root),
            *docs.example_findings(root), *docs.sentence_findings(root)]


def test_docs_takes_what_is_whole(tmp_path):
    assert docs_findings(tmp_path) == []
    (example, name, line), = docs.examples(tmp_path)
    assert (example.sizes, example.torch, example.code, name, line) == (
        (1, 3), "2.6", "import a\na()\n", "docs/page.md", 6)


@pytest.mark.parametrize("name, text, words", [
    ("README.md", "[page](docs/gone.md)", "docs/gone.md leads nowhere"),
    ("README.md", "[page](docs/page.md#part)", "no heading there has this name"),
    ("docs/more.md", "# M\n", "does not lead to more.md"),
    ("docs/api.md", "* `one`: x.\n\n| x | `three` |\n\n* `python -m shardwire.run`: x.\n",
     "does not have shardwire.symm.two"),
    ("docs/api.md",
     "* `one`: x.\n* `one`: x.\n* `symm.two`: x.\n\n| x | `three` |\n\n* `python -m shardwire.run`: x.\n",
     "has shardwire.one twice"),
    ("docs/api.md", "* `one`: x.\n* `symm.two`: `three`.\n* `python -m shardwire.run`: x.\n", "does not have three"),
    ("docs/api.md", "* `one`: x.\n* `symm.two`: x.\n\n| x | `three` |\n", "does not have python -m shardwire.run"),
    ("docs/errors.md", "| `is right` | x |\n", "which no source does"),
    ("docs/page.md", "# P\n\n## A part 2\n\n```python\na()\n```\n",
     "docs/page.md:5: a Python block without a line above it"),
    ("docs/page.md", "# P\n\n## A part 2\n\n<!-- run by tests/gone.py -->\n```python\na()\n```\n",
     "there is no tests/gone.py"),
    ("docs/page.md", "# P\n\n## A part 2\n\n<!-- run by backend/a.cc -->\n```python\na()\n```\n",
     "without a line above it"),
    ("docs/page.md", "# P\n\n## A part 2\n\n<!-- run: 1 rank -->\n```python\na(\n```\n", "docs/page.md:7: "),
    ("docs/page.md",
     "# P\n\n## A part 2\n\n<!-- run: 1 rank -->\n```python\nimport a\nb = [c for c in a.d]\nprint(b, f(e=1))\n```\n",
     "docs/page.md:6: no whole program: nothing defines f"),
    ("docs/page.md", "# P\n\n## A part 2\n\n<!-- run: 1 rank; before:\nimport a\n-->\n```python\na()\n```\n",
     "without a line above it"),
    ("docs/page.md", "# P\n\n## A part 2\n\n<!-- excerpt of python/shardwire/run.py -->\n```python\na()\n```\n",
     "says which program it is of"),
    ("docs/page.md", "# P\n\n## A part 2\n\n* A point.\n* " + "`a b` word " * 20 + "\n  and one more. Short.\n",
     "docs/page.md:6: a sentence of 43 words"),
])
def test_docs_finds_what_is_not(tmp_path, name, text, words):
    found = docs_findings(tmp_path, **{name: text})
    assert len(found) == 1 and words in found[0], found


def test_docs_counts_no_words_of_code_and_ends_sentences_where_they_end(tmp_path):
    words = "word " * 25
    text = (f"# P\n\n## A part 2\n\n{words} `a. b`. {words}\n\n{words}\n\n* {words}\n* {words}\n\n| {words} | {words} "
            f"|\n|---|---|\n| {words} |\n\n```\n{words}{words}\n```\n")
    assert docs_findings(tmp_path, **{"docs/page.md": text}) == []
