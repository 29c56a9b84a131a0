"""The metadata that pip writes beside an installed package, for a package that was built and not installed: torch finds
a backend by this metadata.
"""

from __future__ import annotations

import re
from pathlib import Path


def write_entry_points(folder: Path) -> Path:
    """A folder to put on PYTHONPATH: with the folder torch (2.5 and later) finds the build's shardwire like an
    installed one.
    """
    pyproject = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    about = folder / "entry-points" / "shardwire-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shardwire\nVersion: 0\n")
    groups = re.findall(r'\[project\.entry-points\."([^"]+)"\]\n(\w+) = "([^"]+)"', pyproject)
    assert [group for group, _, _ in groups] == ["torch.backends", "torch.distributed.backends",
                                                 "vllm.general_plugins"], groups
    (about / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {what}\n" for group, name, what in groups))
    return about.parent
