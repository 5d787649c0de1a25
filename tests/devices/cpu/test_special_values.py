"""NaN, infinities, ties and numbers of very different size in kernels of heavy ops."""

import numpy as np
import pytest
from heavy_nodes import CONVOLUTIONS, assert_agrees, real
from heavy_samples import SAMPLES, compiled, meaning, sprinkled, with_odd_values
from needs import needs_compiler, needs_onednn

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.devices.cpu.kernel import KernelRunner
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.problem import to_layout
from minigraph.graph import Spec, aligned_empty
from minigraph.ops.conv import Conv2d
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import LocalResponseNorm

pytestmark = needs_onednn

POOL_WINDOWS = [(2,), (3, 2), (3, 2, 1), (3, 2, 1, True)]
IMAGES = [(2, channels, 9, 9) for channels in (3, 16)]


def largest(size, args):
    return ops.max_pool2d(mg.input("x", size), *args).inputs[0].op


# The op, the shape of its first operand, the other operands.
PASSING = [
    *((LocalResponseNorm(5, 1e-4, 0.75, 1.0), (1, c, 3, 3), []) for c in (5, 16, 32)),
    (Conv2d(), IMAGES[1], [real(8, 16, 3, 3, seed=1)]),
    (Conv2d((2, 2), (1, 1)), IMAGES[1], [real(8, 16, 3, 3, seed=1)]),
    (Matmul(), (8, 16), [real(16, 24, seed=1)]),
]


@pytest.mark.parametrize(
    ("op", "shape", "others"), PASSING, ids=[f"{op} {shape}" for op, shape, *_ in PASSING]
)
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_nan_and_infinity_go_where_numpy_lets_them(op, shape, others, value):
    x = sprinkled(shape, value, 0.02)
    x.flat[9 % x.size + 1] = value
    assert_agrees(compiled(op, x, *others)(x, *others), meaning(op, x, *others), 1e-4)


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


@pytest.mark.parametrize("channels", [5, 16, 32])
def test_local_response_norm_is_accurate_beside_large_channels(channels):
    op = LocalResponseNorm(5, 1.0, 0.75, 1.0)
    x = real(1, channels, 3, 3)
    x[:, ::7] *= 1000
    (y,), (expected,) = compiled(op, x)(x), meaning(op, x)
    np.testing.assert_allclose(y, expected, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_next_number_may_be_denormal(dtype):
    info = np.finfo(dtype)
    smallest = info.smallest_subnormal
    positive = [0, smallest, 2 * smallest, info.tiny, 1, info.max, np.inf]
    numbers = np.array([*positive, *(-v for v in positive), np.nan], dtype)
    x, y = (mg.input(name, shape, dtype) for name, shape in (("x", (15, 1)), ("y", (1, 15))))
    actual = mg.comp_graph("cpu").compile([x, y], ops.nextafter(x, y))(
        numbers[:, None], numbers[None]
    )
    with np.errstate(all="ignore"):
        expected = np.nextafter(numbers[:, None], numbers[None])
    np.testing.assert_array_equal(actual, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


# ---------------------------------------------------------------- padding is no operand


PADDED = [name for name, (*_, fields) in CONVOLUTIONS.items() if "padding" in fields]


@needs_compiler
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("case", PADDED)
@pytest.mark.parametrize("way", ["conv2d", "conv2d_backward_data", "conv2d_backward_weights"])
def test_no_candidate_multiplies_padding(way, case, odd):
    op, xs = SAMPLES[f"{way}-{case}"]
    xs = [with_odd_values(x, seed=4) if i == odd else x for i, x in enumerate(xs)]
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(xs)]
    (expected,) = meaning(op, *xs)
    problem = CpuProblems(2, on_disk=True).tunable(op(*inputs), [x.strides for x in xs]).problem
    names = []
    for candidate in problem.candidates(None):
        kernel = candidate.make()
        lying = [to_layout(x, layout) for x, layout in zip(xs, candidate.layouts, strict=False)]
        result = to_layout(expected, candidate.layouts[-1])
        y, scratch = (
            aligned_empty(Spec(shape, dtype))
            for shape, dtype in ((result.shape, F32), ((kernel.scratch,), np.dtype(np.uint8)))
        )
        KernelRunner(kernel, on_disk=True).run(lying, [y], scratch)
        assert_agrees([y], [result], tolerance=1e-4)
        names.append(candidate.name)
    assert any("panels" in name for name in names)


def test_without_a_compiler_onednn_multiplies_no_padding(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    op, xs = SAMPLES["conv2d-padding-beyond-the-window"]
    w = with_odd_values(xs[1], seed=4)
    assert_agrees(compiled(op, xs[0], w)(xs[0], w), meaning(op, xs[0], w))
