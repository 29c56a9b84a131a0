"""The doctor: its lines, its JSON, its exit status, and that it names what is wrong when something is."""

import json
import pathlib
import resource
import subprocess
import sys

import pytest

DOCTOR = pathlib.Path(__file__).resolve().parents[2] / "python" / "shardwire" / "doctor.py"


def doctor(*words, limits=(), python=sys.executable, env=None):
    def hold():
        for which, value in limits:
            resource.setrlimit(which, (value, value))

    done = subprocess.run([python, str(DOCTOR), *words], capture_output=True, text=True, preexec_fn=hold if limits else None, check=False, env=env)
    assert done.stderr == ""
    return done.returncode, done.stdout


def levels(text):
    found = json.loads(text)
    return found["ok"], {check["name"]: check for check in found["checks"]}


def test_says_one_line_a_check_and_how_to_mend():
    status, text = doctor()
    lines = text.splitlines()
    assert all(line.startswith(("OK   ", "WARN ", "FAIL ", "     -> ")) for line in lines[:-1]), text
    assert status == (1 if any(line.startswith("FAIL") for line in lines) else 0)
    for name in ("python", "torch", "compiler", "cores", "memory", "shared memory", "huge pages", "/dev/shm", "cross-memory copy", "open files"):
        assert any(line[5:].startswith(name + ": ") for line in lines), name


def test_json_agrees_with_the_exit_status():
    status, text = doctor("--json")
    ok, checks = levels(text)
    assert ok == (status == 0) == all(check["level"] != "FAIL" for check in checks.values())
    assert all(check["fix"] for check in checks.values() if check["level"] != "OK")


def test_few_open_files_are_a_failure_that_names_ulimit():
    status, text = doctor("--json", limits=[(resource.RLIMIT_NOFILE, 64)])
    ok, checks = levels(text)
    assert status == 1 and not ok and checks["open files"]["level"] == "FAIL" and "ulimit -n" in checks["open files"]["fix"]


def test_no_room_for_shared_memory_is_a_failure():
    status, text = doctor("--json", limits=[(resource.RLIMIT_FSIZE, 4096)])
    assert status == 1 and levels(text)[1]["shared memory"]["level"] == "FAIL"


def test_a_python_without_torch_is_a_failure_that_says_what_to_install(tmp_path):
    made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("this interpreter cannot make a virtual environment")
    status, text = doctor("--json", python=str(tmp_path / "v" / "bin" / "python"), env={"PATH": "/usr/bin:/bin"})
    torch = levels(text)[1]["torch"]
    assert status == 1 and torch["level"] == "FAIL" and "./run" in torch["fix"]


def test_a_module_that_does_not_load_is_a_failure(tmp_path):
    (tmp_path / "shardwire").mkdir()
    (tmp_path / "shardwire" / "__init__.py").write_text("raise ImportError('built for torch 9.9')\n")
    status, text = doctor("--json", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)})
    module = levels(text)[1]["module"]
    assert module["level"] == "FAIL" and "built for torch 9.9" in module["text"] and status == 1
