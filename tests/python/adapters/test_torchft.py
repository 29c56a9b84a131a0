"""shardwire.adapters.torchft with the real torchft: its own tests of groups and of its manager over shardwire, and a
job of three replicas, one of which is killed and replaced.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

torchft = pytest.importorskip("torchft", reason="torchft is not installed: ./run frameworks makes an environment that "
                                                "has it")

from torchft.coordination import LighthouseServer  # noqa: E402

HERE = Path(__file__).resolve().parent


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("file, chosen, least", [("process_group_test", "not Baby and not nccl and not NCCL", 25),
                                                 ("manager_integ_test", "", 7), ("lighthouse_test", "", 3),
                                                 ("parameter_server_test", "", 1), ("ddp_test", "", 1)])
def test_torchfts_own_tests(tmp_path: Path, file: str, chosen: str, least: int) -> None:
    """Those of a child process with NCCL or gloo ("Baby") use torchft's own classes."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "torchft_as_shardwire", "-k",
               chosen, f"--junitxml={report}", str(Path(torchft.__file__).with_name(f"{file}.py"))]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300,
                           check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    passed = [case for case in cases if len(case) == 0 or all(part.tag.startswith("system") for part in case)]
    assert len(passed) >= least, ended.stdout[-2000:]


class Replica:
    """A replica process; `lines` grows while the process runs."""

    def __init__(self, lighthouse: str, number: int, end: Path) -> None:
        self.lines: list[list[str]] = []
        self.grown = threading.Condition()
        command = [sys.executable, str(HERE / "torchft_job.py"), lighthouse, str(number), str(end)]
        self.process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.errors = ""
        self.readers = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.grown:
                self.lines.append(line.split())
                self.grown.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def step_of(self, replicas: int, seconds: float = 90) -> int:
        """Waits until that many replicas take part in a step of this one, and returns the step."""
        def there() -> bool:
            return bool(self.lines) and self.lines[-1][0] == "step" and int(self.lines[-1][2]) == replicas
        with self.grown:
            assert self.grown.wait_for(there, seconds), f"{self.lines[-5:]}"
            return int(self.lines[-1][1])

    def end(self) -> list[str]:
        assert self.process.wait(timeout=120) == 0, self.errors[-3000:]
        for reader in self.readers:
            reader.join()
        return self.lines[-1]


def test_a_killed_replica_is_replaced_and_all_end_with_the_same_weights(tmp_path: Path) -> None:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=2000,
                                  heartbeat_timeout_ms=1000)
    replicas: list[Replica] = []
    try:
        address = lighthouse.address()
        replicas += [Replica(address, number, tmp_path / "end") for number in range(3)]
        replicas[0].step_of(3)
        replicas[2].process.send_signal(signal.SIGKILL)
        replicas[0].step_of(2)
        replicas.append(Replica(address, 3, tmp_path / "end"))
        last = replicas[0].step_of(3) + 20
        (tmp_path / "end.part").write_text(str(last))
        (tmp_path / "end.part").rename(tmp_path / "end")
        ends = [replicas[index].end() for index in (0, 1, 3)]
        assert {(line[0], line[1]) for line in ends} == {("end", str(last))}, ends
        assert len({line[2] for line in ends}) == 1, ends
    finally:
        for replica in replicas:
            replica.process.kill()
            replica.process.wait()
            for reader in replica.readers:
                reader.join()
        lighthouse.shutdown()
