"""Rows of products of matrices and of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph import ops
from minigraph.graph import FLOATS, Node
from minigraph.torch.operators.table import pair, row, rows

rows({"mm bmm matmul dot mv": ops.matmul, "linear": ops.linear, "outer": ops.outer})


@row("addmm", "baddbmm", "addmv")
def _addmm(added: Node, x: Node, y: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    if added.dtype not in FLOATS:  # torch takes numbers as integers then
        beta, alpha = int(beta), int(alpha)
    product = ops.matmul(x, y)
    product = product if alpha == 1 else product * alpha
    return product + (added if beta == 1 else added * beta)


@row("addbmm")
def _addbmm(added: Node, x: Node, y: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    b, n, m = x.shape  # the sum over b is one product
    x = ops.reshape(ops.permute_dims(x, (1, 0, 2)), (n, b * m))
    return _addmm(added, x, ops.reshape(y, (b * m, y.shape[2])), beta, alpha)


@row("einsum")
def _einsum(equation: str, operands: Sequence[Node], **unused: Any) -> Node:
    return ops.einsum(equation, *operands)


@row("convolution", "_convolution")
def convolution(
    x: Node, w: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *unused: Any,
) -> Node:  # fmt: skip
    """Return a convolution, of sequences as that of images of one row."""
    pairs = [pair(each) for each in (stride, padding, dilation)]
    single = x.ndim == 3
    if single:
        x, w = ops.expand_dims(x, 2), ops.expand_dims(w, 2)
        pairs = [(neutral, each[-1]) for each, neutral in zip(pairs, (1, 0, 1), strict=True)]
    stride, padding, dilation = pairs
    if transposed:
        lead = (0, *output_padding) if single else pair(output_padding)
        y = ops.conv_transpose2d(x, w, bias, stride, padding, lead, groups, dilation)
    else:
        y = ops.conv2d(x, w, bias, stride, padding, dilation, groups)
    return ops.squeeze(y, 2) if single else y


@row("_cdist_forward")
def _cdist(x: Node, y: Node, p: float, mode: Any = None) -> Node:
    return ops.norm(ops.expand_dims(x, -2) - ops.expand_dims(y, -3), p, -1)
