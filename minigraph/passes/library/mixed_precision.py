"""Mixed precision: convolutions and products in a 16-bit float type, other ops in float32.

Parameters, statistics, the optimizer and the sums within a convolution stay float32.  Casts are
elementwise ops, so a fused kernel before a convolution writes the 16-bit type.

P. Micikevicius et al. (2018), Mixed precision training, https://arxiv.org/abs/1710.03740.
"""

from __future__ import annotations

import numpy as np

from minigraph.graph import BFLOAT16, DType, Graph, Node, Op
from minigraph.ops import floor, isfinite, log2, logical_and, pow, where
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.elementwise import Astype, astype
from minigraph.ops.matmul import Matmul
from minigraph.ops.reduction import Max
from minigraph.ops.shape import PermuteDims, reshape
from minigraph.passes.notes import Notes

# The ops that compute in the 16-bit type, and the number of leading operands that may be gradients.
SCALED: dict[type[Op], int] = {
    Conv2d: 0,
    Conv2dBackwardData: 1,
    Conv2dBackwardWeights: 1,
    Matmul: 2,
}
TYPES: dict[str, DType] = {"bfloat16": BFLOAT16, "float16": np.dtype(np.float16)}


def autocast(graph: Graph, notes: Notes, amp: str) -> Graph:
    """Cast the operands of float32 convolutions and products to the type that `amp` names."""
    narrow = TYPES[amp]
    casts: dict[tuple[Node, bool], tuple[Node, Node | None]] = {}

    def cast(x: Node, scaled: bool) -> tuple[Node, Node | None]:
        """Return x in the 16-bit type, and the scale by which it was multiplied."""
        if (x, scaled) not in casts:
            view = isinstance(x.op, PermuteDims)
            if view and not isinstance(x.inputs[0].op, PermuteDims):
                y, scale = cast(x.inputs[0], scaled)  # a matrix and its transpose share a cast
                casts[x, scaled] = x.op(y), scale
            elif isinstance(x.op, Astype) and x.inputs[0].dtype == narrow and not scaled:
                casts[x, scaled] = x.inputs[0], None
            else:
                scale = _scale(x) if scaled else None
                casts[x, scaled] = astype(x if scale is None else x * scale, narrow), scale
        return casts[x, scaled]

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if type(node.op) not in SCALED or node.dtype != np.float32:
            return node.replace(inputs)
        notes.fired[f"{node.name} in {amp}"] += 1
        # bfloat16 has the range of float32 and needs no scale.
        scaled = SCALED[type(node.op)] if narrow == np.float16 else 0
        operands = [cast(x, i < scaled) for i, x in enumerate(inputs)]
        y = astype(node.op(*(x for x, _ in operands)), "float32")
        for _, scale in operands:
            y = y if scale is None else y / scale
        return y

    return graph.map(rewrite)


def _scale(x: Node) -> Node:
    """Return the power of two that scales the largest element of x to about 1.

    Gradients may be smaller than 6e-8, the smallest number of float16.  Scaling by a power of two
    is exact.  The scale is 1 if x has only zeros, or has infinity or NaN.
    """
    largest = Max(tuple(range(x.ndim)))(abs(x))
    usable = logical_and(largest > 0, isfinite(largest))
    exponent = floor(log2(where(usable, largest, 1.0)))
    return reshape(pow(2.0, -exponent), ())
