"""Recurrent layers and their cells, as in `torch.nn`.

A layer multiplies the inputs of all steps by its weights in one product, before the loop over time,
which `ops.scan` runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from minigraph import ops
from minigraph.arguments import Count, Layers, Probability, at_least
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn import init
from minigraph.nn.init import Weights
from minigraph.nn.layer import layer_of
from minigraph.nn.module import Module

State = tuple[Node, ...]  # h, and for an LSTM c
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

Width = Annotated[int, at_least(1, ShapeError, most=1 << 40)]  # has a square root


# Arguments that `repr` shows unless they have their defaults.
REPR_FIELDS = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "nonlinearity")


class _Recurrence(Module):
    """The base of layers and cells: the weights and the computation of one step.

    gates         number of parts of `hidden_size` rows in the weights
    states        number of arrays that each step passes to the next
    folds_biases  whether both biases are added to the inputs, before the loop
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    folds_biases: ClassVar[bool] = True

    _repr_format = "{input_size}, {hidden_size}"

    input_size: Any
    hidden_size: Any
    bias: Any
    dtype: Any

    def _add_weights(self, width: int, suffix: str) -> None:
        rows, bound = self.gates * self.hidden_size, 1 / math.sqrt(self.hidden_size)
        shapes = ((rows, width), (rows, self.hidden_size), (rows,), (rows,))
        for name, shape in zip(WEIGHTS, shapes if self.bias else shapes[:2], strict=False):
            weights = Parameter(init.full(shape, 0, self.dtype))
            setattr(self, name + suffix, init.uniform_(weights, -bound, bound))

    def _weights(self, suffix: str) -> tuple[Any, ...]:
        """Return the weights of the input and of h, and the biases that are added to each."""
        w, u, b, c = (getattr(self, name + suffix, None) for name in WEIGHTS)
        if b is not None and c is not None and self.folds_biases:
            b, c = b + c, None
        return w, u, b, c

    def _gate_arithmetic(self, state: State, projected: Node, product: Node) -> State:
        """Return the state after a step.

        projected  the projection of the input, (..., gates * hidden_size)
        product    the product of the last h and its weights, likewise
        """
        raise NotImplementedError

    def _states(self, hx: Any, shape: tuple[int, ...], x: Node) -> State:
        """Return h, and for an LSTM c, from the argument `hx`; zeros for None."""
        if hx is None:
            return tuple(ops.zeros(shape, x.dtype) for _ in range(self.states))
        parts = tuple(hx) if self.states > 1 and isinstance(hx, tuple | list) else (hx,)
        if len(parts) != self.states:
            raise GraphError(f"hx is {len(parts)} expressions; it is (h, c)")
        state = tuple(map(as_node, parts))
        for h in state:
            if h.shape != shape:
                raise ShapeError(f"hx has shape {h.shape}; it takes {shape}")
        return state

    def _as_result(self, state: Sequence[Node]) -> Any:
        return tuple(state) if self.states > 1 else state[0]

    def extra_repr(self) -> str:
        text = self._repr_format.format(**vars(self))
        for name in REPR_FIELDS:
            default = getattr(type(self), name, None)
            value = getattr(self, name, default)
            text += "" if value == default else f", {name}={value}"
        return text


class _Elman(_Recurrence):
    gates = 1
    nonlinearity: Any

    def _gate_arithmetic(self, state: State, projected: Node, product: Node) -> State:
        activation = ops.tanh if self.nonlinearity == "tanh" else ops.relu
        return (activation(projected + product),)


class _LongShortTerm(_Recurrence):
    """Hochreiter and Schmidhuber, 1997; with forget gates (Gers et al., 2000)."""

    gates = 4
    states = 2

    def _gate_arithmetic(self, state: State, projected: Node, product: Node) -> State:
        i, f, g, o = ops.split(projected + product, 4, -1)
        c = ops.sigmoid(f) * state[1] + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c


class _Gated(_Recurrence):
    """Cho et al., 2014, with the reset gate after the product, as in cuDNN."""

    gates = 3
    folds_biases = False

    def _gate_arithmetic(self, state: State, projected: Node, product: Node) -> State:
        (xr, xz, xn), (hr, hz, hn) = ops.split(projected, 3, -1), ops.split(product, 3, -1)
        z = ops.sigmoid(xz + hz)
        n = ops.tanh(xn + ops.sigmoid(xr + hr) * hn)
        return (n + z * (state[0] - n),)


class _Layers(_Recurrence):
    """Layers over time, one above the other, in one direction or in both."""

    num_layers: Any
    batch_first: Any
    dropout: Any
    bidirectional: Any

    def __post_init__(self) -> None:
        for layer in range(self.num_layers):
            width = self.hidden_size * len(self._directions) if layer else self.input_size
            for direction in self._directions:
                self._add_weights(width, f"_l{layer}{direction}")

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def forward(self, x: Any, hx: Any = None) -> tuple[Node, Any]:
        """Return the states h of all steps in the last layer, and the last state of each layer.

        x   (length, n, input_size), or (n, length, input_size) if `batch_first`, or without n
        hx  the first state, (directions * num_layers, n, hidden_size); an LSTM takes (h, c);
            None: zeros

        The first result has the shape of x with directions * hidden_size numbers, the second the
        shape of hx.
        """
        x = as_node(x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            layout = "(n, length, {})" if self.batch_first else "(length, n, {})"
            raise ShapeError(f"the input is {layout.format(self.input_size)}, not {x.shape}")
        count = len(self._directions) * self.num_layers
        axis = 0 if self.batch_first else 1  # of the sequences
        n = x.shape[axis : axis + 1] if x.ndim == 3 else ()
        state = self._states(hx, (count, *n, self.hidden_size), x)
        if x.ndim == 2:
            x, state = ops.expand_dims(x, axis), tuple(ops.expand_dims(h, 1) for h in state)
        final_states: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                x = ops.dropout(x, self.dropout, self.training)
            results = []
            for direction in self._directions:
                start = tuple(h[len(final_states)] for h in state)
                y, final = self._over_time(x, start, f"_l{layer}{direction}", layer == 0)
                results.append(y)
                final_states.append(final)
            x = ops.concat(results, -1) if len(results) > 1 else results[0]
        last = [ops.stack(h) for h in zip(*final_states, strict=True)]
        x = ops.swapaxes(x, 0, 1) if self.batch_first else x
        if not n:
            x, last = ops.squeeze(x, axis), [ops.squeeze(h, 1) for h in last]
        return x, self._as_result(last)

    def _over_time(self, x: Node, start: State, suffix: str, first: bool) -> tuple[Node, State]:
        """Return h of all steps (length, n, hidden_size) and the last state of one direction.

        suffix  of the names of the weights
        first   whether this is the first layer, whose x may be (n, length, ...)
        """
        w, u, b, c = self._weights(suffix)
        projected = ops.linear(x, w, b)
        if first and self.batch_first:
            projected = ops.swapaxes(projected, 0, 1)

        def step(state: State, part: Node) -> tuple[State, Node]:
            state = self._gate_arithmetic(state, part, ops.linear(state[0], u, c))
            return state, state[0]

        last, y = ops.scan(step, start, projected, reverse=suffix.endswith("_reverse"))
        return y, last


@layer_of()
class RNN(_Layers, _Elman):
    """h = tanh(W x + b + U h + c), or with relu (Elman, 1990).

    num_layers     layers, each of which takes the states of the one below
    batch_first    whether x and the result are (n, length, ...), not (length, n, ...)
    dropout        share of the states between the layers that is dropped in training
    bidirectional  whether a second loop runs backwards; the states of both are joined

    >>> y, h = nn.RNN(8, 16)(mg.input("x", (20, 4, 8)))  # tokens first, as in torch
    >>> y.shape, h.shape
    ((20, 4, 16), (1, 4, 16))
    """

    input_size: Count
    hidden_size: Width
    num_layers: Layers = 1
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    bias: bool = True
    batch_first: bool = False
    dropout: Probability = 0.0
    bidirectional: bool = False
    dtype: Weights = "float32"


@dataclass(eq=False, repr=False)
class _GatedLayers(_Layers):
    input_size: Count
    hidden_size: Width
    num_layers: Layers = 1
    bias: bool = True
    batch_first: bool = False
    dropout: Probability = 0.0
    bidirectional: bool = False
    dtype: Weights = "float32"


@layer_of()
class LSTM(_GatedLayers, _LongShortTerm):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); arguments as of `RNN`.

    Its state is (h, c).

    >>> y, (h, c) = nn.LSTM(8, 16, num_layers=2, batch_first=True)(mg.input("x", (4, 20, 8)))
    >>> y.shape, h.shape, c.shape
    ((4, 20, 16), (2, 4, 16), (2, 4, 16))
    """


@layer_of()
class GRU(_GatedLayers, _Gated):
    """Gated recurrent units (Cho et al., 2014); arguments as of `RNN`.

    >>> y, h = nn.GRU(8, 16, batch_first=True)(mg.input("x", (4, 20, 8)))
    >>> y.shape, h.shape
    ((4, 20, 16), (1, 4, 16))
    """


@dataclass(eq=False, repr=False)
class _Cell(_Recurrence):
    input_size: Count
    hidden_size: Width
    bias: bool = True

    def __post_init__(self) -> None:
        self._add_weights(self.input_size, "")

    def forward(self, x: Any, hx: Any = None) -> Any:
        """Return the new state (n, hidden_size), of an LSTM (h, c).

        x   (n, input_size), or without n
        hx  the last state, like the new one; None: zeros
        """
        x = as_node(x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(f"the input is (n, {self.input_size}), not {x.shape}")
        state = self._states(hx, (*x.shape[:-1], self.hidden_size), x)
        w, u, b, c = self._weights("")
        parts = ops.linear(x, w, b), ops.linear(state[0], u, c)
        return self._as_result(self._gate_arithmetic(state, *parts))


@layer_of()
class RNNCell(_Cell, _Elman):
    """One step of `RNN`.

    >>> nn.RNNCell(8, 16)(mg.input("x", (4, 8))).shape
    (4, 16)
    """

    nonlinearity: Literal["tanh", "relu"] = "tanh"
    dtype: Weights = "float32"


@layer_of()
class LSTMCell(_Cell, _LongShortTerm):
    """One step of `LSTM`.

    >>> h, c = nn.LSTMCell(8, 16)(mg.input("x", (4, 8)))
    >>> h.shape, c.shape
    ((4, 16), (4, 16))
    """

    dtype: Weights = "float32"


@layer_of()
class GRUCell(_Cell, _Gated):
    """One step of `GRU`.

    >>> nn.GRUCell(8, 16)(mg.input("x", (4, 8)), mg.input("h", (4, 16))).shape
    (4, 16)
    """

    dtype: Weights = "float32"
