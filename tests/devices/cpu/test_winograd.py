"""Winograd's algorithm on the CPU: right to the last tile and thread."""

import numpy as np
import pytest
from blocked_cases import Case, any_threads, assert_near, computed, every_way, in_blocks
from laid_out import WAYS, drawn, meaning, written
from needs import needs_both

from minigraph import graph
from minigraph.devices.cpu import onednn, winograd
from minigraph.devices.cpu.kernel import KernelRunner
from minigraph.ops.conv import Conv2dBackwardWeights

pytestmark = needs_both


MANY_TILES = Case(2, 1, 1, (56, 57))

# Strips of 16 tiles are rows of a product that are done together and some that are left over.
STRIP = 16
DIVISIONS = {
    "alone": {"PRIVATE_STRIP": STRIP, "LARGE_WEIGHTS": 1 << 60},
    "panels": {"LARGE_WEIGHTS": 0, "CHUNK_CHANNELS": 1},
    "strips": {
        "LARGE_WEIGHTS": 0,
        "CHUNK_CHANNELS": 1,
        "SHARED_STRIP": STRIP,
        "SUMMED_STRIP": STRIP,
        "MAX_ON_THE_FLY_STRIPS": 0,
    },
}


@pytest.fixture(params=DIVISIONS)
def division(request, monkeypatch):
    """How strips are divided, which they are from now on."""
    for constant, value in DIVISIONS[request.param].items():
        monkeypatch.setattr(winograd, constant, value)
    return request.param


@any_threads
@pytest.mark.parametrize("way", WAYS[:3])
def test_weights_that_are_constants_are_transformed_once(division, way, threads):
    node = in_blocks(way, Case(2, 3, 4, (16, 16)))
    xs = drawn(node)
    xs[0][0, 0, 0, 0] = np.inf  # of which tiles are computed from the weights themselves
    of_constants = node.replace((node.inputs[0], graph.constant(xs[1]), *node.inputs[2:]))
    (preparation,) = winograd.winograd_kernel(of_constants, threads).preparations.values()
    if division != "panels":  # where weights are transformed as they are used
        scratch = winograd.winograd_kernel(node, threads).scratch
        less = winograd.winograd_kernel(of_constants, threads).scratch
        assert less == scratch - preparation.nbytes
    np.testing.assert_array_equal(computed(of_constants, xs, threads), computed(node, xs, threads))


@pytest.mark.parametrize(
    ("n", "side", "rows", "columns", "tiles"),
    [
        (32, 13, 16, 2, 392),
        (16, 14, 4, 4, 225),
        (8, 7, 8, 1, 32),
        (8, 28, 8, 1, 392),
        (1, 13, 1, 1, 16),
    ],
)
def test_images_lie_side_by_side_where_that_makes_fewer_tiles(n, side, rows, columns, tiles):
    grid = winograd.tile_grid((n, 4, side, side, 16), 3, (1, 1))
    assert (grid.rows, grid.columns, grid.tiles) == (rows, columns, tiles)
    assert grid.spans == (tiles < n * (-(-side // 4)) ** 2)


def test_strips_are_whole_groups_of_what_is_left_over():
    for rows, group in winograd.ROWS.values():
        assert rows % group == 0
        sizes = winograd.PRIVATE_STRIP, winograd.SHARED_STRIP, winograd.SUMMED_STRIP, STRIP
        assert not any(size % group for size in sizes)


def test_strips_that_all_threads_share_have_as_many_tiles_each():
    blocking = blocking_of(in_blocks("forward", Case(32, 16, 16, (13, 13))), 2)
    assert (blocking.shared, blocking.tiles, blocking.capacity) == (True, 392, 196)


def blocking_of(node, threads):
    """Return how the work of a kernel is divided."""
    images = [x.shape for x in (*node.inputs, node) if len(x.shape) == 5]
    weights = isinstance(node.op.plain, Conv2dBackwardWeights)
    kind = winograd._WeightBlocking if weights else winograd._ImageBlocking
    return kind(3, (1, 1), *images, threads)


@any_threads
@every_way
@pytest.mark.parametrize("size", [(12, 31), (16, 16)], ids=["last-strip-short", "strips-full"])
@pytest.mark.parametrize("outs", [2, 3], ids="outs={}".format)
def test_strips_of_tiles_are_divided_among_threads(division, outs, size, way, threads):
    node = in_blocks(way, Case(3, 1, outs, size))
    xs = drawn(node)
    blocking = blocking_of(node, threads)
    assert blocking.shared == (division != "alone")
    assert (blocking.capacity == STRIP) == (division != "panels")
    assert_near(computed(node, xs, threads), meaning(node, xs), 3)


@every_way
@pytest.mark.parametrize(
    "case", [MANY_TILES, Case(1, 11, 11, (3, 4))], ids=["many-tiles", "large-weights"]
)
def test_sizes_as_networks_have_them_are_computed(case, way):
    node = in_blocks(way, case)
    xs = drawn(node)
    assert_near(computed(node, xs, 2), meaning(node, xs), 3)


@every_way
def test_threads_work_alone_if_each_has_enough_tiles_and_the_weights_are_small(way, monkeypatch):
    node = in_blocks(way, MANY_TILES)
    assert not blocking_of(node, 2).shared
    few = in_blocks(way, Case(1, 1, 1, (8, 8)))
    assert blocking_of(few, 2).shared
    monkeypatch.setattr(winograd, "LARGE_WEIGHTS", 0)
    assert blocking_of(node, 2).shared


@every_way
def test_transformed_weights_are_not_kept_where_there_are_few_tiles(way):
    node = in_blocks(way, Case(1, 6, 8, (8, 8)))
    blocking = blocking_of(node, 1)
    assert winograd.winograd_kernel(node, 1).scratch < blocking.weights * blocking.vector_bytes


@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("size", [(16, 16), (23, 9)], ids="{0[0]}x{0[1]}".format)
def test_a_panel_is_shared_where_there_are_more_threads_than_panels(size, way):
    node = in_blocks(way, Case(1, 2, 2, size))
    xs = drawn(node)
    one, many = (computed(node, xs, threads) for threads in (1, 7))
    np.testing.assert_array_equal(many, one)


@every_way
def test_the_same_bits_come_out_in_every_run(division, way):
    node = in_blocks(way, MANY_TILES)
    xs = drawn(node)
    first, *others = (computed(node, xs, 2).tobytes() for _ in range(20))
    assert set(others) == {first}


@every_way
def test_scratch_is_used_to_its_end(division, way):
    node = in_blocks(way, Case(1, 1, 2, (16, 16)))
    kernel = winograd.winograd_kernel(node, 1)
    scratch, result = written((kernel.scratch // 4,)), written(node.shape)
    KernelRunner(kernel, on_disk=True).run(drawn(node), [result.array], scratch.array)
    *_, last, between_points = scratch.array.reshape(-1, onednn.block())
    assert np.isfinite(last).all()
    assert np.isnan(between_points).all()
