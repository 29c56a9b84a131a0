"""The checks check: each finds what it is there to find, and is silent about what is allowed."""

import collections
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import layers
import sizes
import suite

ALLOWED = [
    ("ops/plan/plan.cc", '#include "ops/plan/plan.h"\n#include <vector>\n#include "shardwire/types.h"\n#include <fmt/format.h>\n'),
    ("backend/exec/executor.cc", '#include "ops/plan/plan.h"\n#include "backend/memory/shared_heap.h"\n#include <thread>\n'),
    ("backend/communicator.cc", '#include "backend/exec/executor.h"\n'),
    ("backend/c10d/process_group.cc", "#include <torch/csrc/distributed/c10d/Backend.hpp>\n"),
    ("backend/c10d/torch_compat.h", "#if TORCH_VERSION_MAJOR < 2\n#endif\n"),
    ("backend/transport/rdma/verbs.cc", "#include <infiniband/verbs.h>\n"),
    ("backend/transport/mpi/mpi_connection.cc", "#include <mpi.h>\n"),
    ("bench/alltoallw.cc", "#include <mpi.h>\n"),
    ("backend/transport/proof.cc", "#include <openssl/hmac.h>\n"),
    ("backend/exec/stream_cuda.cc", "#include <cuda_runtime.h>\n"),
    ("ops/plan/plan.cc", "// #include <thread>\n/* #include <torch/torch.h>\n*/\n"),
    ("include/shardwire/c10d.h", '#include "backend/c10d/process_group_shardwire.h"\n'),
    ("docs/examples/cpp/a.cc", "#include <shardwire/c10d.h>\n#include <torch/torch.h>\n"),
    ("backend/transport/shm/ring.cc", '#include "backend/memory/shared_heap.h"\n'),
    ("python/csrc/bind_op.cc", '#include <pybind11/pybind11.h>\n#include "backend/c10d/process_group.h"\n'),
]
REFUSED = [
    ("include/shardwire/types.h", '#include "ops/plan/plan.h"\n', "not below it"),
    ("include/shardwire/types.h", "#include <fmt/format.h>\n", "public headers"),
    ("ops/plan/plan.cc", '#include "backend/base/fd.h"\n', "not below it"),
    ("ops/reduce/kernel.cc", '#include "ops/collectives/builders.h"\n', "not below it"),
    ("backend/memory/shared_heap.cc", '#include "backend/transport/transport.h"\n', "not below it"),
    ("include/shardwire/communicator.h", '#include "shardwire/c10d.h"\n', "sees torch"),
    ("backend/communicator.cc", '#include "shardwire/c10d.h"\n', "sees torch"),
    ("ops/plan/plan.cc", "#include <thread>\n", "I/O, threads or clocks"),
    ("ops/reduce/kernel.cc", "#include <chrono>\n", "I/O, threads or clocks"),
    ("ops/reduce/kernel.cc", "#include <sys/mman.h>\n", "I/O, threads or clocks"),
    ("backend/transport/shm/ring.cc", '#include "ops/plan/plan.h"\n', "not below it"),
    ("backend/transport/shm/ring.cc", '#include "backend/exec/executor.h"\n', "not below it"),
    ("backend/base/fd.cc", "#  include <torch/torch.h>\n", "torch, pybind11 or Python"),
    ("backend/exec/executor.cc", "#include <c10/util/intrusive_ptr.h>\n", "torch, pybind11 or Python"),
    ("tests/ops/plan/plan_test.cc", "#include <ATen/ATen.h>\n", "torch, pybind11 or Python"),
    ("backend/c10d/process_group.cc", "#if TORCH_VERSION_MAJOR < 2\n", "torch_compat.h"),
    ("backend/c10d/process_group.cc", '#include "python/csrc/module.h"\n', "not below it"),
    ("backend/transport/shm/ring.cc", "#include <infiniband/verbs.h>\n", "RDMA"),
    ("backend/transport/tcp/socket.cc", "#include <mpi.h>\n", "mpi.h"),
    ("backend/transport/link.cc", "#include <openssl/hmac.h>\n", "OpenSSL"),
    ("backend/exec/executor.cc", "#include <cuda_runtime.h>\n", "CUDA"),
    ("ops/plan/plan.cc", '#include "plan.h"\n', "repository root"),
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
    assert layers.findings_of("ops/plan/plan.cc", "/* a\n b */\n\n#include <thread>\n")[0].startswith("ops/plan/plan.cc:4: ")


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
    text = "A::A(int a)\n    : a_(a),\n      b_(a) {\n  if (a) {\n    b_ = 2;\n  }\n}\n\nint g(int a,\n      int b) {\n  return a;\n}\n"
    assert list(sizes.cpp_functions(text)) == [(1, 7), (9, 4)]


def test_sizes_measures_python_functions():
    text = "def f():\n" + "    pass\n" * 100
    assert "a function of 101 lines" in sizes.measure("python/x.py", text)[0][0]


def test_suite_counts_reports(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="b"/><testcase classname="a" name="c"><failure message="no"/></testcase>'
        '<testcase classname="a" name="d"><skipped message="no torch"/></testcase><testcase classname="a" name="e" status="notrun"/>'
        "</testsuite></testsuites>"
    )
    counted, failed, skips = suite.junit(report)
    assert counted == (1, 1, 2) and failed[0].startswith("a.c") and skips["no torch"] == 1


def test_suite_fails_a_part_that_found_no_test(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    assert suite.pytest("nothing", tmp_path, None, sys.executable, None).failed == 1


def test_suite_ends_a_part_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    status, log = suite.run("hang", [sys.executable, "-c", "import time; time.sleep(60)"], limit=0.5)
    assert status == 124 and "too long" in log.read_text()


def test_suite_tells_what_failed_once_more_at_its_end(monkeypatch, capsys):
    def failing(_):
        suite.tell_outcome(None, ["a.c\n      the reason"], collections.Counter())
        return suite.FAIL

    monkeypatch.setattr(suite, "PARTS", {"bad": failing, "good": lambda _: suite.PASS})
    monkeypatch.setattr(suite, "complaints", [])
    monkeypatch.setattr(sys, "argv", ["suite.py"])
    assert suite.main() == 1
    end = capsys.readouterr().out.partition("== what failed")[2]
    assert "FAIL a.c\n      the reason" in end and end.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
