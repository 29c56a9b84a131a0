"""The verdicts of ./run suite: which results count as bad, what a listed exception excuses, and the verdict of a test
that hangs.
"""

import importlib.util
import pathlib
import types

import pytest

PATH = pathlib.Path(__file__).resolve().parents[1] / "torch_suite" / "run_suite.py"
spec = importlib.util.spec_from_file_location("run_suite", PATH)
run_suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_suite)
Result, Rule = run_suite.Result, run_suite.Rule
PASSED, SKIPPED, FAILED = Result("passed", ""), Result("skipped", "no GPU"), Result("failed", "ValueError: words")


def bad(results, reference=None, rules=()):
    verdict = run_suite.Verdict({rule.test: rule for rule in rules})
    verdict.judge(results, reference)
    return verdict.bad, verdict.excused


@pytest.mark.parametrize("ours, gloos, expected",
                         [(PASSED, PASSED, 0), (PASSED, FAILED, 0), (SKIPPED, SKIPPED, 0), (FAILED, PASSED, 1),
                          (FAILED, FAILED, 0), (FAILED, None, 1), (SKIPPED, PASSED, 1)])
def test_a_test_is_bad(ours, gloos, expected):
    assert bad({"t": ours}, None if gloos is None else {"t": gloos}) == (expected, 0)


def test_an_exception_excuses_its_own_failure_only():
    assert bad({"t": FAILED}, {"t": PASSED}, [Rule("t", ".*", "words", "why")]) == (0, 1)
    assert bad({"t": FAILED}, {"t": PASSED}, [Rule("t", ".*", "others", "why")]) == (1, 0)
    assert bad({"t": FAILED}, {"t": PASSED}, [Rule("u", ".*", "words", "why")]) == (1, 0)


def test_an_exception_that_passes_is_stale(capsys):
    assert bad({"t": PASSED}, None, [Rule("t", ".*", "words", "why")]) == (1, 0)
    assert "STALE" in capsys.readouterr().out
    assert bad({"t": SKIPPED}, None, [Rule("t", ".*", "words", "why")]) == (0, 0)


def test_the_list_can_be_read():
    for version in ("1.13", "2.6", "2.13"):
        for rule in run_suite.read_rules(version).values():
            assert rule.test.startswith("test_") and rule.reason
    # An exception for one version of Python excuses no torch with another Python.
    assert "test_gather_object" in run_suite.read_rules("2.6", "3.13")
    assert not any("test_gather_object" in run_suite.read_rules(*pair)
                   for pair in (("2.6", "3.11"), ("2.13", "3.13"), ("1.13", "3.11")))
    # Where shardwire stands in for gloo no test gets another name.
    assert ("test_ddp_logging_data_cpu" not in run_suite.read_rules("2.13", alias="gloo")
            and "test_gather_object" in run_suite.read_rules("2.6", "3.13", "gloo"))
    assert ("test_ddp_logging_data_cpu" not in run_suite.read_rules("1.13")
            and "test_ddp_logging_data_cpu" in run_suite.read_rules("2.13"))


@pytest.mark.parametrize("alive", [True, False])
def test_a_hang_is_a_failure_with_a_name_and_the_rest_goes_on(alive):
    events = iter([["start", "a"], ["end", "a", "passed", ""], ["start", "b"], None])
    child = types.SimpleNamespace(event=lambda seconds: next(events),
                                  process=types.SimpleNamespace(poll=lambda: None if alive else -6))
    left, results = ["a", "b", "c"], {}
    run_suite.run_child(child, left, 100, results)
    assert results["a"].outcome == "passed" and results["b"].outcome == "failed" and left == ["c"]
    assert ("no end after 130 s" if alive else "died") in results["b"].text


def test_which_tests_may_run_as_mpi():
    assert run_suite.may_run("test_all_to_all", "Only MPI supports all_to_all", 2)
    assert not run_suite.may_run("test_all_to_all_group", "Only MPI supports all_to_all", 2)
    assert run_suite.may_run("test_all_to_all_group", "Only MPI supports all_to_all", 3)
    assert not run_suite.may_run("test_reduce_sum_cuda", "CUDA is not available.", 3)
