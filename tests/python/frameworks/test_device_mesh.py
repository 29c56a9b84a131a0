"""DeviceMesh: groups of rows and columns of the ranks."""

import pytest
import torch
import torch.distributed as dist

from both_backends import both  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no DeviceMesh", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def summed(rank, group):
    value = torch.full((3,), float(2 ** rank))
    dist.all_reduce(value, group=group)
    return value


def two_by_two(rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2] and mesh["tp"].get_local_rank() == rank % 2
    sums = [summed(rank, mesh["dp"].get_group()), summed(rank, mesh["tp"].get_group()),
            summed(rank, mesh.get_group("dp"))]
    sums += [summed(rank, group) for group in mesh.get_all_groups()]
    column = [r for r in range(4) if r % 2 == rank % 2]
    assert sums[0].tolist() == [float(sum(2 ** r for r in column))] * 3
    flat = mesh["dp", "tp"]._flatten("all")
    sums.append(summed(rank, flat.get_group()))
    assert sums[-1].tolist() == [15.0] * 3
    assert dist.get_process_group_ranks(mesh["tp"].get_group()) == [r for r in range(4) if r // 2 == rank // 2]
    return sums, mesh.mesh, mesh["tp"].mesh


def test_two_by_two(both):
    both(4, two_by_two)


def of_groups(rank, size):
    """Meshes from groups and from a tensor of ranks in another order; a mesh without rank 0; one of a single dimension
    reuses the world's group."""
    whole = init_device_mesh("cpu", (4,))
    sums = [summed(rank, whole.get_group())]
    reordered = DeviceMesh("cpu", torch.tensor([[3, 1], [2, 0]]), mesh_dim_names=("a", "b"))
    sums += [summed(rank, reordered.get_group(name)) for name in ("a", "b")]
    of_group = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    sums.append(summed(rank, of_group.get_group()))
    part = DeviceMesh("cpu", [1, 2, 3])
    if rank:
        sums.append(summed(rank, part.get_group()))
        assert sums[-1].tolist() == [14.0] * 3
    else:
        assert part.get_coordinate() is None
    return sums


def test_meshes_of_groups_and_ranks(both):
    both(4, of_groups)
