"""A replica of a torchft job over shardwire: trains a small model, and prints each step with the number of replicas
that took part. When the file END exists, the file holds the last step; then the replica prints a digest of the weights.

    torchft_job.py LIGHTHOUSE REPLICA END
"""

from __future__ import annotations

import hashlib
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer
from torchft.ddp import DistributedDataParallel

from shardwire.adapters.torchft import ProcessGroupShardwire


def main() -> None:
    lighthouse, replica, end = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    adam = torch.optim.Adam(model.parameters())

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "adam": adam.state_dict()}

    def load(state: dict[str, object]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(pg=ProcessGroupShardwire(timeout=timedelta(seconds=20)), load_state_dict=load, state_dict=state,
                      min_replica_size=2, timeout=timedelta(seconds=30), quorum_timeout=timedelta(seconds=60),
                      rank=0, world_size=1, store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse,
                      replica_id=f"replica_{replica}", hostname="localhost")
    net, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, adam)
    print("ready", flush=True)
    while not end.exists() or manager.current_step() < int(end.read_text()):
        optimizer.zero_grad()
        sample = torch.Generator().manual_seed(manager.current_step() * 10 + int(replica))
        loss = net(torch.rand(16, 8, generator=sample)).square().mean()
        loss.backward()
        optimizer.step()
        print("step", manager.current_step(), manager.num_participants(), flush=True)
        time.sleep(0.1)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("end", manager.current_step(), hashlib.sha256(weights).hexdigest(), flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
