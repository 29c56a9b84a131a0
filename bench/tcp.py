"""tcp between two ranks of this machine beside one plain TCP socket of the same processes, in turns:
`./run bench tcp [ARGS of tcp_bench] [--json FILE]`.

The socket polls beside a frame (`raw_spin`) and beside an all_reduce (`raw_exchange`: both ranks send, then both
receive), and sleeps in the kernel beside a message (`raw_blocking`).
"""

import argparse
import json
import statistics
import sys

import processes
import record

PEERS = {"frame_8B": "raw_spin_8B", "allreduce_8B": "raw_exchange_8B", "sendrecv_8B": "raw_blocking_8B",
         "sendrecv_long": "raw_long", "frames_long": "raw_long"}


def main():
    parser = argparse.ArgumentParser(prog="./run bench tcp", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--program", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="also write the table there")
    options, more = parser.parse_known_args()
    done = processes.run([options.program, *more, "--json"], stderr=None)
    if done.returncode != 0:
        sys.exit(f"tcp.py: tcp_bench ended with {done.returncode}: {done.stdout[-2000:]}")
    took = {name: statistics.median(case["us"]) for name, case in json.loads(done.stdout)["cases"].items()}
    cells = {(ours,): {"shardwire": took[ours], "plain socket": took.get(raw)}
             for ours, raw in PEERS.items() if ours in took}
    for (ours,), row in cells.items():
        print(f"{ours:<16} {row['shardwire']:>12.2f} us, a plain socket {row['plain socket'] or 0:>12.2f}")
    if options.json:
        record.write(options.json, "tcp", [record.table("Medians, us", ["case"], cells, ["shardwire"],
                                                        ["plain socket"])])


if __name__ == "__main__":
    main()
