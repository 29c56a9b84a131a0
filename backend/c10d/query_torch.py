"""Prints, one `NAME=value` a line, what CMake must know of the torch and the Python that runs this. Imports nothing
else than torch."""

import os
import sys
import sysconfig

import torch

root = os.path.dirname(torch.__file__)
include = os.path.join(root, "include")
includes = [include, os.path.join(include, "torch", "csrc", "api", "include")]
# How torch's own pybind11 was built: ours must say the same, or the two do not see each other's types.
defines = [
    f"PYBIND11_{name}=\"{getattr(torch._C, '_PYBIND11_' + name)}\""
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
    if getattr(torch._C, "_PYBIND11_" + name, None)
]
facts = {
    "TORCH_VERSION": ".".join(torch.__version__.split(".")[:2]),
    "TORCH_FULL_VERSION": torch.__version__,
    "TORCH_INCLUDE_DIRS": ";".join(path for path in includes if os.path.isdir(path)),
    "TORCH_LIB_DIR": os.path.join(root, "lib"),
    "TORCH_CXX11_ABI": int(torch._C._GLIBCXX_USE_CXX11_ABI),
    "TORCH_PYBIND11_DEFINES": ";".join(defines),
    "PYTHON_VERSION": "%d.%d" % sys.version_info[:2],
    "PYTHON_INCLUDE_DIR": sysconfig.get_path("include"),
    "PYTHON_EXT_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
}
for name, value in facts.items():
    print(f"{name}={value}")
