"""Hand-written CUDA kernels with operands, for tests on the CPU and on a GPU."""

import cuda_on_cpu
import numpy as np
import pytest
from samples import STRUCTURAL

from minigraph.devices.cuda import handwritten
from minigraph.devices.cuda.kernels import HANDWRITTEN
from minigraph.graph import BFLOAT16, Node, input
from minigraph.ops.cumulative import CumulativeProduct, CumulativeSum, Recurrence
from minigraph.ops.indexing import AddAlong, OneHot, PutAlong, Take, TakeBackward
from minigraph.ops.layout import LaidOut, Reorder, pack
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.ordering import Argsort, Searchsorted
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    MaxPool2d,
    MaxPool2dBackward,
    Pooling,
)
from minigraph.ops.reduction import Argmax

F16, F32, F64 = map(np.dtype, ("float16", "float32", "float64"))
TOLERANCE = {F64: 1e-13, F32: 2e-6, F16: 1e-3, BFLOAT16: 8e-3}  # relative, and absolute
ANY_BYTE = np.array([0, 0, 0, 1, 2, 128, 255], np.uint8)  # of bools that a view made
RNG = np.random.default_rng(0)


def special_pixels(dtype, channels=4):
    """Images with ties, NaN, infinities and signed zeros, and planes of nothing but -inf."""
    x = RNG.integers(-2, 3, (2, channels, 7, 9)).astype(dtype)
    x.reshape(-1)[RNG.permutation(x.size)[:60]] = np.repeat([np.nan, np.inf, -np.inf, -0.0], 15)
    x[0, 0] = -np.inf
    return x


def unaligned(x):
    """Return an array whose elements begin at no multiple of 16 bytes."""
    room = np.empty(x.size + 17, x.dtype)
    first = next(i for i in range(17) if room[i:].ctypes.data % 16)
    room[first : first + x.size] = x.reshape(-1)
    return room[first : first + x.size].reshape(x.shape)


def special_rows(rows, n):
    """Rows with NaN, infinities, nothing but -inf, and numbers whose exponentials overflow."""
    x = RNG.normal(size=(rows, n)).astype(F32) * 3
    for i, value in enumerate((np.nan, np.inf, -np.inf, 1e30)):
        x[i, i % n] = value
    x[4] = -np.inf
    x[5, -1] = np.nan
    return x


def cases():
    """Return name, op and inputs."""
    for name, (op, xs) in STRUCTURAL.items():
        for dtype in TOLERANCE if type(op) in HANDWRITTEN else ():
            cast = [np.asarray(x).astype(dtype if x.dtype == F64 else x.dtype) for x in xs]
            yield f"{name}-{dtype}", op, cast
    for dtype in (*TOLERANCE, "int8"):
        for c, h, w in ((64, 8, 8), (130, 10, 13), (48, 7, 7), (33, 16, 9)):
            x = RNG.integers(-99, 99, (3, c, h, w)).astype(dtype)
            for where in (np.ascontiguousarray, unaligned):
                name = f"{c}-{h}-{w}-{where.__name__}-{dtype}"
                yield f"reorder-to-{name}", Reorder(c), [where(x)]
                yield f"reorder-from-{name}", Reorder(1), [where(pack(x, c))]
    yield "reorder-of-blocks", Reorder(64), [x := RNG.normal(size=(2, 128, 6, 6)).astype(F32)]
    yield "reorder-from-blocks", Reorder(1), [pack(x, 64)]
    windows = Pooling((3, 3), (2, 2), ((1, 1), (1, 1)))
    wide = Pooling((17, 17), (1, 1), ((8, 8), (8, 8)))  # places of more than 256 elements
    for dtype in TOLERANCE:
        x = special_pixels(dtype)
        yield f"max_pool2d-special-{dtype}", MaxPool2d(windows), [x]
        nhwc = LaidOut(MaxPool2d(windows), (4,), (4, 4))
        yield f"max_pool2d-special-nhwc-{dtype}", nhwc, [pack(x, 4)]
        at = MaxPool2d(windows).forward(x)[1]
        dy = special_pixels(dtype)[:, :, : at.shape[2], : at.shape[3]].copy()
        yield f"max_pool2d_backward-special-{dtype}", MaxPool2dBackward(windows, x.shape), [dy, at]
        for lanes in (3, 16, 24):  # of which groups of 8 are whole, or not
            for where in (np.ascontiguousarray, unaligned):
                x = special_pixels(dtype, lanes)
                dy, at = MaxPool2d(windows).forward(x)
                name = f"nhwc-{lanes}-{where.__name__}-{dtype}"
                last, shape = (lanes,), x.shape
                yield (
                    f"max_pool2d-{name}",
                    LaidOut(MaxPool2d(windows), last, last * 2),
                    [where(pack(x, lanes))],
                )
                op = LaidOut(MaxPool2dBackward(windows, shape), last * 2, last)
                yield f"max_pool2d_backward-{name}", op, [where(pack(dy, lanes)), pack(at, lanes)]
                mean = AvgPool2d(windows, (1, 1), lanes == 3)
                yield f"avg_pool2d-{name}", LaidOut(mean, last, last), [where(pack(x, lanes))]
                op = LaidOut(AvgPool2dBackward(mean, shape), last, last)
                yield f"avg_pool2d_backward-{name}", op, [where(pack(dy, lanes))]
    for window, stride, pad in ((2, 2, 0), (3, 1, 1), (2, 3, 0), (3, 3, 1), (5, 2, 2), (7, 7, 0)):
        sizes, border = (window,) * 2, ((pad, pad),) * 2
        some = Pooling(sizes, (stride,) * 2, border)
        mean = AvgPool2d(some, (pad, pad), True)
        for channels, last in ((3, ()), (5, (5,)), (8, (8,))):
            x = special_pixels(F32, channels)
            dy, at = MaxPool2d(some).forward(x)
            lanes, name = (*last, 1)[0], f"{window}-{stride}-{channels}-{len(last)}-float32"
            back = MaxPool2dBackward(some, x.shape), AvgPool2dBackward(mean, x.shape)
            plain = (MaxPool2d(some), (x,)), (mean, (x,)), (back[0], (dy, at)), (back[1], (dy,))
            for i, (op, operands) in enumerate(plain):
                blocks = [pack(each, lanes) for each in operands]
                if last:
                    op = LaidOut(op, last * len(blocks), last * (1 + (i == 0)))
                yield f"{op.name}-windows-{name}", op, blocks
    yield "max_pool2d-wide", MaxPool2d(wide), [special_pixels(F32)]
    yield "avg_pool2d-special", AvgPool2d(windows, (1, 1), True), [special_pixels(F32)]
    for dtype in ("int8", "uint8", "int64"):
        x = RNG.integers(0, 100, (1, 2, 6, 6)).astype(dtype)
        yield f"max_pool2d-{dtype}", MaxPool2d(windows), [x]
    for n in (1, 3, 33, 1025, 5000):
        x = special_rows(9, n)
        labels = RNG.integers(0, n, 9)
        yield f"cross_entropy-rows-{n}", CrossEntropy(), [x, labels]
        dy = RNG.normal(size=(9, 1)).astype(F32)
        yield f"cross_entropy_backward-rows-{n}", CrossEntropyBackward(), [dy, x, labels]
        for dtype in (F32, F16, BFLOAT16, F64, "int8", "uint64", "bool"):
            y = x.clip(-1e4, 1e4) if dtype in TOLERANCE else RNG.integers(0, 3, x.shape)
            y = y.astype(dtype)
            yield f"argmax-rows-{n}-{dtype}", Argmax((1,)), [y]
            yield f"argmax-columns-{n}-{dtype}", Argmax((0,)), [np.ascontiguousarray(y.T)]
            if dtype != "bool":
                for reverse in (False, True):
                    op = CumulativeSum(1, reverse)
                    yield f"cumulative_sum-rows-{n}-{reverse}-{dtype}", op, [y]
                yield f"cumulative_product-rows-{n}-{dtype}", CumulativeProduct(1), [y]
            for reverse in (False, True) if dtype in TOLERANCE else ():
                f = RNG.uniform(-1, 1, y.shape).astype(dtype)
                yield f"recurrence-rows-{n}-{reverse}-{dtype}", Recurrence(1, reverse), [y, f]
    for name, axis in (("rows", 1), ("columns", 0)):
        bytes_ = RNG.choice(ANY_BYTE, (9, 40)).view(bool)
        yield f"argmax-{name}-any-byte", Argmax((axis,)), [bytes_]
    many = RNG.integers(-5, 5, 700)
    yield "take-many", Take(1), [RNG.normal(size=(2, 5, 300)).astype(F32), many]
    dy = RNG.integers(-9, 9, (2, 700, 300)).astype(F32)
    many8 = RNG.integers(0, 2, 9000).astype(np.int8)
    yield "take_backward-many", TakeBackward(1, (2, 5, 300)), [dy, many.astype(np.int8)]
    yield "take-tokens", Take(0, True), [dy[0, 0, :5], many % 5]
    yield "take_backward-tokens", TakeBackward(0, (5, 300), True), [dy[0], many % 5]
    yield "take_backward-to", TakeBackward(0, (5, 300)), [dy[0], many, dy[1, :5].copy()]
    yield "take_backward-of-few", TakeBackward(0, (2, 40)), [np.full((9000, 40), 0.1, F32), many8]
    rare = np.array([3, 3, 39])
    yield "take_backward-of-many", TakeBackward(0, (40, 300), True), [dy[0, :3].copy(), rare]
    long = np.full((9000, 2), 0.1, F32)
    zeros = np.zeros((9000, 2), np.int64)
    yield "add_along-of-few", AddAlong(0, 2), [long, zeros]
    yield "add_along-of-few-to", AddAlong(0, 2), [long, zeros, long[:2].copy()]
    overlapping = Pooling((1, 1200), (1, 1), ((0, 0), (600, 599)))
    row = np.full((1, 1, 1, 1600), 0.1, F32)
    for counted in (False, True):
        mean = AvgPool2d(overlapping, (0, 600), counted)
        yield f"avg_pool2d-long-{counted}", mean, [row]
        yield f"avg_pool2d_backward-long-{counted}", AvgPool2dBackward(mean, row.shape), [row]
    at = (800 - np.arange(1600) + 600).clip(0, 1199).astype(np.int32)[None, None, None]
    yield "max_pool2d_backward-long", MaxPool2dBackward(overlapping, row.shape), [row, at]
    squares = LocalResponseNorm(4000, 1e3, 0.75, 0.0)
    yield "local_response_norm-long", squares, [np.full((1, 4000, 1), 0.1, F32)]
    rows = np.broadcast_to(many[:400].reshape(2, 200, 1), (2, 200, 300)).copy()
    updates = [dy[:, :5].copy(), rows, dy[:, :200].copy()]
    yield "put_along-many", PutAlong(1), updates
    for descending in (False, True):
        x = RNG.integers(-9, 9, (3, 70, 2)).astype(F32)
        x.reshape(-1)[::7] = np.repeat([np.nan, np.inf, -np.inf, -0.0], 15)
        yield f"argsort-special-{descending}", Argsort(1, descending, 50), [x]
        row = np.sort(x[0, :, 0])
        yield f"searchsorted-special-{descending}", Searchsorted(descending), [row, x.reshape(-1)]
    yield "argsort-int8", Argsort(0, True, 90), [RNG.integers(-9, 9, 90).astype(np.int8)]
    yield "argsort-bool", Argsort(0, True, 40), [RNG.integers(0, 2, 40).astype(bool)]
    yield "one_hot-bfloat16", OneHot(7, BFLOAT16), [RNG.integers(0, 7, (3, 50))]


def node_of(op, xs):
    inputs = tuple(input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs))
    specs = op.infer(*(x.spec for x in inputs))
    return Node(op, inputs, specs if isinstance(specs, tuple) else (specs,))


def case_of(op, xs):
    """Return the node, its inputs and its kernel; None if there is none."""
    node = node_of(op, xs)
    if not all(s.size for s in (*(x.spec for x in node.inputs), *node.specs)):
        return None
    kernel = HANDWRITTEN[type(op)](op, node)
    return kernel and (node, xs, kernel)


KERNELS = {name: case_of(op, xs) for name, op, xs in cases()}
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(handwritten, "MAX_32_BIT_INDEX", 1)
    wide = {f"{name}-huge": case_of(op, xs) for name, op, xs in cases() if "-float32" in name}
KERNELS = {name: case for name, case in {**KERNELS, **wide}.items() if case}
SOURCES = list(dict.fromkeys(kernel.sources[0] for _, _, kernel in KERNELS.values()))


def run(library, node, xs, kernel, inplace=None):
    """Return the outputs of a kernel, and its flag."""
    rooms = [cuda_on_cpu.room(s.shape, s.dtype) for s in node.specs]
    outputs = [array for array, _ in rooms]
    if inplace is not None:
        outputs[0][...] = xs[inplace]
        xs = [outputs[0] if i == inplace else x for i, x in enumerate(xs)]
    flag = np.zeros(1, np.int32)
    places = [*outputs, flag] if kernel.range else outputs
    cuda_on_cpu.run(library, kernel.launches, xs, places)
    assert all(untouched() for _, untouched in rooms), "wrote beside its output"
    return outputs, int(flag[0])


def meaning(node, xs):
    """Return NumPy's results in float64, as its sums of float32 are less exact than ours."""
    wide = [x.astype(F64) if x.dtype in TOLERANCE else x for x in xs]
    with np.errstate(all="ignore"):
        results = node.op.forward(*wide)
        results = results if isinstance(results, tuple) else (results,)
        return [y.astype(s.dtype) for y, s in zip(results, node.specs, strict=True)]
