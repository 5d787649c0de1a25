"""Direct convolutions on the CPU: right at every edge, stride and NaN, and offered to the tuner."""

import numpy as np
import pytest
from blocked_cases import assert_near, computed, every_way, in_blocks, strided
from laid_out import WAYS, drawn, in_lanes, meaning, plain_node
from needs import needs_both
from small_network import graph_compiler

import minigraph as mg
from minigraph import graph, ops
from minigraph.devices.cpu import compiler, direct, onednn, winograd
from minigraph.devices.problem import Arrangement
from minigraph.ops.conv import Conv2d
from minigraph.program import KernelFailed

pytestmark = needs_both


every_way_of_all = pytest.mark.parametrize(
    ("few", "way"),
    [(few, way) for few in ({}, {"few": 3}, {"few_outs": 3, "stride": (1, 1)}) for way in WAYS],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)


DIVISIONS = {
    "a block of weights at once": {"PANEL_BYTES": {8: 0, 16: 0}},
    "strips of a row": {
        "PANEL_BYTES": {8: 0, 16: 0},
        "STRIP_BYTES": 1,
        "WEIGHT_STRIP_BYTES": {8: 0, 16: 0},
    },
    "a task for each row": {"TASKS_PER_THREAD": 100},
    "one vector": {"MAX_VECTORS": {8: 1, 16: 1}, "WEIGHT_VECTORS": 1},
}


@pytest.mark.parametrize("division", DIVISIONS)
@every_way_of_all
def test_work_is_divided_in_any_way(few, way, division, monkeypatch):
    node = in_blocks(way, strided(3, 3, 4, (13, 8), **few))
    xs = drawn(node)
    whole = computed(node, xs, 2)
    for constant, value in DIVISIONS[division].items():
        monkeypatch.setattr(direct, constant, value)
    assert_near(computed(node, xs, 2), meaning(node, xs))
    assert_near(computed(node, xs, 2), whole)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("window", [(3, 3), (5, 5), (1, 7), (2, 13)])
def test_the_gradient_of_a_depthwise_convolution(window, stride, lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    channels = 3 * lanes
    conv = Conv2d(stride, (window[0] // 2, 3), groups=channels)
    plain = plain_node("to the weights", conv, (3, channels, 9, 14), (channels, 1, *window))
    node = in_lanes(plain, lanes)
    xs = drawn(node)
    assert offered(node)
    assert_near(computed(node, xs, 2), meaning(node, xs))


@every_way
def test_the_same_bits_come_out_in_every_run(way):
    node = in_blocks(way, strided(5, 2, 4, (30, 30)))
    xs = drawn(node)
    first, *others = (computed(node, xs, 2).tobytes() for _ in range(10))
    assert set(others) == {first}


@pytest.mark.parametrize("way", WAYS[:3])
def test_weights_that_are_constants_are_arranged_once(way):
    node = in_blocks(way, strided())
    xs = drawn(node)
    of_constants = node.replace((node.inputs[0], graph.constant(xs[1]), *node.inputs[2:]))
    kernel = direct.direct_kernel(of_constants, 2)
    assert [each.nbytes for each in kernel.preparations.values()] == [xs[1].nbytes]
    assert kernel.scratch == 0
    np.testing.assert_array_equal(computed(of_constants, xs, 2), computed(node, xs, 2))


@every_way_of_all
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_meets_padding_is_multiplied_by_nothing(odd, few, way):
    """At the edges, where a pixel or a tap meets padding, it is NaN or infinite."""
    node = in_blocks(way, strided(padding=(2, 2), window=(5, 5), **few))
    xs = drawn(node)
    images = [x for x, operand in zip(xs, node.inputs, strict=True) if operand.name in ("x", "dy")]
    images[0][0, 0, 0, 0] = odd
    xs[1].flat[-1] = odd
    with np.errstate(invalid="ignore"):
        expected = meaning(node, xs)
    assert np.isfinite(expected).any() and not np.isfinite(expected).all()
    assert_near(computed(node, xs), expected)


# ---------------------------------------------------------------- where it is offered


def offered(node):
    """Whether the kernels are among the candidates for a node."""
    arrangement = Arrangement(node, [x.spec.strides for x in node.inputs], ())
    return [candidate.name for candidate in direct.candidates(arrangement, 1)] == [direct.NAME]


def offered_for(conv, channels=(2, 1), window=(3, 3), few=0, few_outs=0, lanes=0, way="forward"):
    """Whether it is for a convolution of so many blocks of channels; `few` lie in nchw."""
    block = onednn.block()
    ins, outs = few or channels[0] * block, few_outs or channels[1] * block
    plain = plain_node(way, conv, (1, ins, 9, 9), (outs, ins // conv.groups, *window))
    return offered(in_lanes(plain, lanes or block, int(few > 0), int(few_outs > 0)))


def test_it_is_offered_where_no_other_kernel_is_sure_to_be_better():
    strides = Conv2d((2, 2))
    assert offered_for(strides)
    assert offered_for(strides, few=4)
    assert offered_for(strides, few_outs=4)
    assert offered_for(Conv2d(padding=(1, 1)), few_outs=4, way="to the weights")
    assert not offered_for(strides, few_outs=4, way="to the weights")
    assert not offered_for(strides, few_outs=5)
    assert not offered_for(Conv2d(padding=(1, 1)))  # there is Winograd's algorithm
    assert not offered_for(strides, window=(1, 1))  # a product of matrices
    assert not offered_for(Conv2d((2, 2), groups=2))
    assert not offered_for(Conv2d((2, 2), groups=2 * onednn.block()), channels=(2, 2))
    assert not offered_for(strides, few=5)
    assert offered_for(Conv2d(dilation=(1, 2)), few=3)
    assert not offered_for(Conv2d(dilation=(1, 2)), few=3, way="to the weights")
    assert not offered_for(strides, lanes=1)
    assert not offered_for(strides, channels=(2, 2), lanes=2 * onednn.block())


def test_it_fails_where_the_compiler_did_so_that_another_takes_its_place(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    node = in_blocks("forward", strided())
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
    algorithms = direct_ones.report().algorithms
    assert {a.name for a in algorithms if a.op.startswith("conv2d")} == {direct.NAME}
    for actual, expected in zip(direct_ones(images), plain(images), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_it_is_chosen_where_a_network_returns_few_channels():
    block, rng = onednn.block(), np.random.default_rng(0)
    x = mg.input("x", (2, block, 20, 20))
    many, few = (
        mg.Parameter(0.1 * rng.standard_normal((outs, block, 3, 3)).astype("float32"))
        for outs in (block, 3)
    )
    y = ops.conv2d(ops.relu(ops.conv2d(x, many, padding=1)), few, padding=1)
    step = graph_compiler(3, autotune="off").compile([x], mg.grad((y * y).sum(), [many, few]))
    names = [a.name for a in step.report().algorithms if a.op.startswith("conv2d")]
    assert sorted(names) == [direct.NAME] * 3 + [winograd.NAME] * 2
