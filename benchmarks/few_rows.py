"""Time products of few rows and a matrix of weights, as AlexNet's layers have them.

    python benchmarks/few_rows.py --threads 2

The kernels take turns, and so does a sum of all weights: the bound, which only reads them.  Prints
median times, what they are in GB/s of weights, and how many times as fast minigraph's kernel is as
the fastest of oneDNN's.
"""

import argparse

import numpy as np
from kernel_runs import kernel_runs
from turns import seconds, take_turns

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import few_rows, primitives
from minigraph.devices.problem import BIAS, MATRIX, TRANSPOSED, Arrangement
from minigraph.ops.matmul import Matmul

LAYERS = {"9216x4096": (9216, 4096), "4096x4096": (4096, 4096)}  # features in and out


def runs(rows, weights, threads):
    """Return what runs each kernel, and the sum, by its name."""
    outs, ins = weights.shape
    x, bias, y = (np.ones(shape, "float32") for shape in ((rows, ins), outs, (rows, outs)))
    given = mg.input("x", x.shape), mg.input("w", (ins, outs)), mg.input("bias", bias.shape)
    node, operands = Matmul()(*given), [x, weights.T, bias]
    layouts = MATRIX, TRANSPOSED, BIAS, MATRIX
    arrangement = Arrangement(node, [each.strides for each in operands], layouts)
    offers = few_rows.candidates, primitives.candidates
    candidates = (each for offered in offers for each in offered(arrangement, threads))
    found = kernel_runs(candidates, operands, y)
    w = mg.input("w", weights.shape)
    read = mg.comp_graph("cpu", {"graph_opt_level": 3, "num_threads": threads})
    total = read.compile([w], ops.sum(w))
    found["the sum"] = lambda: total(weights)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 10, 12])
    parser.add_argument("--layers", nargs="+", default=[*LAYERS], choices=[*LAYERS])
    given = parser.parse_args()
    for ins, outs in (LAYERS[layer] for layer in given.layers):
        weights = np.random.default_rng(0).standard_normal((outs, ins), dtype="float32")
        for rows in given.rows:
            found = runs(rows, weights, given.threads)
            times = take_turns(
                [lambda run=run: seconds(run) for run in found.values()], given.turns
            )
            taken = dict(zip(found, np.median(times, axis=0).tolist(), strict=True))
            text = ", ".join(
                f"{name} {t * 1e3:.2f} ms ({weights.nbytes / t / 1e9:.0f} GB/s)"
                for name, t in taken.items()
            )
            own, read = taken.pop(few_rows.NAME), taken.pop("the sum")
            print(f"{rows} x {ins} x {outs}: {text};", end=" ")
            print(
                f"{min(taken.values()) / own:.2f} times, {read / own:.0%} of the bound", flush=True
            )


if __name__ == "__main__":
    main()
