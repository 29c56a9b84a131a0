"""A program that starts processes of its own, such as ranks, run to its end by a test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def run_program(command: Sequence[Any], timeout: float = 120, **more: Any) -> subprocess.CompletedProcess[str]:
    """The program's status, stdout and stderr; `more` as in subprocess.Popen. When `timeout` seconds pass, the program
    and all processes that it started are killed, and the error has the output. subprocess.run would kill the program
    alone, and would then wait for its ranks, which hold the pipes.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                          **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise AssertionError(f"{command} did not end within {timeout:g} s:\n{out}{err}") from None
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
