"""Rows of recurrent layers, which run over time in one loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph import nn
from minigraph.errors import GraphError
from minigraph.graph import DType, Node
from minigraph.torch.operators.table import Row, rows

PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _layers(layer: type[Any], **named: Any) -> Row:
    """Return the row of a recurrent layer.

    named  arguments of the layer
    """

    def call(
        x: Node,
        state: Any,
        weights: Sequence[Node],
        bias: bool,
        layers: int,
        dropout: float,
        training: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Node]:
        parts = PARTS if bias else PARTS[:2]
        if len(weights) != len(parts) * layers * (2 if bidirectional else 1):
            raise GraphError("recurrent layers have no proj_size here")
        left = iter(weights)

        class Given(layer):  # type: ignore[misc]
            """The layer on weights of the graph, which come in the order it makes its own in."""

            def _add_weights(self, width: Any, suffix: str, bias: bool, dtype: DType) -> None:
                for part in parts:
                    setattr(self, part + suffix, next(left))

        net = Given(
            x.shape[-1], weights[1].shape[-1], layers, bias=bias, batch_first=batch_first,
            dropout=dropout, bidirectional=bidirectional, **named,
        ).train(training)  # fmt: skip
        y, last = net.forward(x, state)
        return [y, *(last if isinstance(last, tuple) else [last])]

    return call


rows(
    {
        "lstm.input": _layers(nn.LSTM),
        "gru.input": _layers(nn.GRU),
        "rnn_tanh.input": _layers(nn.RNN),
        "rnn_relu.input": _layers(nn.RNN, nonlinearity="relu"),
    }
)
