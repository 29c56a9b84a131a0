"""The comparison can fail: on other bits, other shapes, other types, a failing rank, and a body that returns nothing.
"""

import pytest
import torch
import torch.distributed as dist

from both_backends import both, compare  # noqa: F401
from fork_ranks import RankFailed


def test_compare_sees_one_bit():
    one = torch.ones(3)
    other = torch.nextafter(one, torch.full((3,), 2.0))
    compare({"a": [one]}, {"a": [one.clone()]})
    compare(one, other, atol=1e-6)
    for wanted, found in ((one, other), (one, one.double()), (one, one[:2]), ({"a": 1}, {"b": 1}), ([1, 2], [1]),
                          (1, 2), (one, 1)):
        with pytest.raises(AssertionError):
            compare(wanted, found)


def backend_value(rank, size):
    value = torch.full((2,), 1.0 if dist.get_backend() == "gloo" else 2.0)
    dist.all_reduce(value)
    return value


def nothing(rank, size):
    dist.barrier()


def fails(rank, size):
    assert rank == 0, "one rank fails"


def works(rank, size):
    value = torch.full((2,), float(rank + 1))
    dist.all_reduce(value)
    return [value, rank]


def test_a_difference_fails_and_the_ranks_go_on(both):
    for body, kind, text in ((backend_value, AssertionError, "shardwire gives"),
                             (nothing, AssertionError, "returns nothing"), (fails, RankFailed, "gloo rank 1")):
        with pytest.raises(kind, match=text):
            both(2, body)
    assert both(2, works)[1][0].tolist() == [3.0, 3.0]
