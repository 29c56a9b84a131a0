"""Two network namespaces joined by two veth cables, each with a path of Multipath TCP (MPTCP). The endpoints, the
limits and the watcher of interfaces are those that docs/transports.md recommends to administrators.
"""

import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from network_namespaces import await_running, ip, names_of_two  # noqa: E402

ENABLED = pathlib.Path("/proc/sys/net/mptcp/enabled")
# Id 0 is the address with which a connection began.
WATCHER = """ip monitor link | while read -r line; do
  case "$line" in *" second"*" state "*DOWN*) ip mptcp endpoint delete id 0 {address} ;; esac
done"""


class TwoCables:
    """The first cable has the addresses of cable.cc's one; the second has 10.85.0.1 and 10.85.0.2. Connections begin on
    the second cable, and the first cable is their backup."""

    NETWORKS = {"cable": "10.84.0", "second": "10.85.0"}

    def __init__(self):
        self.names = names_of_two("swmp")
        self._watchers = []
        if not ENABLED.exists() or ENABLED.read_text().strip() != "1":
            raise OSError(f"this kernel has no Multipath TCP: {ENABLED} is not 1")
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "4")
                ip("netns", "exec", name, "sysctl", "-q", "net.mptcp.stale_loss_cnt=1")
            for device, network in self.NETWORKS.items():
                ip("link", "add", device, "netns", self.names[0], "type", "veth", "peer", "name", device, "netns",
                   self.names[1])
                for number, name in enumerate(self.names, 1):
                    ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", device)
                    ip("-n", name, "link", "set", device, "up")
            for number, name in enumerate(self.names, 1):
                ip("-n", name, "mptcp", "endpoint", "add", f"10.84.0.{number}", "dev", "cable", "signal", "backup",
                   "port", "7777")
            self._await_cables()
        except OSError:
            self.end()
            raise

    def _await_cables(self):
        for name in self.names:
            for device in self.NETWORKS:
                await_running(name, device)

    def treat(self, words):
        """"": as at the start. "watched": likewise, and a process on each host closes the paths of an interface that is
        down. "down": the second interface of the first host is switched off. "lost": what the two hosts send over the
        second cable goes to a wrong Ethernet address, and is lost without a sign."""
        first, second = self.names
        ip("-n", first, "link", "set", "second", "down" if words == "down" else "up")
        if words in ("", "watched"):
            self._stop_watchers()
            self._await_cables()
        if words == "watched":
            for number, name in enumerate(self.names, 1):
                script = WATCHER.format(address=f"10.85.0.{number}")
                self._watchers.append(subprocess.Popen(["ip", "netns", "exec", name, "sh", "-c", script],
                                                       stderr=subprocess.DEVNULL, start_new_session=True))
        for name, peer in ((first, 2), (second, 1)):
            action = ["replace", f"10.85.0.{peer}", "lladdr", "02:00:00:00:00:99", "nud", "permanent"]
            if words != "lost":
                action = ["flush", "nud", "all"]  # without "nud all" permanent entries stay
            ip("-n", name, "neigh", *action, "dev", "second")
        return []

    def _stop_watchers(self):
        for watcher in self._watchers:
            os.killpg(watcher.pid, signal.SIGKILL)
            watcher.wait()
        self._watchers = []

    def end(self):
        self._stop_watchers()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
