"""The example of README.md runs as it is written there."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert len(code.strip().splitlines()) <= 25
    script = tmp_path / "reshard.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, "-m", "shardwire.launch", "-n", "4", str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # explain(): 12 of the 16 pieces cross ranks, and nothing more.
    assert "between ranks: 12.6 MB; the least possible: 12.6 MB" in done.stdout, done.stdout
