"""Kernels of cuDNN's plans copy what lies amiss, and every way to compute is right."""

import contextlib
import re
from types import SimpleNamespace

import cuda_on_cpu
import msgspec
import numpy as np
import pytest
from msgspec import structs
from needs import needs_gpp

pytest.importorskip("cudnn")
pytest.importorskip("cupy")
import cudnn
from cudnn_device import ENGINES, Engine, settable
from foreign_arrays import COMPILED, Foreign, ForeignBench
from heavy_nodes import convolution, laid_out, strides

from minigraph.autotune.candidate import Workbench, first_allowed, layout_names
from minigraph.autotune.data import warm_up
from minigraph.autotune.measurement import Measurement, Policy
from minigraph.autotune.session import Session
from minigraph.autotune.tuner import measure
from minigraph.devices.cuda import candidates, cudnn_kernel
from minigraph.devices.cuda.calls import kernel_calls
from minigraph.devices.cuda.kernels import Exactness, in_place
from minigraph.devices.reference import NumpyKernel
from minigraph.errors import GraphError
from minigraph.graph import Graph, Input, as_dtype, input
from minigraph.ops.activation import Activated, Relu
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder
from minigraph.ops.matmul import Matmul
from minigraph.ops.shape import permute_dims
from minigraph.passes.layout.selection import assign_layouts
from minigraph.passes.notes import Notes
from minigraph.program.choices import Choices


@pytest.fixture
def device(monkeypatch):
    return settable(monkeypatch)


@pytest.fixture
def host(device, monkeypatch, build_cuda):
    """Let kernels run on NumPy arrays, epilogues in NumPy; return what sets the engines."""

    def launch(function, grid, block, stream, arguments):
        if function is not None:
            cuda_on_cpu.run_kernel(function, arguments.words, grid, block)

    def run(kernel, inputs, outputs, scratch):
        epilogue = kernel.way.epilogue
        following = in_place(epilogue)
        functions = dict.fromkeys(launch.source.name for launch in following)
        copies = {source for source in kernel.sources if source.name not in functions}
        functions |= build_cuda(copies) if copies else {}
        xs, ys = ([x.ctypes.data for x in arrays] for arrays in (inputs, outputs))
        driver = SimpleNamespace(launch=launch)
        for call in kernel_calls(kernel, xs, ys, scratch.ctypes.data, functions, driver):
            call(0)
        if epilogue is not None:
            rows = zip((*outputs, *inputs[2:]), epilogue.inputs, strict=True)
            NumpyKernel(epilogue).run([x.reshape(spec.shape) for x, spec in rows], outputs, scratch)

    monkeypatch.setattr(cudnn, "set_stream", lambda handle, stream: None)
    monkeypatch.setattr(cudnn_kernel.CudnnKernel, "run", run)
    return device


def problems(tf32=False, bench=None, fast_math=False):
    exactness = Exactness(tf32, fast_math)
    return candidates.CudaProblems(None, bench or Workbench(), exactness)


def conv_nodes(dtype):
    def operands(*shapes):
        return [input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]

    odd = Conv2d((2, 1), (1, 2), (2, 1))
    x, w = operands((2, 3, 9, 8), (5, 3, 3, 2))
    y = odd(x, w)
    yield y
    yield Conv2dBackwardWeights(odd, w.shape)(input("dy", y.shape, dtype), x)
    yield Conv2dBackwardData(odd, x.shape)(input("dy", y.shape, dtype), w)
    grouped = Conv2d(padding=(1, 1), groups=2)
    x, w, b = operands((2, 12, 5, 4), (8, 6, 3, 3), (8,))
    yield grouped(x, w, b)
    yield Conv2dBackwardWeights(grouped, w.shape)(input("dy", (2, 8, 5, 4), dtype), x)
    yield Activated(Conv2d(), Relu())(*operands((2, 6, 4, 4), (8, 6, 1, 1), (8,)))


FIRST = {  # channels in and out, height and width, window, stride, padding
    "ResNet": (3, 8, (19, 18), (7, 7), (2, 2), (3, 3)),
    "AlexNet": (3, 6, (31, 28), (11, 11), (4, 4), (2, 2)),
    "a window that is no square": (4, 5, (10, 13), (2, 5), (3, 3), (0, 2)),
    "one dimension": (1, 5, (1, 43), (1, 10), (1, 5), (0, 3)),
    "a stride in one direction": (3, 4, (9, 8), (3, 3), (2, 1), (1, 1)),
    "a patch": (1, 7, (12, 9), (4, 4), (4, 4), (0, 0)),
    "a stride beyond the window": (2, 4, (9, 11), (1, 2), (3, 4), (1, 0)),
    "a padding beyond the window": (3, 4, (5, 4), (2, 2), (2, 2), (3, 5)),
}


# The cost of memory decides: the largest blocks, or the smallest.
COSTS = ("float32", 0), ("bfloat16", 10_000)


@needs_gpp
@pytest.mark.parametrize(
    ("name", "dtype", "cost"), [(name, *COSTS[i % 2]) for i, name in enumerate(FIRST)]
)
def test_first_convolutions_are_right_with_pixels_as_channels(host, name, dtype, cost, monkeypatch):
    host(Engine(1))
    monkeypatch.setattr(cudnn_kernel, "FLOPS_PER_BYTE", dict.fromkeys(("small", "plain"), cost))
    c, k, size, window, stride, padding = FIRST[name]
    conv = Conv2d(stride, padding)
    x, w = input("x", (2, c, *size), dtype), input("w", (k, c, *window), dtype)
    y, bias = conv(x, w), input("b", (k,), dtype)
    dw = Conv2dBackwardWeights(conv, w.shape)(input("dy", y.shape, dtype), x)
    for node, names in (
        (y, {""}),
        (dw, {""}),
        (Activated(conv, Relu())(x, w, bias), {"", "unfused "}),
    ):
        tunable = problems(fast_math=True).tunable(node, strides(node))
        table = measure(tunable.problem, None)
        assert not [m for m in table.measurements if m.error], tunable.problem.subject
        ways = {m.recipe.way for m in table.measurements}
        assert {re.sub(r"space to depth \d+ x \d+ ", "", way) for way in ways} == names
        assert len(ways) == 2 * len(names)
        layouts = {m.layouts for m in table.measurements}
        assert len(layouts) == (2 if c == 1 else 3)
        assert len(table.measurements) == len(layouts) * len(ways)


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_way_to_convolve_is_right_in_every_layout(host, dtype):
    host(Engine(1, workspace=100), Engine(2, ("NONDETERMINISTIC",)))
    for node in conv_nodes(dtype):
        tunable = problems().tunable(node, strides(node))
        table = measure(tunable.problem, None)
        assert not [m for m in table.measurements if m.error], tunable.problem.subject
        images = {m.layouts for m in table.measurements}
        is_first = node.inputs[0].shape[1] == 3 or node.inputs[1].shape[1:2] == (3,)
        assert len(images) == (3 if is_first else 2)
        assert layout_names(tunable.layouts) in images
        assert {m.deterministic for m in table.measurements} == {True, False}


def test_that_a_relu_may_lose_nan_is_part_of_the_subject(host):
    relu, bare = (op(*conv_operands()) for op in (Activated(Conv2d(), Relu()), Conv2d()))
    for node, note in ((relu, ", no NaN"), (bare, "")):
        strict, loose = (
            problems(fast_math=fast_math).tunable(node, strides(node)).problem.subject
            for fast_math in (False, True)
        )
        assert loose == strict + note


def conv_operands(dtype="float32"):
    shapes = {"x": (2, 8, 6, 5), "w": (16, 8, 3, 3), "b": (16,)}
    return [input(name, shape, dtype) for name, shape in shapes.items()]


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_kernel_adds_the_bias_and_keeps_nan_in_a_relu(host, build_cuda, dtype):
    """In both layouts: in place, of cuDNN's result and the kernel's own bias."""
    host(Engine(1))
    node = Activated(Conv2d(), Relu())(*conv_operands(dtype))
    tuned = problems().tunable(node, strides(node)).problem
    convolutions = [
        first_allowed(tuned.candidates(each), Policy()) for each in tuned.layouts.values()
    ]
    assert len(convolutions) == 2
    sources = [source for kernel in convolutions for source in kernel.sources]
    texts = build_cuda(sources)
    rng = np.random.default_rng(0)
    for kernel in convolutions:
        *copies, epilogue = kernel.launches
        assert kernel.library_position == len(copies)
        y, bias = (rng.normal(size=x.shape).astype(x.dtype) for x in kernel.way.epilogue.inputs)
        y.flat[:2] = np.nan, -np.inf
        expected = y.astype("float32") + bias.astype("float32")
        expected = np.where(expected < 0, 0, expected).astype(y.dtype)
        cuda_on_cpu.run(texts, [epilogue], [y, y, bias], [y])
        np.testing.assert_array_equal(y.astype("float32"), expected.astype("float32"))


def test_the_first_candidate_that_works_and_is_allowed_is_taken(host):
    node = Conv2d()(*conv_operands()[:2])

    def chosen(tf32=False, **policy):
        problem, layouts = problems(tf32).tunable(node, strides(node))
        kernel = first_allowed(problem.candidates(layouts), Policy(**policy))
        return kernel and kernel.name

    host(*ENGINES)
    assert chosen() == "cudnn engine 2 knobs {}"
    assert chosen(deterministic=True) == "cudnn engine 3 knobs {}"
    assert chosen(deterministic=True, workspace_limit=999) == "cudnn engine 7 knobs {}"
    assert chosen(True, precision="tf32") == "cudnn engine 1 knobs {TILE_SIZE: 2}"
    host(Engine(5, works=False))
    assert chosen() is None


def test_a_measured_kernel_is_made_again_of_its_recipe(host):
    host(Engine(3, workspace=100), Engine(7))
    node = Conv2d()(*conv_operands())
    problem, _ = problems().tunable(node, strides(node))
    for measured in measure(problem, None).measurements:
        new, _ = problems().tunable(node, strides(node))
        kernel = new.kernel(msgspec.convert(msgspec.to_builtins(measured), Measurement))
        assert kernel.name == f"cudnn {measured.name}"
    host(Engine(3))
    problem, _ = problems().tunable(node, strides(node))
    new, _ = problems().tunable(node, strides(node))
    old = next(m for m in measure(problem, None).measurements if "engine 3" in m.name)
    of_another_engine = structs.replace(old, recipe=structs.replace(old.recipe, engine=7))
    of_another_way = structs.replace(old, recipe=structs.replace(old.recipe, way="another"))
    for measured in (of_another_engine, of_another_way):
        with pytest.raises(GraphError, match=r"^cuDNN has no "):
            new.kernel(measured)


def test_scratch_holds_the_workspace_and_what_is_copied(host):
    host(Engine(1, workspace=100))
    first = laid_out(convolution(2, 3, 8, 4, 3, 1, 1, "float32")[0], (1, 1, 8))
    problem, layouts = problems().tunable(first, strides(first))
    kernel = first_allowed(problem.candidates(layouts), Policy())
    assert kernel.scratch == 2 * 256 + 4 * (2 * 4 * 4 * 4) + 8 * 4 * 3 * 3 * 4 + 128
    assert kernel.scratch % cudnn_kernel.ALIGNMENT == 0
    assert not any(kernel.reads_strided(i) or kernel.may_overwrite(i) for i in range(2))


def test_reorders_are_measured_in_both_directions_with_the_kernel_that_there_is():
    class Bench(Workbench):
        def runner(self, kernel):
            return kernel.run  # which computes in NumPy

    node = Reorder(1)(input("x", (2, 1, 4, 5, 3)))
    tunable = problems(bench=Bench()).tunable(node, strides(node))
    assert tunable.layouts == ()
    table = measure(tunable.problem, None)
    assert [(m.layouts, m.error) for m in table.measurements] == [
        (("nchw", "nhwc"), ""),
        (("nhwc", "nchw"), ""),
    ]


def test_nodes_that_no_library_has_a_problem_for_are_not_tunable():
    whole, empty = input("x", (4, 5), "int32"), input("x", (0, 5))
    for node in (Matmul()(whole, permute_dims(whole, (1, 0))), Matmul()(empty, input("y", (5, 2)))):
        assert problems().tunable(node, strides(node)) is None
    assert problems().tunable(Relu()(empty), [(20, 4)]) is None
    odd = Matmul()(input("x", (4, 5)), input("y", (5, 7)))
    assert problems().tunable(odd, [(40, 4), (28, 4)]) is None
    blocks = laid_out(convolution(2, 8, 8, 4, 3, 1, 1, "float32")[0], (4, 1, 4))
    assert problems().tunable(blocks, strides(blocks)) is None


# ---------------------------------------------------------------- what candidates are compared with


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_check_does_on_the_device_was_done_before_the_clock_runs(host, dtype):
    host(Engine(1, workspace=100))
    bench = ForeignBench()
    warm_up(bench, [as_dtype(dtype)])
    before = {*COMPILED}
    for node in convolution(8, 16, 32, 9, 3, 1, 1, dtype):
        problem = problems(bench=bench).tunable(node, strides(node)).problem
        assert not [m for m in measure(problem, None).measurements if m.error]
    missing = COMPILED - before
    assert missing == set()


@pytest.mark.parametrize("groups", [1, 3])
def test_the_ops_meaning_takes_arrays_of_the_device(groups):
    rng = np.random.default_rng(0)
    conv = Conv2d((2, 3), (2, 1), (1, 2), groups)
    x, w, bias = (rng.standard_normal(s) for s in ((2, 6, 9, 11), (9, 6 // groups, 3, 2), (9,)))
    dy = rng.standard_normal(conv.forward(x, w).shape)
    for op, *xs in (
        (conv, x, w, bias),
        (Conv2dBackwardData(conv, x.shape), dy, w),
        (Conv2dBackwardWeights(conv, w.shape), dy, x),
    ):
        node = Activated(op, Relu())(*(input("x", x.shape) for x in xs))
        (result,) = problems().tunable(node, strides(node)).problem.meaning(*map(Foreign, xs))
        np.testing.assert_array_equal(result.array, np.maximum(op.forward(*xs), 0))


# ---------------------------------------------------------------- without measurements


@pytest.mark.parametrize(
    ("dtype", "tf32", "last"),
    [("float16", False, 4), ("bfloat16", False, 4), ("float32", True, 4), ("float32", False, 0)],
)
def test_what_is_not_measured_has_its_images_where_cudnn_reads_them_without_a_copy(
    dtype, tf32, last
):
    """Four convolutions in a row: in 16 bits and in tf32 their images have the channels last."""
    x = y = input("x", (8, 64, 28, 28), dtype)
    for i in range(4):
        y = Relu.of(Conv2d(padding=(1, 1))(y, input(f"w{i}", (64, 64, 3, 3), dtype)))
    device = problems(tf32)
    backend = SimpleNamespace(blocks=(), tunable=device.tunable, current=contextlib.nullcontext)
    costs = Choices(backend, Session("cached", Policy(), 0.0, {}))
    weights = [node for node in Graph((x,), (y,)) if isinstance(node.op, Input) and node is not x]
    laid = assign_layouts(Graph((x, *weights), (y,)), Notes(), costs.seconds, ())
    assert sum(isinstance(node.op, LaidOut) for node in laid) == last
    reorders = sum(isinstance(node.op, Reorder) for node in laid)
    assert reorders == (2 if last else 0)  # at the borders of the graph


def test_a_measurement_goes_before_an_estimate(host):
    host(Engine(1, workspace=100))
    node = Conv2d()(input("x", (2, 8, 6, 6), "float16"), input("w", (4, 8, 1, 1), "float16"))
    device = problems()
    backend = SimpleNamespace(blocks=(), tunable=device.tunable)
    estimated = Choices(backend, Session("cached", Policy(), 30.0, {}))
    measured = Choices(backend, Session("exhaustive", Policy(), 30.0, {}))
    (estimates,), (measurements,) = estimated.seconds([node]), measured.seconds([node])
    assert estimates.keys() >= measurements.keys() and estimates != measurements
