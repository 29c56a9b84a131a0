"""Two network namespaces joined by two veth cables, each with a path of Multipath TCP (MPTCP). The kernel makes the
second path of a connection from the endpoints that `ip mptcp` names, as an administrator would, and takes a path for
broken after its first repeat (stale_loss_cnt), since paths that break are the subject here.
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from network_namespaces import await_running, ip, names_of_two  # noqa: E402

ENABLED = pathlib.Path("/proc/sys/net/mptcp/enabled")


class TwoCables:
    """The first cable has the addresses of cable.cc's one; the second has 10.85.0.1 and 10.85.0.2."""

    DEVICES = ("cable", "second")

    def __init__(self):
        self.names = names_of_two("swmp")
        if not ENABLED.exists() or ENABLED.read_text().strip() != "1":
            raise OSError(f"this kernel has no Multipath TCP: {ENABLED} is not 1")
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "4")
                ip("netns", "exec", name, "sysctl", "-q", "net.mptcp.stale_loss_cnt=1")
            for device, network in zip(self.DEVICES, ("10.84.0", "10.85.0")):
                ip("link", "add", device, "netns", self.names[0], "type", "veth", "peer", "name", device, "netns",
                   self.names[1])
                for number, name in enumerate(self.names, 1):
                    ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", device)
                    ip("-n", name, "link", "set", device, "up")
                    ip("-n", name, "mptcp", "endpoint", "add", f"{network}.{number}", "dev", device, "subflow",
                       "signal")
            for name in self.names:
                for device in self.DEVICES:
                    await_running(name, device)
        except OSError:
            self.end()
            raise

    def treat(self, words):
        """"": as at the start. "down": the second interface of the first host is switched off. "lost": what the two
        hosts send over the second cable goes to a wrong Ethernet address, and is lost without a sign."""
        first, second = self.names
        ip("-n", first, "link", "set", "second", "down" if words == "down" else "up")
        for name, peer in ((first, 2), (second, 1)):
            action = ["replace", f"10.85.0.{peer}", "lladdr", "02:00:00:00:00:99", "nud", "permanent"]
            if words != "lost":
                action = ["flush"]
            ip("-n", name, "neigh", *action, "dev", "second")
        return []

    def end(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
