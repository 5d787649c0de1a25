"""Examples made of random numbers, for tests and measurements without any file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from minigraph.arguments import Count, Kind, Seed, at_least, checked, integers
from minigraph.data.dataset import Dataset, Example
from minigraph.errors import ShapeError

GRID = 4
MOST_CLASSES = 1 << 20


def _image(value: Any) -> tuple[int, ...]:
    sizes = integers(value)
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError
    return sizes


IMAGE = Kind("(c, h, w), of integers >= 1", _image, ShapeError)


class Synthetic(Dataset):
    """`length` images of normal noise, each with its class's pattern of 4 x 4 patches added.

    Example i is drawn from (seed, i) when asked for, and is of class i modulo `classes`.  Patterns
    depend on `shape` and `classes` alone, so another seed gives a test set of the same task.

    >>> from minigraph.data import Synthetic
    >>> image, label = Synthetic((3, 32, 32), classes=10)[0]
    >>> image.shape
    (3, 32, 32)
    """

    @checked
    def __init__(
        self,
        shape: Annotated[Sequence[int], IMAGE],
        classes: Annotated[int, at_least(1, most=MOST_CLASSES)],
        length: Count = 1024,
        seed: Seed = 0,
    ) -> None:
        channels, height, width = self.shape = shape[0], shape[1], shape[2]
        self.classes = tuple(map(str, range(classes)))
        self.seed = seed
        self._length = length
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
