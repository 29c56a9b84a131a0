"""The engines of a rank's local transforms: MKL's functions where torch's library has them, FFTW where the machine has
the library, torch.fft.

Which engine is fastest depends on the processor, the shape and the strides, by factors. So each local transform is
measured once, on a part, and the result is kept for the process. Ranks need not agree: the bytes of an exchange depend
on shapes and dtypes only, and each element is computed by one rank.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, NamedTuple

import torch

from . import _dfti, _fftw
from ._local_call import Call

# Smaller transforms take about as long in all engines: the call itself is the cost.
_LEAST = 4096
# Of larger transforms a part of _SAMPLE elements is measured; where a single transform is larger than _MOST, nothing is
# measured.
_SAMPLE, _MOST = 1 << 20, 1 << 24
# A measurement is the best of _RUNS runs after one to warm up, and ends early after _ENOUGH seconds.
_RUNS, _ENOUGH = 3, 0.03
# The results of torch.fft lie outside of the heap, so an exchange has to copy them once more: torch.fft is chosen only
# if faster than the others by this factor.
_HANDICAP = 1.2


class Engine(NamedTuple):
    """A library of local transforms on the CPU. ``make(library, call, careful)``: a transform with ``run(source,
    target)``, which returns the result. careful: make may take some tenths of a second to find the fastest way. writes:
    the result is written into ``target``; otherwise the result is new memory, and target is None."""

    short: str
    name: str
    library: Any
    can: Callable[[Call], bool]
    make: Callable[[Any, Call, bool], Any]
    writes: bool = True


class _TorchTransform:
    """torch.fft: any device, any strides; new memory for each result."""

    def __init__(self, _library: Any, call: Call, _careful: bool) -> None:
        self._call = call

    def run(self, source: torch.Tensor, _target: torch.Tensor | None) -> torch.Tensor:
        call = self._call
        if call.kind == "C2R":
            return torch.fft.irfft(source, n=call.lengths[call.axes[0]], dim=call.axes[0], norm=call.norm)
        if call.kind == "R2C":
            return torch.fft.rfftn(source, dim=call.axes, norm=call.norm)
        return (torch.fft.ifftn if call.inverse else torch.fft.fftn)(source, dim=call.axes, norm=call.norm)


class Choice(NamedTuple):
    """The engine of a local transform, and the reason. measured: microseconds by engine, of ``elements`` elements;
    empty where nothing was measured. careful: as for ``make``."""

    engine: Engine
    careful: bool
    measured: dict[str, float]
    elements: int
    why: str

    def summary(self) -> str:
        """For people."""
        if not self.measured:
            return f"{self.engine.name} ({self.why})"
        times = ", ".join(f"{short} {us:.0f} us"
                          for short, us in sorted(self.measured.items(), key=lambda item: item[1]))
        return f"{self.engine.name} (measured on {self.elements} elements: {times}{self.why[len('measured'):]})"


_lock = threading.Lock()
_choices: dict[Any, Choice] = {}


def torch_engine() -> Engine:
    return Engine("torch", f"torch.fft, which has {'MKL' if torch.backends.mkl.is_available() else 'pocketfft'}", None,
                  lambda call: True, _TorchTransform, writes=False)


def find() -> list[Engine]:
    """The engines to choose from, best guess first. torch.fft is always the last, and takes every call.

    SHARDWIRE_FFT_ENGINE: "mkl", "fftw" or "torch" fixes the engine; ValueError for other values and for a missing
    engine.
    """
    wanted = os.environ.get("SHARDWIRE_FFT_ENGINE", "")
    if wanted not in ("", "mkl", "fftw", "torch"):
        raise ValueError(f"SHARDWIRE_FFT_ENGINE is {wanted!r}; known: mkl, fftw, torch")
    found = []
    for short, name, module in (("mkl", "MKL's Dfti functions in torch's library", _dfti), ("fftw", "FFTW", _fftw)):
        if wanted in ("", short):
            library: Any = module.find()
            if library is not None:
                found.append(Engine(short, name, library, module.can, module.Transform))
            elif wanted:
                lacking = ("this torch exports no Dfti functions" if wanted == "mkl"
                           else "libfftw3.so.3 and libfftw3f.so.3 are not here")
                raise ValueError(f"SHARDWIRE_FFT_ENGINE is {wanted!r}, but {lacking}")
    return [*found, torch_engine()]


def choose(engines: list[Engine], call: Call, measure: bool) -> Choice:
    """The engine for ``call``, from earlier measurements in this process, or measured now: some tenths of a second at
    most for each engine.

    measure: False takes the first suitable engine.
    """
    able = [engine for engine in engines if engine.can(call)]
    careful = measure and call.elements >= _LEAST
    if os.environ.get("SHARDWIRE_FFT_ENGINE"):
        return Choice(able[0], careful, {}, 0,
                      "by SHARDWIRE_FFT_ENGINE" if able[0] is engines[0] else "what SHARDWIRE_FFT_ENGINE names cannot")
    if len(able) == 1:
        return Choice(able[0], careful, {}, 0, "no other can")
    sample = call.at_most(_SAMPLE)
    if not careful or sample.elements > _MOST:
        return Choice(able[0], careful, {}, 0,
                      "not measured" if not measure else f"too {'large' if careful else 'small'} to be measured")
    key = (sample._replace(factor=0.0 if call.factor != 1 else 1.0), call.source.shape,
           tuple(engine.short for engine in able), torch.get_num_threads())
    with _lock:
        if key not in _choices:
            _choices[key] = _measure(able, sample)
        return _choices[key]


def _measure(engines: list[Engine], sample: Call) -> Choice:
    source = sample.source.scratch()
    target = source if sample.in_place else sample.target.scratch()
    measured, refused = {}, ""
    for engine in engines:
        try:
            transform = engine.make(engine.library, sample, True)
        except RuntimeError as error:  # raised by FFTW when another library of the process broke FFTW's planner
            refused += f"; {error}"
            continue
        source.zero_()  # random memory contents may be slow to calculate with
        measured[engine.short] = 1e6 * _seconds(lambda: transform.run(source, target if engine.writes else None))
    best = min((engine for engine in engines if engine.short in measured),
               key=lambda engine: measured[engine.short] * (1.0 if engine.writes else _HANDICAP))
    return Choice(best, True, measured, sample.elements, "measured" + refused)


def _seconds(run: Callable[[], Any]) -> float:
    run()
    best, end = float("inf"), time.perf_counter() + _ENOUGH
    for _ in range(_RUNS):
        begin = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            break
    return best
