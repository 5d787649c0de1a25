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
def _convolution(
    x: Node,
    w: Node,
    bias: Node | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *unused: Any,
) -> Node:
    pairs = [pair(each) for each in (stride, padding, dilation)]
    if x.ndim == 3:
        x, w = ops.expand_dims(x, 2), ops.expand_dims(w, 2)
        pairs = [(neutral, each[-1]) for each, neutral in zip(pairs, (1, 0, 1), strict=True)]
    stride, padding, dilation = pairs
    if transposed:
        lead = (0, *output_padding) if len(output_padding) == 1 else output_padding
        y = ops.conv_transpose2d(x, w, bias, stride, padding, pair(lead), groups, dilation)
    else:
        y = ops.conv2d(x, w, bias, stride, padding, dilation, groups)
    return ops.squeeze(y, 2) if len(output_padding) == 1 else y


@row("conv1d", "conv1d.padding")
def _conv1d(
    x: Node, w: Node, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Node:  # fmt: skip
    border = padding if isinstance(padding, str) else (0, pair(padding)[-1])
    window = (1, pair(stride)[-1]), border, (1, pair(dilation)[-1])
    y = ops.conv2d(ops.expand_dims(x, 2), ops.expand_dims(w, 2), bias, *window, groups)
    return ops.squeeze(y, 2)


@row("conv2d", "conv2d.padding")
def _conv2d(
    x: Node, w: Node, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Node:  # fmt: skip
    border = padding if isinstance(padding, str) else pair(padding)
    single = x.ndim == 3
    x = ops.expand_dims(x, 0) if single else x
    y = ops.conv2d(x, w, bias, pair(stride), border, pair(dilation), groups)
    return ops.squeeze(y, 0) if single else y


@row("conv_transpose2d.input")
def _conv_transpose2d(
    x: Node, w: Node, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Node:  # fmt: skip
    window = pair(stride), pair(padding), pair(output_padding)
    return ops.conv_transpose2d(x, w, bias, *window, groups, pair(dilation))


@row("_cdist_forward")
def _cdist(x: Node, y: Node, p: float, mode: Any = None) -> Node:
    return ops.norm(ops.expand_dims(x, -2) - ops.expand_dims(y, -3), p, -1)
