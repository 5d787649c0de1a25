"""Handwritten digits that come with scikit-learn: a real task, small enough for a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from minigraph.arguments import Count, at_least, checked
from minigraph.data.dataset import Images, InMemory, Labels, library

SIDE = 8
LARGEST = 1024


class Digits(InMemory):
    """The 1,797 8x8 digits of scikit-learn's `load_digits`: 1,437 to train, 360 to test.

    The split is fixed, and stratified: each class is divided alike, to within one image.  `size`
    enlarges by bilinear interpolation, `channels` repeats the grey one.  The training part has
    mean 0 and standard deviation 1; the test part is scaled by the same two numbers.

    Source: E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository, https://doi.org/10.24432/C50P49 (its test part).

    >>> from minigraph.data import Digits
    >>> image, label = Digits(train=False)[0]
    >>> image.shape, label
    ((1, 8, 8), 0)
    """

    @checked
    def __init__(
        self,
        train: bool = True,
        size: Annotated[int, at_least(SIDE, most=LARGEST)] = SIDE,
        channels: Count = 1,
    ) -> None:
        source = library("sklearn.datasets", "Digits").load_digits()
        images = enlarge(source.images.astype(np.float32), size)
        labels = source.target.astype(np.int64)

        # RandomState, not Generator: NumPy promises that its stream never changes.
        shuffled = np.random.RandomState(0).permutation(len(labels))
        by_class = np.lexsort((shuffled, labels))
        in_test = np.zeros(len(labels), bool)
        in_test[by_class[::5]] = True

        part = ~in_test if train else in_test
        fit = images[~in_test]
        self._images = (images[part] - fit.mean())[:, None] / fit.std()
        self._labels = labels[part]
        self.shape = (channels, size, size)
        self.classes = tuple(map(str, source.target_names))

    def __len__(self) -> int:
        return len(self._labels)

    def batch(
        self, indexes: Sequence[int], rngs: Iterable[np.random.Generator] | None
    ) -> tuple[Images, Labels]:
        picked = np.asarray(indexes, np.int64)
        return self._images[picked].repeat(self.shape[0], axis=1), self._labels[picked]


def enlarge(images: Images, size: int) -> Images:
    """Return square images [n, s, s] as [n, size, size], bilinear between pixel centres.

    The border repeats outwards (`align_corners=False` elsewhere).
    """
    side = images.shape[-1]
    centre = (np.arange(size) + 0.5) * side / size - 0.5
    # Row i holds the weights of the old pixels in the new pixel i.
    distance = np.abs(centre.clip(0, side - 1)[:, None] - np.arange(side))
    weights = (1 - distance).clip(min=0).astype(np.float32)
    enlarged: Images = weights @ images @ weights.T
    return enlarged
