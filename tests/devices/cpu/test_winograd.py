"""Winograd's algorithm on the CPU: right to the last tile, thread and NaN, and chosen by tuning."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from laid_out import WAYS, computed_by, drawn, in_lanes, meaning, plain_node, written
from needs import needs_both
from new_process import begin
from small_network import DIRECTIONS, batch, compiled, graph_compiler, network

import minigraph as mg
from minigraph import graph, ops
from minigraph.autotune.tuner import measure
from minigraph.devices.cpu import compiler, onednn, winograd
from minigraph.devices.cpu.device import CpuBackend
from minigraph.devices.cpu.workbench import KernelRunner
from minigraph.devices.kernel_cache import CompilationUnit
from minigraph.ops.activation import Activated, Relu
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, pack, packed, unpack, unpacked
from minigraph.ops.pooling import MaxPool2d, Pooling
from minigraph.program import Choice

pytestmark = needs_both

NAMES = list(winograd.NAMES)
# Of errors relative to the root mean square of the results that are not zero: about four times the
# largest there is.
TOLERANCE = {3: {"winograd 2x2": 1e-5, "winograd 4x4": 2e-5}, 5: dict.fromkeys(NAMES, 4e-5)}

every_algorithm = pytest.mark.parametrize("name", NAMES)
every_way = pytest.mark.parametrize("way", WAYS)
every_window = pytest.mark.parametrize("window", winograd.WINDOWS)
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


def computed(node, name, xs, threads=1):
    """Return what the algorithm computes, with nothing written where it does not belong."""
    return computed_by(winograd.winograd_kernel(node, name, threads), node, xs)


def assert_near(got, want, name, window=3):
    """Where the result is finite it is near; the others are the same."""
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    scale = np.sqrt(np.mean(want[finite & (want != 0)] ** 2))
    np.testing.assert_allclose(
        got[finite], want[finite], rtol=0, atol=TOLERANCE[window][name] * scale
    )


# ---------------------------------------------------------------- results

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


@pytest.mark.parametrize("threads", [1, 2, 5], ids="threads={}".format)
@every_algorithm
@every_way
@every_window
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_computes_what_the_op_means(case, window, way, name, threads):
    node = in_blocks(way, case.of_window(window))
    xs = drawn(node)
    assert_near(computed(node, name, xs, threads), meaning(node, xs), name, window)


MANY_TILES = Case(2, 1, 1, (56, 57))

# Strips of 16 tiles are rows of a product that are done together and some that are left over.
ROOM = 16
DIVISIONS = {
    "alone": {"OWN": ROOM, "LARGE": 1 << 60},
    "panels": {"LARGE": 0, "CHUNK": 1},
    "strips": {"LARGE": 0, "CHUNK": 1, "PANEL": ROOM, "SHARED": ROOM, "AGAIN": 0},
}


@pytest.fixture(params=DIVISIONS)
def division(request, monkeypatch):
    """How strips are divided, which they are from now on."""
    for constant, value in DIVISIONS[request.param].items():
        monkeypatch.setattr(winograd, constant, value)
    return request.param


@any_threads
@every_algorithm
@pytest.mark.parametrize("way", WAYS[:3])
def test_weights_that_are_constants_are_transformed_once(division, way, name, threads):
    node = in_blocks(way, Case(2, 3, 4, (16, 16)))
    xs = drawn(node)
    xs[0][0, 0, 0, 0] = np.inf  # of which tiles are computed from the weights themselves
    known = node.replace((node.inputs[0], graph.constant(xs[1]), *node.inputs[2:]))
    (preparation,) = winograd.winograd_kernel(known, name, threads).preparations.values()
    if division != "panels":  # where weights are transformed as they are used
        scratch = winograd.winograd_kernel(node, name, threads).scratch
        less = winograd.winograd_kernel(known, name, threads).scratch
        assert less == scratch - preparation.nbytes
    np.testing.assert_array_equal(
        computed(known, name, xs, threads), computed(node, name, xs, threads)
    )


@pytest.mark.parametrize("lanes", [8, 16])
@every_algorithm
@every_way
@every_window
def test_blocks_of_8_and_of_16_channels_are_computed(window, way, name, lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    node = in_blocks(way, ODD_SIZES.of_window(window))
    xs = drawn(node)
    assert lanes in (node.shape[-1], node.inputs[0].shape[-1])
    assert_near(computed(node, name, xs), meaning(node, xs), name, window)


def test_strips_are_whole_groups_of_what_is_left_over():
    for rows, group in winograd.ROWS.values():
        assert rows % group == 0
        rooms = winograd.OWN, winograd.SHARED, winograd.PANEL, ROOM
        assert not any(room % group for room in rooms)


def work_of(node, name, threads):
    """Return how the work of a kernel is divided."""
    images = [x.shape for x in (*node.inputs, node) if len(x.shape) == 5]
    weights = isinstance(node.op.plain, Conv2dBackwardWeights)
    kind = winograd._WeightWork if weights else winograd._ImageWork
    return kind(winograd.NAMES[name], 3, *images, threads)


@any_threads
@every_algorithm
@every_way
@pytest.mark.parametrize("size", [(12, 31), (16, 16)], ids=["last-strip-short", "strips-full"])
@pytest.mark.parametrize("outs", [2, 3], ids="outs={}".format)
def test_strips_of_tiles_are_divided_among_threads(division, outs, size, way, name, threads):
    node = in_blocks(way, Case(3, 1, outs, size))
    xs = drawn(node)
    work = work_of(node, name, threads)
    assert work.own == (division == "alone")
    assert (work.room == ROOM) == (division != "panels")
    assert_near(computed(node, name, xs, threads), meaning(node, xs), name)


@every_algorithm
@every_way
@pytest.mark.parametrize(
    "case",
    [MANY_TILES, Case(1, 11, 11, (3, 4))],
    ids=["many-tiles", "large-weights"],
)
def test_sizes_as_networks_have_them_are_computed(case, way, name):
    node = in_blocks(way, case)
    xs = drawn(node)
    assert_near(computed(node, name, xs, 2), meaning(node, xs), name)


@every_algorithm
@every_way
def test_threads_work_alone_if_each_has_enough_tiles_and_the_weights_are_small(
    way, name, monkeypatch
):
    node = in_blocks(way, MANY_TILES)
    assert work_of(node, name, 2).own
    few = in_blocks(way, Case(1, 1, 1, (8, 8)))
    assert not work_of(few, name, 2).own
    monkeypatch.setattr(winograd, "LARGE", 0)
    assert not work_of(node, name, 2).own


@every_algorithm
@every_way
def test_transformed_weights_are_not_kept_where_there_are_few_tiles(way, name):
    node = in_blocks(way, Case(1, 6, 8, (8, 8)))
    work = work_of(node, name, 1)
    assert winograd.winograd_kernel(node, name, 1).scratch < work.weights * work.vector_bytes


@every_algorithm
@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("size", [(16, 16), (23, 9)], ids="{0[0]}x{0[1]}".format)
def test_a_panel_is_shared_where_there_are_more_threads_than_panels(size, way, name):
    node = in_blocks(way, Case(1, 2, 2, size))
    xs = drawn(node)
    one, many = (computed(node, name, xs, threads) for threads in (1, 7))
    np.testing.assert_array_equal(many, one)


@every_way
@every_window
def test_tiles_of_4x4_lose_at_most_two_bits_more_than_tiles_of_2x2(window, way):
    node = in_blocks(way, MANY_TILES.of_window(window))
    xs = drawn(node)
    want = meaning(node, xs)
    small, large = (np.std(computed(node, name, xs) - want) for name in NAMES)
    assert large < 4 * small


@every_algorithm
@every_way
def test_the_same_bits_come_out_in_every_run(division, way, name):
    node = in_blocks(way, MANY_TILES)
    xs = drawn(node)
    first, *others = (computed(node, name, xs, 2).tobytes() for _ in range(20))
    assert set(others) == {first}


@every_algorithm
@every_way
def test_scratch_is_used_to_its_end(division, way, name):
    node = in_blocks(way, Case(1, 1, 2, (16, 16)))
    kernel = winograd.winograd_kernel(node, name, 1)
    scratch, result = written((kernel.scratch // 4,)), written(node.shape)
    KernelRunner(kernel, on_disk=True)(drawn(node), [result.array], scratch.array)
    *_, last, between_points = scratch.array.reshape(-1, onednn.block())
    assert np.isfinite(last).all()
    assert np.isnan(between_points).all()


# ---------------------------------------------------------------- NaN and infinities


def overlap(inputs, outputs, tap, padding):
    """Return which inputs meet which outputs at a tap, as slices."""
    begin = max(padding - tap, 0)
    end = max(min(outputs, inputs + padding - tap), begin)
    return slice(begin + tap - padding, end + tap - padding), slice(begin, end)


def taps(x, y, padding, window):
    """Yield each tap of a window, with the pixels of x and of y that meet at it."""
    for tap in itertools.product(range(window), repeat=2):
        axes = map(overlap, x.shape[2:], y.shape[2:], tap, padding)
        there, here = zip(*axes, strict=True)
        yield tap, x[..., *there], y[..., *here]


def skipping_padding(node, xs):
    """Return the meaning without the padding: NumPy would multiply its zeros by infinities."""
    op = node.op.plain
    xs = [unpack(x) if x.ndim == 5 else x for x in (x.astype("float64") for x in xs)]
    found = np.zeros(unpacked(node.shape))
    if isinstance(op, Conv2dBackwardWeights):
        dy, x = xs
        for (i, j), there, here in taps(x, dy, op.conv.padding, node.shape[-1]):
            found[:, :, i, j] = np.einsum("nkij,ncij->kc", here, there)
        return found
    x, w, *bias = xs
    if isinstance(op, Conv2dBackwardData):
        w = w.swapaxes(0, 1)[:, :, ::-1, ::-1]
        padding = [w.shape[2] - 1 - p for p in op.conv.padding]
    else:
        padding = op.padding
    for (i, j), there, here in taps(x, found, padding, w.shape[2]):
        here += np.einsum("ncij,kc->nkij", there, w[:, :, i, j])
    for vector in bias:
        found += vector[:, None, None]
    return pack(found, onednn.block())


@every_way
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_for_finite_numbers_padding_may_be_left_out(case, way):
    node = in_blocks(way, case)
    xs = drawn(node)
    np.testing.assert_allclose(skipping_padding(node, xs), meaning(node, xs), rtol=0, atol=1e-9)


# Where in images, or in weights at a like place, there are odd values.
PLACES = {
    "corner": [(0, 0, 0, 0, 3)],
    "last-corner": [(-1, -1, -1, -1, -1)],
    "inside": [(1, 0, 4, 5, 0)],
    "side-by-side": [(0, 0, 4, 4, 1), (0, 0, 4, 5, 1)],
    "far-apart": [(0, 0, 1, 1, 2), (1, 0, 8, 3, 2)],
}
ODD = {
    "nan": [np.nan, np.nan],
    "inf": [np.inf, np.inf],
    "minus-inf": [-np.inf, -np.inf],
    "both-inf": [np.inf, -np.inf],
}


@every_algorithm
@every_way
@every_window
@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity_are_where_a_direct_convolution_has_them(
    operand, places, values, window, way, name
):
    node = in_blocks(way, ODD_SIZES.of_window(window))
    xs = drawn(node)
    x = xs[operand]
    for place, value in zip(places, values, strict=False):
        if x.ndim == 5:
            x[place] = value
        else:  # weights
            x[place[4], place[0], place[2] % 3, place[3] % 3] = value
    want = skipping_padding(node, xs)
    assert 0 < np.isfinite(want).sum() < want.size
    assert_near(computed(node, name, xs, 2), want, name, window)


@every_algorithm
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_odd_bias_is_added_to_its_channel(name, value):
    node = in_blocks("with a bias")
    xs = drawn(node)
    xs[2][5] = value
    want = meaning(node, xs)
    assert np.isfinite(want).any()
    assert_near(computed(node, name, xs), want, name)


@every_algorithm
@every_way
@every_window
def test_points_that_overflow_spoil_no_result(window, way, name):
    node = in_blocks(way, ODD_SIZES.of_window(window))
    rng = np.random.default_rng(0)
    large = np.finfo("float32").max
    xs = [(rng.uniform(-large, large, x.shape)).astype("float32") for x in node.inputs]
    small = xs[0] if way == "to the weights" else xs[1]
    small *= np.float32(1e-3 / large)
    if way == "with a bias":
        xs[2] *= np.float32(1e-3)
    want = meaning(node, xs)
    assert np.abs(want).max() < large
    assert_near(computed(node, name, xs), want, name, window)


# ---------------------------------------------------------------- pixels of very different size


def norms(node, xs):
    """For each result the norm of the pixels that it is made of, times that of weights or dy."""
    op = node.op.plain
    xs = [unpack(x) if x.ndim == 5 else x for x in (x.astype("float64") ** 2 for x in xs)]
    found = np.zeros(unpacked(node.shape))
    if isinstance(op, Conv2dBackwardWeights):
        for (i, j), there, here in taps(xs[1], xs[0], op.conv.padding, node.shape[-1]):
            found[:, :, i, j] = here.sum((0, 2, 3))[:, None] * there.sum((0, 2, 3))
        return np.sqrt(found)
    x, w, *bias = xs
    reach = w.shape[2] - 1
    padding = op.padding if isinstance(op, Conv2d) else [reach - p for p in op.conv.padding]
    for _, there, here in taps(x, found, padding, w.shape[2]):
        here += there.sum(1, keepdims=True)
    axis = 0 if isinstance(op, Conv2dBackwardData) else 1
    found *= w.sum((axis, 2, 3))[:, None, None]
    for vector in bias:
        found += vector[:, None, None]
    return pack(np.sqrt(found), onednn.block())


def one_pixel(x, size):
    x[0, 0, 4, 4, 3] = size


def a_corner(x, size):
    x[0, 0, 0, 0, 3] = size


def one_half(x, size):
    x[:, :, :, : x.shape[3] // 2] *= size


def one_channel(x, size):
    x[..., 3] *= size


def zeros_but_two(x, size):
    x[...] = 0
    x[0, 0, 1, 1], x[0, 0, 4, 4, 3] = 1, size


def all_sizes(x, size):
    x *= (size ** np.random.default_rng(1).random(x.shape[2:4])).astype("f")[..., None]


SIZES = [30, 300, 1e4, 1e6, 1e12, 1e25]  # some of which are let through, and some of which not
MOST = 64  # roundings


@every_algorithm
@every_way
@every_window
@pytest.mark.parametrize(
    "change", [one_pixel, a_corner, one_half, one_channel, zeros_but_two, all_sizes]
)
def test_the_error_of_a_result_is_relative_to_what_it_is_made_of(change, window, way, name):
    node = in_blocks(way, Case(1, 1, 2, (11, 9)).of_window(window))
    for size in SIZES:
        xs = drawn(node)
        change(xs[way == "to the weights"], np.float32(size))
        error = np.abs(computed(node, name, xs, 2) - meaning(node, xs))
        assert (error <= MOST * 2.0**-24 * norms(node, xs)).all(), size


@every_algorithm
@pytest.mark.parametrize("way", ["forward", "to the images"])
@every_window
def test_results_of_zeros_alone_are_zero(window, way, name):
    node = in_blocks(way, Case(1, 1, 1, (12, 12)).of_window(window))
    xs = drawn(node)
    xs[0][:] = 0
    xs[0][0, 0, 5, 6, 3] = 1e6
    want = meaning(node, xs)
    np.testing.assert_array_equal(computed(node, name, xs) == 0, want == 0)


# ---------------------------------------------------------------- for which nodes


def windows_of(size, **options):
    x, w = (
        mg.input("x", (2, 2 * onednn.block(), 9, 9)),
        mg.input("w", (onednn.block() * 2, 2 * onednn.block() // options.get("groups", 1), *size)),
    )
    return Conv2d(**options)(x, w)


UNFIT = {
    "stride": lambda: windows_of((3, 3), stride=(2, 2)),
    "dilation": lambda: windows_of((3, 3), dilation=(2, 2)),
    "groups": lambda: windows_of((3, 3), groups=2),
    "1x1": lambda: windows_of((1, 1)),
    "7x7": lambda: windows_of((7, 7)),
    "3x5": lambda: windows_of((3, 5)),
    "3x1": lambda: windows_of((3, 1)),
    "padding": lambda: windows_of((3, 3), padding=(1, 3)),
}


def gradients(node):
    """Return a convolution's node, and those of its gradients."""
    x, w = node.inputs
    dy = mg.input("dy", node.shape)
    return [
        node,
        Conv2dBackwardData(node.op, x.shape)(dy, w),
        Conv2dBackwardWeights(node.op, w.shape)(dy, x),
    ]


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT)
def test_other_convolutions_have_no_such_algorithm(make):
    for node in gradients(make()):
        laid = in_lanes(node, onednn.block())
        assert winograd.algorithms(laid) == []


@every_way
@every_window
def test_blocks_alone_have_the_algorithms(window, way):
    case = Case(ins=2, outs=2).of_window(window)
    plain = plain_of(way, case)
    assert winograd.algorithms(in_blocks(way, case)) == NAMES
    assert winograd.algorithms(plain) == []
    assert winograd.algorithms(in_lanes(plain, 2 * onednn.block())) == []


def test_a_convolution_from_one_layout_to_another_has_no_such_algorithm():
    lanes = onednn.block()
    x, w = mg.input("x", (2, lanes, 9, 9)), mg.input("w", (lanes, lanes, 3, 3))
    assert winograd.algorithms(LaidOut(Conv2d(), (1, 1), (lanes,))(x, w)) == []


def test_other_ops_have_no_such_algorithm():
    lanes = onednn.block()
    x = mg.input("x", packed((2, lanes, 9, 9), lanes))
    pool = MaxPool2d(Pooling((3, 3), (1, 1), ((0, 0), (0, 0))))
    largest, _ = LaidOut(pool, (lanes,), (lanes, lanes)).results(x)
    assert winograd.algorithms(largest) == []
    assert winograd.algorithms(Reorder(1)(x)) == []


# ---------------------------------------------------------------- tuning


def strides(node):
    return [x.spec.strides for x in node.inputs]


@every_way
def test_the_autotuner_measures_it_in_blocks_alone(way):
    node = in_blocks(way)
    found = CpuBackend(2, True).tunable(node, strides(node))
    layouts = {c.layouts for c in found.problem.candidates(None) if c.name in NAMES}
    assert layouts == {found.layouts}
    measured = [m for m in measure(found.problem, None).measurements if m.name in NAMES]
    assert [m.name for m in measured] == NAMES
    for m in measured:
        assert not m.error and m.seconds > 0
        assert m.workspace == winograd.winograd_kernel(node, m.name, 1).scratch


@every_algorithm
@every_way
def test_the_kernel_has_the_name_of_the_algorithm(way, name):
    node = in_blocks(way)
    problem, layouts = CpuBackend(2, True).tunable(node, strides(node))
    made = {c.name: c.make() for c in problem.candidates(layouts)}
    assert made[name].name == f"c {name}"
    assert "winograd" not in next(iter(made)), "the heuristic takes oneDNN's"


@every_algorithm
def test_an_activation_follows_it(name):
    node = in_blocks("with a bias")
    activated = Activated(node.op, Relu())(*node.inputs)
    backend = CpuBackend(2, True)
    problem, layouts = backend.tunable(activated, strides(activated))
    (made,) = (c.make() for c in problem.candidates(layouts) if c.name == name)
    choice = Choice(problem, layouts, made, None, "heuristic", ())
    kernel = backend.kernel(activated, strides(activated), choice)
    assert kernel.name == f"c {name} + c"


# ---------------------------------------------------------------- networks


@pytest.fixture
def fail_to_compile(monkeypatch):
    """A function that lets the compiler fail for these kernels from now on."""
    real = compiler.KERNELS.functions

    def functions(sources, on_disk=True):
        bad = {source.name: 0 for source in sources if "NAME_spread_input" in source.text}
        return {**real(sources, on_disk), **bad}

    return lambda: monkeypatch.setattr(compiler.KERNELS, "functions", functions)


def losses(function, steps=3):
    return [function(*batch()) for _ in range(steps)]


def convolutions(function):
    return [a for a in function.report().algorithms if a.op.startswith("conv2d")]


@pytest.fixture(scope="module")
def plain_losses():
    return losses(compiled(level=0))


@every_algorithm
def test_a_network_trains_as_level_0_does(name, prefer, plain_losses):
    prefer(name)
    function = compiled(level=3)
    assert len(convolutions(function)) == sum(DIRECTIONS.values()) - DIRECTIONS["matmul"]
    assert {a.name for a in convolutions(function)} == {name}
    np.testing.assert_allclose(losses(function), plain_losses, rtol=1e-3)
    kernels = [k.kernel for k in function.profile(*batch()).kernels if k.name.startswith("conv2d")]
    assert len(kernels) == len(convolutions(function))
    assert all(kernel.startswith(f"c {name}") for kernel in kernels)


@every_algorithm
def test_zeros_that_are_rounded_are_no_fault_of_a_level(name, prefer):
    prefer(name)
    channels, rng = onednn.block(), np.random.default_rng(0)
    x = mg.input("x", (1, channels, 8, 8))
    w = mg.Parameter(rng.standard_normal((channels, channels, 3, 3)).astype("float32"))
    y = ops.relu(ops.conv2d(x, w, padding=1))
    step = graph_compiler(-3).compile([x], [y, *mg.grad(y.sum(), [x, w])])
    assert {a.name for a in convolutions(step)} == {name}
    one_pixel = np.zeros(x.shape, np.float32)
    one_pixel[0, :, 1, 1] = rng.standard_normal(channels)
    step(one_pixel)  # a direct convolution gives 0 where no window reaches the pixel


@every_algorithm
def test_nan_reaches_the_loss(name, prefer):
    prefer(name)
    images, labels = batch()
    images[2, 3, 4, 5] = np.nan
    assert np.isnan(compiled(level=3)(images, labels))


def test_where_the_compiler_fails_another_algorithm_is_chosen(
    tmp_path, monkeypatch, fail_to_compile, prefer, plain_losses
):
    begin(monkeypatch, tmp_path)
    fail_to_compile()
    prefer(NAMES[0])
    function = compiled(level=3)
    for a in convolutions(function):
        assert a.name not in NAMES
        errors = {c.error for c in a.candidates if c.name in NAMES}
        assert len(errors) == len(NAMES) and all("could not compile" in e for e in errors)
    np.testing.assert_allclose(losses(function), plain_losses, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:.*NumPy has stood in for it")
def test_where_the_compiler_fails_for_what_was_chosen_another_takes_its_place(
    fail_to_compile, prefer, plain_losses
):
    prefer(NAMES[0])
    compiled(network(), level=3)  # which measures
    fail_to_compile()
    function = compiled(network(), level=3)
    assert {a.name for a in convolutions(function)} == {NAMES[0]}
    np.testing.assert_allclose(losses(function), plain_losses, rtol=1e-3)
    assert not any(a.name == NAMES[0] for a in convolutions(function))


def test_texts_of_all_tiles_are_compiled_in_one_unit(monkeypatch):
    """No two of them define the same name, whatever a compiler makes of them."""
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-O0"))
    made = [
        text(winograd.Form(window, tile, onednn.block(), vectors))
        for text in (winograd._image_text, winograd._weight_text)
        for window in winograd.WINDOWS
        for tile in winograd.TILES
        for vectors in (1, 2)
    ]
    [unit] = compiler.KERNELS.compile([CompilationUnit(tuple(made))])
    assert (len(unit.functions), unit.error) == (len(made), "")
