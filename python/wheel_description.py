"""README.md as the description in a wheel, for setup.py and make_wheel.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def readme() -> str:
    """README.md with links that also lead somewhere from a package index: into the sources, at the address that
    pyproject.toml names."""
    found = re.search(r'^Source = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert found is not None, "pyproject.toml names no Source under [project.urls]"
    source = found.group(1)

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link.group(1).startswith("!") else "blob"
        return f"{link.group(1)}({source}/{kind}/main/{link.group(2)})"

    return re.sub(r"(!?\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)", absolute,
                  (ROOT / "README.md").read_text(encoding="utf-8"))
