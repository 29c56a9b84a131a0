"""DeepSpeed's ZeRO of the stage in the first word."""

import sys

import deepspeed
import torch
import torch.distributed as dist

import job

stage = int(sys.argv[1])
deepspeed.init_distributed(dist_backend="gloo")
config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": stage},
          "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
model = job.model()
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
                                               config=config)
for step in job.steps():
    given, wanted = job.batch(dist.get_rank(), step)
    engine.backward(job.loss(engine(given), wanted))
    engine.step()
    job.tick()
with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
    job.finish(model.state_dict())
job.end()
