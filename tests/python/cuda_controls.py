"""The controls of the test device (accelerator.py) over a CUDA device: SHARDWIRE_TEST_DEVICE=cuda runs the tests of
devices on a GPU. Ranks share device 0.

No process calls CUDA before a fork: each rank makes its context at its first control.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import Any

import torch

_streams: dict[int, torch.cuda.Stream] = {}
_capture: list[Any] = []


@functools.lru_cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.lru_cache
def _cycles_per_millisecond() -> int:
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    cycles = 100_000_000
    started = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return int(cycles / (time.perf_counter() - started) / 1000)


class Hold:
    """A wait queued in the current stream, ended by release()."""

    def __init__(self) -> None:
        self.word = torch.zeros(1, dtype=torch.int32).pin_memory()
        at_least = 0
        status = _driver().cuStreamWaitValue32_v2(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
                                                  ctypes.c_void_p(self.word.data_ptr()), ctypes.c_uint32(1), at_least)
        assert status == 0, f"cuStreamWaitValue32: CUresult {status}"

    def release(self) -> None:
        self.word.fill_(1)

    def is_released(self) -> bool:
        return bool(self.word.item())


hold = Hold


def delay(milliseconds: int) -> None:
    torch.cuda._sleep(_cycles_per_millisecond() * milliseconds)


def set_capturing(value: bool) -> None:
    """Captures the current work into a graph, or ends the capture."""
    if value:
        capture = torch.cuda.graph(torch.cuda.CUDAGraph())
        capture.__enter__()
        _capture.append(capture)
    else:
        _capture.pop().__exit__(None, None, None)


def set_stream(number: int) -> int:
    """Makes the stream of this number current; 0 is the stream that was current first. The number before."""
    _streams.setdefault(0, torch.cuda.current_stream())
    before = next(key for key, stream in _streams.items() if stream == torch.cuda.current_stream())
    if number not in _streams:
        _streams[number] = torch.cuda.Stream()
    torch.cuda.set_stream(_streams[number])
    return before


def synchronize() -> None:
    torch.cuda.current_stream().synchronize()


def is_idle() -> bool:
    return torch.cuda.current_stream().query()


def use_gates(which: str) -> None:
    """Nothing: CUDA has no gates, whatever the test asks for."""


def uses_after_free() -> int:
    return 0  # CUDA does not say: compute-sanitizer does, and wrong values would


def pinned_blocks() -> int:
    return int(torch.cuda.host_memory_stats()["num_host_alloc"])


def live_blocks() -> int:
    return int(torch.cuda.memory_stats()["allocation.all.current"])


def set_copy_microseconds(microseconds: int) -> None:
    """Nothing: CUDA's copies take their time."""
