"""Two network namespaces of this machine, joined by a cable: two hosts as far as the network is concerned. Takes root
and iproute2.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time


def ip(*words):
    """Output of iproute2's `ip`. OSError with its message when it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def await_running(name, link):
    """The kernel notices late that both ends of a cable are up; until then the interface does not count as running."""
    for _ in range(500):
        if " state UP " in ip("-n", name, "link", "show", "dev", link):
            return
        time.sleep(0.01)
    raise OSError(f"the interface {link} does not come up")


def names_of_two(prefix):
    """Two names of namespaces with this process's number inside. The namespaces of killed processes are removed before,
    with the programs that still run there. So are namespaces with these two names: an earlier process had the number.
    """
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        found = re.fullmatch(prefix + r"(\d+)[ab]", name)
        if found is None or (int(found[1]) != os.getpid() and os.path.exists(f"/proc/{found[1]}")):
            continue
        for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True,
                                  check=False).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return [f"{prefix}{os.getpid()}{letter}" for letter in "ab"]


@contextlib.contextmanager
def two_namespaces(network):
    """The names of the namespaces; the two reach each other as NETWORK.1 and NETWORK.2, where network is for example
    10.83.0. OSError where the namespaces cannot be made.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise OSError("making network namespaces needs root and iproute2")
    # of the interfaces as well, which takes at most 15 characters
    names = names_of_two("sw")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        for name in names:
            await_running(name, name)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
