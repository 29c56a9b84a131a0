"""torch.fft's functions on DTensors, by dispatch: within ``with dispatch_dtensors():`` a call such as
``torch.fft.fft2(x)`` with a DTensor runs as a planned transform of shardwire.

torch's own rules for operations on DTensors name placements, and torch then moves arrays by collectives. So the calls
are intercepted before, by a TorchFunctionMode, which torch has had since 1.13. A call is translated to axes, norm and
kind of an FFT; padding and trimming (``n`` and ``s``) is one compiled op before. fftshift and ifftshift are one
compiled op (_fft_shift.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from .. import _C
from .._integers import as_integer
from ..compiler.agree import Attempt
from ..compiler.layout import is_dtensor, local_tensor
from ..compiler.spec import Pieces
from ..errors import UnsupportedError
from ..groups.lookup import global_ranks, resolve_backend
from . import _ends, _meeting, _runtime
from ._fft_shift import SHIFTS, kept_move, read_shifts, shifted
from ._operand import unwrap
from .distribution import Dims, Placements, Share

_SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


_Marked = TypeVar("_Marked", bound=Callable[..., Any])


def _uncompiled(function: _Marked) -> _Marked:
    """torch.compile breaks its graph at a call of the function, and then makes the call as ever."""
    marked: _Marked = getattr(torch, "_disable_dynamo", lambda same: same)(function)  # torch 1.13 compiles nothing
    return marked


class _Function(NamedTuple):
    """A function of torch.fft: kind and direction of its transform; hermitian: conjugated before (C2R) or after
    (R2C), with the norm of the other direction. dims: 1, 2, or None for all."""

    kind: str
    inverse: bool
    hermitian: bool
    dims: int | None


class _Request(NamedTuple):
    """A call as read: the axes, and the wanted extent of each axis before and after the transform."""

    axes: Dims
    before: Dims
    after: Dims
    norm: str


def _functions() -> dict[str, _Function]:
    found = {}
    for ending, dims in (("", 1), ("2", 2), ("n", None)):
        for begin, kind, inverse, hermitian in (("fft", "C2C", False, False), ("ifft", "C2C", True, False),
                                                ("rfft", "R2C", False, False), ("irfft", "C2R", True, False),
                                                ("hfft", "C2R", True, True), ("ihfft", "R2C", False, True)):
            found[begin + ending] = _Function(kind, inverse, hermitian, dims)
    return found


def _by_callable() -> dict[Any, tuple[str, _Function | None]]:
    """By the objects by which torch may name its functions to a mode; None for a shift."""
    functions: dict[str, _Function | None] = {**_functions(), **dict.fromkeys(SHIFTS, None)}
    return {getattr(where, prefix + name): (name, function) for name, function in functions.items()
            for where, prefix in ((torch.fft, ""), (getattr(torch._C, "_fft", None), "fft_"))
            if where is not None and hasattr(where, prefix + name)}


class _Dispatch(TorchFunctionMode):
    """The mode that dispatch_dtensors() gives."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group
        self._table = _by_callable()

    def __torch_function__(self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        found = self._table.get(func)
        operand = args[0] if args else kwargs.get("input", kwargs.get("self"))
        if found is None or not is_dtensor(operand):
            return func(*args, **kwargs)
        name, function = found
        if function is None:
            return shift(name, self._group, *args, **kwargs)
        return transform(name, function, self._group, *args, **kwargs)


def dispatch_dtensors(group: Any = None) -> Any:
    """A context manager: inside, ``torch.fft``'s fft, ifft, rfft, irfft, hfft, ihfft, with endings 2 and n, fftshift
    and ifftshift take DTensors, and return DTensors with the operand's placements. Other calls and plain tensors go to
    torch.

    group: None: the group of a mesh of one dimension; of other meshes the context's, or torch's default group, which
        must then have the mesh's ranks. All ranks of the group make the calls.

    For the calling thread. The results are torch's, differentiable once. Errors of a call are raised on all ranks
    alike: ValueError for ``out=``, UnsupportedError for Partial placements. UnsupportedError here where torch has no
    DTensor (before 2.5).
    """
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:
        raise UnsupportedError(f"torch.fft on DTensors needs torch 2.5 or later, and this is {torch.__version__}; call "
                               "the functions of shardwire.distributed.fft, which take local tensors") from None
    del DTensor
    return _Dispatch(group)


@_uncompiled
def transform(name: str, function: _Function, group: Any, /, input: Any = None, n_or_s: Any = None, dim: Any = None,
              norm: Any = None, **others: Any) -> Any:
    """The result of ``torch.fft.name(...)``, of which ``input`` is a DTensor. Collective."""
    operand = others.pop("self", None) if input is None else input
    group = _group_of(operand, group)
    call = f"torch.fft.{name}"
    facts: dict[str, Any] = {}
    request: _Request | None = None
    with Attempt() as attempt:
        request = _read(call, function, tuple(operand.shape), n_or_s, dim, norm, others)
        cut = Placements(operand.placements, operand.device_mesh)
        cut.layout(tuple(operand.shape))  # UnsupportedError for a Partial placement
        facts = {"shape": list(operand.shape), "dtype": str(operand.dtype), "dim": list(request.axes),
                 "lengths": [list(request.before), list(request.after)], "norm": request.norm,
                 "placements": cut.describe()[1:], "device": operand.device_mesh.device_type}
        wanted = _dtype_for(call, function, operand.dtype)
    key = _agree(group, call, facts, attempt.error)
    assert request is not None
    if wanted != operand.dtype or (function.hermitian and function.kind == "C2R"):
        operand = _mapped(operand, lambda local: local.to(wanted))
    if function.hermitian and function.kind == "C2R":
        operand = _mapped(operand, torch.conj_physical)
    result = (_empty(function, request, operand) if group is None
              else _planned(function, request, operand, group, call, key))
    return _mapped(result, torch.conj_physical) if function.hermitian and function.kind == "R2C" else result


@_uncompiled
def shift(name: str, group: Any, /, input: Any = None, dim: Any = None, **others: Any) -> Any:
    """The result of ``torch.fft.fftshift`` or ``ifftshift``, of which ``input`` is a DTensor. Collective."""
    operand = others.pop("self", None) if input is None else input
    group = _group_of(operand, group)
    call, shape = f"torch.fft.{name}", tuple(operand.shape)
    cut = Placements(operand.placements, operand.device_mesh)
    facts: dict[str, Any] = {}
    steps: Dims = ()
    with Attempt() as attempt:
        if others:
            raise TypeError(f"{call}: unknown argument {next(iter(others))!r}")
        steps = read_shifts(call, name, shape, dim)
        cut.layout(shape)  # UnsupportedError for a Partial placement
        facts = {"shape": list(shape), "dtype": str(operand.dtype), "dim": list(steps),
                 "placements": cut.describe()[1:], "device": operand.device_mesh.device_type}
    key = _agree(group, call, facts, attempt.error)
    if group is None or 0 in shape:
        return _mapped(operand, torch.clone)
    ranks = global_ranks(resolve_backend(group))
    end = _ends.make_end(call, "the operand", cut.grouped(ranks), shape, len(ranks), overlaps=True)
    return _mapped(operand, lambda local: shifted(local, group, end, steps, call, key))


def _agree(group: Any, call: str, facts: dict[str, Any], error: Exception | None) -> str:
    """Raises the error of any rank, or MismatchError for different facts, on all ranks. Returns a text from the
    arguments of all ranks, for kept plans. group: None for a rank outside of the mesh, which is alone."""
    if group is None:
        if error is not None:
            raise error
        return ""
    everyone = _meeting.exchange(group, f"fft.dispatch_dtensors: {call}", facts, error)
    _ends.agree(everyone, call, tuple(facts))
    return f"{call} {everyone}"


def _planned(function: _Function, request: _Request, operand: Any, group: Any, call: str, key: str) -> Any:
    from . import fft
    shape = list(operand.shape)
    for axis, extent in zip(request.axes, request.before):
        shape[axis] = extent
    if shape != list(operand.shape):
        operand = _resized(operand, tuple(shape), group, call, key)
    run = {("C2C", False): fft.fft, ("C2C", True): fft.ifft, ("R2C", False): fft.rfft,
           ("C2R", True): fft.irfft}[function.kind, function.inverse]
    parity = "odd" if function.kind == "C2R" and request.after[-1] % 2 else "even"
    return run(operand, axes=request.axes, norm=request.norm, group=group, options={"last_axis_parity": parity})


def _read(call: str, function: _Function, shape: Dims, lengths: Any, dim: Any, norm: Any,
          others: dict[str, Any]) -> _Request:
    lengths = others.pop("n" if function.dims == 1 else "s", lengths)
    if others.pop("out", None) is not None:
        raise ValueError(f"{call}: out= is given; the result of a DTensor is a new DTensor, so leave out= out")
    if others:
        raise TypeError(f"{call}: unknown argument {next(iter(others))!r}")
    if function.dims == 1:
        axes: list[Any] = [-1 if dim is None else dim]
        lengths = None if lengths is None else [lengths]
    elif dim is not None:
        axes = list(dim) if isinstance(dim, Iterable) else [dim]
    elif function.dims == 2:
        axes = [-2, -1]
    else:
        axes = list(range(-len(lengths if lengths is not None else shape), 0))
    wanted: list[int | None] = [None] * len(axes)
    if lengths is not None:
        given = list(lengths) if isinstance(lengths, Iterable) else [lengths]
        wanted = [None if extent is None else as_integer(extent) for extent in given]
        if wanted.count(None) > given.count(None):
            raise TypeError(f"{call}: {given} is given for lengths; give ints")
    if len(wanted) != len(axes):
        raise ValueError(f"{call}: {len(wanted)} lengths are given for {len(axes)} axes; give one for each")
    places = {axis % len(shape): None for each in axes
              if (axis := as_integer(each)) is not None and -len(shape) <= axis < len(shape)}
    if not axes or len(places) != len(axes):
        raise ValueError(f"{call}: dim is {axes} for {len(shape)} dimensions; give each axis once, and at least one")
    axes = list(places)
    before = [shape[axis] if extent is None or extent == -1 else extent for axis, extent in zip(axes, wanted)]
    after = list(before)
    if function.kind == "C2R":
        after[-1] = 2 * (shape[axes[-1]] - 1) if wanted[-1] is None or wanted[-1] == -1 else before[-1]
        before[-1] = after[-1] // 2 + 1
    elif function.kind == "R2C":
        after[-1] = before[-1] // 2 + 1
    if any(extent < 1 for extent in (*before, *after)):
        raise ValueError(f"{call}: {wanted} indices are wanted along axes {axes} of the shape {list(shape)}, which "
                         f"gives {after}; each axis needs at least one")
    if norm not in (None, *_SWAPPED):
        raise ValueError(f"{call}: norm is {norm!r}; give one of None, {', '.join(map(repr, _SWAPPED))}")
    norm = norm or "backward"
    return _Request(tuple(axes), tuple(before), tuple(after), _SWAPPED[norm] if function.hermitian else norm)


def _dtype_for(call: str, function: _Function, dtype: torch.dtype) -> torch.dtype:
    """The dtype that the transform takes, as torch.fft promotes. TypeError for a real transform of complex values."""
    if function.kind == "R2C" and dtype.is_complex:
        raise TypeError(f"{call} takes a real DTensor, this one has dtype {dtype}")
    if not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    if function.kind == "R2C" or dtype.is_complex:
        return dtype
    return {torch.float16: torch.complex32, torch.float64: torch.complex128}.get(dtype, torch.complex64)


def _group_of(operand: Any, given: Any) -> Any:
    """The group of the call; None for a rank outside of a mesh of one dimension."""
    mesh = operand.device_mesh
    if given is None and mesh.ndim == 1:
        return None if mesh.get_coordinate() is None else _runtime.group_of(mesh.get_group(0))
    return _runtime.group_of(given)


def _rebuilt(local: torch.Tensor, like: Any, shape: Sequence[int]) -> Any:
    """A DTensor of ``shape`` with the placements of ``like``."""
    return unwrap(local, "DTensor", like.device_mesh, Placements(like.placements, like.device_mesh), shape)


def _mapped(operand: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A DTensor whose local values are ``function`` of the operand's. Differentiable as ``function``."""
    return _rebuilt(function(operand.to_local()), operand, tuple(operand.shape))


def _empty(function: _Function, request: _Request, operand: Any) -> Any:
    """The result on a rank outside of the mesh: torch runs nothing there either."""
    shape = list(operand.shape)
    for axis, extent in zip(request.axes, request.after):
        shape[axis] = extent
    dtype = {"C2R": {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64},
             "R2C": {torch.float16: torch.complex32, torch.float64: torch.complex128}}.get(function.kind, {}).get(
        operand.dtype, torch.complex64 if function.kind == "R2C" else operand.dtype)
    return _rebuilt(local_tensor(operand).new_empty((0,) * len(shape), dtype=dtype), operand, shape)


def _resized(operand: Any, shape: Dims, group: Any, call: str, key: str) -> Any:
    """The DTensor cut off, or filled with zeros, to ``shape``. Collective."""
    ranks = global_ranks(resolve_backend(group))
    cut = Placements(operand.placements, operand.device_mesh).grouped(ranks)
    before, after = (_ends.make_end(call, "the operand", cut, dims, len(ranks), overlaps=True)
                     for dims in (tuple(operand.shape), shape))
    return _rebuilt(_Resize.apply(operand.to_local(), group, before, after, call, key), operand, shape)


class _Resize(torch.autograd.Function):
    """The elements that both shapes have, and zeros elsewhere. The gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: Any, before: _ends.End, after: _ends.End, call: str,
                key: str) -> torch.Tensor:
        ctx.kept = group, before, after, call, key
        return _resize(local.detach(), *ctx.kept)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        group, before, after, call, key = ctx.kept
        result = _resize(grad, group, after, before, f"{call}.backward", f"backward {key}")
        return result, None, None, None, None, None


def _resize(local: torch.Tensor, group: Any, before: _ends.End, after: _ends.End, name: str, key: str) -> torch.Tensor:
    rank = _C.rank(resolve_backend(group))
    common = tuple(min(extents) for extents in zip(before.global_shape, after.global_shape))
    share = after.shares[rank]
    result = _runtime.empty(share.local_shape, local.dtype, local.device).zero_()
    regions = [_inside(end.shares[rank], common) for end in (before, after)]
    op = kept_move(group, f"padding {local.dtype} {key}", shape=common, dtype=local.dtype, inputs=regions[0],
                   outputs=regions[1], name=f"padding of {name}")
    op([local.resolve_conj().resolve_neg()] if regions[0] else [], [result] if regions[1] else []).wait()
    return result


def _inside(share: Share, common: Dims) -> list[Pieces]:
    """The parts of a local array inside of an array of shape ``common``, as a list for compile_op."""
    boxes = [(piece.offset, extents, piece.local_offset) for piece in share.pieces for extents in [
        tuple(min(begin + extent, end) - begin for begin, extent, end in zip(piece.offset, piece.shape, common))]
             if all(extent > 0 for extent in extents)]
    return [Pieces(share.local_shape, boxes)] if boxes else []
