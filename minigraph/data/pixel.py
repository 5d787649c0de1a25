"""From bytes to what a network is fed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def normalise(
    pixels: npt.NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]
) -> npt.NDArray[np.float32]:
    """Return `(pixels / 255 - mean) / std`, contiguous, of pixels [..., c, h, w].

    `mean` and `std` hold a number for each channel.
    """
    std_column = np.array(std, np.float32)[:, None, None]
    mean_column = np.array(mean, np.float32)[:, None, None]
    images = pixels.astype(np.float32, order="C")
    images *= 1 / (255 * std_column)
    images -= mean_column / std_column
    return images
