"""Examples made of random numbers, for tests and measurements without any file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigraph.data.dataset import Dataset, Example, integer
from minigraph.errors import ShapeError

GRID = 4


class Synthetic(Dataset):
    """`length` images of normal noise, each with its class's pattern of 4 x 4 patches added.

    Example i is drawn from (seed, i) when asked for, and is of class i modulo `classes`.  Patterns
    depend on `shape` and `classes` alone, so another seed gives a test set of the same task.
    """

    def __init__(
        self, shape: Sequence[int], classes: int, length: int = 1024, seed: int = 0
    ) -> None:
        if len(shape) != 3:
            raise ShapeError(f"Synthetic's shape is {tuple(shape)}; it takes (c, h, w)")
        channels, height, width = (integer("a size in Synthetic's shape", n, 1) for n in shape)
        self.shape = (channels, height, width)
        self.classes = tuple(map(str, range(integer("Synthetic's classes", classes, 1))))
        self.seed = integer("Synthetic's seed", seed, 0)
        self._length = integer("Synthetic's length", length, 1)
        size = (len(self.classes), channels, GRID, GRID)
        self._patterns = np.random.default_rng(0).standard_normal(size, np.float32)
        self._rows = (np.arange(height) * GRID // height)[:, None]
        self._columns = np.arange(width) * GRID // width

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        index = self.position(index)
        label = index % len(self.classes)
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))
        image = rng.standard_normal(self.shape, np.float32)
        image += self._patterns[label][:, self._rows, self._columns]
        return image, label
