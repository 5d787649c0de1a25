"""The interface of a data set: examples by index, independent of batches and threads.

Augmentation draws from a generator that the caller passes.  The loader makes one for each example
from (its seed, the epoch, the index), so augmented examples depend neither on the number and order
of threads, nor on the epoch at which a training is resumed.
"""

from __future__ import annotations

import importlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt

from minigraph.errors import GraphError, install_command

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Example = tuple[Images, int]


class Dataset(ABC):
    """Examples: float32 images (c, h, w), each with the number of its class.

    A subclass defines `shape`, `classes` (their names), `__len__` and `__getitem__`; a subclass
    that augments overrides `example`, too.

    >>> class Bright(Dataset):
    ...     shape, classes = (1, 2, 2), ("dark", "bright")
    ...     def __len__(self):
    ...         return 2
    ...     def __getitem__(self, index):
    ...         return np.full(self.shape, index, "float32"), index
    >>> images, labels = next(iter(mg.data.DataLoader(Bright(), batch_size=2)))
    >>> images.shape, labels
    ((2, 1, 2, 2), array([0, 1]))
    """

    shape: tuple[int, int, int]
    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Example:
        """Return the example at `index`, never augmented; IndexError outside of the set."""

    def example(self, index: int, rng: np.random.Generator) -> Example:
        """Return the example at `index` for training; augmentation draws only from `rng`."""
        return self[index]

    def position(self, index: int) -> int:
        """Return `index` counted from the front, as in a list: -1 is the last example."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"example {number} of {type(self).__name__}, which has {len(self)}")
        return number % len(self)


class InMemory(Dataset):
    """A data set in arrays, which returns a whole batch faster than its examples."""

    _labels: Labels  # of all examples

    @abstractmethod
    def batch(
        self, indexes: Sequence[int], rngs: Iterable[np.random.Generator] | None
    ) -> tuple[Images, Labels]:
        """Return images [n, c, h, w] and labels [n], contiguous and new, of examples `indexes`.

        rngs  a generator for each example; None for no augmentation
        """

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:
        images, labels = self.batch([self.position(index)], None)
        return images[0], int(labels[0])

    def example(self, index: int, rng: np.random.Generator) -> Example:
        images, labels = self.batch([self.position(index)], [rng])
        return images[0], int(labels[0])


def normalise(pixels: npt.NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> Images:
    """Return `(pixels / 255 - mean) / std`, contiguous, of pixels [..., c, h, w].

    `mean` and `std` have a number for each channel.
    """
    std_column = np.array(std, np.float32)[:, None, None]
    mean_column = np.array(mean, np.float32)[:, None, None]
    images = pixels.astype(np.float32, order="C")
    images *= 1 / (255 * std_column)
    images -= mean_column / std_column
    return images


def library(module: str, user: str) -> ModuleType:
    """Import an optional library of the extra `data` for the data set `user`.

    Raises GraphError if it is absent.  `minigraph.data` works without it, and imports fast.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphError(
            f"{user} needs {module}, which cannot be imported ({error}); {install_command('data')}"
        ) from error
