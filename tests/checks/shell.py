"""The check of shell scripts: each is read by bash, and by shellcheck if installed, without a finding. Usage: shell.py
[FILE...].
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# SC1091: a sourced script is checked separately. SC2034, SC2154: ./run and the files that ./run sources share
# variables, named at the head of each. SC2015: in `A && B || C` the last command is meant for a failure of either A or
# B. SC2153: the rig's guests read variables in capitals from a file.
LEFT_OUT = "SC1091,SC2034,SC2153,SC2154,SC2015"


def scripts():
    return [ROOT / "run", ROOT / ".ci" / "run", ROOT / ".ci" / "weekly", *sorted((ROOT / ".ci").glob("*.sh")),
            *sorted((ROOT / "tests").rglob("*.sh")), ROOT / "tests" / "rig" / "guest" / "init"]


def main():
    files = [str(pathlib.Path(word)) for word in sys.argv[1:]] or [str(path) for path in scripts()]
    broken = [path for path in files if subprocess.run(["bash", "-n", path], check=False).returncode != 0]
    if broken:
        return 1
    if shutil.which("shellcheck") is None:
        print(f"{len(files)} scripts read by bash; no shellcheck here")
        return 0
    shells = {"bash": [path for path in files if not path.endswith("/init")],
              "dash": [path for path in files if path.endswith("/init")]}  # busybox's shell has more than dash's
    status = max(subprocess.run(["shellcheck", f"--shell={shell}", f"--exclude={LEFT_OUT}", "--format=gcc", *own],
                                check=False).returncode for shell, own in shells.items() if own)
    print(f"{len(files)} scripts read by bash and shellcheck")
    return status


if __name__ == "__main__":
    sys.exit(main())
