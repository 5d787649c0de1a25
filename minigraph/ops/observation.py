"""Ops that observe a value in each call and return it: checks, and printing.

They run in each call of a function whose results or updates depend on what they return; passes do
not remove them.  Their gradient is that of the identity.
"""

from __future__ import annotations

import builtins

import numpy as np

from minigraph.errors import DTypeError, GraphError
from minigraph.graph import BOOL, Array, Node, Op, Spec, Tensor, builder, gradients
from minigraph.ops.random import STEP
from minigraph.ops.shape import Alike

MAX_SHOWN_ELEMENTS = 100  # of larger arrays, the first and last along each axis are printed


class Check(Op):
    """x; a GraphError at the call if an element of `condition` is false."""

    message: str
    grad = gradients(lambda dy, y, x, condition: (dy, None))

    def infer(self, x: Spec, condition: Spec) -> Spec:
        if condition.dtype != BOOL:
            raise DTypeError(f"a condition is bool, as in x > 0, not {condition.dtype.name}")
        return x

    def forward(self, x: Array, condition: Array) -> Array:
        if not condition.all():
            at = tuple(map(int, np.unravel_index(int(condition.argmin()), condition.shape)))
            first = f", the first at {at}" if at else ""
            count = condition.size - int(condition.sum())
            raise GraphError(
                f"{self.message} ({count} of {condition.size} elements are false{first})"
            )
        return x.copy()


class Print(Alike):
    """x, which is printed.  The input `call` keeps constant folding from computing it."""

    label: str
    grad = gradients(lambda dy, y, x, call: (dy, None))

    def forward(self, x: Array, call: Array) -> Array:
        text = np.array2string(x, threshold=MAX_SHOWN_ELEMENTS)
        separator = "\n" if "\n" in text else " "
        builtins.print(f"{self.label}, call {int(call)}:{separator}{text}", flush=True)
        return x.copy()


@builder
def check(x: Tensor, message: str, value: Tensor | None = None) -> Node:
    """Return `value`, or x itself, and raise GraphError in a call in which x is not all true.

    x        bools of any shape, such as `variance > 0`
    message  of the error, which adds the number of false elements, the layer and the line

    The check runs if a result or update of the function depends on what `check` returns, so pass
    the value that needs the condition: `y = check(x > 0, "x is positive", ops.log(x))`.  It runs
    at every level.  A call that raises leaves the parameters unchanged.  On CUDA each call copies
    the condition to the host, and waits for it.

    >>> x = mg.input("x", (2,))
    >>> root = cg.compile([x], ops.check(x >= 0, "x is not negative", ops.sqrt(x)))
    >>> root([1.0, 4.0])
    array([1., 2.], dtype=float32)
    """
    return Check(message)(x if value is None else value, x)


@builder
def print(x: Tensor, label: str = "") -> Node:
    """Return x, and print it in each call: label, number of the call, elements.

    label  by default the user's line

    It prints if a result or update of the function depends on what it returns; equal prints of the
    same value are merged.  Values are printed as they are computed: dependencies first, then in the
    order of creation.  `profile` prints in each of its calls, and a negative level prints for level
    0, too.  Large arrays are abridged.

    >>> x = mg.input("x", (2,))
    >>> ops.print(x * 2, "doubled").shape
    (2,)
    """
    return Print(label or x.source.brief)(x, STEP)
