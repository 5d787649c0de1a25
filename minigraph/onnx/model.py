"""An ONNX model as expressions and parameters, and as a compiled function."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from onnx import GraphProto, ValueInfoProto

from minigraph.arguments import checked, first_names
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import (
    FLOATS,
    Array,
    Node,
    Parameter,
    State,
    UndecidedSize,
    as_array,
    constant,
    input,
    toposort,
)
from minigraph.graph.spec import ALIGNMENT
from minigraph.graph_compiler import OPTIONS, CompGraph, comp_graph
from minigraph.onnx.interpret import ModelInterpreter, refuse_missing
from minigraph.onnx.tensors import File, dtype_of, opsets_of, read
from minigraph.onnx.values import NeedsValue
from minigraph.platform.records import one_line


@dataclass(frozen=True)
class Model:
    """An ONNX model as expressions.

    inputs      in the file's order, without initialisers
    outputs     in the file's order
    parameters  float tensors with axes on which the outputs depend, in the file's order.  The
                statistics of BatchNormalization are not trainable
    """

    inputs: list[Node]
    outputs: list[Node]
    parameters: list[Parameter] = field(repr=False)


def load(
    model: Any,
    values: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Model:
    """Return a model's inputs, outputs and parameters: expressions, to compile and to train.

    model   a path, or an onnx.ModelProto
    values  arrays for some inputs, by name, which become constants: sizes, axes and the like, on
            which the shapes of results depend
    shapes  of some inputs, by name, instead of those in the file

    A named size, such as "batch", becomes a symbolic size.  External tensors are mapped into
    memory.  Raises GraphError for a damaged file or one that is not a model, and for unsupported
    operators, with the number of occurrences of each.
    """
    file = read("onnx.load", model)
    inputs = [info.name for info in inputs_of(file.model.graph)]
    if unknown := [name for name in (*(values or {}), *(shapes or {})) if name not in inputs]:
        listed = first_names(inputs, 10)
        raise GraphError(f"onnx.load: {file.name} has no input {unknown[0]!r}; it has {listed}")
    constants = given_values("onnx.load", file, values or {})
    return model_of("onnx.load", file, constants, shapes or {})


def model_of(
    what: str,
    file: File,
    values: Mapping[str, Array],
    shapes: Mapping[str, Sequence[int]],
    frozen: bool = False,
) -> Model:
    """Return a model whose inputs in `values` are constants, and others have these `shapes`.

    frozen  whether parameters will be constants, whose memory may be read-only

    Raises UndecidedSize if further inputs must be constants, or must have fixed shapes.
    """
    try:
        graph, opsets = file.model.graph, opsets_of(file.model.opset_import)
        refuse_missing(what, file, opsets)
        interpreter = ModelInterpreter(what, file)
        convert = functools.partial(_stored_tensor, frozen=frozen)
        nodes: dict[str, Node] = interpreter.initializers(graph, convert)
        parameters = [x for x in nodes.values() if isinstance(x, Parameter)]
        inputs = []
        for info in inputs_of(graph):
            if info.name in values:
                nodes[info.name] = constant(values[info.name])
            else:
                nodes[info.name] = input_of(what, info, shapes.get(info.name))
                inputs.append(nodes[info.name])
        interpreter.run(graph.node, nodes, opsets, {})
        missing = [y.name for y in graph.output if not isinstance(nodes.get(y.name), Node)]
        if missing:
            raise GraphError(f"{what}: no node of {file.name} computes the tensor {missing[0]!r}")
        outputs = [nodes[y.name] for y in graph.output]
        used = set(toposort(outputs))
        return Model(inputs, outputs, [x for x in parameters if x in used])
    except GraphError:
        raise
    except Exception as error:  # such as bytes of protobuf that are not text
        text = one_line(f"{type(error).__name__}: {error}")
        raise GraphError(f"{what}: {file.name} is damaged ({text})") from error


def inputs_of(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the inputs that a caller must give: those without a value in the file."""
    initializers = {x.name for x in graph.initializer}
    return [info for info in graph.input if info.name not in initializers]


def given_values(what: str, file: File, values: Mapping[str, Any]) -> dict[str, Array]:
    """Return values of inputs as arrays of their dtypes."""
    arrays = {}
    for info in inputs_of(file.model.graph):
        if info.name in values:
            try:
                dtype = dtype_of(info.type.tensor_type.elem_type)
                arrays[info.name] = as_array(values[info.name], dtype)
            except GraphError as error:
                raise type(error)(f"{what}: the input {info.name!r}: {error}") from None
            refuse_other_shape(what, info, arrays[info.name].shape)
    return arrays


def _stored_tensor(name: str, array: Array, frozen: bool) -> Node:
    """Return a tensor of the file as a parameter, in the tensor's memory if possible."""
    if not array.ndim or array.dtype not in FLOATS:
        return constant(array)
    is_shareable = array.flags.carray and array.ctypes.data % ALIGNMENT == 0
    is_shareable |= frozen and not array.flags.writeable
    return Parameter.sharing(State.of(array, copy=not is_shareable), name)


def input_of(what: str, info: ValueInfoProto, shape: Sequence[int] | None = None) -> Node:
    """Return the expression of an input, with `shape` or else the shape in the file."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise GraphError(f"{what}: the input {info.name!r} is a {kind}, not a tensor")
    tensor = info.type.tensor_type
    if shape is None and not tensor.HasField("shape"):
        raise UndecidedSize(f"{what}: the number of axes of the input {info.name!r} is unknown")
    dtype = dtype_of(tensor.elem_type, f"{what}: the input {info.name!r}: ")
    sizes = _declared_sizes(info) if shape is None else shape
    return input(one_line(info.name) or "input", sizes, dtype)


def _declared_sizes(info: ValueInfoProto) -> list[int | str]:
    """Return the sizes of an input in the file: numbers, or names of symbolic sizes.

    A size without a name is distinct from all others; Paddle's exporter calls it -1, or "?".
    """
    sizes: list[int | str] = []
    for axis, size in enumerate(info.type.tensor_type.shape.dim):
        if size.HasField("dim_value") and size.dim_value >= 0:
            sizes.append(size.dim_value)
        else:
            name = size.dim_param if re.search(r"\w", size.dim_param) else f"{info.name}_{axis}"
            sizes.append(re.sub(r"\W|^(?=\d)", "_", name))
    return sizes


def refuse_other_shape(what: str, info: ValueInfoProto, shape: Sequence[int] | None) -> None:
    """Raise ShapeError if the shape of a call does not match the file's."""
    if shape is None or not info.type.tensor_type.HasField("shape"):
        return
    fixed = _declared_sizes(info)
    pairs = zip(fixed, shape, strict=False)
    if len(fixed) != len(shape) or any(isinstance(n, int) and n != m for n, m in pairs):
        raise ShapeError(f"{what}: input {info.name} takes shape {fixed}, got {[*shape]}")


WHAT = "onnx.function"
MAX_KEPT_FUNCTIONS = 16  # functions of a model


@checked
def function(
    model: Any,
    device: str | None = "cpu",
    options: Annotated[Mapping[str, Any], OPTIONS] | None = None,
) -> Any:
    """Return a compiled function of a model: called with arrays, in the order of the file's inputs.

    model    a path, or an onnx.ModelProto
    device   as in `mg.comp_graph`
    options  as in `mg.comp_graph`; without them the level is 3

    It returns an array, or a list of them in the file's order.  Its parameters are constants, as
    with `compile(..., freeze=True)`.  It has the methods of other functions, such as `report()`.
    If shapes depend on the value of an input, such as a size or an axis, it is compiled at the
    first call with each value; likewise for the shapes of inputs if symbolic sizes do not suffice.
    Raises GraphError as `load` does.

    >>> import onnx
    >>> net = "net (float[n, 2] x) => (float[n, 2] y) { y = Relu (x) }"
    >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>' + net)
    >>> predict = mg.onnx.function(model, "reference")
    >>> predict([[-1.0, 2.0]])
    array([[0., 2.]], dtype=float32)
    """
    file, graph = read(WHAT, model), comp_graph(device, {"graph_opt_level": 3, **(options or {})})
    try:
        expressions = model_of(WHAT, file, {}, {}, frozen=True)
    except UndecidedSize as error:
        call = CallFunction(file, graph)
        call.note(error)
        return call
    del file  # frees its memory during compilation
    return compiled(expressions, graph)


def compiled(model: Model, graph: CompGraph) -> Any:
    outputs = model.outputs[0] if len(model.outputs) == 1 else model.outputs
    return graph.compile(model.inputs, outputs, freeze=True)


class CallFunction:
    """The function of a model that is compiled for each new value or shape of some inputs.

    It keeps the latest functions, and has the methods of the function of the latest call.
    """

    def __init__(self, file: File, graph: CompGraph) -> None:
        self._file, self._graph = file, graph
        self._inputs = [info.name for info in inputs_of(file.model.graph)]
        self._constants: list[str] = []  # inputs that are compiled as constants
        self._fixes_shapes = False  # whether the shapes of a call are compiled as constants
        self._functions: dict[Any, Any] = {}

    def note(self, error: UndecidedSize) -> None:
        """Record the values or shapes that each call must provide; raise any other error."""
        if isinstance(error, NeedsValue):
            new = [name for name in error.names if name in self._inputs]
            new = [name for name in new if name not in self._constants]
            if not new:  # the steps of a loop compute the value
                raise error
            self._constants += new
        elif self._fixes_shapes:
            raise error
        else:
            self._fixes_shapes = True
        self._functions.clear()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, compiled for these values and shapes if they are new."""
        function, arrays = self._bound_call(args, kwargs)
        return function(*arrays)

    def profile(self, *args: Any, **kwargs: Any) -> Any:
        """Return the times of the kernels of a call."""
        function, arrays = self._bound_call(args, kwargs)
        return function.profile(*arrays)

    def _bound_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Return the function for the arrays of a call, and the arrays that it takes."""
        arrays = {**dict(zip(self._inputs, args, strict=False)), **kwargs}
        names = [*self._inputs[: len(args)], *kwargs]
        if len(args) > len(self._inputs) or sorted(names) != sorted(self._inputs):
            count, inputs = len(args) + len(kwargs), ", ".join(self._inputs)
            raise GraphError(f"{WHAT}: got {count} arrays for the inputs {inputs}; pass each once")
        while True:
            try:
                function = self._choose(arrays)
            except UndecidedSize as error:
                self.note(error)
                continue
            return function, [arrays[name] for name in self._inputs if name not in self._constants]

    def _choose(self, arrays: Mapping[str, Any]) -> Any:
        constants = {name: arrays[name] for name in self._constants}
        values = given_values(WHAT, self._file, constants)
        shapes = {name: np.shape(x) for name, x in arrays.items() if self._fixes_shapes}
        for info in inputs_of(self._file.model.graph):
            refuse_other_shape(WHAT, info, shapes.get(info.name))
        key = tuple((x.shape, x.tobytes()) for x in values.values()), tuple(shapes.values())
        function = self._functions.pop(key, None)
        if function is None:
            model = model_of(WHAT, self._file, values, shapes, frozen=True)
            function = compiled(model, self._graph)
        self._functions[key] = function
        if len(self._functions) > MAX_KEPT_FUNCTIONS:
            del self._functions[next(iter(self._functions))]
        return function

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the function of the latest call, such as `report`."""
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._functions:
            raise GraphError(f"{WHAT}: nothing is compiled before the first call")
        return getattr(next(reversed(self._functions.values())), name)
