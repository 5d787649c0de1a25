"""The CPU's kernels of heavy ops: oneDNN's, where it has a fast one that means the same, else ours.

Each agrees with the meaning of its op; NaN and infinities included.
"""

from collections import Counter

import numpy as np
import pytest
from heavy_nodes import CONVOLUTIONS, assert_agrees, real
from needs import needs_compiler, needs_onednn

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler, primitives
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.cpu.workbench import KernelRunner
from minigraph.devices.problem import arranged
from minigraph.graph import Graph, Spec, aligned_empty
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, pack
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    BatchNormInference,
    LocalResponseNorm,
    LogSoftmax,
    Softmax,
)
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)

pytestmark = needs_onednn


def compiled(op, *xs):
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    return mg.comp_graph("cpu").compile(inputs, list(op.results(*inputs)))


def kernel_of(function, name):
    """What computes the only op of this name."""
    (kernel,) = (kernel for op, kernel, _ in function.report().steps if op == name)
    return kernel


def takes(op, *xs):
    """Whether oneDNN computes `op` on the CPU."""
    return kernel_of(compiled(op, *xs), op.name).startswith("onednn")


def meaning(op, *xs):
    """The results by NumPy: in float64, so that they are better than what is compared."""
    with np.errstate(all="ignore"):
        ys = op.forward(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in xs))
    return ys if isinstance(ys, tuple) else (ys,)


# ---------------------------------------------------------------- samples


def conv_samples():
    for name, (n, c, k, image, window, fields) in CONVOLUTIONS.items():
        op = Conv2d(**fields)
        x, w = real(n, c, *image), real(k, c // op.groups, *window, seed=1)
        y = meaning(op, x, w)[0]
        dy = real(*y.shape, seed=2)
        yield f"conv2d-{name}", op, [x, w]
        yield f"conv2d-{name}-bias", op, [x, w, real(k, seed=3)]
        yield f"conv2d_backward_data-{name}", Conv2dBackwardData(op, x.shape), [dy, w]
        yield f"conv2d_backward_weights-{name}", Conv2dBackwardWeights(op, w.shape), [dy, x]


# (h, w), and the arguments after x
POOLINGS = {
    "2x2": ((8, 6), (2,)),
    "2x2-remainder": ((7, 9), (2,)),
    "3x3-overlapping": ((7, 9), (3, 2)),
    "3x3-padding": ((7, 9), (3, 2, 1)),
    "3x3-stride-1": ((5, 6), (3, 1, 1)),
    "unequal": ((8, 9), ((3, 2), (2, 1), (1, 0))),
    "gaps": ((9, 8), (2, 4)),
    "ceil": ((8, 8), (3, 2, 0, True)),
    "ceil-padding": ((8, 8), (3, 2, 1, True)),
    "ceil-fits": ((7, 7), (3, 2, 0, True)),
    "ceil-gaps": ((9, 10), (2, 3, 1, True)),
    "global": ((7, 7), (7,)),
    "1x1": ((4, 4), (1,)),
    "row": ((1, 9), ((1, 3), (1, 2))),
    "16x16": ((16, 17), (16, 1)),
}
CHANNELS = (1, 3, 16, 20)


def pool_samples():
    for name, (image, args) in POOLINGS.items():
        for c in CHANNELS:
            x = real(2, c, *image)
            node = mg.input("x", x.shape)
            largest = ops.max_pool2d(node, *args).inputs[0].op
            y, where = largest.forward(x)
            dy = real(*y.shape, seed=1)
            id_ = f"{name}-{c}"
            yield f"max_pool2d-{id_}", largest, [x]
            back = MaxPool2dBackward(largest.pooling, x.shape)
            yield f"max_pool2d_backward-{id_}", back, [dy, where]
            for count in (False, True):
                mean = ops.avg_pool2d(node, *args, count_include_pad=count).op
                yield f"avg_pool2d-{id_}-{count}", mean, [x]
                yield f"avg_pool2d_backward-{id_}-{count}", AvgPool2dBackward(mean, x.shape), [dy]


def norm_samples():
    for size in ((8, 4), (5, 3), (6, 16), (2, 3, 4, 5), (2, 16, 4, 5), (1, 5, 3, 3), (3, 2, 7)):
        x, dy = real(*size, seed=1) + 3, real(*size, seed=2)
        weight, bias, mean = (real(size[1], seed=s) for s in (3, 4, 5))
        variance = real(size[1], seed=6, low=0.1, high=3)
        axes = (0, *range(2, x.ndim))
        name = "x".join(map(str, size))
        for eps in (1e-5, 0.5):
            yield f"batch_norm-{name}-{eps}", BatchNorm(eps), [x, weight, bias]
            given = [x, weight, bias, mean, variance]
            yield f"batch_norm_inference-{name}-{eps}", BatchNormInference(eps), given
            back = [dy, x, weight, x.mean(axes), x.var(axes)]
            yield f"batch_norm_backward-{name}-{eps}", BatchNormBackward(eps), back
    for window in (1, 2, 3, 4, 5, 9):
        for size in ((2, 16, 5, 4), (1, 32, 3, 3), (2, 5, 4, 4), (2, 1, 1, 1), (2, 16, 5)):
            norm = LocalResponseNorm(window, 0.5, 0.75, 1.5)
            yield f"local_response_norm-{window}-{'x'.join(map(str, size))}", norm, [real(*size)]
    for fields in ((5, 1e-4, 0.75, 2.0), (5, 1.0, 0.5, 1.0), (3, 2.0, 1.0, 0.5)):
        yield f"local_response_norm-{fields}", LocalResponseNorm(*fields), [real(2, 16, 4, 4)]


def softmax_samples():
    for size in ((7,), (1,), (5, 10), (3, 1), (4, 1000), (2, 3, 4), (2, 3, 16), (2, 5, 3, 4)):
        for axis in range(len(size)):
            name = f"{'x'.join(map(str, size))}-{axis}"
            for scale in (1, 30):  # 30: differences up to 120, beyond the range of exp
                yield f"softmax-{name}-{scale}", Softmax(axis), [real(*size) * scale]
                yield f"log_softmax-{name}-{scale}", LogSoftmax(axis), [real(*size) * scale]


def matmul_samples():
    for name, x, y in (
        ("square", (16, 16), (16, 16)),
        ("odd", (3, 5), (5, 7)),
        ("row-times-matrix", (1, 9), (9, 4)),
        ("matrix-times-column", (4, 9), (9, 1)),
        ("outer", (5, 1), (1, 6)),
        ("inner", (1, 20), (20, 1)),
        ("one-number", (1, 1), (1, 1)),
        ("long", (2, 1000), (1000, 3)),
        ("on-two-threads", (200, 300), (300, 100)),
        ("batched", (4, 3, 5), (4, 5, 2)),
        ("batched-twice", (2, 3, 4, 5), (2, 3, 5, 6)),
        ("broadcast-left", (3, 5), (4, 5, 2)),
        ("broadcast-right", (4, 3, 5), (5, 2)),
        ("broadcast-one", (1, 3, 5), (4, 5, 2)),
        ("broadcast-both", (4, 1, 3, 5), (1, 6, 5, 2)),
        ("broadcast-axes", (6, 3, 5), (4, 1, 5, 2)),
    ):
        yield f"matmul-{name}", Matmul(), [real(*x), real(*y, seed=1)]


def layout_samples():
    for lanes in (1, 8, 16, 32):
        for target in (1, 8, 16, 32):
            if lanes != target:
                x = pack(real(2, 32, 5, 3), lanes)
                yield f"reorder-{lanes}-{target}", Reorder(target), [x]
        if lanes > 1:
            x, v = (
                pack(real(3, 32, 4, 4), lanes),
                [real(32 // lanes, lanes, seed=i, low=0.5) for i in range(4)],
            )
            yield f"batch_norm-{lanes}", BatchNorm(1e-5), [x, *v[:2]]
            yield f"batch_norm_inference-{lanes}", BatchNormInference(1e-5), [x, *v]
            dy = pack(real(3, 32, 4, 4, seed=1), lanes)
            back = [dy, x, *v[:3]]
            yield f"batch_norm_backward-{lanes}", BatchNormBackward(1e-5), back
            pool = Pooling((2, 2), (2, 2), ((0, 0), (0, 0)))
            average = AvgPool2d(pool, (0, 0), False)
            yield f"avg_pool2d-{lanes}", LaidOut(average, (lanes,), (lanes,)), [x]
            op = LaidOut(AvgPool2dBackward(average, (3, 32, 4, 4)), (lanes,), (lanes,))
            yield f"avg_pool2d_backward-{lanes}", op, [pack(real(3, 32, 2, 2), lanes)]
            for size, groups in ((1, 1), (3, 1), (3, 2)):
                convolution = Conv2d((1, 1), (size // 2, size // 2), (1, 1), groups)
                w = real(32, 32 // groups, size, size, seed=2)
                name = f"{size}-{groups}-{lanes}"
                yield f"conv2d-{name}", LaidOut(convolution, (lanes, 1), (lanes,)), [x, w]
                op = LaidOut(Conv2dBackwardData(convolution, (3, 32, 4, 4)), (lanes, 1), (lanes,))
                yield f"conv2d_backward_data-{name}", op, [dy, w]
                op = LaidOut(Conv2dBackwardWeights(convolution, w.shape), (lanes, lanes), (1,))
                yield f"conv2d_backward_weights-{name}", op, [dy, x]


SAMPLES = {
    name: (op, xs)
    for samples in (
        conv_samples,
        pool_samples,
        norm_samples,
        softmax_samples,
        matmul_samples,
        layout_samples,
    )
    for name, op, xs in samples()
}


# ---------------------------------------------------------------- kernels agree with their ops


def test_every_op_that_onednn_computes_has_samples():
    assert set(primitives.PRIMITIVES) <= {type(op) for op, _ in SAMPLES.values()}


@pytest.mark.parametrize("kind", primitives.PRIMITIVES, ids=lambda kind: kind.name)
def test_onednn_computes_some_of_the_samples_of_each_op(kind):
    assert any(takes(op, *xs) for op, xs in SAMPLES.values() if type(op) is kind)


@pytest.mark.parametrize(("op", "xs"), SAMPLES.values(), ids=SAMPLES)
def test_kernel_agrees_with_the_meaning(op, xs):
    function = compiled(op, *xs)
    expected = meaning(op, *xs)
    assert_agrees(function(*xs), expected)
    assert_agrees(function(*xs), expected)  # its memory is used again


@pytest.mark.parametrize("name", ["conv2d-on-two-threads", "matmul-on-two-threads"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernel_agrees_with_any_number_of_threads(name, threads):
    op, xs = SAMPLES[name]
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(xs)]
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    assert_agrees([cg.compile(inputs, op(*inputs))(*xs)], meaning(op, *xs))


# ---------------------------------------------------------------- padding

PADDED = [name for name, (*_, fields) in CONVOLUTIONS.items() if "padding" in fields]


def with_odd_values(x, seed):
    """x with a few infinities and NaN, some of them where the padding is near."""
    x = x.copy()
    places = [0, -1, *np.random.default_rng(seed).integers(0, x.size, 2)]
    x.flat[places] = [np.inf, -np.inf, np.nan, np.inf]
    return x


@needs_compiler
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("case", PADDED)
@pytest.mark.parametrize("way", ["conv2d", "conv2d_backward_data", "conv2d_backward_weights"])
def test_no_candidate_multiplies_padding(way, case, odd):
    op, xs = SAMPLES[f"{way}-{case}"]
    xs = [with_odd_values(x, seed=4) if i == odd else x for i, x in enumerate(xs)]
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(xs)]
    (wanted,) = meaning(op, *xs)
    problem = CpuProblems(2, on_disk=True).tunable(op(*inputs), [x.strides for x in xs]).problem
    names = []
    for candidate in problem.candidates(None):
        kernel = candidate.make()
        lying = [arranged(x, layout) for x, layout in zip(xs, candidate.layouts, strict=False)]
        result = arranged(wanted, candidate.layouts[-1])
        y, scratch = (
            aligned_empty(Spec(shape, dtype))
            for shape, dtype in ((result.shape, F32), ((kernel.scratch,), np.dtype(np.uint8)))
        )
        KernelRunner(kernel, on_disk=True)(lying, [y], scratch)
        assert_agrees([y], [result], tolerance=1e-4)
        names.append(candidate.name)
    assert any("gemm" in name for name in names)


def test_without_a_compiler_onednn_multiplies_no_padding(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    op, xs = SAMPLES["conv2d-padding-beyond-the-window"]
    w = with_odd_values(xs[1], seed=4)
    assert_agrees(compiled(op, xs[0], w)(xs[0], w), meaning(op, xs[0], w))


# ---------------------------------------------------------------- views as operands of a product

VIEWS = {
    "transposed-left": ((5, 3), (5, 7), lambda x, y: (x.T, y)),
    "transposed-right": ((3, 5), (7, 5), lambda x, y: (x, y.T)),
    "transposed-both": ((5, 3), (7, 5), lambda x, y: (x.T, y.T)),
    "rows": ((9, 5), (5, 7), lambda x, y: (x[2:6], y)),
    "columns": ((3, 12), (5, 7), lambda x, y: (x[:, 4:9], y)),
    "columns-of-both": ((3, 12), (5, 20), lambda x, y: (x[:, 4:9], y[:, 10:17])),
    "transposed-columns": ((12, 3), (5, 7), lambda x, y: (x[4:9].T, y)),
    "every-second-row": ((6, 5), (5, 7), lambda x, y: (x[::2], y)),
    "every-second-column": ((3, 10), (5, 7), lambda x, y: (x[:, ::2], y)),
    "flipped-rows": ((3, 5), (5, 7), lambda x, y: (x[::-1], y)),
    "flipped-columns": ((3, 5), (5, 7), lambda x, y: (x[:, ::-1], y)),
    "broadcast-row": ((1, 5), (5, 7), lambda x, y: (ops.broadcast_to(x, (3, 5)), y)),
    "broadcast-number": ((1, 1), (5, 7), lambda x, y: (ops.broadcast_to(x, (3, 5)), y)),
    "batch-transposed": ((4, 5, 3), (4, 5, 7), lambda x, y: (x.transpose(0, 2, 1), y)),
    "batch-behind": ((3, 5, 4), (4, 5, 7), lambda x, y: (x.transpose(2, 0, 1), y)),
    "batch-between": ((3, 4, 5), (4, 5, 7), lambda x, y: (x.transpose(1, 0, 2), y)),
    "batch-sliced": ((8, 3, 5), (4, 5, 7), lambda x, y: (x[::2], y)),
    "batch-flipped": ((4, 3, 5), (4, 5, 7), lambda x, y: (x[::-1], y)),
    "batch-broadcast": ((3, 5), (4, 5, 7), lambda x, y: (ops.broadcast_to(x, (4, 3, 5)), y)),
    "batches-swapped": ((2, 4, 3, 5), (4, 2, 5, 7), lambda x, y: (x.transpose(1, 0, 2, 3), y)),
    "one-row-of-many": ((9, 5), (5, 7), lambda x, y: (x[3:4], y)),
    "one-column-of-many": ((3, 9), (1, 7), lambda x, y: (x[:, 3:4], y)),
    "itself": ((5, 5), (1, 1), lambda x, y: (x, x.T)),
}
IN_PLACE = ("transposed-left", "transposed-right", "transposed-both", "rows", "columns")


@pytest.mark.parametrize("view", VIEWS)
def test_product_of_views_agrees_with_numpy(view):
    left, right, fn = VIEWS[view]
    x, y = mg.input("x", left), mg.input("y", right)
    args = real(*left), real(*right, seed=1)
    z = Matmul()(*fn(x, y))
    function = mg.comp_graph("cpu").compile([x, y], z)
    expected = Graph((x, y), (z,))(*(a.astype(np.float64) for a in args))
    assert_agrees([function(*args)], expected)
    assert kernel_of(function, "matmul").startswith("onednn")


@pytest.mark.parametrize("view", IN_PLACE)
def test_product_reads_rows_and_columns_in_place(view):
    left, right, fn = VIEWS[view]
    x, y = mg.input("x", left), mg.input("y", right)
    function = mg.comp_graph("cpu").compile([x, y], Matmul()(*fn(x, y)))
    assert [name for name, _, _ in function.report().steps] == ["matmul"]


@pytest.mark.parametrize(
    ("left", "right"), [((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 7)), ((4, 3, 5), (5,))]
)
def test_product_with_vectors_agrees_with_numpy(left, right):
    x, y = mg.input("x", left), mg.input("y", right)
    args = real(*left), real(*right, seed=1)
    z = mg.comp_graph("cpu").compile([x, y], x @ y)(*args)
    assert_agrees([z], [np.asarray(args[0].astype(np.float64) @ args[1])])


def spread(x):
    """x with something between its elements and around them."""
    return np.pad(np.repeat(x, 2, -1), 1, constant_values=3)


# How an operand lies in memory, and the view that shows it.
LAYOUTS = {
    "transposed": (lambda x: x.T.copy(), lambda x: x.T),
    "flipped": (lambda x: x[::-1, ..., ::-1].copy(), lambda x: x[::-1, ..., ::-1]),
    "spread": (spread, lambda x: x[(slice(1, -1),) * x.ndim][..., ::2]),
}


def some_of_each_op(count):
    seen = Counter()
    for name, (op, xs) in SAMPLES.items():
        seen[op.name] += 1
        if seen[op.name] <= count:
            yield pytest.param(op, xs, id=name)


@pytest.mark.parametrize(("op", "xs"), list(some_of_each_op(4)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_may_be_views(op, xs, layout):
    lay, show = LAYOUTS[layout]
    if layout == "flipped" and any(x.ndim < 2 for x in xs):
        lay, show = (lambda x: x[::-1].copy()), (lambda x: x[::-1])
    args = [lay(x) for x in xs]
    inputs = [mg.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(args)]
    function = mg.comp_graph("cpu").compile(inputs, list(op.results(*map(show, inputs))))
    assert_agrees(function(*args), meaning(op, *xs))


def test_operands_of_a_convolution_may_be_views_of_views():
    x, w = mg.input("x", (6, 7, 2, 8)), mg.input("w", (3, 3, 8, 10))
    images, weights = x.transpose(2, 3, 0, 1), w[::-1, :, :, ::2].transpose(3, 2, 0, 1)
    y = ops.conv2d(images, weights, padding=1)
    args = real(*x.shape), real(*w.shape, seed=1)
    function = mg.comp_graph("cpu").compile([x, w], y)
    assert_agrees([function(*args)], Graph((x, w), (y,))(*(a.astype(np.float64) for a in args)))


# ---------------------------------------------------------------- what oneDNN must decline


@pytest.mark.parametrize("kind", primitives.PRIMITIVES, ids=lambda kind: kind.name)
def test_kernels_decline_float64(kind):
    op, xs = next((op, xs) for op, xs in SAMPLES.values() if type(op) is kind)
    xs = [x.astype(np.float64) if x.dtype == np.float32 else x for x in xs]
    assert not takes(op, *xs)
    assert_agrees(compiled(op, *xs)(*xs), meaning(op, *xs), 1e-12)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        (Conv2d(), [(0, 3, 5, 5), (4, 3, 3, 3)]),
        (Matmul(), [(0, 3), (3, 4)]),
        (Matmul(), [(2, 0), (0, 4)]),
        (Matmul(), [(0, 2, 3), (1, 3, 4)]),
        (Softmax(1), [(0, 3)]),
        (LogSoftmax(1), [(0, 3)]),
        (BatchNormInference(1e-5), [(0, 3, 2, 2), (3,), (3,), (3,), (3,)]),
        (LocalResponseNorm(3, 1.0, 0.75, 1.0), [(0, 16, 2, 2)]),
    ],
    ids=str,
)
def test_kernels_decline_empty_arrays(op, sizes):
    xs = [real(*size) for size in sizes]
    assert not takes(op, *xs)
    assert_agrees(compiled(op, *xs)(*xs), meaning(op, *xs))


@pytest.mark.parametrize(("args", "size"), [((3, 2, 1, True), 8), ((4, 3, 1, True), 9)])
def test_average_pooling_declines_to_count_padding_that_ceil_mode_goes_beyond(args, size):
    x = mg.input("x", (1, 16, size, 10))
    counting = ops.avg_pool2d(x, *args, count_include_pad=True).op
    assert not takes(counting, real(*x.shape))
    not_counting = ops.avg_pool2d(x, *args, count_include_pad=False).op
    assert takes(not_counting, real(*x.shape))


def test_kernels_decline_the_reference_implementation():
    """It is thousands of times slower, and oneDNN's last resort."""
    for op, xs in SAMPLES.values():
        assert "ref" not in kernel_of(compiled(op, *xs), op.name)


@pytest.mark.parametrize(
    ("op", "size"),
    [
        (Matmul(), (8, 8)),
        (MaxPool2d(ops.max_pool2d(mg.input("x", (1, 8, 8, 8)), 2).inputs[0].op.pooling), None),
    ],
    ids=["matmul", "max_pool2d"],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_kernels_decline_integers(op, size, dtype):
    """Only asked, not run: float32 kernels on bytes write beyond their arrays."""
    xs = [np.ones(size, dtype)] * 2 if size else [np.ones((1, 8, 8, 8), dtype)]
    assert not takes(op, *xs)


@pytest.mark.parametrize("op", [Matmul(), Softmax(0), BatchNormInference(1e-5)], ids=str)
def test_kernels_decline_more_axes_than_onednn_has(op):
    x = real(*[2] * 13)
    channels = [real(2, low=0.5)] * 4 if isinstance(op, BatchNormInference) else []
    xs = [x, x] if isinstance(op, Matmul) else [x, *channels]
    assert_agrees(compiled(op, *xs)(*xs), meaning(op, *xs))


# ---------------------------------------------------------------- NaN, infinities and ties


def sprinkled(size, value, share=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(size) < share, np.float32(value), real(*size))


POOL_WINDOWS = [(2,), (3, 2), (3, 2, 1), (3, 2, 1, True)]


def largest(size, args):
    return ops.max_pool2d(mg.input("x", size), *args).inputs[0].op


@pytest.mark.parametrize("args", POOL_WINDOWS)
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_max_pooling_passes_nan_and_infinity_as_numpy(args, channels, value):
    x = sprinkled((2, channels, 9, 9), value, 0.7 if value < 0 else 0.2)
    op = largest(x.shape, args)
    assert_agrees(compiled(op, x)(x), meaning(op, x))


@pytest.mark.parametrize("args", POOL_WINDOWS)
@pytest.mark.parametrize("channels", [3, 16])
def test_max_pooling_takes_the_first_of_equals(args, channels):
    x = np.round(real(2, channels, 9, 9))
    op = largest(x.shape, args)
    assert_agrees(compiled(op, x)(x), meaning(op, x))
    zeros = np.where(real(2, channels, 9, 9, seed=1) > 0, np.float32(0), np.float32(-0.0))
    assert_agrees(compiled(op, zeros)(zeros), meaning(op, zeros))


@pytest.mark.parametrize("args", POOL_WINDOWS)
def test_max_pooling_of_rows_that_are_computed_in_parts(args):
    x = np.round(real(1, 1, 3, 5000), 1)
    op = largest(x.shape, args)
    assert_agrees(compiled(op, x)(x), meaning(op, x))


def test_max_pooling_of_a_row_longer_than_any_stack():
    x = real(1, 1, 1, 2_500_000)
    largest_of_one, place = compiled(largest(x.shape, ((1, 1),)), x)(x)
    np.testing.assert_array_equal(largest_of_one, x)
    assert not place.any()


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("channels", [3, 16])
def test_average_pooling_passes_nan_and_infinity_as_numpy(value, channels):
    x = sprinkled((2, channels, 9, 9), value)
    op = AvgPool2d(largest(x.shape, (3, 2, 1)).pooling, (1, 1), True)
    assert_agrees(compiled(op, x)(x), meaning(op, x))


@pytest.mark.parametrize("op", [ops.relu, ops.maximum, ops.minimum], ids=lambda op: op.__name__)
def test_relu_and_the_larger_of_two_pass_nan_and_infinity_as_numpy(op):
    special = np.array([np.nan, -np.inf, np.inf, 0.0, -0.0, 1, -1], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    nodes = mg.input("x", x.shape), mg.input("y", y.shape)
    count = 1 if op is ops.relu else 2
    z = op(*nodes[:count])
    result = mg.comp_graph("cpu").compile(nodes[:count], z)(*(x, y)[:count])
    np.testing.assert_array_equal(result, Graph(nodes, (z,))(x, y)[0])


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax])
@pytest.mark.parametrize("size", [(7,), (5, 10), (4, 1000), (2, 5, 3, 4)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_softmax_passes_nan_and_infinity_as_numpy(kind, size, value):
    for share in (0.1, 0.5, 1.0):
        x = sprinkled(size, value, share)
        for axis in range(len(size)):
            assert_agrees(compiled(kind(axis), x)(x), meaning(kind(axis), x))


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax])
@pytest.mark.parametrize(("shape", "axis"), [((300_000, 2), 0), ((2, 300_000), 1)], ids=str)
def test_the_error_of_a_softmax_does_not_grow_with_the_length_of_the_axis(kind, shape, axis):
    x = real(*shape)
    function = compiled(kind(axis), x)
    assert kernel_of(function, kind(axis).name) == "c"
    (expected,) = meaning(kind(axis), x)
    np.testing.assert_allclose(function(x)[0], expected, rtol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_convolution_and_product_pass_nan_and_infinity_as_numpy(value):
    x, w = sprinkled((2, 16, 9, 9), value, 0.02), real(8, 16, 3, 3, seed=1)
    for op in (Conv2d(), Conv2d(stride=(2, 2), padding=(1, 1))):
        assert_agrees(compiled(op, x, w)(x, w), meaning(op, x, w))
    x, y = sprinkled((8, 16), value, 0.02), real(16, 24, seed=1)
    assert_agrees(compiled(Matmul(), x, y)(x, y), meaning(Matmul(), x, y))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channels", [3, 16])
def test_batch_norm_passes_nan_and_infinity_as_numpy(value, channels):
    x = sprinkled((2, channels, 4, 4), value, 0.02)
    vectors = [real(channels, seed=s, low=0.5) for s in range(4)]
    for op, xs in (
        (BatchNorm(1e-5), [x, *vectors[:2]]),
        (BatchNormInference(1e-5), [x, *vectors]),
    ):
        assert_agrees(compiled(op, *xs)(*xs), meaning(op, *xs), 1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channels", [5, 16, 32])
def test_local_response_norm_keeps_nan_and_infinity_to_its_window(value, channels):
    op = LocalResponseNorm(5, 1e-4, 0.75, 1.0)
    x = real(1, channels, 3, 3)
    x[0, 1, 1, 1] = value
    assert_agrees(compiled(op, x)(x), meaning(op, x))


@pytest.mark.parametrize("channels", [5, 16, 32])
def test_local_response_norm_is_accurate_beside_large_channels(channels):
    op = LocalResponseNorm(5, 1.0, 0.75, 1.0)
    x = real(1, channels, 3, 3)
    x[:, ::7] *= 1000
    (y,), (expected,) = compiled(op, x)(x), meaning(op, x)
    np.testing.assert_allclose(y, expected, rtol=1e-4)
