"""Convolutions that Winograd's algorithm computes, and how near its results have to be."""

from typing import NamedTuple

import numpy as np
import pytest
from laid_out import WAYS, computed_by, in_lanes, plain_node

from minigraph.devices.cpu import onednn, winograd
from minigraph.ops.conv import Conv2d

# Of errors relative to the root mean square of the results that are not zero: about four times the
# largest there is.
TOLERANCE = {3: 2e-5, 5: 4e-5}

every_way = pytest.mark.parametrize("way", WAYS)
every_window = pytest.mark.parametrize("window", winograd.POINTS)
any_threads = pytest.mark.parametrize("threads", [1, 2])


class Case(NamedTuple):
    """A convolution: images, blocks of channels in and out, their size, padding and window."""

    images: int = 2
    ins: int = 1
    outs: int = 2
    size: tuple[int, int] = (9, 7)
    padding: tuple[int, int] = (1, 1)
    window: int = 3

    def of_window(self, window):
        """Return one that has results of the same size with another window."""
        more = (window - self.window) // 2
        down, across = self.padding
        return self._replace(padding=(down + more, across + more), window=window)


ODD_SIZES = Case()


def plain_of(way, case):
    """Return the node in nchw."""
    lanes = onednn.block()
    x = case.images, case.ins * lanes, *case.size
    w = case.outs * lanes, case.ins * lanes, case.window, case.window
    return plain_node(way, Conv2d(padding=case.padding), x, w)


def in_blocks(way, case=ODD_SIZES):
    return in_lanes(plain_of(way, case), onednn.block())


def computed(node, xs, threads=1):
    """Return what the algorithm computes, with nothing written where it does not belong."""
    return computed_by(winograd.winograd_kernel(node, threads), node, xs)


def assert_near(got, want, window=3):
    """Where the result is finite it is near; the others are the same."""
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    scale = np.sqrt(np.mean(want[finite & (want != 0)] ** 2))
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=TOLERANCE[window] * scale)


CASES = {
    "odd": ODD_SIZES,
    "wide": Case(1, 1, 1, (3, 23)),
    "one-pixel": Case(3, 1, 1, (3, 3), (0, 0)),
    "one-pixel-of-padding": Case(1, 1, 2, (1, 1)),
    "below-a-tile": Case(2, 2, 1, (5, 3), (0, 0)),
    "as-a-tile": Case(1, 1, 1, (4, 4)),
    "unlike-padding": Case(1, 1, 3, (6, 5), (0, 2)),
    "padding-of-two": Case(2, 1, 1, (1, 4), (2, 1)),
    "blocks": Case(1, 3, 4, (6, 10)),
}
