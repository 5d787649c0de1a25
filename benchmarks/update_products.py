"""Print what it gains that an update computes the gradient of its matrix itself.

    python benchmarks/update_products.py [--turns 40]

Each row is one step of Adam on a matrix at level 3, gradient included: with the product in a kernel
of its own, and in the update's.  The two take turns; times are medians, the ratio is the median of
the ratios of turns.
"""

import argparse

import numpy as np
from turns import seconds, take_turns

import minigraph as mg
from minigraph import ops, optim
from minigraph.devices.cpu.device import CpuBackend

BATCHES = (32, 64)
MATRICES = ((1024, 1024), (2048, 1024), (4096, 1000), (2048, 2048), (4096, 4096))
MIB = 1 << 20


def step(rows, columns, batch):
    """Return a step that trains a matrix."""
    rng = np.random.default_rng(0)
    w = mg.Parameter(rng.standard_normal((rows, columns), np.float32))
    given = mg.input("x", (batch, rows)), mg.input("dy", (batch, columns))
    x, dy = given
    loss = ops.sum((x @ w) * dy)
    cg = mg.comp_graph(options={"graph_opt_level": 3})
    call = cg.compile(given, loss, optim.Adam([w], lr=1e-3).minimize(loss))
    arrays = [rng.standard_normal(each.shape, np.float32) for each in given]
    return lambda: call(*arrays)


def apart(rows, columns, batch):
    """Return the same, with a kernel for the product."""
    products, CpuBackend.products = CpuBackend.products, None
    try:
        return step(rows, columns, batch)
    finally:
        CpuBackend.products = products


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=40)
    turns = parser.parse_args().turns

    print("| matrix | MiB | batch | apart, ms | in the update, ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for rows, columns in MATRICES:
        for batch in BATCHES:
            steps = [make(rows, columns, batch) for make in (apart, step)]
            taken = take_turns([lambda each=each: seconds(each) for each in steps], turns)
            first, second = np.median(taken, axis=0) * 1e3
            ratio = np.median(taken[:, 1] / taken[:, 0])
            print(
                f"| {rows} x {columns} | {rows * columns * 4 / MIB:.0f} | {batch} | {first:.2f} | "
                f"{second:.2f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
