"""torchtitan's Llama 3 with its own parallel plan, FSDP2 over two ranks times tensor parallel over two, on torchtitan's
meshes. torchtitan's Trainer needs CUDA, so the loop is here.
"""

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils

utils.device_type, utils.device_module = "cpu", torch.cpu  # torchtitan says "cuda" where there is no accelerator
from torchtitan.config import CommConfig, CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.utils import init_distributed, set_spmd_backend  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402

import job  # noqa: E402

ranks = init_distributed(CommConfig())
set_spmd_backend("partial_dtensor")
parallelism = ParallelismConfig(data_parallel_shard_degree=ranks // 2, tensor_parallel_degree=2,
                                spmd_backend="partial_dtensor")
dims = ParallelDims.from_config(parallelism, ranks)
dims.build_mesh()
training = TrainingConfig(seq_len=64, mixed_precision_param="float32", mixed_precision_reduce="float32")
spec = model_registry("debugmodel")
for layer in spec.model.layers:
    layer.attention.inner_attention = ScaledDotProductAttention.Config()  # flex attention has no gradients on CPUs
with torch.device("meta"):
    model = spec.model.build()
model = spec.parallelize_fn(model, parallel_dims=dims, training=training, parallelism=parallelism,
                            compile_config=CompileConfig(), ac_config=None, dump_folder="")
for module in model.modules():
    if isinstance(module, FSDPModule):
        module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
model.to_empty(device="cpu")
torch.manual_seed(3)
with torch.no_grad():
    model.init_weights()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
share = dims.get_mesh("fsdp").get_local_rank()
for step in job.steps():
    tokens = torch.randint(0, 2048, (2, 65), generator=torch.Generator().manual_seed(1000 * step + share))
    optimizer.zero_grad()
    found = model(tokens[:, :-1])
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    torch.nn.functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    job.tick()
job.finish(model.state_dict())
job.end()
