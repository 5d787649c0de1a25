"""Numbers: random graphs, kernels and convolutions, compared with NumPy on memory with fences."""

import random
from collections import Counter

import numpy as np
from meaning import Meaning
from random_graphs import RandomGraph
from random_graphs import draw as numbers

import minigraph as mg
from attacks import fences
from minigraph import ops, optim
from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.errors import GraphError
from minigraph.graph import Spec
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import Reorder
from minigraph.ops.matmul import Matmul

LEVELS = (0, 1, 2, 3, -1, -2, -3)
FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")


def random_options(draw):
    """Return options for the device "cpu"."""
    options = {"graph_opt_level": draw.choice(LEVELS), "num_threads": draw.choice((1, 2, 3))}
    if draw.random() < 0.3:
        options["bulk"] = False
    if options["graph_opt_level"] >= 0 and draw.random() < 0.3:
        options["graph_opt.jit"] = draw.choice((0, 1, 2))
    return options


def graphs(seed, count=12):
    """Compute random graphs of all dtypes in one function."""
    draw = random.Random(seed)
    options = random_options(draw)
    random_graphs = [RandomGraph(seed * count + i, draw.choice(FLOATS)) for i in range(count)]
    meaning = Meaning(random_graphs)
    step = meaning.compiled("cpu", options)
    meaning.check(meaning.call(step, fences.call), f"on the CPU with {options}")
    return Counter({"graphs": count, "steps": len(step.report().steps)})


# ---------------------------------------------------------------- kernels


def size(draw):
    """Return the length of an axis: small, about the width of a vector, or rarely long."""
    lengths = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)
    return draw.choice((255, 256, 1025, 3000)) if draw.random() < 0.06 else draw.choice(lengths)


def image(draw):
    """Return the shape of a few images."""
    return draw.randint(1, 3), draw.choice((1, 3, 8, 16, 20, 32)), draw.randint(2, 20), size(draw)


def window(draw, shape):
    """Return window, stride and padding of a pooling for images of this shape."""
    sides = [draw.randint(1, min(5, n)) for n in shape[2:]]
    steps = [draw.randint(1, 4) for _ in sides]
    return tuple(sides), tuple(steps), tuple(draw.randint(0, n // 2) for n in sides)


def kernel_graphs(draw, dtype):
    """Yield inputs, each with an expression of it that kernels of C compute."""

    def new(*shape, kind=dtype):
        return mg.input(f"x{draw.getrandbits(48)}", shape, kind)

    x = new(size(draw), size(draw))
    axis = draw.choice((0, 1, -1))
    yield x, ops.softmax(x, axis)
    yield x, ops.log_softmax(x, axis)
    yield x, ops.layer_norm(x, x.shape[-1:])
    yield x, ops.logsumexp(x, axis)
    x = new(draw.randint(1, 4), size(draw), size(draw))
    yield x, draw.choice((ops.sum, ops.mean, ops.max, ops.min))(x, draw.choice((0, 1, 2, (0, 2))))
    yield x, ops.tanh(x) * ops.exp(-ops.square(x)) + ops.var(x, (0, 2), keepdims=True)
    yield x, ops.argmax(x, draw.choice((0, 1, 2))).astype("float32")
    yield x, ops.concat([ops.flip(x, 2), x * 2], draw.choice((0, 1, 2)))
    x = new(*image(draw))
    yield x, ops.relu(ops.batch_norm_with_statistics(x)[0])
    yield x, ops.local_response_norm(x, draw.randint(1, 5))
    yield x, ops.max_pool2d(x, *window(draw, x.shape))
    yield x, ops.avg_pool2d(x, *window(draw, x.shape))
    x, labels = new(size(draw), size(draw)), new(size(draw), kind="int64")
    rows = np.arange(x.shape[0]) % x.shape[1]
    yield x, ops.cross_entropy(x, rows)
    yield labels, ops.one_hot(labels % 7, 7)
    yield x, ops.dropout(ops.take(x, np.arange(x.shape[0])[::-1].copy(), 0), 0.5)


def kernels(seed):
    """Compute many kinds of kernels, with gradients and an optimizer's step, on odd shapes."""
    draw = random.Random(seed)
    options = random_options(draw)
    dtype = draw.choice(("float32", "float32", "float64"))
    inputs, outputs, parameters, losses = [], [], [], []
    for x, y in kernel_graphs(draw, dtype):
        inputs.append(x)
        outputs.append(y)
        if x.dtype == dtype and y.dtype == dtype:
            outputs.append(mg.grad((y * y).sum(), [x])[0])
            weights = mg.Parameter(np.full(x.shape[-1:], 0.5, dtype), f"w{len(outputs)}")
            parameters.append(weights)
            losses.append((x * weights).mean())
    updates = draw.choice((optim.Adam, optim.SGD))(parameters, 0.1).minimize(sum(losses))
    inputs = [*dict.fromkeys(inputs)]
    function = mg.comp_graph("cpu", options).compile(inputs, outputs, updates)
    values = draw.choice(("real", "real", "grid", "special"))
    arrays = [numbers(x.shape, str(x.dtype), values, seed + i) for i, x in enumerate(inputs)]
    fences.call(function, arrays, at_end=draw.random() < 0.7)
    steps = function.report().steps
    return Counter({"functions": 1, "steps": len(steps)})


# ---------------------------------------------------------------- candidates


def convolution(draw):
    """Return the nodes of a random convolution and of its two gradients."""
    winograd = draw.random() < 0.5  # whether Winograd's algorithm applies
    blocks = onednn.block(), 2 * onednn.block(), 3 * onednn.block()
    groups = 1 if winograd else draw.choice((1, 1, 1, 2, 4))
    per_group = [draw.choice(blocks if winograd else (1, 3, 4, 5, 8, 16)) for _ in range(2)]
    ins, outs = (n * groups for n in per_group)
    side = (3, 3) if winograd else draw.choice(((3, 3), (1, 1), (5, 5), (2, 3), (7, 7)))
    stride = (1, 1) if winograd else (draw.randint(1, 4), draw.randint(1, 3))
    dilation = (1, 1) if winograd or draw.random() < 0.6 else (draw.randint(1, 3), 1)
    extents = [(n - 1) * d + 1 for n, d in zip(side, dilation, strict=True)]
    padding = tuple(draw.randint(0, n // 2 + (draw.random() < 0.1)) for n in extents)
    minimum = [max(n - 2 * p, 1) for n, p in zip(extents, padding, strict=True)]
    height, width = (n + draw.randint(0, 19) for n in minimum)
    op = Conv2d(stride, padding, dilation, groups)
    x = mg.input("x", (draw.randint(1, 3), ins, height, width))
    w = mg.input("w", (outs, per_group[0], *side))
    y = op(x, w)
    dy = mg.input("dy", y.shape)
    back = Conv2dBackwardData(op, x.shape)(dy, w), Conv2dBackwardWeights(op, w.shape)(dy, x)
    bias = mg.input("bias", (outs,))
    return [op(x, w, bias) if draw.random() < 0.5 else y, *back]


def other_problems(draw):
    """Return the nodes of a product of matrices and of a reorder of images."""
    m, k, n = (size(draw) for _ in range(3))
    yield Matmul()(mg.input("x", (m, k)), mg.input("y", (k, n)))
    channels = draw.choice((8, 16, 20, 32))
    x = mg.input("x", (draw.randint(1, 3), channels, draw.randint(1, 9), draw.randint(1, 9)))
    yield Reorder(channels)(x)


def candidates(seed):
    """Run every candidate of a convolution, of its gradients, and of a product."""
    draw = random.Random(seed)
    threads = draw.choice((1, 2, 3))
    counts = Counter()
    for node in (*convolution(draw), *other_problems(draw)):
        strides = [x.spec.strides for x in node.inputs]
        tunable = CpuProblems(threads, on_disk=True).tunable(node, strides)
        if tunable is None:
            continue
        counts["problems"] += 1
        values = draw.choice(("real", "grid"))
        xs = [
            numbers(spec.shape, "float32", values, seed + i)
            for i, spec in enumerate(tunable.problem.inputs)
        ]
        if draw.random() < 0.3:
            x = draw.choice(xs)
            x[tuple(draw.randrange(n) for n in x.shape)] = draw.choice((np.nan, np.inf, -np.inf))
        for candidate in tunable.problem.candidates():
            counts[run(tunable.problem, candidate, xs)] += 1
    return counts


def run(problem, candidate, xs):
    """Run a candidate on memory with fences and compare; return the name of its count."""
    try:
        kernel = candidate.kernel
        execute = problem.workbench.runner(kernel)
    except GraphError:
        return "candidates that the library lacks"
    expected = problem.meaning(*(x.astype(np.float64) for x in xs))
    layouts = iter(candidate.layouts)
    inputs = [fences.copied(problem.to_layout(x, next(layouts)), 64) for x in xs]
    expected = [problem.to_layout(y, layout) for y, layout in zip(expected, layouts, strict=True)]
    outputs = [fences.empty(Spec(y.shape, np.dtype(np.float32))) for y in expected]
    scratch = fences.empty(Spec((kernel.scratch,), np.dtype(np.uint8)))
    execute(inputs, outputs, scratch)
    title = f"{candidate.name} in {', '.join(map(str, candidate.layouts))} of {problem.subject}"
    for y, reference in zip(outputs, expected, strict=True):
        finite = np.isfinite(reference)
        np.testing.assert_array_equal(y[~finite], reference[~finite], title)
        assert np.isfinite(y[finite]).all(), (
            f"{title}: NaN or infinity where the reference is finite"
        )
        scale = np.abs(reference[finite]).max(initial=1e-30)
        far = np.abs(y[finite] - reference[finite]).max(initial=0) / scale
        assert far < 1e-4, f"{title}: off by {far:.3g} of the largest result"
    return "candidates"
