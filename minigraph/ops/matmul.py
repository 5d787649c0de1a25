"""Products of matrices, and other sums of products, which are computed by them."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Axis, Kind, integers, one_or_several, short_repr
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Composed, Node, Op, Operand, Spec, Tensor, builder
from minigraph.ops.elementwise import broadcast_shapes, kind, promote, sum_dtype, widen
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import (
    PermuteDims,
    broadcast_to,
    normalize_axis,
    permute_dims,
    reshape,
    squeeze,
)

MAX_BLAS_SUM = 4096  # products that BLAS adds up in their own type


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
        if size <= MAX_BLAS_SUM or kind(x.dtype) != "f":
            z = np.matmul(x, y)  # of bfloat16 it is float32
        else:  # BLAS may add up one product after the other
            wide = sum_dtype(x.dtype)
            parts = [slice(i, i + MAX_BLAS_SUM) for i in range(0, size, MAX_BLAS_SUM)]
            z = sum(np.matmul(x[..., part], y[..., part, :]).astype(wide) for part in parts)
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
    """Return the matrix product x @ y by NumPy's rules, of vectors, matrices, or batches of them.

    ShapeError for a scalar, and if rows of x and columns of y differ in length.

    >>> cg.compile([], ops.matmul([[1.0, 2.0]], [[3.0], [4.0]]))()
    array([[11.]])
    """
    x, y = promote(x, y)
    if not x.ndim or not y.ndim:
        raise ShapeError("a scalar is not a matrix; use *")
    rows, columns = x.shape[-2:-1], y.shape[-1:] if y.ndim > 1 else ()
    left = x if x.ndim > 1 else reshape(x, (1, -1) if x.size else (1, 0))
    right = y if y.ndim > 1 else reshape(y, (y.size, 1))
    if left.shape[-2] == right.shape[-1] == 1 and left.shape[-1] == right.shape[-2]:
        # Libraries compute it as a product of matrices, several times as slow.
        z = vecdot(squeeze(left, -2), squeeze(right, -1))
        batch = z.shape
    elif left.ndim > 2 and right.ndim == 2:
        # One product of long matrices, not a batch of short ones; y's gradient needs no sum.
        batch = left.shape[:-2]
        z = Matmul()(reshape(left, (math.prod(left.shape[:-1]), left.shape[-1])), right)
    else:
        z = Matmul()(left, right)
        batch = z.shape[:-2]
    return reshape(z, (*batch, *rows, *columns))


@builder
def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Node:
    """Return x @ w.T + bias for x (..., in), w (out, in) and bias (out,).

    >>> cg.compile([], ops.linear([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], [0.5, 0.5]))()
    array([[11.5, 17.5]])
    """
    if w.ndim != 2:
        raise ShapeError(f"w has shape {w.shape}; it is (out, in)")
    if x.ndim and x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"x has {x.shape[-1]} features, and w of shape {w.shape} takes {w.shape[1]}"
        )
    y = matmul(x, w.T)
    if bias is None:
        return y
    if bias.shape != w.shape[:1]:
        raise ShapeError(f"bias has shape {bias.shape}; it is (out,): {w.shape[:1]}")
    return y + bias


# ---------------------------------------------------------------- sums over other axes

# An axis of an operand: a letter, or an integer, in `einsum` among the axes of the ellipsis.
Label = str | int


class Vecdot(Composed):
    """The sums of products of two arrays of one shape along `axis`, which keeps length 1."""

    axis: int

    def infer(self, x: Spec, y: Spec) -> Spec:
        return Spec((*x.shape[: self.axis], 1, *x.shape[self.axis + 1 :]), x.dtype)

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        return dy * y, dy * x

    def expand(self, x: Node, y: Node) -> tuple[Node]:
        return (Sum((self.axis,))(widen(x) * widen(y)).astype(x.dtype),)


@builder
def vecdot(x1: Operand, x2: Operand, axis: Axis = -1) -> Node:
    """Return the sums of products along `axis` of both; other axes broadcast.

    >>> cg.compile([], ops.vecdot([[1.0, 2.0], [3.0, 4.0]], [1.0, 10.0]))()
    array([21., 43.])
    """
    x1, x2 = promote(x1, x2)
    if not -min(x1.ndim, x2.ndim) <= axis < 0:
        raise ShapeError(
            f"axis {short_repr(axis)} does not exist; axes of both are counted from the end"
        )
    if x1.shape[axis] != x2.shape[axis]:
        raise ShapeError(f"axis {axis} has lengths {x1.shape[axis]} and {x2.shape[axis]}")
    shape = broadcast_shapes(x1.shape, x2.shape)
    operands = (broadcast_to(x, shape) for x in (x1, x2))
    return squeeze(Vecdot(normalize_axis(axis, len(shape)))(*operands), axis)


@builder
def outer(x1: Operand, x2: Operand) -> Node:
    """Return the products of each element of x1 (n,) with each of x2 (m,): (n, m).

    >>> cg.compile([], ops.outer([1, 2], [3, 4]))()
    array([[3, 4],
           [6, 8]])
    """
    x1, x2 = promote(x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"shapes {x1.shape} and {x2.shape}; outer takes vectors")
    return reshape(x1, (x1.size, 1)) * x2


def _axes(value: Any) -> int | tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        left, right = map(integers, value)
        return left, right
    count = one_or_several(value)
    if not isinstance(count, int) or count < 0:
        raise ValueError
    return count


AXES = Kind("an integer >= 0 or two sequences of axes", _axes, ShapeError)


@builder
def tensordot(x1: Operand, x2: Operand, axes: Annotated[Any, AXES] = 2) -> Node:
    """Return the sums of products over `axes`.

    axes  a number n: the last n axes of x1 and the first n of x2; or two sequences, which pair axes
          of x1 with axes of x2.  The result has the other axes of x1, then those of x2.

    >>> ops.tensordot(mg.input("x", (2, 3, 4)), mg.input("y", (3, 4, 5))).shape
    (2, 5)
    """
    x1, x2 = promote(x1, x2)
    if isinstance(axes, int):
        if axes > min(x1.ndim, x2.ndim):
            raise ShapeError(f"axes is {axes}; x1 has {x1.ndim}, x2 has {x2.ndim}")
        axes = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    left = [normalize_axis(a, x1.ndim) for a in axes[0]]
    right = [normalize_axis(a, x2.ndim) for a in axes[1]]
    unique = len(set(left)) == len(left) and len(set(right)) == len(right)
    if not unique or [x1.shape[a] for a in left] != [x2.shape[a] for a in right]:
        raise ShapeError(f"axes {axes} of shapes {x1.shape} and {x2.shape} do not pair")
    x1_labels: list[Label] = [*range(x1.ndim)]
    x2_labels: list[Label] = [left[right.index(b)] if b in right else ~b for b in range(x2.ndim)]
    sizes = dict(zip([*x1_labels, *x2_labels], x1.shape + x2.shape, strict=True))
    return _product(x1, x1_labels, x2, x2_labels, set(sizes).difference(left), sizes)[0]


@builder
def einsum(subscripts: str, *operands: Operand) -> Node:
    """Return the sum of products that `subscripts` describes, as "bij,bjk->bik".

    `...` stands for axes that broadcast, and a letter that one operand has twice for a diagonal.
    Operands are multiplied from left to right.  GraphError for subscripts that do not fit.

    >>> cg.compile([], ops.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 10.0]))()
    array([21., 43.])
    """
    terms, result = _parsed(subscripts)
    if len(terms) != len(operands):
        raise GraphError(f"{subscripts} takes {len(terms)} operands, not {len(operands)}")
    xs = promote(*operands)
    pairs = [_diagonal(x, _labels(term, x)) for term, x in zip(terms, xs, strict=True)]
    xs, labels = tuple(x for x, _ in pairs), [term for _, term in pairs]
    dots: list[Label] = sorted({c for term in labels for c in term if isinstance(c, int)})
    if result is None:
        letters = "".join(terms).replace(".", "")
        output = [*dots, *sorted(c for c in letters if letters.count(c) == 1)]
    else:
        before, ellipsis, after = result.partition("...")
        output = [*before, *(dots if ellipsis else ()), *after]
    if len(set(output)) < len(output) or not set(output) <= {c for term in labels for c in term}:
        raise GraphError(f"the result of {subscripts} has a letter twice, or an unknown letter")
    sizes: dict[Label, int] = {}
    for term, x in zip(labels, xs, strict=True):
        for c, n in zip(term, x.shape, strict=True):
            if n != sizes.setdefault(c, n) and isinstance(c, str) and 1 not in (n, sizes[c]):
                raise ShapeError(f"{c} is {sizes[c]} and {n}; equal letters have equal sizes")
            (sizes[c],) = broadcast_shapes((sizes[c],), (n,))
    x, term = xs[0], labels[0]
    for i in range(1, len(xs)):
        later = {c for later_term in labels[i + 1 :] for c in later_term}
        x, term = _product(x, term, xs[i], labels[i], later.union(output), sizes)
    x, term = _sum_over_others(x, term, output)
    return permute_dims(x, [term.index(c) for c in output])


def _parsed(subscripts: str) -> tuple[list[str], str | None]:
    """Return the terms of the operands, and of the result if it is given."""
    operands, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = operands.split(",")
    for term in (*terms, result):
        if set(term.replace("...", "", 1)) - set(string.ascii_letters):
            raise GraphError(
                f'subscripts is "{subscripts}"; it takes letters, ... and commas, then ->'
            )
    return terms, result if arrow else None


def _labels(term: str, x: Node) -> list[Label]:
    """Return the label of each axis of x."""
    before, dots, after = term.partition("...")
    named = len(before) + len(after)
    if named > x.ndim or (not dots and named < x.ndim):
        raise ShapeError(f'"{term}" does not fit shape {x.shape}')
    return [*before, *range(named - x.ndim, 0), *after]


def _diagonal(x: Node, term: list[Label]) -> tuple[Node, list[Label]]:
    """Return x with one axis for each label, and its term."""
    for c in [c for i, c in enumerate(term) if c in term[:i]]:
        i = term.index(c)
        j = term.index(c, i + 1)
        n, m = x.shape[i], x.shape[j]
        if n != m:
            raise ShapeError(f"{c} is {n} and {m}; equal letters have equal sizes")
        others = [a for a in range(x.ndim) if a not in (i, j)]
        x = permute_dims(x, [*others, i, j])
        x = reshape(x, (*x.shape[:-2], n * n))[..., :: n + 1]
        term = [*(term[a] for a in others), c]
    return x, term


def _sum_over_others(x: Node, term: list[Label], used: Iterable[Label]) -> tuple[Node, list[Label]]:
    """Return x summed over the labels that are not used later, and its remaining term."""
    axes = tuple(i for i, c in enumerate(term) if c not in used)
    if not axes:
        return x, term
    return Sum.of(widen(x), axes).astype(x.dtype), [c for c in term if c in used]


def _product(
    x: Node,
    x_term: list[Label],
    y: Node,
    y_term: list[Label],
    used: set[Label],
    sizes: dict[Label, int],
) -> tuple[Node, list[Label]]:
    """Return the product of two operands, summed over labels not used later, and its term."""
    x, x_term = _sum_over_others(x, x_term, used.union(y_term))
    y, y_term = _sum_over_others(y, y_term, used.union(x_term))
    both = [c for c in x_term if c in y_term]
    batch, summed = [c for c in both if c in used], [c for c in both if c not in used]
    rows = [c for c in x_term if c not in both]
    columns = [c for c in y_term if c not in both]
    x = broadcast_to(x, [sizes[c] for c in x_term])
    y = broadcast_to(y, [sizes[c] for c in y_term])
    x = permute_dims(x, [x_term.index(c) for c in batch + rows + summed])
    y = permute_dims(y, [y_term.index(c) for c in batch + summed + columns])
    shared, n, m, k = ([sizes[c] for c in labels] for labels in (batch, rows, columns, summed))
    if summed:
        x = reshape(x, (*shared, math.prod(n), math.prod(k)))
        y = reshape(y, (*shared, math.prod(k), math.prod(m)))
        z = matmul(x, y)
    else:
        z = reshape(x, (*shared, math.prod(n), 1)) * reshape(y, (*shared, 1, math.prod(m)))
    return reshape(z, (*shared, *n, *m)), batch + rows + columns
