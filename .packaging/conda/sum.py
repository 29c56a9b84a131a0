"""The package's own test: two ranks add."""

import torch
import torch.distributed as dist

import shardwire  # noqa: F401 (registers the backend)

dist.init_process_group("shardwire")
tensor = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.tolist() == [3.0] * 4, tensor
dist.destroy_process_group()
