"""The CUDA kernels that are written by hand: they compile, and on the CPU they do what NumPy does.

`cuda_on_cpu/cuda_on_cpu.h` makes C++ of them, in which the threads of a block are fibers.
"""

import math

import cuda_on_cpu
import numpy as np
import pytest
from cuda_handwritten_cases import (
    F32,
    F64,
    KERNELS,
    SOURCES,
    TOLERANCE,
    case_of,
    meaning,
    node_of,
    run,
)
from long_runs import ARCHITECTURES, long

from minigraph.devices.cuda.kernels import cuda_kernel
from minigraph.ops.layout import Reorder
from minigraph.ops.loss import CrossEntropy
from minigraph.ops.pooling import MaxPool2d, Pooling
from minigraph.ops.reduction import Argmax


@pytest.fixture(scope="module")
def library(build_cuda):
    """All kernels as functions of the CPU."""
    if cuda_on_cpu.COMPILER is None:
        pytest.skip("there is no g++")
    return build_cuda(SOURCES)


def assert_alike(actual, expected):
    """Equal, NaN and infinity included; floats up to a few roundings."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if expected.dtype not in TOLERANCE:
        np.testing.assert_array_equal(actual, expected)
        return
    close = TOLERANCE[expected.dtype]
    actual, expected = actual.astype(F64), expected.astype(F64)
    np.testing.assert_allclose(actual, expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_its_op_means(library, name):
    """Also where it overwrites the input that it may."""
    node, xs, kernel = KERNELS[name]
    expected = meaning(node, xs)
    for inplace in (None, *(i for i, outputs in enumerate(kernel.inplace) if outputs)):
        results, flag = run(library, node, xs, kernel, inplace)
        assert flag == 0
        for actual, wanted in zip(results, expected, strict=True):
            assert_alike(actual, wanted)


@pytest.mark.parametrize("name", [n for n, (*_, kernel) in KERNELS.items() if kernel.range])
def test_an_integer_out_of_range_sets_the_flag_and_touches_nothing_else(library, name):
    node, xs, kernel = KERNELS[name]
    for wrong in (kernel.range.low - 1, kernel.range.high):
        integers = xs[kernel.range.operand].copy()
        if np.can_cast(np.min_scalar_type(wrong), integers.dtype):
            integers.reshape(-1)[-1] = wrong
            operands = [integers if i == kernel.range.operand else x for i, x in enumerate(xs)]
            assert run(library, node, operands, kernel)[1] == 1, wrong


def test_the_error_of_a_long_sum_of_exponentials_does_not_grow(library):
    n = 1 << 20
    x = np.zeros((1, n), F32)
    (y,), _ = run(library, *case_of(CrossEntropy(), [x, np.zeros(1, np.int64)]))
    np.testing.assert_allclose(y, math.log(n), rtol=1e-7)


def test_a_reorder_of_a_view_reads_it_where_it_lies():
    node = node_of(Reorder(64), [np.zeros((2, 64, 9, 9), F32)])
    last = (4 * 64 * 81, 4, 4 * 64 * 9, 4 * 64)  # channels that lie last already: a plain copy
    view, whole = (cuda_kernel(node, [s]) for s in (last, node.inputs[0].spec.strides))
    assert view.reads_strided(0) and not whole.reads_strided(0)


def test_a_text_serves_all_shapes():
    def source(op, *shapes):
        return case_of(op, [np.zeros(s, F32) for s in shapes])[2].sources

    windows = Pooling((2, 2), (2, 2), ((0, 0), (0, 0)))
    assert source(MaxPool2d(windows), (1, 2, 4, 4)) == source(MaxPool2d(windows), (8, 3, 20, 6))
    assert source(Argmax((1,)), (4, 20)) == source(Argmax((2,)), (2, 3, 1000))


ONE_OF_EACH_OP = list(
    {type(node.op): kernel.sources[0] for node, _, kernel in KERNELS.values()}.values()
)


@pytest.mark.parametrize(
    ("sources", "arch"),
    [(ONE_OF_EACH_OP, ARCHITECTURES[0]), *(long(SOURCES, arch) for arch in ARCHITECTURES)],
)
def test_every_kernel_compiles_for_the_device(sources, arch):
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    assert nvrtc.compile_program(cuda_on_cpu.program(sources), arch)[:4] == b"\x7fELF"
