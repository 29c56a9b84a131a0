"""The conda package of .packaging/conda, built by rattler-build and tested by the package's own tests. The last line is
'N passed, N failed, N skipped'.

./run test --only conda calls this file. The part needs Debian's torch, and PyPI for rattler-build, but no channel of
conda: the packages that the recipe requires are stand-ins in a channel below build/conda. The stand-in for python is an
environment over Debian's Python and its packages; the others are empty, and the build uses the machine's compiler,
tools and libraries. So the part tests the recipe, the build, the package's files and its tests, and leaves open whether
conda-forge's own compilers and libraries fit.
"""

import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / ".packaging" / "conda" / "recipe.yaml"
FOLDER = ROOT / "build" / "conda"
TOOL = FOLDER / "tool"
DEBIANS_PYTHON = "/usr/bin/python3"
SUBDIR = "linux-64"


def said_by_python(expression):
    program = f"import setuptools, sys, torch; print({expression})"
    return subprocess.run([DEBIANS_PYTHON, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def rattler_build():
    if not TOOL.exists():
        subprocess.run([DEBIANS_PYTHON, "-m", "pip", "install", "--target", TOOL, "py-rattler-build"], check=True)
    sys.path.insert(0, str(TOOL))
    import rattler_build as tool
    return tool


def write_python(folder):
    """Writes the files of the stand-in for python. The pyvenv.cfg above the executable adds Debian's packages."""
    version = said_by_python("sys.version.split()[0]")
    minor = version.rpartition(".")[0]
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{minor}"):
        (folder / "bin" / name).symlink_to(DEBIANS_PYTHON)
    packages = folder / "lib" / f"python{minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "README.txt").write_text("keeps the folder\n")
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = true\nversion = {version}\n")


def versions_of(requirements):
    """Returns the packages of the rendered recipe, and for each package a version that the recipe accepts."""
    versions = {}
    for each in requirements["build"] + requirements["host"]:
        name, _, wanted = each.partition(" ")
        versions[name] = wanted.removesuffix(".*") if wanted.endswith(".*") else "100"
    versions["python"] = said_by_python("sys.version.split()[0]")
    versions["pytorch"] = re.match(r"[\d.]*\d", said_by_python("torch.__version__"))[0]
    versions["setuptools"] = said_by_python("setuptools.__version__")
    return versions


def make_channel(tool, versions):
    channel = FOLDER / "channel"
    (channel / SUBDIR).mkdir(parents=True)
    (channel / "noarch").mkdir()
    entries = {}
    for name, version in versions.items():
        files = FOLDER / "files" / name
        if name == "python":
            write_python(files)
        else:
            files.mkdir(parents=True)
            (files / f"stand-in-{name}.txt").write_text("an empty stand-in\n")
        made = tool.assemble_package(name, version, SUBDIR, "0", channel / SUBDIR, files_dir=files)
        data = pathlib.Path(made.path).read_bytes()
        entries[pathlib.Path(made.path).name] = {
            "name": name, "version": version, "build": "0", "build_number": 0, "depends": [], "subdir": SUBDIR,
            "md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    for subdir, packages in ((SUBDIR, entries), ("noarch", {})):
        (channel / subdir / "repodata.json").write_text(
            json.dumps({"info": {"subdir": subdir}, "packages": {}, "packages.conda": packages}))
    return channel.as_uri()


# The package must have a file for each of these.
FILES = (r".*/site-packages/shardwire/_C.*\.so", r".*/site-packages/shardwire/.*libshardwire_core\.so.*",
         r".*/site-packages/shardwire/.*libshardwire_mpi\.so", r".*/site-packages/shardwire_autoload\.py")


def main():
    tool = rattler_build()
    for each in ("channel", "files", "out"):
        shutil.rmtree(FOLDER / each, ignore_errors=True)
    variants = tool.VariantConfig.from_file(RECIPE.with_name("variants.yaml"))
    (rendered,) = tool.Stage0Recipe.from_file(RECIPE).render(variants)
    channels = [make_channel(tool, versions_of(rendered.recipe.to_dict()["requirements"]))]
    built = rendered.run_build(output_dir=FOLDER / "out", channels=channels,
                               env_isolation=tool.EnvironmentIsolation.NONE)
    package = tool.Package.from_file(built.packages[0])
    failures = [f"no file is {kind}" for kind in FILES if not any(re.fullmatch(kind, name) for name in package.files)]
    tests = package.run_tests(channel=channels)
    for test in tests:
        if not test.success:
            failures.append(f"test {test.test_index}: " + "\n".join(test.output))
    print(*failures, f"{package.filename} depends on {', '.join(package.depends)}", sep="\n")
    failed, total = len(failures), len(FILES) + len(tests)
    print(f"{total - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
