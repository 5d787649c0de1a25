"""The intermediate representation: ops, nodes and graphs.

A graph is a set of immutable nodes reachable from its outputs.  A node applies one op to other
nodes; nothing is changed in place and nothing is registered, so a pass is a function from graph to
graph, and dead code is what no output reaches.

A node has one result.  The few ops that compute several at once make a *bundle*, a node that only
`Item` nodes read; `Op.results` makes both.  This file knows no particular op but the leaves
(`Input`, `Variable`, `Constant`) and `Item`.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from minigraph.dtypes import BFLOAT16, Array, DType, as_array, as_dtype
from minigraph.errors import DTypeError, GraphError, ShapeError, located
from minigraph.source import here, scope
from minigraph.spec import Shape, Spec
from minigraph.state import State


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
class Input(Op):
    """A value given at each call."""

    name: str  # type: ignore[misc]

    def __str__(self) -> str:
        return f"input {self.name}"


@dataclass(frozen=True)
class Variable(Op):
    """The current value of a `Parameter`."""

    name: str  # type: ignore[misc]

    def __str__(self) -> str:
        return f"parameter {self.name}"


@dataclass(frozen=True, eq=False)
class Constant(Op):
    """A value known when the graph is built."""

    value: Array

    def infer(self) -> Spec:
        return Spec(self.value.shape, self.value.dtype)

    def forward(self) -> Array:
        return self.value

    def __str__(self) -> str:
        if self.value.size == 1 and self.value.dtype != BFLOAT16:
            return f"const {self.value.item():g}"
        return f"const<{self.value.size}>"


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


class Parameter(Node):
    """State that functions read and update: an array with a fixed shape and dtype.

    value      array, copied; its dtype is kept (Python floats give float64, as in NumPy)
    name       shown in reports and errors; `nn.Module` fills it in where it is not given
    trainable  whether optimizers take it (`nn.Module.parameters()` lists all of them)

    Every function that uses it sees its current value.
    """

    __slots__ = ("state", "trainable")

    def __init__(
        self, value: Any, name: str = "parameter", *, dtype: Any = None, trainable: bool = True
    ) -> None:
        self.state = State(as_array(value, None if dtype is None else as_dtype(dtype)))
        super().__init__(Variable(name), (), (self.state.spec,))
        self.trainable = trainable

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = object.__new__(type(self))
        Node.__init__(copy, self.op, (), self.specs)
        copy.trainable = self.trainable
        copy.state = State(self.state.read())
        memo[id(self)] = copy
        return copy

    def rename(self, name: str) -> None:
        """Set the name that reports and errors show."""
        self.op = Variable(name)

    def numpy(self) -> Array:
        """Return a copy of the current value."""
        return self.state.read().copy()

    def assign(self, value: Any) -> None:
        """Set the value, cast by NumPy's "same_kind" rule; ShapeError for another shape."""
        try:
            array = as_array(value, self.dtype)
        except DTypeError as error:
            raise DTypeError(f"assign to parameter {self.name}: {error}") from None
        if array.shape != self.shape:
            raise ShapeError(
                f"assign to parameter {self.name} of shape {self.shape}: got shape {array.shape}"
            )
        self.state.write()[...] = array


def input(name: str, shape: Sequence[int], dtype: Any = "float32") -> Node:
    """Return an expression that is given its value, an array of `shape`, at each call."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"input: the name must be a non-empty string, not {name!r}")
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(n, int | np.integer) and n >= 0 for n in dims):
        raise ShapeError(f"input {name}: shape {dims} {here()} has a size that is no integer >= 0")
    return Node(Input(name), (), (Spec(tuple(map(int, dims)), as_dtype(dtype)),))


def constant(value: Any, dtype: Any = None) -> Node:
    """Return an expression with a fixed value, which is copied."""
    array = np.array(as_array(value), dtype=None if dtype is None else as_dtype(dtype))
    array.flags.writeable = False
    return Constant(array)()


def as_node(value: Any) -> Node:
    return value if isinstance(value, Node) else constant(value)


@dataclass(frozen=True, eq=False)
class Graph:
    """A function: values for `inputs` in, values of `outputs` out."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        """Yield every node once, inputs before their users."""
        return iter(self.order)

    @functools.cached_property
    def order(self) -> tuple[Node, ...]:
        return tuple(toposort(self.outputs))

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that are read, in the order of their first use."""
        return tuple(node for node in self if isinstance(node, Parameter))

    def map(self, fn: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
        """Rebuild bottom-up: `fn(node, new_inputs)` gives the node to put in its place."""
        new: dict[Node, Node] = {}
        for node in self:
            with in_place_of(node):
                new[node] = fn(node, tuple(new[x] for x in node.inputs))
        outputs = tuple(new[y] for y in self.outputs)
        return (
            self if all(map(operator.is_, outputs, self.outputs)) else Graph(self.inputs, outputs)
        )

    def by_turn(self, last: AbstractSet[Node] = frozenset()) -> list[Node]:
        """Return the nodes, inputs before users and `last` at the end, else by their turns."""
        users = self.users()
        missing = {node: len(set(node.inputs)) for node in self}
        order: list[Node] = []
        ready = [(x in last, x.turn, x) for x in self if not missing[x]]  # no two turns are equal
        heapq.heapify(ready)
        while ready:
            order.append(heapq.heappop(ready)[-1])
            for user in dict.fromkeys(users[order[-1]]):
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, (user in last, user.turn, user))
        return order

    def users(self) -> dict[Node, list[Node]]:
        table: dict[Node, list[Node]] = {node: [] for node in self}
        for node in self:
            for x in node.inputs:
                table[x].append(node)
        return table

    def check(self, known: AbstractSet[Node] = frozenset()) -> None:
        """Raise GraphError for a spec that is not inferred or an undeclared input; skip `known`."""
        declared = set(self.inputs)
        for node in (x for x in self if x not in known):
            if isinstance(node.op, Input):
                if node not in declared:
                    raise GraphError(
                        f"an output depends on input {node.name} ({node.spec}, made "
                        f"{node.source}), which is not among the inputs; add it to `inputs`"
                    )
            elif not isinstance(node, Parameter):
                specs = node.op.infer(*(x.specs if x.is_bundle else x.spec for x in node.inputs))
                if (specs if isinstance(specs, tuple) else (specs,)) != node.specs:
                    raise GraphError(f"{node!r} {node.source}: the op infers {specs}")

    def __call__(self, *args: Array) -> tuple[Array, ...]:
        """Evaluate with NumPy, one op at a time: slow, and the reference for everything else."""
        values: dict[Node, Any] = dict(zip(self.inputs, args, strict=True))
        with np.errstate(all="ignore"):
            for node in self:
                if isinstance(node, Parameter):
                    values[node] = node.state.read()
                elif node not in values:
                    values[node] = run(node, *(values[x] for x in node.inputs))
        return tuple(values[y] for y in self.outputs)

    def __str__(self) -> str:
        names: dict[Node, str] = {x: x.name for x in self.inputs}
        lines: list[str] = []
        head = ", ".join(f"{x.name}: {x.spec}" for x in self.inputs)
        for node in self:
            if node not in names:
                names[node] = f"%{len(lines)}"
                args = " ".join(names[x] for x in node.inputs)
                specs = ", ".join(map(str, node.specs))
                lines.append(f"  {names[node]}: {specs} = {node.op} {args}".rstrip())
        returned = ", ".join(names[y] for y in self.outputs)
        return "\n".join([f"graph({head}):", *lines, f"  return {returned}"])


def run(node: Node, *args: Any) -> Any:
    """Return the meaning of `node` for these inputs; a GraphError gains the node's place."""
    try:
        result = node.op.forward(*args)
    except GraphError as error:
        raise located(error, node.op.name, node.inputs, node.source) from None
    if node.is_bundle:
        return result
    return np.asarray(result)


def toposort(outputs: Sequence[Node]) -> list[Node]:
    """Return all nodes that `outputs` depend on, each after its inputs.  No recursion."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(y, False) for y in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((x, False) for x in reversed(node.inputs))
    return order
