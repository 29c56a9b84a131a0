"""Ray Train's TorchTrainer; started as a plain program, the workers are Ray's."""

import os
import sys
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train():
    import ray.train.torch
    import torch
    import torch.distributed as dist

    import job

    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(job.model())
    job.train(model, dist.get_rank())
    job.finish(model.module.state_dict())
    dist.barrier()  # Ray ends the group


ranks = int(sys.argv[1])
with tempfile.TemporaryDirectory(prefix="ray-") as folder:
    # The paths of Ray's sockets must be short, and Ray must write nothing into the user's home.
    os.environ["HOME"] = folder
    ray.init(num_cpus=ranks + 1, include_dashboard=False, log_to_driver=False)
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=ranks, use_gpu=False),
                 torch_config=TorchConfig(backend="gloo"), run_config=RunConfig(storage_path=folder)).fit()
    ray.shutdown()
