"""For run_examples.py, run_moodist.py and run_nvshmem.py: stand-ins by which programs for CUDA run on the CPU, and the
files of a repository.
"""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from typing import Any


class Nothing:
    """A stream, an event, a device context or a kernel: each call does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return Nothing()

    def __getitem__(self, _: Any) -> Nothing:
        return Nothing()

    __iter__ = None  # __getitem__ alone would make an endless iterator

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def module(name: str, **members: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


def cuda_on_the_cpu() -> contextlib.AbstractContextManager[Any]:
    """Calls of torch inside this context take "cuda" for "cpu"."""
    import torch
    from torch.overrides import TorchFunctionMode

    def on_cpu(given: Any) -> Any:
        is_cuda = str(given).startswith("cuda") if isinstance(given, (str, torch.device)) else False
        return torch.device("cpu") if is_cuda else given

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.device:  # ("cuda", 0)
                return on_cpu(function(*args, **(kwargs or {})))
            given = {name: torch.device("cpu") if name == "device" and value is not None else on_cpu(value)
                     for name, value in (kwargs or {}).items()}
            return function(*map(on_cpu, args), **given)

    def copied(tensor: torch.Tensor, *_: Any, memory_format: Any = torch.preserve_format, **__: Any) -> torch.Tensor:
        return tensor.clone(memory_format=memory_format)

    torch.Tensor.cuda = copied  # type: ignore[assignment]
    torch.cuda.device_count = lambda: 1  # type: ignore[assignment]
    for name in ("Stream", "Event", "device", "stream", "current_stream", "default_stream", "set_device",
                 "synchronize"):
        setattr(torch.cuda, name, type(name, (Nothing,), {}))  # torch._dynamo keeps a rule for each object
    return OnCpu()


@contextlib.contextmanager
def tree_of(repository: pathlib.Path, *folders: str) -> Iterator[pathlib.Path]:
    """A folder with these folders of the repository, as far as it has them; the repository may be a git directory
    without a work tree."""
    if not (repository / "HEAD").exists():
        yield repository
        return
    with tempfile.TemporaryDirectory() as tree:
        git = ["git", "--git-dir", str(repository)]
        found = subprocess.run([*git, "ls-tree", "--name-only", "HEAD", *folders], stdout=subprocess.PIPE, text=True,
                               check=True).stdout.splitlines()
        packed = subprocess.run([*git, "archive", "HEAD", *found], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=packed, check=True)
        yield pathlib.Path(tree)
