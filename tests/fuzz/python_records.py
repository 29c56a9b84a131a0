"""A search for bytes that break the parsers in Python: serialize, messages of queues, records of publish,
safetensors headers, pickles and archives of checkpoints, kernels, reports of status (python_targets.py).

A parser may raise the errors that its documentation names. Any other exception, a call of more than ten seconds, and
more than 1 GiB of memory are findings. Inputs with new lines of the parsers are kept and changed further. The search
counts the lines of every eighth input, since counting makes a call ten times as slow. The C++ of serialize comes from
a module with sanitizers (--plain), of which the search counts the edges. The same seed makes the same inputs, where no
earlier search kept inputs (--corpus). Atheris searches by bytecode in the same way;
Debian has no package of Atheris.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import pathlib
import random
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch
from python_targets import LONGEST_INPUT, Target, targets

from shardwire import _C

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


def use_plain_of(folder: pathlib.Path) -> Callable[[], int]:
    """Replaces functions of _C by the module _plain of `folder`. Returns the function that counts the reached edges of
    _plain."""
    sys.path.insert(0, str(folder))
    plain = importlib.import_module("_plain")
    for name in ("read_graph", "read_values", "write_graph", "write_values"):
        setattr(_C, name, getattr(plain, name))
    return plain.num_edges  # type: ignore[no-any-return]


class Corpus:
    """The inputs with new lines or edges: of this search, and with a folder also of earlier searches."""

    def __init__(self, seeds: list[bytes], folder: pathlib.Path | None) -> None:
        self.folder, self.inputs = folder, list(seeds)
        self.first = list(seeds)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.first += [path.read_bytes() for path in sorted(folder.iterdir())]

    def add(self, data: bytes) -> None:
        self.inputs.append(data)
        if self.folder is not None:
            (self.folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


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
    rng, lines, until = random.Random(options.seed), Lines(target.modules), options.seconds
    corpus = Corpus(target.seeds, options.corpus)
    num_edges = use_plain_of(options.plain) if options.plain else int
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}-input"
    begun, number = time.monotonic(), 0
    with open(path, "w+b", buffering=0) as current:
        while number < options.each and (not until or time.monotonic() - begun < until):
            is_first = number < len(corpus.first)
            data = corpus.first[number] if is_first else changed(rng, rng.choice(corpus.inputs), corpus.inputs)
            os.ftruncate(current.fileno(), len(data))
            os.pwrite(current.fileno(), data, 0)
            counts = number % COUNTED == 0 or is_first
            known = len(lines.seen), num_edges()
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
            if (len(lines.seen), num_edges()) != known:
                corpus.add(data)
            number += 1
    path.unlink()
    missed = sorted(lines.missed())
    edges = f", {num_edges()} edges of C++" if options.plain else ""
    print(f"{name}: {number} inputs, {len(corpus.inputs)} kept, {len(lines.seen)} of {len(lines.seen) + len(missed)} "
          f"lines of the called functions{edges} (seed {options.seed}, {time.monotonic() - begun:.1f} s)", flush=True)
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
    parser.add_argument("--corpus", type=pathlib.Path, help="a folder with inputs of earlier searches")
    parser.add_argument("--plain", type=pathlib.Path, help="the folder of the module _plain (plain_module.cc)")
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
        if options.plain:
            use_plain_of(options.plain)
        run(target, options.input.read_bytes())
        return 0
    return 0 if search(options.target, target, options) else 1


if __name__ == "__main__":
    sys.exit(main())
