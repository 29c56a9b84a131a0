"""An exported program as text, equal exactly for programs that compute the same by the same steps; and the
communication in a program."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from ..plain.tensor_bytes import bytes_of


def text_of(program: Any) -> str:
    """Every node of the graph and of nested graphs, with shapes, strides, dtypes and devices; and the values of all
    parameters and constants."""
    lines: list[str] = []
    for path, module in program.graph_module.named_modules():
        graph = getattr(module, "graph", None)
        if graph is None:
            continue
        lines.append(f"graph {path}")
        for node in graph.nodes:
            lines.append(f"{node.name} {node.op} {_target(node.target)} {node.args!r} {node.kwargs!r} "
                         f"{_meta(node.meta.get('val'))}")
    lines.append(str([(str(spec.kind), str(spec.arg), spec.target) for spec in program.graph_signature.input_specs]))
    lines.append(str([(str(spec.kind), str(spec.arg), spec.target) for spec in program.graph_signature.output_specs]))
    for label, table in (("state", program.state_dict), ("constant", program.constants)):
        lines += [f"{label} {name} {value_digest(value)}" for name, value in sorted(table.items())]
    return "\n".join(lines)


def value_digest(value: Any) -> str:
    """Form and bytes of a tensor, and of the tensors in a list, tuple or dict. For other values the repr, which may
    contain an address: then the kernel is compiled anew, and a wrong package is never found."""
    if isinstance(value, dict):
        return value_digest([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_digest, value))}]"
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    data = bytes_of(plain).numpy() if plain.numel() else b""
    return f"{_meta(value)} {hashlib.blake2b(data, digest_size=20).hexdigest()}"


def _target(target: Any) -> str:
    if isinstance(target, (str, torch._ops.OpOverload)):
        return str(target)
    name = getattr(target, "__qualname__", target) if callable(target) else target
    return f"{getattr(target, '__module__', '')}.{name}"


def _meta(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_meta(item) for item in value)}]"
    return str(value)


def communication_in(program: Any) -> list[tuple[str, str | None]]:
    """Every collective of the graph, with the name of the collective's group (None: the node names no group)."""
    return [(str(node.target), _group_of(node)) for _, module in program.graph_module.named_modules()
            for node in getattr(getattr(module, "graph", None), "nodes", ()) if node.op == "call_function"
            and getattr(node.target, "namespace", "") in ("_c10d_functional", "c10d_functional", "c10d", "_dtensor")
            and "wait_tensor" not in str(node.target)]


def _group_of(node: Any) -> str | None:
    arguments = node.target._schema.arguments
    for position, argument in enumerate(arguments):
        if argument.name in ("group_name", "tag_and_group"):
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            return value if isinstance(value, str) else None
    return None
