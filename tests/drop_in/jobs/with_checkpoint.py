"""torch.distributed.checkpoint: a step writes an FSDP2 model, at once or asynchronously (a separate group), and reads
the model back into other weights.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import job

dist.init_process_group("cpu:gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model, copy = (fully_shard(job.model(), mesh=mesh) for _ in range(2))
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
for step in job.steps():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * (step + 1))
    path = Path(folder[0]) / str(step)
    if step % 2:
        dcp.async_save(model.state_dict(), checkpoint_id=path).result()
    else:
        dcp.save(model.state_dict(), checkpoint_id=path)
    weights = copy.state_dict()
    dcp.load(weights, checkpoint_id=path)
    copy.load_state_dict(weights)
    job.tick()
job.finish(copy.state_dict())
for name, wanted in model.state_dict().items():
    assert torch.equal(wanted.to_local(), copy.state_dict()[name].to_local()), name
job.end()
