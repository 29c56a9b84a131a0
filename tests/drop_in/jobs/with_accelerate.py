"""accelerate, which on CPUs takes gloo, ccl and mpi alone."""

import torch
from accelerate import Accelerator

import job

accelerator = Accelerator(cpu=True)
model = job.model()
loader = torch.utils.data.DataLoader(job.data(8 * accelerator.num_processes), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
for given, wanted in loader:
    optimizer.zero_grad()
    accelerator.backward(job.loss(model(given), wanted))
    optimizer.step()
    job.tick()
ranks = accelerator.gather(torch.tensor([accelerator.process_index]))
assert ranks.tolist() == list(range(accelerator.num_processes))
job.finish(accelerator.unwrap_model(model).state_dict())
job.end()
