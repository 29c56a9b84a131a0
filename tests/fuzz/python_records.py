"""A search for bytes that break the parsers that are Python: serialize, messages of queues, records of publish,
safetensors headers, pickles and archives of checkpoints, kernels, reports of status (python_targets.py).

A parser may raise the errors that its documentation names. Any other exception, a call of more than ten seconds, and
more than 1 GiB of memory are findings. Inputs with new lines of the parsers are kept and changed further. The search
counts the lines of every eighth input, since counting makes a call ten times as slow. The same seed makes the same
inputs. Atheris searches by bytecode in the same way; Debian has no package of Atheris.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import resource
import signal
import sys
import time
import traceback
import types
from typing import Any

import torch
from python_targets import LONGEST_INPUT, Target, targets

LONGEST_CALL_S = 10
MOST_BYTES = 1 << 30
COUNTED = 8  # the lines of one input in so many are counted

WORDS = [b"Infinity", b"-1", b"NaN", b"1e999", b"null", b"true", b"[]", b"{}", b"99999999999999999999", b'""',
         b"9" * 5000, b'"\\ud800"', b"[" * 3000, b'{"a":' * 3000, b"\xff" * 8, bytes(8), b"\0\0\0\x80",
         b"\xff\xff\xff\x7f"]
NUMBERS = (0, 1, 2, 7, 255, 1 << 15, 1 << 31, 1 << 62, -1, -2)


def changed(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        at, kind = rng.randrange(len(new) + 1), rng.randrange(9)
        until = min(len(new), at + rng.choice((1, 1, 2, 4, 8, 30)))
        if kind <= 1 and new:
            new[at % len(new)] = rng.randrange(256)
        elif kind == 2 and new:
            new[at % len(new)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            new[at:until] = b""
        elif kind == 4:
            new[at:at] = new[at:until] * rng.choice((1, 2, 20))
        elif kind == 5:
            new[at:until if rng.random() < 0.5 else at] = rng.choice(WORDS)
        elif kind == 6:
            size = rng.choice((1, 2, 4, 8))
            new[at:at + size] = (rng.choice(NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif kind == 7:
            other = rng.choice(corpus)
            begin = rng.randrange(len(other) + 1)
            new[at:until] = other[begin:begin + rng.choice((4, 16, 64, 1000))]
        else:
            numbers = [index for index, byte in enumerate(new) if 48 <= byte <= 57]
            if numbers:
                place = rng.choice(numbers)
                new[place:place + 1] = rng.choice(WORDS)
    return bytes(new[:LONGEST_INPUT])


class Hung(BaseException):
    """The call took too long."""


def on_alarm(*_: Any) -> None:
    raise Hung(f"the call took more than {LONGEST_CALL_S} s")


class Lines:
    """The lines of some modules that ran, and all lines of the functions that were called."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.files = {str(sys.modules[f"shardwire.{name.replace('/', '.')}"].__file__) for name in modules}
        self.seen, self.called = set[tuple[str, int]](), set[types.CodeType]()

    def trace(self, frame: types.FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self.files:
            return None
        self.called.add(code)
        if event == "line":
            self.seen.add((code.co_filename, frame.f_lineno))
        return self.trace

    def missed(self) -> set[tuple[str, int]]:
        return {(code.co_filename, line) for code in self.called for _, _, line in code.co_lines()
                if line and line != code.co_firstlineno} - self.seen


def run(target: Target, data: bytes) -> None:
    signal.setitimer(signal.ITIMER_REAL, LONGEST_CALL_S)
    try:
        target.parse(data)
    except target.errors:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def search(name: str, target: Target, options: argparse.Namespace) -> bool:
    """True without a finding. The input of a call lies in a file during the call: a crash leaves the file."""
    rng, lines, corpus, until = random.Random(options.seed), Lines(target.modules), list(target.seeds), options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}-input"
    begun, number = time.monotonic(), 0
    with open(path, "w+b", buffering=0) as current:
        while number < options.each and (not until or time.monotonic() - begun < until):
            data = target.seeds[number] if number < len(target.seeds) else changed(rng, rng.choice(corpus), corpus)
            os.ftruncate(current.fileno(), len(data))
            os.pwrite(current.fileno(), data, 0)
            counts = number % COUNTED == 0 or number < len(target.seeds)
            known = len(lines.seen)
            sys.settrace(lines.trace if counts else None)
            try:
                run(target, data)
            except BaseException as error:
                sys.settrace(None)
                if isinstance(error, KeyboardInterrupt):
                    raise
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                traceback.print_exc(limit=-6)
                return False
            sys.settrace(None)
            if len(lines.seen) > known:
                corpus.append(data)
            number += 1
    path.unlink()
    missed = sorted(lines.missed())
    print(f"{name}: {number} inputs, {len(corpus)} kept, {len(lines.seen)} of {len(lines.seen) + len(missed)} lines "
          f"of the called functions (seed {options.seed}, {time.monotonic() - begun:.1f} s)", flush=True)
    for file, line in missed if options.show else []:
        print(f"  not reached: {file}:{line}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Changed bytes for the parsers that are Python.")
    parser.add_argument("target", nargs="?", help="one of: " + ", ".join(targets()))
    parser.add_argument("--list", action="store_true", help="only print the names of the targets")
    parser.add_argument("--each", type=lambda text: int(float(text)), default=1 << 62, metavar="N", help="inputs")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."),
                        help="the folder for the input of a finding")
    parser.add_argument("--input", type=pathlib.Path, help="run this input alone")
    parser.add_argument("--show", action="store_true", help="print the lines that were not reached")
    options = parser.parse_args()
    if options.list:
        print("\n".join(targets()))
        return 0
    target = targets()[options.target]
    signal.signal(signal.SIGALRM, on_alarm)
    torch.set_num_threads(1)
    used = resource.getpagesize() * int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES,) * 2)
    if options.input is not None:
        run(target, options.input.read_bytes())
        return 0
    return 0 if search(options.target, target, options) else 1


if __name__ == "__main__":
    sys.exit(main())
