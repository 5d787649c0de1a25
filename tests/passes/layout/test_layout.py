"""Memory layouts chosen over the whole network: `minigraph.passes.layout`."""

import numpy as np
import pytest
from residual_block import ResidualBlock
from small_functions import real

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import Graph
from minigraph.ops.layout import LaidOut, Reorder
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.layout.region import Regions
from minigraph.passes.layout.selection import assign_layouts, images_of
from minigraph.passes.library.batch_norm import fuse_batch_norm
from minigraph.passes.notes import Notes

PLAIN, BLOCKED, NHWC = (1, 1), (8, 8), "nhwc"


class Times:
    """Costs that a test defines: for convolutions by the pair of lanes of their images."""

    def __init__(self, times, reorder=0.1):
        self.times = times
        self.moved = reorder
        self.measured = []

    def __call__(self, nodes):
        self.measured += nodes
        return [*map(self.seconds, nodes)]

    def seconds(self, node):
        if isinstance(node.op, Reorder):
            channels = node.shape[1]
            lanes = [n for n in (1, 4, 8, channels) if channels % n == 0]
            return {(a, b): self.moved for a in lanes for b in lanes}
        first, second = (image.shape[1] for image in images_of(node))
        costs = {
            (first, second) if pair == NHWC else pair: seconds
            for pair, seconds in self.times(node).items()
        }
        return {
            (a, b): seconds
            for (a, b), seconds in costs.items()
            if first % a == 0 and second % b == 0
        }


def blocked_wins(node):
    return {PLAIN: 2.0, BLOCKED: 1.0, (1, 8): 1.5, NHWC: 1.9}


def small_blocks_win(node):
    return {PLAIN: 2.0, (4, 4): 1.0}


def graph_of(outputs, *inputs):
    return Graph(inputs, tuple(outputs))


def laid_out(graph, times=blocked_wins, convolutions=None, args=None, blocks=(8,), **reorder):
    """Return the graph with layouts and what was done; it computes the same.

    convolutions  how many work in other layouts than nchw; None: any number
    args          of the graph; None: normally distributed
    """
    notes = Notes()
    new = assign_layouts(graph, notes, Times(times, **reorder), blocks)
    new.check()
    assert convolutions in (None, count(new, LaidOut))
    args = args or [real(*x.shape, seed=i) for i, x in enumerate(graph.inputs)]
    for before, after in zip(graph(*args), new(*args), strict=True):
        np.testing.assert_allclose(after, before, rtol=2e-4, atol=2e-5)
    return new, notes.fired


def count(graph, kind):
    return sum(isinstance(node.op, kind) for node in graph)


def weights(out, channels, size=3, seed=1):
    return mg.Parameter(real(out, channels, size, size, seed=seed) / size / channels**0.5, "w")


X = mg.input("x", (2, 16, 6, 6))
ONE = graph_of([ops.conv2d(X, weights(32, 16))], X)


def test_two_convolutions_keep_the_blocked_layout_between_them():
    y = ops.conv2d(ops.relu(ops.conv2d(X, weights(32, 16))), weights(16, 32))
    new, fired = laid_out(graph_of([y], X), convolutions=2)
    assert count(new, Reorder) == 2  # of x, and of y
    (relu,) = (node for node in new if node.op.name == "relu")
    assert relu.shape == (2, 4, 4, 4, 8)
    assert fired == {"conv2d in nChw8c": 2, "reorder": 2}


def test_a_network_has_smaller_blocks_only_where_the_largest_do_not_divide_an_image():
    divided = ops.conv2d(X, weights(32, 16))
    undivided = ops.conv2d(ops.relu(divided), weights(12, 32))
    for image, lanes in ((divided, [[1, 8, 32]]), (undivided, [[1, 8, 4, 32], [1, 4, 12]])):
        regions = Regions(graph_of([image], X), (8, 4))
        assert [*map(regions.lanes, regions.all)] == lanes


def test_channels_are_joined_and_sliced_at_multiples_of_the_block():
    y = ops.conv2d(X, weights(12, 16))
    for cut, ndim in ((4, 5), (6, 4)):
        z = ops.conv2d(ops.concat([y[:, cut:], y[:, :cut]], 1), weights(4, 12, 1))
        new, _ = laid_out(graph_of([z], X), small_blocks_win, blocks=(8, 4))
        assert {node.ndim for node in new if node.op.name in ("concat", "slice")} == {ndim}


def test_loops_and_other_ops_of_several_results_stand_beside_convolutions():
    y = ops.conv2d(X, weights(32, 16))
    last, sums = ops.scan(lambda total, row: (total + row, total), y[0], y)
    largest, places = ops.topk(ops.relu(y), 2, 1)
    laid_out(graph_of([last, sums, largest, places], X), convolutions=1)


@pytest.mark.parametrize(
    ("times", "reorder", "changes"),
    [
        ({PLAIN: 1.0, BLOCKED: 1.0, NHWC: 1.1}, 0.1, False),  # nchw is fastest
        (blocked_wins(None), 0.5, False),  # the reorders cost as much as the layout saves
        (blocked_wins(None), 0.4, True),
        ({PLAIN: 1.0, BLOCKED: 0.79}, 0.1, False),  # one percent is not enough
        ({PLAIN: 1.0, BLOCKED: 0.7}, 0.1, True),
        ({}, 0.1, False),  # no measurements
    ],
)
def test_layouts_change_only_where_that_gains_more_than_reorders_cost(times, reorder, changes):
    new, fired = laid_out(ONE, lambda node: times, reorder=reorder)
    assert (new is not ONE) == bool(fired) == changes


def test_a_convolution_that_was_not_measured_stays_in_nchw_among_others_that_do_not():
    y = X
    for seed in range(4):
        y = ops.relu(ops.conv2d(y, weights(16, 16, 1, seed)))
    graph = graph_of([y], X)
    unknown = [node for node in graph if node.op.name == "conv2d"][2]
    laid_out(graph, lambda node: {} if node is unknown else blocked_wins(node), convolutions=3)


def test_a_graph_without_convolutions_is_left_alone_and_nothing_is_measured():
    graph = graph_of([ops.relu(X)], X)
    times = Times(blocked_wins)
    assert assign_layouts(graph, Notes(), times, (8,)) is graph
    assert not times.measured


def test_each_convolution_may_work_in_another_layout_than_its_neighbours():
    convs = [ops.conv2d(X, weights(16, 16, 1))]
    convs.append(ops.conv2d(ops.relu(convs[0]), weights(16, 16, 3)))
    convs.append(ops.conv2d(ops.relu(convs[1]), weights(16, 16, 1)))

    def times(node):
        fast = {BLOCKED: 1.0} if node.inputs[1].shape[2] == 1 else {}
        return {PLAIN: 5.0, BLOCKED: 4.0, NHWC: 3.0, **fast}

    laid_out(graph_of(convs[-1:], X), times, convolutions=3)


def test_channels_that_make_no_blocks_stay_as_they_are():
    x = mg.input("x", (2, 3, 6, 6))
    y = ops.conv2d(ops.relu(ops.conv2d(x, weights(16, 3))), weights(16, 16))
    new, _ = laid_out(graph_of([y], x))
    first, second = (node for node in new if isinstance(node.op, LaidOut))
    assert first.op.lanes_in[0] == 1 and first.op.lanes_out == (8,)
    assert second.op.lanes_in[0] == second.op.lanes_out[0] == 8


def net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        ResidualBlock(16),
        nn.Conv2d(16, 32, 3, stride=2, bias=False),
        nn.BatchNorm2d(32),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def training(model, x, classes=5):
    labels = mg.input("labels", (x.shape[0],), "int64")
    loss = ops.cross_entropy(model(x), labels)
    adam = optim.SGD(model.parameters(), lr=0.1)
    updates = {**adam.minimize(loss), **model.updates()}
    return graph_of([loss, *updates.values()], x, labels)


@pytest.mark.parametrize("fused", [False, True])
def test_a_training_step_computes_the_same_in_blocks(fused):
    x = mg.input("x", (4, 3, 18, 18))
    graph = training(net(), x)
    if fused:
        graph = fuse_batch_norm(graph, Notes())
    new, fired = laid_out(graph, args=[real(4, 3, 18, 18), np.arange(4) % 5])
    assert count(new, LaidOut) >= 10
    assert {node.shape[4] for node in new if not node.is_bundle and node.ndim == 5} == {8}
    # x, the gradient of the mean, and nothing within the network
    assert count(new, Reorder) <= 3, fired


def test_a_training_step_computes_the_same_with_the_channels_last():
    x = mg.input("x", (2, 3, 12, 12))
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 6, 3), nn.Flatten(),
        nn.Linear(54, 5),
    )  # fmt: skip
    args = [real(2, 3, 12, 12), np.arange(2)]
    _, fired = laid_out(training(model, x), lambda node: {PLAIN: 2.0, NHWC: 1.0}, args=args)
    assert any("nhwc" in name for name in fired)


def test_operands_that_broadcast_against_images_follow_their_layout():
    y = ops.conv2d(X, weights(32, 16))
    shapes = ((), (1,), (4,), (4, 4), (32, 1, 1), (1, 32, 1, 1), (2, 1, 1, 1), (2, 32, 1, 1),
              (1, 1, 4, 4), (1, 32, 4, 4), (2, 32, 4, 4))  # fmt: skip
    others = [mg.input(f"o{i}", shape) for i, shape in enumerate(shapes)]
    for other in others:
        y = ops.relu(y * other + 1)
    laid_out(graph_of([ops.conv2d(y, weights(16, 32))], X, *others), convolutions=2)


def test_reductions_of_images_run_over_blocks_and_lanes():
    y = ops.relu(ops.conv2d(X, weights(32, 16)))
    axes = (0, 1, 2, 3), (0, 2, 3), (2, 3), (1,), (0,), (1, 2, 3), (3,), (0, 1)
    results = [r for a in axes for r in (ops.sum(y, a), ops.max(y, a, keepdims=True))]
    results.append(ops.argmax(y, 1))
    laid_out(graph_of([*results, ops.conv2d(y, weights(16, 32))], X), convolutions=2)


def test_an_image_that_an_op_of_another_kind_reads_is_reordered_once():
    y = ops.relu(ops.conv2d(X, weights(32, 16)))
    readers = [y, y[:, 2:], ops.flip(y, 1), y.reshape(2, -1), ops.conv2d(y, weights(16, 32))]
    _, fired = laid_out(graph_of(readers, X))
    assert fired["reorder"] == 3  # x, y, and the last result


def test_random_masks_are_the_same_in_every_layout():
    y = ops.dropout(ops.conv2d(X, weights(32, 16)), 0.5)
    graph = number_streams(graph_of([y, ops.conv2d(y, weights(16, 32))], X, SEED, STEP))
    laid_out(graph, convolutions=2, args=[real(2, 16, 6, 6), np.uint64(7), np.uint64(0)])


def test_small_floats_are_laid_out_where_they_were_measured():
    x = mg.input("x", (2, 16, 6, 6), "float16")
    w, v = (mg.Parameter(np.sign(real(*s, 3, 3)).astype("float16")) for s in ((32, 16), (16, 32)))
    y = ops.conv2d(ops.relu(ops.conv2d(x, w)), v)
    # Sums of whole numbers are the same in any order.
    args = [np.round(real(2, 16, 6, 6)).astype("float16")]
    laid_out(graph_of([y], x), convolutions=2, args=args)


# ---------------------------------------------------------------- concatenations of channels


def side_by_side(channels):
    """Return a graph in which a convolution reads two others' images beside each other."""
    first = ops.relu(ops.conv2d(X, weights(channels, 16), padding=1))
    second = ops.relu(ops.conv2d(first, weights(24, channels), padding=1))
    y = ops.conv2d(ops.concat([first, second], 1), weights(8, channels + 24), padding=1)
    w = next(node for node in graph_of([first], X) if isinstance(node, mg.Parameter))
    return graph_of([y, *mg.grad(ops.sum(y * y), [w])], X)


def test_channels_side_by_side_stay_in_blocks_forward_and_backward():
    new, fired = laid_out(side_by_side(16))
    shapes = {node.op.name: node.shape for node in new if node.op.name in ("concat", "slice")}
    assert shapes["concat"] == (2, 5, 6, 6, 8)
    assert {len(node.shape) for node in new if node.op.name == "slice"} == {5}
    # Of x (twice), of y, and of its gradient.
    assert fired["reorder"] <= 4


def test_channels_that_fill_no_blocks_stay_in_nchw_where_they_lie_side_by_side():
    new, _ = laid_out(side_by_side(12))
    assert {len(node.shape) for node in new if node.op.name in ("concat", "slice")} == {4}


@pytest.mark.parametrize("index", [np.s_[:, 4:12], np.s_[:, ::2], np.s_[:, :, 1:], np.s_[:1, :8]])
def test_slices_that_cut_blocks_or_more_than_channels_are_of_nchw(index):
    images = ops.relu(ops.conv2d(X, weights(16, 16), padding=1))[index]
    y = ops.conv2d(images, weights(8, images.shape[1]), padding=1)
    new, _ = laid_out(graph_of([y], X))
    assert {len(node.shape) for node in new if node.op.name == "slice"} == {4}


def test_channels_side_by_side_are_never_last():
    new, _ = laid_out(side_by_side(16), lambda node: {PLAIN: 2.0, NHWC: 0.5})
    assert {len(node.shape) for node in new if node.op.name == "concat"} == {4}
