"""Kernels: functions over tensors, compiled once and loaded on every rank. See docs/kernels.md.

``DeviceKernel.compile_and_load`` chooses the compiling ranks (``pattern``), traces and compiles (``tracing``), sends
the package's bytes (``who_compiles``), keeps packages (``cache``), and returns the loaded kernel (``device_kernel``).
"""

from .cache import clear_kernel_cache
from .compiled_kernel import CompiledKernel
from .device_kernel import DeviceKernel
from .device_tensor import DeviceTensor
from .timing import BenchmarkResult, KernelTimes

__all__ = ["BenchmarkResult", "CompiledKernel", "DeviceKernel", "DeviceTensor", "KernelTimes", "clear_kernel_cache"]
