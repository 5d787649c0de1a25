"""Rows of operators that make tensors, copy them, or change their dtype."""

from __future__ import annotations

from typing import Any

import torch

from minigraph import ops
from minigraph.graph import Node, as_node
from minigraph.torch.operators.table import DTYPES, ROWS, row, rows

rows(
    {
        "clone alias lift_fresh_copy lift_fresh _conj": lambda x: x,
        "detach detach_": ops.stop_gradient,
        "copy": lambda x, source, *unused: ops.broadcast_to(
            ops.astype(as_node(source), x.dtype), x.shape
        ),
        "full_like": lambda x, value, dtype=None: ops.full(
            x.shape, value, DTYPES[dtype] if dtype else x.dtype
        ),
        "empty.memory_format": lambda size, dtype=None: _full(size, 0.0, dtype),
        "scalar_tensor": lambda value, dtype=None: ops.full(
            (), value, DTYPES[dtype or torch.float32]
        ),
        "dropout feature_dropout": ops.dropout,
        "rand": lambda size, dtype=None: ops.random_uniform(
            tuple(size), dtype=DTYPES[dtype or torch.float32]
        ),
        "randn": lambda size, dtype=None: ops.random_normal(
            tuple(size), dtype=DTYPES[dtype or torch.float32]
        ),
        "rand_like": lambda x, **unused: ops.random_uniform(x.shape, dtype=x.dtype),
        "randn_like": lambda x, **unused: ops.random_normal(x.shape, dtype=x.dtype),
        "uniform": lambda x, low, high, **unused: ops.random_uniform(x.shape, low, high, x.dtype),
        "normal_functional": lambda x, mean, std, **unused: ops.random_normal(
            x.shape, mean, std, x.dtype
        ),
        "bernoulli.p": lambda x, p, **unused: ops.random_uniform(x.shape) < p,
    }
)


@row("_to_copy")
def _to(x: Node, dtype: torch.dtype | None = None) -> Node:
    return x if dtype is None else ops.astype(x, DTYPES[dtype])


ROWS["prims.convert_element_type.default"] = _to


@row("full")
def _full(size: Any, value: Any, dtype: torch.dtype | None = None) -> Node:
    if dtype is None:
        dtype = torch.get_default_dtype() if isinstance(value, float) else torch.tensor(value).dtype
    return ops.full(tuple(size), value, DTYPES[dtype])


@row("arange.start_step")
def _range(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None) -> Node:
    floats = any(isinstance(each, float) for each in (start, end, step))
    kind = dtype or (torch.float32 if floats else torch.int64)
    return ops.arange(start, end, step, DTYPES[kind])


@row("native_dropout")
def _native_dropout(x: Node, p: float, training: bool | None) -> tuple[Node, Node]:
    kept = ops.dropout(ops.ones_like(x), p, training is not False)
    return x * kept, kept != 0
