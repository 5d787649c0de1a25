"""The machine itself: how fast it copies and multiplies matrices.

A bound is what the machine can do, so copies are tried in more than one way and the fastest counts.
A convolution says nothing of the machine: it may be computed in fewer operations than it has.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.bench.precision import PRECISIONS
from minigraph.bench.scale import PRODUCT, Scale, scale
from minigraph.bench.worker import Side, Task, serve


def make(task: Task) -> Side:
    """Compile the steps, named as in `Scale.work`."""
    rng, sizes = np.random.default_rng(0), scale(task.device)
    options: dict[str, Any] = {"graph_opt_level": 3, "num_threads": task.threads}
    options |= {"autotune.budget": task.budget, **PRECISIONS[task.precision].options}
    cg = mg.comp_graph(task.device, options)

    def compiled(make: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], None]:
        data = [mg.Parameter(rng.random(shape, dtype=np.float32)) for shape in shapes]
        result = make(*data)
        # It stays in the device's memory: what a caller gets may be a copy of it.  One number that
        # is returned tells when the step has ended.
        target = mg.Parameter(np.zeros(result.shape, np.float32))
        call = cg.compile([], data[0][(0,) * data[0].ndim], {target: result})
        last: list[Any] = [None]

        def step() -> None:
            last[0] = call()
            if task.device != "cpu":
                last[0].device.synchronize()

        return step

    steps = {
        "copy": compiled(lambda x: -x, (sizes.copied,)),  # the cheapest op that moves an array
        PRODUCT: compiled(lambda a, b: a @ b, *[(sizes.matrix, sizes.matrix)] * 2),
    }
    if task.device == "cpu":
        steps["copy by NumPy"] = _by_numpy(rng, sizes, task.threads)
    return Side(steps)


def _by_numpy(rng: np.random.Generator, sizes: Scale, threads: int) -> Callable[[], None]:
    """Return a copy of an array on several threads."""
    source = rng.random(sizes.copied, dtype=np.float32)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy() -> None:
        list(pool.map(lambda pair: np.copyto(*pair), parts))

    return copy


if __name__ == "__main__":
    serve(make)
