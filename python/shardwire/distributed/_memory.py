"""Memory for operands, by nvmath's names: in the heap that the ranks share, where an exchange copies each byte once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _C
from ..compiler.agree import Attempt
from ..compiler.layout import kind_of, as_dims
from . import _meeting, _runtime
from ._operand import wrap


def allocate_symmetric_memory(shape: Sequence[int], package: Any, *, dtype: Any = None, axis_order: str = "C",
                              make_symmetric: bool = False, skip_symmetric_check: bool = False, logger: Any = None,
                              group: Any = None) -> Any:
    """An uninitialised array in the heap that the ranks share. Collective over the group, with one error on all ranks.

    package: the module ``torch`` or ``numpy``, for the array's kind. dtype: the package's; None: torch's default,
        float64 of numpy. axis_order: "C" or "F".
    make_symmetric: whether ranks may ask for different numbers of bytes, ValueError else. skip_symmetric_check: this
        rank exchanges nothing; give the option on all ranks or on none.
    logger: of Python's logging; gets one line at level INFO. group: None: the context's.

    The memory is returned with the last reference to the array, as any array's, whether :func:`free_symmetric_memory`
    was called or not.
    """
    tensor = torch.empty(0, device="cpu")
    skips = may_differ = False
    with Attempt() as attempt:
        skips, may_differ = bool(skip_symmetric_check), bool(make_symmetric)
        if axis_order not in ("C", "F"):
            raise ValueError(f"axis_order is {kind_of(axis_order)}; give 'C' or 'F'")
        tensor = _runtime.empty(as_dims(shape, "shape"), dtype_in(package, dtype), torch.device("cpu"), axis_order)
    if skips:
        if attempt.error is not None:
            raise attempt.error
    else:
        facts = {"bytes": tensor.numel() * tensor.element_size(), "make_symmetric": may_differ}
        everyone = _meeting.exchange(_runtime.group_of(group), "allocate_symmetric_memory", facts, attempt.error)
        for rank, record in enumerate(everyone):
            if record["bytes"] != everyone[0]["bytes"] and not all(each["make_symmetric"] for each in everyone):
                raise ValueError(f"allocate_symmetric_memory: rank 0 asks for {everyone[0]['bytes']} bytes, rank "
                                 f"{rank} for {record['bytes']}; give make_symmetric=True on all ranks where they "
                                 "differ")
    if logger is not None:
        logger.info("allocate_symmetric_memory: %d bytes in the heap that the ranks share",
                    tensor.numel() * tensor.element_size())
    return tensor.numpy() if package.__name__ == "numpy" else tensor


def free_symmetric_memory(*arrays: Any, group: Any = None) -> None:
    """States that these arrays, made by :func:`allocate_symmetric_memory` or ``fft.allocate_operand``, are no longer
    used. Collective, with one error on all ranks: each rank gives the same number of arrays. The memory is returned
    when the program drops the arrays."""
    with Attempt() as attempt:
        for index, array in enumerate(arrays):
            local = wrap(array, f"array {index}").tensor
            if local.numel() and not _C.in_shared_heap(local):
                raise ValueError(f"array {index} does not lie in the heap that the ranks share; give what "
                                 "allocate_symmetric_memory made")
    everyone = _meeting.exchange(_runtime.group_of(group), "free_symmetric_memory", {"count": len(arrays)},
                                 attempt.error)
    for rank, record in enumerate(everyone):
        if record["count"] != everyone[0]["count"]:
            raise ValueError(f"free_symmetric_memory: rank 0 frees {everyone[0]['count']} arrays, rank {rank} "
                             f"{record['count']}; give the same number on all ranks")


def dtype_in(package: Any, dtype: Any) -> torch.dtype:
    """torch's dtype for a dtype of ``package``, which is torch or numpy; None: the package's default. ValueError for
    other packages."""
    name = getattr(package, "__name__", None)
    if name not in ("torch", "numpy"):
        raise ValueError(f"package is {kind_of(name)}; arrays are made for torch or numpy")
    if dtype is None:
        return torch.get_default_dtype() if name == "torch" else torch.float64
    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, package.dtype(dtype).name)
