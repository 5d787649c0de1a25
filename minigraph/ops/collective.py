"""Ops on the arrays of all processes of a world: each process passes its own x.

Each process differentiates its own loss, and gradients are those of the sum of all these losses.
Shapes and dtypes are the same in all processes.  In a world of one process the functions return x.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from minigraph.arguments import Axis, Size
from minigraph.distributed.world import Processes, World
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Node, Op, Spec, Tensor, builder, in_place_of
from minigraph.ops.elementwise import kind, widen
from minigraph.ops.joining import swapaxes
from minigraph.ops.shape import normalize_axis

MAX_MESSAGE_BYTES = 2**31 - 1  # bytes: MPI counts in C's int


class Collective(Op):
    """A communication of all processes of a world, which execute collectives in the same order.

    combines  the reduction over processes, "sum" or "max"; "" if the op reduces nothing
    """

    world: World

    combines = ""

    def pending_spec(self, x: Spec) -> Spec:
        """Return the spec of MPI's buffer, in which the result comes first."""
        result = self.infer(x)
        assert isinstance(result, Spec)
        return result


def _check_bytes(x: Spec) -> Spec:
    if x.nbytes > MAX_MESSAGE_BYTES:
        raise ShapeError(
            f"{x} has {x.nbytes} bytes; processes exchange at most {MAX_MESSAGE_BYTES} at once"
        )
    return x


class AllReduce(Collective):
    """The sum or the maximum of the x of all processes, elementwise; all get the same bits.

    combines  "sum" or "max", in which NaN wins
    gradient  the name of the parameter whose gradient x is; "" if it is none
    """

    combines: str
    gradient: str = ""

    def infer(self, x: Spec) -> Spec:
        if kind(x.dtype) not in "fiu":
            raise DTypeError(f"all_reduce takes numbers, not {x.dtype.name}; see `astype`")
        return _check_bytes(x)

    def forward(self, x: Array) -> Array:
        combine = {"sum": np.add, "max": np.maximum}[self.combines]
        parts = self.world.gather_arrays(widen(x), self.name)
        return np.asarray(functools.reduce(combine, parts)).astype(x.dtype)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        total = AllReduce(self.world, "sum")
        if self.combines == "sum":
            return (total(dy),)
        is_max = (x == y).astype(x.dtype)  # equal elements share the gradient
        return (total(dy) * is_max / total(is_max),)


class Broadcast(Collective):
    """The x of process `root`."""

    root: int

    def infer(self, x: Spec) -> Spec:
        return _check_bytes(x)

    def forward(self, x: Array) -> Array:
        return self.world.gather_arrays(x, self.name)[self.root]

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (Reduce(self.world, self.root)(dy),)


class Reduce(Collective):
    """The sum of the x of all processes in process `root`, zeros in the others."""

    root: int
    combines = "sum"

    def infer(self, x: Spec) -> Spec:
        return AllReduce(self.world, "sum").infer(x)

    def forward(self, x: Array) -> Array:
        total = AllReduce(self.world, "sum").forward(x)
        return total if self.world.rank == self.root else np.zeros_like(total)

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (Broadcast(self.world, self.root)(dy),)


class AllGather(Collective):
    """The x of all processes one after the other, along the first axis."""

    def infer(self, x: Spec) -> Spec:
        if not x.shape:
            raise ShapeError("all_gather takes arrays with an axis; see `expand_dims`")
        return _check_bytes(Spec((self.world.size * x.shape[0], *x.shape[1:]), x.dtype))

    def forward(self, x: Array) -> Array:
        return np.concatenate(self.world.gather_arrays(x, self.name))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (ReduceScatter(self.world)(dy),)


class ReduceScatter(Collective):
    """This process's part, along the first axis, of the sum of the x of all processes."""

    combines = "sum"

    def infer(self, x: Spec) -> Spec:
        AllReduce(self.world, "sum").infer(x)
        return Spec((x.shape[0] // self.world.size, *x.shape[1:]), x.dtype)

    def pending_spec(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        total = AllReduce(self.world, "sum").forward(x)
        return np.split(total, self.world.size)[self.world.rank]

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (AllGather(self.world)(dy),)


@builder
def all_reduce(x: Tensor, world: Processes, op: Literal["sum", "mean", "max"] = "sum") -> Node:
    """Return the sum, mean or maximum of the x of all processes, elementwise.

    All processes get the same bits.  In a maximum NaN wins, and equal elements share the gradient.

    >>> x = mg.input("x", (2,))
    >>> total = cg.compile([x], ops.all_reduce(x, mg.distributed.world()))  # of one process here
    >>> total([1.0, 2.0])
    array([1., 2.], dtype=float32)
    """
    if op == "mean" and kind(x.dtype) != "f":
        raise DTypeError(f"the mean is of floats, not {x.dtype.name}; see `astype`")
    total = _communicate(AllReduce(world, "max" if op == "max" else "sum"), x)
    return total / world.size if op == "mean" and world.size > 1 else total


@builder
def broadcast(x: Tensor, world: Processes, root: Size = 0) -> Node:
    """Return the x of process `root`; its gradient is the sum of those of all processes.

    >>> cg.compile([], ops.broadcast([1.0, 2.0], mg.distributed.world(), root=0))()
    array([1., 2.])
    """
    if root >= world.size:
        raise GraphError(f"root is {root}; it takes a rank from 0 to {world.size - 1}")
    return _communicate(Broadcast(world, root), x)


@builder
def all_gather(x: Tensor, world: Processes, axis: Axis = 0) -> Node:
    """Return the x of all processes joined along `axis`, in the order of their ranks.

    >>> cg.compile([], ops.all_gather([[1.0], [2.0]], mg.distributed.world(), axis=1))()
    array([[1.],
           [2.]])
    """
    a = normalize_axis(axis, x.ndim)
    return swapaxes(_communicate(AllGather(world), swapaxes(x, 0, a)), 0, a)


def mean_gradient(gradient: Node, world: World, name: str) -> Node:
    """Return the mean of all processes' gradients of the parameter with this name."""
    if world.size == 1:
        return gradient
    with in_place_of(gradient):  # it is sent while others are computed
        return AllReduce(world, "sum", name)(gradient) / world.size


def _communicate(op: Collective, x: Node) -> Node:
    """Return the op's result for x, which is x itself in a world of one process."""
    result = op(x)  # raises the op's errors in every world
    return result if op.world.size > 1 else x
