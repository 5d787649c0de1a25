"""Convolutions of blocks, by Winograd's algorithm and directly: right to the last pixel."""

import pytest
from blocked_cases import (
    CASES,
    ODD_SIZES,
    assert_near,
    computed,
    every_way,
    in_blocks,
    strided,
    ways_of,
)
from laid_out import drawn, meaning
from needs import needs_both

from minigraph.devices.cpu import onednn, winograd

pytestmark = needs_both

STRIDED = {
    "stride of 2": strided(),
    "unlike strides": strided(stride=(3, 1), padding=(0, 2)),
    "strides beyond the window": strided(window=(2, 1), stride=(4, 3), padding=(0, 0)),
    "dilated": strided(stride=(1, 1), dilation=(2, 3), padding=(2, 2)),
    "dilated with strides": strided(stride=(2, 3), dilation=(3, 2), padding=(3, 1), size=(15, 17)),
    "padding beyond the window": strided(window=(2, 2), padding=(4, 3)),
    "window as large as the images": strided(size=(3, 5), window=(7, 7), padding=(3, 3)),
    "a row of taps": strided(window=(1, 7), stride=(1, 2), padding=(0, 3)),
    "a column of taps": strided(window=(7, 1), stride=(1, 1), padding=(3, 0)),
    "one pixel": strided(1, 1, 1, (1, 1)),
    "one result": strided(3, 1, 3, (3, 3), padding=(0, 0)),
    "many blocks": strided(1, 5, 6, (6, 6)),
    "three channels": strided(size=(23, 24), window=(7, 7), padding=(3, 3), few=3),
    "three channels, strides of 4": strided(
        outs=4, size=(31, 30), window=(11, 11), stride=(4, 4), padding=(2, 2), few=3
    ),
    "one channel": strided(outs=1, window=(5, 2), stride=(1, 3), padding=(4, 1), few=1),
    "four channels, a column of taps": strided(window=(4, 1), few=4),
    "two channels, more taps than pixels": strided(
        size=(3, 2), window=(13, 13), padding=(6, 6), few=2
    ),
    "three results": strided(stride=(1, 1), size=(23, 24), window=(3, 3), few_outs=3),
    "three results with strides": strided(window=(4, 4), few_outs=3),
    "four results, dilated": strided(stride=(1, 1), dilation=(2, 3), padding=(2, 2), few_outs=4),
    "one result, padding beyond the window": strided(
        ins=3, stride=(1, 1), window=(2, 5), padding=(3, 6), few_outs=1
    ),
    "two results, more taps than pixels": strided(
        stride=(1, 1), size=(3, 2), window=(13, 13), padding=(6, 6), few_outs=2
    ),
}
FEW = strided(stride=(1, 1), few_outs=3)
EVERY = STRIDED | {
    f"{name}, window {n}": case.of_window(n)
    for name, case in CASES.items()
    for n in winograd.POINTS
}


def assert_computed(way, case, threads=1):
    node = in_blocks(way, case)
    xs = drawn(node)
    window = case.window[0] if winograd.computes(node) else 0
    assert_near(computed(node, xs, threads), meaning(node, xs), window)


@pytest.mark.parametrize("threads", [1, 3], ids="threads={}".format)
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name, case in EVERY.items() for way in ways_of(case)],
)
def test_it_computes_what_the_op_means(name, way, threads):
    assert_computed(way, EVERY[name], threads)


@pytest.mark.parametrize("lanes", [8, 16])
@every_way
@pytest.mark.parametrize("case", [ODD_SIZES, ODD_SIZES.of_window(5), strided(outs=3), FEW])
def test_blocks_of_8_and_of_16_channels_are_computed(case, way, lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    in_lanes = case._replace(lanes=lanes)
    node = in_blocks(way, in_lanes)
    assert lanes in (node.shape[-1], *(x.shape[-1] for x in node.inputs))
    assert_computed(way, in_lanes)
