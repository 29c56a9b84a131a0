"""The torch of most users: the CUDA build of PyPI, whose import needs no GPU. Makes an environment with this torch,
builds shardwire for it, and runs the import, two ranks, and the Python tests of the differences of such builds. The
last line is 'N passed, N failed, N skipped'.

./run test --only cuda-torch calls this file; SHARDWIRE_CUDA_TORCH names another version (2.14.1). The part takes 6 GB
and half an hour on two cores.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = os.environ.get("SHARDWIRE_CUDA_TORCH") or "2.14.1"
VENV = ROOT / "build" / f"cuda-torch-{VERSION}"
PYTHON = VENV / "bin" / "python"
TESTS = "backend or symm or stand_in or c10d_surface or reconfigure or window"
TWO_RANKS = """
import torch, torch.distributed as dist, shardwire
dist.init_process_group("shardwire")
tensor = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
assert tensor.eq(3).all(), tensor
dist.barrier()
dist.destroy_process_group()
"""


def make_environment():
    installed, wanted = VENV / ".installed", f"{sys.executable} {sys.version}"
    if installed.exists() and installed.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    # A machine's own settings of pip may lead to a CPU build.
    plain = {**os.environ, "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}
    subprocess.run([PYTHON, "-m", "pip", "install", f"torch=={VERSION}", "numpy", "pytest", "pytest-xdist",
                    "setuptools", "wheel"], check=True, env=plain)
    installed.write_text(wanted)


def our_run(*words):
    """./run with the CUDA torch: the status and the output."""
    done = subprocess.run([ROOT / "run", *words], env={**os.environ, "PYTHON": str(PYTHON)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, flush=True)
    return done.returncode, done.stdout


def main():
    make_environment()
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="shardwire-cuda-torch-") as scratch:
        script = pathlib.Path(scratch) / "two_ranks.py"
        script.write_text(TWO_RANKS)
        is_cuda = "import torch; assert torch.version.cuda, torch.__version__ + ' is no CUDA build'"
        for words in (["-c", is_cuda], ["-c", "import shardwire"], ["-m", "shardwire.launch", "-n", "2", str(script)]):
            status, said = our_run("python", *words)
            bad = status != 0 or "symmetric memory for the CPU is not available" in said
            passed, failed = passed + (not bad), failed + bad
    status, said = our_run("test", "--only", "python", "--pytest=-k", f"--pytest={TESTS}")
    counts = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", said, re.MULTILINE)
    if counts:
        passed, failed, skipped = (one + int(more) for one, more in zip((passed, failed, skipped), counts[-1]))
    failed += status != 0 and not (counts and int(counts[-1][1]))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
