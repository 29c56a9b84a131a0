"""DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import job

dist.init_process_group("gloo")
model = DistributedDataParallel(job.model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in job.steps():
    given, wanted = job.batch(dist.get_rank(), step)
    optimizer.zero_grad()
    job.loss(model(given), wanted).backward()
    optimizer.step()
    job.tick()
job.finish(model.module.state_dict())
job.end()
