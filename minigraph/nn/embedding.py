"""Vectors of tokens, as in `torch.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph import ops
from minigraph.arguments import Axis, Size, checked, shown
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn import init
from minigraph.nn.init import Weights
from minigraph.nn.module import Module
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import take_tokens
from minigraph.ops.shape import normalize_axis


class Embedding(Module):
    """The vectors (..., embedding_dim) of tokens (...), integers from 0 to num_embeddings - 1.

    A token that is out of range, a negative one too, is a GraphError at the call.

    padding_idx  a token whose vector starts as zeros and is not learnt; -1 is the last one

    >>> nn.Embedding(1000, 32)(mg.input("tokens", (4, 20), "int64")).shape
    (4, 20, 32)
    """

    @checked
    def __init__(
        self,
        num_embeddings: Size,
        embedding_dim: Size,
        padding_idx: Axis | None = None,
        dtype: Weights = "float32",
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(init.full((num_embeddings, embedding_dim), 0, dtype))
        init.normal_(self.weight)
        self.padding_idx = padding_idx
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ShapeError(
                    f"Embedding: padding_idx is {shown(padding_idx)}; "
                    f"there are {num_embeddings} tokens"
                )
            self.padding_idx = normalize_axis(padding_idx, num_embeddings)
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
