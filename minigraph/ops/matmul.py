"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Array, Node, Op, Operand, Spec, as_node, builder
from minigraph.ops.elementwise import broadcast_shapes, kind, promote, sum_dtype
from minigraph.ops.shape import PermuteDims, permute_dims, reshape

LONG = 4096  # products that BLAS adds up in their own type


class Matmul(Op):
    """x [..., m, k] times y [..., k, n], plus bias [n] if given; leading axes broadcast."""

    def infer(self, x: Spec, y: Spec, bias: Spec | None = None) -> Spec:
        if x.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"rows of length {x.shape[-1]} meet columns of length {y.shape[-2]}; shapes "
                "(..., m, k) and (..., k, n) fit"
            )
        if bias is not None and bias.shape != y.shape[-1:]:
            raise ShapeError(f"the bias has shape {bias.shape}; columns of y take {y.shape[-1:]}")
        if len({v.dtype for v in (x, y, bias) if v is not None}) > 1:
            raise DTypeError("the operands differ in dtype")
        batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return Spec((*batch, x.shape[-2], y.shape[-1]), x.dtype)

    def forward(self, x: Array, y: Array, bias: Array | None = None) -> Array:
        size = x.shape[-1]
        if size <= LONG or kind(x.dtype) != "f":
            z = np.matmul(x, y)  # of bfloat16 it is float32
        else:  # BLAS may add up one product after the other
            z = sum(
                np.matmul(x[..., at : at + LONG], y[..., at : at + LONG, :]).astype(
                    sum_dtype(x.dtype)
                )
                for at in range(0, size, LONG)
            )
        return (z if bias is None else z + bias).astype(x.dtype, copy=False)

    def grad(self, dy: Node, z: Node, x: Node, y: Node, *bias: Node) -> tuple[Node, ...]:
        dx = Matmul()(dy, _swap(y))
        if isinstance(y.op, PermuteDims):  # as in `linear`: the gradient of w is contiguous
            dw = _swap(Matmul()(_swap(dy), x))
        else:
            dw = Matmul()(_swap(x), dy)
        return dx, dw, *(dy for _ in bias)


def _swap(x: Node) -> Node:
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@builder
def matmul(x: Operand, y: Operand) -> Node:
    """Return the matrix product x @ y by NumPy's rule: vectors, matrices, batches of them.

    ShapeError for a scalar and where the rows of x and the columns of y differ in length.

    >>> cg.compile([], ops.matmul([[1.0, 2.0]], [[3.0], [4.0]]))()
    array([[11.]])
    """
    x, y = promote(x, y)
    if not x.ndim or not y.ndim:
        raise ShapeError("a scalar is no matrix; use *")
    rows, columns = x.shape[-2:-1], y.shape[-1:] if y.ndim > 1 else ()
    left = x if x.ndim > 1 else reshape(x, (1, -1) if x.size else (1, 0))
    right = y if y.ndim > 1 else reshape(y, (y.size, 1))
    if left.ndim > 2 and right.ndim == 2:
        # One product of long matrices, not a batch of short ones; y's gradient needs no sum.
        batch = left.shape[:-2]
        z = Matmul()(reshape(left, (math.prod(left.shape[:-1]), left.shape[-1])), right)
    else:
        z = Matmul()(left, right)
        batch = z.shape[:-2]
    return reshape(z, (*batch, *rows, *columns))


@builder
def linear(x: Operand, w: Operand, bias: Operand | None = None) -> Node:
    """Return x @ w.T + bias for x (..., in), w (out, in) and bias (out,).

    >>> cg.compile([], ops.linear([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], [0.5, 0.5]))()
    array([[11.5, 17.5]])
    """
    w = as_node(w)
    if w.ndim != 2:
        raise ShapeError(f"w has shape {w.shape}; it is (out, in)")
    x = as_node(x)
    if x.ndim and x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"x has {x.shape[-1]} features, and w of shape {w.shape} takes {w.shape[1]}"
        )
    y = matmul(x, w.T)
    if bias is None:
        return y
    if as_node(bias).shape != w.shape[:1]:
        raise ShapeError(f"bias has shape {as_node(bias).shape}; it is (out,): {w.shape[:1]}")
    return y + bias
