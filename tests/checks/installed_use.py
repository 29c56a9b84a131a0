"""Run with the interpreter of an environment into which shardwire was installed: is the imported shardwire the
installed one, whole and working?

Usage: installed_use.py FOLDER_OF_THE_ENVIRONMENT
"""

import importlib.metadata
import os
import re
import sys
import tempfile

import torch
import torch.distributed as dist

import shardwire


def main():
    home = os.path.realpath(sys.argv[1])
    place = os.path.realpath(shardwire.__file__)
    assert place.startswith(home + os.sep), f"imported {place}, which is not in {home}"
    assert os.path.exists(
        os.path.join(os.path.dirname(place), "py.typed")), "the installed package is not marked as typed"
    version = importlib.metadata.version("shardwire")
    assert version == shardwire.__version__, f"installed as {version}, calls itself {shardwire.__version__}"
    described = importlib.metadata.metadata("shardwire")
    assert (described["License"] == "MIT" and described.get_all("Project-URL")
            and described.get_all("Classifier")), described.items()
    broken = re.findall(r"\]\((?!https?:|#)[^)]*\)", described.get_payload() or described["Description"])
    assert not broken, f"links of the description that lead nowhere from a package index: {broken}"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("shardwire", init_method=f"file://{folder}/store", rank=0, world_size=1)
        tensor = torch.arange(8.0)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.arange(8.0))
        region = {"offset": [0], "shape": [8]}
        op = shardwire.compile_op(None, shape=[8], dtype=torch.float32, inputs=[region], outputs=[region])
        out = torch.zeros(8)
        op([tensor], [out]).wait()
        assert torch.equal(tensor, out), f"moved {tensor}, got {out}"
        dist.destroy_process_group()
    print(f"shardwire {version} at {place} with torch {torch.__version__}")


if __name__ == "__main__":
    main()
