"""DeviceKernel: a compiled kernel on this rank. See docs/kernels.md."""

from __future__ import annotations

import inspect
import io
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import torch

from .. import errors
from .._integers import as_count
from ..compiler.future import Seconds, as_seconds
from ..compiler.layout import kind_of
from ..compiler.other_order import other_order
from ..plain.tensor_bytes import is_within_reach
from . import machine
from .compiled_kernel import read_file
from .device_tensor import DeviceTensor, all_as_torch, as_torch, check_written
from .tensor_forms import TensorForm, TensorMetadata, by_name, check_memory_apart, forms_of_arguments, in_order
from .identity import is_program, name_of
from .ops_inside import held_ops
from .package import Package
from .pattern import Pattern, build_folder, choose_pattern
from .timing import KernelTimes, measure
from .who_compiles import Request, compile_here, compile_together

Result = Union[torch.Tensor, "tuple[torch.Tensor, ...]", "list[torch.Tensor]", "dict[str, torch.Tensor]"]
CompilerArgs = Union[str, Sequence[str], Mapping[str, Any], None]
_SCALARS = (bool, int, float, str, type(None))


class DeviceKernel:
    """A kernel, compiled and loaded by :meth:`compile_and_load`. Call the kernel with tensors, from any thread.

    name. key: a hash of the graph, the settings and the machine. inputs, outputs: forms (name, shape, dtype, device,
    strides). compiler: "aotinductor" or "torchscript".
    origin: "compiled" here, "received" from another rank, or found in "memory" or on "disk". path: the file of the
    package. rank_id, world_size, cc_enabled: the values that the call decided on. seconds: the duration of
    compile_and_load.
    """

    def __init__(self, name: str, package: Package, run: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
                 origin: str, pattern: Pattern, path: str, seconds: float) -> None:
        self.name, self.key, self.inputs, self.outputs, self.compiler = (
            name, package.key, tuple(package.inputs), tuple(package.outputs), package.compiler)
        self.origin, self.path, self.seconds = origin, path, seconds
        self.rank_id, self.world_size, self.cc_enabled = pattern.rank, pattern.world, pattern.cc
        self._run, self._returns, self._changed = run, package.returns, package.changed
        self._ops = held_ops(package.ops)  # the compiled code finds the ops by name, as long as the ops live

    @property
    def neff_path(self) -> pathlib.Path:
        """``path``, by NKIPy's name. The file is no NEFF."""
        return pathlib.Path(self.path)

    @property
    def input_tensors_info(self) -> dict[str, TensorMetadata]:
        """size (bytes), dtype and shape of each input, by name, as in NKIPy."""
        return {form.name: form.metadata() for form in self.inputs}

    @property
    def output_tensors_info(self) -> dict[str, TensorMetadata]:
        """As input_tensors_info, of the outputs."""
        return {form.name: form.metadata() for form in self.outputs}

    @classmethod
    def compile_and_load(cls, kernel: Any, *args: torch.Tensor, name: str | None = None,
                         additional_compiler_args: CompilerArgs = None, use_cached_if_exists: bool = True,
                         build_dir: str | os.PathLike[str] | None = None, target: str | None = None,
                         is_spmd: bool = True, cc_enabled: bool | None = None, rank_id: int | None = None,
                         world_size: int | None = None, group: Any = None, timeout: Seconds = None,
                         **kwargs: Any) -> DeviceKernel:
        """Compiles ``kernel`` for tensors like ``args`` and loads the result. Where communication is on, every rank of
        the group calls compile_and_load.

        kernel: a function of tensors that returns a tensor, or a tuple, list or dict of tensors; an ``nn.Module``; or a
            ``torch.export.ExportedProgram``, whose own example tensors serve where none are given. The kernel is
            compiled for inference: results carry no gradients.
        args, kwargs: example tensors, by position or by the names of the kernel's parameters; numpy arrays and
            :class:`kernels.DeviceTensor` too. Shapes, dtypes, strides and kind of device count; values do not.
        name: for messages; None: the kernel's own.
        additional_compiler_args: settings of torch's inductor, ``{"max_autotune": True}`` or ``"max_autotune=True"``;
            part of the key.
        use_cached_if_exists: False compiles anew, and replaces the package in memory and on disk.
        build_dir: the folder of packages, with subfolders ``spmd``, ``rank_R`` or ``local``; None:
            SHARDWIRE_KERNEL_DIR, else shardwire/kernels in the user's cache folder.
        target: the kind of device, "cpu" or "cuda", on which all tensors must lie; None: the devices of the tensors.
        is_spmd: with communication on, True: rank 0 traces and compiles, and the other ranks get the package's bytes.
            False: each rank compiles its own package, and nothing is sent.
        cc_enabled: whether the kernel may communicate; None: where there is a group of more than one rank.
        rank_id, world_size: where there is no group. group: as for ``compile_op``; None: the default group, if there is
            one.
        timeout: seconds to wait for the other ranks in each step, rank 0's compiler included; None: the group's.

        With is_spmd=True and communication on, every rank raises an error of the same type and text: TypeError,
        ValueError, :class:`MismatchError` where ranks ask for different things, :class:`KernelError` when the kernel
        cannot be traced, compiled or loaded, :class:`TimeoutError` naming the missing ranks, :class:`UnsupportedError`.
        """
        start = time.perf_counter()
        pattern, failure = _pattern_or_failure(is_spmd, cc_enabled, rank_id, world_size, group)
        request = None
        seconds = None
        try:
            seconds = as_seconds(timeout)
            if failure is not None:
                raise failure
            folder = os.path.join(build_folder(build_dir), pattern.folder)
            args = tuple(as_torch(each) for each in in_order(kernel, args, kwargs))
            request = _request(kernel, args, name, additional_compiler_args, use_cached_if_exists, folder, target)
        except Exception as caught:
            if not pattern.ships:
                raise
            failure = caught
        if pattern.ships:
            package, origin, run = compile_together(request, pattern, seconds, failure, _load)
        else:
            assert request is not None
            package, origin, run = compile_here(request, pattern, _load)
        assert request is not None  # otherwise one of the calls above has raised
        path = os.path.join(folder, package.key + ".swkn")
        return cls(request.name, package, run, origin, pattern, path, time.perf_counter() - start)

    @classmethod
    def load_from_file(cls, path: str | os.PathLike[str], name: str | None = None, core_id: int = 0,
                       cc_enabled: bool = False, rank_id: int = 0, world_size: int = 1) -> DeviceKernel:
        """Loads a kernel that was compiled before, from its file, the ``path`` of a DeviceKernel. Local to this rank;
        nothing is compiled.

        name: for messages; None: the kernel's own. core_id is not used: kernels run on the host's cores.
        cc_enabled: whether the kernel may communicate, ValueError where it does and must not. rank_id, world_size: kept
            as attributes.

        Raises FileNotFoundError, and :class:`KernelError` for a file that is no kernel for this machine.
        """
        start = time.perf_counter()
        pattern = choose_pattern(False, cc_enabled, rank_id, world_size, None)
        package = read_file(path)
        if (package.groups or package.ops) and not cc_enabled:
            raise ValueError(f"the kernel {package.name!r} communicates; give cc_enabled=True")
        run = _load(package)
        return cls(name or package.name, package, run, "disk", pattern, os.path.abspath(path),
                   time.perf_counter() - start)

    @other_order(1, Mapping, ("inputs", "outputs", "save_trace", "ntff_name"), fixed=1)
    def __call__(self, *tensors: torch.Tensor, inputs: Mapping[str, Any] | None = None,
                 outputs: Mapping[str, Any] | None = None, save_trace: bool = False,
                 ntff_name: str | None = None) -> Result | Mapping[str, Any]:
        """Runs the kernel: ``k(a, b)``, or ``k(inputs={"a": a, "b": b})``, or ``k({"a": a, "b": b})``. Tensors, or
        numpy arrays and :class:`kernels.DeviceTensor`.

        outputs: tensors by name ("output0", "output1", ..., or the keys of the dict that the kernel returns). The
            results are copied into these tensors, and the call returns the same tensors. Without outputs, and with
            DeviceTensors among the inputs, the call returns DeviceTensors by name.
        save_trace: the operations of this run are written to ``ntff_name``, a file for chrome://tracing; None: beside
            the package, with the ending .json.

        Raises TypeError or ValueError before anything runs where count, names, shapes, dtypes, devices or strides
        differ from the compiled forms.
        """
        if save_trace:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                done = self(*tensors, inputs=inputs, outputs=outputs)
            profile.export_chrome_trace(ntff_name or os.path.splitext(self.path)[0] + ".json")
            return done
        named = inputs.values() if isinstance(inputs, Mapping) else ()
        as_device = any(isinstance(each, DeviceTensor) for each in (*tensors, *named))
        given = self._tensors(tensors, inputs)
        targets = None if outputs is None else self._targets(outputs)
        with torch.no_grad():
            results = self._run(given)
            if targets is not None:
                _fill(targets, results)
                return outputs  # type: ignore[return-value]
        if as_device:
            return {form.name: DeviceTensor.from_torch(result, form.name)
                    for form, result in zip(self.outputs, results)}
        return self._as_returned(results)

    def allocate_output_tensors(self) -> list[DeviceTensor]:
        """A tensor of zeros for each output, with the output's name."""
        return [DeviceTensor(torch.zeros(form.shape, dtype=_dtype_of(form), device="cpu"), form.shape, _dtype_of(form),
                             form.name) for form in self.outputs]

    @other_order(1, Mapping, ("inputs", "outputs", "warmup_iter", "benchmark_iter", "mode"), fixed=1)
    def benchmark(self, *tensors: torch.Tensor, inputs: Mapping[str, Any] | None = None, mode: str | None = None,
                  warmup: int | None = None, iterations: int | None = None, outputs: Mapping[str, Any] | None = None,
                  warmup_iter: int | None = None, benchmark_iter: int | None = None) -> KernelTimes:
        """Runs the kernel ``warmup`` times, then ``iterations`` times, and returns the times of the latter, in seconds.
        outputs: as in a call; filled by each run in the mode "host", and after the last run in the mode "device".
        warmup_iter, benchmark_iter: NKIPy's names of warmup and iterations.

        mode: "host", whole calls with all checks; "device", the compiled code alone (on an accelerator, between two of
            its events).

        By default 10 and 100 calls in the mode "host". In a call of NKIPy's form, with inputs and without warmup and
        iterations, 5 and 5 calls in the mode "device", as in NKIPy.

        Without tensors, example tensors are made: random values for floating types, zeros for other types. All ranks
        together measure a kernel that communicates.
        """
        is_nkipys = inputs is not None and warmup is None and iterations is None
        warmup, iterations = (default if given is None else given for given, default in zip(
            (warmup if warmup_iter is None else warmup_iter, iterations if benchmark_iter is None else benchmark_iter),
            (5, 5) if is_nkipys else (10, 100)))
        mode = ("device" if is_nkipys else "host") if mode is None else mode
        if mode not in ("host", "device"):
            raise ValueError(f"mode is {kind_of(mode)}; give 'host' or 'device'")
        for label, count, least in (("warmup", warmup, 0), ("iterations", iterations, 1)):
            if as_count(count, least) is None:
                raise ValueError(f"{label} is {kind_of(count)}; give an int of at least {least}")
        given = (self._tensors(tensors, inputs) if tensors or inputs is not None
                 else [_example(form) for form in self.inputs])
        device = given[0].device if given else torch.device("cpu")
        targets = None if outputs is None else self._targets(outputs)
        last: Sequence[torch.Tensor] = ()

        def run() -> None:
            nonlocal last
            last = self._run(given)

        with torch.no_grad():
            if mode == "host":
                return measure(lambda: self(*given, outputs=outputs), device, mode, warmup, iterations)
            if targets is None:
                return measure(lambda: self._run(given), device, mode, warmup, iterations)
            times = measure(run, device, mode, warmup, iterations)
            _fill(targets, last)
        return times

    def _tensors(self, tensors: Sequence[torch.Tensor],
                 inputs: Mapping[str, torch.Tensor] | None) -> list[torch.Tensor]:
        if inputs is not None:
            if tensors:
                raise TypeError("tensors are given by position and by inputs=; give them one way")
            tensors = by_name(inputs, self.inputs, "inputs")
        for index in self._changed if len(tensors) == len(self.inputs) else ():
            check_written(tensors[index], repr(self.inputs[index].name))
        tensors = [as_torch(each) for each in tensors]
        if len(tensors) != len(self.inputs):
            raise ValueError(f"{len(tensors)} tensors given, the kernel {self.name!r} takes {len(self.inputs)}: "
                             f"{', '.join(form.name for form in self.inputs)}")
        for form, tensor in zip(self.inputs, tensors):
            form.check(tensor, repr(form.name), with_strides=True)
        if self._changed:
            check_memory_apart(tensors, self.inputs, self._changed)
        return list(tensors)

    def _targets(self, outputs: Mapping[str, Any]) -> list[torch.Tensor]:
        targets = by_name(all_as_torch(outputs), self.outputs, "outputs")
        for name, target in outputs.items():
            check_written(target, f"outputs[{name!r}]")
        for form, target in zip(self.outputs, targets):
            form.check(target, f"outputs[{form.name!r}]", with_strides=False)
        return targets

    def _as_returned(self, results: Sequence[torch.Tensor]) -> Result:
        if self._returns == "tensor":
            return results[0]
        if self._returns == "dict":
            return {form.name: result for form, result in zip(self.outputs, results)}
        return list(results) if self._returns == "list" else tuple(results)

    def __repr__(self) -> str:
        return (f"<shardwire.DeviceKernel {self.name!r}: {len(self.inputs)} inputs, {len(self.outputs)} outputs, "
                f"{self.compiler}, {self.origin}>")


def _fill(targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    # A result may be an input's own memory, which an earlier copy may write
    apart = [result.clone() if any(is_within_reach(result, target) for target in targets) else result
             for result in results]
    for result, target in zip(apart, targets):
        target.copy_(result)


def _pattern_or_failure(is_spmd: Any, cc_enabled: Any, rank_id: Any, world_size: Any,
                        group: Any) -> tuple[Pattern, Exception | None]:
    """The pattern. Where the arguments are wrong and yet name a group: the pattern of an SPMD call and the error, so
    that all ranks of the group are notified of the error."""
    try:
        return choose_pattern(is_spmd, cc_enabled, rank_id, world_size, group), None
    except (TypeError, ValueError) as error:
        if is_spmd is False or cc_enabled is False:
            raise
        try:
            pattern = choose_pattern(True, None, None, None, group)
        except (TypeError, ValueError):
            raise error from None
        if not pattern.ships:
            raise
        return pattern, error


def _request(kernel: Any, args: Sequence[Any], name: Any, compiler_args: Any, use_cached: Any, folder: str,
             target: Any) -> Request:
    if not isinstance(use_cached, bool):
        raise TypeError(f"use_cached_if_exists is {kind_of(use_cached)}; give True or False")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name is {kind_of(name)}; give a str or None")
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target is {kind_of(target)}; give a kind of device, such as 'cpu', or None")
    given = kernel
    if is_program(kernel):
        args = args or kernel.example_inputs[0]
        kernel = kernel.module()
    if inspect.isclass(kernel) or not callable(kernel):
        raise TypeError(f"kernel is {kind_of(kernel)}; give a function of tensors, an nn.Module or a "
                        "torch.export.ExportedProgram")
    forms = forms_of_arguments(kernel, args)
    devices = sorted({form.device for form in forms})
    if target is not None and devices and devices != [target]:
        raise ValueError(f"target is {target!r}, but the tensors lie on {' and '.join(devices)}; move them, or leave "
                         "target out")
    return Request(kernel, args, forms, name or name_of(given), _settings(compiler_args), use_cached, folder, given)


def _settings(given: Any) -> dict[str, Any]:
    """additional_compiler_args as settings by name."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        words = given.split() if isinstance(given, str) else given
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
            raise TypeError(f"additional_compiler_args is {kind_of(given)}; give a dict of inductor's settings, or "
                            "'name=value' words")
        for word in words:
            if "=" not in word:
                raise ValueError(f"additional_compiler_args has {word!r}; give inductor's settings as 'name=value'")
        pairs = [(name, _read(value)) for name, value in (word.split("=", 1) for word in words)]
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, _SCALARS):
            raise TypeError(f"additional_compiler_args[{name!r}] is {kind_of(value)}; give bools, numbers, strings or "
                            "None by name")
    return dict(pairs)


def _read(word: str) -> Any:
    named = {"True": True, "False": False, "None": None}
    if word in named:
        return named[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def _dtype_of(form: TensorForm) -> torch.dtype:
    return getattr(torch, form.dtype.removeprefix("torch."))


def _example(form: TensorForm) -> torch.Tensor:
    dtype = _dtype_of(form)
    tensor = torch.empty_strided(form.shape, form.strides, dtype=dtype, device=form.device)
    return (tensor.normal_() if dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
            else tensor.zero_())


def _load(package: Package) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """A function that runs the package's code. KernelError when torch cannot load the code."""
    wanted = "aotinductor" if machine.HAS_AOTI else "torchscript"
    if package.compiler != wanted:
        raise errors.KernelError(f"the kernel {package.name!r} is a package of {package.compiler}; torch "
                                 f"{torch.__version__} loads {wanted}")
    held_ops(package.ops)  # before torch looks up the operator that runs the ops
    try:
        if package.compiler == "torchscript":
            module = torch.jit.load(io.BytesIO(package.code))
            return lambda tensors: module(*tensors)
        return _load_aoti(package.code)
    except Exception as error:
        raise errors.KernelError(f"the kernel {package.name!r} cannot be loaded: {type(error).__name__}: {error}; "
                                 "use_cached_if_exists=False compiles it anew") from error


_loading = threading.Lock()
_UNPACKED = re.compile(  # the second form: torch 2.6, and 2.9 with the archive's name in between
    r"(/\S*/aotinductor_\w+|/tmp/\w{6}(?=/(?:\w+/)?data/aotinductor/))/\S*$")


def _load_aoti(code: bytes) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    # torch reads a file by name. This file has a name in no folder, and ends with the process.
    descriptor = os.memfd_create("shardwire-kernel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(code)
        path = f"/proc/self/fd/{descriptor}"
        loader = torch._C._aoti.AOTIModelPackageLoader
        with _loading:
            before = _unpacked()
            try:  # torch.load_package tests the compiler first, which takes seconds
                loaded = loader(path, "model", False, 1, -1)
            except TypeError:  # torch before 2.8
                loaded = loader(path, "model")
            for folder in _unpacked() - before:  # already mapped; a killed process would leave these folders behind
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
    return loaded.run


def _unpacked() -> set[str]:
    """The folders of torch's unpacked packages, as far as this process has mapped a file there."""
    with open("/proc/self/maps") as file:
        found = (_UNPACKED.search(line.rstrip()) for line in file)
        return {match.group(1) for match in found if match}
