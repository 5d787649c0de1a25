"""Ops and nodes: a node applies one op to other nodes.

A node has one result.  An op with several results makes a *bundle*, a node that only `Item` nodes
read, one for each result; `Op.results` makes both.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, dataclass_transform

from minigraph.arguments import shorten
from minigraph.errors import NoGradient
from minigraph.graph.location import Location, Within, here, scope
from minigraph.graph.spec import Array, DType, IndexRange, Shape, Spec, as_specs
from minigraph.graph.unsupported import Unsupported
from minigraph.symbolic import UndecidedSize, assuming_large

_count = itertools.count()  # numbers all nodes
_methods: list[Callable[..., Node]] = []  # the results of `_method`


def in_place_of(node: Node, like: Node | None = None) -> Within:
    """Give nodes made inside the order of `node`, and the source of `like`, by default `node`."""
    return Within(source=(node if like is None else like).source, order=node.order[0])


@dataclass_transform(frozen_default=True)
class Op:
    """One kind of computation.  Attributes of an op, such as a stride, are fields of its class.

    A subclass becomes a frozen dataclass; with `class X(Op, eq=False)` ops compare by identity.
    Equal ops compute the same function.  A class is either abstract (it has subclasses) or final.
    See `minigraph.ops`.
    """

    name: ClassVar[str] = ""  # in `mg.ops` and reports; by default the class's name in snake_case
    commutative: ClassVar[bool] = False
    is_view: ClassVar[bool] = False  # `forward` may return a view of its first input
    keeps_order: ClassVar[bool] = False  # the elements stay in row-major order
    composed: ClassVar[bool] = False  # one generated kernel can compute the ops of `expand`
    recomputes: ClassVar[bool] = False  # its gradients are added at once, to keep few in memory
    example: ClassVar[tuple[str, str]] = ("", "")  # arguments of the function, and its result
    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls, eq: bool = True) -> None:
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        # A class without new fields inherits the methods of a dataclass; making them takes time.
        if inspect.get_annotations(cls) or not is_dataclass(cls):
            dataclass(frozen=True, eq=eq)(cls)
        Op.registry[cls.__name__] = cls

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of the op {self.name} cannot be set: ops do not change")

    # Each op narrows these signatures to its inputs; with `*args: Any, **kwargs: Any` mypy accepts
    # any signature.

    def infer(self, *args: Any, **kwargs: Any) -> Spec | tuple[Spec, ...]:
        """infer(*input_specs): the spec of the result, or a tuple of specs of several results.

        Raises ShapeError or DTypeError for inputs that do not fit.
        """
        raise NotImplementedError(f"{self.name} has no shape rule")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """forward(*inputs): the result (or tuple of results), with NumPy.  It defines the op."""
        raise NotImplementedError(f"{self.name} has no forward")

    def grad(self, *args: Any, **kwargs: Any) -> tuple[Node | None, ...]:
        """grad(dy, y, *inputs): for each input its gradient as a node, or None if it has none.

        For an op with several results `dy` and `y` are tuples, and `dy` has None for a result that
        nothing reads.  A gradient may have the shape that the inputs broadcast to: `mg.grad` sums
        it to the input's shape.
        """
        raise NoGradient(f"{self.name} has no gradient")

    def expand(self, *args: Any, **kwargs: Any) -> tuple[Node, ...]:
        """expand(*inputs): the results, computed by simpler ops.

        Autodiff differentiates it if the op has no `grad`, and passes decompose ops with it.
        """
        raise NoGradient(f"{self.name} has no gradient")

    def index_range(self, *args: Any) -> IndexRange | None:
        """index_range(*inputs): the valid integers of an input; None: all.  A call checks them."""
        return None

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...] | None:
        """Return for each axis of the result y the axis of the input x that it comes from.

        An entry is None for an axis of length 1 and for one along which x is repeated.  The result
        is None for an op that does more than move elements.
        """
        return None

    def __call__(self, *inputs: Node) -> Node:
        """Apply this op to nodes and return its only result."""
        (result,) = self.results(*inputs)
        return result

    def results(self, *inputs: Node) -> tuple[Node, ...]:
        """Apply this op to nodes and return its results."""
        node = Node(self, inputs, self.inferred(inputs))
        if not node.is_bundle:
            return (node,)
        return tuple(Node(Item(i), (node,), (spec,)) for i, spec in enumerate(node.specs))

    def inferred(self, inputs: Sequence[Node]) -> tuple[Spec, ...]:
        """Return the specs of the results for inputs whose sizes may be symbolic."""
        xs = [x.specs if x.is_bundle else x.spec for x in inputs]
        try:
            specs = self.infer(*xs)
        except UndecidedSize:  # `with_sizes` checks the assumption
            with assuming_large():
                specs = self.infer(*xs)
        return as_specs(self.name, specs)

    def __str__(self) -> str:
        attributes = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))  # type: ignore[arg-type]
        return self.name + (f"[{attributes}]" if attributes else "")


def gradients(rule: Callable[..., Any]) -> Callable[..., tuple[Node | None, ...]]:
    """Return a method `grad` from rule(dy, y, *inputs), which returns a gradient or a tuple."""

    def grad(op: Op, *args: Any) -> tuple[Node | None, ...]:
        dxs = rule(*args)
        return dxs if isinstance(dxs, tuple) else (dxs,)

    return grad


def zero_gradient(op: Op, dy: Node, y: Node, *inputs: Node) -> tuple[None, ...]:
    """The `grad` of ops whose derivative is 0 almost everywhere, such as rounding."""
    return (None,) * len(inputs)


class Item(Op):
    """One result of a bundle."""

    index: int

    def infer(self, bundle: tuple[Spec, ...]) -> Spec:
        return bundle[self.index]

    def forward(self, bundle: tuple[Array, ...]) -> Array:
        return bundle[self.index]


class Copy(Op):
    """x, contiguous in memory.  Lowering inserts it before kernels that need contiguous inputs."""

    grad = gradients(lambda dy, y, x: dy)

    def infer(self, x: Spec) -> Spec:
        return x

    def forward(self, x: Array) -> Array:
        return x

    def along(self, x: Shape, y: Shape) -> tuple[int | None, ...]:
        return tuple(range(len(x)))


def _method(name: str) -> Callable[..., Node]:
    """Return the method of nodes that calls the function `name` of `minigraph.ops`."""

    def method(x: Node, *args: Any, **kwargs: Any) -> Node:
        return Node.functions[name](x, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Apply `ops.{name}` to this expression."
    _methods.append(method)
    return method


def _operator(name: str) -> tuple[Callable[[Node, Any], Node], Callable[[Node, Any], Node]]:
    """Return the methods of a binary operator for a node on its left, and on its right."""

    def reflected(x: Node, other: Any) -> Node:
        return Node.functions[name](other, x)

    return _method(name), reflected


class Changes(NamedTuple):
    """State that a call of a module changes, such as running statistics; `compile` updates it.

    weights  parameters of the module; a function that trains them must update the state
    """

    state: tuple[Node, ...]
    weights: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Descent:
    """A call of an optimizer, and the parameters that it updates together."""

    name: str
    parameters: tuple[Node, ...]
    source: Location


class Node(Unsupported):
    """An expression: the result of applying `op` to `inputs`.  Compared by identity.

    `==` between expressions is elementwise, as in NumPy; minigraph compares nodes with `is` and
    by hash.

    order    sort key in the order of creation, so inputs come before their users; the replacement
             of a node takes the node's place
    changes  state changes of the module calls that returned this expression
    descent  the optimizer call that returned this expression as a new value
    """

    __slots__ = ("__weakref__", "changes", "descent", "inputs", "op", "order", "source", "specs")

    def __init__(self, op: Op, inputs: tuple[Node, ...], specs: tuple[Spec, ...]) -> None:
        self.op = op
        self.inputs = inputs
        self.specs = specs
        self.changes: tuple[Changes, ...] = ()
        self.descent: Descent | None = None
        self.source = here()
        count = next(_count)
        self.order = (count if scope.order is None else scope.order, count)

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
        """The name of an input or parameter; for other nodes the name of the op."""
        return self.op.name

    def replace(self, inputs: tuple[Node, ...]) -> Node:
        """Return a copy of this node with other inputs, or the node itself if they are the same."""
        if len(inputs) == len(self.inputs) and all(map(operator.is_, inputs, self.inputs)):
            return self
        node = object.__new__(Node)
        node.op, node.inputs, node.specs, node.source = self.op, inputs, self.specs, self.source
        node.order = self.order[0], next(_count)
        node.changes, node.descent = self.changes, self.descent
        return node

    def __repr__(self) -> str:
        return f"{shorten(str(self.op))}: {', '.join(map(str, self.specs))}"

    # The functions are in `minigraph.ops`, which this file may not import.

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __mod__, __rmod__ = _operator("remainder")
    __pow__, __rpow__ = _operator("pow")
    __matmul__, __rmatmul__ = _operator("matmul")
    __and__, __rand__ = _operator("bitwise_and")
    __or__, __ror__ = _operator("bitwise_or")
    __xor__, __rxor__ = _operator("bitwise_xor")
    __lshift__, __rlshift__ = _operator("bitwise_left_shift")
    __rshift__, __rrshift__ = _operator("bitwise_right_shift")
    __lt__ = _method("less")
    __le__ = _method("less_equal")
    __gt__ = _method("greater")
    __ge__ = _method("greater_equal")
    __eq__ = _method("equal")  # type: ignore[assignment]
    __ne__ = _method("not_equal")  # type: ignore[assignment]
    __hash__ = object.__hash__

    __neg__ = _method("negative")
    __pos__ = _method("positive")
    __abs__ = _method("abs")
    __invert__ = _method("bitwise_invert")
    __getitem__ = _method("getitem")

    abs = _method("abs")
    all = _method("all")
    any = _method("any")
    argmax = _method("argmax")
    argmin = _method("argmin")
    argsort = _method("argsort")
    clip = _method("clip")
    cos = _method("cos")
    cumprod = _method("cumprod")
    cumsum = _method("cumsum")
    detach = _method("stop_gradient")
    erf = _method("erf")
    exp = _method("exp")
    flatten = _method("flatten")
    floor = _method("floor")
    gather = _method("gather")
    index_add = _method("index_add")
    index_put = _method("index_put")
    log = _method("log")
    log_softmax = _method("log_softmax")
    logsumexp = _method("logsumexp")
    matmul = _method("matmul")
    max = _method("max")
    mean = _method("mean")
    min = _method("min")
    norm = _method("norm")
    pow = _method("pow")
    prod = _method("prod")
    relu = _method("relu")
    round = _method("round")
    rsqrt = _method("rsqrt")
    scatter = _method("scatter")
    scatter_add = _method("scatter_add")
    sigmoid = _method("sigmoid")
    sign = _method("sign")
    sin = _method("sin")
    softmax = _method("softmax")
    sort = _method("sort")
    sqrt = _method("sqrt")
    square = _method("square")
    squeeze = _method("squeeze")
    std = _method("std")
    sum = _method("sum")
    swapaxes = _method("swapaxes")
    take = _method("take")
    tanh = _method("tanh")
    topk = _method("topk")
    tril = _method("tril")
    triu = _method("triu")
    unsqueeze = _method("expand_dims")
    var = _method("var")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an expression without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> Node:
        """Return the elements in row-major order as an array of `shape`: ints or one sequence."""
        return Node.functions["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Node:
        """Permute the axes into the order `axes`: ints or one sequence; by default in reverse."""
        if not axes or axes[0] is None:
            axes = tuple(reversed(range(self.ndim)))
        return self.permute(*axes)

    view = reshape

    def permute(self, *axes: Any) -> Node:
        """Permute the axes into the order `axes`: ints or one sequence."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return Node.functions["permute_dims"](self, order)

    @property
    def T(self) -> Node:
        return self.transpose()

    def astype(self, dtype: Any) -> Node:
        """Convert the elements to `dtype`; floats are truncated to integers."""
        return Node.functions["astype"](self, dtype)


def bind_functions(functions: Mapping[str, Callable[..., Node]]) -> None:
    """Set the functions that methods of nodes call, and the signatures of these methods."""
    Node.functions.update(functions)
    for method in _methods:
        method.__signature__ = inspect.signature(functions[method.__name__])  # type: ignore[attr-defined]
