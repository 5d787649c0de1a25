"""Whether a device works at all: a map, a reduction, convolutions, steps that change a parameter.

    python benchmarks/first_contact.py [--device cuda]

Each function is called until its kernels run as one graph, and every result is compared with NumPy.
"""

import argparse
import sys

import numpy as np

import minigraph as mg
from minigraph import ops

CALLS = 4  # kernel by kernel, while they are captured, and twice as a graph


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def called(device, inputs, expression, options=()):
    """Return the results of some calls, as NumPy arrays, and the function."""
    cg = mg.comp_graph(device, {"graph_opt_level": 3, "autotune": "cached", **dict(options)})
    xs = [mg.input(f"x{i}", array.shape) for i, array in enumerate(inputs)]
    function = cg.compile(xs, expression(*xs))
    results = [function(*inputs) for _ in range(CALLS)]
    return [getattr(y, "get", lambda y=y: y)() for y in results], function


def close(results, expected, tolerance):
    """Compare results with what they have to be, relative to its norm."""
    for call, y in enumerate(results, 1):
        error = np.linalg.norm(y.astype("float64") - expected) / np.linalg.norm(expected)
        assert error <= tolerance, f"call {call} is off by {error:.1e}"  # NaN fails, too
    return f"off by {error:.0e}"


def a_map(device):
    x, y = numbers(1000, 1000), numbers(1000, 1000)[::-1].copy()
    results, _ = called(device, [x, y], lambda x, y: ops.tanh(x) * y + 1)
    return close(results, np.tanh(x) * y + 1, 1e-6)


def a_column_reduction(device):
    x = numbers(4096, 515)
    results, _ = called(device, [x], lambda x: ops.sum(x * x, 0))
    return close(results, (x.astype("float64") ** 2).sum(0), 1e-6)


def refusal(device, options):
    """Return why a device refuses options; "" if it takes them."""
    x = mg.input("x", (1,))
    mg.comp_graph(device).compile([x], x)  # a device that does not work at all refuses nothing
    try:
        mg.comp_graph(device, options).compile([x], x)
    except mg.DeviceError as error:
        return str(error)
    return ""


def convolutions(device, options, tolerance):
    """Three in a row, each of the one before: images between them lie as the library likes them."""
    why = refusal(device, options)
    if why:
        return f"left out: {why}"
    x, w = numbers(8, 32, 14, 14), numbers(32, 32, 3, 3) / 17

    def network(x):
        for _ in range(3):
            x = ops.relu(ops.conv2d(x, w, padding=1))
        return x

    results, function = called(device, [x], network, options)
    expected = called("reference", [x], network)[0][0]
    layouts = {found.layout for found in function.report().algorithms}
    return f"{close(results, expected, tolerance)}; {', '.join(sorted(layouts))}"


def updates(device):
    """A parameter that each call changes in place, by a graph that is launched again."""
    w = mg.Parameter(np.ones(1000, np.float32), "w")
    x = mg.input("x", (1000,))
    step = mg.comp_graph(device, {"graph_opt_level": 3}).compile([x], ops.sum(x * w), {w: w * 0.5})
    ones = np.ones(1000, np.float32)
    found = [float(step(ones)) for _ in range(CALLS)]
    assert found == [1000 * 0.5**i for i in range(CALLS)], f"gave {found}"
    assert (w.numpy() == 0.5**CALLS).all(), "the parameter is wrong"
    return f"{step.report().launches} launches a call"


CHECKS = {
    "a map": a_map,
    "a column reduction": a_column_reduction,
    "convolutions, float32": lambda device: convolutions(device, {}, 1e-5),
    "convolutions, tf32": lambda device: convolutions(device, {"precision": "tf32"}, 3e-3),
    "convolutions, bfloat16": lambda device: convolutions(device, {"amp": "bfloat16"}, 3e-2),
    "updates": updates,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    failed = 0
    for name, check in CHECKS.items():
        try:
            said = check(given.device)
        except Exception as error:  # whatever it is, the rest may say more
            said, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
        print(f"{name:24} {said}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
