"""Packed sequences: the steps of sequences of several lengths, without the padding.

A packed batch is a masked selection of the padded batch.  A recurrent layer runs over the padded
batch, and keeps the state of a sequence beyond its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.torch.masked_selection import ACROSS_ROWS, MaskedSelection
from minigraph.torch.operators import define
from minigraph.torch.operators.layers import LAYERS, recurrent_layer

PADDED = (
    "the batch is padded beyond its longest sequence, which pad_packed_sequence cuts off: give it "
    "total_length, or cut the batch"
)
LENGTHS = (
    "lengths must be at least 1, at most the steps of the batch, and sorted with enforce_sorted"
)


class _Longest(int):
    """The padded number of steps, in place of the unknown length of the longest sequence."""


def pack(
    x: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the valid steps, and how many sequences have each step, as PyTorch does."""
    x = x.transpose(0, 1) if batch_first else x
    sizes = lengths.to(x.device)
    is_sorted = sizes == sizes.sort(descending=True).values
    is_valid = is_sorted & (sizes > 0) & (sizes <= x.shape[0])
    x = torch.ops.minigraph.check(x, is_valid, LENGTHS)
    # Kept with the lengths, so that inputs and labels share a mask.
    counts_by_steps = vars(lengths).setdefault("counts", {})
    steps = x.shape[0]
    if str(steps) not in counts_by_steps:
        valid = torch.arange(steps, device=x.device)[:, None] < sizes
        counts_by_steps[str(steps)] = counts = valid.sum(1)
        counts.valid = valid
    counts = counts_by_steps[str(steps)]
    return x[counts.valid], counts


def pad(
    data: torch.Tensor, counts: torch.Tensor, batch_first: bool, value: float, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded batch, of `length` steps, and the lengths of its sequences."""
    valid = _valid(counts)
    y = data.new_full((*valid.shape, *data.shape[1:]), value).index_put((valid,), data)
    if isinstance(length, _Longest):
        y = torch.ops.minigraph.check(y, valid.any(1), PADDED)
    elif length > y.shape[0]:
        y = torch.cat([y, y.new_full((length - y.shape[0], *y.shape[1:]), value)])
    return (y.transpose(0, 1) if batch_first else y), valid.sum(0)


def _valid(counts: torch.Tensor) -> torch.Tensor:
    valid: torch.Tensor | None = getattr(counts, "valid", None)
    if valid is None:
        raise GraphError("only packed sequences that the model itself packs are supported")
    return valid


def size(x: torch.Tensor, *axis: Any) -> Any:
    """Return a size; for the counts of a packed batch a `_Longest`, which `pad` recognises."""
    n = x.size(*axis)
    return _Longest(n) if hasattr(x, "valid") and isinstance(n, int) else n


def recurrent(forward: Any, layer: Any, input: Any, hx: Any = None) -> Any:
    """Return the results of a recurrent layer, also for packed sequences that are traced.

    forward  the layer's own method, for other inputs
    """
    if not (isinstance(input, PackedSequence) and hasattr(input.batch_sizes, "valid")):
        return forward(layer, input, hx)
    x, valid = input, _valid(input.batch_sizes)
    if layer.mode == "LSTM" and layer.proj_size:
        raise GraphError("proj_size of recurrent layers is not supported")
    if hx is None:
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        zeros = x.data.new_zeros(count, valid.shape[1], layer.hidden_size)
        state = [zeros] * (2 if layer.mode == "LSTM" else 1)
    else:
        states = hx if isinstance(hx, tuple) else (hx,)
        state = [_reordered(h, x.sorted_indices) for h in states]
    weights = [getattr(layer, name) for name in layer._flat_weights_names]
    y, *last = torch.ops.minigraph.packed_layer(
        *(x.data, valid, state, weights, layer.mode, layer.bias, layer.num_layers),
        *(layer.dropout, layer.training, layer.bidirectional),
    )
    final_states = tuple(_reordered(h, x.unsorted_indices) for h in last)
    packed = PackedSequence(y, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
    return packed, final_states if layer.mode == "LSTM" else final_states[0]


def _reordered(h: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    return h if order is None else h.index_select(1, order)


def _shapes(
    x: torch.Tensor, valid: Any, state: Sequence[torch.Tensor], weights: Any, mode: str,
    bias: bool, layers: int, dropout: float, training: bool, bidirectional: bool,
) -> list[torch.Tensor]:  # fmt: skip
    width = state[0].shape[-1] * (2 if bidirectional else 1)
    return [x.new_empty(x.shape[0], width), *map(torch.empty_like, state)]


def _row(
    x: MaskedSelection, valid: Node, state: Sequence[Node], weights: Sequence[Node], mode: str,
    bias: bool, layers: int, dropout: float, training: bool, bidirectional: bool,
) -> list[Any]:  # fmt: skip
    padded = ops.reshape(x.rows, (*valid.shape, x.rows.shape[-1]))
    layer, keywords = LAYERS[mode]
    start = tuple(state) if mode == "LSTM" else state[0]
    settings = bias, layers, dropout, training, bidirectional, False
    y, *last = recurrent_layer(layer, padded, start, weights, *settings, valid, **keywords)
    return [MaskedSelection(y, x.key), *last]


define(
    "packed_layer(Tensor x, Tensor valid, Tensor[] state, Tensor[] weights, str mode, bool bias, "
    "int layers, float dropout, bool training, bool bidirectional) -> Tensor[]",
    _shapes,
    _row,
)
ACROSS_ROWS["minigraph.packed_layer.default"] = _row
define(
    "check(Tensor y, Tensor condition, str message) -> Tensor",
    lambda y, *unused: torch.empty_like(y),
    lambda y, condition, message: ops.check(condition, message, y),
)
