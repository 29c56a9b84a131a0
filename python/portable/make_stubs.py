"""Stub libraries to link against: glibc and libstdc++ as an old system has them, made from those of this machine.

    make_stubs.py OUT [--cxx COMPILER] [--glibc 2.28] [--glibcxx 3.4.24] [--cxxabi 1.3.11]

A library linked on Debian 12 names the newest version of each symbol, and does not load on an older system. glibc and
libstdc++ keep every version of their symbols. So this script reads the symbols of the libraries and writes stubs:
shared libraries with the same SONAMEs, without code. A stub has each symbol at the newest version of the old system,
and leaves out the symbols of newer systems. glibc 2.29 to 2.36 moved functions into libc.so.6; a moved function is in
the stub of its former library (libpthread, libdl, librt).

OUT gets the stubs, and scripts for the linker named libc.so, libm.so, libpthread.so, libdl.so and librt.so. With
``-L OUT`` the linker takes the stubs in place of the machine's own libraries. portable.cmake writes libstdc++.so.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# The former library of functions in libc.so.6, by the beginnings of the names. A moved function without a row is in no
# stub, and the linker reports the function as undefined.
MOVED_FROM = {
    "libpthread.so.0": ("pthread_", "__pthread_", "sem_", "thrd_", "mtx_", "cnd_", "tss_", "call_once"),
    "libdl.so.2": ("dl",),
    "librt.so.1": ("shm_", "timer_", "aio_", "lio_", "mq_"),
}
SECTIONS = {"FUNC": ".text", "OBJECT": ".data", "TLS": ".tdata"}


@dataclass(frozen=True)
class Symbol:
    """A symbol of the old system. kind: FUNC, OBJECT or TLS. moved: the symbol's default version is newer."""

    name: str
    version: str
    kind: str
    size: int
    moved: bool


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def is_old(version: str, limits: dict[str, tuple[int, ...]]) -> bool:
    """Whether the version of a symbol ("GLIBC_2.14") is no newer than the limit of its family."""
    family, _, number = version.rpartition("_")
    return family in limits and re.fullmatch(r"[0-9.]+", number) is not None and numbers(number) <= limits[family]


def symbols_of(library: Path, limits: dict[str, tuple[int, ...]]) -> list[Symbol]:
    """Symbols without any default version are left out: only old programs may use such symbols."""
    said = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[tuple[str, bool, str, int]]] = {}
    for line in said.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit() or fields[6] in ("UND", "ABS"):
            continue
        name, at, version = fields[7].partition("@")
        if at:
            kind = {"OBJECT": "OBJECT", "TLS": "TLS"}.get(fields[3], "FUNC")
            found.setdefault(name, []).append((version.lstrip("@"), version.startswith("@"), kind, int(fields[2], 0)))
    chosen = []
    for name, rows in sorted(found.items()):
        old = [row for row in rows if is_old(row[0], limits)]
        if old and any(row[1] for row in rows):
            version, default, kind, size = max(old, key=lambda row: numbers(row[0].rpartition("_")[2]))
            chosen.append(Symbol(name, version, kind, size, not default))
    return chosen


def write_stub(out: Path, soname: str, symbols: Iterable[Symbol], compiler: str) -> None:
    lines, versions = [], set()
    for number, symbol in enumerate(symbols):
        section = SECTIONS[symbol.kind]
        lines += [f"\t.section {section}" + (",\"awT\",@progbits" if symbol.kind == "TLS" else ""),
                  f"\t.globl s{number}",
                  f"\t.type s{number},@{ {'FUNC': 'function', 'OBJECT': 'object', 'TLS': 'tls_object'}[symbol.kind] }",
                  f"\t.size s{number},{symbol.size}", f"\t.symver s{number},{symbol.name}@@@{symbol.version}",
                  f"s{number}:\t.zero {max(symbol.size, 1) if symbol.kind != 'FUNC' else 1}"]
        versions.add(symbol.version)
    lines.append('\t.section .note.GNU-stack,"",@progbits')
    source, script = out / f"{soname}.s", out / f"{soname}.map"
    source.write_text("\n".join(lines) + "\n")
    # The linker takes the versions from the assembler; the script only lists the versions.
    nodes = [f"{version} {{ }};\n" for version in sorted(versions)]
    script.write_text("".join(nodes) + "stub_only { local: s[0-9]*; };\n")
    subprocess.run([compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-o",
                    out / soname, source], check=True)
    source.unlink()
    script.unlink()


def path_of(compiler: str, name: str) -> Path:
    said = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout
    return Path(said.strip()).resolve(strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--glibc", default="2.28")
    parser.add_argument("--glibcxx", default="3.4.24")
    parser.add_argument("--cxxabi", default="1.3.11")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    limits = {"GLIBC": numbers(args.glibc)}
    libc = symbols_of(path_of(args.cxx, "libc.so.6"), limits)
    write_stub(out, "libc.so.6", [symbol for symbol in libc if not symbol.moved], args.cxx)
    for soname, names in MOVED_FROM.items():
        moved = [symbol for symbol in libc if symbol.moved and symbol.name.startswith(names)]
        write_stub(out, soname, moved, args.cxx)
    for soname in ("libm.so.6", "ld-linux-x86-64.so.2"):
        write_stub(out, soname, symbols_of(path_of(args.cxx, soname), limits), args.cxx)
    limits = {"GLIBCXX": numbers(args.glibcxx), "CXXABI": numbers(args.cxxabi)}
    write_stub(out, "libstdc++.so.6", symbols_of(path_of(args.cxx, "libstdc++.so.6"), limits), args.cxx)
    nonshared = path_of(args.cxx, "libc_nonshared.a")
    (out / "libc.so").write_text(f"GROUP ( {out}/libc.so.6 {nonshared} AS_NEEDED ( {out}/ld-linux-x86-64.so.2 "
                                 + " ".join(f"{out}/{soname}" for soname in MOVED_FROM) + " ) )\n")
    for soname in ("libm.so.6", *MOVED_FROM):
        (out / f"{soname.partition('.so')[0]}.so").write_text(f"INPUT ( AS_NEEDED ( {out}/{soname} ) )\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
