"""Vectors of tokens, as in `torch.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph import ops
from minigraph.arguments import Axis, Size, shown
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn import init
from minigraph.nn.init import Weights
from minigraph.nn.layer import layer_of
from minigraph.nn.module import Module
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import take_tokens
from minigraph.ops.shape import normalize_axis


@layer_of()
class Embedding(Module):
    """The vectors (..., embedding_dim) of tokens (...), integers from 0 to num_embeddings - 1.

    A token that is out of range, a negative one too, is a GraphError at the call.

    padding_idx  a token whose vector starts as zeros and is not learnt; -1 is the last one

    >>> nn.Embedding(1000, 32)(mg.input("tokens", (4, 20), "int64")).shape
    (4, 20, 32)
    """

    num_embeddings: Size
    embedding_dim: Size
    padding_idx: Axis | None = None
    dtype: Weights = "float32"

    def __post_init__(self) -> None:
        count, padding = self.num_embeddings, self.padding_idx
        self.weight = Parameter(init.full((count, self.embedding_dim), 0, self.dtype))
        init.normal_(self.weight)
        if padding is not None:
            if not -count <= padding < count:
                raise ShapeError(
                    f"Embedding: padding_idx is {shown(padding)}; there are {count} tokens"
                )
            self.padding_idx = normalize_axis(padding, count)
            values = np.array(self.weight.numpy())
            values[self.padding_idx] = 0
            self.weight.assign(values)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if kind(x.dtype) not in "iu":
            raise DTypeError(f"tokens are integers, not {x.dtype.name}")
        y = take_tokens(self.weight, x)
        if self.padding_idx is None:
            return y
        # An int64, because a token's own type may be too small for `padding_idx`.
        padding = ops.expand_dims(x.astype("int64") == self.padding_idx, -1)
        return ops.where(padding, ops.stop_gradient(y), y)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"
