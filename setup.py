"""The build behind `pip install --no-build-isolation .`: cmake makes and installs the package; setuptools wraps it into
a wheel."""

import os
import re
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "python"))  # pip does not put this folder on the path
from wheel_description import readme  # noqa: E402


class CMakeBuild(build_ext):
    """Installs cmake's component "python" into the folder that becomes the wheel."""

    def build_extension(self, extension):
        build = Path(self.build_temp).resolve()
        target = Path(self.get_ext_fullpath(extension.name)).resolve().parent.parent
        # --fresh: what an earlier configuration of this folder found may be gone, and what it missed may be here.
        configure = ["cmake", "--fresh", "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
                     f"-DSHARDWIRE_PYTHON_EXECUTABLE={sys.executable}", f"-DSHARDWIRE_PYTHON_INSTALL_DIR={target}",
                     "-DSHARDWIRE_TESTS=OFF", "-DSHARDWIRE_BENCH=OFF",
                     *os.environ.get("SHARDWIRE_CMAKE_ARGS", "").split()]
        jobs = os.environ.get("MAX_JOBS", str(min(os.cpu_count() or 1, 8)))
        said = subprocess.run(configure, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(said, end="", flush=True)
        # pip shows what a build prints only with -v, and what it says to the terminal always.
        for line in re.findall(r"^-- (without the .*)$", said, re.M):
            _report(f"shardwire: this installation will be {line}; install that and run pip again to have it")
        subprocess.run(["cmake", "--build", str(build), "--target", "shardwire_python", "-j", jobs], check=True)
        subprocess.run(["cmake", "--install", str(build), "--component", "python"], check=True)


def _report(line):
    print(line, file=sys.stderr, flush=True)
    try:
        with open("/dev/tty", "w") as terminal:
            print(line, file=terminal)
    except OSError:  # nobody watches
        pass


version = re.search(r"project\(shardwire VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
setup(version=version, license="MIT", long_description=readme(), long_description_content_type="text/markdown",
      ext_modules=[Extension("shardwire._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
