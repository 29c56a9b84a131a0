"""Where lines of log go: to stderr, or to Python's logging once its logger "shardwire" was given a handler or a level."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import logging, os, sys
import torch.distributed as dist
import shardwire
from shardwire._log import log

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
print("python", (logging.INFO, "a line of Python's") in lines)
child = os.fork()
if child == 0:
    lines.clear()
    third = group("third")
    log("warn", "of the child")
    shardwire._log._end()
    print("child", any(level < logging.WARNING for level, _ in lines), (logging.WARNING, "of the child") in lines, flush=True)
    os._exit(0)
os.waitpid(child, 0)
before = len(lines)
logger.removeHandler(handler)
logger.setLevel(logging.NOTSET)
fourth = group("fourth")  # to stderr again
log("info", "and this too")
shardwire._log._end()
print("native", any("second" in text for _, text in lines), all("fourth" not in text and "this too" not in text for _, text in lines))
"""


def test_lines_go_to_pythons_logging_once_it_is_configured_for_them() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60, env={**os.environ, "SHARDWIRE_LOG": "debug"})
    assert sorted(done.stdout.splitlines()) == ["child True True", "native True True", "python True"], done
    # The groups end with the program, when lines go to stderr again.
    assert not [line for line in done.stderr.splitlines() if ("second" in line or "third" in line) and "shut down" not in line], done.stderr
    assert "first" in done.stderr and "fourth" in done.stderr and "and this too" in done.stderr, done.stderr
    assert "a line of Python's" not in done.stderr, done.stderr
