"""Library fusion of bias, activation and batch norm into the convolution or product before them.

The passes do not fuse if an intermediate value is an output or has another reader, because then the
value must be stored.
"""

from __future__ import annotations

import numpy as np

from minigraph.graph import Constant, Graph, Node, Shape, constant, in_place_of
from minigraph.ops import rsqrt
from minigraph.ops.activation import Activated
from minigraph.ops.arithmetic import Add
from minigraph.ops.batch_norm import BatchNormInference
from minigraph.ops.conv import Conv2d
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.layout import LaidOut
from minigraph.ops.matmul import Matmul
from minigraph.ops.shape import BroadcastTo, Reshape, reshape
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import read_once


def fuse_bias(graph: Graph, notes: Notes) -> Graph:
    """Fuse a vector that is added along channels or columns into the convolution or product."""
    private = read_once(graph)
    fused: dict[Node, tuple[Node]] = {}
    for node in graph:
        if not isinstance(node.op, Add):
            continue
        for x, other in (node.inputs, node.inputs[::-1]):
            product = _product(x, private)
            if product is None or len(product.inputs) > 2 or x.shape != node.shape:
                continue
            with in_place_of(node):
                bias = _bias(other, product, node.shape)
                if bias is None:
                    continue
                fused[node] = (reshape(product.op(*product.inputs, bias), node.shape),)
            notes.fired[f"{product.name} with bias"] += 1
            break
    return graph.substitute(fused)


def fuse_activation(graph: Graph, notes: Notes) -> Graph:
    """Fuse a convolution or product with an elementwise op of one input that keeps the dtype."""
    private = read_once(graph)
    fused: dict[Node, tuple[Node]] = {}
    for node in graph:
        if not isinstance(node.op, Elementwise) or len(node.inputs) != 1:
            continue
        product = _product(node.inputs[0], private)
        if product is not None and product.dtype == node.dtype:
            with in_place_of(node):
                y = Activated(product.op, node.op)(*product.inputs)
                fused[node] = (reshape(y, node.shape),)
            notes.fired[f"{product.name} with {node.name}"] += 1
    return graph.substitute(fused)


def fold_batch_norm(graph: Graph, notes: Notes) -> Graph:
    """Fold batch norms of inference into the convolutions before them.

    The scale is folded into the weights of the convolution, the rest into its bias:

        scale = weight / sqrt(var + eps)
        norm(conv(x, w, b)) = conv(x, w * scale, (b - mean) * scale + bias)

    The result is the same up to rounding, NaN and infinity included, unless a scaled weight
    overflows, as with an infinite `weight` or var = -eps: then the convolution may add infinities
    of both signs and return NaN instead of infinity.

    A batch norm is not folded in three cases:

    * The weights are not constant and as large as the convolution's result.  Scaling them in each
      call costs more than normalising.
    * eps is too small to prevent var + eps = 0.
    * The dtype is float16 or bfloat16.  Rounding the scaled weights would lose accuracy, while the
      normalisation computes in float32.
    """
    private = read_once(graph)

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not isinstance(node.op, BatchNormInference):
            return node.replace(inputs)
        conv, weight, bias, mean, var = inputs
        if not isinstance(conv.op, Conv2d) or node.inputs[0] not in private:
            return node.replace(inputs)
        x, w, *b = conv.inputs
        is_wide = node.dtype in (np.float32, np.float64)
        is_constant = all(isinstance(each.op, Constant) for each in (w, *b, *inputs[1:]))
        is_cheap = is_constant or w.size < conv.size
        if not is_wide or not is_cheap or node.op.eps < np.finfo(node.dtype).tiny:
            return node.replace(inputs)
        notes.fired[f"{node.name} into {conv.name}"] += 1
        scale = weight * rsqrt(var + node.op.eps)
        centre = b[0] - mean if b else -mean
        scaled = w * reshape(scale, (-1, 1, 1, 1)), centre * scale + bias
        return conv.op(x, *(map(constant, Graph((), scaled)()) if is_constant else scaled))

    return graph.map(rewrite)


def _product(x: Node, private: set[Node]) -> Node | None:
    """Return the convolution or product of which x is the result, or a reshape of it, else None."""
    while x in private and isinstance(x.op, Reshape):
        x = x.inputs[0]
    op = x.op.plain if isinstance(x.op, LaidOut) else x.op
    return x if x in private and isinstance(op, Conv2d | Matmul) else None


def _bias(x: Node, product: Node, shape: Shape) -> Node | None:
    """Return x as the bias, a vector, of a product that was reshaped to `shape`.

    None if x, broadcast to `shape`, varies along other axes than that of the channels or columns.
    """
    if isinstance(product.op, Conv2d):
        axis = 1 if shape == product.shape else None
    else:
        axis = len(shape) - 1 if shape[-1:] == product.shape[-1:] else None
    if axis is None:
        return None
    if isinstance(x.op, BroadcastTo):
        x = x.inputs[0]
    size = shape[axis]
    vector = (1,) * axis + (size,) + (1,) * (len(shape) - axis - 1)
    if (1,) * (len(shape) - x.ndim) + x.shape != vector:
        return None
    if isinstance(x.op, Reshape) and x.inputs[0].shape == (size,):
        return x.inputs[0]
    return reshape(x, (size,))
