"""How arrays are cut: every distribution against numpy's array_split, ScaLAPACK's rule and each other. No ranks
needed."""

from __future__ import annotations

import itertools

import numpy
import pytest

import shardwire
from shardwire.distributed.distribution import (Block, BlockCyclic, BlockNonCyclic, Box, Boxes,
                                                ConvertDistributionError, Distribution, Pencil, Placements, ProcessGrid,
                                                Slab)

ROW, COLUMN = ProcessGrid.Layout.ROW_MAJOR, ProcessGrid.Layout.COL_MAJOR


def pieces_of(distribution: Distribution, whole: numpy.ndarray, ranks: int) -> list[numpy.ndarray]:
    """Each rank's local array, filled through the shares; elements outside of all pieces are -1."""
    locals_ = []
    for rank in range(ranks):
        share = distribution.share(rank, whole.shape, ranks)
        local = numpy.full(share.local_shape, -1)
        for piece in share.pieces:
            there = tuple(slice(begin, begin + extent) for begin, extent in zip(piece.local_offset, piece.shape))
            local[there] = (
                whole[tuple(slice(begin, begin + extent) for begin, extent in zip(piece.offset, piece.shape))])
        locals_.append(local)
    return locals_


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_slab_is_array_split(ranks: int) -> None:
    whole = numpy.arange(7 * 3 * 4).reshape(7, 3, 4)
    for dim, slab in enumerate((Slab.X, Slab.Y, Slab.Z)):
        for mine, theirs in zip(pieces_of(slab, whole, ranks), numpy.array_split(whole, ranks, dim)):
            assert numpy.array_equal(mine, theirs)
        assert Slab(dim - 3).share(0, whole.shape, ranks) == slab.share(0, whole.shape, ranks)


def test_pencil_and_block_split_each_dimension() -> None:
    whole = numpy.arange(7 * 5 * 4).reshape(7, 5, 4)
    grid = ProcessGrid(shape=(3, 1, 2), layout=ROW)
    for rank, (mine, pencil) in enumerate(
            zip(pieces_of(Block(grid), whole, 6), pieces_of(Pencil((0, 2), (3, 2)), whole, 6))):
        theirs = numpy.array_split(numpy.array_split(whole, 3, 0)[rank // 2], 2, 2)[rank % 2]
        assert numpy.array_equal(mine, theirs) and numpy.array_equal(pencil, theirs)
    assert Pencil((0, 1)).grid(3, 12).shape == (3, 4, 1) and Pencil((1, 2)).grid(3, 7).shape == (1, 1, 7)


def test_block_cyclic_is_scalapacks() -> None:
    whole = numpy.arange(11 * 9).reshape(11, 9)
    grid = ProcessGrid(shape=(2, 3), layout=COLUMN)
    for first in ((0, 0), (1, 2)):
        cyclic = BlockCyclic(grid, (2, 3), first_process=first)
        for rank, mine in enumerate(pieces_of(cyclic, whole, 6)):
            row, column = rank % 2, rank // 2
            rows = [i for i in range(11) if (i // 2 + first[0]) % 2 == row]
            columns = [j for j in range(9) if (j // 3 + first[1]) % 3 == column]
            assert numpy.array_equal(mine, whole[numpy.ix_(rows, columns)]), (rank, first)


def test_placements_are_layouts() -> None:
    whole = numpy.arange(7 * 5).reshape(7, 5)
    mesh = [[0, 1], [2, 3]]
    placed = Placements([shardwire.Shard(0), shardwire.Shard(1)], mesh)
    for rank, mine in enumerate(pieces_of(placed, whole, 4)):
        layout = shardwire.Layout(mesh, [shardwire.Shard(0), shardwire.Shard(1)], whole.shape,
                                  __import__("torch").float32)
        assert mine.shape == layout.local_shape(rank) and (mine >= 0).all()
    with pytest.raises(NotImplementedError, match="Partial"):
        Placements([shardwire.Partial()]).share(0, (4,), 2)


def test_the_global_shape_is_inferred() -> None:
    grid = ProcessGrid(shape=(2, 3), layout=COLUMN)
    for distribution in (Slab.X, Slab(-1), Pencil((1, 0)), Block(grid), Block(grid, first_process=(1, 1)),
                         BlockCyclic(grid, (2, 2)), Placements([shardwire.Shard(1)]),
                         Placements([shardwire.Shard(1), shardwire.Replicate()], [[0, 1], [2, 3], [4, 5]])):
        locals_ = [distribution.shape(rank, (11, 13), 6) for rank in range(6)]
        assert distribution.infer_global_shape(locals_) == (11, 13), distribution


def test_kinds_become_each_other() -> None:
    grid = ProcessGrid(shape=(2, 2), layout=ROW)
    same = {Boxes: Boxes([Box((0, 0), (4, 3)), Box((0, 3), (4, 6)), Box((4, 0), (8, 3)), Box((4, 3), (8, 6))]),
            Block: Block(grid), Pencil: Pencil((0, 1), (2, 2)), BlockCyclic: BlockCyclic(grid, (4, 3)),
            Placements: Placements([shardwire.Shard(0), shardwire.Shard(1)], [[0, 1], [2, 3]])}
    for before, after in itertools.product(same.values(), same):
        found = before.to(after, global_shape=(8, 6), num_ranks=4)
        assert type(found) is after
        assert ([found.share(rank, (8, 6), 4) for rank in range(4)]
                == [before.share(rank, (8, 6), 4) for rank in range(4)])
    for cls in (Boxes, Block, Pencil, BlockCyclic, Placements, Slab):
        assert Slab.Y.to(cls, global_shape=(8, 8), num_ranks=4).boxes((8, 8), 4) == Slab.Y.boxes((8, 8), 4)
    for cls in (Boxes, Block, Pencil, Placements, Slab):  # ranks 2 and 3 have nothing
        for few in (Slab.X, Placements([shardwire.Shard(0)]), Block(ProcessGrid(shape=(4, 1)))):
            assert few.to(cls, global_shape=(2, 6), num_ranks=4).shape(0, (2, 6), 4) == (1, 6)
    outside = Placements([shardwire.Shard(0)], [0, 2]).to(Boxes, global_shape=(4, 6), num_ranks=3)
    assert [outside.shape(rank, (4, 6), 3) for rank in range(3)] == [(2, 6), (0, 0), (2, 6)]
    assert outside.boxes((4, 6), 3)[2] == [Box((2, 0), (4, 6))]
    with pytest.raises(ConvertDistributionError, match="as no Slab"):
        Block(grid).to(Slab, global_shape=(8, 6), num_ranks=4)
    assert BlockNonCyclic is Block


def test_wrong_values_are_refused() -> None:
    grid = ProcessGrid(shape=(2, 2), layout=ROW)
    for call, text in ((lambda: ProcessGrid(shape=(2, 2)), "by rows or by columns"),
                       (lambda: ProcessGrid(process_array=[[0, 1], [1, 2]]), "each of 0..3 once"),
                       (lambda: ProcessGrid(process_array=[[0, 1], [2]]), "different lengths"),
                       (lambda: Slab(3, ndim=2), "give one of"), (lambda: Slab.Z.shape(0, (4, 4), 2), "does not have"),
                       (lambda: Block(grid).shape(0, (4, 4), 3), "is for 4 ranks, the group has 3"),
                       (lambda: Block(grid).shape(0, (4, 4, 4), 4), "arrays of 2 dimensions"),
                       (lambda: Box((0, 3), (2, 2)), "must not be less"),
                       (lambda: Box((0,), (2, 2)), "one entry per dimension"),
                       (lambda: BlockCyclic(grid, (2, 0)), "positive size"),
                       (lambda: Slab.X.shape(4, (4,), 4), "none of the 4 ranks"),
                       (lambda: Slab.X.shape(0), "give the global shape"),
                       (lambda: Boxes([Box((0,), (3,))]).share(0, (2,), 1), "not inside")):
        with pytest.raises(ValueError, match=text):
            call()
