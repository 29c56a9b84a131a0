"""Runs a command in one or more small QEMU machines with software RDMA devices (soft-RoCE), in the host's own userland.

    python3 tests/rig/machines.py [--nodes N] [--write FOLDER] ... -- COMMAND

No KVM is needed: the processor is emulated, so only compare times within one machine. Each machine has rxe0 and rxe1 on
separate networks (10.77.0.x and 10.77.1.x), sees the host's root read-only under an overlay in memory, keeps the
current folder and the environment, and sets NODE_RANK, NNODES and MASTER_ADDR. `node-die [STATUS]` in a machine cuts
the power.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import kernel

QEMU = ["qemu-system-x86_64"]
HIDDEN = ("/tmp", "/dev/shm", "/run")  # the machines have separate file systems there
RAILS = 2
MTU = 9000
BOOT_LIMIT, BOOT_TRIES = 90, 3
APPEND = ("console=ttyS0 quiet panic=-1 mitigations=off no_timer_check nowatchdog cryptomgr.notests "
          "rcupdate.rcu_cpu_stall_suppress=1")
TIMED_OUT, BROKEN = 124, 125
CRASH = re.compile(r"BUG: |Oops|general protection|invalid opcode|Kernel panic")  # begins a kernel's report of a crash
CAUSE = re.compile(CRASH.pattern + r"|RIP: |Comm: ")


def assignments(prefix, values):
    return "".join(f"{prefix}{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def read(path):
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(errors="replace")
    return ""


def is_under(folder, tops):
    return any(folder == top or folder.startswith(top + "/") for top in tops)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no machine outlives this process


class Machines:
    """N machines and one command. Use with `with`; run() returns the exit status: the first that is not 0, else
    TIMED_OUT or BROKEN.
    """

    def __init__(self, command, nodes=1, memory=2048, cores=None, timeout=600, write=(), show=(), out=None):
        self.command, self.nodes, self.memory, self.timeout = command, nodes, memory, timeout
        self.cores = cores or max(1, min(4, len(os.sched_getaffinity(0)) // nodes))
        self.out = out or sys.stdout.buffer
        self.folder = os.getcwd()
        self.shared = [os.path.realpath(folder) for folder in write]
        shown = [os.path.realpath(folder) for folder in show]
        if is_under(self.folder, HIDDEN) and not is_under(self.folder, self.shared + shown):
            shown.append(self.folder)
        self.shown = sorted(folder for folder in shown if folder not in HIDDEN)
        for folder in self.shared + self.shown:
            if not os.path.isdir(folder) or "," in folder or folder == "/":
                raise kernel.Unavailable(f"cannot share {folder} with a machine")
        self.processes, self.relays, self.lock, self.ended, self.switch = [], [], threading.Lock(), False, None
        self.crashes = []  # of machines' kernels while the command ran: the lines that name the cause

    def __enter__(self):
        self.initrd = kernel.prepare()
        self.temporary = tempfile.TemporaryDirectory(prefix="shardwire-rig-", dir="/tmp", ignore_cleanup_errors=True)
        self.home = pathlib.Path(self.temporary.name)
        return self

    def __exit__(self, *unused):
        for process in self.processes:
            process.kill()
            process.wait()
        self.ended = True
        for relay in self.relays:
            relay.join()
        self.temporary.cleanup()

    def spawn(self, command, log):
        with open(log, "ab") as out:
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       preexec_fn=die_with_parent)
        self.processes.append(process)
        return process

    def cable(self, rail, node):
        return f"addr.type=unix,addr.path={self.home}/cable{rail}-{node}"

    def start_switch(self):
        """An emulator without a machine: one hub for each rail, one socket for each node."""
        command = QEMU + ["-M", "none", "-nodefaults", "-display", "none"]
        for rail in range(RAILS):
            for node in range(self.nodes):
                command += ["-netdev", f"stream,id=s{rail}-{node},server=on,{self.cable(rail, node)}"]
                command += ["-netdev", f"hubport,id=h{rail}-{node},hubid={rail},netdev=s{rail}-{node}"]
        self.switch = self.spawn(command, self.home / "switch")
        last = self.home / f"cable{RAILS - 1}-{self.nodes - 1}"
        while self.switch.poll() is None and not last.exists():
            time.sleep(0.02)

    def configure(self, node, control):
        shutil.copy(kernel.HERE / "guest/stage2.sh", control)
        modules = self.initrd.parent / "root/lib/modules" / read(self.initrd.parent / "version").strip()
        command = self.command if isinstance(self.command, str) else shlex.join(self.command)
        conf = {"NODE": node, "NNODES": self.nodes, "RAILS": RAILS, "MTU": MTU, "MODULES": os.path.realpath(modules),
                "FOLDER": self.folder, "COMMAND": command}
        conf |= {"SHOWN": shlex.join(self.shown), "SHARED": shlex.join(self.shared)}
        (control / "conf").write_text(assignments("", conf))
        kept = {name: value for name, value in os.environ.items()
                if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in ("TMPDIR", "OLDPWD", "PWD")}
        own = {"NODE_RANK": node, "NNODES": self.nodes, "MASTER_ADDR": "10.77.0.1", "HOSTNAME": f"node{node}"}
        (control / "env").write_text(assignments("export ", kept | own))
        (control / "output").touch()

    def start(self, node):
        """Starts a machine; returns the process and the control folder."""
        control = pathlib.Path(tempfile.mkdtemp(prefix=f"node{node}-", dir=self.home))
        self.configure(node, control)
        share = "local,security_model=none,multidevs=remap,"
        command = QEMU + ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-name",
                          f"shardwire-rig-node{node}"]
        command += ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off,erms=off", "-m", self.memory, "-smp",
                    self.cores]
        command += ["-kernel", self.initrd.parent / "vmlinux", "-initrd", self.initrd, "-append", APPEND]
        command += ["-chardev", f"file,id=console,append=on,path={control}/console", "-serial", "chardev:console"]
        command += ["-virtfs", share + "path=/,mount_tag=root,readonly=on", "-virtfs",
                    share + f"path={control},mount_tag=control"]
        for number, folder in enumerate(self.shared):
            command += ["-virtfs", share + f"path={folder},mount_tag=share{number}"]
        for rail in range(RAILS):
            command += ["-netdev",
                        f"stream,id=n{rail},server={'off' if self.switch else 'on'},{self.cable(rail, node)}"]
            command += ["-device", f"virtio-net-pci,netdev=n{rail},romfile=,mac=52:54:00:77:{rail:02x}:{node + 1:02x}"]
        process = self.spawn(command, control / "console")
        prefix = f"[node{node}] ".encode() if self.nodes > 1 else b""
        relay = threading.Thread(target=self.relay, args=(control / "output", prefix), daemon=True)
        relay.start()
        self.relays.append(relay)
        return process, control

    def relay(self, path, prefix):
        """Passes on what a machine says, line by line where several speak, until the machines are gone and all is
        passed on.
        """
        rest = b""
        with open(path, "rb") as said:
            while True:
                last = self.ended
                read_now = said.read(1 << 20)
                text = read_now
                if prefix:
                    *lines, rest = (rest + read_now).split(b"\n")
                    if last and rest and not read_now:
                        lines.append(rest)
                    text = b"".join(prefix + line + b"\n" for line in lines)
                with self.lock:
                    self.out.write(text)
                    self.out.flush()
                if not read_now and last:
                    return
                if not read_now:
                    time.sleep(0.02)

    def run(self):
        begin = time.monotonic()
        if self.nodes > 1:
            self.start_switch()
        machines = [self.start(node) for node in range(self.nodes)]
        started, tries, status, running = [begin] * self.nodes, [1] * self.nodes, {}, False
        limit = BOOT_LIMIT * BOOT_TRIES + 10
        while len(status) < self.nodes:
            time.sleep(0.05)
            now = time.monotonic()
            if now - begin > limit:
                kernel.say(f"timeout {'' if running else 'of the boot '}after {limit:g} s; exit statuses so far: "
                           f"{status}")
                return TIMED_OUT
            for node in set(range(self.nodes)) - set(status):
                process, control = machines[node]
                gone = process.poll() is not None  # before the status, which a machine writes before its end
                said = read(control / "status").strip()
                if said:
                    status[node] = int(said)
                elif gone or (not (control / "ready").exists() and now - started[node] > BOOT_LIMIT):
                    self.say_on_console(node, control, "ended without an exit status" if running else "did not start")
                    if running:
                        status[node] = BROKEN
                        self.note_crash(node, control)
                        if self.crashes:
                            return BROKEN  # the other machines would wait for this one until the time limit
                    elif tries[node] == BOOT_TRIES:
                        return BROKEN
                    else:  # an emulated boot hangs or crashes once in a while
                        process.kill()
                        process.wait()
                        machines[node], started[node], tries[node] = self.start(node), now, tries[node] + 1
            if not running and all((control / "ready").exists() for _, control in machines):
                running, begin, limit = True, now, self.timeout
                for _, control in machines:
                    (control / "go").touch()
        return next((one for one in status.values() if one), 0)

    def note_crash(self, node, control):
        lines = read(control / "console").splitlines()
        if any("Kernel panic" in line for line in lines):
            causes = [line.split("] ", 1)[-1].strip() for line in lines if CAUSE.search(line)]
            self.crashes.append(f"the kernel of node{node} crashed: " + "; ".join(dict.fromkeys(causes))[:600])

    def say_on_console(self, node, control, words):
        lines = read(control / "console").splitlines()
        first = next((number for number, line in enumerate(lines) if CRASH.search(line)), len(lines) - 30)
        kernel.say(f"node{node} {words}; the end of its console:")
        print(*lines[max(first, 0):][:90], sep="\n", file=sys.stderr)


def main():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (default 1)")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="memory of each (default 2048)")
    parser.add_argument("--cores", type=int, metavar="N",
                        help="processors of each (default: the host's / nodes, 1 to 4)")
    parser.add_argument("--timeout", type=float, default=600, metavar="S",
                        help="seconds, without the boot (default 600)")
    parser.add_argument("--write", action="append", default=[], metavar="FOLDER", help="share FOLDER read-write")
    parser.add_argument("--show", action="append", default=[], metavar="FOLDER",
                        help="show FOLDER though it lies under " + ", ".join(HIDDEN))
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="run by bash -c in each machine")
    options = parser.parse_args()
    command = options.command[0] if len(options.command) == 1 else options.command
    try:
        machines = Machines(command, options.nodes, options.memory, options.cores, options.timeout, options.write,
                            options.show)
        with machines:
            return machines.run()
    except kernel.Unavailable as reason:
        kernel.say(reason)
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
