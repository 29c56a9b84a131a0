"""torch.distributed.pipelining: micro-batches from stage to stage by batch_isend_irecv, trained like the plain
module."""

import pytest
import torch

from both_backends import batch, both, mlp  # noqa: F401
from conftest import TORCH

if TORCH < (2, 7):
    why = ("this torch has no torch.distributed.pipelining" if TORCH < (2, 6)
           else "the schedules of this torch hang with gloo: there is nothing to compare with")
    pytest.skip(why, allow_module_level=True)

from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                          SplitPoint, pipeline)

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def stages_of(rank, size, kind):
    """The whole module, and this rank's stages: one stage, or two stages that are not neighbours."""
    module = mlp()
    count = 2 * size if kind == "interleaved" else size
    parts = [module[:1], module[1:3], module[3:4], module[4:]] if count == 4 else [module[:2], module[2:]]
    cpu = torch.device("cpu")
    return module, [PipelineStage(parts[index], index, count, cpu) for index in range(rank, count, size)]


def steps(rank, size, kind):
    module, stages = stages_of(rank, size, kind)
    schedule = SCHEDULES[kind](stages if kind == "interleaved" else stages[0], n_microbatches=4,
                               loss_fn=torch.nn.functional.mse_loss, scale_grads=True)
    given, target = batch(0, rows=8)
    results = []
    for _ in range(2):  # the gradients are scaled at each step, so gradients must not build up
        losses = []
        module.zero_grad()
        if rank == 0 and size > 1:
            schedule.step(given)
        elif rank == size - 1:
            results.append(schedule.step(target=target, losses=losses).detach())
            results.append(torch.stack(losses).detach())
        else:
            schedule.step()
    mine = [p for stage in stages for p in stage.submod.parameters()]
    plain = mlp()
    torch.nn.functional.mse_loss(plain(given), target).backward()
    wanted = {name: p.grad for name, p in plain.named_parameters()}
    for name, parameter in module.named_parameters():
        if any(parameter is one for one in mine):
            assert torch.allclose(parameter.grad, wanted[name], atol=1e-5), name
    return results, [p.grad.clone() for p in mine]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_two_stages_of_ranks(both, kind):
    both(2, steps, kind)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_four_stages(both, kind):
    both(4, steps, kind)


def traced(rank, size):
    given, target = batch(0, rows=4)
    piped = pipeline(mlp(), mb_args=(given[:2],), split_spec={"2": SplitPoint.BEGINNING})
    schedule = ScheduleGPipe(piped.build_stage(rank, torch.device("cpu")), n_microbatches=2)
    output = schedule.step(given) if rank == 0 else schedule.step()
    if rank == size - 1:
        assert torch.allclose(output, mlp()(given), atol=1e-6)
        return output.detach()
    return "the first stage"


def test_traced_pipeline(both):
    both(2, traced)
