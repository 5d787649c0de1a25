"""Ops that round to integers: down, up, towards 0, and to the nearest."""

from __future__ import annotations

import numpy as np

from minigraph.graph import Array, zero_gradient
from minigraph.ops.elementwise import Elementwise, kind


class Rounding(Elementwise):
    """To an integral value of the same dtype; integers stay as they are."""

    c_int = "{0}"
    grad = zero_gradient


class Floor(Rounding):
    """The largest integer not above x.

    >>> cg.compile([], ops.floor([1.2, -1.2]))()
    array([ 1., -2.])
    """

    c = "floor{f}({0})"
    forward = np.floor


class Ceil(Rounding):
    """The smallest integer not below x.

    >>> cg.compile([], ops.ceil([1.2, -1.2]))()
    array([ 2., -1.])
    """

    c = "ceil{f}({0})"
    forward = np.ceil


class Trunc(Rounding):
    """The integer next to x in the direction of zero.

    >>> cg.compile([], ops.trunc([1.7, -1.7]))()
    array([ 1., -1.])
    """

    c = "trunc{f}({0})"
    forward = np.trunc


class Round(Rounding):
    """The nearest integer, the even one of two.

    >>> cg.compile([], ops.round([0.5, 1.5, 2.4]))()
    array([0., 2., 2.])
    """

    c = "rint{f}({0})"

    def forward(self, x: Array) -> Array:
        return np.rint(x) if kind(x.dtype) == "f" else x
