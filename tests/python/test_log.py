"""The destination of lines of log: stderr, or Python's logging once the program configured the logger "shardwire" or
the root logger.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.any_torch

PROGRAM = """
import logging, os, sys
import torch.distributed as dist
import shardwire
from shardwire.process.log import log

def group(name):
    return shardwire.create_process_group(dist.HashStore(), 0, 1, name=name)

first = group("first")  # nothing is configured yet: to stderr, by SHARDWIRE_LOG
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append((record.levelno, record.getMessage()))
logger = logging.getLogger("shardwire")
logger.addHandler(handler)
logger.setLevel(logging.DEBUG)
second = group("second")
log("info", "a line of Python's")
print("python", (logging.INFO, "a line of Python's") in lines, flush=True)  # the child would write the line again
child = os.fork()
if child == 0:
    lines.clear()
    third = group("third")
    log("warn", "of the child")
    shardwire.process.log._end()
    print("child", any(level < logging.WARNING for level, _ in lines), (logging.WARNING, "of the child") in lines, flush=True)
    os._exit(0)
os.waitpid(child, 0)
before = len(lines)
logger.removeHandler(handler)
logger.setLevel(logging.NOTSET)
fourth = group("fourth")  # to stderr again
log("info", "and this too")
shardwire.process.log._end()
print("native", any("second" in text for _, text in lines), all("fourth" not in text and "this too" not in text for _, text in lines))
"""


WITH_A_HANDLER_THAT_RAISES = """
import logging, threading
import torch.distributed as dist
import shardwire
from shardwire.process import log

errors = [OSError("the disk is full"), ValueError("the file is closed"), UnicodeError("no text"), KeyError("key")]
lines = []

class Raises(logging.Handler):
    def emit(self, record):
        if threading.current_thread().name == "shardwire-log":  # not in the calls of this program
            lines.append(record.getMessage())
            raise errors[len(lines) % len(errors)]

logger = logging.getLogger("shardwire")
logger.addHandler(Raises())
logger.setLevel(logging.DEBUG)
for number in range(6):
    shardwire.create_process_group(dist.HashStore(), 0, 1, name=f"group{number}")
log._end()
print(*[number for number in range(6) if any(f"group{number}" in line for line in lines)])
"""


def test_a_handler_that_raises_loses_no_later_line() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_A_HANDLER_THAT_RAISES], check=True, capture_output=True,
                          text=True, timeout=60)
    assert done.stdout.split() == list("012345"), done
    assert "group5" in done.stderr and "(logging raised OSError: the disk is full)" in done.stderr, done.stderr


def test_lines_go_to_pythons_logging_once_it_is_configured_for_them() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "SHARDWIRE_LOG": "debug"})
    assert sorted(done.stdout.splitlines()) == ["child True True", "native True True", "python True"], done
    # The groups end with the program; by then lines go to stderr again.
    assert not [line for line in done.stderr.splitlines()
                if ("second" in line or "third" in line) and "shut down" not in line], done.stderr
    assert "first" in done.stderr and "fourth" in done.stderr and "and this too" in done.stderr, done.stderr
    assert "a line of Python's" not in done.stderr, done.stderr


OF_THE_ROOT_LOGGER = """
import logging
import torch.distributed as dist
import shardwire
from shardwire.process.log import log

def group(name):
    return shardwire.create_process_group(dist.HashStore(), 0, 1, name=name)

log("warn", "not configured yet")
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append((record.name, record.levelno, record.getMessage()))
logging.basicConfig(handlers=[handler])
first = group("first")
log("info", "below the root's level")
log("warn", "a warning")
logging.getLogger().setLevel(logging.DEBUG)
second = group("second")
log("info", "now of the root's level")
shardwire.process.log._end()
print([text for _, _, text in lines if text in ("not configured yet", "below the root's level", "a warning", "now of the root's level")])
print({name for name, _, _ in lines}, any("first" in text for _, _, text in lines), any("second" in text for _, _, text in lines))
"""


def test_lines_reach_the_root_logger_by_its_level() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SHARDWIRE_LOG"}
    done = subprocess.run([sys.executable, "-c", OF_THE_ROOT_LOGGER], check=True, capture_output=True, text=True,
                          timeout=60, env=environment)
    assert done.stdout.splitlines() == ["""['a warning', "now of the root's level"]""", "{'shardwire'} False True"], (
        done)
    assert "not configured yet" in done.stderr and "a warning" not in done.stderr, done.stderr


def test_shardwire_log_goes_before_the_root_logger() -> None:
    done = subprocess.run([sys.executable, "-c", OF_THE_ROOT_LOGGER], check=True, capture_output=True, text=True,
                          timeout=60, env={**os.environ, "SHARDWIRE_LOG": "info"})
    assert done.stdout.splitlines() == ["[]", "set() False False"], done
    assert "below the root's level" in done.stderr, done.stderr
