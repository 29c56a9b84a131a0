"""Chooses one of several native parts for this interpreter.

A build has one native part, beside this file. A wheel of ``./run wheel`` has the core beside this file and, for each
supported torch, a folder ``for_torch_2_13`` with the parts linked to this torch: the extension module,
``libshardwire_c10d.so.*`` and ``_build_info.py``. The folder for the running torch becomes part of the package's path,
so that Python finds ``shardwire._C`` there.
"""

from __future__ import annotations

import os
import re

_FOLDER = re.compile(r"for_torch_(\d+)_(\d+)$")


def glue_folders(package: str) -> dict[str, str]:
    """By torch ("2.13"): the folder of the torch's native part. Empty for a build for one torch."""
    found = ((_FOLDER.match(name), name) for name in os.listdir(package))
    return {f"{match.group(1)}.{match.group(2)}": os.path.join(package, name) for match, name in found if match}


def choose_glue(path: list[str], torch_version: str) -> None:
    """Adds the folder for this torch to the package's path. ImportError where the wheel has no such folder."""
    folders = glue_folders(path[0])
    wanted = ".".join(torch_version.split(".")[:2])
    if wanted in folders:
        path.append(folders[wanted])
    elif folders:
        known = sorted(folders, key=lambda version: [int(part) for part in version.split(".")])
        raise ImportError(f"this wheel of shardwire is for torch {', '.join(known)}, but this is torch "
                          f"{torch_version}; install one of these, or build shardwire for this torch: pip install "
                          "--no-build-isolation . in its source tree")
