"""Which names the package's libraries export: the names marked with SHARDWIRE_EXPORT."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shardwire import _C

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = sorted(Path(_C.__file__).parent.glob("libshardwire_c*.so.*"))  # c10d, core

pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="no nm here")


def names(library, *options):
    """The library's names of shardwire in the dynamic table, as in the sources."""
    said = subprocess.run(["nm", "-DC", *options, library], check=True, capture_output=True, text=True).stdout
    return {line[19:] for line in said.splitlines() if "shardwire::" in line}


def test_every_exported_internal_name_is_marked():
    headers = [path.read_text() for folder in ("ops", "backend") for path in (ROOT / folder).rglob("*.h")]
    marked = {name for text in headers
              for name in re.findall(r"class SHARDWIRE_EXPORT (\w+)|SHARDWIRE_EXPORT [^;{(]*?\b(\w+)\(", text)
              for name in name if name}
    for library in LIBRARIES:
        # The name without its parameters: torch's own functions may take objects of internal classes.
        found = {name: re.search(r"shardwire::internal::([\w:]+)", name.replace("(anonymous", "").split("(")[0])
                 for name in names(library, "--defined-only")}
        unmarked = [name for name, match in found.items()
                    if match and not marked.intersection(match.group(1).split("::"))]
        assert unmarked == [], library


def test_the_extension_and_the_c10d_library_find_the_names_that_they_link():
    """Functions are bound at the first call, so a missing one would show late."""
    assert [library.name.split(".")[0] for library in LIBRARIES] == ["libshardwire_c10d", "libshardwire_core"]
    exported = set().union(*(names(library, "--defined-only") for library in LIBRARIES))
    for library in (LIBRARIES[0], _C.__file__):
        assert names(library, "--undefined-only") - exported == set(), library
