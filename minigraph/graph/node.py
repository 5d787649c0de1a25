"""Ops and nodes: a node applies one op to other nodes.

A node has one result.  The few ops that compute several at once make a *bundle*, a node that only
`Item` nodes read; `Op.results` makes both.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from minigraph.errors import GraphError
from minigraph.graph.dtypes import Array, DType
from minigraph.graph.location import here, scope
from minigraph.graph.spec import Shape, Spec


class in_place_of:
    """A context: nodes made inside take the place of `node`, its source and turn in the order."""

    def __init__(self, node: Node) -> None:
        self.place = node.source, node.turn[0]

    def __enter__(self) -> None:
        self.old = scope.source, scope.turn
        scope.source, scope.turn = self.place

    def __exit__(self, *error: object) -> None:
        scope.source, scope.turn = self.old


class Op:
    """One kind of computation.  Subclasses are frozen dataclasses; their fields are the attributes.

    Equal ops compute the same function, so an op can be compared, hashed and printed, and needs no
    other identity.  A class is abstract (it has subclasses) or final.  See `minigraph.ops`.
    """

    name: ClassVar[str] = ""  # as in `mg.ops` and reports: the class's name in lower case
    commutative: ClassVar[bool] = False
    is_view: ClassVar[bool] = False  # `forward` may return a view of its first input
    keeps_order: ClassVar[bool] = False  # of the elements, row by row
    composed: ClassVar[bool] = False  # `expand` makes it of ops that kernels are generated of
    rounds_zeros: ClassVar[bool] = False  # a kernel may round sums all of whose terms are 0
    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        Op.registry[cls.__name__] = cls

    # Each op narrows these signatures to its own inputs; `*args: Any, **kwargs: Any` is how mypy is
    # told that any signature will do.

    def infer(self, *args: Any, **kwargs: Any) -> Spec | tuple[Spec, ...]:
        """infer(*input_specs): the result's spec, a tuple of them if there are several results.

        Raises ShapeError or DTypeError for inputs that do not fit.
        """
        raise NotImplementedError(f"{self.name} has no shape rule")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """forward(*inputs): the result (or tuple of results), with NumPy.  What the op means."""
        raise NotImplementedError(f"{self.name} has no meaning")

    def grad(self, *args: Any, **kwargs: Any) -> tuple[Node | None, ...]:
        """grad(dy, y, *inputs): for each input its gradient as a new node, None if it has none.

        For an op with several results `dy` and `y` are tuples, and `dy` holds None for a result
        that nothing reads; what has the broadcast result's shape is summed down by `mg.grad`.
        """
        raise NoGradient(f"{self.name} has no gradient")

    def expand(self, *args: Any, **kwargs: Any) -> tuple[Node, ...]:
        """expand(*inputs): the results, written with simpler ops.

        What an op without `grad` is differentiated by, and what a pass takes apart.
        """
        raise NoGradient(f"{self.name} has no gradient")

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...] | None:
        """For each axis of the result, the axis of the input x that it runs along.

        An axis of length 1, or along which x is repeated, runs along None.  For ops that only place
        elements; None for all others.
        """
        return None

    def __call__(self, *inputs: Node) -> Node:
        """Apply this op, which has one result, to nodes."""
        (result,) = self.results(*inputs)
        return result

    def results(self, *inputs: Node) -> tuple[Node, ...]:
        """Apply this op to nodes and return its results."""
        specs = self.infer(*(x.specs if x.is_bundle else x.spec for x in inputs))
        if isinstance(specs, Spec):
            return (Node(self, inputs, (specs,)),)
        bundle = Node(self, inputs, specs)
        return tuple(Node(Item(i), (bundle,), (spec,)) for i, spec in enumerate(specs))

    def __str__(self) -> str:
        attributes = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))  # type: ignore[arg-type]
        return self.name + (f"[{attributes}]" if attributes else "")


class NoGradient(GraphError):
    """Raised when a gradient is asked of an op that has none."""


@dataclass(frozen=True)
class Item(Op):
    """One of the results of a bundle."""

    index: int

    def infer(self, bundle: tuple[Spec, ...]) -> Spec:
        return bundle[self.index]

    def forward(self, bundle: tuple[Array, ...]) -> Array:
        return bundle[self.index]


@dataclass(frozen=True)
class Copy(Op):
    """The same elements in row-major order in memory; what lowering puts before a kernel."""

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        return x

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))

    def grad(self, dy: Node, y: Node, x: Node) -> tuple[Node]:
        return (dy,)


_count = itertools.count()


class Node:
    """An expression: the result of applying `op` to `inputs`.  Compared by identity.

    `==` between expressions is elementwise, as in NumPy, so inside minigraph `is` and identity
    dictionaries tell nodes apart.

    turn  orders nodes as they were made, so inputs come before their users; what a pass makes
          takes the turn of the node that it replaces
    """

    __slots__ = ("__weakref__", "inputs", "op", "source", "specs", "turn")
    __array_ufunc__ = None  # array + node is our __radd__

    operators: ClassVar[dict[str, Callable[..., Any]]] = {}  # filled by minigraph.ops

    def __init__(self, op: Op, inputs: tuple[Node, ...], specs: tuple[Spec, ...]) -> None:
        self.op = op
        self.inputs = inputs
        self.specs = specs
        self.source = here()
        count = next(_count)
        self.turn = (count if scope.turn is None else scope.turn, count)

    @property
    def is_bundle(self) -> bool:
        return len(self.specs) > 1

    @property
    def spec(self) -> Spec:
        (spec,) = self.specs
        return spec

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        return self.spec.size

    @property
    def name(self) -> str:
        """The name of an input or parameter; of another expression, the op's."""
        return self.op.name

    def replace(self, inputs: tuple[Node, ...]) -> Node:
        """Return this node with other inputs, or itself if they are the same nodes."""
        if len(inputs) == len(self.inputs) and all(map(operator.is_, inputs, self.inputs)):
            return self
        with in_place_of(self):
            return Node(self.op, inputs, self.specs)

    def __repr__(self) -> str:
        return f"{self.op}: {', '.join(map(str, self.specs))}"

    # Operators.  What they do stands in `minigraph.ops`, which this file may not import.

    def _apply(self, name: str, *args: Any, **kwargs: Any) -> Node:
        result: Node = self.operators[name](*args, **kwargs)
        return result

    def __add__(self, other: Any) -> Node:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Node:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Node:
        return self._apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Node:
        return self._apply("subtract", other, self)

    def __mul__(self, other: Any) -> Node:
        return self._apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Node:
        return self._apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Node:
        return self._apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return self._apply("divide", other, self)

    def __floordiv__(self, other: Any) -> Node:
        return self._apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Node:
        return self._apply("floor_divide", other, self)

    def __mod__(self, other: Any) -> Node:
        return self._apply("remainder", self, other)

    def __rmod__(self, other: Any) -> Node:
        return self._apply("remainder", other, self)

    def __pow__(self, other: Any) -> Node:
        return self._apply("pow", self, other)

    def __rpow__(self, other: Any) -> Node:
        return self._apply("pow", other, self)

    def __matmul__(self, other: Any) -> Node:
        return self._apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Node:
        return self._apply("matmul", other, self)

    def __and__(self, other: Any) -> Node:
        return self._apply("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Node:
        return self._apply("bitwise_and", other, self)

    def __or__(self, other: Any) -> Node:
        return self._apply("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Node:
        return self._apply("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Node:
        return self._apply("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Node:
        return self._apply("bitwise_xor", other, self)

    def __invert__(self) -> Node:
        return self._apply("bitwise_invert", self)

    def __neg__(self) -> Node:
        return self._apply("negative", self)

    def __pos__(self) -> Node:
        return self

    def __abs__(self) -> Node:
        return self._apply("abs", self)

    def __lt__(self, other: Any) -> Node:
        return self._apply("less", self, other)

    def __le__(self, other: Any) -> Node:
        return self._apply("less_equal", self, other)

    def __gt__(self, other: Any) -> Node:
        return self._apply("greater", self, other)

    def __ge__(self, other: Any) -> Node:
        return self._apply("greater_equal", self, other)

    def __eq__(self, other: Any) -> Node:  # type: ignore[override]
        return self._apply("equal", self, other)

    def __ne__(self, other: Any) -> Node:  # type: ignore[override]
        return self._apply("not_equal", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise GraphError(
            f"an expression has no truth value before it is computed ({self!r} {here()}); "
            "use ops.where, or `is` to compare expressions themselves"
        )

    def __getitem__(self, index: Any) -> Node:
        return self._apply("getitem", self, index)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an expression without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Node:
        return self._apply("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Node:
        return self._apply("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Node:
        return self._apply("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Node:
        return self._apply("min", self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Node:
        return self._apply("prod", self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Node:
        return self._apply("reshape", self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Node:
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return self._apply("permute_dims", self, order or tuple(reversed(range(self.ndim))))

    @property
    def T(self) -> Node:
        return self.transpose()

    def astype(self, dtype: Any) -> Node:
        return self._apply("astype", self, dtype)
