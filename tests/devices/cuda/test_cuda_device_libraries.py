"""Results of cuDNN and cuBLAS on a GPU: `pytest -m cuda`.  Skipped without a GPU."""

import numpy as np
import pytest
from cuda_device import close, on_host, require, tolerance
from heavy_nodes import convolution, laid_out

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, as_dtype

pytestmark = pytest.mark.cuda


CONVOLUTIONS = {  # batch, channels before and behind, size, window, stride, padding
    "plain": (4, 16, 32, 10, 3, 1, 1),
    "strided": (4, 32, 16, 11, 3, 2, 1),
    "one pixel": (4, 32, 64, 7, 1, 1, 0),
    "few channels": (2, 3, 16, 39, 11, 4, 2),
    "few channels, an even size": (3, 3, 32, 38, 7, 2, 3),
    "patches": (2, 3, 32, 64, 16, 16, 0),
}


def lanes(node, first=True):
    """Return the lanes of a convolution's inputs and result with the channels last.

    first  whether those of images with 3 channels, too
    """
    weights = [x.name == "w" for x in node.inputs] + [node.op.name.endswith("weights")]
    channels = [x.shape[1] for x in (*node.inputs, node)]
    return tuple(
        1 if w or (n == 3 and not first) else n for w, n in zip(weights, channels, strict=True)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_cudnn_convolves_in_every_layout(name, dtype):
    nodes = convolution(*CONVOLUTIONS[name], dtype)
    laid = [laid_out(node, which) for node in nodes for which in {lanes(node), lanes(node, False)}]
    for node in (*nodes, *laid):
        rng = np.random.default_rng(0)
        xs = [rng.normal(size=x.shape).astype(as_dtype(dtype)) for x in node.inputs]
        step = mg.comp_graph("cuda", {"autotune": "off"}).compile(node.inputs, node)
        ((_, maker, _),) = step.report().steps
        assert maker.startswith("cudnn"), f"{node.op} is computed by {maker}"
        expected = node.op.forward(*(x.astype(np.float64) for x in xs)).astype(node.dtype)
        close(on_host(step(*xs)), expected, tolerance(expected))


def turned(x):
    return ops.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def heads(x):
    """Return [batch, heads, length, size] of [batch, length, heads, size]."""
    return ops.permute_dims(x, (0, 2, 1, 3))


PRODUCTS = {  # shapes in memory, then which views of the two are multiplied
    "plain": ((64, 48), (48, 80), lambda x, y: (x, y)),
    "first turned": ((48, 64), (48, 80), lambda x, y: (turned(x), y)),
    "second turned": ((64, 48), (80, 48), lambda x, y: (x, turned(y))),
    "both turned": ((48, 64), (80, 48), lambda x, y: (turned(x), turned(y))),
    "odd": ((7, 5), (5, 3), lambda x, y: (x, y)),
    "one row": ((1, 257), (257, 33), lambda x, y: (x, y)),
    "one column": ((33, 257), (257, 1), lambda x, y: (x, y)),
    "inner": ((1, 257), (257, 1), lambda x, y: (x, y)),
    "outer": ((65, 1), (1, 33), lambda x, y: (x, y)),
    "one": ((1, 1), (1, 1), lambda x, y: (x, y)),
    "long": ((8, 20_000), (20_000, 16), lambda x, y: (x, y)),
    "parts of rows": ((33, 96), (64, 80), lambda x, y: (x[:, 32:], y[:, 16:48])),
    "parts of columns": ((96, 33), (80, 64), lambda x, y: (turned(x[32:]), turned(y[16:48]))),
    "from any element": ((6, 5), (5, 4), lambda x, y: (x[1:], y)),
    "every second": ((12, 5), (5, 8), lambda x, y: (x[::2], y[:, ::2])),
    "backwards": ((3, 6, 5), (3, 5, 8), lambda x, y: (ops.flip(x, 0), ops.flip(y, 2))),
    "a batch": ((9, 17, 24), (9, 24, 40), lambda x, y: (x, y)),
    "a batch of turned": ((9, 17, 24), (9, 40, 24), lambda x, y: (x, turned(y))),
    "one for all": ((9, 17, 24), (1, 24, 40), lambda x, y: (x, y)),
    "axes broadcast": ((2, 1, 17, 24), (1, 3, 24, 40), lambda x, y: (x, y)),
    "attention": ((3, 4, 64, 32), (3, 4, 64, 32), lambda x, y: (x, turned(y))),
    "heads": ((3, 64, 4, 32), (3, 64, 4, 32), lambda x, y: (heads(x), turned(heads(y)))),
    "many": ((70_000, 2, 3), (70_000, 3, 4), lambda x, y: (x, y)),
}
ROUNDING = {"float32": 3e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1e-2, "tf32": 2e-3}


def multiplied(name, dtype, following=lambda z: z, **options):
    """Compute a product; return its step, result, meaning, and that of the absolute values."""
    *shapes, views = PRODUCTS[name]
    inputs = [mg.input(f"{name} {i}", shape, dtype) for i, shape in enumerate(shapes)]
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=shape).astype(as_dtype(dtype)) for shape in shapes]
    step = mg.comp_graph("cuda", {"autotune": "off", **options}).compile(
        inputs, following(ops.matmul(*views(*inputs)))
    )
    wide = [mg.input(f"{name} {i}", shape, "float64") for i, shape in enumerate(shapes)]
    meaning = Graph(tuple(wide), views(*wide))
    first, second = meaning(*(x.astype(np.float64) for x in xs))
    for _ in range(2):
        step(*xs)
    product = on_host(step(*xs)).astype(np.float64)  # of a graph
    return step, product, first @ second, np.abs(first) @ np.abs(second)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_cublas_multiplies(name, dtype):
    """As exactly as the dtype allows: factors of float32 are not rounded to tf32."""
    step, actual, expected, size = multiplied(name, dtype)
    report = step.report()
    assert report.makers["cublas"] == 1 and not report.numpy
    assert (np.abs(actual - expected) <= ROUNDING[dtype] * size + 1e-30).all()


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_tf32_are_nearly_right(name):
    _, actual, expected, size = multiplied(name, "float32", precision="tf32")
    assert (np.abs(actual - expected) <= ROUNDING["tf32"] * size).all()


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_bias_and_an_activation_follow_a_product(dtype, fast_math):
    for name, activation in (("plain", ops.relu), ("odd", ops.relu), ("plain", ops.tanh)):
        columns = PRODUCTS[name][1][1]
        bias = np.linspace(-3, 3, columns).astype(as_dtype(dtype))
        step, actual, expected, size = multiplied(
            *(name, dtype, lambda z, bias=bias, f=activation: f(z + bias)),
            **{"graph_opt_level": 3, "graph_opt.fast_math": fast_math},
        )
        assert len(step.report().steps) == 1
        expected = expected + bias.astype(np.float64)
        expected = np.maximum(expected, 0) if activation is ops.relu else np.tanh(expected)
        assert (np.abs(actual - expected) <= ROUNDING[dtype] * (size + 3)).all()


require()
