"""Where Winograd's algorithm is a candidate, and networks that use it."""

import numpy as np
import pytest
from blocked_cases import Case, every_way, every_window, in_blocks, plain_of, strided
from heavy_nodes import strides
from laid_out import in_lanes
from needs import needs_both
from new_process import begin
from small_network import DIRECTIONS, batch, compiled, graph_compiler, network

import minigraph as mg
from minigraph import ops, options
from minigraph.autotune.candidate import layout_names
from minigraph.autotune.tuner import measure
from minigraph.devices.cpu import compiler, onednn, winograd
from minigraph.devices.factory import open_backend
from minigraph.devices.kernel_cache import CompilationUnit
from minigraph.ops.activation import Activated, Relu
from minigraph.ops.conv import Conv2d
from minigraph.ops.layout import LaidOut, Reorder, packed
from minigraph.ops.pooling import MaxPool2d, Pooling
from minigraph.program import Choice

pytestmark = needs_both


UNFIT = {
    "stride": strided(padding=(1, 1)),
    "dilation": Case(2, 2, 2, dilation=(2, 2)),
    "1x1": Case(2, 2, 2, window=(1, 1), padding=(0, 0)),
    "7x7": Case(2, 2, 2, window=(7, 7), padding=(3, 3)),
    "3x5": Case(2, 2, 2, window=(3, 5)),
    "3x1": Case(2, 2, 2, window=(3, 1)),
    "padding": Case(2, 2, 2, padding=(1, 3)),
}


@pytest.mark.parametrize("case", UNFIT.values(), ids=UNFIT)
@every_way
def test_other_convolutions_have_no_such_algorithm(way, case):
    assert not winograd.computes(in_blocks(way, case))


@every_way
@every_window
def test_blocks_alone_have_the_algorithm(window, way):
    case = Case(ins=2, outs=2).of_window(window)
    plain = plain_of(way, case)
    assert winograd.computes(in_blocks(way, case))
    assert not winograd.computes(plain)
    assert not winograd.computes(in_lanes(plain, 2 * onednn.block()))


def test_groups_images_from_one_layout_to_another_and_other_ops_have_no_such_algorithm():
    lanes = onednn.block()
    x, w = mg.input("x", (2, lanes, 9, 9)), mg.input("w", (lanes, lanes, 3, 3))
    assert not winograd.computes(LaidOut(Conv2d(), (1, 1), (lanes,))(x, w))
    x = mg.input("x", packed((2, 2 * lanes, 9, 9), lanes))
    w = mg.input("w", (2 * lanes, lanes, 3, 3))
    assert not winograd.computes(LaidOut(Conv2d(groups=2), (lanes, 1), (lanes,))(x, w))
    pool = MaxPool2d(Pooling((3, 3), (1, 1), ((0, 0), (0, 0))))
    largest, _ = LaidOut(pool, (lanes,), (lanes, lanes)).results(x)
    assert not winograd.computes(largest)
    assert not winograd.computes(Reorder(1)(x))


# ---------------------------------------------------------------- tuning


@every_way
def test_the_autotuner_measures_it_in_all_blocks_and_nothing_else(way):
    node = in_blocks(way)
    tunable = open_backend("cpu", options.resolve({"num_threads": 2})).tunable(node, strides(node))
    candidates = [c for c in tunable.problem.candidates(None) if c.name == winograd.NAME]
    assert tunable.layouts in {c.layouts for c in candidates}
    lanes = [{layout.lanes for layout in c.layouts if layout.lanes} for c in candidates]
    assert sorted(map(sorted, lanes)) == [[block] for block in sorted(onednn.blocks())]
    measured = [m for m in measure(tunable.problem, None).measurements if m.name == winograd.NAME]
    assert all(not m.error and m.seconds > 0 for m in measured)
    (of_node,) = (m for m in measured if m.layouts == layout_names(tunable.layouts))
    assert of_node.workspace == winograd.winograd_kernel(node, 1).scratch


# ---------------------------------------------------------------- heuristics


@every_way
@every_window
@pytest.mark.parametrize(("images", "many"), [(1, False), (2, True)])
def test_the_heuristic_takes_it_where_there_are_many_tiles(window, way, images, many):
    case = Case(images, 2, 2, (8, 8)).of_window(window)  # of 4 tiles of 4 x 4 each
    node = in_blocks(way, case)
    problem, layouts = open_backend("cpu", options.resolve({"num_threads": 2})).tunable(
        node, strides(node)
    )
    names = [c.name for c in problem.candidates(layouts)]
    assert (names[0] == winograd.NAME) is many
    assert names.count(winograd.NAME) == 1


def test_before_anything_is_measured_convolutions_stay_in_blocks_and_take_it(tmp_path, monkeypatch):
    begin(monkeypatch, tmp_path)
    monkeypatch.setattr(winograd, "MIN_TILES", 1)
    function = compiled(network(), level=3, autotune="off")
    of_blocks = [a for a in convolutions(function) if f"nChw{onednn.block()}c" in a.layout]
    assert of_blocks and {a.name for a in of_blocks} == {winograd.NAME}
    assert {a.origin for a in convolutions(function)} == {"heuristic"}
    assert not any("reorders" in maker for _, maker, _ in function.report().steps)
    np.testing.assert_allclose(losses(function), losses(compiled(level=0)), rtol=1e-3)


def test_an_activation_follows_it():
    node = in_blocks("with a bias")
    activated = Activated(node.op, Relu())(*node.inputs)
    backend = open_backend("cpu", options.resolve({"num_threads": 2}))
    problem, layouts = backend.tunable(activated, strides(activated))
    (winograd_kernel,) = (c.make() for c in problem.candidates(layouts) if c.name == winograd.NAME)
    choice = Choice(problem, layouts, winograd_kernel, None, "heuristic", ())
    kernel = backend.kernel(activated, strides(activated), choice)
    assert kernel.name == f"c {winograd.NAME} + c"


# ---------------------------------------------------------------- networks


@pytest.fixture
def fail_to_compile(monkeypatch):
    """A function that lets the compiler fail for these kernels from now on."""
    real = compiler.KERNELS.functions

    def functions(sources, on_disk=True):
        bad = {source.name: 0 for source in sources if "NAME_transform_input" in source.text}
        return {**real(sources, on_disk), **bad}

    return lambda: monkeypatch.setattr(compiler.KERNELS, "functions", functions)


def losses(function, steps=3):
    return [function(*batch()) for _ in range(steps)]


def convolutions(function):
    return [a for a in function.report().algorithms if a.op.startswith("conv2d")]


@pytest.fixture(scope="module")
def plain_losses():
    return losses(compiled(level=0))


def test_a_network_trains_as_level_0_does(prefer, plain_losses):
    prefer(winograd.NAME)
    function = compiled(level=3)
    assert len(convolutions(function)) == sum(DIRECTIONS.values()) - DIRECTIONS["matmul"]
    assert {a.name for a in convolutions(function)} == {winograd.NAME}
    np.testing.assert_allclose(losses(function), plain_losses, rtol=1e-3)
    kernels = [k.kernel for k in function.profile(*batch()).kernels if k.name.startswith("conv2d")]
    assert len(kernels) == len(convolutions(function))
    assert all(kernel.startswith(f"c {winograd.NAME}") for kernel in kernels)


def test_zeros_that_are_rounded_are_no_fault_of_a_level(prefer):
    prefer(winograd.NAME)
    channels, rng = onednn.block(), np.random.default_rng(0)
    x = mg.input("x", (1, channels, 8, 8))
    w = mg.Parameter(rng.standard_normal((channels, channels, 3, 3)).astype("float32"))
    y = ops.relu(ops.conv2d(x, w, padding=1))
    step = graph_compiler(-3).compile([x], [y, *mg.grad(y.sum(), [x, w])])
    assert {a.name for a in convolutions(step)} == {winograd.NAME}
    one_pixel = np.zeros(x.shape, np.float32)
    one_pixel[0, :, 1, 1] = rng.standard_normal(channels)
    step(one_pixel)  # a direct convolution gives 0 where no window reaches the pixel


def test_nan_reaches_the_loss(prefer):
    prefer(winograd.NAME)
    images, labels = batch()
    images[2, 3, 4, 5] = np.nan
    assert np.isnan(compiled(level=3)(images, labels))


def test_where_the_compiler_fails_another_algorithm_is_chosen(
    tmp_path, monkeypatch, fail_to_compile, prefer, plain_losses
):
    begin(monkeypatch, tmp_path)
    fail_to_compile()
    prefer(winograd.NAME)
    function = compiled(level=3)
    for a in convolutions(function):
        assert a.name != winograd.NAME
        errors = {c.error for c in a.candidates if c.name == winograd.NAME}
        assert errors and all("could not compile" in e for e in errors)
    np.testing.assert_allclose(losses(function), plain_losses, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:.*NumPy computed it instead")
def test_where_the_compiler_fails_for_what_was_chosen_another_takes_its_place(
    fail_to_compile, prefer, plain_losses
):
    prefer(winograd.NAME)
    compiled(network(), level=3)  # which measures
    fail_to_compile()
    function = compiled(network(), level=3)
    assert {a.name for a in convolutions(function)} == {winograd.NAME}
    np.testing.assert_allclose(losses(function), plain_losses, rtol=1e-3)
    assert not any(a.name == winograd.NAME for a in convolutions(function))


def test_texts_of_all_windows_are_compiled_in_one_unit(monkeypatch):
    """No two of them define the same name, whatever a compiler makes of them."""
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-O0"))
    texts = [
        text(winograd.WinogradForm(window, onednn.block(), vectors))
        for text in (winograd._image_text, winograd._weight_text)
        for window in winograd.POINTS
        for vectors in (1, 2)
    ]
    [unit] = compiler.KERNELS.compile([CompilationUnit(tuple(texts))])
    assert (len(unit.functions), unit.error) == (len(texts), "")
