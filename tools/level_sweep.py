"""Time normalisations, poolings and reductions at each level, over many shapes.

Run it to find programs that are slower at a level than at the one below, or that run in NumPy:

    python tools/level_sweep.py [batch_norm ...] [--minutes 1] [--seed 7] [--threads 1]

It draws programs and shapes by the seed until the time is over.  The levels take turns, so that
other programs slow them alike, and their medians are compared.  If a level seems slower, both are
timed again with more turns, and printed if the difference remains.
"""

import argparse
import itertools
import json
import random
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

import minigraph as mg
from minigraph import ops
from minigraph.platform.regular_file import write_text

CHANNELS = (1, 3, 8, 16, 24, 32, 64, 128, 256, 512)
SIDES = (4, 7, 14, 28, 56)
BATCHES = (1, 8, 64)
LEVELS = (0, 1, 2, 3)
MAX_ELEMENTS = 1 << 22  # of the images
SLOWER = 1.15  # ratio of medians, from which on a level counts as slower
MIN_DIFFERENCE = 0.004  # milliseconds, about the overhead of a call: less does not count as slower
TURNS, MORE_TURNS = 9, 41  # of each level, and of two that are timed again


def channels(x, *values):
    return [mg.Parameter(np.full(x.shape[1], v, "float32")) for v in values]


def batch_norm(x):
    weight, bias, mean, var = channels(x, 1, 0, 0, 1)
    return ops.batch_norm(x, mean, var, weight, bias, training=True), weight, bias


def batch_norm_inference(x):
    weight, bias, mean, var = channels(x, 1, 0, 0, 1)
    return ops.batch_norm(x, mean, var, weight, bias), weight, bias


def normalised_with_relu(x):
    y, *parameters = batch_norm(x)
    return ops.relu(y), *parameters


PROGRAMS = {  # functions of images [n, c, h, w]; each returns its result and its parameters
    "batch_norm": batch_norm,
    "batch_norm_relu": normalised_with_relu,
    "batch_norm_inference": batch_norm_inference,
    "layer_norm": lambda x: [ops.layer_norm(x, x.shape[2:])],
    "local_response_norm": lambda x: [ops.local_response_norm(x, 5)],
    "softmax": lambda x: [ops.softmax(x, -1)],
    "softmax of channels": lambda x: [ops.softmax(x, 1)],
    "log_softmax": lambda x: [ops.log_softmax(x, -1)],
    "max_pool2d": lambda x: [ops.max_pool2d(x, 3, 2, 1)],
    "avg_pool2d": lambda x: [ops.avg_pool2d(x, 2)],
    **{
        f"{name} over {over}": lambda x, name=name, axes=axes: [getattr(ops, name)(x, axes)]
        for name in ("sum", "max", "prod", "mean", "var", "logsumexp")
        for over, axes in (("images", (0, 2, 3)), ("pixels", (2, 3)), ("all", None), ("n", 0))
    },
}


def program(name, x):
    """Return the outputs, values and gradients."""
    y, *parameters = PROGRAMS[name](x)
    return [y, *mg.grad(ops.square(y).sum(), [x, *parameters])]


class Case:
    """A program for one shape, compiled at each level."""

    def __init__(self, name, shape, threads):
        x = mg.input("x", shape)
        ys = program(name, x)
        self.image = np.random.default_rng(0).normal(size=shape).astype("float32")
        self.functions = []
        for level in LEVELS:
            options = {"graph_opt_level": level, "num_threads": threads, "autotune": "off"}
            self.functions.append(mg.comp_graph("cpu", options).compile([x], ys))
            self.functions[-1](self.image)

    def milliseconds(self, levels, turns):
        """Return the median time of each of these levels, which take turns."""
        times = {level: [] for level in levels}
        for _ in range(turns):
            for level, samples in times.items():
                start = time.perf_counter()
                self.functions[level](self.image)
                samples.append(1e3 * (time.perf_counter() - start))
        return {level: median(samples) for level, samples in times.items()}

    def slower(self):
        """Return the first level that is slower than the one below it, and the times; or None."""
        times = self.milliseconds(LEVELS, TURNS)
        for below, level in itertools.pairwise(LEVELS):
            if is_slower(times[below], times[level]):
                repeated = self.milliseconds((below, level), MORE_TURNS)
                if is_slower(repeated[below], repeated[level]):
                    return level, times | repeated
        return None

    @property
    def by_numpy(self):
        """The steps that NumPy computes, at any level."""
        levels = enumerate(self.functions)
        return [f"level {i}: {step}" for i, f in levels for step in f.report().numpy]


def is_slower(below, level):
    return level > SLOWER * below and level - below > MIN_DIFFERENCE


def draws(names, seed):
    """Yield random programs and shapes for ever."""
    rng = random.Random(seed)
    while True:
        name, n, c, side = map(rng.choice, (names, BATCHES, CHANNELS, SIDES))
        if n * c * side * side <= MAX_ELEMENTS and n * side * side > 1:
            yield name, (n, c, side, side)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=list(PROGRAMS), metavar="program")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the counts to FILE")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    count, slower, numpys = 0, [], []
    for name, shape in draws(args.names, args.seed):
        if time.monotonic() > end:
            break
        case = Case(name, shape, args.threads)
        count += 1
        numpys += [f"{name} {shape}: {step}" for step in case.by_numpy]
        if result := case.slower():
            level, times = result
            figures = " ".join(f"{times[i]:.3f}" for i in LEVELS)
            ratio = times[level] / times[level - 1]
            slower.append(f"{name} {shape}: level {level} x{ratio:.2f} ({figures} ms)")
            print(slower[-1], flush=True)
    print(*numpys, sep="\n", end="\n" * bool(numpys))
    about = f"seed {args.seed}, {args.threads} threads"
    print(f"{about}: {count} programs, {len(slower)} with a slower level, {len(numpys)} by NumPy")
    if args.json:
        runs = json.loads(args.json.read_text()) if args.json.exists() else []
        run = {"about": about, "programs": count, "slower": slower, "numpy": numpys}
        write_text(args.json, json.dumps([*runs, run], indent=1) + "\n")
    return int(bool(slower or numpys))


if __name__ == "__main__":
    sys.exit(main())
