"""Which kernel the rig takes, when it starts a machine anew, and from when its time limit counts: with stand-ins for
apt and QEMU.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import kernel
import machines

HANGS = "exec sleep 60"
WORKS = "touch ready; until [ -e go ]; do sleep 0.05; done; sleep {seconds}; echo 0 >status; sleep 60"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the rig's machines are x86_64 ones")
def test_the_next_suite_is_tried_behind_one_whose_download_takes_too_long(tmp_path, monkeypatch):
    def kernel_of(suite):
        if suite == "slow":
            raise subprocess.TimeoutExpired("apt-get", 600)
        return suite

    for name, value in (("CACHE", tmp_path), ("SUITES", ["slow", "host"]), ("kernel_of", kernel_of),
                        ("initrd_of", str), ("missing_packages", list)):
        monkeypatch.setattr(kernel, name, value)
    assert kernel.prepare() == "host"


class StandIns(machines.Machines):
    """One machine, whose boots are these scripts in turn; the last one again on a machine that is too slow."""

    def __init__(self, folder, scripts, timeout):
        super().__init__("true", timeout=timeout)
        self.folder, self.scripts = folder, list(scripts)

    def start(self, node):
        control = self.folder / f"boot{len(self.processes)}"
        control.mkdir()
        script = self.scripts[min(len(self.processes), len(self.scripts) - 1)]
        process = subprocess.Popen(["sh", "-c", script], cwd=control, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
        self.processes.append(process)
        return process, control

    def outcome(self):
        try:
            return self.run()
        finally:
            for process in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def short_boots(monkeypatch):
    monkeypatch.setattr(machines, "BOOT_LIMIT", 6)


@pytest.mark.usefixtures("short_boots")
def test_a_boot_that_hangs_is_tried_again_though_the_limit_of_the_command_is_shorter(tmp_path):
    assert StandIns(tmp_path, [HANGS, WORKS.format(seconds=0)], timeout=5).outcome() == 0


@pytest.mark.usefixtures("short_boots")
def test_the_limit_counts_from_the_begin_of_the_command(tmp_path):
    assert StandIns(tmp_path, [WORKS.format(seconds=30)], timeout=0.5).outcome() == machines.TIMED_OUT
