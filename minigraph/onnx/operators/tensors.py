"""Rows of operators that make tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Array, Node, constant
from minigraph.onnx.operators.table import along, row, rows
from minigraph.onnx.tensors import CODES, dtype_of
from minigraph.onnx.values import integer, integers, number, value_of

FLOAT = 1  # the number of float32
rows(
    {
        "EyeLike": lambda x, dtype=None, k=0: ops.eye(
            x.shape[0], x.shape[1], k, x.dtype if dtype is None else dtype_of(dtype)
        ),
        "Trilu": lambda x, k=None, upper=1: (ops.triu if upper else ops.tril)(x, int(number(k, 0))),
        "RandomUniform RandomUniformLike": (
            lambda x=None, shape=None, dtype=None, low=0.0, high=1.0, seed=0.0: ops.random_uniform(
                *_like(x, shape, dtype, low, high)
            )
        ),
        "RandomNormal RandomNormalLike": (
            lambda x=None, shape=None, dtype=None, mean=0.0, scale=1.0, seed=0.0: ops.random_normal(
                *_like(x, shape, dtype, mean, scale)
            )
        ),
        "Bernoulli": lambda x, dtype=None, seed=0.0: ops.astype(
            ops.random_uniform(x.shape, dtype=x.dtype) < x,
            x.dtype if dtype is None else dtype_of(dtype),
        ),
        "OptionalHasElement": lambda x=None: constant(np.array(x is not None)),
    }
)


@row("Constant")
def _constant(**given: Any) -> Node:
    ((name, value),) = given.items()
    kind = {"value_int": "int64", "value_ints": "int64", "value_float": "float32"}
    kind |= {"value_floats": "float32"}
    if name == "value":
        return constant(value)
    if name not in kind:
        raise GraphError(f"there is no constant of {name} here")
    return constant(np.array(value, kind[name]))


@row("ConstantOfShape")
def _constant_of_shape(shape: Node, value: Array | None = None) -> Node:
    fill = np.zeros(1, np.float32) if value is None else value
    return ops.full(tuple(integers(shape) or ()), fill.reshape(()), fill.dtype)


@row("Range")
def _range(start: Node, limit: Node, delta: Node, stash_type: int = FLOAT) -> Node:
    if start.dtype.kind in "iu":
        return ops.arange(integer(start), integer(limit), integer(delta), start.dtype)
    a, b, step = (float(value_of(x).reshape(())) for x in (start, limit, delta))
    count = max(int(np.ceil((b - a) / step)), 0)
    wide = np.promote_types(start.dtype, np.float32)
    return ops.astype(start + ops.arange(count, dtype=wide) * delta, start.dtype)


@row("OneHot")
def _one_hot(indices: Node, depth: Node, values: Node, axis: int = -1) -> Node:
    count = int(number(depth, 0))
    labels = ops.astype(indices, "int64")
    labels = ops.expand_dims(ops.where(labels < 0, labels + count, labels), axis)
    is_label = labels == along(ops.arange(count), labels.ndim, axis)
    return ops.where(is_label, values[1], values[0])


def _like(x: Node | None, shape: Any, dtype: int | None, *how: float) -> tuple[Any, ...]:
    sizes = tuple(shape) if x is None else x.shape
    own = CODES[np.dtype("float32") if x is None else x.dtype]
    return sizes, *how, dtype_of(own if dtype is None else dtype)


@row("Dropout", counting=True)
def _dropout(
    x: Node, ratio: Node | None = None, training: Node | None = None, seed: float = 0.0,
    outputs: int = 1,
) -> list[Node]:  # fmt: skip
    p = number(ratio, 0.5) if training is not None and number(training, 0) else 0.0
    if not p:
        return [x, ops.ones(x.shape, "bool")][:outputs]
    kept = ops.dropout(ops.ones_like(x), p)
    return [x * kept, kept != 0]
