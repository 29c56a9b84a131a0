"""Random products of distributed matrices: what a case draws, the naive model, and the comparison of results.

A case is equal on all ranks. It has any distributions, also replicated ones and overlapping boxes of the result, any
dtype and qualifiers, and in places an epilog, DTensors, a sub-group, or alpha or beta 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from random_campaign import extent_of, wide_numpy
from test_reshape import random_boxes, random_distribution, take

import shardwire
from shardwire.distributed.distribution import Box, Boxes, Placements
from shardwire.distributed.linalg.advanced import MatmulEpilog, matmul, matrix_qualifiers_dtype

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
# The rounding of the operands' dtype; sums of the 16-bit types are in float32.
ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12,
            torch.complex64: 1e-5, torch.complex128: 1e-12}


def data_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    parts = [torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5 for _ in range(2)]
    return (torch.complex(*parts) if dtype.is_complex else parts[0]).to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else
                     torch.float64 if tensor.dtype.is_floating_point else torch.int64)


def check(got: torch.Tensor, wanted: torch.Tensor, said: str, magnitude: float = 0) -> None:
    """wanted: the wide result of the naive model. magnitude: of addends that were rounded."""
    assert got.shape == wanted.shape, said
    if got.dtype in INTEGERS:
        assert torch.equal(got, wanted.to(got.dtype)), said
        return
    limit = ROUNDING[got.dtype] * (1 + max(magnitude, float(wanted.abs().max() if wanted.numel() else 0)))
    assert torch.allclose(wide(got), wanted, rtol=ROUNDING[got.dtype], atol=limit), said


def stored(whole: torch.Tensor, qualifier: Any) -> torch.Tensor:
    """The matrix whose op() is ``whole``."""
    whole = whole.conj().resolve_conj() if qualifier["is_conjugate"] else whole
    return whole.t().contiguous() if qualifier["is_transpose"] else whole


def in_order(local: torch.Tensor, fortran: bool) -> torch.Tensor:
    return local.t().contiguous().t() if fortran else local


def random_grid(rng: random.Random, ranks: int) -> list[int] | None:
    grids = [[first, second, ranks // first // second] for first in range(1, ranks + 1) if ranks % first == 0
             for second in range(1, ranks + 1) if ranks // first % second == 0]
    return rng.choice([None, *grids])


class Place(NamedTuple):
    """A rank's place in a distribution."""

    side: Any
    rank: int
    ranks: int


class Case(NamedTuple):
    """A product, the same on all ranks. operands: A and B as stored, and C, whole. beta: None: without C. members: the
    ranks of the group. mesh: of DTensors, else None. data: of the epilog's inputs, for the whole result."""

    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    cuts: list[Any]
    qualifiers: Any
    alpha: Any
    beta: Any
    kind: MatmulEpilog
    data: torch.Tensor
    orders: list[bool]
    is_numpy: bool
    members: tuple[int, ...]
    mesh: list[list[int]] | None
    options: dict[str, Any]

    def __str__(self) -> str:
        shapes = [list(whole.shape) for whole in self.operands]
        return (f"{shapes} {self.data.dtype} {self.cuts} {self.qualifiers} alpha {self.alpha} beta {self.beta} "
                f"{self.kind.name} {self.options} numpy {self.is_numpy} ranks {self.members} mesh {self.mesh}")


def random_mesh(rng: random.Random, members: Sequence[int]) -> list[list[int]]:
    rows = rng.choice([rows for rows in range(1, len(members) + 1) if len(members) % rows == 0])
    return [list(members[row * len(members) // rows:(row + 1) * len(members) // rows]) for row in range(rows)]


def random_placements(rng: random.Random, mesh: Any) -> Placements:
    kinds = [shardwire.Shard(0), shardwire.Shard(1), shardwire.Replicate()]
    return Placements([rng.choice(kinds) for _ in range(2)], mesh)


def random_side(rng: random.Random, shape: tuple[int, ...], members: Sequence[int], overlaps: bool) -> Any:
    """Placements also on some of the ranks only. overlaps: boxes may overlap."""
    drawn = rng.random()
    if drawn < 0.2:
        few = max(1, len(members) - rng.choice([0, 0, 1]))
        return random_placements(rng, random_mesh(rng, rng.sample(members, few)))
    if overlaps and drawn < 0.3:
        return Boxes([Box([max(0, low - rng.randint(0, 2)) for low in box.lower],
                          [min(extent, high + rng.randint(0, 2)) for high, extent in zip(box.upper, shape)])
                      for box in random_boxes(rng, shape, len(members))._boxes])
    return random_distribution(rng, shape, len(members))


def random_kind(rng: random.Random, dtype: torch.dtype, takes_inputs: bool) -> MatmulEpilog:
    """In one case of five an epilog."""
    kinds = [kind for kind in MatmulEpilog if kind and not (dtype.is_complex and "ELU" in kind.name)
             and not (dtype in INTEGERS and "GELU" in kind.name)
             and (takes_inputs or ("BIAS" not in kind.name and not kind.name.startswith("D")))]
    return rng.choice(kinds) if rng.random() < 0.2 else MatmulEpilog.DEFAULT


def random_case(rng: random.Random, ranks: int, home: list[int], seed: int) -> Case:
    """home: the ranks in the order of DTensors' meshes, which are few, since each mesh makes groups."""
    m, n, k = (extent_of(rng, 14) for _ in range(3))
    dtype, draw = rng.choice(FLOATS + INTEGERS), rng.random()
    qualifiers = numpy.zeros((3,), dtype=matrix_qualifiers_dtype)
    for index in range(2):
        qualifiers[index]["is_transpose"] = rng.random() < 0.4
        qualifiers[index]["is_conjugate"] = dtype.is_complex and rng.random() < 0.4
    a, b, c, data = (data_of(shape, dtype, seed) for shape in ((m, k), (k, n), (m, n), (m, n)))
    operands = stored(a, qualifiers[0]), stored(b, qualifiers[1]), c
    members = tuple(range(1, ranks)) if ranks > 1 and draw > 0.85 else tuple(range(ranks))
    mesh = random_mesh(rng, home) if draw < 0.12 else None
    kind = random_kind(rng, dtype, mesh is None)
    cuts = [random_side(rng, tuple(whole.shape), members, whole is c) if mesh is None else random_placements(rng, mesh)
            for whole in operands]
    if kind == MatmulEpilog.ALLREDUCE:
        cuts[2] = Placements([shardwire.Replicate()] * 2, mesh or [list(members)])
    number = (2 - 1j if dtype.is_complex else 2) if dtype not in INTEGERS else 3
    return Case(operands, cuts, qualifiers, rng.choices([None, number, 0], [14, 5, 1])[0],
                rng.choices([None, number, 0], [28, 10, 2])[0], kind, data, [rng.random() < 0.4 for _ in range(2)],
                rng.random() < 0.3 and dtype != torch.bfloat16 and mesh is None, members, mesh,
                {"grid": random_grid(rng, len(members)), "panels": rng.choice([None, 1, 2, 5])})


def modelled(case: Case) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The whole result, and the whole auxiliary outputs, wide; of "relu_aux" the argument of RELU."""
    a, b = (wide_numpy(stored(whole, item)) for whole, item in zip(case.operands, case.qualifiers[:2]))
    value = torch.from_numpy(numpy.matmul(a, b) * (1 if case.alpha is None else case.alpha))
    for addend in addends(case) if case.beta is not None else ():
        value = value + case.beta * wide(addend)
    name, dtype, aux = case.kind.name, case.data.dtype, dict[str, torch.Tensor]()
    if "BIAS" in name:
        value = value + wide(case.data[:, :1])
    if dtype in INTEGERS:
        value = wide(value.to(dtype))  # sums wrap
    if "AUX" in name:
        aux = {"relu_aux" if "RELU" in name else "gelu_aux": value}
    if name.startswith(("RELU", "GELU")):
        value = value.relu() if name.startswith("RELU") else gelu(value)
    elif name.startswith("DRELU"):
        value = value * mask_of(case)
    elif name.startswith("DGELU"):
        before = wide(case.data).requires_grad_()
        value = value * torch.autograd.grad(gelu(before).sum(), before)[0]
    if "BGRAD" in name:
        matrix = {"BGRADA": torch.from_numpy(a), "BGRADB": torch.from_numpy(b)}.get(name, value)
        aux = {name.lower(): matrix.sum(0 if name == "BGRADB" else 1)}
    return value, aux


def addends(case: Case) -> list[torch.Tensor]:
    """C of each rank with ALLREDUCE, else C."""
    return ([case.operands[2] + number for number in range(len(case.members))]
            if case.kind == MatmulEpilog.ALLREDUCE else [case.operands[2]])


def mask_of(case: Case) -> torch.Tensor:
    return case.data > (50 if case.data.dtype in INTEGERS else 0)


def inputs_of(case: Case, place: Place) -> dict[str, Any]:
    """This rank's part of the epilog's inputs."""
    name, found = case.kind.name, dict[str, torch.Tensor]()
    if "BIAS" in name:
        found["bias"] = local_vector(case.data[:, 0], case.data.shape, 0, place)
    elif name.startswith(("DRELU", "DGELU")):
        key, whole = ("relu_aux", mask_of(case)) if name.startswith("DRELU") else ("gelu_aux", case.data)
        found[key] = take(place.side, whole, place.rank, place.ranks)
    return {key: value.numpy() if case.is_numpy else value for key, value in found.items()}


def as_given(case: Case, local: torch.Tensor, index: int, meshes: dict[str, Any]) -> Any:
    """A local part as the caller's object. meshes: the meshes of DTensors so far."""
    if case.mesh is None:
        return local.numpy() if case.is_numpy else local
    import torch.distributed.tensor as dt
    cut, whole = as_dtensors(case.cuts[index], case.mesh, meshes), case.operands[index]
    return dt.DTensor.from_local(local, cut.mesh, cut.placements, run_check=False, shape=whole.shape,
                                 stride=whole.stride())


def has_dtensors() -> bool:
    try:
        import torch._dynamo  # noqa: F401  the first DTensor would import dynamo in each rank
        from torch.distributed.tensor import DTensor  # noqa: F401
    except ImportError:
        return False
    return True


def as_dtensors(cut: Placements, mesh: list[list[int]], meshes: dict[str, Any]) -> Placements:
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import DeviceMesh
    if str(mesh) not in meshes:
        meshes[str(mesh)] = DeviceMesh("cpu", mesh)
    return Placements([dt.Shard(item.dim) if isinstance(item, shardwire.Shard) else dt.Replicate()
                       for item in cut.placements], meshes[str(mesh)])


def multiplied(case: Case, local: list[torch.Tensor], inputs: dict[str, Any], together: Any,
               meshes: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The product, and the auxiliary outputs, as torch's local tensors."""
    a, b, c = (as_given(case, part, index, meshes) for index, part in enumerate((*local[:2], local[2].clone())))
    sides: list[Any] = case.cuts
    if case.mesh is not None:
        sides = [None, None, as_dtensors(case.cuts[2], case.mesh, meshes)]
    found = matmul(a, b, None if case.beta is None else c, alpha=case.alpha, beta=case.beta, distributions=sides,
                   qualifiers=case.qualifiers, epilog=case.kind, epilog_inputs=inputs, options=case.options,
                   group=together)
    value, aux = found if isinstance(found, tuple) else (found, {})
    assert case.beta is None or value is c
    assert all(isinstance(each, numpy.ndarray if case.is_numpy else torch.Tensor) for each in (value, *aux.values()))

    def plain(each: Any) -> torch.Tensor:
        return torch.from_numpy(each) if case.is_numpy else each.to_local() if hasattr(each, "to_local") else each
    return plain(value), {name: plain(each) for name, each in aux.items()}


def check_auxiliary(got: torch.Tensor, whole: torch.Tensor, wanted: torch.Tensor, case: Case, place: Place,
                    said: str) -> None:
    """whole: of "relu_aux" the argument of RELU. wanted: the whole result."""
    if whole.dim() == 1 and place.side.share(place.rank, tuple(wanted.shape), place.ranks).is_empty:
        return  # placements do not say which rows and columns a part without elements has
    if whole.dim() == 1:
        vector = local_vector(whole, wanted.shape, 1 if case.kind == MatmulEpilog.BGRADB else 0, place)
        # The addends of the gradient of a bias are rounded.
        check(got, vector, said, float(wanted.abs().sum(1).max()) if case.kind.name.startswith("D") else 0)
        return
    local = take(place.side, whole, place.rank, place.ranks)
    if got.dtype != torch.bool:
        check(got, local, said)
        return
    unsure = 0 if case.data.dtype in INTEGERS else ROUNDING[case.data.dtype] * (1 + float(whole.abs().max()))
    assert got.shape == local.shape and not ((got != (local > 0)) & (local.abs() > unsure)).any(), said
    assert unsure or torch.equal(got, local > 0), said


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x ** 3)))


def local_vector(whole: torch.Tensor, dims: Any, dim: int, place: Place) -> torch.Tensor:
    """The entries of a rank's indices along ``dim`` of a matrix."""
    local = place.side.share(place.rank, tuple(dims), place.ranks)
    wanted = torch.zeros(local.local_shape[dim], dtype=whole.dtype)
    for piece in local.pieces:
        here, there, extent = piece.local_offset[dim], piece.offset[dim], piece.shape[dim]
        wanted[here:here + extent] = whole[there:there + extent]
    return wanted
