"""The identity of a kernel as text, which ranks compare before one rank compiles for all: the code, the plain values
bound to the code, and the parameters."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from typing import Any

import torch

from .graph_text import text_of, value_digest

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def name_of(kernel: Any) -> str:
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    return str(getattr(kernel, "__name__", type(kernel).__name__))


def is_program(kernel: Any) -> bool:
    """Whether ``kernel`` is torch's ExportedProgram; never imports torch.export."""
    return any(base.__name__ == "ExportedProgram" and base.__module__.startswith("torch.")
               for base in type(kernel).__mro__)


def identity(kernel: Any) -> dict[str, str]:
    """By aspect ("the kernel's code", "the parameter 'weight'"): a name or digest, equal on ranks with equal
    kernels."""
    if is_program(kernel):
        return {"the exported program": _digest(text_of(kernel))}
    if isinstance(kernel, functools.partial):
        bound = {f"the bound argument {name!r}": _value(value)
                 for name, value in [*enumerate(kernel.args), *kernel.keywords.items()]}
        return {**identity(kernel.func), **bound}
    if isinstance(kernel, torch.nn.Module):
        values = {f"the {label} {name!r}": value_digest(value)
                  for label, table in (("parameter", kernel.named_parameters()), ("buffer", kernel.named_buffers()))
                  for name, value in table}
        # torch's own modules: torch's version is compared
        kinds = {type(module): None for module in kernel.modules() if not type(module).__module__.startswith("torch.")}
        for kind in kinds:
            values.update(_variables(kind.forward, f"{kind.__qualname__}.forward"))
        return {"the module": f"{type(kernel).__qualname__}, {_digest(str(kernel))}",
                "the module's mode": "training" if kernel.training else "eval",
                "the kernel's code": _code(getattr(type(kernel).forward, "__code__", None)), **values}
    function = getattr(kernel, "__func__", kernel)
    return {"the kernel's name": str(getattr(function, "__qualname__", type(function).__qualname__)),
            "the kernel's code": _code(getattr(function, "__code__", None)), **_variables(function, "the kernel")}


def _variables(function: Any, reader: str) -> dict[str, str]:
    """The variables of a function's closure, and the plain values and tensors among the globals in its code."""
    found: dict[str, str] = {}
    code, values = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or ()):
        try:
            found[name] = _value(cell.cell_contents)
        except ValueError:  # the variable is not assigned yet
            pass
    for name in _globals_read(code):
        if name in values and (isinstance(values[name], torch.Tensor) or _is_plain(values[name])):
            found[name] = _value(values[name])
    return {f"the variable {name!r}, which {reader} reads": value for name, value in found.items()}


def _globals_read(code: types.CodeType | None) -> list[str]:
    """With those of nested functions and comprehensions."""
    if code is None:
        return []
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            names.update(_globals_read(value))
    return sorted(names)


def _value(value: Any) -> str:
    """Plain values and tensors in full; for other values only the type, since two equal values may have different
    texts."""
    if isinstance(value, torch.Tensor):
        return value_digest(value)
    return repr(value) if _is_plain(value) else type(value).__qualname__


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or isinstance(value, tuple) and all(map(_is_plain, value))


def _code(code: types.CodeType | None) -> str:
    return "none" if code is None else _digest(_text_of_code(code))


def _text_of_code(code: types.CodeType) -> str:
    constants = [_text_of_code(value) if isinstance(value, types.CodeType)
                 else repr(sorted(value, key=repr) if isinstance(value, frozenset) else value)
                 for value in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
