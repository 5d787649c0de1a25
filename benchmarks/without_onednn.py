"""Print how long training steps take without oneDNN, beside those with it.

    python benchmarks/without_onednn.py [resnet18 resnet50 alexnet mlp] [--turns 9] [--quick]

Minigraph at level 3, tuned, in one process: with oneDNN, and with its own kernels alone, in blocks
of 8 channels, as on processors other than x86-64.  Both take turns; times are medians of steps,
with quartiles in brackets.
"""

import argparse
from unittest import mock

import numpy as np
from turns import median_ms, seconds, take_turns

import minigraph as mg
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.ours import LIBRARY, training
from minigraph.devices.cpu import onednn


def trained(network, quick, budget):
    """Return what takes a training step, and the share of its steps that NumPy computes."""
    subject = case(network, quick=quick)
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune.budget": budget})
    step, batches = training(cg, subject, subject.network(LIBRARY))
    batch = next(batches)
    float(step(*batch))
    report = step.report()
    return lambda: float(step(*batch)), len(report.numpy) / len(report.steps)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small images")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    asked = parser.parse_args()

    print("| | with oneDNN, ms | without | times as long | in NumPy |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for network in asked.networks or ["resnet18", "resnet50", "alexnet", "mlp"]:
        theirs, _ = trained(network, asked.quick, asked.budget)
        with mock.patch.object(onednn, "library", return_value=None):
            own, in_numpy = trained(network, asked.quick, asked.budget)
        sides = [lambda each=each: seconds(each) for each in (theirs, own)]
        took = take_turns(sides, asked.turns).T
        ratio = np.median(took[1]) / np.median(took[0])
        times = " | ".join(map(median_ms, took))
        print(f"| {NETWORKS[network].title} | {times} | {ratio:.2f} | {in_numpy:.0%} |", flush=True)


if __name__ == "__main__":
    main()
