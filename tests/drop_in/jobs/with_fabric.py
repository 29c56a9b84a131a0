"""Lightning Fabric with DDP: the loop is the user's."""

import os

import torch
from lightning.fabric import Fabric

import job

fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
fabric.launch()
model = job.model()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
for step in job.steps():
    given, wanted = job.batch(fabric.global_rank, step)
    optimizer.zero_grad()
    fabric.backward(job.loss(model(given), wanted))
    optimizer.step()
    job.tick()
total = fabric.all_reduce(torch.tensor(float(fabric.global_rank)), reduce_op="sum")
assert total == sum(range(fabric.world_size))
job.finish(model.state_dict())
job.end()
