"""FSDP2 over half of the ranks, times a tensor parallel plan over the other; with "fsdp" alone, over all."""

import os
import sys

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import job

tensor_ranks = 2 if sys.argv[1] == "fsdp-tp" else 1
# torch takes gloo for the mesh
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]) // tensor_ranks, tensor_ranks),
                        mesh_dim_names=("dp", "tp"))
model = job.model()
if tensor_ranks > 1:
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel(),
                                           "4": ColwiseParallel(output_layouts=Replicate())})
for layer in (0, 2, 4):
    fully_shard(model[layer], mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
job.train(model, mesh.get_local_rank("dp"))
job.finish(model.state_dict())
job.end()
