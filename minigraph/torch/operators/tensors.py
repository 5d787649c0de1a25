"""Rows of operators that make tensors, copy them, or change their dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from minigraph import ops
from minigraph.graph import Node, as_node
from minigraph.torch.operators.table import DTYPES, Row, row, rows


@row("_to_copy", "to.dtype", "to.dtype_layout", "to.device")
def _to(x: Node, *others: Any, dtype: torch.dtype | None = None, **unused: Any) -> Node:
    chosen = next((each for each in (*others, dtype) if isinstance(each, torch.dtype)), None)
    return x if chosen is None else ops.astype(x, DTYPES[chosen])


@row("type_as", "to.other")
def _type_as(x: Node, like: Node, *unused: Any, **others: Any) -> Node:
    return ops.astype(x, like.dtype)


@row("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh", "_conj", "resolve_conj")
def _same(x: Node, **unused: Any) -> Node:
    return x


@row("detach", "detach_")
def _detach(x: Node) -> Node:
    return ops.stop_gradient(x)


@row("copy")
def _copy(x: Node, source: Any, *unused: Any) -> Node:
    return ops.broadcast_to(ops.astype(as_node(source), x.dtype), x.shape)


@row("full")
def _full(size: Any, value: Any, dtype: torch.dtype | None = None, **unused: Any) -> Node:
    kind = DTYPES[dtype] if dtype else np.dtype(type(value) if type(value) is not float else "f4")
    return ops.full(tuple(size), value, kind)


@row("full_like", "new_full")
def _full_like(x: Node, *values: Any, dtype: torch.dtype | None = None, **unused: Any) -> Node:
    shape = tuple(values[0]) if len(values) > 1 else x.shape
    return ops.full(shape, values[-1], DTYPES[dtype] if dtype else x.dtype)


def _filled(value: int) -> tuple[Row, Row]:
    def of_size(size: Any, *unused: Any, dtype: torch.dtype | None = None, **others: Any) -> Node:
        return ops.full(tuple(size), value, DTYPES[dtype or torch.float32])

    def like(x: Node, size: Any = None, *, dtype: torch.dtype | None = None, **others: Any) -> Node:
        shape = x.shape if size is None else tuple(size)
        return ops.full(shape, value, DTYPES[dtype] if dtype else x.dtype)

    return of_size, like


_zeros, _zeros_like = _filled(0)
_ones, _ones_like = _filled(1)
rows(
    {
        "zeros empty.memory_format": _zeros,
        "ones": _ones,
        "zeros_like new_zeros empty_like new_empty": _zeros_like,
        "ones_like new_ones": _ones_like,
    }
)


@row("scalar_tensor")
def _scalar_tensor(value: Any, dtype: torch.dtype | None = None, **unused: Any) -> Node:
    return ops.full((), value, DTYPES[dtype or torch.float32])


@row("arange")
def _arange(end: Any, **named: Any) -> Node:
    return _range(0, end, **named)


@row("arange.start", "arange.start_step")
def _range(
    start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None, **unused: Any
) -> Node:
    floats = any(isinstance(each, float) for each in (start, end, step))
    kind = dtype or (torch.float32 if floats else torch.int64)
    return ops.arange(start, end, step, DTYPES[kind])


@row("rand_like")
def _rand_like(x: Node, **unused: Any) -> Node:
    return ops.random_uniform(x.shape, dtype=x.dtype)


@row("randn_like")
def _randn_like(x: Node, **unused: Any) -> Node:
    return ops.random_normal(x.shape, dtype=x.dtype)


@row("dropout", "feature_dropout")
def _dropout(x: Node, p: float, training: bool) -> Node:
    return ops.dropout(x, p, training)


@row("native_dropout")
def _native_dropout(x: Node, p: float, training: bool | None) -> tuple[Node, Node]:
    kept = ops.dropout(ops.ones_like(x), p, training is not False)
    return x * kept, kept != 0


@row("rand")
def _rand(size: Any, dtype: torch.dtype | None = None) -> Node:
    return ops.random_uniform(tuple(size), dtype=DTYPES[dtype or torch.float32])


@row("randn")
def _randn(size: Any, dtype: torch.dtype | None = None) -> Node:
    return ops.random_normal(tuple(size), dtype=DTYPES[dtype or torch.float32])


@row("uniform")
def _uniform(x: Node, low: float = 0.0, high: float = 1.0, **unused: Any) -> Node:
    return ops.random_uniform(x.shape, low, high, x.dtype)


@row("normal_functional")
def _normal(x: Node, mean: float = 0.0, std: float = 1.0, **unused: Any) -> Node:
    return ops.random_normal(x.shape, mean, std, x.dtype)


@row("bernoulli", "bernoulli.p")
def _bernoulli(x: Node, p: float | None = None, **unused: Any) -> Node:
    return ops.random_uniform(x.shape) < (x if p is None else p)
