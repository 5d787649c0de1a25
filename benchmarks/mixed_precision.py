"""Print what bfloat16 gains on this processor: training steps beside float32 and beside PyTorch.

    python benchmarks/mixed_precision.py [resnet18 resnet50 alexnet mlp] [--turns 9] [--quick]

Each side is a process of its own, as in `minigraph bench`: minigraph at level 3, tuned, and PyTorch
with the channels last and a fused Adam, in float32 and in bfloat16 (`amp`, `torch.autocast`).  They
take turns; times are medians, with quartiles in brackets.
"""

import argparse
import dataclasses
import os
import sys

import numpy as np
from turns import median_ms, take_turns

from minigraph.bench.cases import NETWORKS
from minigraph.bench.command import FULL
from minigraph.bench.plan import PEERS
from minigraph.bench.results import CHANNELS_LAST
from minigraph.bench.worker import Task, Worker
from minigraph.options import num_threads
from minigraph.records import encode

PRECISIONS = ("float32", "bfloat16")
PATIENCE = 600.0  # seconds for an answer; a first call tunes


def workers(network, quick):
    """Return a worker for each library and, within it, each precision."""
    budget = FULL["budget"]
    plain = Task(network, "3", "cpu", num_threads(None), None, quick, PRECISIONS[0], budget)
    programs = ("ours", "3"), (PEERS["torch"].program, CHANNELS_LAST)
    found = []
    for program, setting in programs:
        for precision in PRECISIONS:
            task = dataclasses.replace(plain, setting=setting, precision=precision)
            command = [sys.executable, "-m", f"minigraph.bench.{program}", encode(task)]
            found.append(Worker(command, os.environ, PATIENCE))
    return found


def times(network, quick, turns):
    """Return the seconds of each side's turns."""
    sides = workers(network, quick)
    try:
        asked = [lambda each=each: each.ask("turn", PATIENCE)["step"] for each in sides]
        return take_turns(asked, turns).T
    finally:
        for worker in sides:
            worker.kill()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small images")
    asked = parser.parse_args()

    print("| | minigraph, ms | in bfloat16 | gain | PyTorch | in bfloat16 | of ours in bfloat16 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for network in asked.networks or ["resnet18", "resnet50", "alexnet", "mlp"]:
        took = times(network, asked.quick, asked.turns)
        plain, small, theirs, their_small = took
        gain, ratio = (np.median(x) / np.median(small) for x in (plain, their_small))
        cells = [
            median_ms(plain),
            median_ms(small),
            f"{gain:.2f}",
            *map(median_ms, (theirs, their_small)),
        ]
        print(f"| {NETWORKS[network].title} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
