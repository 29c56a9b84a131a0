"""A Slurm of two nodes on this machine, in a scratch folder: a controller and two slurmd, all with root's rights and
ended after. The machine's own Slurm, if there is one, stays untouched: this cluster has a separate configuration, ports
and folders; no munge. Its first job has a random id: shardwire.launch makes the port of a job's store from the id, and
the ports of two clusters on one machine must not be the same.

The nodes are called 127.0.0.1 and 127.0.0.2, names that every machine can look up; the second has a different host
name, by a UTS namespace, since a slurmd of Debian derives the node from the host name.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from shardwire.groups.launchers import NUM_PORTS
from shardwire.launch import free_port

PACKAGES = "slurmctld slurmd slurm-client"  # Debian's
NODES = ("127.0.0.1", "127.0.0.2")

CONFIGURATION = """
ClusterName=shardwire
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
FirstJobId={first_job}
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr={nodes[0]} Port={ports[1]} CPUs=16
NodeName={nodes[1]} NodeHostname={second} NodeAddr={nodes[1]} Port={ports[2]} CPUs=16
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """The reason why no cluster can be made here; None if a cluster can be made."""
    missing = [name for name in ("slurmctld", "slurmd", "srun", "scontrol", "sinfo", "unshare")
               if _program(name) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: {PACKAGES})"
    if os.geteuid() != 0:
        return "a slurmd needs root"
    done = subprocess.run(["unshare", "-u", "true"], capture_output=True, text=True, check=False)
    return f"no UTS namespace can be made here: {done.stderr.strip()}" if done.returncode != 0 else None


@contextlib.contextmanager
def cluster():
    """The environment for srun and similar commands, as soon as both nodes wait for work. OSError, with the daemons'
    last words, where the nodes do not come up.
    """
    host = socket.gethostname()
    second = f"{host[:40]}-second"
    with (tempfile.TemporaryDirectory(prefix="sw-slurm-", ignore_cleanup_errors=True) as name,
          contextlib.ExitStack() as stack):
        folder = pathlib.Path(name)
        (folder / "state").mkdir()
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(host=host, second=second, folder=folder, ports=_free_ports(3), nodes=NODES,
                                 first_job=1 + secrets.randbelow(NUM_PORTS)))
        environment = {**{key: value for key, value in os.environ.items() if not key.startswith("SLURM")},
                       "SLURM_CONF": str(configuration)}
        daemons = [
            ("slurmctld", [_program("slurmctld"), "-D", "-i"]),
            ("slurmd 1", [_program("slurmd"), "-D", "-N", NODES[0]]),
            ("slurmd 2", ["unshare", "-u", "sh", "-c", f'hostname {second} && exec "$@"', "sh", _program("slurmd"),
                          "-D", "-N", NODES[1]]),
        ]
        stack.callback(_end_steps, folder)
        running = [(title, _start(stack, folder / f"{title}.log", [*command, "-f", str(configuration)], environment))
                   for title, command in daemons]
        _await_idle(environment, running, folder)
        yield environment


def _program(name):
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count):
    ports = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def _start(stack, log, command, environment):
    with open(log, "wb") as output:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                  env=environment, start_new_session=True)
    stack.callback(_stop, daemon)
    return daemon


def _stop(daemon):
    daemon.terminate()
    try:
        daemon.wait(timeout=10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _end_steps(folder):
    """Kills the processes that a step leaves behind when the step's slurmd ends: each has the folder in its
    environment, and no other process of this machine has.
    """
    wanted = f"SLURM_CONF={folder}/slurm.conf".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


def _await_idle(environment, running, folder):
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True, env=environment,
                              check=False, timeout=60)
        if done.stdout.split() == ["idle"] * len(NODES):
            return
        ended = [title for title, daemon in running if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(f"--- {title}\n{(folder / f'{title}.log').read_text(errors='replace')[-2000:]}"
                             for title, _ in running)
            raise OSError(f"Slurm does not start here ({', '.join(ended) or 'the nodes do not become idle'}): "
                          f"{done.stdout}{done.stderr}\n{logs}")
        time.sleep(0.1)
