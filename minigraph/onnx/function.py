"""A model of ONNX as a compiled function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import UndecidedSize
from minigraph.graph_compiler import CompGraph, comp_graph
from minigraph.inspect.report import Report
from minigraph.onnx.model import Model, given_values, inputs_of, model_of
from minigraph.onnx.tensors import File, read
from minigraph.onnx.values import NeedsValue

WHAT = "onnx.function"
KEPT = 16  # functions of a model


def function(model: Any, device: str = "cpu", options: Mapping[str, Any] | None = None) -> Any:
    """Return a compiled function of a model: called with arrays, in the order of the file's inputs.

    model    a path, or an onnx.ModelProto
    device   as in `mg.comp_graph`
    options  as in `mg.comp_graph`; without them the level is 3

    It returns an array, or a list of them in the file's order.  Its parameters are constants, as
    with `compile(..., freeze=True)`.  It has what functions of `compile` have, such as `report()`.
    Where an input gives sizes, axes or the like, it is compiled at its first call, for that value,
    and again for another; and so for the shapes of inputs where a symbolic size is not enough.
    Raises what `load` raises.

    >>> import onnx
    >>> net = "net (float[n, 2] x) => (float[n, 2] y) { y = Relu (x) }"
    >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>' + net)
    >>> predict = mg.onnx.function(model, "reference")
    >>> predict([[-1.0, 2.0]])
    array([[0., 2.]], dtype=float32)
    """
    file, graph = read(WHAT, model), comp_graph(device, {"graph_opt_level": 3, **(options or {})})
    try:
        read_once = model_of(WHAT, file, {}, {}, frozen=True)
    except UndecidedSize as error:
        call = CallFunction(file, graph)
        call.note(error)
        return call
    del file  # whose bytes need not be there while the function is compiled
    return compiled(read_once, graph)


def compiled(model: Model, graph: CompGraph) -> Any:
    outputs = model.outputs[0] if len(model.outputs) == 1 else model.outputs
    return graph.compile(model.inputs, outputs, freeze=True)


class CallFunction:
    """The function of a model that is read anew for values, or shapes, of inputs that calls give.

    It keeps what it compiled for the latest of them.
    """

    def __init__(self, file: File, graph: CompGraph) -> None:
        self._file, self._graph = file, graph
        self._inputs = [info.name for info in inputs_of(file.model.graph)]
        self._valued: list[str] = []  # the inputs whose values are constants
        self._sized = False  # whether the shapes of inputs are those of the call
        self._functions: dict[Any, Any] = {}

    def note(self, error: UndecidedSize) -> None:
        """Take from each call what could not be known without; raise the error if it is."""
        if isinstance(error, NeedsValue):
            self._valued += [name for name in error.names if name not in self._valued]
        elif self._sized:
            raise error
        else:
            self._sized = True
        self._functions.clear()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, compiled for these values and shapes if they are new."""
        given = dict(zip(self._inputs, args, strict=False)) | kwargs
        if len(args) > len(self._inputs) or given.keys() != {*self._inputs}:
            names = ", ".join(self._inputs)
            raise GraphError(f"{WHAT}: got {len(args) + len(kwargs)} arrays for the inputs {names}")
        while True:
            try:
                chosen = self._choose(given)
            except UndecidedSize as error:
                self.note(error)
                continue
            return chosen(*(given[name] for name in self._inputs if name not in self._valued))

    def _choose(self, given: Mapping[str, Any]) -> Any:
        chosen = {name: given[name] for name in self._valued}
        values = given_values(WHAT, self._file, chosen)
        shapes = {name: np.shape(x) for name, x in given.items() if self._sized}
        key = tuple((x.shape, x.tobytes()) for x in values.values()), tuple(shapes.values())
        function = self._functions.pop(key, None)
        if function is None:
            model = model_of(WHAT, self._file, values, shapes, frozen=True)
            function = compiled(model, self._graph)
        self._functions[key] = function
        if len(self._functions) > KEPT:
            del self._functions[next(iter(self._functions))]
        return function

    def report(self) -> Report:
        """Return what was compiled for the latest call, and how."""
        if not self._functions:
            raise GraphError(f"{WHAT}: nothing is compiled before the first call")
        report: Report = next(reversed(self._functions.values())).report()
        return report
