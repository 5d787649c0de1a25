"""Rows of normalisations, and of recurrent layers, which scan over time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node, Parameter
from minigraph.onnx.operators.table import MICROSOFT, Row, row, rows
from minigraph.onnx.operators.tensors import reverse_sequence


@row("BatchNormalization", counting=True)
def _batch_norm(
    x: Node, scale: Node, bias: Node, mean: Node, var: Node, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    for each in (mean, var):
        if isinstance(each, Parameter):
            each.trainable = False
    if not training_mode:
        return ops.batch_norm(x, mean, var, scale, bias, eps=epsilon)
    y, batch_mean, batch_var = ops.batch_norm_with_statistics(x, scale, bias, epsilon)
    pairs = ((mean, batch_mean), (var, batch_var))
    return [y, *(old * momentum + new * (1 - momentum) for old, new in pairs)][:outputs]


@row("LayerNormalization", counting=True)
def _layer_norm(
    x: Node, scale: Node, bias: Node | None = None, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1, outputs: int = 1,
) -> Any:  # fmt: skip
    axes, shape = tuple(range(axis % x.ndim, x.ndim)), x.shape[axis % x.ndim :]
    factor, term = (w if w is None else ops.broadcast_to(w, shape) for w in (scale, bias))
    y = ops.layer_norm(x, shape, factor, term, epsilon)
    if outputs == 1:
        return y
    return [y, ops.mean(x, axes, True), ops.rsqrt(ops.var(x, axes, 0, True) + epsilon)][:outputs]


@row(
    "RMSNormalization", f"{MICROSOFT}.SimplifiedLayerNormalization", "SimplifiedLayerNormalization"
)
def _rms_norm(
    x: Node, scale: Node, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Node:
    shape = x.shape[axis % x.ndim :]
    return ops.rms_norm(x, shape, ops.broadcast_to(scale, shape), epsilon)


def _skip(norm: Row, x: Node, skip: Node, bias: Node | None, *weights: Any) -> Any:
    """Return the normalisation of a sum, and the sum."""
    total = x + skip if bias is None else x + skip + bias
    return [norm(total, total.shape[-1:], *weights), None, None, total]


rows(
    {
        "InstanceNormalization": lambda x, scale, bias, epsilon=1e-5: ops.group_norm(
            x, x.shape[1], scale, bias, epsilon
        ),
        "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: ops.local_response_norm(
            x, size, alpha, beta, bias
        ),
        f"{MICROSOFT}.SkipLayerNormalization": (
            lambda x, skip, gamma, beta=None, bias=None, epsilon=1e-5: _skip(
                ops.layer_norm, x, skip, bias, gamma, beta, epsilon
            )
        ),
        f"{MICROSOFT}.SkipSimplifiedLayerNormalization": (
            lambda x, skip, gamma, bias=None, epsilon=1e-5: _skip(
                ops.rms_norm, x, skip, bias, gamma, epsilon
            )
        ),
    }
)


State = tuple[Node, ...]
ACTIVATIONS = ("Relu", "Sigmoid", "Softplus", "Tanh")
LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


def _elman(state: State, x: Node, *, r: Node, b: Node | None, act: Any, **unused: Any) -> State:
    return (act[0](x + ops.linear(state[0], r, b)),)


def long_short_term(
    state: State, x: Node, *, r: Node, b: Node | None, act: Any, peepholes: Node | None,
    **unused: Any,
) -> State:  # fmt: skip
    (h, c), (f, g, k) = state, act
    i_x, o_x, f_x, g_x = ops.split(x + ops.linear(h, r, b), 4, -1)
    if peepholes is not None:
        p_i, p_o, p_f = ops.split(peepholes, 3, -1)
        i_x, f_x = i_x + p_i * c, f_x + p_f * c
    new = f(f_x) * c + f(i_x) * g(g_x)
    return f(o_x if peepholes is None else o_x + p_o * new) * k(new), new


def _gated(
    state: State, x: Node, *, r: Node, b: Node | None, act: Any, after: int, **unused: Any
) -> State:
    (h,), (f, g) = state, act
    z_x, r_x, n_x = ops.split(x, 3, -1)
    z_w, r_w, n_w = ops.split(r, 3)
    z_b, r_b, n_b = (None, None, None) if b is None else ops.split(b, 3)
    z, reset = f(z_x + ops.linear(h, z_w, z_b)), f(r_x + ops.linear(h, r_w, r_b))
    product = reset * ops.linear(h, n_w, n_b) if after else ops.linear(reset * h, n_w, n_b)
    n = g(n_x + product)
    return (n + z * (h - n),)


def layer(step: Callable[..., State], defaults: Sequence[str]) -> Row:
    """Return the row of a recurrent layer.

    step      returns the next state, from a state and the projected input; its keywords are the
              state's weights `r` and biases `b`, the activations `act`, the `peepholes` of an
              LSTM, and whether a GRU resets `after` the product
    defaults  the activations of one direction
    """

    def call(
        x: Node, w: Node, r: Node, b: Node | None = None, lengths: Node | None = None,
        h: Node | None = None, c: Node | None = None, peepholes: Node | None = None, *,
        hidden_size: int = 0, direction: str = "forward", layout: int = 0,
        activations: Sequence[str] | None = None, linear_before_reset: int = 0, **unused: Any,
    ) -> list[Node]:  # fmt: skip
        names, n = activations or [*defaults] * w.shape[0], len(defaults)
        if {*names} - {*ACTIVATIONS}:
            raise GraphError(f"its activations are {names}; use {', '.join(ACTIVATIONS)}")
        if unsupported := [name for name, value in unused.items() if value]:
            raise GraphError(f"its {unsupported[0]} is not supported")
        x = ops.swapaxes(x, 0, 1) if layout else x
        zeros = ops.zeros((w.shape[0], x.shape[1], r.shape[-1]), x.dtype)
        states = [h, c] if len(defaults) == 3 else [h]
        states = [s if s is None or not layout else ops.swapaxes(s, 0, 1) for s in states]
        results, final_states = [], []
        for d in range(w.shape[0]):
            backwards = direction == "reverse" or d == 1
            of_x, of_h = (None, None) if b is None else ops.split(b[d], 2)
            functions = [getattr(ops, name.lower()) for name in names[n * d : n * d + n]]
            peeps = None if peepholes is None else peepholes[d]
            settings = {"act": functions, "peepholes": peeps, "after": linear_before_reset}
            direction_step = functools.partial(step, r=r[d], b=of_h, **settings)
            start = tuple((zeros if s is None else s)[d] for s in states)
            projected = ops.linear(_reversed(x, lengths) if backwards else x, w[d], of_x)
            y, end = _over_time(direction_step, projected, lengths, start)
            results.append(_reversed(y, lengths) if backwards else y)
            final_states.append(end)
        y, last = ops.stack(results, 1), [ops.stack(s) for s in zip(*final_states, strict=True)]
        if layout:
            y, last = ops.permute_dims(y, (2, 0, 1, 3)), [ops.swapaxes(s, 0, 1) for s in last]
        return [y, *last]

    return call


def _reversed(x: Node, lengths: Node | None) -> Node:
    return ops.flip(x, 0) if lengths is None else reverse_sequence(x, lengths)


def _over_time(
    step: Callable[[State, Node], State], x: Node, lengths: Node | None, start: State
) -> tuple[Node, State]:
    """Return h of all steps (length, n, hidden), 0 after a sequence's end, and the last state."""

    def advance(state: State, inputs: tuple[Node, Node]) -> tuple[State, Node]:
        new = step(state, inputs[0])
        if lengths is None:
            return new, new[0]
        is_running = ops.expand_dims(inputs[1] < lengths, -1)
        masked = tuple(ops.where(is_running, a, b) for a, b in zip(new, state, strict=True))
        return masked, ops.where(is_running, new[0], 0)

    last, y = ops.scan(advance, start, (x, ops.arange(x.shape[0], dtype="int32")))
    return y, last


rows(
    {
        "RNN": layer(_elman, ("Tanh",)),
        "LSTM": layer(long_short_term, LSTM_ACTIVATIONS),
        "GRU": layer(_gated, ("Sigmoid", "Tanh")),
    }
)
