"""A model of ONNX as a compiled function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.graph_compiler import comp_graph
from minigraph.inspect.report import Report
from minigraph.onnx.model import given_values, inputs_of, model_of
from minigraph.onnx.tensors import File, read
from minigraph.onnx.values import NeedsValue

WHAT = "onnx.function"
KEPT = 16  # functions for values, of one model


def function(model: Any, device: str = "cpu", options: Mapping[str, Any] | None = None) -> Any:
    """Return a compiled function of a model: called with arrays, in the order of the file's inputs.

    model    a path, or an onnx.ModelProto
    device   as in `mg.comp_graph`
    options  as in `mg.comp_graph`; without them the level is 3

    It returns an array, or a list of them in the file's order.  Its parameters are constants, as
    with `compile(..., freeze=True)`.  It has what functions of `compile` have, such as `report()`.
    Where an input gives sizes, axes or the like, it is compiled at its first call, for that value,
    and again for another.  Raises what `load` raises.

    >>> import onnx
    >>> net = "net (float[n, 2] x) => (float[n, 2] y) { y = Relu (x) }"
    >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>' + net)
    >>> predict = mg.onnx.function(model, "reference")
    >>> predict([[-1.0, 2.0]])
    array([[0., 2.]], dtype=float32)
    """
    file = read(WHAT, model)
    chosen = {"graph_opt_level": 3, **(options or {})}
    try:
        return _compiled(file, device, chosen, {})
    except NeedsValue as error:
        return ValueFunction(file, device, chosen, error.names)


class ValueFunction:
    """The function of a model in which shapes depend on values of inputs: one for each value met.

    names  the inputs whose values are constants of a function
    """

    def __init__(
        self, file: File, device: str, options: Mapping[str, Any], names: list[str]
    ) -> None:
        self._file, self._device, self._options = file, device, options
        self._names = names
        self._by_value: dict[Any, Any] = {}
        self._inputs = [info.name for info in inputs_of(file.model.graph)]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, compiled for these values if they are new."""
        if len(args) > len(self._inputs):
            raise GraphError(f"{WHAT}: {len(args)} arrays for {len(self._inputs)} inputs")
        given = dict(zip(self._inputs, args, strict=False)) | kwargs
        while True:
            if lacking := [name for name in self._names if name not in given]:
                raise GraphError(f"{WHAT}: the call lacks a value for the input {lacking[0]!r}")
            values = given_values(WHAT, self._file, {name: given[name] for name in self._names})
            try:
                chosen = self._choose(values)
            except NeedsValue as error:
                self._names += [name for name in error.names if name not in self._names]
                self._by_value.clear()
                continue
            others = [x for name, x in zip(self._inputs, args, strict=False) if name not in values]
            named = {name: x for name, x in kwargs.items() if name not in values}
            return chosen(*others, **named)

    def _choose(self, values: Mapping[str, Array]) -> Any:
        """Return the function for these values; the latest ones are kept."""
        key = tuple((x.shape, x.tobytes()) for x in values.values())
        chosen = self._by_value.pop(key, None)
        if chosen is None:
            chosen = _compiled(self._file, self._device, self._options, values)
        self._by_value[key] = chosen
        if len(self._by_value) > KEPT:
            del self._by_value[next(iter(self._by_value))]
        return chosen

    def report(self) -> Report:
        """Return what was compiled for the values of the latest call, and how."""
        if not self._by_value:
            raise GraphError(f"{WHAT}: the function has no values yet; call it")
        report: Report = next(reversed(self._by_value.values())).report()
        return report


def _compiled(
    file: File, device: str, options: Mapping[str, Any], values: Mapping[str, Any]
) -> Any:
    model = model_of(WHAT, file, values)
    outputs = model.outputs[0] if len(model.outputs) == 1 else model.outputs
    return comp_graph(device, options).compile(model.inputs, outputs, freeze=True)
