"""Images and sequences (n, c, ...) of another size, as `torch.nn.functional.interpolate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from minigraph.arguments import NUMBER, Kind, sizes, with_predicate
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Array,
    DType,
    IndexRange,
    Node,
    Op,
    Shape,
    Spec,
    SymbolicSize,
    Tensor,
    UndecidedSize,
    builder,
    from_sizes,
    sizes_around,
)
from minigraph.ops.elementwise import astype, kind, sum_dtype, widen
from minigraph.ops.indexing import Take, check_range
from minigraph.ops.padding import INT64, MAX_LISTED_ELEMENTS
from minigraph.symbolic import assuming_large

INT32 = np.dtype(np.int32)


class Blend(Op):
    """Along `axis`, x at `low` times 1 - share plus x at `high` times share.

    low, high  int32 vectors of indices >= 0
    share      as long, in x's dtype or in float32 if that is wider
    """

    axis: int

    def infer(self, x: Spec, low: Spec, high: Spec, share: Spec) -> Spec:
        if not low.shape == high.shape == share.shape or len(share.shape) != 1:
            raise ShapeError("indices and shares are vectors of one length")
        has_indices = {low.dtype, high.dtype} == {INT32}
        has_shares = share.dtype in (x.dtype, _wide(x.dtype))
        if kind(x.dtype) != "f" or not has_indices or not has_shares:
            raise DTypeError("x and the shares are of one float dtype, and the indices are int32")
        a = self.axis
        return Spec((*x.shape[:a], *share.shape, *x.shape[a + 1 :]), x.dtype)

    def forward(self, x: Array, low: Array, high: Array, share: Array) -> Array:
        for operand, indices in enumerate((low, high), 1):
            check_range(indices, IndexRange(operand, 0, x.shape[self.axis]), "index")
        wide, share = widen(x), _along_axis(widen(share), x.ndim - self.axis)
        below, above = np.take(wide, low, self.axis), np.take(wide, high, self.axis)
        return (below * (1 - share) + above * share).astype(x.dtype)

    def grad(
        self, dy: Node, y: Node, x: Node, low: Node, high: Node, share: Node
    ) -> tuple[Node | None, ...]:
        dx = BlendBackward(self.axis, x.shape[self.axis])(dy, low, high, share)
        return dx, None, None, _gradient_of_shares(dy, x, low, high, share, self.axis)


class BlendBackward(Op):
    """The gradient of a blend for its input, which has `size` elements along `axis`."""

    axis: int
    size: int

    def infer(self, dy: Spec, low: Spec, high: Spec, share: Spec) -> Spec:
        a = self.axis
        dx = Spec((*dy.shape[:a], self.size, *dy.shape[a + 1 :]), dy.dtype)
        if Blend(a).infer(dx, low, high, share) != dy:
            raise ShapeError(f"dy has shape {dy.shape} for {share.shape} shares")
        return dx

    def forward(self, dy: Array, low: Array, high: Array, share: Array) -> Array:
        wide, share = widen(dy), _along_axis(widen(share), dy.ndim - self.axis)
        outer, count, columns = sizes_around(dy.shape, self.axis)
        parts = np.stack([wide * (1 - share), wide * share], self.axis + 1)
        parts = parts.reshape(outer, 2 * count, columns).swapaxes(0, 1)
        dx = np.zeros((self.size, outer, columns), sum_dtype(dy.dtype))
        np.add.at(dx, np.stack([low, high], 1).reshape(-1), parts)
        shape = (*dy.shape[: self.axis], self.size, *dy.shape[self.axis + 1 :])
        return dx.swapaxes(0, 1).reshape(shape).astype(dy.dtype)

    def grad(
        self, ddx: Node, dx: Node, dy: Node, low: Node, high: Node, share: Node
    ) -> tuple[Node | None, ...]:
        ddy = Blend(self.axis)(ddx, low, high, share)
        return ddy, None, None, _gradient_of_shares(dy, ddx, low, high, share, self.axis)


def _gradient_of_shares(dy: Node, x: Node, low: Node, high: Node, share: Node, axis: int) -> Node:
    """Return the gradient for the shares of a blend of x with the gradient dy."""
    slope = dy * (Take(axis)(x, high) - Take(axis)(x, low))
    return astype(slope.sum([a for a in range(x.ndim) if a != axis]), share.dtype)


def _wide(dtype: DType) -> DType:
    return np.promote_types(dtype, np.float32)


def _along_axis(share: Array, axes: int) -> Array:
    return share.reshape(-1, *(1,) * (axes - 1))


def _factors(value: Any) -> tuple[float, ...]:
    several = isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
    return tuple(map(FACTOR, value if several else [value]))


def _fit(sizes: Sequence[int]) -> bool:
    """Return whether each size is symbolic (checked at the call) or 1 to MAX_LISTED_ELEMENTS."""
    return all(isinstance(n, SymbolicSize) or 0 < n <= MAX_LISTED_ELEMENTS for n in sizes)


FACTOR = with_predicate(lambda factor: 0 < factor < MAX_LISTED_ELEMENTS, NUMBER.parse)
FACTORS = Annotated[Any, Kind("numbers > 0, one for all axes or for each", _factors, ShapeError)]
SIZES_DESCRIPTION = f"integers from 1 to {MAX_LISTED_ELEMENTS}, one for all axes or each"
SIZES = Annotated[Any, Kind(SIZES_DESCRIPTION, with_predicate(_fit, sizes), ShapeError)]
Mode = Literal["nearest", "linear", "bilinear", "trilinear"]
LINEAR = ("linear", "bilinear", "trilinear")  # for one axis, two and three


@builder
def interpolate(
    x: Tensor,
    size: SIZES | None = None,
    scale_factor: FACTORS | None = None,
    mode: Mode = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Node:
    """Return x (n, c, ...) with its last axes resized, as `torch.nn.functional.interpolate` does.

    size, scale_factor      one of them: the new sizes, or their ratios to the old, rounded down
    mode                    "nearest": the element that covers the position; "linear" for sequences,
                            "bilinear" for images, "trilinear" for volumes: the nearest elements on
                            both sides, weighted by distance
    align_corners           whether the centres of the outermost elements coincide, not their edges;
                            None means False.  Not for "nearest"
    recompute_scale_factor  whether the ratio of the sizes replaces scale_factor for distances

    >>> cg.compile([], ops.interpolate([[[1.0, 2.0]]], scale_factor=2))()
    array([[[1., 1., 2., 2.]]])
    """
    _check(x, mode, align_corners)
    old, dtype = x.shape[2:], x.dtype
    new, factors = _targets(old, size, scale_factor, bool(recompute_scale_factor))
    with assuming_large():
        shrinks = math.prod(new) < math.prod(old)
    # Resizing the innermost axis takes longest, so it comes when there are fewer rows.
    for axis in range(2, x.ndim) if shrinks else range(x.ndim - 1, 1, -1):
        n, m, factor = old[axis - 2], new[axis - 2], factors[axis - 2]
        if n == m and factor in (None, 1):
            continue
        if mode == "nearest":
            real = _wide(dtype) if kind(dtype) == "f" else np.dtype(np.float32)
            arguments: tuple[Any, ...] = (n, m, factor, real)
            x = Take(axis)(x, from_sizes("interpolate", _nearest, arguments, (m,), INT64))
        else:
            arguments = (n, m, factor, bool(align_corners))
            operands = ((_below, INT32), (_above, INT32), (_share, _wide(dtype)))
            x = Blend(axis)(
                x, *(from_sizes("interpolate", fn, arguments, (m,), d) for fn, d in operands)
            )
    return x


def _targets(
    old: Shape, size: Any, scale_factor: Any, by_sizes: bool
) -> tuple[list[int], Sequence[float | None]]:
    """Return the new size and the scale factor of each axis; None: the ratio of the sizes."""
    if (size is None) == (scale_factor is None):
        raise ShapeError("give either size or scale_factor")
    factors = size if scale_factor is None else scale_factor
    if len(factors) not in (1, len(old)):
        raise ShapeError(f"{factors} is neither one number nor {len(old)}, one for each axis")
    factors = factors * len(old) if len(factors) == 1 else factors
    new = list(factors)
    if scale_factor is not None:
        new = [_scale_size(n, factor) for n, factor in zip(old, factors, strict=True)]
    if not _fit((*old, *new)):
        raise ShapeError(
            f"axes of {[*old]} would have {new} elements; they take 1 to {MAX_LISTED_ELEMENTS}"
        )
    if size is not None or by_sizes:
        return new, [None] * len(old)
    return new, factors


def _scale_size(n: int, factor: float) -> int:
    """Return n times a factor, rounded down."""
    if not isinstance(n, SymbolicSize):
        return math.floor(n * factor)
    if float(factor).is_integer():
        return n * int(factor)
    above, below = float(factor).as_integer_ratio()
    if above > 1:
        raise UndecidedSize(
            f"{factor:g} times the size {n} is known only when the function is called; "
            "a scale_factor that is an integer, or 0.5, 0.25 and so on, gives a size"
        )
    return n // below


def _check(x: Node, mode: str, align_corners: bool | None) -> None:
    """Raise an error if x does not have the axes or the type that the mode takes."""
    if not 3 <= x.ndim <= 5:
        raise ShapeError(f"the input is (n, c, ...) with one to three axes more, not {x.shape}")
    if mode == "nearest":
        if align_corners is not None:
            raise GraphError("mode 'nearest' takes no align_corners")
        return
    if mode != LINEAR[x.ndim - 3]:
        raise ShapeError(f"of {x.ndim} axes, mode {LINEAR[x.ndim - 3]!r} is linear, not {mode!r}")
    if kind(x.dtype) != "f":
        raise DTypeError(f"a mean of {x.dtype.name}; convert to a float dtype first")


def _step(n: int, size: int, factor: float | None) -> float:
    """Return the distance in x between neighbours of the result; ShapeError for an empty axis."""
    if n < 1 or size < 1:
        raise ShapeError(f"an axis of {n} would have {size} elements")
    return n / size if factor is None else 1 / factor


def _nearest(n: int, size: int, factor: float | None, real: DType) -> Array:
    """Return the indices, computed in torch's precision: rounding decides between neighbours."""
    step = real.type(_step(n, size, factor))
    return np.minimum(np.floor(np.arange(size).astype(real) * step).astype(np.int64), n - 1)


def _positions(n: int, size: int, factor: float | None, align_corners: bool) -> Array:
    """Return where in x, in elements, each element of the result lies."""
    step = _step(n, size, factor)
    if align_corners:
        return np.arange(size) * ((n - 1) / max(size - 1, 1))
    return np.maximum((np.arange(size) + 0.5) * step - 0.5, 0)


def _below(n: int, *args: Any) -> Array:
    return np.minimum(np.floor(_positions(n, *args)), n - 1)


def _above(n: int, *args: Any) -> Array:
    return np.minimum(_below(n, *args) + 1, n - 1)


def _share(n: int, *args: Any) -> Array:
    return np.minimum(_positions(n, *args) - _below(n, *args), 1)
