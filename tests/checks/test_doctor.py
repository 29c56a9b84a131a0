"""The doctor: the lines, the JSON, the exit status, and the names of faults."""

import json
import pathlib
import resource
import runpy
import subprocess
import sys

import pytest

DOCTOR = pathlib.Path(__file__).resolve().parents[2] / "python" / "shardwire" / "doctor.py"


def doctor(*words, limits=(), python=sys.executable, env=None):
    def hold():
        for which, value in limits:
            resource.setrlimit(which, (value, value))

    done = subprocess.run([python, str(DOCTOR), *words], capture_output=True, text=True,
                          preexec_fn=hold if limits else None, check=False, env=env)
    assert done.stderr == ""
    return done.returncode, done.stdout


def levels(text):
    found = json.loads(text)
    return found["ok"], {check["name"]: check for check in found["checks"]}


def test_says_one_line_a_check_and_how_to_fix():
    status, text = doctor()
    lines = text.splitlines()
    assert all(line.startswith(("OK   ", "WARN ", "FAIL ", "     -> ")) for line in lines[:-1]), text
    assert status == (1 if any(line.startswith("FAIL") for line in lines) else 0)
    for name in ("python", "torch", "compiler", "cores", "memory", "shared memory", "huge pages", "/dev/shm",
                 "cross-memory copy", "open files", "interfaces", "loopback speed", "rdma", "mpi"):
        assert any(line[5:].startswith(name + ": ") for line in lines), name


def test_json_agrees_with_the_exit_status():
    status, text = doctor("--json")
    ok, checks = levels(text)
    assert ok == (status == 0) == all(check["level"] != "FAIL" for check in checks.values())
    assert all(check["fix"] for check in checks.values() if check["level"] != "OK")


def test_warnings_behind_the_answer_of_a_process():
    last_json = runpy.run_path(str(DOCTOR))["_last_json"]
    assert last_json('{"version": "2.13.0"}\nUserWarning: no numpy\n  cpu = device("cpu")') == {"version": "2.13.0"}
    assert last_json("ImportError: no torch\n3") is None and last_json("") is None


def test_few_open_files_are_a_failure_that_names_ulimit():
    status, text = doctor("--json", limits=[(resource.RLIMIT_NOFILE, 64)])
    ok, checks = levels(text)
    assert (status == 1 and not ok and checks["open files"]["level"] == "FAIL"
            and "ulimit -n" in checks["open files"]["fix"])


def test_no_room_for_shared_memory_is_a_failure():
    status, text = doctor("--json", limits=[(resource.RLIMIT_FSIZE, 4096)])
    assert status == 1 and levels(text)[1]["shared memory"]["level"] == "FAIL"


def test_a_python_without_torch_is_a_failure_that_says_what_to_install(tmp_path):
    made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], capture_output=True,
                          check=False)
    if made.returncode != 0:
        pytest.skip("this interpreter cannot make a virtual environment")
    status, text = doctor("--json", python=str(tmp_path / "v" / "bin" / "python"), env={"PATH": "/usr/bin:/bin"})
    torch = levels(text)[1]["torch"]
    assert status == 1 and torch["level"] == "FAIL" and "./run" in torch["fix"]


def test_a_module_that_does_not_load_is_a_failure(tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '9.9'\n")  # the checks run where no torch is, too
    (tmp_path / "shardwire").mkdir()
    (tmp_path / "shardwire" / "__init__.py").write_text("raise ImportError('built for torch 9.9')\n")
    status, text = doctor("--json", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)})
    module = levels(text)[1]["module"]
    assert module["level"] == "FAIL" and "built for torch 9.9" in module["text"] and status == 1


def with_module(tmp_path, transports, programs=(), broken=False, **env):
    """The doctor's checks with the test's own module, built with these transports, on a machine with these programs."""
    package, programs_folder = tmp_path / "path" / "shardwire", tmp_path / "bin"
    package.mkdir(parents=True)
    programs_folder.mkdir()
    (tmp_path / "path" / "torch.py").write_text("__version__ = '9.9'\n")
    (package / "__init__.py").write_text("from . import _C\n__version__ = '0'\n")
    (package / "_C.py").write_text("" if transports is None else f"transports = {transports!r}\n")
    if "mpi" in (transports or ()):
        library = next(line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
                       if "libc.so" in line)
        (package / "libshardwire_mpi.so").symlink_to(tmp_path / "nothing" if broken else library)
    for name in programs:
        (programs_folder / name).write_text("#!/bin/sh\necho it\n")
        (programs_folder / name).chmod(0o755)
    return (levels(
        doctor("--json", env={"PATH": str(programs_folder), "PYTHONPATH": str(tmp_path / "path"), **env})[1])[1])


def test_a_module_without_mpi_on_a_machine_that_has_it_is_reported_with_the_fix(tmp_path):
    checks = with_module(tmp_path, ("shm", "rdma", "tcp"), ["mpicxx"])
    mpi = checks["mpi transport"]
    assert checks["module"]["level"] == "OK" and checks["transports"]["text"] == "built with shm, rdma, tcp"
    assert (mpi["level"] == "WARN" and "mpicxx" in mpi["text"] and "libopenmpi-dev" in mpi["fix"]
            and "./run setup" in mpi["fix"])
    assert "rdma transport" not in checks


def test_a_module_without_mpi_in_a_job_of_mpi_is_reported(tmp_path):
    assert with_module(tmp_path, ("shm", "tcp"), OMPI_COMM_WORLD_SIZE="2")["mpi transport"]["level"] == "WARN"


def test_a_module_without_mpi_where_there_is_none_is_well(tmp_path):
    mpi = with_module(tmp_path, ("shm", "tcp"))["mpi transport"]
    assert mpi["level"] == "OK" and "libopenmpi-dev" in mpi["text"]


@pytest.mark.parametrize("broken", [False, True])
def test_a_module_whose_mpi_does_not_load_is_reported(tmp_path, broken):
    checks = with_module(tmp_path, ("shm", "rdma", "mpi", "tcp"), ["mpirun"], broken)
    assert checks["transports"]["text"] == "built with shm, rdma, mpi, tcp"
    assert ("mpi transport" in checks) == broken and (not broken or checks["mpi transport"]["level"] == "WARN"), checks


def test_a_module_that_does_not_say_its_transports_is_older(tmp_path):
    transports = with_module(tmp_path, None)["transports"]
    assert transports["level"] == "WARN" and "./run setup" in transports["fix"]


def test_interfaces_that_do_not_exist_are_a_failure_that_lists_those_that_do():
    status, text = doctor("--json", env={"PATH": "/usr/bin:/bin", "SHARDWIRE_SOCKET_IFNAME": "nosuch"})
    interfaces = levels(text)[1]["interfaces"]
    assert (status == 1 and interfaces["level"] == "FAIL" and "SHARDWIRE_SOCKET_IFNAME=nosuch" in interfaces["text"]
            and "lo" in interfaces["text"])


def test_an_rdma_port_is_listed_with_its_gid(tmp_path):
    describe_port = runpy.run_path(str(DOCTOR.parent / "process" / "wires.py"))["_describe_port"]
    port = tmp_path / "mlx5_0" / "ports" / "1"
    for name, text in {
        "link_layer": "Ethernet",
        "state": "4: ACTIVE",
        "rate": "100 Gb/sec (4X EDR)",
        "gids/0": "fe80:0000:0000:0000:0202:c9ff:fe00:0001",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001",
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gid_attrs/types/0": "RoCE v2",
        "gid_attrs/types/1": "RoCE v2",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(text + "\n")
    text, works = describe_port(port)
    assert (works and text == "mlx5_0:1 Ethernet, 100 Gb/sec (4X EDR), active, GID 1 of 2 "
                              "(0000:0000:0000:0000:0000:ffff:0a00:0001, RoCE v2)")
    (port / "state").write_text("1: DOWN\n")
    assert not describe_port(port)[1]
