"""Library fusion: what convolutions and matrix products do on the way, and what their weights hold.

A value in between that somebody else reads, or that is an output, has to be computed anyway: such a
convolution or product is left alone.
"""

from __future__ import annotations

import numpy as np

from minigraph.graph import Graph, Node, Shape
from minigraph.ops import rsqrt
from minigraph.ops.activation import Activated
from minigraph.ops.arithmetic import Add
from minigraph.ops.conv import Conv2d
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.layout import LaidOut
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import BatchNormInference
from minigraph.ops.shape import BroadcastTo, Reshape, reshape
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.fact import has, read_once


def fuse_bias(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with sums of a convolution or product and a vector made one op.

    The vector runs along the channels of the convolution or along the columns of the product.
    """
    if not has(graph, Conv2d, Matmul):
        return graph
    private = read_once(graph)
    operands: dict[Node, tuple[Node, ...]] = {}

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        operands[node] = inputs
        if not isinstance(node.op, Add):
            return node.replace(inputs)
        for x, other in zip(node.inputs, reversed(inputs), strict=True):
            product = _product(x, private)
            if product is None or len(product.inputs) > 2 or x.shape != node.shape:
                continue
            axis = _bias_axis(product, x.shape)
            bias = None if axis is None else _vector(other, x.shape, axis)
            if bias is not None:
                notes.fired[f"{product.name} with bias"] += 1
                return reshape(product.op(*operands[product], bias), node.shape)
        return node.replace(inputs)

    return graph.map(rewrite)


def fuse_activation(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with convolutions and products, and the function that follows, made one op.

    Any elementwise function of one input will do that keeps the dtype.
    """
    if not has(graph, Conv2d, LaidOut, Matmul):
        return graph
    private = read_once(graph)
    operands: dict[Node, tuple[Node, ...]] = {}

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        operands[node] = inputs
        if not isinstance(node.op, Elementwise) or len(inputs) != 1:
            return node.replace(inputs)
        product = _product(node.inputs[0], private)
        if product is None or product.dtype != node.dtype:
            return node.replace(inputs)
        notes.fired[f"{product.name} with {node.name}"] += 1
        return reshape(Activated(product.op, node.op)(*operands[product]), node.shape)

    return graph.map(rewrite)


def fold_batch_norm(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with normalisations by given statistics in the weights before them.

    The scale goes into the weights of the convolution, the rest into its bias:

        scale = weight / sqrt(var + eps)
        norm(conv(x, w, b)) = conv(x, w * scale, (b - mean) * scale + bias)

    The result is the same to rounding, NaN and infinity included, unless scaling overflows, as it
    does by an infinite `weight` or a `var` of -eps: then infinite terms of unlike signs may meet in
    a sum and give NaN for infinity.

    Left alone: weights no smaller than the convolution's result, since scaling them at each call
    costs more; an eps that does not keep var + eps from 0; float16 and bfloat16, in which scaled
    weights would lose what the normalisation, in float32, keeps.
    """
    if not has(graph, BatchNormInference):
        return graph
    private = read_once(graph)

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not isinstance(node.op, BatchNormInference):
            return node.replace(inputs)
        conv, weight, bias, mean, var = inputs
        if not isinstance(conv.op, Conv2d) or node.inputs[0] not in private:
            return node.replace(inputs)
        x, w, *b = conv.inputs
        wide = node.dtype in (np.float32, np.float64)
        if not wide or w.size >= conv.size or node.op.eps < np.finfo(node.dtype).tiny:
            return node.replace(inputs)
        notes.fired[f"{node.name} into {conv.name}"] += 1
        scale = weight * rsqrt(var + node.op.eps)
        centre = b[0] - mean if b else -mean
        return conv.op(x, w * reshape(scale, (-1, 1, 1, 1)), centre * scale + bias)

    return graph.map(rewrite)


def _product(x: Node, private: set[Node]) -> Node | None:
    """The convolution or product whose elements are those of x, in the same order."""
    while x in private and isinstance(x.op, Reshape):
        x = x.inputs[0]
    op = x.op.plain if isinstance(x.op, LaidOut) else x.op
    return x if x in private and isinstance(op, Conv2d | Matmul) else None


def _bias_axis(product: Node, shape: Shape) -> int | None:
    """The axis along which a bias runs when the product has been reshaped to `shape`."""
    if isinstance(product.op, Conv2d):
        return 1 if shape == product.shape else None
    return len(shape) - 1 if shape[-1:] == product.shape[-1:] else None


def _vector(x: Node, shape: Shape, axis: int) -> Node | None:
    """x as a vector if, broadcast to `shape`, it differs along `axis` alone."""
    if isinstance(x.op, BroadcastTo):
        x = x.inputs[0]
    size = shape[axis]
    wanted = (1,) * axis + (size,) + (1,) * (len(shape) - axis - 1)
    if (1,) * (len(shape) - x.ndim) + x.shape != wanted:
        return None
    if isinstance(x.op, Reshape) and x.inputs[0].shape == (size,):
        return x.inputs[0]
    return reshape(x, (size,))
