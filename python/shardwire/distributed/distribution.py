"""How a global array is cut over the ranks of a group: slabs, pencils, blocks, block-cyclic, boxes and DTensor
placements.

Every distribution has one result: for each rank a local shape, and the boxes of the global array in the local array
(:meth:`Distribution.share`). All of this is arithmetic: nothing here communicates.
"""

from __future__ import annotations

import copy as shallow
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .._integers import as_integer
from ..compiler.layout import Layout, Partial, Shard, StridedShard, kind_of, read_mesh, as_dims
from ..errors import UnsupportedError
from ._grid import Dims, ProcessGrid, squarest
from ._runtime import known_size, own_rank


class Piece(NamedTuple):
    """A box of the global array (``offset``, ``shape``), and the begin of the box in the local array."""

    offset: Dims
    shape: Dims
    local_offset: Dims


class Share(NamedTuple):
    """The part of one rank: the shape of the local array, and the pieces, which fill the array."""

    local_shape: Dims
    pieces: tuple[Piece, ...]

    @property
    def is_one_box(self) -> bool:
        """Whether the local array is one box of the global array."""
        return len(self.pieces) == 1 and self.pieces[0].shape == self.local_shape

    @property
    def is_empty(self) -> bool:
        """Whether the rank holds no element."""
        return not self.pieces or math.prod(self.local_shape) == 0

    def is_as(self, other: Share) -> bool:
        """Whether a rank holds the same part in both shares. The offset of an empty piece does not matter."""
        return self == other or (self.is_empty and other.is_empty and self.local_shape == other.local_shape)

    @property
    def plain(self) -> list[Any]:
        """The nonempty pieces as plain values, for json."""
        return [[list(part) for part in piece] for piece in self.pieces if all(piece.shape)]


class ConvertDistributionError(ValueError):
    """A distribution cannot be expressed as one of another kind."""


class BindDistributionError(ValueError):
    """A local array has another shape than its distribution gives the rank."""


class Distribution(ABC):
    """How a global array is cut over ranks. Immutable and comparable; usable from any thread."""

    @property
    def ndim(self) -> int | None:
        """The number of dimensions of arrays for this distribution, or None for any."""
        return None

    @abstractmethod
    def share(self, rank: int, global_shape: Sequence[int], num_ranks: int | None = None) -> Share:
        """The part of ``rank`` in an array of ``global_shape`` cut over ``num_ranks`` ranks (None: the ranks of the
        context's group).

        ValueError where this distribution cannot cut such an array over so many ranks.
        """

    @abstractmethod
    def infer_global_shape(self, local_shapes: Sequence[Sequence[int]]) -> Dims:
        """The global shape of these local shapes, by rank. The caller checks by :meth:`share` whether each local shape
        fits."""

    @abstractmethod
    def describe(self) -> list[Any]:
        """Plain values, for json: equal where two distributions cut alike. The first value is the kind's name."""

    def shape(self, rank: int, global_shape: Sequence[int] | None = None, num_ranks: int | None = None) -> Dims:
        """The shape of the local array on ``rank``."""
        if global_shape is None:
            raise ValueError(f"give the global shape: {self} says how an array is cut, not how large it is")
        return self.share(rank, global_shape, num_ranks).local_shape

    def boxes(self, global_shape: Sequence[int], num_ranks: int | None = None) -> list[list[Box]]:
        """The boxes of each rank, in global coordinates."""
        count = known_size() if num_ranks is None else num_ranks
        return [[Box(piece.offset, tuple(map(sum, zip(piece.offset, piece.shape))))
                 for piece in self.share(rank, global_shape, count).pieces] for rank in range(count)]

    def to(self, cls: type[Distribution], /, *, ndim: int | None = None, copy: bool = False,
           global_shape: Sequence[int] | None = None, num_ranks: int | None = None) -> Distribution:
        """The same cut as a ``cls``. ConvertDistributionError where no ``cls`` cuts the same way.

        global_shape: of the arrays, without the dimensions that ``ndim`` adds; None: the result cuts arrays of every
            shape the same way. ndim: the dimensions of the result, at least this distribution's; further dimensions,
            at the end, have one index. copy: whether a ``cls`` is copied instead of returned.
        """
        from ._convert import convert
        # A Block is a BlockCyclic; the block sizes follow from a global shape.
        is_one = isinstance(self, cls) if global_shape is None else type(self) is cls
        if is_one and ndim in (None, self.ndim):
            return self.copy() if copy else self
        return convert(self, cls, ndim, global_shape, known_size() if num_ranks is None else num_ranks)

    def copy(self) -> Distribution:
        """An equal distribution."""
        return shallow.copy(self)

    def grouped(self, group_ranks: Sequence[int]) -> Distribution:
        """The same in the rank numbers of the group whose members have these global ranks. Only a mesh contains global
        ranks."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distribution) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(repr(self.describe()))

    def __repr__(self) -> str:
        return str(self)


class _OnGrid(Distribution):
    """Cut along each dimension independently: a rank holds the product of its parts."""

    @abstractmethod
    def grid(self, ndim: int, num_ranks: int) -> ProcessGrid:
        """The grid for arrays of ``ndim`` dimensions over ``num_ranks`` ranks. ValueError where there is none."""

    def cuts(self, dim: int, extent: int, parts: int, place: int) -> list[tuple[int, int]]:
        """The indices of place ``place`` of ``parts`` in ``extent`` indices: (begin, end), in order. The rule of
        numpy's array_split."""
        base, more = divmod(extent, parts)
        begin = place * base + min(place, more)
        return [(begin, begin + base + (place < more))]

    def share(self, rank: int, global_shape: Sequence[int], num_ranks: int | None = None) -> Share:
        dims = _shape_of(global_shape)
        count = known_size() if num_ranks is None else num_ranks
        rank = _read_rank(rank, count)
        grid = self.grid(len(dims), count)
        coords = grid.coords(rank)
        parts = [self.cuts(dim, extent, grid.shape[dim], coords[dim]) for dim, extent in enumerate(dims)]
        return _product(parts)

    def infer_global_shape(self, local_shapes: Sequence[Sequence[int]]) -> Dims:
        ndim = len(local_shapes[0])
        grid = self.grid(ndim, len(local_shapes))
        total = [0] * ndim
        for rank, local in enumerate(local_shapes):
            coords = grid.coords(rank)
            for dim in range(ndim):
                if not any(coords[:dim]) and not any(coords[dim + 1:]):
                    total[dim] += local[dim]
        return tuple(total)


class Slab(_OnGrid):
    """Cut along one dimension into as many parts as there are ranks, as numpy's array_split does. ``Slab.X``, ``Y``,
    ``Z``: dimensions 0, 1, 2.

    partition_dim: may count from the end. ndim: the number of dimensions, or None for any.
    """

    X: Slab
    Y: Slab
    Z: Slab
    partition_dim: int

    def __init__(self, partition_dim: int, ndim: int | None = None) -> None:
        dim = as_integer(partition_dim)
        if dim is None:
            raise TypeError(f"partition_dim is {kind_of(partition_dim)}; give an int")
        if ndim is not None and not -ndim <= dim < ndim:
            raise ValueError(f"partition_dim is {dim}, and ndim {ndim}; give one of {-ndim}..{ndim - 1}")
        self.partition_dim = dim + ndim if ndim is not None and dim < 0 else dim
        self._ndim = ndim

    @property
    def ndim(self) -> int | None:
        return self._ndim

    @property
    def name(self) -> str:
        """"Slab.X", "Slab.Y" or "Slab.Z", and "Slab" for further dimensions."""
        return f"Slab.{'XYZ'[self.partition_dim]}" if 0 <= self.partition_dim < 3 else "Slab"

    def grid(self, ndim: int, num_ranks: int) -> ProcessGrid:
        _check_ndim(self, ndim)
        if not -ndim <= self.partition_dim < ndim:
            raise ValueError(f"{self} cuts dimension {self.partition_dim}, which an array of {ndim} dimensions does "
                             "not have")
        shape = [1] * ndim
        shape[self.partition_dim] = num_ranks
        return ProcessGrid(shape=shape)

    def describe(self) -> list[Any]:
        return ["Slab", self.partition_dim]

    def __str__(self) -> str:
        return f"Slab({self.partition_dim})"


Slab.X, Slab.Y, Slab.Z = Slab(0), Slab(1), Slab(2)


class Pencil(_OnGrid):
    """Cut along the dimensions ``partition_dims`` over a grid of ``grid_shape`` ranks, by rows; None: the squarest grid
    of all ranks."""

    def __init__(self, partition_dims: Sequence[int] = (0, 1), grid_shape: Sequence[int] | None = None) -> None:
        self.partition_dims = as_dims(partition_dims, "partition_dims")
        self.grid_shape = None if grid_shape is None else as_dims(grid_shape, "grid_shape")
        if len(set(self.partition_dims)) != len(self.partition_dims) or not self.partition_dims:
            raise ValueError(f"partition_dims is {list(self.partition_dims)}; give each dimension once")
        if self.grid_shape is not None and (len(self.grid_shape) != len(self.partition_dims)
                                            or any(extent < 1 for extent in self.grid_shape)):
            raise ValueError(f"grid_shape is {list(self.grid_shape)}; give how many ranks along each of the dimensions "
                             f"{list(self.partition_dims)}")

    def grid(self, ndim: int, num_ranks: int) -> ProcessGrid:
        if any(not -ndim <= dim < ndim for dim in self.partition_dims):
            raise ValueError(f"{self} cuts a dimension that an array of {ndim} dimensions does not have")
        extents = squarest(num_ranks, len(self.partition_dims)) if self.grid_shape is None else self.grid_shape
        _check_count(self, math.prod(extents), num_ranks)
        shape = [1] * ndim
        for dim, extent in zip(self.partition_dims, extents):
            shape[dim] *= extent
        return ProcessGrid(shape=shape, layout=ProcessGrid.Layout.ROW_MAJOR)

    def describe(self) -> list[Any]:
        return ["Pencil", list(self.partition_dims), self.grid_shape and list(self.grid_shape)]

    def __str__(self) -> str:
        return (f"Pencil({list(self.partition_dims)}"
                + ("" if self.grid_shape is None else f", grid_shape={list(self.grid_shape)}") + ")")


class _OnProcessGrid(_OnGrid):
    """A cut over the caller's grid of ranks."""

    process_grid: ProcessGrid
    first_process: Dims

    def __init__(self, process_grid: ProcessGrid, first_process: Sequence[int] | None) -> None:
        if not isinstance(process_grid, ProcessGrid):
            raise TypeError(f"process_grid is {kind_of(process_grid)}; give a ProcessGrid")
        self.process_grid = process_grid
        self.first_process = _read_first(first_process, process_grid)

    @property
    def ndim(self) -> int | None:
        return len(self.process_grid.shape)

    def grid(self, ndim: int, num_ranks: int) -> ProcessGrid:
        _check_ndim(self, ndim)
        _check_count(self, self.process_grid.size, num_ranks)
        return self.process_grid


class BlockCyclic(_OnProcessGrid):
    """ScaLAPACK's block-cyclic: blocks of ``block_sizes`` dealt to the ranks of ``process_grid`` in turns along each
    dimension.

    A rank's local array holds its blocks in the order of their indices. first_process: the place of the first block in
    the grid.
    """

    block_sizes: Dims

    def __init__(self, process_grid: ProcessGrid, block_sizes: Sequence[int], *,
                 first_process: Sequence[int] | None = None) -> None:
        super().__init__(process_grid, first_process)
        self.block_sizes = as_dims(block_sizes, "block_sizes")
        if len(self.block_sizes) != len(process_grid.shape) or any(size < 1 for size in self.block_sizes):
            raise ValueError(f"block_sizes is {list(self.block_sizes)}; give a positive size for each of the grid's "
                             f"{len(process_grid.shape)} dimensions")

    def cuts(self, dim: int, extent: int, parts: int, place: int) -> list[tuple[int, int]]:
        size = self.block_sizes[dim]
        first = (place - self.first_process[dim]) % parts * size
        cuts = [(begin, min(begin + size, extent)) for begin in range(first, extent, parts * size)]
        return (cuts if parts > 1 else [(0, extent)]) or [(extent, extent)]

    def describe(self) -> list[Any]:
        return ["BlockCyclic", self.process_grid.describe(), list(self.block_sizes), list(self.first_process)]

    def __str__(self) -> str:
        return f"BlockCyclic({self.process_grid}, block_sizes={list(self.block_sizes)})"


class Block(BlockCyclic):
    """Cut along every dimension over ``process_grid``, as numpy's array_split does; no rank has two parts of a
    dimension. A BlockCyclic whose block sizes, -1 here, follow from the array's extents.

    first_process: the place of the first block in the grid; None: at the grid's origin.
    """

    def __init__(self, process_grid: ProcessGrid, *, first_process: Sequence[int] | None = None) -> None:
        _OnProcessGrid.__init__(self, process_grid, first_process)
        self.block_sizes = (-1,) * len(process_grid.shape)

    def cuts(self, dim: int, extent: int, parts: int, place: int) -> list[tuple[int, int]]:
        return _OnGrid.cuts(self, dim, extent, parts, (place - self.first_process[dim]) % parts)

    def describe(self) -> list[Any]:
        return ["Block", self.process_grid.describe(), list(self.first_process)]

    def __str__(self) -> str:
        return f"Block({self.process_grid})"


BlockNonCyclic = Block


class Box(Distribution):
    """The box of this rank alone: indices from ``lower`` up to but without ``upper``. Empty boxes are allowed. Each
    rank gives its own box."""

    lower: Dims
    upper: Dims

    def __init__(self, lower: Sequence[int], upper: Sequence[int]) -> None:
        self.lower, self.upper = as_dims(lower, "lower"), as_dims(upper, "upper")
        if len(self.lower) != len(self.upper):
            raise ValueError(f"lower has {len(self.lower)} dimensions and upper {len(self.upper)}; they need one entry "
                             "per dimension each")
        if any(end < begin for begin, end in zip(self.lower, self.upper)):
            raise ValueError(
                f"the box goes from {list(self.lower)} to {list(self.upper)}; upper must not be less than lower")

    @property
    def ndim(self) -> int | None:
        return len(self.lower)

    @property
    def extents(self) -> Dims:
        """The number of indices along each dimension."""
        return tuple(end - begin for begin, end in zip(self.lower, self.upper))

    box_shape = extents

    def share(self, rank: int, global_shape: Sequence[int], num_ranks: int | None = None) -> Share:
        me = own_rank()
        if me is not None and rank != me:
            raise ValueError(f"a Box is what one rank holds: rank {me} does not know what rank {rank} has; give "
                             "Boxes([...]) with the boxes of all ranks")
        return Share(self.extents, (Piece(self.lower, self.extents, (0,) * len(self.lower)),))

    def shape(self, rank: int, global_shape: Sequence[int] | None = None, num_ranks: int | None = None) -> Dims:
        return self.share(rank, ()).local_shape

    def infer_global_shape(self, local_shapes: Sequence[Sequence[int]]) -> Dims:
        raise ValueError("one Box does not determine the global shape; give Boxes([...]) with the boxes of all ranks")

    def describe(self) -> list[Any]:
        return ["Box", list(self.lower), list(self.upper)]

    def __iter__(self) -> Iterator[Dims]:
        yield self.lower
        yield self.upper

    def __getitem__(self, index: int) -> Dims:
        return (self.lower, self.upper)[index]

    def __str__(self) -> str:
        return f"Box({list(self.lower)}, {list(self.upper)})"


class Boxes(Distribution):
    """The boxes of all ranks, one each, by rank; empty boxes are allowed. The user of the distribution refuses overlaps
    and gaps."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = tuple(boxes)
        for rank, box in enumerate(self._boxes):
            if not isinstance(box, Box):
                raise TypeError(f"boxes[{rank}] is {kind_of(box)}; give a Box for every rank")
            if box.ndim != self._boxes[0].ndim:
                raise ValueError(f"boxes[{rank}] has {box.ndim} dimensions, boxes[0] {self._boxes[0].ndim}; all need "
                                 "the same number")
        if not self._boxes:
            raise ValueError("boxes is empty; give a Box for every rank")

    @property
    def ndim(self) -> int | None:
        return self._boxes[0].ndim

    def share(self, rank: int, global_shape: Sequence[int], num_ranks: int | None = None) -> Share:
        rank = _read_rank(rank, len(self._boxes))
        if num_ranks is not None:
            _check_count(self, len(self._boxes), num_ranks)
        box = self._boxes[rank]
        if all(box.extents) and any(begin < 0 or end > extent
                                    for begin, end, extent in zip(*box, _shape_of(global_shape))):
            raise ValueError(f"{box} of rank {rank} is not inside of the global shape {list(global_shape)}")
        return Share(box.extents, (Piece(box.lower, box.extents, (0,) * len(box.lower)),))

    def infer_global_shape(self, local_shapes: Sequence[Sequence[int]]) -> Dims:
        full = [box for box in self._boxes if all(box.extents)] or self._boxes
        return tuple(max(box.upper[dim] for box in full) for dim in range(len(self._boxes[0].lower)))

    def describe(self) -> list[Any]:
        return ["Boxes", [box.describe()[1:] for box in self._boxes]]

    def __str__(self) -> str:
        return f"Boxes([{', '.join(map(str, self._boxes[:4]))}{', ...' if len(self._boxes) > 4 else ''}])"


class Placements(Distribution):
    """As DTensor cuts: one placement per dimension of ``mesh``, torch's or shardwire's (Shard, Replicate,
    StridedShard).

    mesh: a DeviceMesh or nested lists of global ranks; None: the mesh of the operand where the operand is a DTensor,
        else all ranks of the group in one dimension. A result that is a DTensor needs a DeviceMesh. Partial is refused:
        a Partial placement holds addends.
    """

    def __init__(self, placements: Sequence[Any], mesh: Any = None) -> None:
        self.placements, self.mesh = tuple(placements), mesh
        self._mesh = None if mesh is None else read_mesh(mesh)
        self._group_ranks: tuple[int, ...] | None = None

    def layout(self, global_shape: Sequence[int], num_ranks: int | None = None) -> Layout:
        """The Layout of an array of ``global_shape``, in the mesh's own rank numbers. The Layout's dtype has no
        meaning."""
        import torch
        mesh = list(range(known_size() if num_ranks is None else num_ranks)) if self.mesh is None else self.mesh
        layout = Layout(mesh, self.placements, _shape_of(global_shape), torch.float32)
        if any(isinstance(item, Partial) for item in layout.placements):
            raise UnsupportedError(f"{self} has a Partial placement, which holds addends: bring it to values first, by "
                                   "shardwire.redistribute")
        return layout

    def share(self, rank: int, global_shape: Sequence[int], num_ranks: int | None = None) -> Share:
        number = rank if self._mesh is None or self._group_ranks is None else self._group_ranks[rank]
        native = self.layout(global_shape, num_ranks).share(number)
        if native is None:
            return Share((0,) * len(global_shape), ())
        pieces = tuple(Piece(tuple(box.offset), tuple(box.shape), tuple(box.local_offset)) for box in native.boxes)
        return Share(tuple(native.local_shape), pieces)

    def infer_global_shape(self, local_shapes: Sequence[Sequence[int]]) -> Dims:
        ndim = max(map(len, local_shapes))
        layout = self.layout((1,) * ndim, len(local_shapes))
        numbers = list(range(len(local_shapes)) if self._mesh is None or self._group_ranks is None
                       else self._group_ranks)
        total = [0] * ndim
        for number, coords in zip(layout.ranks, itertools.product(*map(range, layout.mesh_shape))):
            local = local_shapes[numbers.index(number)]
            for dim in range(ndim):
                cutting = [isinstance(item, (Shard, StridedShard)) and item.dim in (dim, dim - ndim)
                           for item in layout.placements]
                if not any(coord for coord, cuts in zip(coords, cutting) if not cuts):
                    total[dim] += local[dim]
        return tuple(total)

    def grouped(self, group_ranks: Sequence[int]) -> Distribution:
        if self._mesh is None:
            return self
        outside = [rank for rank in self._mesh[1] if rank not in group_ranks]
        if outside:
            raise ValueError(f"the mesh of {self} holds global rank {outside[0]}, which is not in the group of ranks "
                             f"{list(group_ranks)}")
        same = Placements(self.placements, self.mesh)
        same._group_ranks = tuple(group_ranks)
        return same

    def describe(self) -> list[Any]:
        mesh = None if self._mesh is None else [list(self._mesh[0]), list(self._mesh[1])]
        return ["Placements", [repr(item) for item in self.placements], mesh]

    def __str__(self) -> str:
        return f"Placements({list(self.placements)})"


def _product(parts: Sequence[Sequence[tuple[int, int]]]) -> Share:
    local = tuple(sum(end - begin for begin, end in cuts) for cuts in parts)
    starts = [list(itertools.accumulate((end - begin for begin, end in cuts), initial=0)) for cuts in parts]
    pieces = []
    for which in itertools.product(*(range(len(cuts)) for cuts in parts)):
        chosen = [cuts[index] for cuts, index in zip(parts, which)]
        pieces.append(Piece(tuple(begin for begin, _ in chosen), tuple(end - begin for begin, end in chosen),
                            tuple(begins[index] for begins, index in zip(starts, which))))
    return Share(local, tuple(pieces))


def _shape_of(global_shape: Sequence[int]) -> Dims:
    dims = as_dims(global_shape, "global_shape")
    if any(extent < 0 for extent in dims):
        raise ValueError(f"the global shape is {list(dims)}; no extent is negative")
    return dims


def _read_rank(rank: int, count: int) -> int:
    found = as_integer(rank)
    if found is None:
        raise TypeError(f"rank is {kind_of(rank)}; give an int")
    if not 0 <= found < count:
        raise ValueError(f"rank {found} is none of the {count} ranks 0..{count - 1}")
    return found


def _check_ndim(distribution: Distribution, ndim: int) -> None:
    if distribution.ndim is not None and distribution.ndim != ndim:
        raise ValueError(f"{distribution} cuts arrays of {distribution.ndim} dimensions, this one has {ndim}")


def _check_count(distribution: Distribution, has: int, wanted: int) -> None:
    if has != wanted:
        raise ValueError(f"{distribution} is for {has} ranks, the group has {wanted}")


def _read_first(first: Sequence[int] | None, grid: ProcessGrid) -> Dims:
    if first is None:
        return (0,) * len(grid.shape)
    read = as_dims(first, "first_process")
    if len(read) != len(grid.shape) or any(not 0 <= place < extent for place, extent in zip(read, grid.shape)):
        raise ValueError(f"first_process is {list(read)}, which is no place in a grid of shape {list(grid.shape)}")
    return read
