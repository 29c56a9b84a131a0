"""torch.distributed.pipelining: a stage on each of two ranks, 1F1B with four microbatches."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import job

dist.init_process_group("gloo")
rank, layers = dist.get_rank(), job.model()
part = layers[:3] if rank == 0 else layers[3:]
stage = PipelineStage(part, rank, dist.get_world_size(), torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=job.loss)
optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
for step in job.steps():
    given, wanted = job.batch(0, step, rows=32)
    optimizer.zero_grad()
    schedule.step(given) if rank == 0 else schedule.step(target=wanted)
    optimizer.step()
    job.tick()
job.finish(part.state_dict())
job.end()
