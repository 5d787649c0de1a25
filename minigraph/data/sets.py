"""Named data sets: digits, CIFAR-10, and synthetic images."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from minigraph.arguments import (
    Count,
    FilePath,
    Kind,
    Seed,
    at_least,
    checked,
    integers,
    with_predicate,
)
from minigraph.data.dataset import Dataset, Example, Images, InMemory, Labels, library, normalise
from minigraph.errors import GraphError, ShapeError, reason
from minigraph.platform import regular_file

SIDE = 8
MAX_SIZE = 1024


class Digits(InMemory):
    """The 1,797 8x8 digits of scikit-learn's `load_digits`: 1,437 to train, 360 to test.

    The split is fixed, and stratified: each class has the same share, to within one image.  `size`
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
        size: Annotated[int, at_least(SIDE, most=MAX_SIZE)] = SIDE,
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

    def batch(self, indexes: Sequence[int], rngs: object) -> tuple[Images, Labels]:
        rows = [*indexes]
        return self._images[rows].repeat(self.shape[0], axis=1), self._labels[rows]


def enlarge(images: Images, size: int) -> Images:
    """Return square images [n, s, s] as [n, size, size], bilinear between pixel centres.

    The border repeats outwards, as with `align_corners=False` in PyTorch.
    """
    side = images.shape[-1]
    centre = (np.arange(size) + 0.5) * side / size - 0.5
    # Row i has the weights of the old pixels in the new pixel i.
    distance = np.abs(centre.clip(0, side - 1)[:, None] - np.arange(side))
    weights = (1 - distance).clip(min=0).astype(np.float32)
    enlarged: Images = weights @ images @ weights.T
    return enlarged


TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
SUBFOLDER = "cifar-10-batches-bin"
SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
PADDING = 4

# From batches.meta.txt, which is not read.
NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
CLASSES = tuple(NAMES.split())

# Of the channels of the training images, with pixels in 0..1.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


class CIFAR10(InMemory):
    """The 32x32 colour images of CIFAR-10: 50,000 to train, 10,000 to test, in 10 classes.

    `directory`, or its subfolder `cifar-10-batches-bin`, holds the files of the binary version,
    https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz.  Channels are scaled by the usual
    mean and deviation.  `augment` crops at random after padding by 4 black pixels, and flips.

    Source: A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images.
    """

    @checked
    def __init__(self, directory: FilePath, train: bool = True, augment: bool = False) -> None:
        folder = Path(directory)
        if os.path.isdir(folder / SUBFOLDER):
            folder = folder / SUBFOLDER
        records = np.concatenate([_records(folder / name) for name in (TRAIN if train else TEST)])
        self._labels = records[:, 0].astype(np.int64)
        self._pixels = records[:, 1:].reshape(-1, *SHAPE)
        self.augment = augment
        self.shape = SHAPE
        self.classes = CLASSES

    def batch(
        self, indexes: Sequence[int], rngs: Iterable[np.random.Generator] | None
    ) -> tuple[Images, Labels]:
        rows = [*indexes]
        pixels = self._pixels[rows]
        if self.augment and rngs is not None:
            pixels = _cropped(pixels, rngs)
        return normalise(pixels, MEAN, STD), self._labels[rows]


def _records(path: Path) -> npt.NDArray[np.uint8]:
    """Return the records [n, 3073] of a file: a byte for the label, then three planes."""
    try:
        data = np.frombuffer(regular_file.read(path), np.uint8)
    except (OSError, ValueError) as error:
        raise GraphError(
            f"CIFAR10 cannot read {path} ({reason(error)}); the directory must hold "
            "the binary version's files, or their folder cifar-10-batches-bin"
        ) from error
    if not data.size or data.size % RECORD_BYTES:
        raise GraphError(
            f"CIFAR10 found {data.size} bytes in {path}, not a number of whole records of "
            f"{RECORD_BYTES}; it is cut off or another version: extract the binary one again"
        )
    records = data.reshape(-1, RECORD_BYTES)
    invalid = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if invalid.size:
        raise GraphError(
            f"CIFAR10 found label {records[invalid[0], 0]} in record {invalid[0]} of {path}; "
            f"labels are 0 to {len(CLASSES) - 1}: the file is damaged, extract it again"
        )
    return records


def _cropped(
    pixels: npt.NDArray[np.uint8], rngs: Iterable[np.random.Generator]
) -> npt.NDArray[np.uint8]:
    """Return images shifted by up to PADDING pixels in each direction, half of them flipped."""
    moves = 2 * PADDING + 1
    draws = np.array([rng.random(3) for rng in rngs]) * (moves, moves, 2)
    down, right, flip = draws.astype(np.int64).T
    padded = np.pad(pixels, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, SHAPE[1:], axis=(2, 3))
    cropped: npt.NDArray[np.uint8] = windows[np.arange(len(pixels)), :, down, right]
    flipped = np.flatnonzero(flip)
    cropped[flipped] = cropped[flipped, ..., ::-1]
    return cropped


GRID = 4
MAX_CLASSES = 1 << 20


SIZES = with_predicate(lambda sizes: len(sizes) == 3 and min(sizes) >= 1, integers)
IMAGE = Kind("(c, h, w), of integers >= 1", SIZES, ShapeError)


class Synthetic(Dataset):
    """`length` images of normal noise, each with its class's pattern of 4 x 4 patches added.

    Example i is drawn from (seed, i) at each access, and is of class i modulo `classes`.  Patterns
    depend only on `shape` and `classes`, so another seed gives a test set of the same task.

    >>> from minigraph.data import Synthetic
    >>> image, label = Synthetic((3, 32, 32), classes=10)[0]
    >>> image.shape
    (3, 32, 32)
    """

    @checked
    def __init__(
        self,
        shape: Annotated[Sequence[int], IMAGE],
        classes: Annotated[int, at_least(1, most=MAX_CLASSES)],
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
