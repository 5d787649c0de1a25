"""JAX's side of a case: one jitted step that reuses the memory of what it updates.

Images are n h w c, the order that is fastest for XLA's convolutions on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, cycle
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from minigraph.bench.cases import LEARNING_RATE, PRECISIONS, Expression, TrainingStep
from minigraph.bench.worker import Side, Task, serve

FUNCTIONS = SimpleNamespace(
    tanh=jnp.tanh, exp=jnp.exp, abs=jnp.abs, maximum=jnp.maximum, softmax=jax.nn.softmax
)


def jax_side(task: Task) -> Side:
    """Jit the case."""
    jax.config.update("jax_default_matmul_precision", PRECISIONS[task.precision].jax)
    subject = task.subject
    step = _expression(subject) if isinstance(subject, Expression) else _training(subject)

    def details() -> dict[str, Any]:
        if task.device == "cpu":
            return {}
        return {"peak": jax.devices()[0].memory_stats()["peak_bytes_in_use"]}

    return Side({"step": step}, details)


def _expression(subject: Expression) -> Any:
    fn = jax.jit(lambda *arrays: subject.formula(FUNCTIONS, *arrays))
    data = [jnp.asarray(x) for x in subject.data()]
    last = [None]  # a caller keeps a result until the next one

    def step() -> None:
        last[0] = jax.block_until_ready(fn(*data))

    return step


def _training(subject: TrainingStep) -> Any:
    data = [
        (jnp.asarray(x.transpose(0, 2, 3, 1)), jnp.asarray(y.astype(np.int32)))
        for x, y in subject.data()
    ]
    net: JaxLayer = subject.network(JaxLayers())
    means, squares = (jax.tree.map(jnp.zeros_like, net.weights) for _ in range(2))
    state = (net.weights, means, squares, net.statistics)

    def loss_of(weights: Any, statistics: Any, x: Any, y: Any, key: Any) -> Any:
        scores, statistics = net.apply(weights, statistics, x, key)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1)
        return -chosen.mean(), statistics

    def update(state: Any, number: Any, x: Any, y: Any) -> Any:
        weights, means, squares, statistics = state
        key = jax.random.fold_in(jax.random.key(0), number)
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, statistics), g = gradient(weights, statistics, x, y, key)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, g)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, g)
        rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weights = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, means, squares
        )
        return (weights, means, squares, statistics), loss

    jitted, batches, steps = jax.jit(update, donate_argnums=0), cycle(data), count(1)

    def step() -> None:
        nonlocal state
        state, loss = jitted(state, jnp.int32(next(steps)), *next(batches))
        jax.block_until_ready((state, loss))

    return step


# ---------------------------------------------------------------- layers


class JaxLayer(NamedTuple):
    """A layer in training.

    weights     its first weights
    statistics  its first running statistics
    apply       takes weights, statistics, x and a random key; returns y and the new statistics
    """

    weights: Any
    statistics: Any
    apply: Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def _layer(function: Callable[[Any, Any], Any], *weights: Any) -> JaxLayer:
    """Return a layer that computes function(weights, x)."""
    return JaxLayer(weights, (), lambda w, statistics, x, key: (function(w, x), statistics))


class JaxLayers:
    """A library of layers under torch.nn's names."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def _normal(self, fan: int, *shape: int) -> Any:
        return jnp.asarray((self._rng.standard_normal(shape) * fan**-0.5).astype(np.float32))

    def Sequential(self, *layers: JaxLayer) -> JaxLayer:
        def apply(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
            changed = []
            for i, layer in enumerate(layers):
                x, new = layer.apply(weights[i], statistics[i], x, jax.random.fold_in(key, i))
                changed.append(new)
            return x, changed

        return JaxLayer([y.weights for y in layers], [y.statistics for y in layers], apply)

    def Residual(self, body: JaxLayer, shortcut: JaxLayer) -> JaxLayer:
        def apply(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
            keys = jax.random.split(key)
            y, of_body = body.apply(weights[0], statistics[0], x, keys[0])
            x, of_shortcut = shortcut.apply(weights[1], statistics[1], x, keys[1])
            return jax.nn.relu(y + x), (of_body, of_shortcut)

        weights, statistics, _ = zip(body, shortcut, strict=True)
        return JaxLayer(weights, statistics, apply)

    def Conv2d(
        self, inputs: int, outputs: int, k: int, s: int = 1, p: int = 0, bias: bool = True
    ) -> JaxLayer:
        def convolve(weights: Any, x: Any) -> Any:
            orders = ("NHWC", "HWIO", "NHWC")
            y = lax.conv_general_dilated(
                x, weights[0], (s, s), ((p, p), (p, p)), dimension_numbers=orders
            )
            return y + weights[1] if bias else y

        w = self._normal(inputs * k * k, k, k, inputs, outputs)
        return _layer(convolve, w, *[jnp.zeros(outputs)] * bias)

    def Linear(self, inputs: int, outputs: int) -> JaxLayer:
        w = self._normal(inputs, inputs, outputs)
        return _layer(lambda weights, x: x @ weights[0] + weights[1], w, jnp.zeros(outputs))

    def BatchNorm2d(self, channels: int) -> JaxLayer:
        # Arrays of their own: a step gives the memory of each of them back once.
        weights = jnp.ones(channels), jnp.zeros(channels)
        return JaxLayer(weights, (jnp.zeros(channels), jnp.ones(channels)), _batch_norm)

    def MaxPool2d(self, k: int, s: int, p: int = 0) -> JaxLayer:
        sizes, strides, padding = (1, k, k, 1), (1, s, s, 1), ((0, 0), (p, p), (p, p), (0, 0))
        return _layer(lambda _, x: lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, padding))

    def AdaptiveAvgPool2d(self, size: int) -> JaxLayer:
        def pool(_: Any, x: Any) -> Any:
            rows, columns = (_means(n, size) for n in x.shape[1:3])
            return jnp.einsum("ih,nhwc,jw->nijc", rows, x, columns)

        return _layer(pool)

    def Flatten(self) -> JaxLayer:
        return _layer(lambda _, x: x.reshape(x.shape[0], -1))

    def ReLU(self) -> JaxLayer:
        return _layer(lambda _, x: jax.nn.relu(x))

    def Dropout(self, p: float) -> JaxLayer:
        def drop(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
            kept = jax.random.bernoulli(key, 1 - p, x.shape)
            return jnp.where(kept, x / (1 - p), 0), statistics

        return JaxLayer((), (), drop)


def _batch_norm(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
    mean, variance, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size // x.shape[-1]
    y = (x - mean) * (lax.rsqrt(variance + 1e-5) * weights[0]) + weights[1]
    unbiased = variance * (n / max(n - 1, 1))
    kept = lax.stop_gradient((mean, unbiased))
    return y, tuple(0.9 * old + 0.1 * new for old, new in zip(statistics, kept, strict=True))


def _means(n: int, size: int) -> Any:
    """Return the matrix (size, n) whose rows take the means over parts of n pixels."""
    rows = np.zeros((size, n), np.float32)
    for i in range(size):
        start, stop = i * n // size, -(-(i + 1) * n // size)
        rows[i, start:stop] = 1 / (stop - start)
    return rows


if __name__ == "__main__":
    serve(jax_side)
