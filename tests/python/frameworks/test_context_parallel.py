"""Context parallelism: attention whose sequence lies on several ranks, keys and values going round the ring."""

import pytest
import torch
import torch.distributed as dist

from both_backends import both  # noqa: F401
from conftest import TORCH

if TORCH < (2, 6):
    pytest.skip("this torch has no context_parallel", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention(rank, size, causal):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(2)
    whole = [torch.randn(2, 2, 8 * size, 16) for _ in range(3)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        plain = [tensor.clone().requires_grad_() for tensor in whole]
        wanted = torch.nn.functional.scaled_dot_product_attention(*plain, is_causal=causal)
        wanted.sum().backward()
        mine = [tensor.clone() for tensor in whole]
        with context_parallel(mesh, buffers=mine, buffer_seq_dims=[2, 2, 2]):
            for tensor in mine:
                tensor.requires_grad_()
            output = torch.nn.functional.scaled_dot_product_attention(*mine, is_causal=causal)
            output.sum().backward()
            found = context_parallel_unshard(mesh, [output.detach()] + [tensor.grad for tensor in mine], [2] * 4)
    for ours, theirs in zip(found, [wanted.detach()] + [tensor.grad for tensor in plain]):
        assert torch.allclose(ours, theirs, atol=1e-5)
    return list(found)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_ring_attention(both, size, causal):
    both(size, attention, causal, atol=1e-5)


def ring(rank, size):
    """The same by hand: keys and values go round by batch_isend_irecv, partial results are merged by their log-sum-exp."""
    torch.manual_seed(2)
    queries, keys, values = (torch.randn(4 * size, 8).chunk(size)[rank] for _ in range(3))
    total, weight = torch.zeros(4, 8), torch.zeros(4, 1)
    block = torch.stack([keys, values])
    for _ in range(size):
        incoming = torch.empty_like(block)
        requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, block, (rank + 1) % size), dist.P2POp(dist.irecv, incoming, (rank - 1) % size)])
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
