"""The machine itself: how fast it copies and multiplies matrices.

A bound is what the machine can do, so several ways to copy are tried and the fastest counts.  A
convolution would not tell: an algorithm may need fewer operations than are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.bench.cases import PRODUCT, Array, scale
from minigraph.bench.ours import graph_for, until_done
from minigraph.bench.worker import Side, Task, serve


def machine_side(task: Task) -> Side:
    """Compile the steps, named as in `Scale.work`."""
    rng, sizes, cg = np.random.default_rng(0), scale(task.device), graph_for(task, 3)

    def compiled(formula: Callable[..., Any], *arrays: Array) -> Callable[[], None]:
        parameters = [mg.Parameter(array) for array in arrays]
        result = formula(*parameters)
        # The result stays in a parameter on the device, since a caller may get a copy.  The one
        # number that is returned tells when the step has ended.
        target = mg.Parameter(np.zeros(result.shape, np.float32))
        first = parameters[0][(0,) * parameters[0].ndim]
        return until_done(cg.compile([], first, {target: result}), repeat(()), task)

    source = rng.random(sizes.copied, dtype=np.float32)
    matrices = [rng.random((sizes.matrix, sizes.matrix), dtype=np.float32) for _ in range(2)]
    steps = {
        "copy": compiled(lambda x: -x, source),  # the cheapest op that moves an array
        PRODUCT: compiled(lambda a, b: a @ b, *matrices),
    }
    if task.device == "cpu":
        steps["copy by NumPy"] = _numpy_copy(source, task.threads)
    return Side(steps)


def _numpy_copy(source: Array, threads: int) -> Callable[[], None]:
    """Return a step that copies an array on several threads."""
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy() -> None:
        list(pool.map(lambda pair: np.copyto(*pair), parts))

    return copy


if __name__ == "__main__":
    serve(machine_side)
