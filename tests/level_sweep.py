"""Normalisations, poolings and reductions over many shapes, and the time of each level.

Run it to see where a level is slower than the one below it, or NumPy computes something:

    .venv/bin/python tests/level_sweep.py [batch_norm ...] [--threads 1] [--slower 1.2]
"""

import argparse
import itertools
import time

import numpy as np

import minigraph as mg
from minigraph import ops

CHANNELS = (1, 3, 8, 16, 24, 32, 64, 128, 256, 512)
SIDES = (4, 7, 14, 28, 56)
BATCHES = (1, 8, 64)
LEVELS = (0, 1, 2, 3)
LARGEST = 1 << 23  # elements of an image


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


PROGRAMS = {  # what each makes of images [n, c, h, w], and the parameters that it has
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


def milliseconds(name, shape, threads, rounds=15):
    """Return the least time of each level, taken in turn, and what NumPy computes."""
    x = mg.input("x", shape)
    ys = program(name, x)
    image = np.random.default_rng(0).normal(size=shape).astype("float32")
    functions = []
    for level in LEVELS:
        options = {"graph_opt_level": level, "num_threads": threads}
        functions.append(mg.comp_graph("cpu", options).compile([x], ys))
        functions[-1](image)
    times = [[] for _ in LEVELS]
    for _ in range(rounds):
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function(image)
            taken.append(1e3 * (time.perf_counter() - start))
    by_numpy = [f"level {i}: {s}" for i, f in enumerate(functions) for s in f.report().numpy]
    return [min(t) for t in times], by_numpy


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS), metavar="program")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slower", type=float, default=1.2, help="ratio from which on to show it")
    given = parser.parse_args()
    for name, *shape in itertools.product(given.names, BATCHES, CHANNELS, SIDES):
        n, c, side = shape
        if n * c * side * side > LARGEST or n * side * side == 1:
            continue
        taken, by_numpy = milliseconds(name, (n, c, side, side), given.threads)
        worst = max(b / a for a, b in itertools.pairwise(taken))
        if worst > given.slower or by_numpy:
            figures = " ".join(f"{t:8.3f}" for t in taken)
            print(f"{name:28} {(n, c, side, side)!s:20} {figures} ms  x{worst:.2f}", *by_numpy)


if __name__ == "__main__":
    main()
