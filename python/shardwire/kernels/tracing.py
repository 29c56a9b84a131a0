"""Makes a graph, a key and compiled code from a kernel and example tensors. One rank's work: nothing here
communicates, and a kernel that would communicate while tracing is refused.

torch 2.6 and later: torch.export, then AOTInductor. Before: torch.jit.trace, whose package is TorchScript.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from .. import _C, errors
from ..compiler.compile_op import CustomOp, name_of_op
from ..compiler.layout import kind_of
from . import machine
from .tensor_forms import TensorForm
from .graph_text import communication_in, text_of, value_digest
from .ops_inside import check_all_used, describe_op, names_in, record
from .package import SCHEMA, Package

_LONGEST_ERROR = 6000
_tracing = threading.RLock()


class Traced:
    """A kernel's graph. ``package`` is complete except for the code; ``compile`` adds the code."""

    def __init__(self, package: Package, make_code: Callable[[], bytes]) -> None:
        self.package = package
        self._make_code = make_code

    def compile(self) -> Package:
        """The whole package. KernelError with the compiler's message when the compiler fails."""
        try:
            with _tracing:
                self.package.code = self._make_code()
        except ModuleNotFoundError as error:
            wanted = (error.name or "").split(".")[0]
            raise errors.KernelError(f"the kernel {self.package.name!r} could not be compiled: torch's compiler needs "
                                     f"the Python package {wanted!r}, which is not there; install it (pip install "
                                     f"{wanted}; on Debian: apt-get install python3-{wanted})") from error
        except Exception as error:
            raise errors.KernelError(f"the kernel {self.package.name!r} could not be compiled: "
                                     f"{_words(error)}") from error
        return self.package


class _Result:
    """The form of a kernel's own result during tracing. A separate object, since torch.export undoes changes of a
    module's attributes."""

    def __init__(self) -> None:
        self.returns = ""
        self.ops: list[str] = []  # names of the compiled ops that the kernel ran
        self._tensors: list[tuple[str, torch.Tensor]] = []

    def set(self, returns: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.returns, self._tensors = returns, tensors

    def outputs(self) -> list[TensorForm]:
        """Only after tracing: while torch.jit traces, shapes are tensors."""
        return [TensorForm.of(name, value) for name, value in self._tensors]


class Wrapper(torch.nn.Module):
    """The kernel as a module that returns a flat tuple."""

    def __init__(self, kernel: Any, result: _Result) -> None:
        super().__init__()
        self.kernel = kernel  # a module becomes a submodule of the wrapper, with its parameters
        self._result = result

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._result.ops.clear()  # torch may trace more than once
        result = self.kernel(*tensors)
        names, values, kind = _flattened(result)
        for name, value in zip(names, values):
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"the kernel returns {kind_of(value)} as {name!r}; a kernel may return a tensor, a "
                                "tuple, list or dict of tensors, or nothing")
        self._result.set(kind, list(zip(names, values)))
        return tuple(values)


def _flattened(result: Any) -> tuple[list[str], list[Any], str]:
    if isinstance(result, Mapping):
        return [str(name) for name in result], list(result.values()), "dict"
    if result is None:
        return [], [], "tuple"
    if isinstance(result, (tuple, list)):
        return ([f"output{index}" for index in range(len(result))], list(result),
                "list" if isinstance(result, list) else "tuple")
    return ["output0"], [result], "tensor"


def trace(kernel: Any, args: Sequence[torch.Tensor], forms: list[TensorForm], name: str, settings: dict[str, Any],
          cc: bool, describe_group: Callable[[str], Any]) -> Traced:
    """Traces ``kernel``.

    settings: of the compiler. cc: whether the kernel may communicate. describe_group: maps the name of a group in the
    graph to the group's part of the key; raises when this process has no such group.

    Raises KernelError when the kernel cannot be traced, UnsupportedError for features that a compiled kernel cannot
    have, ValueError for communication where communication is off.
    """
    result = _Result()
    wrapper = Wrapper(kernel, result)
    with _tracing:
        with _without_eager_communication(cc, result.ops) as refusals:
            try:
                graph, code, changed, calls, ops = (_export if machine.HAS_AOTI else _script)(wrapper, args, settings)
            except Exception:
                if refusals:  # raises our own error, without the text that torch added
                    raise refusals[0] from None
                raise
    check_all_used(result.ops, ops)
    package = Package("", name, "aotinductor" if machine.HAS_AOTI else "torchscript", forms, result.outputs(),
                      result.returns, changed, ops=sorted(set(ops)))
    if calls and not cc:
        raise ValueError(f"the kernel {name!r} communicates ({', '.join(sorted({call for call, _ in calls}))}), and "
                         "communication is off: run the kernel in a group of several ranks, or give cc_enabled=True; "
                         "or take the collectives out of the kernel")
    package.groups = sorted({group for _, group in calls if group is not None})
    made_from = {"schema": SCHEMA, "graph": graph, "inputs": [form.as_list() for form in forms],
                 "outputs": [form.as_list() for form in package.outputs], "returns": package.returns,
                 "loads": machine.loads(), "compiles": machine.compiles(settings, forms[0].device if forms else "cpu"),
                 "groups": [describe_group(group) for group in package.groups],
                 "ops": [describe_op(op) for op in package.ops]}
    package.key = hashlib.blake2b(json.dumps(made_from, sort_keys=True).encode(), digest_size=20).hexdigest()
    return Traced(package, code)


# The graph's text, a function that compiles, indices of changed inputs, collectives with group names, names of compiled
# ops.
_Made = tuple[str, Callable[[], bytes], list[int], list[tuple[str, "str | None"]], list[str]]


def _export(wrapper: Wrapper, args: Sequence[torch.Tensor], settings: dict[str, Any]) -> _Made:
    with _errors_of_tracing(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(wrapper, tuple(args), strict=False).run_decompositions({})
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        raise errors.UnsupportedError("the kernel changes the buffer "
                                      f"{next(iter(signature.buffers_to_mutate.values()))!r} of its module; give it as "
                                      "a tensor and return it, or put the module into eval mode")
    changed = sorted(list(signature.user_inputs).index(name) for name in signature.user_inputs_to_mutate.values())

    def code() -> bytes:
        import torch._inductor
        with (tempfile.TemporaryDirectory(prefix="shardwire-kernel-") as folder, torch.no_grad(),
              warnings.catch_warnings(), machine.links_with_this_torch()):
            warnings.simplefilter("ignore", FutureWarning)
            made = torch._inductor.aoti_compile_and_package(program, package_path=os.path.join(folder, "kernel.pt2"),
                                                            inductor_configs=dict(settings))
            with open(made, "rb") as file:
                return file.read()
    return text_of(program), code, changed, communication_in(program), names_in(program)


def _script(wrapper: Wrapper, args: Sequence[torch.Tensor], settings: dict[str, Any]) -> _Made:
    if settings:
        raise errors.UnsupportedError(f"additional_compiler_args are AOTInductor's, which torch {torch.__version__} "
                                      "does not have; it needs torch 2.6")
    copies = tuple(tensor.detach().clone() for tensor in args)  # tracing runs the kernel, which may write to its inputs
    before = [tensor._version for tensor in copies]
    # Not train(), which would change the user's submodules.
    wrapper.training = wrapper.kernel.training if isinstance(wrapper.kernel, torch.nn.Module) else False
    with _errors_of_tracing(), torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(wrapper, copies, check_trace=False)
        if not wrapper.training:
            traced = torch.jit.freeze(traced)
    for warning in caught:
        if issubclass(warning.category, torch.jit.TracerWarning):
            raise errors.KernelError("the kernel looks at values of its tensors (if, while, item(), ...), which "
                                     f"torch.jit.trace would fix to those of the example; torch {torch.__version__} "
                                     "cannot compile it, and torch 2.6 compiles torch.cond: "
                                     f"{_first_line(warning.message)}")  # type: ignore[arg-type]

    def code() -> bytes:
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
        return buffer.getvalue()
    changed = [index for index, tensor in enumerate(copies) if tensor._version != before[index]]
    return _text_of_script(traced), code, changed, [], []


def _text_of_script(traced: Any) -> str:
    """The code, the graph, and the values of constants and parameters, without the parts that differ between equal
    kernels: line numbers, and numbers in class names."""
    graph = traced.inlined_graph
    parts = [re.sub(r"\s*# .*$", "", str(graph), flags=re.MULTILINE)]
    # The graph's text has "<Tensor>" for a tensor, also in lists (ts, and ival after freeze)
    parts += [value_digest(getattr(node, node.kindOf("value"))("value"))
              for node in graph.findAllNodes("prim::Constant")
              if "value" in node.attributeNames() and node.kindOf("value") in ("t", "ts", "ival")]
    parts += [f"{name} {value_digest(value)}" for name, value in sorted(traced.state_dict().items())]
    with zipfile.ZipFile(io.BytesIO(traced.save_to_buffer())) as archive:
        parts += [archive.read(entry).decode() for entry in sorted(archive.namelist()) if entry.endswith(".py")]
    return re.sub(r"\.?___torch_mangle_\d+", "", "\n".join(parts))


# Eager communication: tracing would run such a call instead of recording the call. Only one rank traces, so the call
# would wait for ever.

_OFF = ("the kernel calls a compiled op, and communication is off: run the kernel in a group of several ranks, or give "
        "cc_enabled=True; or call the op outside of the kernel")
# Each collective of shardwire, and each request to symmetric memory, goes through one of these functions first. Most go
# through exchange, which gets the call's name.
_NATIVE = {"compile_op": "compile_op", "attach": "attach of a compiled op", "symm_make": "shardwire.symm.empty",
           "symm_wait": "shardwire.symm.signal_wait", "symm_atomic": "an atomic of shardwire.symm",
           **{f"symm_{name}": f"shardwire.symm.{name}" for name in ("free", "barrier", "put", "get")},
           **{f"symm_{name}": f"{name} of a multicast tensor" for name in ("ld_reduce", "store", "red")}}
_EAGER = ("a kernel cannot call {what}: it would run while rank 0 traces, and not in the kernel; use "
          "torch.distributed._functional_collectives (torch 2.6 and later), or call it outside of the kernel")


@contextlib.contextmanager
def _without_eager_communication(cc: bool, ops: list[str]) -> Iterator[list[Exception]]:
    """A context in which this thread's calls of torch.distributed's and shardwire's collectives raise UnsupportedError,
    and calls of compiled ops are recorded where recording is possible. Calls of other threads pass through.

    ops: receives the names of the recorded ops. Yields the list of raised errors.
    """
    own = threading.get_ident()
    refusals: list[Exception] = []

    def refuse(what: str) -> Any:
        raise errors.UnsupportedError(_EAGER.format(what=what))

    def call_op(op: CustomOp, *args: Any, **named: Any) -> Any:
        if not machine.HAS_AOTI:
            refuse("a compiled op")
        if not cc:
            raise ValueError(_OFF)
        ops.append(name_of_op(op))
        return record(op, *args, **named)

    def instead(real: Any, call: Callable[..., Any]) -> Any:
        def asked(*args: Any, **named: Any) -> Any:
            if threading.get_ident() != own:
                return real(*args, **named)
            try:
                return call(*args, **named)
            except Exception as error:
                refusals.append(error)
                raise
        return asked

    # Each collective of torch.distributed calls this function first, however the collective was imported. get_rank()
    # and similar functions call the function too.
    is_outside = c10d._rank_not_in_group

    def ask(group: Any) -> Any:
        caller = sys._getframe(2).f_code.co_name
        return is_outside(group) if "get_" in caller else refuse(f"torch.distributed.{caller}")

    def refusing(what: str) -> Callable[..., Any]:
        return lambda *args, **named: refuse(what)

    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (c10d, "_rank_not_in_group", ask), (CustomOp, "__call__", call_op),
        (CustomOp, "bind", refusing("bind of a compiled op")),
        (_C, "exchange", lambda backend, call, *args, **named: refuse(call)),
        *((_C, name, refusing(what)) for name, what in _NATIVE.items())]
    real = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, call in places:
        setattr(owner, name, instead(getattr(owner, name), call))
    try:
        yield refusals
    finally:
        for owner, name, value in real:
            setattr(owner, name, value)


@contextlib.contextmanager
def _errors_of_tracing() -> Iterator[None]:
    """Our own errors and TypeErrors lose the text that torch added; other errors become a KernelError."""
    try:
        yield
    except (errors.ShardwireError, TypeError) as error:
        raise type(error)(_first_line(error)) from error
    except Exception as error:
        raise errors.KernelError(f"the kernel could not be traced: {_words(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _words(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR // 2]}\n...\n{text[-_LONGEST_ERROR // 2:]}"
