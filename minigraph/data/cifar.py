"""CIFAR-10, read from its published binary files."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minigraph.arguments import FilePath, checked
from minigraph.data.dataset import Images, InMemory, Labels, normalise
from minigraph.errors import GraphError, reason
from minigraph.platform import regular_file

TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
SUBFOLDER = "cifar-10-batches-bin"
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
PADDING = 4

# As in batches.meta.txt, which is not read.
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

# Of the training images' channels, of pixels in 0..1.
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

    def __len__(self) -> int:
        return len(self._labels)

    def batch(
        self, indexes: Sequence[int], rngs: Iterable[np.random.Generator] | None
    ) -> tuple[Images, Labels]:
        picked = np.asarray(indexes, np.int64)
        pixels = self._pixels[picked]
        if self.augment and rngs is not None:
            pixels = _cropped(pixels, rngs)
        return normalise(pixels, MEAN, STD), self._labels[picked]


def _records(path: Path) -> npt.NDArray[np.uint8]:
    """Return the records [n, 3073] of a file: a byte for the label, then three planes."""
    try:
        data = np.frombuffer(regular_file.read(path), np.uint8)
    except (OSError, ValueError) as error:
        raise GraphError(
            f"CIFAR10 cannot read {path} ({reason(error)}); the directory must hold "
            "the binary version's files, or their folder cifar-10-batches-bin"
        ) from error
    if not data.size or data.size % RECORD:
        raise GraphError(
            f"CIFAR10 found {data.size} bytes in {path}, not a number of whole records of "
            f"{RECORD}; it is cut off or another version: extract the binary one again"
        )
    records = data.reshape(-1, RECORD)
    bad = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if bad.size:
        raise GraphError(
            f"CIFAR10 found label {records[bad[0], 0]} in record {bad[0]} of {path}; "
            f"labels are 0 to {len(CLASSES) - 1}: the file is damaged, extract it again"
        )
    return records


def _cropped(
    pixels: npt.NDArray[np.uint8], rngs: Iterable[np.random.Generator]
) -> npt.NDArray[np.uint8]:
    """Return each image moved by up to PADDING pixels each way and, one time in two, flipped."""
    moves = 2 * PADDING + 1
    draws = np.array([rng.random(3) for rng in rngs]) * (moves, moves, 2)
    down, right, flip = draws.astype(np.int64).T
    padded = np.pad(pixels, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, SHAPE[1:], axis=(2, 3))
    cropped: npt.NDArray[np.uint8] = windows[np.arange(len(pixels)), :, down, right]
    flipped = np.flatnonzero(flip)
    cropped[flipped] = cropped[flipped, ..., ::-1]
    return cropped
