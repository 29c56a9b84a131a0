"""The eight examples of the seed document of compile_op, run unchanged.

The blocks are the document's text. Two words change before a run: the import's name, and the device of the last block.
The code after each block in a test (to make tensors and call the op where the block stops at compile_op, and to check)
is ours.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import group, run_ranks

EXAMPLE_1 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")

if group.rank() == 0:
    # Rank 0 sends a 2×4 tensor
    inputs = [{'offset': [0, 0], 'shape': [2, 4]}]
    outputs = None
else:
    # Rank 1 receives a 2×4 tensor
    inputs = None
    outputs = [{'offset': [0, 0], 'shape': [2, 4]}]

# Compile the operation (collective call - all ranks must participate)
op = moodist.compile_op(
    group,
    shape=[2, 4],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs
)

# Create tensors and execute the operation
if group.rank() == 0:
    input_tensor = torch.randn(2, 4)
    op([input_tensor], [])
else:
    output_tensor = torch.empty(2, 4)
    op([], [output_tensor])
    # output_tensor now contains the data from rank 0
"""  # Point-to-Point Transfer

EXAMPLE_2 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")
rank = group.rank()

if rank == 0:
    # Rank 0 sends from a single contiguous tensor
    inputs = [{'offset': [0, 0], 'shape': [6, 4]}]
    outputs = None
else:
    # Ranks 1, 2, 3 each receive their slice
    inputs = None
    outputs = [{'offset': [(rank-1)*2, 0], 'shape': [2, 4]}]

op = moodist.compile_op(
    group,
    shape=[6, 4],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs
)
"""  # Scatter Pattern

EXAMPLE_3 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")
rank = group.rank()

if rank == 0:
    # Rank 0 receives all slices into a single contiguous tensor
    inputs = None
    outputs = [{'offset': [0, 0], 'shape': [6, 4]}]
else:
    # Ranks 1, 2, 3 each send their slice
    inputs = [{'offset': [(rank-1)*2, 0], 'shape': [2, 4]}]
    outputs = None

op = moodist.compile_op(
    group,
    shape=[6, 4],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs
)
"""  # Gather Pattern

EXAMPLE_4 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")
rank = group.rank()
size = group.size()

# Each rank contributes one slice and receives all slices
inputs = [{'offset': [rank*2, 0], 'shape': [2, 4]}]
outputs = [{'offset': [0, 0], 'shape': [size*2, 4]}]

op = moodist.compile_op(
    group,
    shape=[size*2, 4],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs
)
"""  # All-Gather Pattern

EXAMPLE_5 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")
rank = group.rank()
size = group.size()

# Each rank contributes the full tensor
inputs = [{'offset': [0, 0], 'shape': [size*2, 4]}]

# Each rank receives a different slice
outputs = [{'offset': [rank*2, 0], 'shape': [2, 4]}]

op = moodist.compile_op(
    group,
    shape=[size*2, 4],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs,
    reduction='sum'  # Combine overlapping inputs
)
"""  # Reduce-Scatter Pattern

EXAMPLE_6 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")
rank = group.rank()
size = group.size()

# Send to next rank (rank+1 % size), receive from previous (rank-1 % size)
inputs = [{'offset': [(rank+1) % size * 2, 0], 'shape': [2, 4]}]
outputs = [{'offset': [rank * 2, 0], 'shape': [2, 4]}]

op = moodist.compile_op(
    group,
    shape=[size*2, 4],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs
)
"""  # Custom Pattern - Ring Communication

EXAMPLE_7 = """\
import torch
import moodist

group = moodist.find_process_group("my_group")
rank = group.rank()

# All ranks contribute data to the same global location
inputs = [{'offset': [0, 0], 'shape': [4, 8]}]

# All ranks receive the reduced result
outputs = [{'offset': [0, 0], 'shape': [4, 8]}]

op = moodist.compile_op(
    group,
    shape=[4, 8],
    dtype=torch.float32,
    inputs=inputs,
    outputs=outputs,
    reduction='sum'  # Sum all inputs across ranks
)
"""  # All-Reduce Pattern

EXAMPLE_8 = """\
import torch
import moodist
from torch.distributed.tensor import DTensor, DeviceMesh, Shard, distribute_tensor

group = moodist.find_process_group("my_group")

# Create a device mesh (4 ranks in a row)
mesh = DeviceMesh("cuda", torch.arange(4))

# Create input DTensor sharded along dim 0 (rows)
global_tensor = torch.randn(8, 16, device="cuda")
input_dtensor = distribute_tensor(global_tensor, mesh, [Shard(0)])

# Create output DTensor sharded along dim 1 (columns)
output_dtensor = distribute_tensor(torch.empty(8, 16, device="cuda"), mesh, [Shard(1)])

# Compile redistribution operation - shape/dtype derived from DTensors
op = moodist.compile_op(
    group,
    inputs=[input_dtensor],
    outputs=[output_dtensor]
)

# Execute with local tensors
op([input_dtensor.to_local()], [output_dtensor.to_local()])
# output_dtensor now has the same data but sharded along columns
"""  # DTensor Redistribution


def run_block(text: str) -> dict[str, Any]:
    """Runs a block as a separate script; the variables of the script."""
    variables: dict[str, Any] = {"__name__": "__example__"}
    exec(compile(text.replace("moodist", "shardwire").replace('"cuda"', '"cpu"'), "<example>", "exec"), variables)
    return variables


def filled(rank: int, *shape: int) -> torch.Tensor:
    """Values that encode the rank and the element."""
    numel = 1
    for extent in shape:
        numel *= extent
    return torch.arange(numel, dtype=torch.float32).reshape(shape) + 1000.0 * (rank + 1)


def example_1(rank: int) -> torch.Tensor:
    variables = run_block(EXAMPLE_1)
    return variables["input_tensor" if rank == 0 else "output_tensor"]


def test_example_1_point_to_point() -> None:
    sent, received = run_ranks(2, example_1)
    assert torch.equal(sent, received)


def example_2(rank: int) -> torch.Tensor | None:
    op = run_block(EXAMPLE_2)["op"]
    if rank == 0:
        op([filled(0, 6, 4)], [])
        return None
    received = torch.full((2, 4), -1.0)
    op([], [received])
    return received


def test_example_2_scatter() -> None:
    results = run_ranks(4, example_2)
    for rank in (1, 2, 3):
        assert torch.equal(results[rank], filled(0, 6, 4)[(rank - 1) * 2:rank * 2])


def example_3(rank: int) -> torch.Tensor | None:
    op = run_block(EXAMPLE_3)["op"]
    if rank == 0:
        received = torch.full((6, 4), -1.0)
        op([], [received])
        return received
    op([filled(rank, 2, 4)], [])
    return None


def test_example_3_gather() -> None:
    received = run_ranks(4, example_3)[0]
    assert torch.equal(received, torch.cat([filled(rank, 2, 4) for rank in (1, 2, 3)]))


def example_4(rank: int) -> torch.Tensor:
    op = run_block(EXAMPLE_4)["op"]
    received = torch.full((group().size() * 2, 4), -1.0)
    op([filled(rank, 2, 4)], [received])
    return received


@pytest.mark.parametrize("size", [1, 4])
def test_example_4_all_gather(size: int) -> None:
    for received in run_ranks(size, example_4):
        assert torch.equal(received, torch.cat([filled(rank, 2, 4) for rank in range(size)]))


def example_5(rank: int) -> torch.Tensor:
    op = run_block(EXAMPLE_5)["op"]
    received = torch.full((2, 4), -1.0)
    op([filled(rank, group().size() * 2, 4)], [received])
    return received


def test_example_5_reduce_scatter() -> None:
    total = sum(filled(rank, 8, 4) for rank in range(4))
    for rank, received in enumerate(run_ranks(4, example_5)):
        assert torch.equal(received, total[rank * 2:rank * 2 + 2])


def example_6(rank: int) -> torch.Tensor:
    op = run_block(EXAMPLE_6)["op"]
    received = torch.full((2, 4), -1.0)
    op([filled(rank, 2, 4)], [received])
    return received


def test_example_6_ring() -> None:
    for rank, received in enumerate(run_ranks(4, example_6)):
        assert torch.equal(received, filled((rank - 1) % 4, 2, 4))


def example_7(rank: int) -> torch.Tensor:
    op = run_block(EXAMPLE_7)["op"]
    received = torch.full((4, 8), -1.0)
    op([filled(rank, 4, 8)], [received])
    return received


def test_example_7_all_reduce() -> None:
    total = sum(filled(rank, 4, 8) for rank in range(4))
    for received in run_ranks(4, example_7):
        assert torch.equal(received, total)


def example_8(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(8)  # distribute_tensor takes rank 0's values: with one seed all ranks can compare
    variables = run_block(EXAMPLE_8)
    return variables["global_tensor"], variables["output_dtensor"].to_local()


def test_example_8_dtensor_redistribution() -> None:
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    for rank, (whole, received) in enumerate(run_ranks(4, example_8, default_group=True)):
        assert torch.equal(received, whole[:, rank * 4:rank * 4 + 4])


def test_the_blocks_are_used_as_written() -> None:
    for number in range(1, 9):
        block = globals()[f"EXAMPLE_{number}"]
        assert block.startswith("import torch\nimport moodist\n")
        assert 'moodist.find_process_group("my_group")' in block and "moodist.compile_op(" in block
