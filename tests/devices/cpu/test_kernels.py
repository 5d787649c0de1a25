"""The CPU's kernels of heavy ops, oneDNN's and ours, agree with the ops' NumPy meanings."""

import functools
import re
from itertools import chain

import numpy as np
import pytest
from heavy_nodes import assert_agrees, real
from heavy_samples import SAMPLES, compiled, meaning, takes
from needs import needs_onednn

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import handwritten, primitives
from minigraph.jit.c.vector_math import vector_functions, vector_math
from minigraph.ops.conv import Conv2d
from minigraph.ops.loss import CrossEntropy
from minigraph.ops.matmul import Matmul

pytestmark = needs_onednn
KINDS = Matmul, *primitives.CONVOLUTIONS  # that oneDNN computes


@functools.cache
def computed(kind):
    """Compile all samples of a kind of op as one function; return its kernels, and results by name.

    It is called twice: the second time its memory is used again.
    """
    names = [name for name, (op, _) in SAMPLES.items() if type(op) is kind]
    arrays, inputs, outputs = [], [], {}
    for op, xs in map(SAMPLES.get, names):
        nodes = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs, len(inputs))]
        arrays, inputs = [*arrays, *xs], [*inputs, *nodes]
        outputs[names[len(outputs)]] = op.results(*nodes)
    function = mg.comp_graph("cpu").compile(inputs, list(chain(*outputs.values())))
    calls = [iter(function(*arrays)) for _ in range(2)]
    results = {name: [[next(call) for _ in ys] for call in calls] for name, ys in outputs.items()}
    return {kernel for _, kernel, _ in function.report().steps}, results


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_onednn_computes_some_of_the_samples_of_each_op(kind):
    assert any(kernel.startswith("onednn") for kernel in computed(kind)[0])


@pytest.mark.parametrize("name", SAMPLES)
def test_kernel_agrees_with_the_meaning(name):
    """And is not oneDNN's last resort, which is thousands of times slower."""
    op, xs = SAMPLES[name]
    kernels, results = computed(type(op))
    assert not any("ref" in kernel for kernel in kernels)
    for arrays in results[name]:
        assert_agrees(arrays, meaning(op, *xs))


@pytest.mark.parametrize("name", ["conv2d-on-two-threads", "matmul-on-two-threads"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernel_agrees_with_any_number_of_threads(name, threads):
    op, xs = SAMPLES[name]
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(xs)]
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    assert_agrees([cg.compile(inputs, op(*inputs))(*xs)], meaning(op, *xs))


# ---------------------------------------------------------------- what oneDNN must decline


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
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
        (Matmul(), [(2,) * 13] * 2),
    ],
    ids=str,
)
def test_kernels_decline_empty_arrays_and_more_axes_than_onednn_has(op, sizes):
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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_kernels_decline_integers(dtype):
    """Only asked, not run: float32 kernels on bytes write beyond their arrays."""
    assert not takes(Matmul(), *[np.ones((8, 8), dtype)] * 2)


@pytest.mark.skipif(not vector_functions(), reason="the C library has no vector variants")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_get_the_vector_variants_of_the_functions_that_they_call(dtype):
    """Scalar calls take ten times as long; a comment that names a function does not count."""
    x, labels = mg.input("x", (2, 4, 6), dtype), mg.input("labels", (2, 4), "int64")
    for node, make, function in (
        (ops.local_response_norm(x, 3), handwritten.local_response_norm, "pow"),
        (CrossEntropy()(x, labels), handwritten.cross_entropy, "exp"),
    ):
        (source,) = make(node.op, node, 1).sources
        provided = vector_math(re.sub(r"/\*.*?\*/", "", source.text, flags=re.DOTALL))
        name = f"{function}f" if dtype == "float32" else function
        assert name not in vector_functions() or f"#define {name} mg_{name}\n" in provided
