"""Print what a limit of memory costs: a training step within shares of its arena.

    python benchmarks/memory_limit.py [resnet50] [--batch 8] [--size 128] [--turns 7]

Each row is the step with `graph_opt.memory_limit` at a share of the arena that it takes without.
Steps take turns; times are medians, and their quartiles in brackets.
"""

import argparse
from dataclasses import replace

import numpy as np
from turns import median_ms, seconds, take_turns

import minigraph as mg
from minigraph.bench.cases import NETWORKS, case
from minigraph.bench.ours import LIBRARY, training

SHARES = (0.8, 0.65, 0.5, 0.4)
MIB = 1 << 20


def compiled(subject, limit=None):
    """Return a training step whose intermediate results keep a limit, and its batches."""
    options = {"graph_opt_level": 3, "graph_opt.memory_limit": limit}
    return training(mg.comp_graph(options=options), subject, subject.network(LIBRARY))


def steps_within(subject):
    """Yield the step without a limit, then those with one that can be kept; each with batches."""
    whole = compiled(subject)
    yield whole
    for share in SHARES:
        try:
            yield compiled(subject, int(share * whole[0].report().memory.arena_bytes))
        except mg.GraphError as error:
            print(error)
            return


def repeated(report):
    """What is computed again, in words."""
    fired = [record.fired for record in report.passes if record.name == "recompute"]
    return ", ".join(f"{count} {name}" for name, count in fired[0].items()) if fired else ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", default="resnet50", choices=[*NETWORKS])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=128, help="pixels a side")
    parser.add_argument("--turns", type=int, default=7)
    asked = parser.parse_args()

    subject = replace(case(asked.network, asked.batch), shape=(3, asked.size, asked.size))
    steps, batches = zip(*steps_within(subject), strict=True)
    sides = [
        lambda step=step, own=own: seconds(step, *next(own))
        for step, own in zip(steps, batches, strict=True)
    ]
    taken = take_turns(sides, asked.turns)

    print("| arena, MiB | of the whole | ms | of the whole | computed again |")
    print("| ---: | ---: | ---: | ---: | --- |")
    whole = steps[0].report().memory.arena_bytes
    for step, times in zip(steps, taken.T, strict=True):
        report = step.report()
        arena = report.memory.arena_bytes
        ratio = np.median(times) / np.median(taken[:, 0])
        print(
            f"| {arena / MIB:.0f} | {arena / whole:.0%} | {median_ms(times)} | "
            f"{ratio:.2f} | {repeated(report)} |"
        )


if __name__ == "__main__":
    main()
