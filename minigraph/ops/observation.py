"""Ops that look at a value in each call and pass it on: checks, and printing.

They run in every call of a function whose results or updates depend on what they return; nothing
else keeps them.  No pass takes them away, so a value that only other functions use is not looked
at.  A gradient flows through them as if they were not there.
"""

from __future__ import annotations

import builtins

import numpy as np

from minigraph.errors import DTypeError, GraphError
from minigraph.graph import BOOL, Array, Node, Op, Spec, Tensor, builder, gradients
from minigraph.ops.random import STEP

SHOWN = 100  # elements that are printed; of more, the first and last along each axis


class Check(Op):
    """x, once every element of `condition` is found to be true; GraphError at the call if not."""

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
            wrong = condition.size - int(condition.sum())
            raise GraphError(
                f"{self.message} ({wrong} of {condition.size} elements are false{first})"
            )
        return x.copy()


class Print(Op):
    """x, which is printed.  The number of the call keeps it from being computed beforehand."""

    label: str
    grad = gradients(lambda dy, y, x, call: (dy, None))

    def infer(self, x: Spec, call: Spec) -> Spec:
        return x

    def forward(self, x: Array, call: Array) -> Array:
        text = np.array2string(x, threshold=SHOWN)
        separator = "\n" if "\n" in text else " "
        builtins.print(f"{self.label}, call {int(call)}:{separator}{text}", flush=True)
        return x.copy()


@builder
def check(x: Tensor, message: str, value: Tensor | None = None) -> Node:
    """Return `value`, or x itself, and raise GraphError in a call in which x is not all true.

    x        bools of any shape, such as `variance > 0`
    message  what the error says, with the number of elements that are false, layer and line

    The check runs if something that a function returns or updates depends on what `check` returns,
    so give it the value that needs the condition: `y = check(x > 0, "x is positive", ops.log(x))`.
    It runs at every level, also where passes have rewritten all around it.  A call that raises
    leaves the parameters unchanged.  On CUDA the condition is copied to the host and looked at
    within the call, which waits for it.

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

    It prints if something that a function returns or updates depends on what it returns; equal
    prints of the same value are one.  Values are printed as they are computed: what another one
    depends on first, else in the order in which the expressions were made.  `profile` prints once a
    call, a negative level prints for level 0, too.  Large arrays are abridged.

    >>> x = mg.input("x", (2,))
    >>> ops.print(x * 2, "doubled").shape
    (2,)
    """
    return Print(label or x.source.brief)(x, STEP)
