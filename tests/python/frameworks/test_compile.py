"""torch.compile over functional collectives, over DDP and over fully_shard: the compiled function gives what the eager
one gives."""

import shutil

import pytest
import torch
import torch.distributed as dist

from both_backends import both, mlp, state, train  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no torch.compile", allow_module_level=True)

import torch.distributed._functional_collectives as functional

try:
    import setuptools.command  # noqa: F401
    CAN_BUILD = shutil.which("g++") is not None
except ImportError:
    CAN_BUILD = False
COMPILERS = ["aot_eager", pytest.param(
    "inductor", marks=pytest.mark.skipif(not CAN_BUILD, reason="inductor wants a C++ compiler and setuptools"))]


@pytest.fixture(scope="module", autouse=True)
def quick_inductor(tmp_path_factory):
    """Inductor is imported before the ranks are forked, without a pool of compilers and compiled headers. All ranks
    share one cache.
    """
    import torch._inductor.compile_fx
    import torch._inductor.config as config
    settings = {"compile_threads": 1, "cpp_cache_precompile_headers": False}
    # Not by MonkeyPatch, which would remove the settings from torch's configuration at the end: later tests compile
    # too.
    with (pytest.MonkeyPatch.context() as patch,
          config.patch({name: value for name, value in settings.items() if hasattr(config, name)})):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def collectives(given):
    group = dist.group.WORLD
    summed = functional.all_reduce(given * 2, "sum", group)
    gathered = functional.all_gather_tensor(summed, 0, group)
    scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
    exchanged = functional.all_to_all_single(scattered, None, None, group)
    return exchanged.sin() + given


def compiled(rank, size, compiler):
    given = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    wanted = collectives(given)
    function = torch.compile(collectives, backend=compiler, fullgraph=True)
    found = [function(given + step) - step for step in (0, 0)]
    assert torch.allclose(found[0], wanted, atol=1e-5) and torch.equal(*found)
    return found[0] + 0


@pytest.mark.parametrize("compiler", COMPILERS)
def test_functional_collectives(both, compiler):
    both(2, compiled, compiler)


def compiled_c10d(rank, size):
    """dist's own functions inside a compiled one become functional collectives."""
    def function(given):
        tensor = given * 2
        dist.all_reduce(tensor, group=dist.group.WORLD)
        gathered = torch.empty(size * given.shape[0], given.shape[1])
        dist.all_gather_into_tensor(gathered, tensor, group=dist.group.WORLD)
        return gathered + 1

    given = torch.randn(3, 2, generator=torch.Generator().manual_seed(rank))
    found = torch.compile(function, backend="aot_eager", fullgraph=True)(given)
    assert torch.equal(found, function(given))
    return found + 0


def test_c10d_collectives(both):
    both(2, compiled_c10d)


def compiled_ddp(rank, size, inside):
    model = mlp(seed=1 + rank)
    if inside:
        model = torch.nn.parallel.DistributedDataParallel(torch.compile(model, backend="aot_eager"))
    else:
        model = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="aot_eager")
    losses = train(model, rank)
    return losses, list(state(model).values())


@pytest.mark.parametrize("inside", [False, True], ids=["the whole of DDP", "the module in DDP"])
def test_ddp(both, inside):
    both(2, compiled_ddp, inside)


def compiled_fsdp(rank, size):
    from torch.distributed.fsdp import fully_shard
    model = mlp()
    fully_shard(model)
    model.compile(backend="aot_eager")
    losses = train(model, rank)
    return losses, [p.full_tensor().detach() for p in model.parameters()]


@pytest.mark.skipif(TORCH < (2, 7), reason="FSDP on CPU tensors wants torch 2.7")
def test_fully_shard(both):
    both(2, compiled_fsdp)
