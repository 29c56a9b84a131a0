"""DeviceKernel.compile_and_load: the three patterns of the documents, messages between ranks, and calls of loaded
kernels.
"""

from __future__ import annotations

import functools
import os
import random
import re
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import shardwire
from fork_ranks import meet
from kernel_cases import AOTI, CHEAP, NO_AOTI, compile_examples, example, example_tensors
from ranks import outcome
from run_program import run_program
from shardwire import DeviceKernel
from shardwire.distributed.distribution import Slab
from shardwire.kernels import cache, pattern, tracing
from shardwire.kernels.tensor_forms import TensorForm, forms_of_arguments
from shardwire.kernels.package import decode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"
SEED = int(os.environ.get("SHARDWIRE_ORACLE_SEED", "1"))


@pytest.fixture(scope="session")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    return compile_examples(folder), folder / "kernels"


@pytest.fixture(scope="session")
def package(examples):
    """The package of ``example``, under the key of this process: settings may differ from the processes of the
    examples.
    """
    (path,) = (examples[1] / "spmd").iterdir()
    found = decode(path.read_bytes())
    args = example_tensors()  # traced here, so that all forked ranks have the modules that tracing imports
    found.key = tracing.trace(example, args, forms_of_arguments(example, args), "example", {}, False, str).package.key
    return found


@pytest.fixture
def cheap_compiler(monkeypatch, package, tmp_path):
    """Replaces the compiler, for kernels equal to ``example``: notes each call in a file, and returns the code compiled
    before.
    """
    calls = tmp_path / "calls"
    calls.write_text("")

    def compile(self):
        assert len(self.package.inputs) == 2
        with open(calls, "a") as file:
            file.write("compiled\n")
        self.package.code = package.code
        return self.package
    monkeypatch.setattr(tracing.Traced, "compile", compile)
    shardwire.clear_kernel_cache()
    return lambda: len(calls.read_text().splitlines())


@pytest.mark.any_torch
def test_the_documents_examples(examples):
    said, folder = examples
    expected = {
        ("spmd", 0): ["compiled", "True", "0", "2", "spmd", "True"],
        ("spmd", 1): ["received", "True", "1", "2", "spmd", "True"],
        ("mpmd", 0): ["memory", "True", "0", "2", "rank_0", "True"],  # the same graph as before
        ("mpmd", 1): ["memory", "True", "1", "2", "rank_1", "True"],
        ("opt_out", 0): ["compiled", "False", "0", "None", "local", "True"],
        ("opt_out", 1): ["disk", "False", "1", "None", "local", "True"],
        ("mpmd_alone", 0): ["disk", "True", "1", "2", "rank_1", "True"],
        ("alone", 0): ["disk", "False", "None", "None", "local", "True"],
    }
    assert said == expected
    assert [entry for entry in folder.rglob("*") if entry.suffix == ".tmp"] == []


@pytest.mark.any_torch
def test_the_example_of_the_page(examples):
    """The page's example on one rank finds the kernel of the examples above: the graph is the same."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    alone = {**os.environ, **CHEAP, "SHARDWIRE_KERNEL_DIR": str(examples[1])}
    script = examples[1].parent / "page.py"
    script.write_text(code)
    done = run_program([sys.executable, "-m", "shardwire.launch", "-n", "2", str(script)], env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout.count("<shardwire.DeviceKernel 'mix': 2 inputs, 1 outputs, ") == 2
            and done.stdout.count("20 calls (host): median ") == 2)
    assert done.stdout.count(", disk>") == 2


ALONE = [
    ({}, (False, False, "local")),
    ({"is_spmd": False}, (False, False, "local")),
    ({"is_spmd": False, "rank_id": 3}, (False, False, "rank_3")),
    ({"is_spmd": False, "cc_enabled": True, "rank_id": 1, "world_size": 4}, (False, True, "rank_1")),
    ({"cc_enabled": False}, (False, False, "local")),
    ({"rank_id": 1, "world_size": 4}, (False, False, "local")),
    ({"cc_enabled": True}, "ValueError: cc_enabled is True, but rank and world size are not known"),
    ({"is_spmd": False, "cc_enabled": True, "rank_id": 1},
     "ValueError: cc_enabled is True, but rank and world size are not known"),
    ({"cc_enabled": True, "rank_id": 0, "world_size": 2},
     "ValueError: is_spmd=True ships what rank 0 compiles, which needs a process group"),
    ({"rank_id": 4, "world_size": 4}, "ValueError: rank_id is 4, which is no rank of 0..3"),
    ({"world_size": 0}, "ValueError: world_size is 0"),
    ({"is_spmd": None}, "TypeError: is_spmd is None"),
    ({"cc_enabled": 1}, "TypeError: cc_enabled is 1"),
    ({"rank_id": "0"}, "TypeError: rank_id is '0'"),
]


@pytest.mark.parametrize("given, expected", ALONE)
def test_patterns_without_a_group(given, expected):
    call = {"is_spmd": True, "cc_enabled": None, "rank_id": None, "world_size": None, "group": None, **given}
    try:
        found = pattern.choose_pattern(**call)
        assert (found.ships, found.cc, found.folder) == expected
    except (TypeError, ValueError) as error:
        assert f"{type(error).__name__}: {error}".startswith(expected)


def patterns_of(rank, size):
    names = ({}, {"is_spmd": False}, {"cc_enabled": False}, {"is_spmd": False, "cc_enabled": False},
             {"rank_id": rank, "world_size": size})
    return [(found.ships, found.cc, found.rank, found.world, found.folder) for found in (pattern.choose_pattern(
        **{"is_spmd": True, "cc_enabled": None, "rank_id": None, "world_size": None, "group": None, **given})
                                                                                         for given in names)]


@pytest.mark.parametrize("size", [1, 2])
def test_patterns_in_a_group(run_ranks, size):
    for rank, found in enumerate(run_ranks(size, patterns_of)):
        together, folder = size > 1, "spmd" if size > 1 else "local"
        assert found == [(together, together, rank, size, folder), (False, together, rank, size, f"rank_{rank}"),
                         (False, False, rank, None, "local"), (False, False, rank, None, f"rank_{rank}"),
                         (together, together, rank, size, folder)]


def every_rank_compiles(rank, size, folder):
    a, b = example_tensors()
    kernel = DeviceKernel.compile_and_load(example, a, b, build_dir=folder, is_spmd=False)
    assert torch.allclose(kernel(a, b), example(a, b), atol=1e-5)
    return kernel.origin, os.path.relpath(kernel.path, folder).split(os.sep)[0], os.path.exists(kernel.path)


def test_mpmd_every_rank_compiles_into_its_own_folder(run_ranks, cheap_compiler, tmp_path):
    assert run_ranks(3, every_rank_compiles, tmp_path) == [("compiled", f"rank_{rank}", True) for rank in range(3)]
    assert cheap_compiler() == 3


# Calls.


@pytest.fixture
def kernel(cheap_compiler, tmp_path):
    a, b = example_tensors()
    return DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path)


def test_calls(kernel):
    a, b = example_tensors()
    expected = example(a, b)
    assert torch.allclose(kernel(a, b), expected, atol=1e-5)
    assert torch.allclose(kernel(inputs={"b": b, "a": a}), expected, atol=1e-5)
    out = torch.empty(2, 3).t()  # other strides than the kernel's own result
    assert kernel(inputs={"a": a, "b": b}, outputs={"output0": out})["output0"] is out
    assert torch.allclose(out, expected, atol=1e-5)
    leaf = a.clone().requires_grad_()
    assert not kernel(leaf, b).requires_grad
    assert [form.name for form in kernel.inputs] == ["a", "b"] and kernel.outputs[0].shape == (3, 2)
    assert kernel.compiler == ("aotinductor" if AOTI else "torchscript")
    mapped = [line.rstrip() for line in Path("/proc/self/maps").read_text().splitlines() if "/aotinductor" in line]
    # a killed process leaves no file of the kernel
    assert bool(mapped) == AOTI and all(line.endswith("(deleted)") for line in mapped)


@pytest.mark.skipif(AOTI, reason="AOTInductor would compile for seconds, and the results are copied in one way")
def test_results_that_are_inputs_fill_outputs_that_are_inputs(tmp_path):
    new, former, gradient = torch.ones(3), torch.zeros(3), torch.full((3,), 0.25)
    step = DeviceKernel.compile_and_load(lambda p, g: (p - g, p), new, gradient, build_dir=tmp_path, name="step")
    step(new, gradient, outputs={"output0": new, "output1": former})
    assert new.tolist() == [0.75] * 3 and former.tolist() == [1.0] * 3
    swap = DeviceKernel.compile_and_load(lambda a, b: (b, a), new, former, build_dir=tmp_path, name="swap")
    swap(new, former, outputs={"output0": new, "output1": former})
    assert new.tolist() == [1.0] * 3 and former.tolist() == [0.75] * 3


WRONG = [
    (lambda k, a, b: k(a), "ValueError: 1 tensors given, the kernel 'example' takes 2: a, b"),
    (lambda k, a, b: k(a, b, inputs={}), "TypeError: tensors are given by position and by inputs="),
    (lambda k, a, b: k(a, 3), "TypeError: 'b' is 3; give a torch.Tensor"),
    (lambda k, a, b: k(a[:2], b), "ValueError: 'a' has shape [2, 4], the kernel was compiled for [3, 4]"),
    (lambda k, a, b: k(a.double(), b), "TypeError: 'a' is torch.float64, the kernel was compiled for torch.float32"),
    (lambda k, a, b: k(a.to("meta"), b), "ValueError: 'a' lies on meta, the kernel was compiled for cpu"),
    (lambda k, a, b: k(a, b.t().contiguous().t()),
     "ValueError: 'b' has strides [1, 4], the kernel was compiled for [2, 1]"),
    (lambda k, a, b: k(a, torch._neg_view(b)), "ValueError: 'b' is a lazily conjugated or negated view"),
    (lambda k, a, b: k(inputs={"a": a}), "ValueError: inputs lacks 'b'; the kernel has 'a', 'b'"),
    (lambda k, a, b: k(inputs={"a": a, "b": b, "c": b}),
     "ValueError: inputs has the name 'c', which the kernel does not"),
    (lambda k, a, b: k(inputs=[a, b]), "TypeError: inputs is a list; give a dict of tensors by name"),
    (lambda k, a, b: k(a, b, outputs={}), "ValueError: outputs lacks 'output0'"),
    (lambda k, a, b: k(a, b, outputs={"output0": torch.empty(2)}), "ValueError: outputs['output0'] has shape [2]"),
    (lambda k, a, b: k.benchmark(mode="gpu"), "ValueError: mode is 'gpu'; give 'host' or 'device'"),
    (lambda k, a, b: k.benchmark(iterations=0), "ValueError: iterations is 0; give an int of at least 1"),
]


def test_wrong_calls_say_what_is_wrong(kernel):
    a, b = example_tensors()
    for call, expected in WRONG:
        found = outcome(call, kernel, a, b)
        assert found is not None and ": ".join(found).startswith(expected), (found, expected)


def test_benchmark(kernel):
    for mode in ("host", "device"):
        times = kernel.benchmark(mode=mode, warmup=2, iterations=7)
        assert len(times.seconds) == 7 and 0 < times.least <= times.median <= times.most and times.mode == mode
        assert str(times).startswith(f"7 calls ({mode}): median ")
    assert len(kernel.benchmark(*example_tensors(), iterations=3).seconds) == 3


# Equal kernels have one key, kernels with any difference that matters have different keys.


def key_of(kernel, *args, **settings):
    names = tuple(f"x{index}" for index in range(len(args)))
    forms = [TensorForm.of(name, tensor) for name, tensor in zip(names, args)]
    return tracing.trace(kernel, args, forms, "kernel", settings, False, lambda name: name).package.key


def scaled(a, factor=2.0):
    return a * factor


class _Permuted(torch.nn.Module):
    """torch.jit.freeze makes one constant of the index's list of tensors."""

    def __init__(self, order):
        super().__init__()
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x):
        return x[self.order]


def test_the_key_holds_the_tensors_in_a_list():
    a, _ = example_tensors()
    keys = [key_of(_Permuted(order).eval(), a) for order in ([0, 1, 2], [2, 1, 0], [0, 1, 2])]
    assert keys[0] == keys[2] != keys[1]
    weights = [[torch.full(shape, value) for shape in ((6, 4), (6, 2), (6,), (6,))] for value in (0.5, 1.0)]
    keys = [key_of(lambda x: torch.gru(x[None], torch.zeros(1, 1, 2), given, True, 1, 0.0, False, False, True)[0], a)
            for given in weights]
    assert keys[0] != keys[1]


def test_a_constant_may_be_a_lazily_conjugated_or_negated_view():
    a = torch.ones(2, dtype=torch.complex64)
    keys = [key_of(lambda x: x * table, a) for table in (a.conj(), (a * 1j).conj(), torch._neg_view(a), -a)]
    assert len(set(keys)) >= 3


def test_the_key_holds_what_matters():
    a, b = example_tensors()
    table = torch.arange(4.0)
    linear = torch.nn.Linear(4, 2)
    other = torch.nn.Linear(4, 2)
    made = [(example, (a, b)), (example, (a[:2], b)), (example, (a.double(), b.double())),
            (example, (a, b.t().contiguous().t())), (scaled, (a,)), (functools.partial(scaled, factor=3.0), (a,)),
            (lambda x: x + table, (a,)), (linear, (a,)), (other, (a,)), (lambda x: (x, x), (a,)),
            (lambda x: [x, x], (a,))]
    keys = [key_of(kernel, *args) for kernel, args in made]
    assert len(set(keys)) == len(keys)
    assert [keys[index] for index in (0, 6, 7)] == [key_of(*made[index][:1], *made[index][1]) for index in (0, 6, 7)]
    assert key_of(functools.partial(scaled, factor=2.0), a) == key_of(scaled, a)  # the graph counts, not the source
    table += 1
    assert key_of(lambda x: x + table, a) != keys[6]
    if AOTI:
        assert key_of(example, a, b, **{"cpp.simdlen": 256}) != keys[0]


def looks_at_values(a):
    return a + 1 if a.sum() > 0 else a - 1


def communicates(a):
    dist.barrier()  # torch 2.13 records all_reduce as the functional op; a barrier cannot be recorded
    return a + 1


def binds_an_op(a, op=None):
    op.bind([a], [a])
    return a + 1


def moves_an_array(a):
    return shardwire.distributed.redistribute(a, Slab.X, Slab.Y)


def gathers_parts(a):
    return shardwire.distributed.all_gather_v(a)


def compiles_an_op(a):
    box = {"offset": [0, 0], "shape": [3, 4]}
    shardwire.compile_op(None, shape=[3, 4], dtype=torch.float32, inputs=[box], outputs=[box])
    return a + 1


def meets_the_ranks(a):
    shardwire.symm.barrier()
    return a + 1


def calls_an_op(a, op=None):
    op([a], [a]).wait()
    return a + 1


def changes_its_buffer(a, module=torch.nn.BatchNorm1d(4)):
    return module(a)


def test_kernels_that_cannot_be_compiled(run_ranks, tmp_path):
    a, _ = example_tensors()
    for kernel, kind, text in (
            (looks_at_values, "KernelError", "" if AOTI else "the kernel looks at values of its tensors"),
            (lambda a: {"a": 3}, "TypeError", "the kernel returns 3 as 'a'"),
            (lambda a: undefined, "KernelError", "could not be traced: NameError")):  # noqa: F821
        found = outcome(DeviceKernel.compile_and_load, kernel, a, build_dir=tmp_path)
        assert found is not None and found[0] == kind and text in found[1], found
    for args, text in (((3, a), "kernel is 3; give a function"), ((torch.nn.Linear, a), "give a function of tensors"),
                       ((example, a), "cannot be called with 1 tensors"),
                       ((scaled, a, 2.0), "argument 'factor' is 2.0; a kernel takes tensors"),
                       ((scaled, a.to_sparse()), "a kernel takes dense tensors")):
        found = outcome(DeviceKernel.compile_and_load, *args, build_dir=tmp_path)
        assert found is not None and found[0] == "TypeError" and text in found[1], found
    found = outcome(DeviceKernel.compile_and_load, scaled, a, target="cuda", build_dir=tmp_path)
    assert found is not None and "target is 'cuda', but the tensors lie on cpu" in found[1]
    if AOTI:
        module = torch.nn.BatchNorm1d(4)
        found = outcome(DeviceKernel.compile_and_load, module, a, build_dir=tmp_path)
        assert found is not None and "changes the buffer" in found[1] and module.num_batches_tracked == 0


def eager_communication(rank, size):
    a, _ = example_tensors()
    box = {"offset": [0, 0], "shape": [3, 4]}
    op = shardwire.compile_op(None, shape=[3, 4], dtype=torch.float32, inputs=[box] if rank == 0 else [], outputs=[box])
    kernels = [communicates, functools.partial(binds_an_op, op=op), moves_an_array, gathers_parts, compiles_an_op,
               meets_the_ranks] + ([] if AOTI else [functools.partial(calls_an_op, op=op)])
    found = [outcome(DeviceKernel.compile_and_load, kernel, a) for kernel in kernels]
    dist.all_reduce(torch.ones(2))  # the group is whole
    return found


def test_communication_that_tracing_would_run_is_refused_on_all_ranks(run_ranks):
    found = run_ranks(2, eager_communication)
    assert found[0] == found[1]
    calls = ["torch.distributed.barrier", "bind of a compiled op", "shardwire.distributed.redistribute",
             "shardwire.distributed.all_gather_v", "compile_op", "shardwire.symm.barrier"]
    calls += [] if AOTI else ["a compiled op"]  # torch.jit.trace cannot record one
    assert len(found[0]) == len(calls)
    for (kind, text), call in zip(found[0], calls):
        assert kind == "UnsupportedError" and f"a kernel cannot call {call}: " in text, text


# Ranks that differ: all ranks raise the same error, and the group still works.

FACTOR = 1.0
EDGES = (0, (1.0, "mean", torch.float32))


class Scaled(torch.nn.Module):
    def forward(self, a):
        return a * FACTOR if EDGES[0] == 0 else a



def misuse(rank, size, which, folder):
    a, b = example_tensors()
    kernel, args, named = example, [a, b], {}
    if which == "kernel" and rank == 1:
        kernel = 3
    if which == "shapes":
        args[0] = a[:2] if rank == 2 else a
    if which == "count":
        kernel, args = (scaled, [a]) if rank == 1 else (kernel, args)
    if which == "closure":
        kernel = functools.partial(scaled, factor=float(rank))
        args = [a]
    if which == "global":
        def kernel(a):
            return a * rank
        args = [a]
    if which == "module's global":
        globals()["FACTOR"] = float(rank // 2)
        kernel, args = torch.nn.Sequential(torch.nn.ReLU(), Scaled()), [a]
    if which == "tuple":
        globals()["EDGES"] = (0, (rank, "mean", torch.float32))
        kernel, args = Scaled(), [a]
    if which == "parameters":
        torch.manual_seed(rank)
        kernel, args = torch.nn.Linear(4, 2), [a]
    if which == "rank_id":
        named["rank_id"] = 0
    if which == "world_size" and rank == 2:
        named["world_size"] = 9
    if which == "timeout" and rank == 1:
        named["timeout"] = -1
    if which == "folder" and rank == 1:
        folder = f"{folder}\udcff"
    if which == "cached":
        named["use_cached_if_exists"] = rank != 1
    if which == "tracing":
        kernel, args = (lambda a: undefined), [a]  # noqa: F821
    found = outcome(DeviceKernel.compile_and_load, kernel, *args, build_dir=folder, **named)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == size
    return found


MISUSES = {
    "kernel": ("TypeError", "rank 1: kernel is 3; give a function"),
    "shapes": ("MismatchError", ("ranks 0 and 2 disagree about the tensor 'a': torch.float32[3, 4] on cpu, strides [4, "
                                 "1] and torch.float32[2, 4]")),
    "count": ("MismatchError", "ranks 0 and 1 disagree about the number of tensors: 2 and 1"),
    "closure": ("MismatchError", "ranks 0 and 1 disagree about the bound argument 'factor': 0.0 and 1.0"),
    "global": ("MismatchError", "ranks 0 and 1 disagree about the variable 'rank', which the kernel reads: 0 and 1"),
    "module's global": ("MismatchError", ("ranks 0 and 2 disagree about the variable 'FACTOR', which Scaled.forward "
                                          "reads: 0.0 and 1.0")),
    "tuple": ("MismatchError", ("ranks 0 and 1 disagree about the variable 'EDGES', which Scaled.forward reads: (0, "
                                "(0, 'mean', torch.float32)) and (0, (1, 'mean', torch.float32))")),
    "parameters": ("MismatchError", "disagree about the parameter 'weight'"),
    "rank_id": ("ValueError", ("rank 1: rank_id is 0, but in the group it is 1; leave it out where there is a group (1 "
                               "more of 3 ranks have errors too)")),
    "world_size": ("ValueError", "rank 2: world_size is 9, but in the group it is 3"),
    "timeout": ("ValueError", "rank 1: timeout is -1"),
    "folder": ("ValueError", "which has half of a surrogate pair and is no text; give another"),
    "cached": ("MismatchError", "ranks 0 and 1 disagree about use_cached_if_exists: True and False"),
    "tracing": ("KernelError", "rank 0: the kernel could not be traced: NameError"),
}


@pytest.mark.parametrize("which", MISUSES)
def test_a_misuse_is_one_error_on_all_ranks(run_ranks, tmp_path, which):
    found = run_ranks(3, misuse, which, tmp_path)
    kind, text = MISUSES[which]
    assert found[0] is not None and found[0][0] == kind and text in found[0][1], found[0]
    assert found == [found[0]] * 3


def compiler_fails(rank, size, folder):
    a, b = example_tensors()
    found = outcome(DeviceKernel.compile_and_load, example, a, b, build_dir=folder, use_cached_if_exists=False)
    dist.all_reduce(torch.ones(1))
    return found


def test_the_failure_of_rank_0s_compiler_is_everyones(run_ranks, monkeypatch, tmp_path):
    def no_compiler(*args, **named):
        raise OSError("g++: fatal error: no input files")
    monkeypatch.setattr(torch._inductor if AOTI else torch.jit, "aoti_compile_and_package" if AOTI else "save",
                        no_compiler)
    found = run_ranks(3, compiler_fails, tmp_path)
    assert (found[0] is not None and found[0][0] == "KernelError" and "rank 0: the kernel " in found[0][1]
            and "g++: fatal error: no input files" in found[0][1])
    assert found == [found[0]] * 3


def test_what_torchs_compiler_lacks_is_named(run_ranks, monkeypatch, tmp_path):
    def lacks_setuptools(*args, **named):
        # as Debian 13's torch does without python3-setuptools
        raise ModuleNotFoundError("No module named 'setuptools.command'", name="setuptools.command")
    monkeypatch.setattr(torch._inductor if AOTI else torch.jit, "aoti_compile_and_package" if AOTI else "save",
                        lacks_setuptools)
    found = run_ranks(2, compiler_fails, tmp_path)
    assert (found[0] is not None and found[0][0] == "KernelError"
            and "needs the Python package 'setuptools', which is not there; install it (pip install setuptools; on "
                "Debian: apt-get install python3-setuptools)" in found[0][1]), found[0]
    assert found == [found[0]] * 2


def compiler_is_killed(rank, size, folder):
    if rank == 0:
        tracing.Traced.compile = lambda self: os._exit(9)
    a, b = example_tensors()
    return outcome(DeviceKernel.compile_and_load, example, a, b, build_dir=folder, use_cached_if_exists=False)


def ends_alone(rank, size, folder):
    found = compiler_is_killed(rank, size, folder)
    dist.destroy_process_group()
    return found


def test_a_rank_0_that_dies_while_it_compiles_is_named(run_ranks, tmp_path):
    found = run_ranks(3, ends_alone, tmp_path, may_die=(0,))
    assert [each[0] for each in found[1:]] == ["PeerFailedError"] * 2 and all("rank 0" in each[1] for each in found[1:])


def never_comes(rank, size, absent, folder):
    found = None
    if rank != absent:
        a, b = example_tensors()
        meet("here", size - 1)
        found = outcome(DeviceKernel.compile_and_load, example, a, b, build_dir=folder, timeout=2)
    store = dist.distributed_c10d._get_default_store()
    store.add("waited", 1)
    while store.add("waited", 0) < size:
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_never_comes_is_named(run_ranks, tmp_path, absent):
    found = run_ranks(3, lambda rank, size: leave(never_comes(rank, size, absent, tmp_path)))
    assert found[absent] is None
    for rank in {0, 1, 2} - {absent}:
        assert found[rank][0] == "TimeoutError" and f"rank {absent}" in found[rank][1], found[rank]


def leave(result):
    dist.destroy_process_group()
    return result


# Different caches.


def with_caches(rank, size, cases, package_bytes, folder):
    a, b = example_tensors()
    package = decode(package_bytes)
    found = []
    for number, (in_memory, on_disk, use_cached) in enumerate(cases):
        build_dir = folder / f"case{number}" / f"host{rank}"
        shardwire.clear_kernel_cache()
        if rank in in_memory:
            cache.remember(package)
        if rank in on_disk:
            cache.store(str(build_dir / "spmd"), package)
        dist.barrier()
        kernel = DeviceKernel.compile_and_load(example, a, b, build_dir=build_dir, use_cached_if_exists=use_cached)
        assert torch.allclose(kernel(a, b), example(a, b), atol=1e-5)
        found.append(
            (kernel.origin, kernel.key == package.key, list(cache._kept) == [kernel.key], os.path.exists(kernel.path)))
    return found


def test_ranks_with_different_caches_agree(run_ranks, cheap_compiler, package, tmp_path):
    print("seed", SEED)
    chance = random.Random(SEED)
    size = 4
    subset = lambda: {rank for rank in range(size) if chance.random() < chance.choice([0.2, 0.5, 0.9])}  # noqa: E731
    cases = [(set(), set(), True), ({0, 1, 2, 3}, set(), True), (set(), {0, 1, 2, 3}, True), ({3}, set(), True),
             (set(), {0, 1, 2, 3}, False)]
    cases += [(subset(), subset(), chance.random() < 0.8) for _ in range(5 if AOTI else 20)]
    found = run_ranks(size, with_caches, cases, package.encode(), tmp_path)
    compiles = 0
    for number, (in_memory, on_disk, use_cached) in enumerate(cases):
        have = (in_memory | on_disk) if use_cached else set()
        compiles += not have
        for rank in range(size):
            expected = ("memory" if rank in in_memory & have else "disk" if rank in have else "compiled"
                        if rank == 0 and not have else "received")
            assert found[rank][number] == (expected, True, True, True), (
                number, rank, cases[number], found[rank][number])
    assert cheap_compiler() == compiles


def test_a_kernel_that_is_found_in_memory_is_written_to_a_folder_that_lacks_it(cheap_compiler, tmp_path):
    a, b = example_tensors()
    kernels = [DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path / which) for which in ("one", "another")]
    assert [kernel.origin for kernel in kernels] == ["compiled", "memory"] and cheap_compiler() == 1
    assert (kernels[0].path != kernels[1].path
            and Path(kernels[1].path).read_bytes() == Path(kernels[0].path).read_bytes())


def test_use_cached_false_replaces_what_was_kept(cheap_compiler, tmp_path):
    a, b = example_tensors()
    first = DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path)
    before = os.stat(first.path).st_ino
    again = DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path)
    anew = DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path, use_cached_if_exists=False)
    assert ([kernel.origin for kernel in (first, again, anew)] == ["compiled", "memory", "compiled"]
            and cheap_compiler() == 2)
    assert first.path == anew.path and os.stat(anew.path).st_ino != before


def test_a_package_that_torch_cannot_load_is_compiled_anew(cheap_compiler, package, tmp_path):
    broken = decode(package.encode())
    broken.code = b"no archive"
    folder = tmp_path / "local"
    cache.store(str(folder), broken)
    a, b = example_tensors()
    kernel = DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path)
    assert kernel.origin == "compiled" and torch.allclose(kernel(a, b), example(a, b), atol=1e-5)
    assert decode(Path(kernel.path).read_bytes()).code == package.code


class Example(torch.nn.Module):
    def forward(self, a, b):
        return example(a, b)


@pytest.mark.skipif(not AOTI, reason=NO_AOTI)
def test_an_exported_program_brings_its_own_tensors(cheap_compiler, tmp_path):
    a, b = example_tensors()
    program = torch.export.export(Example(), (a, b))
    kernel = DeviceKernel.compile_and_load(program, build_dir=tmp_path)
    assert ([form.name for form in kernel.inputs] == ["a", "b"]
            and torch.allclose(kernel(a, b), example(a, b), atol=1e-5))
    assert DeviceKernel.compile_and_load(example, a, b, build_dir=tmp_path).origin == "memory"  # the same graph
