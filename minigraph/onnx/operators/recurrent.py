"""Rows of recurrent layers, which run over time in one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node
from minigraph.onnx.operators.indexing import reverse_sequence
from minigraph.onnx.operators.table import Row, rows

State = tuple[Node, ...]
ACTIVATIONS = ("Relu", "Sigmoid", "Softplus", "Tanh")


def _elman(
    state: State, x: Node, r: Node, b: Any, peepholes: Any, acts: Sequence[Any], linear: int
) -> State:
    return (acts[0](x + ops.linear(state[0], r, b)),)


def _long_short_term(
    state: State, x: Node, r: Node, b: Any, peepholes: Any, acts: Sequence[Any], linear: int
) -> State:
    h, c = state
    i, o, f, g = ops.split(x + ops.linear(h, r, b), 4, -1)
    to_input, to_output, to_forget = (
        ops.split(peepholes, 3, -1) if peepholes is not None else (0, 0, 0)
    )
    c_new = acts[0](f + to_forget * c) * c + acts[0](i + to_input * c) * acts[1](g)
    return acts[0](o + to_output * c_new) * acts[2](c_new), c_new


def _gated(
    state: State, x: Node, r: Node, b: Any, peepholes: Any, acts: Sequence[Any], linear: int
) -> State:
    (h,) = state
    xz, xr, xn = ops.split(x, 3, -1)
    rz, rr, rn = ops.split(r, 3, 0)
    bz, br, bn = (None, None, None) if b is None else ops.split(b, 3, -1)
    z, reset = acts[0](xz + ops.linear(h, rz, bz)), acts[0](xr + ops.linear(h, rr, br))
    product = reset * ops.linear(h, rn, bn) if linear else ops.linear(reset * h, rn, bn)
    n = acts[1](xn + product)
    return (n + z * (h - n),)


def _layer(gates: int, step: Callable[..., State], defaults: Sequence[str]) -> Row:
    """Return the row of a recurrent layer.

    step      makes the next state of a state, and of the input as it is projected
    defaults  the activations of one direction
    """

    def call(
        x: Node,
        w: Node,
        r: Node,
        b: Node | None = None,
        lengths: Node | None = None,
        h: Node | None = None,
        c: Node | None = None,
        peepholes: Node | None = None,
        *,
        hidden_size: int = 0,
        direction: str = "forward",
        layout: int = 0,
        activations: Sequence[str] | None = None,
        linear_before_reset: int = 0,
        input_forget: int = 0,
    ) -> list[Node]:
        names = activations or [*defaults] * w.shape[0]
        if input_forget:
            raise GraphError("it has no input_forget")
        if unknown := {*names} - {*ACTIVATIONS}:
            raise GraphError(f"it has no activation {min(unknown)}")
        x = ops.swapaxes(x, 0, 1) if layout else x
        first = [s if s is None or not layout else ops.swapaxes(s, 0, 1) for s in (h, c)]
        first = first if step is _long_short_term else first[:1]
        results, lasts = [], []
        for d in range(w.shape[0]):
            backwards = direction == "reverse" or d == 1
            acts = [getattr(ops, n.lower()) for n in names[d * len(defaults) :][: len(defaults)]]
            zeros = ops.zeros((x.shape[1], r.shape[-1]), x.dtype)
            start = tuple(zeros if s is None else s[d] for s in first)
            of_x, of_h = (None, None) if b is None else ops.split(b[d], 2)
            own = (r[d], of_h, None if peepholes is None else peepholes[d], acts)
            along = _backwards(x, lengths) if backwards else x
            y, last = _over_time(
                step, ops.linear(along, w[d], of_x), lengths, start, own, linear_before_reset
            )
            results.append(_backwards(y, lengths) if backwards else y)
            lasts.append(last)
        y = ops.stack(results, 1)
        ends = [ops.stack(s) for s in zip(*lasts, strict=True)]
        if layout:
            y, ends = ops.permute_dims(y, (2, 0, 1, 3)), [ops.swapaxes(s, 0, 1) for s in ends]
        return [y, *ends]

    return call


def _backwards(x: Node, lengths: Node | None) -> Node:
    return ops.flip(x, 0) if lengths is None else reverse_sequence(x, lengths)


def _over_time(
    step: Callable[..., State], x: Node, lengths: Node | None, start: State, own: Any, linear: int
) -> tuple[Node, State]:
    """Return h of all steps (length, n, hidden) and the last state; beyond its length h is 0."""

    def advance(state: State, given: tuple[Node, Node]) -> tuple[State, Node]:
        part, t = given
        new = step(state, part, *own, linear)
        if lengths is None:
            return new, new[0]
        runs = ops.expand_dims(t < lengths, -1)
        kept = tuple(ops.where(runs, a, b) for a, b in zip(new, state, strict=True))
        return kept, ops.where(runs, new[0], 0)

    times = ops.arange(x.shape[0], dtype="int32")
    last, y = ops.scan(advance, start, (x, times))
    return y, last


rows(
    {
        "RNN": _layer(1, _elman, ("Tanh",)),
        "LSTM": _layer(4, _long_short_term, ("Sigmoid", "Tanh", "Tanh")),
        "GRU": _layer(3, _gated, ("Sigmoid", "Tanh")),
    }
)
