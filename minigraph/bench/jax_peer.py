"""JAX's side of an expression or the MLP: one jitted step, which updates its state in place."""

from __future__ import annotations

from itertools import count, cycle, repeat
from types import SimpleNamespace
from typing import Any

import jax
from jax import numpy as jnp

from minigraph.bench.cases import LEARNING_RATE, PRECISIONS, Expression, first_value
from minigraph.bench.worker import Side, Task, serve, step_function

FUNCTIONS = SimpleNamespace(
    tanh=jnp.tanh,
    exp=jnp.exp,
    abs=jnp.abs,
    maximum=jnp.maximum,
    softmax=jax.nn.softmax,
    layer_norm=lambda x, shape: jax.nn.standardize(x, -1, epsilon=1e-5),
)


def jax_side(task: Task) -> Side:
    jax.config.update("jax_default_matmul_precision", PRECISIONS[task.precision].jax)
    subject = task.subject
    step = _expression(subject) if isinstance(subject, Expression) else _training(subject.data())
    return Side(step, device_memory=lambda: _peak(task.device))


def _peak(device: str) -> int | None:
    return None if device == "cpu" else jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def _expression(subject: Expression) -> Any:
    fn = jax.jit(lambda *arrays: subject.formula(FUNCTIONS, *arrays))
    data = [jnp.asarray(x) for x in subject.data()]
    return step_function(fn, repeat(data), jax.block_until_ready)


def _training(batches: Any) -> Any:
    data = [(jnp.asarray(x.reshape(len(x), -1)), jnp.asarray(y, "int32")) for x, y in batches]
    shapes = {"1.weight": (128, 784), "1.bias": (128,), "3.weight": (10, 128), "3.bias": (10,)}
    weights = [jnp.asarray(first_value(name, shape)) for name, shape in shapes.items()]
    state = (weights, *([jnp.zeros_like(w) for w in weights] for _ in range(2)))

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        w, b, v, c = weights
        scores = jax.nn.relu(x @ w.T + b) @ v.T + c
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1).mean()

    def update(state: Any, number: Any, x: Any, y: Any) -> Any:
        weights, means, squares = state
        loss, g = jax.value_and_grad(loss_of)(weights, x, y)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, g)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, g)
        rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weights = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, means, squares
        )
        return (weights, means, squares), loss

    jitted, arrays, steps = jax.jit(update, donate_argnums=0), cycle(data), count(1)

    def step() -> None:
        nonlocal state
        state, loss = jitted(state, jnp.int32(next(steps)), *next(arrays))
        jax.block_until_ready((state, loss))

    return step


if __name__ == "__main__":
    serve(jax_side)
