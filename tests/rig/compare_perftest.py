"""Compares shardwire's rdma transport with perftest's ib_write_bw and ib_write_lat: in turns on one machine, medians,
ratios.

Usage: compare_perftest.py --bench FOLDER/bench/rdma_bench [--turns 7] [--device rxe0] [--here]
Boots a machine of the rig and runs there; with --here runs on this machine, which has a device. An emulated processor
says little about real processors; the ratios state how much of the verbs' speed shardwire passes on.
"""

import argparse
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time

BANDWIDTH = [(65536, 300), (262144, 120), (1048576, 40)]  # bytes, count
LATENCY = [(8, 400), (1024, 400), (4096, 400)]
AIMS = {"bandwidth": 0.95, "latency": 1.5, "scatter": 0.4}


def perftest(program, device, size, count, port):
    """The average MB/s of ib_write_bw or the typical microseconds of ib_write_lat, between two processes of this
    machine.
    """
    command = [program, "-d", device, "-s", str(size), "-n", str(count), "-p", str(port), "-F"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        for _ in range(50):  # until the server listens
            time.sleep(0.2)
            done = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True, timeout=120, check=False)
            if "Couldn't connect" not in done.stdout + done.stderr:
                break
        for line in done.stdout.splitlines():
            words = line.split()
            if words and words[0] == str(size):
                return float(words[3 if program == "ib_write_bw" else 4])  # average, typical
        sys.exit(f"{program} did not say: {done.stdout}{done.stderr}")
    finally:
        server.kill()
        server.wait()


def ours(bench, device, *words):
    env = dict(os.environ, SHARDWIRE_RDMA_DEVICES=device, SHARDWIRE_SOCKET_IFNAME="=lo")
    done = subprocess.run([bench, *map(str, words)], capture_output=True, text=True, timeout=180, env=env, check=False)
    if done.returncode != 0 or not re.fullmatch(r"[0-9.]+\n", done.stdout):
        sys.exit(f"rdma_bench {words}: status {done.returncode}: {done.stdout}{done.stderr}")
    return float(done.stdout)


def compare(options):
    port = 18600
    for kind, program, cases in (("bandwidth", "ib_write_bw", BANDWIDTH), ("latency", "ib_write_lat", LATENCY)):
        for size, count in cases:
            theirs, mine = [], []
            for _ in range(options.turns):
                port += 1
                theirs.append(perftest(program, options.device, size, count, port))
                mine.append(ours(options.bench, options.device, kind, size, count))
            ratio = statistics.median(mine) / statistics.median(theirs)
            unit = "MB/s" if kind == "bandwidth" else "us"
            bound = f"{'at least' if kind == 'bandwidth' else 'at most'} {AIMS[kind]}"
            print(f"{kind} {size:8d} B: {program} {statistics.median(theirs):9.2f} {unit}, shardwire "
                  f"{statistics.median(mine):9.2f} {unit}, ratio {ratio:.2f} (aim: {bound})", flush=True)
            print(f"    {program}: {' '.join(f'{value:.1f}' for value in theirs)}; shardwire: "
                  f"{' '.join(f'{value:.1f}' for value in mine)}", flush=True)
    ratios = [ours(options.bench, options.device, "scatter", 30) for _ in range(options.turns)]
    print(f"256 rows of 1 KiB / 256 KiB in one piece: {statistics.median(ratios):.2f} of its speed (aim: at least "
          f"{AIMS['scatter']}); {ratios}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--here", action="store_true", help="this machine has the device")
    parser.add_argument("--timeout", type=float, default=900)
    options = parser.parse_args()
    options.bench = options.bench.resolve()
    if options.here:
        return compare(options)
    import kernel  # pylint: disable=import-outside-toplevel
    from machines import BROKEN, Machines  # pylint: disable=import-outside-toplevel

    command = [sys.executable, os.path.realpath(__file__), "--here", "--bench", str(options.bench), "--turns",
               str(options.turns), "--device", options.device]
    folder = str(options.bench.parents[1])
    show = [top for top in {folder, os.path.dirname(os.path.realpath(__file__))}
            if top.startswith(("/tmp/", "/run/", "/dev/shm/"))]
    try:
        with Machines(shlex.join(command), timeout=options.timeout, show=show) as machines:
            return machines.run()
    except kernel.Unavailable as reason:
        kernel.say(reason)
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
