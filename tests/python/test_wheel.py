"""One wheel for several torches: the choice of the native part, the stated requirements of the wheel, and the refusal
of builds that do not fit.
"""

from __future__ import annotations

import dataclasses
import email
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch

import shardwire
from shardwire import _build_info, doctor
from shardwire._glue import choose_glue

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def make_wheel():
    pytest.importorskip("tomllib", reason="./run wheel needs Python 3.11")
    spec = importlib.util.spec_from_file_location("make_wheel", ROOT / "python" / "make_wheel.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_wheel"] = module  # dataclasses look there
    sys.path.insert(0, str(ROOT / "python"))  # as for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "python"))
    return module


def test_the_glue_of_this_torch_is_taken(tmp_path):
    for name in ("for_torch_2_6", "for_torch_2_13", "for_torch_2_9", "for_torches"):
        (tmp_path / name).mkdir()
    path = [str(tmp_path)]
    assert choose_glue(path, "2.9.1+cu128") == "2.9"
    assert path == [str(tmp_path), str(tmp_path / "for_torch_2_9")]
    with pytest.raises(ImportError, match=r"this wheel of shardwire is for torch 2\.6, 2\.9, 2\.13, but this is torch "
                                          r"2\.10\.0; install one of these, or build shardwire"):
        choose_glue([str(tmp_path)], "2.10.0")


def test_a_build_for_one_torch_has_no_choice(tmp_path):
    path = [str(tmp_path)]
    assert choose_glue(path, "2.10.0") == ""
    assert path == [str(tmp_path)]


@pytest.mark.parametrize("torches, wanted",
                         [(["2.13"], ">=2.13"), (["2.13", "2.9", "2.11"], ">=2.9,!=2.10.*,!=2.12.*"),
                          (["2.9", "2.10"], ">=2.9")])
def test_what_the_wheel_needs(make_wheel, torches, wanted):
    assert make_wheel.needs_torch(torches) == wanted


def test_links_of_the_description_lead_somewhere_from_a_package_index(make_wheel):
    text, source = make_wheel.readme(), (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]*)\)", source)) > 20
    assert all(re.match("https?://", link) for link in links), links
    assert [link.split("/main/")[1] for link in links if link.endswith(".svg")] == re.findall(
        r"!\[[^\]]*\]\(([^)]*)\)", source)


def stage(make_wheel, folder, torch_version, **facts):
    (folder / "shardwire").mkdir(parents=True)
    return make_wheel.Stage(folder, torch_version, **{"python": "3.11", "version": "1.0", **facts})


def test_builds_that_do_not_fit(make_wheel, tmp_path):
    def check(*facts):
        make_wheel.check([stage(make_wheel, tmp_path / str(len(list(tmp_path.iterdir()))), **each) for each in facts])
    with pytest.raises(make_wheel.WheelError, match="one python, not of 3.10, 3.11"):
        check({"torch_version": "2.9"}, {"torch_version": "2.10", "python": "3.10"})
    with pytest.raises(make_wheel.WheelError, match="one version, not of 1.0, 2.0"):
        check({"torch_version": "2.9"}, {"torch_version": "2.10", "version": "2.0"})
    with pytest.raises(make_wheel.WheelError, match="two builds are for the same torch: 2.9, 2.9"):
        check({"torch_version": "2.9"}, {"torch_version": "2.9"})


@dataclasses.dataclass
class Unpacked:
    """The build of these tests, as a wheel, unpacked as pip does."""

    site: pathlib.Path
    names: list[str]
    metadata: email.message.Message

    @property
    def glue(self):
        return self.site / "shardwire" / f"for_torch_{_build_info.TORCH.replace('.', '_')}"

    def run(self, folder, **variables):
        """A program in a process without any other shardwire, with files in ``folder``."""
        program = ("import sys, torch, shardwire, torch.distributed as dist; from shardwire import _C\n"
                   "print(_C.__file__, shardwire.__version__)\n"
                   "dist.init_process_group('shardwire', init_method=f'file://{sys.argv[1]}', rank=0, world_size=1)\n"
                   "t = torch.ones(3); dist.all_reduce(t); assert t.tolist() == [1] * 3; dist.destroy_process_group()")
        return self.python(folder, program, folder / "store", **variables)

    def python(self, folder, program, *words, **variables):
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env["PYTHONPATH"] = os.pathsep.join([str(self.site), str(pathlib.Path(torch.__file__).parents[1])])
        env["XDG_CACHE_HOME"] = str(folder)
        return subprocess.run([sys.executable, "-c", program, *words], env={**env, **variables}, capture_output=True,
                              text=True, timeout=150, check=False)


@pytest.fixture(scope="module")
def wheel_of_this_build(make_wheel, tmp_path_factory):
    pytest.importorskip("wheel", reason="Debian: python3-wheel")
    build = pathlib.Path(shardwire.__file__).parents[2]  # the package's files are links, so not resolved
    if not (build / "CMakeCache.txt").exists():
        pytest.skip("shardwire is installed here, and not built")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, ROOT / "python" / "make_wheel.py", "--plain", "--out", folder, build], check=True,
                   capture_output=True, timeout=120)
    (wheel,) = folder.glob("shardwire-*.whl")
    return wheel


@pytest.fixture
def unpacked(wheel_of_this_build, tmp_path):
    with zipfile.ZipFile(wheel_of_this_build) as file:
        file.extractall(tmp_path / "site")
        names = file.namelist()
        return Unpacked(tmp_path / "site", names, email.message_from_bytes(
            file.read(next(name for name in names if name.endswith("/METADATA")))))


def test_a_wheel_of_this_build_works_where_it_is_unpacked(unpacked, tmp_path):
    metadata = unpacked.metadata
    assert (metadata["License"] == "MIT" and len(metadata.get_all("Project-URL")) >= 3
            and len(metadata.get_all("Classifier")) > 5 and metadata.get_payload().startswith("# shardwire"))
    libraries = [re.sub(r"\.so\.[0-9.]+$", ".so.N", name) for name in sorted(unpacked.names)
                 if "libshardwire_c" in name]
    assert libraries == [f"shardwire/{unpacked.glue.name}/libshardwire_c10d.so.N",
                         "shardwire/libshardwire_core.so.N"]
    done = unpacked.run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{unpacked.glue}/_C."), done.stdout


def test_the_doctor_finds_the_mpi_module_of_a_wheel(unpacked, tmp_path):
    if "shardwire/libshardwire_mpi.so" not in unpacked.names:
        pytest.skip("this build has no mpi transport")
    done = unpacked.python(tmp_path, doctor._MODULE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mpi"] == ""


def test_a_symbol_that_the_platform_lacks_is_named(make_wheel, tmp_path, monkeypatch):
    (tmp_path / "for_torch_2_9").mkdir()
    (tmp_path / "for_torch_2_9" / "libx.so.1").touch()
    needed = ["memcpy@GLIBC_2.14", "_ZdlPv@GLIBCXX_3.4", "PyLong_Type", "stat"]
    system = ["stat@@GLIBC_2.33", "dlopen@GLIBC_2.2.5", "dlopen@@GLIBC_2.34", "memcpy@@GLIBC_2.14"]
    monkeypatch.setattr(make_wheel, "dynamic_symbols", lambda library, undefined: needed if undefined else system)
    for needed[-1] in ("stat@GLIBC_2.33", "dlopen@GLIBC_2.34", "stat"):
        with pytest.raises(make_wheel.WheelError, match=f"^for_torch_2_9/libx.so.1 needs {needed[-1]}, which manylinux_"
                                                        "2_28_x86_64 does not have$"):
            make_wheel.check_platform(tmp_path, "manylinux_2_28_x86_64")
    for needed[-1] in ("dlopen", "dlopen@GLIBC_2.2.5"):
        make_wheel.check_platform(tmp_path, "manylinux_2_28_x86_64")


def test_the_wheel_of_run_wheel(make_wheel, tmp_path):
    """The tag, and a group with the portable libraries. Only links are new: ccache has the objects of this build."""
    build = pathlib.Path(shardwire.__file__).parents[2]
    known = f". {ROOT}/.ci/build.sh && portable_links"
    if subprocess.run(["bash", "-c", known], check=False, env={**os.environ, "root": str(ROOT)}).returncode:
        pytest.skip("the links for old systems are known for Debian 12, g++ 12, x86-64")
    if build.parent != ROOT / "build" or not (build / "CMakeCache.txt").exists() or not shutil.which("ccache"):
        pytest.skip("this is no build of ./run with ccache")
    if tuple(int(part) for part in _build_info.TORCH.split(".")) < (2, 7):
        pytest.skip("PyPI's torch up to 2.6 has another C++ ABI: no wheel is made for it")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([ROOT / "run", "wheel", "--out", tmp_path / "out", sys.executable], capture_output=True,
                          env={**environment, "SHARDWIRE_APT": "no"}, text=True, timeout=400, check=False)
    if done.returncode and "installing auditwheel" in done.stderr:
        pytest.skip("pip finds no auditwheel")
    assert done.returncode == 0, done.stderr
    wheel = pathlib.Path(done.stdout.split(": ")[0])
    assert wheel.name.endswith("-manylinux_2_28_x86_64.whl") and wheel.stat().st_size < 10e6
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
        names = file.namelist()
    assert not [name for name in names if ".libs/" in name], "OpenSSL and fmt are parts of the core"
    assert {"openssl.txt", "fmt.txt", "Apache-2.0.txt"} <= {name.rpartition("/")[2] for name in names}
    make_wheel.check_platform(tmp_path / "site" / "shardwire", "manylinux_2_28_x86_64")
    unpacked = Unpacked(tmp_path / "site", names, email.message.Message())
    done = unpacked.run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{unpacked.glue}/_C."), done.stdout


def as_of_an_older_torch(unpacked):
    """Renames the native part, so that the running torch is newer than the wheel."""
    major, minor = _build_info.TORCH.split(".")
    older = f"{major}.{int(minor) - 1}"
    folder = unpacked.glue.rename(unpacked.glue.with_name(f"for_torch_{older.replace('.', '_')}"))
    info = folder / "_build_info.py"
    info.write_text(info.read_text().replace(f'TORCH = "{_build_info.TORCH}"', f'TORCH = "{older}"'))
    return older, folder


def test_a_newer_torch_gets_the_newest_part_after_a_trial(unpacked, tmp_path):
    older, folder = as_of_an_older_torch(unpacked)
    done = unpacked.run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder}/_C."), done.stdout
    (note,) = (tmp_path / "shardwire" / "glue").iterdir()
    assert note.read_text() == f"the part for torch {older} works with torch {torch.__version__}\n"
    # The next import reads the note, and tries nothing: a trial would fail now.
    (unpacked.site / "shardwire" / "_glue_trial.py").open("a").write("\n_TRIAL_S = 0.0\n")
    assert unpacked.run(tmp_path).returncode == 0


@pytest.mark.parametrize("broken, ending", [("raise ImportError('no such symbol')", "status 1 (ImportError: no such"),
                                            ("import os; os.kill(os.getpid(), 11)", "signal SIGSEGV (")])
def test_a_part_that_does_not_work_with_a_newer_torch_is_refused(unpacked, tmp_path, broken, ending):
    older, folder = as_of_an_older_torch(unpacked)
    next(folder.glob("_C.*.so")).unlink()
    (folder / "_C.py").write_text(broken)
    done = unpacked.run(tmp_path)
    assert done.returncode == 1
    assert (f"ImportError: this wheel of shardwire is for torch {older}, but this is torch {torch.__version__}, with "
            f"which the part for torch {older} does not work: the trial ended with {ending}") in done.stderr
    assert [path.read_text() for path in (tmp_path / "shardwire" / "glue").iterdir()] == [""]
