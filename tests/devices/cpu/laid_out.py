"""Convolutions whose images lie in blocks of channels, and kernels run between guards."""

import numpy as np

import minigraph as mg
from minigraph.autotune.candidate import Workbench
from minigraph.autotune.data import GuardedArray
from minigraph.devices.cpu.kernel import KernelRunner
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, packed

WAYS = ["forward", "with a bias", "to the images", "to the weights"]


def plain_node(way: str, conv: Conv2d, x, w):
    """Return a convolution of images and weights of these shapes, or its gradient, in nchw."""
    x, w = mg.input("x", x), mg.input("w", w)
    dy = mg.input("dy", conv(x, w).shape)
    match way:
        case "forward":
            return conv(x, w)
        case "with a bias":
            return conv(x, w, mg.input("bias", w.shape[:1]))
        case "to the images":
            return Conv2dBackwardData(conv, x.shape)(dy, w)
    return Conv2dBackwardWeights(conv, w.shape)(dy, x)


def in_lanes(plain, lanes, lanes_of_x=0, lanes_of_y=0):
    """Return the node whose images have these lanes, of which x or y may have others."""
    of_x, of_y = lanes_of_x or lanes, lanes_of_y or lanes
    every = {"x": of_x, "dy": of_y}
    kinds = [every.get(x.name, 1) for x in plain.inputs]
    result = {Conv2d: of_y, Conv2dBackwardData: of_x}.get(type(plain.op), 1)
    operands = [
        mg.input(x.name, packed(x.shape, n)) if n > 1 else x
        for x, n in zip(plain.inputs, kinds, strict=True)
    ]
    return LaidOut(plain.op, tuple(kinds), (result,))(*operands)


def drawn(node, seed=0):
    """Return normally distributed values for the inputs of a node."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(x.shape).astype("float32") for x in node.inputs]


def meaning(node, xs):
    """Return the results of a node, in float64."""
    return node.op.forward(*(x.astype("float64") for x in xs))


def written(shape, values=None):
    """Return a block of memory between guards: of these values, or cleared, which is NaN."""
    block = GuardedArray(Workbench(), shape, np.dtype(np.float32))
    block.clear(block.array.nbytes)
    if values is not None:
        block.array[...] = values
        block.seal()
    return block


def computed_by(kernel, node, xs):
    """Return the result of `results_of`, of which there is one."""
    (result,) = results_of(kernel, node.specs, xs)
    return result


def results_of(kernel, specs, xs):
    """Return a kernel's results; assert that it writes nothing else.

    xs  arrays, or pairs of an array and the function that makes the kernel's view of it
    """
    pairs = [x if isinstance(x, tuple) else (x, lambda v: v) for x in xs]
    inputs = [written(x.shape, x) for x, _ in pairs]
    results = [GuardedArray(Workbench(), spec.shape, spec.dtype) for spec in specs]
    scratch = written((kernel.scratch // 4,))
    for block in results:
        block.clear(block.array.nbytes)
    views = [view(block.array) for block, (_, view) in zip(inputs, pairs, strict=True)]
    KernelRunner(kernel, on_disk=True).run(views, [y.array for y in results], scratch.array)
    assert not any(x.is_changed() for x in inputs)
    assert all(y.guards_intact(y.array.nbytes) for y in results)
    assert scratch.guards_intact(kernel.scratch)
    return [y.array for y in results]
