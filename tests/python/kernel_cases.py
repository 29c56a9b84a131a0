"""Kernels of the tests, and the script that compiles them once for all tests of a session: the examples of the
documents, in separate processes.

AOTInductor needs seconds for a kernel, so every other test finds these kernels on disk, or uses ``cheap_compiler``.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
from run_program import run_program

from shardwire.kernels import machine

AOTI = machine.HAS_AOTI
NO_AOTI = f"torch {torch.__version__} has no AOTInductor; it needs torch 2.6"

# for torch's inductor: half of a compile is the wrapper around so small a kernel
CHEAP = {"AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0"}


def example(a, b):
    return torch.relu(a @ b) + 1


def example_tensors(rows=3):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(rows, 4, generator=generator), torch.randn(4, 2, generator=generator)


# The blocks are the document's; `my_kernel` and the tensors are ours.
SPMD = """\
import torch.distributed as dist

dist.init_process_group("shardwire")

kernel = DeviceKernel.compile_and_load(my_kernel, input_a, input_b)
"""
MPMD = """\
# With torch.distributed (CC auto-detected)
kernel = DeviceKernel.compile_and_load(
    my_kernel, input_a, input_b,
    is_spmd=False,
)
"""
MPMD_ALONE = """\
# Without torch.distributed (explicit CC)
kernel = DeviceKernel.compile_and_load(
    my_kernel, input_a, input_b,
    is_spmd=False,
    cc_enabled=True,
    rank_id=my_rank,
    world_size=total_workers,
)
"""
OPT_OUT = """\
# Opt out of CC in a distributed setting
kernel = DeviceKernel.compile_and_load(my_kernel, input_a, cc_enabled=False)
"""
ALONE = """\
# Single device (no torch.distributed)
kernel = DeviceKernel.compile_and_load(my_kernel, input_a)
"""

_START = """\
import os, sys, torch, shardwire
from shardwire import DeviceKernel
sys.path.insert(0, {tests!r})
from kernel_cases import example, example_tensors
input_a, input_b = example_tensors()
rank = int(os.environ.get("RANK", 0))

def report(block, inputs, expected):
    found = kernel(*inputs)
    for name in expected:
        assert torch.allclose(found[name] if isinstance(found, dict) else found, expected[name], atol=1e-5)
    words = ("REPORT", block, rank, kernel.origin, kernel.cc_enabled, kernel.rank_id, kernel.world_size, os.path.basename(os.path.dirname(kernel.path)), os.path.exists(kernel.path))
    sys.stdout.write(" ".join(map(str, words)) + chr(10))  # at once: ranks share the pipe

def of_one(a):
    return {{"square": a @ a.t(), "other": a.t() @ a}}  # calls only, no loop of inductor's own: quick to compile
both = {{"output0": example(input_a, input_b)}}
one = of_one(input_a)
my_kernel = example
"""
_TOGETHER = _START + """\
{spmd}
report("spmd", (input_a, input_b), both)
dist.barrier()
{mpmd}
report("mpmd", (input_a, input_b), both)
my_kernel = of_one
if rank == 1:
    dist.barrier()  # rank 0 compiles, and this rank finds it
{opt_out}
if rank == 0:
    dist.barrier()
report("opt_out", (input_a,), one)
dist.barrier()
dist.destroy_process_group()
"""
_APART = _START + """\
my_rank, total_workers = 1, 2
shardwire.clear_kernel_cache()
{mpmd_alone}
report("mpmd_alone", (input_a, input_b), both)
my_kernel = of_one
{alone}
report("alone", (input_a,), one)
"""


def reports(output):
    """The lines of ``report``: (block, rank) -> the rest."""
    lines = [line.split()[1:] for line in output.splitlines() if line.startswith("REPORT")]
    return {(words[0], int(words[1])): words[2:] for words in lines}


def compile_examples(folder: Path) -> dict[tuple[str, int], list[str]]:
    """Runs the documents' examples, first together and then alone; afterwards ``folder`` has the packages."""
    environment = {**os.environ, "SHARDWIRE_KERNEL_DIR": str(folder / "kernels"), **CHEAP}
    blocks = {"tests": str(Path(__file__).parent), "spmd": SPMD, "mpmd": MPMD, "opt_out": OPT_OUT,
              "mpmd_alone": MPMD_ALONE, "alone": ALONE}
    found = {}
    for name, script, command in (("together.py", _TOGETHER, ["-m", "shardwire.launch", "-n", "2"]),
                                  ("apart.py", _APART, [])):
        (folder / name).write_text(script.format(**blocks))
        if name == "apart.py":  # the first script compiled its kernels: the graphs are the same
            for source in (folder / "kernels" / "spmd").iterdir():
                (folder / "kernels" / "rank_1").mkdir(exist_ok=True)
                shutil.copy(source, folder / "kernels" / "rank_1")
        done = run_program([sys.executable, *command, str(folder / name)], 300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        found.update(reports(done.stdout))
    return found
