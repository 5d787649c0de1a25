"""Convolutions of blocks that our kernels compute, and how near their results have to be."""

from typing import NamedTuple

import numpy as np
import pytest
from laid_out import WAYS, computed_by, in_lanes, plain_node

from minigraph.devices.cpu import direct, onednn, winograd
from minigraph.ops.conv import Conv2d

# Of errors relative to the root mean square of the results that are not zero: about four times the
# largest there is, by the window of Winograd's algorithm.
TOLERANCE = {0: 1e-5, 3: 2e-5, 5: 4e-5}

every_way = pytest.mark.parametrize("way", WAYS)
every_window = pytest.mark.parametrize("window", winograd.POINTS)
any_threads = pytest.mark.parametrize("threads", [1, 2])


class Case(NamedTuple):
    """A convolution: images, blocks of channels in and out, the size of images, and its window.

    few       channels of images in nchw, or 0 where they are in blocks
    few_outs  channels of results in nchw, or 0 where they are in blocks
    lanes     channels of a block
    """

    images: int = 2
    ins: int = 1
    outs: int = 2
    size: tuple[int, int] = (9, 7)
    padding: tuple[int, int] = (1, 1)
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    few: int = 0
    few_outs: int = 0
    lanes: int = onednn.block()

    def of_window(self, window):
        """Return one that has results of the same size with another window."""
        more = (window - self.window[0]) // 2
        down, across = self.padding
        return self._replace(padding=(down + more, across + more), window=(window, window))


ODD_SIZES = Case()


def strided(images=2, ins=2, outs=2, size=(9, 14), **fields):
    """Return a convolution with strides, which Winograd's algorithm does not compute."""
    return Case(images, ins, outs, size, **{"stride": (2, 2), **fields})


def plain_of(way, case):
    """Return the node in nchw."""
    x = case.images, case.few or case.ins * case.lanes, *case.size
    w = case.few_outs or case.outs * case.lanes, x[1], *case.window
    return plain_node(way, Conv2d(case.stride, case.padding, case.dilation), x, w)


def in_blocks(way, case=ODD_SIZES):
    """Return the node with images in blocked layouts, except those of few channels."""
    return in_lanes(plain_of(way, case), case.lanes, int(case.few > 0), int(case.few_outs > 0))


def ways_of(case):
    """Return the ways that are computed: the weights' gradient of few results takes no strides."""
    exchanged = case.few_outs and (case.stride, case.dilation) != ((1, 1), (1, 1))
    return [way for way in WAYS if not (exchanged and way == "to the weights")]


def kernel_of(node, threads=1):
    make = winograd.winograd_kernel if winograd.computes(node) else direct.direct_kernel
    return make(node, threads)


def computed(node, xs, threads=1):
    """Return the kernel's results; assert that it writes nothing else."""
    return computed_by(kernel_of(node, threads), node, xs)


def assert_near(actual, expected, window=0):
    """The result is near what is expected, and NaN or infinite where that is.

    window  that of Winograd's algorithm, or 0 for direct convolutions
    """
    scale = np.sqrt(np.mean(expected[np.isfinite(expected) & (expected != 0)] ** 2))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE[window] * scale)


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
    "side-by-side": Case(6, 1, 2, (5, 5)),
    "side-by-side-without-padding": Case(4, 1, 1, (7, 8), (0, 0)),
}
