"""Operators of opsets before 13: rows, and attributes that became inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, defs

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import Node, constant
from minigraph.onnx.operators.table import ROWS, Row
from minigraph.onnx.tensors import dtype_of

FIRST_STABLE_OPSET = 13  # since which the rows of the table hold
IGNORED = ("broadcast", "consumed_inputs", "is_test", "output_sequence")
RENAMED = {"paddings": "pads", "value": "constant_value"}


def modern(
    name: str, inputs: Sequence[Node | None], attributes: Mapping[str, Any]
) -> tuple[list[Node | None], dict[str, Any]]:
    """Return an old operator's inputs and attributes as those of `FIRST_STABLE_OPSET`.

    An attribute with the name of an input of that opset becomes this input.
    """
    schema = defs.get_schema(name, FIRST_STABLE_OPSET, "")
    positions = {x.name.lower(): i for i, x in enumerate(schema.inputs)}
    x, all_inputs, others = inputs[0] if inputs else None, [*inputs], {}
    for attribute, value in attributes.items():
        position = positions.get(RENAMED.get(attribute, attribute))
        if attribute in schema.attributes or (position is None and attribute not in IGNORED):
            others[attribute] = value
        elif position is not None:
            array = np.array(value)
            if array.dtype.kind == "f":  # a bound or a border of the first input, or scales
                array = array.astype("float32" if array.ndim or x is None else x.dtype)
            all_inputs += [None] * (position + 1 - len(all_inputs))
            all_inputs[position] = constant(array)
    return all_inputs, others


def row_of(name: str, opset: int) -> Row:
    """Return the row of an operator of an opset."""
    newest, row = OLD_ROWS.get(name, (0, ROWS[name]))
    return row if opset <= newest else ROWS[name]


def _from_front(axis: int, x: Node) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"axis {axis} does not exist; there are {x.ndim} axes")
    return axis % x.ndim


def _along_last_axes(row: Row) -> Row:
    """Return a row that takes all axes from `axis` on as one."""

    def call(x: Node, axis: int = 1) -> Node:
        axis = _from_front(axis, x)
        flat = ops.reshape(x, (*x.shape[:axis], math.prod(x.shape[axis:])))
        return ops.reshape(row(flat, axis=-1), x.shape)

    return call


def _from_axis(row: Row) -> Row:
    """Return a row whose second operand begins at an axis of the first one."""

    def call(x: Node, y: Node, axis: int | None = None) -> Node:
        if axis is not None:
            y = ops.reshape(y, (*y.shape, *(1,) * (x.ndim - _from_front(axis, x) - y.ndim)))
        return row(x, y)

    return call


def _batch_norm(x: Node, *parameters: Node, spatial: int = 1, **attributes: Any) -> Any:
    if spatial or x.ndim == 2:
        return ROWS["BatchNormalization"](x, *parameters, **attributes)
    scale, bias, mean, var = parameters  # one number of each for each pixel
    return (x - mean) * ops.rsqrt(var + attributes.get("epsilon", 1e-5)) * scale + bias


# The newest opset in which an operator meant this, and its row.
OLD_ROWS: dict[str, tuple[int, Row]] = {
    "BatchNormalization": (8, _batch_norm),
    "Cast": (5, lambda x, to: ops.astype(x, dtype_of(TensorProto.DataType.Value(to)))),
    "Concat": (3, lambda *xs, axis=1: ops.concat(xs, axis)),
    "PRelu": (6, functools.partial(_from_axis(ROWS["PRelu"]), axis=1)),
    "Resize": (10, functools.partial(ROWS["Upsample"], nearest_mode="")),
}
for _name in ("Hardmax", "LogSoftmax", "Softmax"):
    OLD_ROWS[_name] = 12, _along_last_axes(ROWS[_name])
for _name in ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"):
    OLD_ROWS[_name] = 6, _from_axis(ROWS[_name])
