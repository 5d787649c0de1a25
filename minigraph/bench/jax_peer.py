"""JAX's side of a case: one jitted step that reuses the memory of what it updates.

Images are n h w c here, as XLA's convolutions on the CPU like them best.
"""

from __future__ import annotations

from itertools import count, cycle
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from minigraph.bench import networks
from minigraph.bench.cases import LEARNING_RATE, Expression, Training
from minigraph.bench.networks import Layer, Layers
from minigraph.bench.precision import PRECISIONS
from minigraph.bench.worker import Side, Task, serve

FUNCTIONS = SimpleNamespace(
    tanh=jnp.tanh, exp=jnp.exp, abs=jnp.abs, maximum=jnp.maximum, softmax=jax.nn.softmax
)


def make(task: Task) -> Side:
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
    last = [None]

    def step() -> None:
        last[0] = jax.block_until_ready(fn(*data))

    return step


def _training(subject: Training) -> Any:
    data = [
        (jnp.asarray(x.transpose(0, 2, 3, 1)), jnp.asarray(y.astype(np.int32)))
        for x, y in subject.data()
    ]
    weights = initial(subject.layers, np.random.default_rng(0))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = (weights, zeros, jax.tree.map(jnp.zeros_like, weights), statistics(subject.layers))

    def loss_of(weights: Any, stats: Any, x: Any, y: Any, key: Any) -> Any:
        scores, stats = apply(subject.layers, weights, stats, x, key)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1)
        return -chosen.mean(), stats

    def update(state: Any, number: Any, x: Any, y: Any) -> Any:
        weights, means, squares, stats = state
        key = jax.random.fold_in(jax.random.key(0), number)
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, stats), g = gradient(weights, stats, x, y, key)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, g)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, g)
        rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weights = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, means, squares
        )
        return (weights, means, squares, stats), loss

    jitted, batches, steps = jax.jit(update, donate_argnums=0), cycle(data), count(1)

    def step() -> None:
        nonlocal state
        state, loss = jitted(state, jnp.int32(next(steps)), *next(batches))
        jax.block_until_ready((state, loss))

    return step


# ---------------------------------------------------------------- layers


def initial(layers: Layers, rng: Any) -> list[Any]:
    """Return the weights of each layer: a tuple of arrays, or the two lists of a residual one."""
    return [_initial(layer, rng) for layer in layers]


def _initial(layer: Layer, rng: Any) -> Any:
    def normal(fan: int, *shape: int) -> Any:
        return jnp.asarray((rng.standard_normal(shape) * (1 / fan) ** 0.5).astype(np.float32))

    match layer:
        case networks.Conv(inputs, outputs, k, bias=bias):
            w = normal(inputs * k * k, k, k, inputs, outputs)
            return (w, jnp.zeros(outputs)) if bias else (w,)
        case networks.BatchNorm(channels):
            return jnp.ones(channels), jnp.zeros(channels)
        case networks.Linear(inputs, outputs):
            return normal(inputs, inputs, outputs), jnp.zeros(outputs)
        case networks.Residual(body, shortcut):
            return initial(body, rng), initial(shortcut, rng)
    return ()


def statistics(layers: Layers) -> list[Any]:
    """Return the running mean and variance of each layer that has them."""
    return [_statistics(layer) for layer in layers]


def _statistics(layer: Layer) -> Any:
    match layer:
        case networks.BatchNorm(channels):
            return jnp.zeros(channels), jnp.ones(channels)
        case networks.Residual(body, shortcut):
            return statistics(body), statistics(shortcut)
    return ()


def apply(layers: Layers, weights: Any, stats: Any, x: Any, key: Any) -> tuple[Any, list[Any]]:
    """Return the layers' result in training, and the new statistics."""
    found = []
    for i, layer in enumerate(layers):
        x, new = _apply(layer, weights[i], stats[i], x, jax.random.fold_in(key, i))
        found.append(new)
    return x, found


def _apply(layer: Layer, weights: Any, stats: Any, x: Any, key: Any) -> tuple[Any, Any]:
    match layer:
        case networks.Conv(stride=s, padding=p):
            numbers = ("NHWC", "HWIO", "NHWC")
            y = lax.conv_general_dilated(
                x, weights[0], (s, s), ((p, p), (p, p)), dimension_numbers=numbers
            )
            return (y + weights[1] if layer.bias else y), stats
        case networks.BatchNorm():
            return _batch_norm(weights, stats, x)
        case networks.Relu():
            return jax.nn.relu(x), stats
        case networks.MaxPool(k, s, p):
            window = ((0, 0), (p, p), (p, p), (0, 0))
            y = lax.reduce_window(x, -jnp.inf, lax.max, (1, k, k, 1), (1, s, s, 1), window)
            return y, stats
        case networks.AveragePool(size):
            rows, columns = (_parts(n, size) for n in x.shape[1:3])
            return jnp.einsum("ih,nhwc,jw->nijc", rows, x, columns), stats
        case networks.Flatten():
            return x.reshape(x.shape[0], -1), stats
        case networks.Dropout(p):
            return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0), stats
        case networks.Linear():
            return x @ weights[0] + weights[1], stats
        case networks.Residual(body, shortcut):
            first, second = jax.random.split(key)
            y, of_body = apply(body, weights[0], stats[0], x, first)
            x, of_shortcut = apply(shortcut, weights[1], stats[1], x, second)
            return jax.nn.relu(y + x), (of_body, of_shortcut)


def _batch_norm(weights: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    mean, variance, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size // x.shape[-1]
    y = (x - mean) * (lax.rsqrt(variance + 1e-5) * weights[0]) + weights[1]
    unbiased = variance * (n / max(n - 1, 1))
    kept = lax.stop_gradient((mean, unbiased))
    return y, tuple(0.9 * old + 0.1 * new for old, new in zip(stats, kept, strict=True))


def _parts(n: int, size: int) -> Any:
    """Return the matrix (size, n) whose rows take the means over parts of n pixels."""
    rows = np.zeros((size, n), np.float32)
    for i in range(size):
        start, stop = i * n // size, -(-(i + 1) * n // size)
        rows[i, start:stop] = 1 / (stop - start)
    return rows


if __name__ == "__main__":
    serve(make)
