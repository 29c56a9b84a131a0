"""Makes the site of docs/ in a folder: ./run docs runs this script with the package on PYTHONPATH. Every warning is an
error.

Usage: build.py FOLDER [SPHINX ARGUMENTS].
"""

import importlib.util
import pathlib
import shutil
import subprocess
import sys

SITE = pathlib.Path(__file__).resolve().parent


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} has no {', '.join(missing)}: {sys.executable} -m pip install sphinx myst-parser furo, "
              "or use Debian's Python", file=sys.stderr)
        return 1
    # Anew each time: parts of the pages come from other files, and Sphinx does not see changes of these files.
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(SITE), "-d",
               str(folder / ".doctrees"), *sys.argv[2:]]
    status = subprocess.run([*command, str(SITE.parent), str(folder)], check=False, stdin=subprocess.DEVNULL).returncode
    if status == 0:
        print(f"the site is {folder / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
