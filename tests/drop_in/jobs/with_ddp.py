"""DistributedDataParallel."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import job

dist.init_process_group("gloo")
model = DistributedDataParallel(job.model())
job.train(model, dist.get_rank())
job.finish(model.module.state_dict())
job.end()
