"""Attention with weights, and the encoder of a transformer, as in `torch.nn`."""

from __future__ import annotations

import copy
import math
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

import numpy as np

from minigraph import ops
from minigraph.arguments import Count, Layers, Probability, checked, instance_of
from minigraph.errors import ShapeError
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn import init
from minigraph.nn.container import ModuleList
from minigraph.nn.init import Weights
from minigraph.nn.layer import layer_of
from minigraph.nn.linear import Linear
from minigraph.nn.module import Module
from minigraph.nn.normalization import LayerNorm
from minigraph.nn.stateless import Dropout
from minigraph.ops.attention import attention, attention_scores, attention_weights
from minigraph.ops.elementwise import kind


@layer_of()
class MultiheadAttention(Module):
    """Attention in `num_heads` parts of `embed_dim` numbers each (Vaswani et al., 2017).

    dropout      share of the attention's weights that is dropped in training
    batch_first  whether expressions are (n, length, embed_dim), not (length, n, embed_dim)

    >>> attention = nn.MultiheadAttention(32, num_heads=4, batch_first=True)
    >>> x = mg.input("x", (8, 20, 32))  # n, tokens, width
    >>> y, weights = attention(x, x, x)
    >>> y.shape, weights.shape
    ((8, 20, 32), (8, 20, 20))
    """

    embed_dim: Count
    num_heads: Count
    dropout: Probability = 0.0
    bias: bool = True
    _: KW_ONLY
    batch_first: bool = False
    dtype: Weights = "float32"

    def __post_init__(self) -> None:
        width, dtype = self.embed_dim, self.dtype
        if width % self.num_heads:
            raise ShapeError(
                f"MultiheadAttention: embed_dim {width} is not a multiple of "
                f"num_heads {self.num_heads}"
            )
        self.in_proj_weight = Parameter(init.full((3 * width, width), 0, dtype))
        bound = math.sqrt(6 / (4 * width))  # Glorot and Bengio, 2010
        init.uniform_(self.in_proj_weight, -bound, bound)
        self.in_proj_bias = Parameter(init.full((3 * width,), 0, dtype)) if self.bias else None
        self.out_proj = Linear(width, width, self.bias, dtype)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Node, Node | None]:
        """Return the result, with the query's shape, and the weights (n, l, s), None unless needed.

        As in torch, if all keys of a query are masked, its weights are NaN if needed, else 0.

        key_padding_mask      (n, s): bools (True masks a key), or floats to be added
        attn_mask             (l, s) or (n * num_heads, l, s), likewise
        average_attn_weights  whether to return the mean weights of all heads; else (n, heads, l, s)
        is_causal             whether to mask the keys after each query's position
        """
        width, xs = self.embed_dim, [as_node(x) for x in (query, key, value)]
        heads = []
        for i, x in enumerate(xs):
            if x.ndim != 3 or x.shape[2] != width:
                layout = "(n, length, {})" if self.batch_first else "(length, n, {})"
                raise ShapeError(f"the inputs are {layout.format(width)}, not {x.shape}")
            rows = slice(i * width, (i + 1) * width)
            bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
            y = ops.linear(x, self.in_proj_weight[rows], bias)
            y = y if self.batch_first else y.transpose(1, 0, 2)
            y = y.reshape(*y.shape[:2], self.num_heads, width // self.num_heads)
            heads.append(y.transpose(0, 2, 1, 3))  # (n, heads, length, width of a head)
        q, k, v = heads
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        weights = None
        if need_weights:
            weights = attention_weights(attention_scores(q, k, mask, is_causal), masked=False)
            weights = ops.dropout(weights, self.dropout, self.training)
            joined = ops.matmul(weights, v)
        else:
            joined = attention(q, k, v, mask, is_causal, None, self.dropout if self.training else 0)
        joined = joined.transpose(0, 2, 1, 3)
        y = self.out_proj(joined.reshape(*joined.shape[:2], width))
        y = y if self.batch_first else y.transpose(1, 0, 2)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return y, weights

    def _mask(self, q: Node, k: Node, padding: Any, attention: Any) -> Node | None:
        """Return the sum of both masks, which is added to the products of queries and keys."""
        n, length, keys = q.shape[0], q.shape[2], k.shape[2]
        mask = None
        if padding is not None:
            padding = as_node(padding)
            if padding.shape != (n, keys):
                raise ShapeError(f"key_padding_mask is {(n, keys)}, not {padding.shape}")
            mask = _additive_mask(padding.reshape(n, 1, 1, keys), q)
        if attention is not None:
            attention = as_node(attention)
            shape = (n * self.num_heads, length, keys)
            if attention.shape not in (shape, shape[1:]):
                raise ShapeError(f"attn_mask is {shape[1:]} or {shape}, not {attention.shape}")
            if attention.ndim == 3:
                attention = attention.reshape(n, self.num_heads, length, keys)
            attention = _additive_mask(attention, q)
            mask = attention if mask is None else mask + attention
        return mask


def _additive_mask(mask: Node, x: Node) -> Node:
    """Return a mask as floats to add: -inf for True in a mask of bools."""
    if kind(mask.dtype) == "b":
        mask = ops.where(mask, -np.inf, 0.0)
    return mask.astype(x.dtype)


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself, then two linear layers, each added to its input.

    norm_first  whether to normalise the input of each part, not the sum

    >>> layer = nn.TransformerEncoderLayer(32, nhead=4, batch_first=True)
    >>> layer(mg.input("x", (8, 20, 32))).shape
    (8, 20, 32)
    """

    @checked
    def __init__(
        self,
        d_model: Count,
        nhead: Count,
        dim_feedforward: Count = 2048,
        dropout: Probability = 0.1,
        activation: Literal["relu", "gelu"] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: Weights = "float32",
    ) -> None:
        super().__init__()
        self.activation, self.norm_first = activation, norm_first
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Node:
        """Return an expression like src; masks are those of `MultiheadAttention`."""

        def attention(x: Node) -> Node:
            masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
            y, _ = self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **masks)
            return self.dropout1(y)

        def feed_forward(x: Node) -> Node:
            activation = ops.relu if self.activation == "relu" else ops.gelu
            return self.dropout2(self.linear2(self.dropout(activation(self.linear1(x)))))

        x = as_node(src)
        if self.norm_first:
            x = x + attention(self.norm1(x))
            return x + feed_forward(self.norm2(x))
        x = self.norm1(x + attention(x))
        return self.norm2(x + feed_forward(x))


NORM = instance_of(Module, "a module")


class TransformerEncoder(Module):
    """A stack of copies of an encoder's layer, with the same initial weights.

    norm  a module that normalises the result of the last layer, such as a `LayerNorm`

    >>> layer = nn.TransformerEncoderLayer(32, nhead=4, batch_first=True)
    >>> encoder = nn.TransformerEncoder(layer, num_layers=2)
    >>> encoder(mg.input("x", (8, 20, 32)), is_causal=True).shape
    (8, 20, 32)
    """

    @checked
    def __init__(
        self, encoder_layer: Module, num_layers: Layers, norm: Annotated[Module, NORM] | None = None
    ) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.norm = norm

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Node:
        """Return an expression like src; masks are those of `MultiheadAttention`."""
        masks = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask}
        masks["is_causal"] = is_causal or None
        masks = {name: value for name, value in masks.items() if value is not None}
        x = as_node(src)
        for layer in self.layers:
            x = layer(x, **masks)
        return x if self.norm is None else self.norm(x)
