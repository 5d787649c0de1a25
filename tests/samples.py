"""Samples of all ops, on which the generic tests run.

An elementwise op needs nothing here.  Any other op needs a row in STRUCTURAL, one for each branch
of its code; a loop has one in LOOPS.
"""

import math

import numpy as np
from elementwise_samples import ELEMENTWISE, default_dtype, operands

from minigraph import ops
from minigraph.distributed import World
from minigraph.graph import BOOL, Constant, Copy, Graph, Spec, placeholders
from minigraph.ops import (
    activation,
    collective,
    conv,
    cumulative,
    indexing,
    interpolation,
    joining,
    loss,
    normalization,
    observation,
    ordering,
    pooling,
    reduction,
    shape,
    slicing,
    trigonometric,
)
from minigraph.ops.activation import Activated
from minigraph.ops.batch_norm import (
    BatchNorm,
    BatchNormBackward,
    BatchNormInference,
    BatchNormRelu,
    BatchNormReluBackward,
)
from minigraph.ops.custom_gradient import After, Recomputed, WithGradient
from minigraph.ops.layout import LaidOut, Reorder, pack
from minigraph.ops.matmul import Matmul, Vecdot
from minigraph.ops.scan import Scan
from minigraph.ops.softmax import LogSoftmax, Softmax


def real(*size, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, size)


def integer(*size, low=0, high=4, seed=0):
    return np.random.default_rng(seed).integers(low, high, size)


def distinct(*size):
    """Numbers that are far enough apart that no finite difference changes their order."""
    return np.random.default_rng(0).permutation(math.prod(size)).reshape(size) / 4


def conv_samples():
    """A convolution and its gradients for each branch: (suffix, op, x shape, w shape, bias)."""
    branches = [
        ("plain", conv.Conv2d(), (2, 3, 5, 4), (4, 3, 3, 2), False),
        ("bias", conv.Conv2d(), (2, 3, 5, 4), (4, 3, 3, 2), True),
        ("stride", conv.Conv2d(stride=(2, 3)), (2, 2, 6, 8), (3, 2, 3, 2), False),
        ("padding", conv.Conv2d(padding=(1, 2)), (1, 2, 4, 3), (3, 2, 3, 3), False),
        ("dilation", conv.Conv2d(dilation=(2, 3)), (1, 2, 6, 7), (3, 2, 3, 2), False),
        ("groups", conv.Conv2d(groups=2), (2, 4, 4, 4), (6, 2, 3, 3), True),
        ("depthwise", conv.Conv2d(groups=3, padding=(1, 1)), (1, 3, 4, 4), (3, 1, 3, 3), False),
        ("all", conv.Conv2d((2, 1), (1, 2), (1, 2), 2), (2, 4, 5, 6), (4, 2, 3, 3), True),
        ("empty", conv.Conv2d(), (0, 3, 5, 4), (4, 3, 3, 2), False),
    ]
    for suffix, op, x, w, bias in branches:
        y = op.forward(np.zeros(x), np.zeros(w)).shape
        yield f"conv2d-{suffix}", op, [real(*x), real(*w, seed=1), *[real(w[0])] * bias]
        if not bias:
            data = conv.Conv2dBackwardData(op, x)
            weights = conv.Conv2dBackwardWeights(op, w)
            yield f"conv2d_backward_data-{suffix}", data, [real(*y), real(*w, seed=1)]
            yield f"conv2d_backward_weights-{suffix}", weights, [real(*y), real(*x, seed=1)]


def pool_samples():
    """Max and average pooling and their gradients for each branch of where windows may lie."""
    branches = [
        ("plain", ((2, 2), (2, 2), ((0, 0), (0, 0))), (2, 2, 4, 6)),
        ("overlapping", ((3, 2), (1, 1), ((0, 0), (0, 0))), (1, 2, 5, 4)),
        ("gaps", ((1, 2), (2, 3), ((0, 0), (0, 0))), (1, 2, 5, 8)),
        ("padding", ((3, 3), (2, 2), ((1, 1), (1, 1))), (1, 2, 5, 6)),
        ("ceil", ((3, 3), (2, 2), ((1, 2), (1, 2))), (1, 2, 6, 6)),
        ("larger_than_the_image", ((3, 3), (2, 2), ((0, 1), (0, 1))), (1, 2, 2, 2)),
        ("empty", ((2, 2), (2, 2), ((0, 0), (0, 0))), (0, 2, 4, 4)),
    ]
    for suffix, fields, size in branches:
        pool = pooling.Pooling(*fields)
        y = pool.shape(size)
        at = pooling.MaxPool2d(pool).forward(distinct(*size))[1]
        yield f"max_pool2d-{suffix}", pooling.MaxPool2d(pool), [distinct(*size)]
        back = pooling.MaxPool2dBackward(pool, size)
        yield f"max_pool2d_backward-{suffix}", back, [real(*y), at]
        pad = (fields[2][0][0], fields[2][1][0])
        for count in (False, True) if any(pad) else (False,):
            mean = pooling.AvgPool2d(pool, pad, count)
            name = f"{suffix}-counting_padding" if count else suffix
            yield f"avg_pool2d-{name}", mean, [real(*size)]
            yield f"avg_pool2d_backward-{name}", pooling.AvgPool2dBackward(mean, size), [real(*y)]


def layout_samples():
    """Images in other layouts, and ops on them: blocked, nhwc, and nchw in and blocked out."""
    x = real(2, 4, 5, 6)
    for before, after in ((1, 2), (2, 1), (1, 4), (4, 2)):
        yield f"reorder-{before}-{after}", Reorder(after), [pack(x, before)]
    pool = pooling.Pooling((3, 3), (2, 2), ((1, 1), (1, 2)))
    y, at = pooling.MaxPool2d(pool).forward(distinct(*x.shape))
    w, bias = real(6, 4, 3, 2, seed=1), real(6, seed=2)
    convolution = conv.Conv2d(stride=(2, 1), padding=(1, 0))
    mean = pooling.AvgPool2d(pool, (1, 1), True)
    dy = convolution.forward(x, w)
    for suffix, i, o in (("blocked", 2, 2), ("channels", 4, 6), ("from_nchw", 1, 2)):
        for plain, xs, ins, outs in (
            (convolution, [x, w], (i, 1), (o,)),
            (convolution, [x, w, bias], (i, 1, 1), (o,)),
            (conv.Conv2dBackwardData(convolution, x.shape), [dy, w], (o, 1), (i,)),
            (conv.Conv2dBackwardWeights(convolution, w.shape), [dy, x], (o, i), (1,)),
        ):
            name = f"laid_out-{plain.name}-{len(xs)}-{suffix}"
            yield name, LaidOut(plain, ins, outs), list(map(pack, xs, ins))
    for lanes in (2, 4):
        for plain, xs, outs in (
            (pooling.MaxPool2d(pool), [distinct(*x.shape)], 2),
            (pooling.MaxPool2dBackward(pool, x.shape), [real(*y.shape, seed=1), at], 1),
            (mean, [x], 1),
            (pooling.AvgPool2dBackward(mean, x.shape), [real(*y.shape, seed=1)], 1),
        ):
            op = LaidOut(plain, (lanes,) * len(xs), (lanes,) * outs)
            yield f"laid_out-{plain.name}-{lanes}", op, [pack(v, lanes) for v in xs]


def norm_samples():
    sizes = [
        ("images", (2, 3, 4, 2), (3,)),
        ("rows", (5, 3), (3,)),
        ("lanes", (2, 3, 4, 2, 2), (3, 2)),
    ]
    for suffix, size, channels in sizes:
        vectors = [real(*channels, low=0.5, seed=seed) for seed in (1, 2, 3)]
        x, dy, var = real(*size), real(*size, seed=4), real(*channels, low=0.5, seed=5)
        yield f"batch_norm-{suffix}", BatchNorm(1e-3), [x, *vectors[:2]]
        back = BatchNormBackward(1e-3)
        yield f"batch_norm_backward-{suffix}", back, [dy, x, *vectors[:2], var]
        for name, more in (("", []), ("-residual", [real(*size, seed=6)])):
            fused = BatchNormRelu(1e-3, bool(more))
            yield f"batch_norm_relu-{suffix}{name}", fused, [x, *vectors[:2], *more]
            back = BatchNormReluBackward(1e-3, bool(more))
            y = real(*size, seed=7)  # a relu's result has zeros, where it has no derivative
            yield f"batch_norm_relu_backward-{suffix}{name}", back, [dy, y, x, *vectors[:2], var]
        inference = BatchNormInference(1e-3)
        yield f"batch_norm_inference-{suffix}", inference, [x, *vectors, var]
    for size in (1, 2, 3, 9):
        norm = normalization.LocalResponseNorm(size, 0.5, 0.75, 1.5)
        yield f"local_response_norm-{size}", norm, [real(2, 5, 3, 2)]
    for name, op in (("softmax", Softmax), ("log_softmax", LogSoftmax)):
        for axis in (0, 1, 2):
            yield f"{name}-{axis}", op(axis), [real(2, 3, 4)]
        yield f"{name}-empty", op(0), [real(0, 3)]
    for axis in (0, 1, 2):
        yield f"vecdot-{axis}", Vecdot(axis), [real(2, 3, 4), real(2, 3, 4, seed=1)]
    hidden = np.where(np.arange(4) < [[4], [2], [0]], real(2, 3, 4), -np.inf)
    yield "softmax-masked", Softmax(2, masked=True), [hidden]


def reduction_samples():
    for op in (reduction.Sum, reduction.Prod, reduction.Max, reduction.Min):
        for axes in ((), (0,), (1,), (0, 2), (0, 1, 2)):
            suffix = ",".join(map(str, axes)) or "none"
            yield f"{op.name}-{suffix}", op(axes), [distinct(2, 3, 4) + 0.5]
        yield f"{op.name}-scalar", op(()), [real()]
    for axis in (0, 1, 2):
        yield f"argmax-{axis}", reduction.Argmax((axis,)), [distinct(2, 3, 4)]
    for op in (reduction.Sum, reduction.Prod):
        yield f"{op.name}-empty", op((1,)), [real(2, 0, 3)]
        for dtype in ("bool", "int8", "uint16"):
            yield f"{op.name}-{dtype}", op((0,)), [integer(3, 2).astype(dtype)]


def shape_samples():
    yield "reshape", shape.Reshape((2, 1, 6)), [real(3, 4)]
    yield "reshape-scalar", shape.Reshape(()), [real(1, 1)]
    yield "permute_dims", shape.PermuteDims((2, 0, 1)), [real(2, 3, 4)]
    yield "broadcast_to", shape.BroadcastTo((5, 3, 4)), [real(3, 1)]
    yield "broadcast_to-scalar", shape.BroadcastTo((2, 3)), [real()]
    yield "slice", slicing.Slice((1, 0), (3, 4), (1, 1)), [real(4, 4)]
    yield "slice-steps", slicing.Slice((0, 1), (5, 6), (2, 3)), [real(5, 7)]
    yield "slice-empty", slicing.Slice((0, 2), (3, 2), (1, 1)), [real(3, 4)]
    yield "flip", slicing.Flip((0, 2)), [real(2, 3, 4)]
    yield "pad", slicing.Pad((1, 0), (2, 3), (0, 0), 0.5), [real(2, 3)]
    yield "pad-interior", slicing.Pad((1, 0), (0, 2), (2, 1)), [real(2, 3)]
    yield "pad-empty", slicing.Pad((1, 1), (1, 1), (2, 0)), [real(0, 3)]
    yield "concat", joining.Concat(1), [real(2, 3), real(2, 1, seed=1), real(2, 0)]
    yield "concat-one", joining.Concat(0), [real(2, 3)]
    yield "stop_gradient", shape.StopGradient(), [real(2, 3)]
    yield "copy", Copy(), [real(2, 3)]


def other_samples():
    at = integer(2, 5, low=-3, high=3)
    for axis, size in ((0, (3, 2)), (1, (2, 3, 2)), (2, (2, 2, 3))):
        result = (*size[:axis], *at.shape, *size[axis + 1 :])
        yield f"take-{axis}", indexing.Take(axis), [real(*size), at]
        dy = real(*result)
        yield f"take_backward-{axis}", indexing.TakeBackward(axis, size), [dy, at]
        yield f"take_backward-{axis}-to", indexing.TakeBackward(axis, size), [dy, at, real(*size)]
    tokens = integer(2, 5, low=0, high=3)
    yield "take-tokens", indexing.Take(0, True), [real(3, 2), tokens]
    yield "take_backward-tokens", indexing.TakeBackward(0, (3, 2), True), [real(2, 5, 2), tokens]
    for axis, size in ((0, (3, 2)), (1, (2, 3)), (1, (2, 3, 2))):
        rows = integer(*(4 if a == axis else n for a, n in enumerate(size)), low=-3, high=3)
        name = f"{axis}-{len(size)}"
        yield f"take_along-{name}", indexing.TakeAlong(axis), [real(*size), rows]
        v = real(*rows.shape)
        yield f"add_along-{name}", indexing.AddAlong(axis, 3), [v, rows]
        yield f"add_along-{name}-to", indexing.AddAlong(axis, 3), [v, rows, real(*size)]
        put = [real(*size), rows, real(*rows.shape, seed=1)]
        yield f"put_along-{name}", indexing.PutAlong(axis), put
    label = integer(2, 1, 4, high=3)
    yield "take_along-labels", indexing.TakeAlong(1, labels=True), [real(2, 3, 4), label]
    yield "add_along-labels", indexing.AddAlong(1, 3, labels=True), [real(2, 1, 4), label]
    for axis in (0, 1, 2):
        for reverse in (False, True):
            op = cumulative.CumulativeSum(axis, reverse)
            yield f"cumulative_sum-{axis}-{reverse}", op, [real(3, 4, 2)]
            factors = real(3, 4, 2, seed=1)
            op = cumulative.Recurrence(axis, reverse)
            yield f"recurrence-{axis}-{reverse}", op, [real(3, 4, 2), factors]
        yield f"cumulative_product-{axis}", cumulative.CumulativeProduct(axis), [real(3, 4, 2)]
    whole = integer(3, 40, low=-9, high=9).astype(np.int8)
    yield "cumulative_sum-int8", cumulative.CumulativeSum(1), [whole]
    yield "cumulative_product-int8", cumulative.CumulativeProduct(1), [whole]
    for axis, descending, count in ((0, False, 3), (1, True, 4), (1, False, 2), (2, True, 1)):
        op = ordering.Argsort(axis, descending, count)
        yield f"argsort-{axis}-{count}", op, [distinct(3, 4, 2)]
    row, rows = np.arange(9.0) - 4, np.sort(real(2, 5))
    yield "searchsorted", ordering.Searchsorted(False), [row, distinct(7)]
    yield "searchsorted-rows", ordering.Searchsorted(True), [rows, real(2, 3, seed=1)]
    low, high = np.array([0, 0, 1, 2, 2], np.int32), np.array([1, 0, 2, 2, 0], np.int32)
    share = np.array([0.25, 0, 0.5, 1, 0.75])
    for axis, size, result in ((0, (3,), (5,)), (1, (2, 3), (2, 5)), (1, (2, 3, 4), (2, 5, 4))):
        of = f"{axis}-{len(size)}"
        yield f"blend-{of}", interpolation.Blend(axis), [real(*size), low, high, share]
        back = interpolation.BlendBackward(axis, 3)
        yield f"blend_backward-{of}", back, [real(*result), low, high, share]
    yield "take-scalar", indexing.Take(0), [real(3, 2), np.array(-1)]
    yield "one_hot", indexing.OneHot(4, np.dtype(np.float32)), [integer(2, 3)]
    yield "one_hot-bool", indexing.OneHot(4, BOOL), [integer(2, 3).astype(np.uint8)]
    for labels in (integer(3), integer(2, 3).astype(np.uint8)):
        logits, dy = real(*labels.shape, 4), real(*labels.shape, 1, seed=1)
        yield f"cross_entropy-{labels.ndim}", loss.CrossEntropy(), [logits, labels]
        back = loss.CrossEntropyBackward()
        yield f"cross_entropy_backward-{labels.ndim}", back, [dy, logits, labels]
    yield "matmul", Matmul(), [real(2, 3), real(3, 4, seed=1)]
    yield "matmul-batched", Matmul(), [real(2, 1, 2, 3), real(5, 3, 4, seed=1)]
    yield "matmul-empty", Matmul(), [real(2, 0), real(0, 4)]
    yield "matmul-bias", Matmul(), [real(2, 3), real(3, 4, seed=1), real(4, seed=2)]
    batches = [real(2, 1, 2, 3), real(5, 3, 4, seed=1), real(4, seed=2)]
    yield "matmul-batched-bias", Matmul(), batches
    yield "activated-matmul", Activated(Matmul(), trigonometric.Tanh()), batches
    convolution = Activated(conv.Conv2d(padding=(1, 0)), activation.Sigmoid())
    yield "activated-conv2d", convolution, [real(2, 3, 4, 5), real(4, 3, 3, 2, seed=1)]
    yield "constant", Constant(real(2, 3)), []
    alone = World()  # processes of their own test what several do
    for how in ("sum", "max"):
        yield f"all_reduce-{how}", collective.AllReduce(alone, how), [real(2, 3)]
    yield "broadcast", collective.Broadcast(alone, 0), [real(2, 3)]
    yield "reduce", collective.Reduce(alone, 0), [real(2, 3)]
    yield "all_gather", collective.AllGather(alone), [real(2, 3)]
    yield "reduce_scatter", collective.ReduceScatter(alone), [real(2, 3)]
    yield "check", observation.Check("holds"), [real(2, 3), np.ones((4,), bool)]
    yield "print", observation.Print("x"), [real(2, 3), np.array(7, np.uint64)]


def scan_samples():
    """Loops forwards and backwards, with and without carries, results, slices and constants."""

    def body(h, x, w):
        h = ops.tanh(ops.matmul(h, w) + x)
        return h, h * x

    x, h, w = real(4, 2, 3), real(2, 3, seed=1), real(3, 3, seed=2)
    yield "scan", loop(body, 1, 1, 4, False, h, x, w), [h, x, w]
    yield "scan-reverse", loop(body, 1, 1, 4, True, h, x, w), [h, x, w]
    yield "scan-empty", loop(body, 1, 1, 0, False, h, x[:0], w), [h, x[:0], w]
    yield "scan-carry", loop(lambda h, w: (h * w,), 1, 0, 3, False, w, w), [w, w]
    yield "scan-results", loop(lambda x, h: (x + h,), 0, 1, 4, False, x, h), [x, h]
    dy, kept = placeholders([Spec(h.shape, h.dtype)] * 2)
    yield "with_gradient", WithGradient(Graph((dy, kept), (dy * kept,))), [h, h, x[0]]
    yield "recomputed", Recomputed(Graph((kept,), (kept * kept,))), [h * h, h]
    yield "after", After(), [h, x]


def loop(body, carried, scanned, length, reverse, *xs):
    """The op for a body that takes and returns a flat list."""
    specs = [Spec(x.shape[carried <= i < carried + scanned :], x.dtype) for i, x in enumerate(xs)]
    inputs = placeholders(specs)
    return Scan(Graph(inputs, body(*inputs)), carried, scanned, length, reverse)


STRUCTURAL = {
    name: (op, xs)
    for samples in (
        conv_samples,
        pool_samples,
        layout_samples,
        norm_samples,
        reduction_samples,
        shape_samples,
        other_samples,
    )
    for name, op, xs in samples()
}
LOOPS = {name: (op, xs) for name, op, xs in scan_samples()}  # whose bodies take one dtype
SAMPLES = {
    **{name: (op, operands(op, default_dtype(op))) for name, op in ELEMENTWISE.items()},
    **STRUCTURAL,
    **LOOPS,
}
