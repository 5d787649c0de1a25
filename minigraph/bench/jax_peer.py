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

from minigraph.bench.cases import (
    LEARNING_RATE,
    PRECISIONS,
    Expression,
    Prediction,
    TrainingStep,
    first_value,
)
from minigraph.bench.worker import Side, Task, predicting, serve

FUNCTIONS = SimpleNamespace(
    tanh=jnp.tanh,
    exp=jnp.exp,
    abs=jnp.abs,
    maximum=jnp.maximum,
    softmax=jax.nn.softmax,
    layer_norm=lambda x, shape: jax.nn.standardize(x, -1, epsilon=1e-5),
)


def jax_side(task: Task) -> Side:
    """Jit the case."""
    jax.config.update("jax_default_matmul_precision", PRECISIONS[task.precision].jax)
    subject = task.subject

    def details() -> dict[str, Any]:
        if task.device == "cpu":
            return {}
        return {"peak": jax.devices()[0].memory_stats()["peak_bytes_in_use"]}

    if isinstance(subject, Prediction):
        return _predicting(subject, details)
    step = _expression(subject) if isinstance(subject, Expression) else _training(subject)
    return Side({"step": step}, details)


def _expression(subject: Expression) -> Any:
    fn = jax.jit(lambda *arrays: subject.formula(FUNCTIONS, *arrays))
    data = [jnp.asarray(x) for x in subject.data()]
    last = [None]  # a caller keeps a result until the next one

    def step() -> None:
        last[0] = jax.block_until_ready(fn(*data))

    return step


def _predicting(subject: Prediction, details: Callable[[], dict[str, Any]]) -> Side:
    """Jit the network with its parameters as constants."""
    net: JaxLayer = subject.network(JaxLayers(training=False))
    weights, statistics = map(_first_values, (net.weights, net.statistics))
    fn = jax.jit(lambda x: net.apply(weights, statistics, x, jax.random.key(0))[0])
    batches = [jnp.asarray(x.transpose(0, 2, 3, 1)) for x, _ in subject.data()]
    return predicting(batches, lambda x: jax.block_until_ready(fn(x)), details)


def _first_values(tree: Any) -> Any:
    """Return a tree of arrays with the values of every library, whose names are their paths."""

    def value(path: Any, array: Any) -> Any:
        name = ".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
        order = {4: (3, 2, 0, 1), 2: (1, 0)}.get(array.ndim, (0,))
        shape = tuple(array.shape[axis] for axis in order)  # in torch's order
        return jnp.asarray(first_value(name, shape).transpose(np.argsort(order)))

    return jax.tree_util.tree_map_with_path(value, tree)


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
    """A layer.

    weights     its first weights, in trees whose paths are torch's names
    statistics  its first running statistics, in the same way
    apply       takes weights, statistics, x and a random key; returns y and the new statistics
    """

    weights: Any
    statistics: Any
    apply: Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def _layer(function: Callable[[Any, Any], Any], **weights: Any) -> JaxLayer:
    """Return a layer that computes function(weights, x)."""
    return JaxLayer(weights, {}, lambda w, statistics, x, key: (function(w, x), statistics))


class JaxLayers:
    """A library of layers under torch.nn's names, for training or for predictions."""

    def __init__(self, training: bool = True) -> None:
        self._training = training
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
            results, changed = [], {}
            for (name, part), part_key in zip(parts.items(), jax.random.split(key), strict=True):
                y, changed[name] = part.apply(weights[name], statistics[name], x, part_key)
                results.append(y)
            return jax.nn.relu(sum(results)), changed

        parts = {"body": body, "shortcut": shortcut}
        weights = {name: part.weights for name, part in parts.items()}
        statistics = {name: part.statistics for name, part in parts.items()}
        return JaxLayer(weights, statistics, apply)

    def Conv2d(
        self, inputs: int, outputs: int, k: int, s: int = 1, p: int = 0, bias: bool = True
    ) -> JaxLayer:
        def convolve(weights: Any, x: Any) -> Any:
            orders = ("NHWC", "HWIO", "NHWC")
            y = lax.conv_general_dilated(
                x, weights["weight"], (s, s), ((p, p), (p, p)), dimension_numbers=orders
            )
            return y + weights["bias"] if bias else y

        w = self._normal(inputs * k * k, k, k, inputs, outputs)
        return _layer(convolve, weight=w, **{"bias": jnp.zeros(outputs)} if bias else {})

    def Linear(self, inputs: int, outputs: int) -> JaxLayer:
        def product(weights: Any, x: Any) -> Any:
            return x @ weights["weight"] + weights["bias"]

        w = self._normal(inputs, inputs, outputs)
        return _layer(product, weight=w, bias=jnp.zeros(outputs))

    def BatchNorm2d(self, channels: int) -> JaxLayer:
        # Arrays of their own: a step gives the memory of each of them back once.
        weights = {"weight": jnp.ones(channels), "bias": jnp.zeros(channels)}
        statistics = {"running_mean": jnp.zeros(channels), "running_var": jnp.ones(channels)}
        return JaxLayer(weights, statistics, _batch_norm if self._training else _running_norm)

    def MaxPool2d(self, k: int, s: int, p: int = 0) -> JaxLayer:
        sizes, strides, padding = (1, k, k, 1), (1, s, s, 1), ((0, 0), (p, p), (p, p), (0, 0))
        return _layer(lambda _, x: lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, padding))

    def AdaptiveAvgPool2d(self, size: int) -> JaxLayer:
        def pool(_: Any, x: Any) -> Any:
            rows, columns = (_means(n, size) for n in x.shape[1:3])
            return jnp.einsum("ih,nhwc,jw->nijc", rows, x, columns)

        return _layer(pool)

    def Flatten(self) -> JaxLayer:
        # In torch's order, n c h w, in which the weights that come next are.
        return _layer(lambda _, x: x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1))

    def ReLU(self) -> JaxLayer:
        return _layer(lambda _, x: jax.nn.relu(x))

    def Dropout(self, p: float) -> JaxLayer:
        def drop(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
            kept = jax.random.bernoulli(key, 1 - p, x.shape)
            return jnp.where(kept, x / (1 - p), 0), statistics

        return JaxLayer({}, {}, drop) if self._training else _layer(lambda _, x: x)


def _batch_norm(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
    mean, variance, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size // x.shape[-1]
    unbiased = variance * (n / max(n - 1, 1))
    new = lax.stop_gradient({"running_mean": mean, "running_var": unbiased})
    changed = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, statistics, new)
    return _normalised(weights, x, mean, variance), changed


def _running_norm(weights: Any, statistics: Any, x: Any, key: Any) -> tuple[Any, Any]:
    y = _normalised(weights, x, statistics["running_mean"], statistics["running_var"])
    return y, statistics


def _normalised(weights: Any, x: Any, mean: Any, variance: Any) -> Any:
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * weights["weight"]) + weights["bias"]


def _means(n: int, size: int) -> Any:
    """Return the matrix (size, n) whose rows take the means over parts of n pixels."""
    rows = np.zeros((size, n), np.float32)
    for i in range(size):
        start, stop = i * n // size, -(-(i + 1) * n // size)
        rows[i, start:stop] = 1 / (stop - start)
    return rows


if __name__ == "__main__":
    serve(jax_side)
