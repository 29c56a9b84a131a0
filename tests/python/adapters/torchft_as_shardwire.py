"""A pytest plugin for torchft's own tests: ProcessGroupShardwire takes the place of ProcessGroupGloo, and where these
tests know the texts of gloo's and NCCL's errors, the texts of shardwire's are added."""

from __future__ import annotations

import unittest
from typing import Any

import torchft
import torchft.process_group

from shardwire.adapters.torchft import ProcessGroupShardwire

torchft.ProcessGroupGloo = torchft.process_group.ProcessGroupGloo = ProcessGroupShardwire

_raises_regex = unittest.TestCase.assertRaisesRegex


def _with_our_texts(self: unittest.TestCase, kind: Any, pattern: Any, *args: Any, **options: Any) -> Any:
    if "Connection closed by peer" in str(pattern):
        pattern = f"{pattern}|left the group"
    elif "Socket Timeout" in str(pattern):
        pattern = f"{pattern}|did not arrive within"
    return _raises_regex(self, kind, pattern, *args, **options)


unittest.TestCase.assertRaisesRegex = _with_our_texts  # type: ignore[method-assign, assignment]
