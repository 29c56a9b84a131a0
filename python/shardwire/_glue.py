"""Chooses one of several native parts for this interpreter.

A build has one native part, beside this file. A wheel of ``./run wheel`` has the core beside this file and, for each
supported torch, a folder ``for_torch_2_13`` with the parts linked to this torch: the extension module,
``libshardwire_c10d.so.*`` and ``_build_info.py``. The folder for the running torch becomes part of the package's path,
so that Python finds ``shardwire._C`` there.

A torch that is newer than the wheel has no folder. C++ promises nothing across versions of torch, so the newest folder
is tried in two other processes first (_glue_trial.py), and is refused where the trial fails.
"""

from __future__ import annotations

import os
import re

_FOLDER = re.compile(r"for_torch_(\d+)_(\d+)$")


def glue_folders(package: str) -> dict[str, str]:
    """By torch ("2.13"): the folder of the torch's native part. Empty for a build for one torch."""
    found = ((_FOLDER.match(name), name) for name in os.listdir(package))
    return {f"{match.group(1)}.{match.group(2)}": os.path.join(package, name) for match, name in found if match}


def choose_glue(path: list[str], torch_version: str) -> str:
    """Adds the folder for this torch to the package's path, and returns the torch of the folder; "" for a build for one
    torch. ImportError where the wheel has no folder that works."""
    folders = glue_folders(path[0])
    if not folders:
        return ""
    known = sorted(folders, key=_numbers)
    wanted = os.environ.get("SHARDWIRE_GLUE") or ".".join(torch_version.split(".")[:2])
    advice = ("install one of these, or build shardwire for this torch: pip install --no-build-isolation . in its "
              "source tree")
    taken = wanted
    if wanted not in folders:
        if _numbers(wanted) < _numbers(known[-1]):
            raise ImportError(f"this wheel of shardwire is for torch {', '.join(known)}, but this is torch "
                              f"{torch_version}; {advice}")
        taken = known[-1]
        from . import _glue_trial  # seldom needed
        if problem := _glue_trial.problem_with(folders[taken], taken, torch_version):
            raise ImportError(f"this wheel of shardwire is for torch {', '.join(known)}, but this is torch "
                              f"{torch_version}, with which the part for torch {taken} does not work: {problem}; "
                              f"{advice}")
    path.append(folders[taken])
    return taken


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]
