"""Context parallelism: attention whose sequence lies on several ranks, keys and values going round the ring."""

import pytest
import torch
import torch.distributed as dist

from both_backends import both  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no context_parallel", allow_module_level=True)

from torch.distributed.tensor.experimental import _attention


@pytest.mark.skip(reason="context_parallel: torch's CPU attention has no sharding strategy; the ring below it is "
                         "tested here")
def test_context_parallel():
    pass


def torchs_ring(rank, size, causal, method):
    """The function that context_parallel calls, with the CPU's attention."""
    _attention._cp_options.enable_load_balance = False
    _attention.set_rotate_method(method)
    torch.manual_seed(2)
    whole = [torch.randn(2, 2, 8 * size, 16) for _ in range(3)]
    mine = [tensor.chunk(size, 2)[rank] for tensor in whole]
    operation = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    found = _attention._templated_ring_attention(dist.group.WORLD, 2, operation, *mine, is_causal=causal)
    wanted = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=causal)
    assert torch.allclose(found[0], wanted.chunk(size, 2)[rank], atol=1e-5)
    return [found[0].clone(), found[1].clone()]


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_ring_attention(both, size, causal, method):
    both(size, torchs_ring, causal, method)


def ring(rank, size):
    """The ring by hand: keys and values go round by batch_isend_irecv, partial results are merged by the log-sum-exp.
    """
    torch.manual_seed(2)
    queries, keys, values = (torch.randn(4 * size, 8).chunk(size)[rank] for _ in range(3))
    total, weight = torch.zeros(4, 8), torch.zeros(4, 1)
    block = torch.stack([keys, values])
    for _ in range(size):
        incoming = torch.empty_like(block)
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, block, (rank + 1) % size), dist.P2POp(dist.irecv, incoming, (rank - 1) % size)])
        scores = (queries @ block[0].t()).exp()
        total, weight = total + scores @ block[1], weight + scores.sum(1, keepdim=True)
        for request in requests:
            request.wait()
        block = incoming
    torch.manual_seed(2)
    whole = [torch.randn(4 * size, 8) for _ in range(3)]
    wanted = torch.softmax(whole[0] @ whole[1].t(), 1) @ whole[2]
    assert torch.allclose(total / weight, wanted.chunk(size)[rank], atol=1e-4)
    return total / weight


@pytest.mark.parametrize("size", [2, 4])
def test_ring_by_hand(both, size):
    both(size, ring)
