"""Samples of heavy ops, their NumPy meaning, and the CPU's kernels for them."""

import numpy as np
from heavy_nodes import CONVOLUTIONS, real

import minigraph as mg
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, pack
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward, Pooling


def compiled(op, *xs):
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    return mg.comp_graph("cpu").compile(inputs, list(op.results(*inputs)))


def kernel_of(function, name):
    """Return the kernel of the only op of this name."""
    (kernel,) = (kernel for op, kernel, _ in function.report().steps if op == name)
    return kernel


def takes(op, *xs):
    """Whether oneDNN computes `op` on the CPU."""
    return kernel_of(compiled(op, *xs), op.name).startswith("onednn")


def meaning(op, *xs):
    """Return NumPy's results in float64, which are more exact than the compared ones."""
    with np.errstate(all="ignore"):
        ys = op.forward(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in xs))
    return ys if isinstance(ys, tuple) else (ys,)


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


def norm_samples():
    for window in (1, 2, 3, 4, 5, 9):
        for size in ((2, 16, 5, 4), (1, 3, 33, 35), (2, 5, 4, 4), (2, 1, 1, 1), (2, 16, 5)):
            norm = LocalResponseNorm(window, 0.5, 0.75, 1.5)
            yield f"local_response_norm-{window}-{'x'.join(map(str, size))}", norm, [real(*size)]
    for fields in ((5, 1e-4, 0.75, 2.0), (5, 1.0, 0.5, 1.0), (3, 2.0, 1.0, 0.5)):
        yield f"local_response_norm-{fields}", LocalResponseNorm(*fields), [real(2, 16, 4, 4)]


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
            x, dy = (pack(real(3, 32, 4, 4, seed=i), lanes) for i in range(2))
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


ALL = conv_samples, norm_samples, matmul_samples, layout_samples
SAMPLES = {name: (op, xs) for samples in ALL for name, op, xs in samples()}


def with_odd_values(x, seed):
    """x with a few infinities and NaN, some of them where the padding is near."""
    x = x.copy()
    places = [0, -1, *np.random.default_rng(seed).integers(0, x.size, 2)]
    x.flat[places] = [np.inf, -np.inf, np.nan, np.inf]
    return x


def sprinkled(size, value, share=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(size) < share, np.float32(value), real(*size))
