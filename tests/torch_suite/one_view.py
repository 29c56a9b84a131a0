"""Runs torch's own distributed tests against one backend, in this process and forked ranks, and writes a line per event
for run_suite.py.

A *view* is the backend for the tests' skip decorators: "gloo" gives the tests that torch runs on CPU tensors, "mpi" the
tests of operations that gloo lacks. The groups are made with --backend. Lines on the file descriptor --events are JSON:
["start", test] and ["end", test, outcome, text]. The tests' own output is noise and goes to stdout.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import types
import unittest
from datetime import timedelta


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--view", required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--limit", type=int, required=True, help="seconds for one test")
    parser.add_argument("--events", type=int, required=True, help="file descriptor")
    parser.add_argument("--filter", default="", help="regular expression for the tests' names")
    parser.add_argument("--without", default="", help="file with the tests not to run, one a line")
    return parser.parse_args()


def stub_expecttest():
    """Debian 12 has no expecttest; torch's test classes only derive from its TestCase."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stub = types.ModuleType("expecttest")
        stub.ACCEPT, stub.TestCase = False, unittest.TestCase
        sys.modules["expecttest"] = stub


class RuntimeName(str):
    """The backend's name for torch. In the tests' `BACKEND == "gloo"` this name equals the name of the view, so the
    tests choose CPU tensors.
    """

    def __new__(cls, name, view):
        self = super().__new__(cls, name)
        self.view = view
        return self

    def __eq__(self, other):
        return str.__eq__(self, other) or self.view == other

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def let_monitored_barrier_through(dist):
    """dist.monitored_barrier refuses every backend but gloo by name; the method of the group accepts all backends."""
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        c10d = dist.distributed_c10d
        if not c10d._rank_not_in_group(group):
            timeout = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout or timedelta(minutes=30)
            (group or c10d._get_default_group()).monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = monitored_barrier


def load_tests(options):
    """The test class of torch's distributed_test, with decorators for the view and groups for the backend."""
    stub_expecttest()
    import torch

    if torch.__version__.startswith("1."):
        # torch.distributed._shard of 1.13 cannot be imported on Python 3.11, and DDP would.
        import torch.nn.parallel._replicated_tensor_ddp_utils as replicated
        replicated._set_ddp_with_replicated_tensor = lambda value: None
    if options.backend == "shardwire" or "SHARDWIRE_AS" in os.environ:
        import shardwire  # noqa: F401: registers, and stands in
    from torch.testing._internal import common_distributed

    common_distributed.TIMEOUT_DEFAULT = options.limit
    common_distributed.TIMEOUT_OVERRIDE.clear()
    for names in common_distributed.DistTestCases.backend_feature.values():
        names.update({options.backend, options.view})
    from torch.testing._internal.distributed import distributed_test

    distributed_test.BACKEND = RuntimeName(options.backend, options.view)
    if options.backend == "shardwire":
        let_monitored_barrier_through(torch.distributed)
    # These tests look for ranges named "backend:operation".
    for listed in (distributed_test.PROFILING_SUPPORTED_BACKENDS,
                   distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        if options.backend not in listed:
            listed.append(options.backend)

    class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # torch spawns, which imports torch anew in each rank of each test: 6 s a test instead of 0.3.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TorchSuite


class Reporter(unittest.TestResult):
    def __init__(self, stream):
        super().__init__()
        self._stream = stream

    def _write(self, *event):
        self._stream.write(json.dumps(event) + "\n")
        self._stream.flush()

    def startTest(self, test):
        super().startTest(test)
        print(f"\n======== {test._testMethodName}", flush=True)
        self._write("start", test._testMethodName)

    def _end(self, test, outcome, text=""):
        self._write("end", test._testMethodName, outcome, text[-4000:])

    def addSuccess(self, test):
        self._end(test, "passed")

    def addSkip(self, test, reason):
        self._end(test, "skipped", reason)

    def addFailure(self, test, err):
        self._end(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addExpectedFailure(self, test, err):
        self._end(test, "passed")

    def addUnexpectedSuccess(self, test):
        self._end(test, "failed", "unexpected success")


def main():
    options = arguments()
    # In the caller's folder where there is one: the caller ends this process as soon as the last test has, and removes
    # what is left.
    inside = os.path.dirname(options.without) if options.without else None
    with tempfile.TemporaryDirectory(prefix="shardwire-torch-suite-", dir=inside) as folder:
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(folder, name))
        os.environ.update(BACKEND=options.view, WORLD_SIZE=str(options.world), TEMP_DIR=folder, OMP_NUM_THREADS="1")
        kind = load_tests(options)
        names = [name for name in unittest.TestLoader().getTestCaseNames(kind) if re.search(options.filter, name)]
        if options.without:
            with open(options.without) as lines:
                done = {line.strip() for line in lines}
            names = [name for name in names if name not in done]
        with os.fdopen(options.events, "w") as stream:
            stream.write(json.dumps(["tests", names]) + "\n")
            stream.flush()
            unittest.TestSuite(kind(name) for name in names).run(Reporter(stream))


if __name__ == "__main__":
    main()
