"""The test device (tests/python/device): a kind of device unknown to torch, with threads as streams. With
SHARDWIRE_TEST_DEVICE=cuda it is a GPU instead (cuda_controls.py).

``load()``, called before any rank is forked, builds the device where the package runs from a build folder, imports the
module, and registers the device with torch and shardwire.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import shardwire
import shardwire_autoload

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
IS_CUDA = os.environ.get("SHARDWIRE_TEST_DEVICE") == "cuda"
NAME = "cuda" if IS_CUDA else "swtest" if TORCH >= (2, 0) else "privateuseone"  # 1.13 cannot rename the device
DEVICE_NAME = f"{NAME}:0"


def _build_folder() -> Path | None:
    for entry in sys.path:
        folder = Path(entry).absolute().parent
        if (Path(entry) / "shardwire").is_dir() and (folder / "build.ninja").exists():
            return folder
    return None


def build() -> None:
    """Builds the module shardwire_test_device beside the package. Skips the test where there is no build folder."""
    folder = _build_folder()
    if folder is None:
        pytest.skip("the test device is built in a build folder, and this package is installed")
    with open(folder / ".test_device.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = subprocess.run(["ninja", "-C", str(folder), "-j", "2", "shardwire_test_device"],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stdout[-3000:]


def load() -> Any:
    """The device's module, with the controls. Skips the test where there is no build folder."""
    if IS_CUDA:
        import cuda_controls
        return cuda_controls
    build()
    first = "shardwire_test_device" not in sys.modules
    if first and TORCH >= (2, 0):
        torch.utils.rename_privateuse1_backend(NAME)
        module = types.ModuleType(f"torch.{NAME}")
        module.is_available = module.is_initialized = lambda: True
        module.device_count, module.current_device = (lambda: 1), (lambda: 0)
        module._is_in_bad_fork, module._lazy_init = (lambda: False), (lambda: None)
        torch._register_device_module(NAME, module)
    import shardwire_test_device
    shardwire.register()
    if TORCH >= (2, 0):
        assert NAME in shardwire_autoload.devices()
    return shardwire_test_device


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.device(NAME, 0))


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory that a copy of the device reads and writes later: CUDA makes the CPU wait for any other."""
    return tensor.pin_memory() if IS_CUDA else tensor
