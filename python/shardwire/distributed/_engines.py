"""What transforms a rank's own part: MKL's functions where torch's library has them, FFTW where the machine has it, torch.fft.

Which of them is fastest depends on the processor, the shape and the strides, by factors. So each local transform is measured once, on a part of it, and
what was found is kept for the process. Ranks need not agree: what an exchange carries depends on shapes and dtypes only, and each element is computed by one rank.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, NamedTuple

import torch

from . import _dfti, _fftw
from ._local_call import Call

# Smaller transforms take about as long in all engines: the call is what costs.
_LEAST = 4096
# Of larger ones a part of so many elements is measured; where a single transform is larger than the second number, none.
_SAMPLE, _MOST = 1 << 20, 1 << 24
# A measurement is the best of so many runs after one to warm up, and ends early after so many seconds.
_RUNS, _ENOUGH = 3, 0.03
# What torch.fft gives lies outside of the heap, so an exchange has to copy it once more: it must be so much faster than the others.
_HANDICAP = 1.2


class Engine(NamedTuple):
    """A library of local transforms on the CPU. ``make(library, call, careful)``: a transform with ``run(source, target)``, which gives the result. careful: it
    may take some tenths of a second to find how. writes: the result is written into ``target``; else it is new memory, and target None."""

    short: str
    name: str
    library: Any
    can: Callable[[Call], bool]
    make: Callable[[Any, Call, bool], Any]
    writes: bool = True


class _TorchTransform:
    """torch.fft: any device, any strides; memory of its own for each result."""

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
    """What runs a local transform, and why. measured: microseconds by engine, of ``elements`` elements; empty where nothing was measured. careful: as for ``make``."""

    engine: Engine
    careful: bool
    measured: dict[str, float]
    elements: int
    why: str

    def told(self) -> str:
        """For people."""
        if not self.measured:
            return f"{self.engine.name} ({self.why})"
        times = ", ".join(f"{short} {us:.0f} us" for short, us in sorted(self.measured.items(), key=lambda item: item[1]))
        return f"{self.engine.name} (measured on {self.elements} elements: {times}{self.why[len('measured'):]})"


_lock = threading.Lock()
_choices: dict[Any, Choice] = {}


def torch_engine() -> Engine:
    return Engine("torch", f"torch.fft, which has {'MKL' if torch.backends.mkl.is_available() else 'pocketfft'}", None, lambda call: True, _TorchTransform, writes=False)


def find() -> list[Engine]:
    """The engines to choose from, best guess first. torch.fft is always the last: it takes what the others cannot.

    SHARDWIRE_FFT_ENGINE: "mkl", "fftw" or "torch" fixes it; ValueError for others and for what is not here.
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
                raise ValueError(f"SHARDWIRE_FFT_ENGINE is {wanted!r}, but {'this torch exports no Dfti functions' if wanted == 'mkl' else 'libfftw3.so.3 and libfftw3f.so.3 are not here'}")
    return [*found, torch_engine()]


def choose(engines: list[Engine], call: Call, measure: bool) -> Choice:
    """The engine for ``call``, from what was measured before in this process, or measured now: some tenths of a second at most for each engine.

    measure: False takes the first that can.
    """
    able = [engine for engine in engines if engine.can(call)]
    careful = measure and call.elements >= _LEAST
    if os.environ.get("SHARDWIRE_FFT_ENGINE"):
        return Choice(able[0], careful, {}, 0, "by SHARDWIRE_FFT_ENGINE" if able[0] is engines[0] else "what SHARDWIRE_FFT_ENGINE names cannot")
    if len(able) == 1:
        return Choice(able[0], careful, {}, 0, "no other can")
    sample = call.at_most(_SAMPLE)
    if not careful or sample.elements > _MOST:
        return Choice(able[0], careful, {}, 0, "not measured" if not measure else f"too {'large' if careful else 'small'} to be measured")
    key = (sample._replace(factor=0.0 if call.factor != 1 else 1.0), call.source.shape, tuple(engine.short for engine in able), torch.get_num_threads())
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
        except RuntimeError as error:  # FFTW, where another library of the process broke its planner
            refused += f"; {error}"
            continue
        source.zero_()  # what memory happens to hold may be slow to calculate with
        measured[engine.short] = 1e6 * _seconds(lambda: transform.run(source, target if engine.writes else None))
    best = min((engine for engine in engines if engine.short in measured), key=lambda engine: measured[engine.short] * (1.0 if engine.writes else _HANDICAP))
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
