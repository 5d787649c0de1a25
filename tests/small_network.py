"""A network to train, for the tests of caches and of tuning."""

import json
from typing import Any, NamedTuple

import numpy as np
from new_process import python

import minigraph as mg
from minigraph import ops

# The convolutions and products of a training step of the network.
DIRECTIONS = {
    "conv2d": 2,
    "conv2d_backward_data": 1,  # nobody asks for the gradient of the input
    "conv2d_backward_weights": 2,
    "matmul": 3,
}

AUTOTUNE = ("budget", "deterministic", "workspace_limit")


class Network(NamedTuple):
    """A training step: what `compile` takes."""

    inputs: list[Any]
    loss: Any
    updates: dict[Any, Any]


def network(wide=64, size=8, scale=1.0, dtype="float32"):
    """Return a network to train: two convolutions, batch norm, ReLU, pooling and a product.

    wide   channels between the convolutions
    size   of the images
    scale  a constant of the graph
    """
    rng = np.random.default_rng(0)

    def parameter(name, *shape):
        return mg.Parameter((rng.standard_normal(shape) * 0.2).astype(dtype), name=name)

    x, labels = mg.input("x", (4, 32, size, size), dtype), mg.input("labels", (4,), "int64")
    first, then = parameter("first", wide, 32, 3, 3), parameter("then", 32, wide, 3, 3)
    last, shift = parameter("last", 32, 10), parameter("shift", wide)
    h = ops.conv2d(x, first, padding=1)
    h = ops.relu(ops.batch_norm(h, None, None, shift + 1.0, shift, training=True))
    h = ops.relu(ops.conv2d(ops.max_pool2d(h, 2), then, padding=1))
    loss = ops.cross_entropy(h.mean(axis=(2, 3)) @ last * scale, labels)
    parameters = [first, then, last, shift]
    gradients = zip(parameters, mg.grad(loss, parameters), strict=True)
    return Network([x, labels], loss, {p: p - 0.1 * g for p, g in gradients})


def compiled(net=None, level=2, optimize=None, cache_dir=None, **options):
    """Return the function of a network.  Options of the autotuner are named without "autotune."."""
    net = net or network()
    return graph_compiler(level, **options).compile(
        net.inputs, net.loss, updates=net.updates, optimize=optimize, cache_dir=cache_dir
    )


def graph_compiler(level=2, **options):
    """Return a graph compiler, with the options that `compiled` takes."""
    named = {f"autotune.{n}" if n in AUTOTUNE else n: value for n, value in options.items()}
    return mg.comp_graph("cpu", {"graph_opt_level": level, **named})


def batch(dtype="float32"):
    """Return images of 8 x 8, and labels."""
    rng = np.random.default_rng(1)
    return rng.standard_normal((4, 32, 8, 8)).astype(dtype), np.arange(4)


def work():
    """Return how many candidates were measured and how many kernels compiled."""
    return mg.autotune.stats().measurements, mg.jit.stats().compilations


def elsewhere(folder, expression):
    """Return the value, by JSON, of an expression in a new process with a cache folder."""
    program = f"import json\nfrom small_network import *\nprint(json.dumps({expression}))"
    printed, _ = python("-c", program, MINIGRAPH_CACHE_DIR=str(folder))
    return json.loads(printed)
