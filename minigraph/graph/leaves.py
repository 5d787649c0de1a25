"""Leaves of graphs (inputs, parameters, constants), and builders, which check their arguments."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np

from minigraph.arguments import Kind, Name, Signature, checked, instance_of, sizes
from minigraph.errors import DTypeError, GraphError, ShapeError, located
from minigraph.graph.location import Location, here, is_recursive_call
from minigraph.graph.node import Node, Op
from minigraph.graph.spec import (
    BFLOAT16,
    FLOATS,
    MAX_AXES,
    Array,
    DType,
    DTypeLike,
    Shape,
    Spec,
    as_array,
    as_dtype,
    cast,
)
from minigraph.graph.state import State, run_exclusively
from minigraph.symbolic import SymbolicSize, is_symbolic, symbol

P = ParamSpec("P")
R = TypeVar("R")


def builder(fn: Callable[P, R]) -> Callable[P, R]:
    """Return `fn` with its arguments checked against its annotations.

    An error names the outermost builder, which is the one that the user called, its operands and
    the user's line.
    """
    signature = Signature(fn)

    @functools.wraps(fn)
    def build(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            positional, named = signature.parse(args, kwargs)
            return fn(*positional, **named)
        except (GraphError, MemoryError) as error:
            if is_recursive_call():  # all builders share the code of `build`
                raise
            lists = (x if isinstance(x, list | tuple) else [x] for x in (*args, *kwargs.values()))
            operands = [x for each in lists for x in each if isinstance(x, Node)]
            if isinstance(error, GraphError):
                raise located(error, fn.__name__, operands, here()) from None
            memory_error = GraphError(f"the memory does not suffice ({error})")
            raise located(memory_error, fn.__name__, operands, here()) from error

    return build


def function_of(op: type[Op], build: Callable[..., Node]) -> Callable[..., Node]:
    """Return `build` as the public function of `op`, with the op's name, docstring and example."""
    arguments, result = op.example
    if result:
        call = f"cg.compile([], ops.{op.name}({arguments}))()"
        op.__doc__ = f"{inspect.cleandoc(op.__doc__ or '')}\n\n>>> {call}\n{result}\n"
    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = op.__doc__
    build.__module__ = op.__module__
    return builder(build)


class Input(Op):
    """An argument of the compiled function."""

    name: str  # type: ignore[misc]

    def __str__(self) -> str:
        return f"input {self.name}"


class FromSizes(Op):
    """An array computed from symbolic sizes; `with_sizes` makes it a `Constant`.

    of  the name of the op that reads the array, for errors
    """

    of: str
    function: Callable[..., Any]
    sizes: tuple[Any, ...]
    shape: Shape
    dtype: DType

    def infer(self) -> Spec:
        return Spec(self.shape, self.dtype)

    def forward(self) -> Array:
        try:
            array = np.asarray(self.function(*self.sizes))
            if array.dtype == object:  # integers beyond 64 bits
                array = array.astype(np.float64 if self.dtype in FLOATS else self.dtype)
            return cast(array, self.dtype).reshape(self.shape)
        except OverflowError:
            sizes = ", ".join(map(str, self.sizes))
            raise DTypeError(f"{sizes} does not fit into {self.dtype.name}") from None
        except (ArithmeticError, ValueError, TypeError) as error:
            if isinstance(error, GraphError):
                raise
            text = f"{self.infer()} cannot be computed from {self.sizes}: {error}"
            raise ShapeError(text) from None


class Variable(Op):
    """The current value of a `Parameter`."""

    name: str  # type: ignore[misc]

    def __str__(self) -> str:
        return f"parameter {self.name}"


class Constant(Op, eq=False):
    """An array that is known when the graph is built."""

    value: Array

    def infer(self) -> Spec:
        return Spec(self.value.shape, self.value.dtype)

    def forward(self) -> Array:
        return self.value

    def __str__(self) -> str:
        if self.value.size == 1 and self.value.dtype != BFLOAT16:
            return f"const {self.value.item():g}"
        return f"const<{self.value.size}>"


class Parameter(Node):
    """State that functions read and update: an array with a fixed shape and dtype.

    value      array, copied; its dtype is kept (Python floats give float64, as in NumPy)
    name       shown in reports and errors; by default `nn.Module` derives it from the attribute
    trainable  whether optimizers update it (`nn.Module.parameters()` lists all parameters)

    Every function that reads the parameter sees its current value.  `np.asarray` and DLPack return
    a copy of the value.

    >>> w = mg.Parameter(np.zeros((2, 3), "float32"), name="w")
    >>> w.assign(np.ones((2, 3)))
    >>> w.numpy().sum()
    np.float32(6.0)
    """

    __slots__ = ("state", "trainable")

    @checked
    def __init__(
        self,
        value: Any,
        name: str = "parameter",
        *,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
    ) -> None:
        self.state = State.of(as_array(value, dtype))
        super().__init__(Variable(name), (), (self.state.spec,))
        self.trainable = trainable

    @classmethod
    def sharing(cls, value: State, name: str, *, trainable: bool = True) -> Parameter:
        """Return a parameter that shares its value with other parameters.

        value  may be in memory of another library: see `State.share_host_memory` and
               `State.share_device_memory`
        """
        return _restored(cls, value, name, trainable, here())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the parameter with its current value, which the copy does not share."""
        arguments = (type(self), self.numpy(), self.name, self.trainable, self.source)
        return _restored, arguments, (getattr(self, "__dict__", None), {})

    @checked
    def rename(self, name: str) -> None:
        """Set the name in reports and errors."""
        self.op = Variable(name)

    def numpy(self) -> Array:
        """Return a copy of the value, after calls in other threads that are changing it."""
        return values_of({"value": self})["value"]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array of a parameter is a copy of its value")
        return np.asarray(self.numpy(), dtype)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.numpy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.empty(0).__dlpack_device__()

    def assign(self, value: Any) -> None:
        """Set the value, cast by NumPy's "same_kind" rule; ShapeError for another shape.

        A call in another thread that reads the parameter runs before or after the assignment.
        """
        try:
            array = as_array(value, self.dtype)
        except DTypeError as error:
            raise DTypeError(f"assign to parameter {self.name}: {error}") from None
        if array.shape != self.shape:
            raise ShapeError(
                f"assign to parameter {self.name} of shape {self.shape}: got shape {array.shape}"
            )
        assign_all([(self, array)])


def namesake(node: Node, nodes: Iterable[Node]) -> str:
    """Return an error text about another node of the same name, if `nodes` has one; else ""."""
    for x in nodes:
        if x.name == node.name and x is not node:
            return (
                f"another {x.op} was made {x.source}: each call makes a new one; after a cell of a "
                "notebook has run again, run the cells that use it again, too"
            )
    return ""


def values_of(parameters: Mapping[str, Parameter]) -> dict[str, Array]:
    """Return copies of the values of parameters, all at the same moment, between calls."""

    def copies() -> dict[str, Array]:
        return {name: p.state.read().copy() for name, p in parameters.items()}

    return run_exclusively([p.state for p in parameters.values()], copies, changes=False)


def assign_all(values: Sequence[tuple[Parameter, Array]]) -> None:
    """Set parameters to arrays of their shapes and dtypes; a call sees all new values or none."""

    def write() -> None:
        for parameter, value in values:
            parameter.state.assign(value)

    run_exclusively([parameter.state for parameter, _ in values], write, changes=True)


def _restored(
    cls: type[Parameter], value: State | Array, name: str, trainable: bool, source: Location
) -> Parameter:
    """Return a parameter without calling `__init__`, which may differ in a subclass."""
    parameter = object.__new__(cls)
    parameter.state = value if isinstance(value, State) else State.of(value)
    parameter.trainable = trainable
    Node.__init__(parameter, Variable(name), (), (parameter.state.spec,))
    parameter.source = source
    return parameter


def _input_sizes(shape: Any) -> Shape:
    if isinstance(shape, tuple | list):
        return sizes([_input_size(axis, n) for axis, n in enumerate(shape)])
    return sizes((_input_size(0, shape),) if isinstance(shape, str) else shape)


def _input_size(axis: int, n: Any) -> Any:
    if n is None:
        return symbol(f"size{axis}" if axis else "batch")
    if isinstance(n, str):
        factor, asterisk, name = n.rpartition("*")
        if not name.isidentifier() or (asterisk and not (factor.isdecimal() and int(factor))):
            raise ShapeError(
                f"{n!r} does not name a size; use an identifier, or a multiple such as '32*h'"
            )
        return symbol(name) * int(factor or 1)
    return n


InputSizes = Annotated[
    Any,
    Kind(
        "an integer >= 0 or a sequence of them, where None or a name is a size that a call chooses",
        _input_sizes,
        ShapeError,
    ),
]


@builder
def input(name: Name, shape: InputSizes, dtype: DTypeLike = "float32") -> Node:
    """Return an expression for an argument of compiled functions: an array of `shape`.

    A size that differs between calls is None or has a name: `(None, 784)` or `("images", 784)`.
    Sizes of the same name are equal within a call, across inputs too.  None stands for the name
    "batch" along the first axis, for "size1" along axis 1, and so on.  "4*rows" is a multiple of 4,
    so that a network that halves it twice and doubles it twice, like a U-Net, restores the size.

    >>> images = mg.input("images", (None, 3, 32, 32))
    >>> labels = mg.input("labels", (None,), "int64")
    >>> images.ndim, labels.dtype
    (4, dtype('int64'))
    """
    return Node(Input(name), (), (Spec(shape, dtype),))


def constant_array(value: Any) -> Array:
    """Return a user's value as an array that never changes.

    Raises DTypeError also for a list that holds a parameter: it would keep the present value.
    """
    if isinstance(value, list | tuple) and _holds_expression(value):
        raise DTypeError(f"a {type(value).__name__} of expressions is no array; use ops.stack")
    return as_array(value)


def _holds_expression(value: Any, depth: int = MAX_AXES) -> bool:
    if isinstance(value, list | tuple):
        return depth > 0 and any(_holds_expression(x, depth - 1) for x in value)
    return isinstance(value, Node)


def constant(value: Any, dtype: Any = None, copy: bool = True) -> Node:
    """Return an expression with a fixed value.

    copy  whether to copy the value; False if no other code can change the array
    """
    array = constant_array(value)
    if copy:
        array = np.array(array, None if dtype is None else as_dtype(dtype))
    array.flags.writeable = False
    return Constant(array)()


def from_size(size: SymbolicSize, dtype: DType) -> Node:
    """Return an expression for a symbolic size."""
    return FromSizes("a size", operator.pos, (size,), (), dtype)()


def from_sizes(
    of: str, function: Callable[..., Array], sizes: tuple[Any, ...], shape: Shape, dtype: DType
) -> Node:
    """Return an expression for `function(*sizes)`, an array of `shape`; sizes may be symbolic.

    of  the name of the op that reads the array, for errors
    """
    op = FromSizes(of, function, sizes, shape, dtype)
    return op() if is_symbolic(sizes) else constant(op.forward())


def as_node(value: Any) -> Node:
    if isinstance(value, SymbolicSize):
        return from_size(value, np.dtype(np.int64))
    return value if isinstance(value, Node) else constant(value)


Expression = Annotated[Node, instance_of(Node, "an expression", exact_types=[Parameter])]
OPERAND_DESCRIPTION = "a number, an array or an expression"
NODES = frozenset({Node, Parameter})
Operand = Annotated[
    Any,
    Kind(
        OPERAND_DESCRIPTION,
        lambda x: x if isinstance(x, Node | int | float | SymbolicSize) else constant_array(x),
        DTypeError,
        exact_types=NODES | {int, float, bool},
    ),
]
Tensor = Annotated[
    Any, Kind(OPERAND_DESCRIPTION, as_node, DTypeError, exact_types=NODES)
]  # becomes an expression
