"""The machine itself: how fast it copies, multiplies matrices and convolves.

A bound is what the machine can do, so each is tried in more than one way and the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import ops
from minigraph.bench.bound import CHANNELS, COPIED, IMAGES, MATRIX, PIXELS
from minigraph.bench.worker import Side, Task, serve


def make(task: Task) -> Side:
    """Compile the steps."""
    rng = np.random.default_rng(0)
    options = {"graph_opt_level": 3, "num_threads": task.threads, "autotune.budget": task.budget}
    cg = mg.comp_graph(task.device, options)

    def compiled(make: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], None]:
        data = [mg.Parameter(rng.random(shape, dtype=np.float32)) for shape in shapes]
        call = cg.compile([], make(*data))
        last: list[Any] = [None]

        def step() -> None:
            last[0] = call()
            if task.device != "cpu":
                last[0].device.synchronize()

        return step

    images = (IMAGES, CHANNELS, PIXELS, PIXELS)
    steps = {
        "copy": compiled(lambda x: -x, (COPIED,)),  # the cheapest op that moves an array
        "product": compiled(lambda a, b: a @ b, *[(MATRIX, MATRIX)] * 2),
        "convolution": compiled(
            lambda x, w: ops.conv2d(x, w, padding=1), images, (CHANNELS, CHANNELS, 3, 3)
        ),
    }
    if task.device == "cpu":
        steps |= _by_numpy(rng, task.threads)
    return Side(steps)


def _by_numpy(rng: np.random.Generator, threads: int) -> dict[str, Callable[[], None]]:
    source = rng.random(COPIED, dtype=np.float32)
    target = np.empty_like(source)
    a, b = (rng.random((MATRIX, MATRIX), dtype=np.float32) for _ in range(2))
    c = np.empty_like(a)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy() -> None:
        list(pool.map(lambda pair: np.copyto(*pair), parts))

    def product() -> None:
        np.matmul(a, b, out=c)

    return {"copy by NumPy": copy, "product by NumPy": product}


if __name__ == "__main__":
    serve(make)
