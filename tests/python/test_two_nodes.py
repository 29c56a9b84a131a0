"""torchrun with two nodes: two network namespaces of this machine, joined by a pair of interfaces: only tcp reaches
across.
"""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import network_namespaces  # noqa: E402

# Debian's torch 1.13 on Python 3.11 starts no workers without these options; 2.6 asks for libuv, and was built without
# libuv.
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
REDIRECTS = ["-r", "1", "-t", "1"] if TORCH == (1, 13) else []
pytestmark = pytest.mark.skipif(TORCH == (2, 6),
                                reason="Debian 13's torchrun asks for libuv, which its torch was built without")

JOB = pathlib.Path(__file__).with_name("two_nodes_job.py")


@pytest.fixture
def nodes():
    """The names of two namespaces, which reach each other as 10.83.0.1 and 10.83.0.2."""
    with contextlib.ExitStack() as stack:
        try:
            names = stack.enter_context(network_namespaces.two_namespaces("10.83.0"))
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names


def _torchrun(nodes, folder, *words):
    """The outputs and statuses of both nodes' torchrun."""
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONPATH=os.pathsep.join(sys.path),
               SHARDWIRE_JOB_FOLDER=str(folder))
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", node, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
             "--nproc_per_node", "2", *REDIRECTS]
            + ["--node_rank", str(number), "--master_addr", "10.83.0.1", "--master_port", "29561", str(JOB), *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) for number, node in enumerate(nodes)
    ]
    try:
        said = [child.communicate(timeout=180)[0] for child in running]
    finally:
        for child in running:
            child.kill()
    return said, [child.returncode for child in running]


@pytest.mark.any_torch
def test_shared_memory_inside_and_tcp_between(nodes, tmp_path):
    said, statuses = _torchrun(nodes, tmp_path)
    assert statuses == [0, 0], "\n".join(said)
    assert {path.name for path in tmp_path.iterdir()} == {f"DONE {rank}" for rank in range(4)}, "\n".join(said)


@pytest.mark.any_torch
def test_a_rank_that_dies_is_named_on_both_nodes(nodes, tmp_path):
    said, statuses = _torchrun(nodes, tmp_path, "--kill")
    # The torchrun of the dead rank's node may end the node's other rank before this rank has looked.
    assert {"NAMED 0", "NAMED 1"} <= {path.name for path in tmp_path.iterdir()}, "\n".join(said)
    assert all(statuses)
