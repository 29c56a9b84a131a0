"""The build behind `pip install --no-build-isolation .`: cmake makes and installs the package; setuptools wraps it into a wheel."""

import os
import re
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Installs cmake's component "python" into the folder that becomes the wheel."""

    def build_extension(self, extension):
        build = Path(self.build_temp).resolve()
        target = Path(self.get_ext_fullpath(extension.name)).resolve().parent.parent
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"-DSHARDWIRE_PYTHON_EXECUTABLE={sys.executable}",
                     f"-DSHARDWIRE_PYTHON_INSTALL_DIR={target}", "-DSHARDWIRE_TESTS=OFF", "-DSHARDWIRE_BENCH=OFF", "-DSHARDWIRE_WERROR=OFF",
                     *os.environ.get("SHARDWIRE_CMAKE_ARGS", "").split()]
        jobs = os.environ.get("MAX_JOBS", str(min(os.cpu_count() or 1, 8)))
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--target", "shardwire_python", "-j", jobs], check=True)
        subprocess.run(["cmake", "--install", str(build), "--component", "python"], check=True)


version = re.search(r"project\(shardwire VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
setup(version=version, ext_modules=[Extension("shardwire._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
