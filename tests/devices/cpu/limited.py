"""A program: a small network, with kernels of all kinds, trains at several levels beside level 0.

It takes pairs of a level and further options as JSON, and prints what decides between kernels in
its process, and the names of the candidates that were measured.
"""

import json
import sys

import numpy as np

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import compiler, onednn

BATCH, SIDE, CLASSES, WIDE = 4, 12, 8, 512


def network():
    nn.manual_seed(0)
    channels = onednn.block()
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 5, padding=2),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.LocalResponseNorm(5),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(9 * channels),
        nn.Linear(9 * channels, WIDE),
        nn.GELU(),
        nn.Linear(WIDE, CLASSES),
        nn.Softmax(-1),
    )


def train(level, **options):
    """Train for three steps, each compared with level 0; return the step's report."""
    net = network()
    x, labels = mg.input("x", (BATCH, 3, SIDE, SIDE)), mg.input("labels", (BATCH,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters(), lr=1e-3).minimize(loss), **net.updates()}
    options = {"graph_opt_level": -level, "num_threads": 1, **options}
    step = mg.comp_graph("cpu", options).compile([x, labels], loss, updates)
    rng = np.random.default_rng(0)
    for _ in range(3):
        step(rng.standard_normal((BATCH, 3, SIDE, SIDE), np.float32), np.arange(BATCH))
    return step.report()


if __name__ == "__main__":
    trained = [train(level, **options) for level, options in json.loads(sys.argv[1])]
    facts = {
        "block": onednn.block(),
        "bfloat16": onednn.BFLOAT16 in onednn.dtypes(),
        "flags": compiler.flags(),
        "candidates": sorted(
            {c.name for report in trained for use in report.algorithms for c in use.candidates}
        ),
    }
    print(json.dumps(facts))
