"""Examines what this host has for connections to other hosts: interfaces, RDMA devices, MPI, and the speed of the
loopback. The doctor (``doctor.py``) prints the findings.

This file imports the standard library only: the doctor loads the file by its path, since the package may not load.
"""

import ctypes
import dataclasses
import fcntl
import os
import pathlib
import re
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
from typing import Iterator, List, Tuple

__all__ = ["Finding", "chosen_interfaces", "examine_wires"]

# (level, name, text, fix): doctor.Check's fields; a tuple, so that neither file needs the other.
Finding = Tuple[str, str, str, str]

SIOCGIFADDR = 0x8915
IFF_UP = 0x1


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


# ---- interfaces


@dataclasses.dataclass(frozen=True)
class _Interface:
    name: str
    addresses: Tuple[str, ...]
    mtu: str
    megabits: str

    def __str__(self) -> str:
        speed = f", {int(self.megabits) / 1000:g} Gb/s" if self.megabits.isdigit() and int(self.megabits) > 0 else ""
        return f"{self.name} ({', '.join(self.addresses)}, MTU {self.mtu}{speed})"


def _ipv4(name: str) -> List[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6(name: str) -> List[str]:
    lines = [line.split() for line in _read(pathlib.Path("/proc/net/if_inet6")).splitlines()]
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[0])) for line in lines if line[5] == name]


def _interfaces() -> List[_Interface]:
    found = []
    for _, name in socket.if_nameindex():
        folder = pathlib.Path("/sys/class/net") / name
        flags = _read(folder / "flags")
        addresses = tuple(_ipv4(name) + _ipv6(name))
        if addresses and (not flags or int(flags, 16) & IFF_UP):
            found.append(_Interface(name, addresses, _read(folder / "mtu") or "unknown", _read(folder / "speed")))
    return found


def _is_chosen(name: str, wanted: str) -> bool:
    """SHARDWIRE_SOCKET_IFNAME's rule, which is NCCL's: prefixes; '=' exact names; '^' all except the listed names."""
    excludes = wanted.startswith("^")
    wanted = wanted[1:] if excludes else wanted
    exactly = wanted.startswith("=")
    parts = [part for part in wanted.lstrip("=").split(",") if part]
    hit = any(name == part if exactly else name.startswith(part) for part in parts)
    return hit != excludes


def _choosing_variable() -> str:
    return next((name for name in ("SHARDWIRE_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
                 if os.environ.get(name)), "")


def chosen_interfaces() -> List[_Interface]:
    """The interfaces with an address that are up, and that SHARDWIRE_SOCKET_IFNAME chooses where it is set."""
    source = _choosing_variable()
    return [each for each in _interfaces() if not source or _is_chosen(each.name, os.environ[source])]


def _network_interfaces() -> Iterator[Finding]:
    every = _interfaces()
    source = _choosing_variable()
    if source:
        chosen = chosen_interfaces()
        if not chosen:
            names = ", ".join(each.name for each in every) or "none"
            yield ("FAIL", "interfaces",
                   f"{source}={os.environ[source]} fits none of those that are up with an address: {names}",
                   f"unset {source}, or name one of them")
            return
        yield "OK", "interfaces", f"{', '.join(map(str, chosen))}, by {source}={os.environ[source]}", ""
        return
    others = [each for each in every if each.name != "lo"]
    if not others:
        yield ("WARN", "interfaces", "only loopback is up: no rank on another host can be reached",
               "docker run --network=host, or ip link set DEVICE up")
        return
    yield "OK", "interfaces", f"{', '.join(map(str, others))}", ""


# ---- loopback


def _loopback_speed() -> Iterator[Finding]:
    """One TCP stream within this machine, which is the best possible speed of the tcp transport here."""
    total = 256 << 20
    piece = bytearray(1 << 20)

    def send(address: Tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=20) as stream:
            for _ in range(total // len(piece)):
                stream.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        sender = threading.Thread(target=send, args=(listener.getsockname(),), daemon=True)
        sender.start()
        stream, _ = listener.accept()
        with stream:
            stream.settimeout(20)
            buffer = bytearray(1 << 20)
            received = stream.recv_into(buffer)
            start = time.perf_counter()
            while received < total:
                count = stream.recv_into(buffer)
                if count == 0:
                    yield ("WARN", "loopback speed", f"the stream ended after {received} of {total} bytes",
                           "look at dmesg and at the firewall's rules for lo")
                    return
                received += count
            rate = total / (time.perf_counter() - start) / 1e9
    slow = rate < 0.5
    yield ("WARN" if slow else "OK", "loopback speed", f"one TCP stream moves {rate:.1f} GB/s",
           "something else uses the cores, or lo is filtered: iptables -L" if slow else "")


# ---- RDMA


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _gids(port: pathlib.Path) -> List[Tuple[int, str, str]]:
    """(index, GID, type) of each GID that is set."""
    found = []
    for entry in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        gid = _read(entry)
        if gid and not re.fullmatch(r"(0000:?)+", gid) and not re.fullmatch(r"fe80(:0000){7}", gid):
            found.append((int(entry.name), gid, _read(port / "gid_attrs" / "types" / entry.name) or "IB"))
    return found


def _describe_port(port: pathlib.Path) -> Tuple[str, bool]:
    layer = _read(port / "link_layer")
    state = _read(port / "state").split(":")[-1].strip()
    text = (f"{port.parents[1].name}:{port.name} {layer}, {_read(port / 'rate') or 'rate unknown'}, "
            f"{state.lower() or 'state unknown'}")
    gids = _gids(port)
    if layer == "Ethernet":
        # The same order as in the transport: RoCE v2 over IPv4, then over IPv6, then v1.
        ranked = sorted(gids, key=lambda gid: ("v2" not in gid[2], "0000:0000:ffff" not in gid[1], gid[0]))
        text += f", GID {ranked[0][0]} of {len(gids)} ({ranked[0][1]}, {ranked[0][2]})" if ranked else ", no GID"
    return text, state == "ACTIVE" and (layer != "Ethernet" or bool(gids))


def _rdma() -> Iterator[Finding]:
    ports = sorted(pathlib.Path("/sys/class/infiniband").glob("*/ports/*"))
    if not ports:
        yield "OK", "rdma", "no RDMA device here: ranks on other hosts are joined by MPI or tcp", ""
        return
    if not _has_library("libibverbs.so.1"):
        yield ("WARN", "rdma", f"{len(ports)} ports, but libibverbs cannot be loaded: RDMA is not used",
               "apt-get install libibverbs1 ibverbs-providers")
        return
    if not os.access("/dev/infiniband", os.R_OK | os.X_OK):
        yield ("WARN", "rdma", "devices are there, /dev/infiniband is not: this container may not use them",
               "docker run --device=/dev/infiniband --ulimit memlock=-1")
        return
    for port in ports:
        text, works = _describe_port(port)
        yield ("OK" if works else "WARN", "rdma", text,
               "" if works else "ip link set DEVICE up with an address, or start a subnet manager (opensm); rdma link "
                                "shows the state")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and locked < 1 << 30:
        yield ("WARN", "rdma memory", f"locked memory is limited to {locked >> 10} KiB: larger tensors are staged",
               "ulimit -l unlimited; or docker run --ulimit memlock=-1; or LimitMEMLOCK=infinity in the service")


# ---- MPI


def _mpi() -> Iterator[Finding]:
    launched = next((name for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK") if name in os.environ), "")
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        if launched:
            yield ("WARN", "mpi",
                   f"this process was launched as one of an MPI job ({launched}), but there is no mpirun on PATH",
                   "apt-get install openmpi-bin")
        else:
            yield "OK", "mpi", "no mpirun on PATH: the mpi transport is not used", ""
        return
    try:
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=30,
                              check=False).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        yield "WARN", "mpi", f"{mpirun} --version: {error}", "apt-get install --reinstall openmpi-bin"
        return
    where = f", launched as one of a job ({launched})" if launched else ""
    yield "OK", "mpi", f"{said[0] if said else mpirun}{where}", ""


def examine_wires() -> Iterator[Finding]:
    """All findings, in order."""
    for look in (_network_interfaces, _loopback_speed, _rdma, _mpi):
        try:
            yield from look()
        except Exception as error:  # an odd device must not hide the other findings
            yield ("WARN", look.__name__.strip("_"), f"could not look: {type(error).__name__}: {error}",
                   "report this machine with uname -a")
