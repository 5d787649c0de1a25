"""Borders around images and sequences, as in `torch.nn`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from minigraph import ops
from minigraph.arguments import Kind, integers
from minigraph.errors import ShapeError
from minigraph.graph import Node, as_node
from minigraph.nn.layer import layer_of
from minigraph.nn.module import Module
from minigraph.ops.padding import Mode


def _border(axes: int) -> Kind:
    """Return the kind of widths of a border: one for all sides, or as torch orders them."""

    def parse(value: Any) -> tuple[int, ...]:
        widths = integers(value)
        if len(widths) == 1 and not isinstance(value, list | tuple):
            widths *= 2 * axes
        if len(widths) != 2 * axes or min(widths) < 0:
            raise ValueError
        return widths

    sides = "left, right, top, bottom"[: 11 if axes == 1 else None]
    return Kind(f"an integer >= 0 or {2 * axes} of them ({sides})", parse, ShapeError)


class Border(Module):
    """x (n, c, ...) with a border around its last axes.

    padding  the width of the border on all sides, or on each, those of the last axis first
    """

    axes: ClassVar[int]
    mode: ClassVar[Mode]
    padding: Any

    _repr_format = "{padding}"

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim != self.axes + 2:
            layout = "(n, c, length)" if self.axes == 1 else "(n, c, h, w)"
            raise ShapeError(f"the input is {layout}, not {x.shape}")
        sides = list(zip(self.padding[::2], self.padding[1::2], strict=True))[::-1]
        value = getattr(self, "value", 0.0)  # no class attribute, which would be its default
        return ops.pad(x, ((0, 0), (0, 0), *sides), value, mode=self.mode)


@layer_of()
class Border1d(Border):
    padding: Annotated[Any, _border(1)]

    axes = 1


@layer_of()
class Border2d(Border):
    padding: Annotated[Any, _border(2)]

    axes = 2


@layer_of()
class ReflectionPad1d(Border1d):
    """Sequences (n, c, length) with a border that mirrors them at their first and last element.

    >>> x = mg.input("x", (1, 1, 3))
    >>> cg.compile([x], nn.ReflectionPad1d(2)(x))([[[1.0, 2.0, 3.0]]])
    array([[[3., 2., 1., 2., 3., 2., 1.]]], dtype=float32)
    """

    mode = "reflect"


@layer_of()
class ReflectionPad2d(Border2d):
    """Images (n, c, h, w) with a border that mirrors them at their outermost pixels.

    >>> nn.ReflectionPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "reflect"


@layer_of()
class ReplicationPad1d(Border1d):
    """Sequences (n, c, length) with a border of their first and last element.

    >>> x = mg.input("x", (1, 1, 3))
    >>> cg.compile([x], nn.ReplicationPad1d(2)(x))([[[1.0, 2.0, 3.0]]])
    array([[[1., 1., 1., 2., 3., 3., 3.]]], dtype=float32)
    """

    mode = "replicate"


@layer_of()
class ReplicationPad2d(Border2d):
    """Images (n, c, h, w) with a border of their outermost pixels.

    >>> nn.ReplicationPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "replicate"


@layer_of()
class CircularPad2d(Border2d):
    """Images (n, c, h, w) with a border that goes on at their other side.

    >>> nn.CircularPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "circular"


@layer_of()
class ZeroPad2d(Border2d):
    """Images (n, c, h, w) with a border of zeros.

    >>> nn.ZeroPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "constant"


@layer_of()
class ConstantPad2d(Border2d):
    """Images (n, c, h, w) with a border of `value`.

    >>> nn.ConstantPad2d((1, 2, 0, 0), 0.5)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 32, 35)
    """

    value: float

    mode = "constant"
    _repr_format = "padding={padding}, value={value}"
