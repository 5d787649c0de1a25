"""Direct convolutions on the CPU: right at every edge, stride and NaN, and offered to the tuner."""

from typing import NamedTuple

import numpy as np
import pytest
from laid_out import WAYS, computed_by, drawn, in_lanes, meaning, plain_node
from needs import needs_both
from small_network import graph_compiler

import minigraph as mg
from minigraph import graph, ops
from minigraph.devices.cpu import compiler, direct, onednn
from minigraph.devices.problem import Arrangement
from minigraph.ops.conv import Conv2d
from minigraph.program import KernelFailed

pytestmark = needs_both

every_way = pytest.mark.parametrize("way", WAYS)


class Case(NamedTuple):
    """A convolution: images, blocks of channels in and out, the size of images, and its window.

    few  channels of images in nchw, or 0 where they are in blocks
    """

    images: int = 2
    ins: int = 2
    outs: int = 2
    size: tuple[int, int] = (9, 14)
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    few: int = 0


CASES = {
    "stride of 2": Case(),
    "unlike strides": Case(stride=(3, 1), padding=(0, 2)),
    "strides beyond the window": Case(window=(2, 1), stride=(4, 3), padding=(0, 0)),
    "dilated": Case(stride=(1, 1), dilation=(2, 3), padding=(2, 2)),
    "dilated with strides": Case(stride=(2, 3), dilation=(3, 2), padding=(3, 1), size=(15, 17)),
    "padding beyond the window": Case(window=(2, 2), padding=(4, 3)),
    "window as large as the images": Case(size=(3, 5), window=(7, 7), padding=(3, 3)),
    "a row of taps": Case(window=(1, 7), stride=(1, 2), padding=(0, 3)),
    "a column of taps": Case(window=(7, 1), stride=(1, 1), padding=(3, 0)),
    "one pixel": Case(1, 1, 1, (1, 1)),
    "one result": Case(3, 1, 3, (3, 3), padding=(0, 0)),
    "many blocks": Case(1, 5, 6, (6, 6)),
    "three channels": Case(size=(23, 24), window=(7, 7), padding=(3, 3), few=3),
    "three channels, strides of 4": Case(
        outs=4, size=(31, 30), window=(11, 11), stride=(4, 4), padding=(2, 2), few=3
    ),
    "one channel": Case(outs=1, window=(5, 2), stride=(1, 3), padding=(4, 1), few=1),
    "four channels, a column of taps": Case(window=(4, 1), few=4),
    "two channels, more taps than pixels": Case(
        size=(3, 2), window=(13, 13), padding=(6, 6), few=2
    ),
}


def ways_of(few):
    """Return the ways of a convolution: no gradient is written in nchw."""
    return [way for way in WAYS if way != "to the images" or not few]


every_way_of_both = pytest.mark.parametrize(
    ("few", "way"), [(few, way) for few in (0, 3) for way in ways_of(few)], ids="{}".format
)


def in_blocks(way, case):
    """Return the node whose images lie in blocks, but for those of few channels."""
    block = onednn.block()
    conv = Conv2d(case.stride, case.padding, case.dilation)
    x = case.images, case.few or case.ins * block, *case.size
    w = case.outs * block, x[1], *case.window
    return in_lanes(plain_node(way, conv, x, w), block, lanes_of_x=1 if case.few else block)


def computed(node, xs, threads=1):
    """Return what the kernel computes, with nothing written where it does not belong."""
    return computed_by(direct.direct_kernel(node, threads), node, xs)


def assert_near(got, want):
    """The result is finite where it should be, and near there."""
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    scale = max(np.sqrt(np.mean(want[finite] ** 2)), 1e-30)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=1e-5 * scale)


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("threads", [1, 3], ids="threads={}".format)
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name, case in CASES.items() for way in ways_of(case.few)],
    ids="{}".format,
)
def test_it_computes_what_the_op_means(name, way, threads):
    case = CASES[name]
    node = in_blocks(way, case)
    xs = drawn(node)
    assert_near(computed(node, xs, threads), meaning(node, xs))


@pytest.mark.parametrize("lanes", [8, 16])
@every_way
def test_blocks_of_8_and_of_16_channels_are_computed(way, lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    node = in_blocks(way, Case(outs=3))
    assert lanes in (node.shape[-1], node.inputs[0].shape[-1])
    xs = drawn(node)
    assert_near(computed(node, xs), meaning(node, xs))


DIVISIONS = {
    "a block of weights at once": {"PANEL": {8: 0, 16: 0}},
    "strips of a row": {"PANEL": {8: 0, 16: 0}, "STRIP": 1, "ROWS": {8: 0, 16: 0}},
    "a task for each row": {"TASKS": 100},
    "one vector": {"VECTORS": {8: 1, 16: 1}, "OUTER": 1},
}


@pytest.mark.parametrize("division", DIVISIONS)
@every_way_of_both
def test_work_is_divided_in_any_way(few, way, division, monkeypatch):
    node = in_blocks(way, Case(3, 3, 4, (13, 8), few=few))
    xs = drawn(node)
    whole = computed(node, xs, 2)
    for constant, value in DIVISIONS[division].items():
        monkeypatch.setattr(direct, constant, value)
    assert_near(computed(node, xs, 2), meaning(node, xs))
    assert_near(computed(node, xs, 2), whole)


@every_way
def test_the_same_bits_come_out_in_every_run(way):
    node = in_blocks(way, Case(5, 2, 4, (30, 30)))
    xs = drawn(node)
    first, *others = (computed(node, xs, 2).tobytes() for _ in range(10))
    assert set(others) == {first}


@pytest.mark.parametrize("way", WAYS[:3])
def test_weights_that_are_constants_are_arranged_once(way):
    node = in_blocks(way, Case())
    xs = drawn(node)
    known = node.replace((node.inputs[0], graph.constant(xs[1]), *node.inputs[2:]))
    kernel = direct.direct_kernel(known, 2)
    assert [each.nbytes for each in kernel.preparations.values()] == [xs[1].nbytes]
    assert kernel.scratch == 0
    np.testing.assert_array_equal(computed(known, xs, 2), computed(node, xs, 2))


@every_way_of_both
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_meets_padding_is_multiplied_by_nothing(odd, few, way):
    """At the edges, where a pixel or a tap meets padding, it is NaN or infinite."""
    node = in_blocks(way, Case(few=few, padding=(2, 2), window=(5, 5)))
    xs = drawn(node)
    images = [x for x, given in zip(xs, node.inputs, strict=True) if given.name in ("x", "dy")]
    images[0][0, 0, 0, 0] = odd
    xs[1].flat[-1] = odd
    with np.errstate(invalid="ignore"):
        want = meaning(node, xs)
    assert np.isfinite(want).any() and not np.isfinite(want).all()
    assert_near(computed(node, xs), want)


# ---------------------------------------------------------------- where it is offered


def offered(node):
    """Whether the kernels are among the candidates for a node."""
    arrangement = Arrangement(node, [x.spec.strides for x in node.inputs], ())
    return [candidate.name for candidate in direct.candidates(arrangement, 1)] == [direct.NAME]


def offered_for(conv, channels=(2, 1), window=(3, 3), few=0, lanes=0):
    """Whether it is for a convolution of so many blocks of channels; `few` lie in nchw."""
    block = onednn.block()
    ins, outs = few or channels[0] * block, channels[1] * block
    plain = plain_node("forward", conv, (1, ins, 9, 9), (outs, ins // conv.groups, *window))
    return offered(in_lanes(plain, lanes or block, 1 if few else 0))


def test_it_is_offered_where_no_other_kernel_is_sure_to_be_better():
    strides = Conv2d((2, 2))
    assert offered_for(strides)
    assert offered_for(strides, few=4)
    assert not offered_for(Conv2d(padding=(1, 1)))  # there is Winograd's algorithm
    assert not offered_for(strides, window=(1, 1))  # a product of matrices
    assert not offered_for(Conv2d((2, 2), groups=2))
    assert not offered_for(strides, few=5)
    assert not offered_for(Conv2d(dilation=(1, 2)), few=3)
    assert not offered_for(strides, lanes=1)
    assert not offered_for(strides, channels=(2, 2), lanes=2 * onednn.block())


def test_it_fails_where_the_compiler_did_so_that_another_takes_its_place(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    node = in_blocks("forward", Case())
    with pytest.raises(KernelFailed, match="could not compile"):
        direct.direct_kernel(node, 1).run(drawn(node), [np.empty(node.shape)], np.empty(0))


def test_a_network_with_strides_trains_as_level_0_does(prefer):
    prefer(direct.NAME)
    block, rng = onednn.block(), np.random.default_rng(0)

    def parameter(*shape):
        return mg.Parameter(0.2 * rng.standard_normal(shape).astype("float32"))

    x, few, many = (
        mg.input("x", (4, 3, 33, 31)),
        parameter(block, 3, 7, 7),
        parameter(32, block, 3, 3),
    )
    h = ops.relu(ops.conv2d(x, few, stride=2, padding=3))
    loss = (ops.conv2d(h, many, stride=2, padding=1) ** 2).mean()
    gradients = mg.grad(loss, [few, many])
    images = rng.standard_normal(x.shape).astype("float32")
    plain, direct_ones = (graph_compiler(n).compile([x], [loss, *gradients]) for n in (0, 3))
    made = direct_ones.report().algorithms
    assert {a.name for a in made if a.op.startswith("conv2d")} == {direct.NAME}
    for got, want in zip(direct_ones(images), plain(images), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
