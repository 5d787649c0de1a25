"""Complex tensors, as pairs of real expressions: the rows of ATen's operators for them.

The gradients for both parts are those of PyTorch, which defines the gradient of a real loss as
its derivative by the real part plus i times that by the imaginary part.  Parameters, their
gradients and the states of optimizers have both parts along a last axis, as `torch.view_as_real`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Node
from minigraph.ops.fourier import fourier_transform
from minigraph.torch.operators import ROWS, Row


@dataclass(frozen=True, eq=False)
class Complex:
    """The real and the imaginary parts of complex numbers: expressions, or two floats."""

    real: Any
    imag: Any

    def map(self, function: Callable[[Any], Any]) -> Complex:
        return Complex(function(self.real), function(self.imag))


def from_pairs(x: Node) -> Complex:
    """Return the complex numbers whose parts lie along the last axis of x."""
    return Complex(x[..., 0], x[..., 1])


def is_complex(node: torch.fx.Node) -> bool:
    """Return whether the result or an operand of a node is a complex tensor or number."""
    values = [node.meta.get("val"), *(x.meta.get("val") for x in node.all_input_nodes), *node.args]
    return any(
        isinstance(x, complex) or (isinstance(x, torch.Tensor) and x.is_complex())
        for x in pytree.tree_leaves(values)
    )


def _as_complex(x: Any) -> Complex:
    """Return a real or complex operand as complex numbers."""
    if isinstance(x, Node):
        return Complex(x, ops.zeros_like(x))
    return x if isinstance(x, Complex) else Complex(complex(x).real, complex(x).imag)


def _part(x: Any, name: str) -> Any:
    """Return a part of an argument; indices and the like are the same for both."""
    if isinstance(x, Node) and x.dtype in FLOATS:
        x = _as_complex(x)
    return getattr(x, name) if isinstance(x, Complex) else x


def _by_parts(name: str) -> Row:
    """Return the row of an operator that computes both parts alike."""

    def compute(*args: Any, **keywords: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, keywords))
        results = []
        for part in ("real", "imag"):
            these = [_part(x, part) for x in leaves]
            positional, named = pytree.tree_unflatten(these, structure)
            results.append(ROWS[name](*positional, **named))
        real, imag = results
        if isinstance(real, list | tuple):
            return [Complex(*pair) for pair in zip(real, imag, strict=True)]
        return Complex(real, imag)

    return compute


def _sum(name: str) -> Row:
    def compute(x: Any, y: Any, alpha: Any = 1) -> Complex:
        return _by_parts(name)(_as_complex(x), _as_complex(y), alpha=alpha)

    return compute


def _product(multiply: Callable[[Any, Any], Any], x: Any, y: Any) -> Complex:
    """Return a bilinear function of x and y, at least one of which is complex."""
    x, y = (_as_complex(each) if isinstance(each, complex) else each for each in (x, y))
    if not isinstance(x, Complex):
        return y.map(functools.partial(multiply, x))
    if not isinstance(y, Complex):
        return x.map(lambda part: multiply(part, y))
    return Complex(
        multiply(x.real, y.real) - multiply(x.imag, y.imag),
        multiply(x.real, y.imag) + multiply(x.imag, y.real),
    )


def _bilinear(name: str) -> Row:
    return lambda x, y: _product(ROWS[name], x, y)


def _multiply(x: Any, y: Any) -> Complex:
    return _product(lambda a, b: a * b, x, y)


def _divide(x: Any, y: Any) -> Complex:
    if not isinstance(y, Complex | complex):
        return x.map(lambda part: part / y)
    y = _as_complex(y)
    square = y.real * y.real + y.imag * y.imag
    return _multiply(x, Complex(y.real / square, -y.imag / square))


def _einsum(equation: str, operands: Sequence[Any], path: Any = None) -> Complex:
    if len(operands) != 2:
        raise GraphError("einsum of complex tensors takes two operands")
    multiply = ROWS["aten.einsum.default"]
    return _product(lambda x, y: multiply(equation, [x, y]), *operands)


def _linear(x: Any, weight: Any, bias: Any = None) -> Complex:
    y = _product(ops.linear, x, weight)
    return y if bias is None else _sum("aten.add.Tensor")(y, bias)


def _power(x: Complex, exponent: Any) -> Complex:
    if exponent not in range(1, 9):
        raise GraphError(f"complex numbers to the power {exponent} are not supported")
    return functools.reduce(_multiply, [x] * int(exponent))


def _exp(x: Complex) -> Complex:
    return _polar(ops.exp(x.real), x.imag)


def _polar(radius: Node, angle: Node) -> Complex:
    return Complex(radius * ops.cos(angle), radius * ops.sin(angle))


def _pad(x: Complex, widths: Sequence[Any], value: Any = 0) -> Complex:
    pad, border = ROWS["aten.constant_pad_nd.default"], _as_complex(value)
    return Complex(pad(x.real, widths, border.real), pad(x.imag, widths, border.imag))


def _full(x: Any, value: Any, **unused: Any) -> Complex:
    """Return numbers of the shape of x, or of the sizes x."""
    shape = x.real.shape if isinstance(x, Complex) else tuple(x)
    return _as_complex(value).map(lambda part: ops.full(shape, part, "float64"))


# ---------------------------------------------------------------- Fourier transforms


def _transform(
    x: Any, axes: Sequence[int], norm: int, forward: bool, onesided: bool = False
) -> Complex:
    """Return the transform along all axes; with `onesided` of the last one, half of it.

    norm  0, 1 or 2: sums are divided by the size, to the power norm / 2
    """
    parts = [x.real, x.imag] if isinstance(x, Complex) else [x]
    for axis in reversed(axes):
        size = parts[0].shape[axis]
        parts = fourier_transform(
            parts, axis, size, inverse=not forward, onesided=onesided, scale=size ** (-norm / 2)
        )
        onesided = False
    return Complex(*parts)


def _transform_real(x: Node, axes: Sequence[int], norm: int, onesided: bool) -> Complex:
    return _transform(x, axes, norm, True, onesided)


def _transform_to_real(x: Complex, axes: Sequence[int], norm: int, size: int) -> Node:
    *others, last = axes
    x = _transform(x, others, norm, False)
    (real,) = fourier_transform(
        [x.real, x.imag], last, size, inverse=True, onesided=True, scale=size ** (-norm / 2)
    )
    return real


# ---------------------------------------------------------------- the table

BY_PARTS = """
    alias.default cat.default clone.default copy.default cumsum.default
    detach.default diagonal.default expand.default flip.default gather.default index.Tensor
    index_put.default index_select.default lift_fresh_copy.default mean.default mean.dim
    neg.default permute.default repeat.default roll.default select.int slice.Tensor
    slice_scatter.default split_with_sizes.default squeeze.default squeeze.dim squeeze.dims
    stack.default sum.default sum.dim_IntList tril.default triu.default unbind.int
    unsqueeze.default view.default where.self
"""
BILINEAR = "mm bmm mv dot outer matmul"
COMPLEX_ROWS: dict[str, Row] = {
    **{f"aten.{name}": _by_parts(f"aten.{name}") for name in BY_PARTS.split()},
    **{f"aten.{name}": _sum(f"aten.{name}") for name in ("add.Tensor", "sub.Tensor")},
    **{f"aten.{name}.default": _bilinear(f"aten.{name}.default") for name in BILINEAR.split()},
    "aten.mul.Tensor": _multiply,
    "aten.div.Tensor": _divide,
    "aten.reciprocal.default": lambda x: _divide(1.0, x),
    "aten.pow.Tensor_Scalar": _power,
    "aten.einsum.default": _einsum,
    "aten.linear.default": _linear,
    "aten.exp.default": _exp,
    "aten.abs.default": lambda x: ops.hypot(x.real, x.imag),
    "aten.angle.default": lambda x: ops.atan2(x.imag, x.real),
    "aten.polar.default": _polar,
    "aten.complex.default": Complex,
    "aten._conj.default": lambda x: Complex(x.real, -x.imag),
    "aten.view_as_complex.default": from_pairs,
    "aten.view_as_real.default": lambda x: ops.stack([x.real, x.imag], -1),
    "aten._to_copy.default": lambda x, **unused: _as_complex(x),
    "aten.constant_pad_nd.default": _pad,
    "aten.full.default": _full,
    "aten.full_like.default": _full,
    "aten._fft_c2c.default": _transform,
    "aten._fft_r2c.default": _transform_real,
    "aten._fft_c2r.default": _transform_to_real,
}
