"""Generated CUDA kernels with operands, for tests on the CPU and on a GPU."""

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest
from cuda_case import Case, aligned, array
from elementwise_samples import ELEMENTWISE, accepts, c_operands, draw, is_random, operand_dtypes
from samples import STRUCTURAL

import minigraph as mg
from minigraph import ops, optim
from minigraph.graph import Copy, Graph, Input, compute, toposort
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.arithmetic import Add
from minigraph.ops.elementwise import Astype
from minigraph.ops.reduction import Max, Min, Prod, Sum
from minigraph.ops.softmax import LogSoftmax, Softmax
from minigraph.passes.kernels.horizontal_fusion import HorizontalFusionLimits
from minigraph.passes.levels import optimize, pipeline

F32, BF16 = np.dtype("float32"), np.dtype(ml_dtypes.bfloat16)
CHANGES = {  # of a limit, with which the cases of a group are made
    "one block": ("minigraph.devices.cuda.generated.MIN_GROUPS", 1 << 30),
    "large": ("minigraph.jit.cuda.thread_mapping.IN_32_BITS", 0),
}
CASES = {}  # functions by name; each makes its cases, which takes long for all of them


def case(group, name, *args):
    CASES[f"{group}: {name}"] = lambda: [Case(*args)]


@functools.cache
def cases(name):
    """Return the cases that have a name: one, or each kernel of a graph."""
    with pytest.MonkeyPatch.context() as patch:
        if change := CHANGES.get(name.partition(":")[0]):
            patch.setattr(*change)
        return list(CASES[name]())


def every_case(names=CASES):
    return itertools.chain.from_iterable(map(cases, names))


def of(*groups):
    """Run a test on each name of some groups."""
    names = [name for name in CASES if name.partition(":")[0] in groups]
    return pytest.mark.parametrize("name", names)


# ---------------------------------------------------------------- single ops


for (name, op), dtype in itertools.product(
    ELEMENTWISE.items(), ("float32", "float64", "int64", "uint8", "bool")
):
    if accepts(op, np.dtype(dtype)) and not is_random(op):
        case("elementwise", f"{name} {dtype}", op, *c_operands(op, np.dtype(dtype)))
for name, op in ELEMENTWISE.items():
    if is_random(op):
        numbers = [np.array(v, np.uint64) for v in (2**40 + 7, 2**33 + 5, 3)]
        group = "random" if op.name == "random_uniform" else "elementwise"
        case(group, name, op, *numbers)
        case(group, f"{name} of odd length", type(op)((5, 333), op.dtype), *numbers)
for dtype, names in ((BF16, ELEMENTWISE), (np.dtype("float16"), ("add", "exp", "where"))):
    case("sixteen bits", f"to {dtype}", Astype(dtype), array(1000))
    for name in names:
        if accepts(op := ELEMENTWISE[name], dtype):
            dtypes = operand_dtypes(op, dtype)
            xs = [draw(d, (3, 77), *op.domain, seed) for seed, d in enumerate(dtypes)]
            case("sixteen bits", f"{name} {dtype}", op, *xs)
for name, (op, xs) in STRUCTURAL.items():
    small = [x.astype(F32) if x.dtype == np.float64 else x for x in xs]
    found = Case(op, *small)
    if found.kernel is not None:
        CASES[f"structural: {name}"] = lambda found=found: [found]


# ---------------------------------------------------------------- how operands lie in memory


SHAPES = {
    "equal": ((3, 4, 5), (3, 4, 5)),
    "scalar": ((3, 4, 5), ()),
    "row": ((3, 4, 5), (5,)),
    "column": ((3, 4, 8), (4, 1)),
    "channel": ((2, 3, 4, 4), (3, 1, 1)),
    "outer product": ((7, 1), (1, 9)),
    "both repeated": ((2, 1, 5, 1), (3, 1, 4)),
    "one element": ((1, 1), (1,)),
    "many blocks": ((40, 1001), (1001,)),
}
VIEWS = {
    "transposed": lambda x: x.transpose(2, 0, 1),
    "steps": lambda x: x[:, ::2, 1::3],
    "reversed": lambda x: x[::-1, :, ::-1],
    "one column": lambda x: x[:, :, 1:2],
    "columns": lambda x: x[:, :, 4:8],
    "columns that begin between vectors": lambda x: x[:, :, 1:5],
    "rows": lambda x: x[:, 1:4],
    "new axes": lambda x: x[None, :, None],
}
for name, shapes in SHAPES.items():
    case("memory", name, Add(), *(aligned(array(*s, seed=i)) for i, s in enumerate(shapes)))
for (name, view), dtype in itertools.product(VIEWS.items(), ("float32", "float64", "int8")):
    x = view(aligned(array(4, 6, 8, dtype=dtype)))
    case("memory", f"{name} {dtype}", Add(), x, array(*x.shape, dtype=dtype, seed=1))
    case("memory", f"{name} {dtype} copied", Copy(), x)
    case("memory", f"{name} {dtype} summed over rows", Sum((0,)), x)
    case("memory", f"{name} {dtype} summed over columns", Sum((x.ndim - 1,)), x)
for shape, axes in (((192, 256), (1, 0)), ((8, 32, 8, 16), (3, 2, 1, 0))):
    x = aligned(array(*shape)).transpose(axes)
    case("memory", f"tiles of {shape}", Add(), x, array(*x.shape, seed=1))


# ---------------------------------------------------------------- reductions


AXES = [axes for n in (1, 2, 3, 4) for axes in itertools.combinations(range(4), n)]
for axes in AXES:
    x = aligned(array(3, 5, 4, 70))
    case("reduction", f"{axes}", Sum(axes), x)
    case("reduction", f"{axes} transposed", Sum(axes), x.transpose(3, 1, 0, 2))
for op, dtype in itertools.product(
    (Sum, Prod, Max, Min), ("float64", "float16", "int8", "int32", "uint8", "bool")
):
    for axis in (0, 1):
        case("reduction", f"{op.name} {dtype} {axis}", op((axis,)), array(6, 67, dtype=dtype))
any_byte = np.random.default_rng(0).choice(np.array([0, 1, 2, 255], np.uint8), (6, 67)).view(bool)
case("memory", "any byte of bools", Add(), any_byte, any_byte[::-1].copy())
case("memory", "any byte of bools cast", Astype(F32), any_byte)
for size in ((6, 67), (40, 256)):
    turned = array(*size)[:, ::-1]
    case("memory", f"backwards {size}", Add(), turned, array(*size))
    for axis in (0, 1):
        case("memory", f"backwards {size} sum {axis}", Sum((axis,)), turned)
for op, axis in itertools.product((Sum, Max, Min), (0, 1)):
    case("reduction", f"{op.name} of bools of any byte {axis}", op((axis,)), any_byte)
LONG = [
    *[((200_001,), (0,)), ((2, 90_001), (1,)), ((40_000, 3), (0,)), ((30_000, 7, 2), (0, 2))],
    *[((9, 9001), (0,)), ((5000, 130), (0,)), ((1000, 33), (1,)), ((3, 64, 1024), (0, 2))],
]
for (shape, axes), op in itertools.product(LONG, (Sum, Max)):
    case("reduction", f"{op.name} of {shape} over {axes}", op(axes), aligned(array(*shape)))
for op, place in itertools.product((Sum, Max, Min), (0, 33, 99)):
    for value in (np.nan, np.inf, -np.inf):
        x = array(100, 3)
        x[place, 1] = value
        for axis, v in enumerate((x, x.T.copy())):
            case("reduction", f"{op.name} of {value} at {place}, {axis}", op((axis,)), v)
for n in (1, 3, 33, 1025, 5000):
    x = array(9, n)
    for i, value in enumerate((np.nan, np.inf, -np.inf, 1e30)):
        x[i, i % n] = value
    x[4] = -np.inf
    hidden = np.where(np.arange(9)[:, None] % 2, x, -np.inf).astype(F32)
    for axis in (0, 1):
        v, masked = ((y if axis else y.T.copy()) for y in (x, hidden))
        case("softmax", f"{n} {axis}", Softmax(axis), v)
        case("softmax", f"masked {n} {axis}", Softmax(axis, masked=True), masked)
        case("softmax", f"log {n} {axis}", LogSoftmax(axis), v)
MILLION = np.random.default_rng(0).random(1 << 20, dtype=np.float32)
for size, shape in itertools.product((1 << 12, 1 << 20), ((-1,), (-1, 8), (64, -1))):
    x = aligned(MILLION[:size].reshape(shape))
    case("accuracy", f"{x.shape}", Sum((0,) if shape != (64, -1) else (1,)), x)


LARGE_FIRST = np.ones(1 << 22, F32)  # beside which floats lose the others, one by one
LARGE_FIRST[0] = 1 << 24
case("one block", "sum", Sum((0,)), aligned(LARGE_FIRST))
for dtype in ("float32", "bfloat16"):
    x = aligned(array(6, 7, 136, dtype=dtype))
    case("large", f"map {dtype}", Add(), x, array(6, 1, 136, dtype=dtype, seed=1))
    case("large", f"down columns {dtype}", Add(), x, aligned(array(136, dtype=dtype, seed=1)))
    case("large", f"transposed {dtype}", Copy(), x.transpose(2, 0, 1))
    for axes in ((0, 2), (0, 1), (1,)):
        case("large", f"sum {dtype} {axes}", Sum(axes), x)


# ---------------------------------------------------------------- several ops in one kernel


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, -2.5]


def by_hand(x, axis):
    e = ops.exp(x - ops.max(x, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def batch_norm(x):
    channels = x.shape[1]
    running = [np.zeros(channels, F32), np.ones(channels, F32)]
    weights = [mg.input(name, (channels,)) for name in ("weight", "bias")]
    y = ops.relu(ops.batch_norm(x, *running, *weights, training=True))
    return (y, *mg.grad((y * y).sum(), [x, *weights]))


def layer_norm(x):
    y = ops.layer_norm(x, x.shape[1:])
    return y, *mg.grad((y * y * y).sum(), [x])


def long_chain(x):
    for i in range(6):
        x = ops.tanh(x * (i + 0.5) + 1)
    return x


def borders(x):
    half = ops.pad(x.astype("float16") * 3, ((1, 0), (0, 0)), 2) + 1
    joined = ops.concat([x, x * 2], 0)
    return ops.pad(x[:, 1:] * 2, ((2, 0), (0, 1)), 7) * 3, half, joined + 1, joined.sum(1) + 1


FUNCTIONS = {
    "chain": long_chain,
    "several results": lambda x: (ops.exp(x), ops.exp(x) * x + 1, (ops.exp(x) * x).sum(1)),
    "softmax": lambda x: by_hand(x, 1) * 2,
    "softmax of columns": lambda x: by_hand(x, 0) + 1,
    "logsumexp": lambda x: ops.logsumexp(x, 1) - 1,
    "layer norm": layer_norm,
    "variance": lambda x: (ops.var(x, 1) + 1, ops.var(x) + 1),
    "columns": lambda x: ((x * x).sum(0) * 2 + 1, x.max(0) - x.min(0)),
    "outer sum": lambda x: x.mean(1, keepdims=True) * 2 + ops.abs(x),
    "dropout": lambda x: ops.dropout(x, 0.5) * 2 + 1,
    "float16": lambda x: (x.astype("float16") * 3 + x.astype("float16")).astype("float32") + x,
    "bool": lambda x: ops.where(x * 2 > 0.5, x, 0) + 1,
    "borders": borders,
}
ELEMENTWISE_ONLY = ("chain", "dropout", "float16", "bool")  # rows make no difference to these
ROWS = [(1, 31), (5, 33), (3, 4097), (40, 1000), (9, 80_000), (700, 2)]
IMAGES = [(2, 8, 5, 5), (16, 8, 64, 64), (2, 3, 7, 9)]


LIMITS = HorizontalFusionLimits(8 << 20, 512 << 20)


def units(ys, value=None, amp="off"):
    """Return each generated kernel of a graph at level 3, with the values of its inputs."""
    inputs = tuple(x for x in toposort(ys) if isinstance(x.op, Input))
    before = Graph(inputs, tuple(ys))
    graph = optimize(before, pipeline(3, False, 2, amp=amp, horizontal_fusion=LIMITS))[-1][0]
    values = {x: x.numpy() for x in graph if isinstance(x, mg.Parameter)}
    for i, x in enumerate(graph.inputs):
        is_value = value is not None and x.shape == value.shape
        values[x] = value if is_value else array(*x.shape, dtype=x.dtype, seed=i)
    for node in graph:
        if node in values:
            continue
        xs = [values[x] for x in node.inputs]
        with np.errstate(all="ignore"):
            values[node] = compute(node, *xs)
        if isinstance(node.op, Fused | HorizontalFusion):
            yield Case(node.op, *xs)


def functions(group, name, ys, value=None, amp="off"):
    ys = ys if isinstance(ys, tuple) else (ys,)
    CASES[f"{group}: {name}"] = lambda: units(ys, value, amp)


for name, build in FUNCTIONS.items():
    for shape in ROWS[1::2] if name in ELEMENTWISE_ONLY else ROWS:
        functions("fused", f"{name} {shape}", build(mg.input("x", shape)))
for shape in IMAGES:
    functions("fused", f"batch norm {shape}", batch_norm(mg.input("x", shape)))


def residual(x):
    """A convolution and a batch norm with a residual connection, and their gradients."""
    channels = x.shape[1]
    w = mg.Parameter(array(channels, channels, 1, 1) / channels, "w")
    y = ops.relu(batch_norm(ops.conv2d(x, w))[0] + ops.tanh(ops.conv2d(x, w)))
    loss = (ops.conv2d(y, w) ** 2).mean()
    return (loss, *mg.grad(loss, [w, x]))


for amp, shape in (
    ("bfloat16", (4, 8, 12, 12)),
    ("bfloat16", (3, 5, 7, 7)),
    ("float16", IMAGES[1]),
):
    functions("fused", f"{amp} {shape}", residual(mg.input("x", shape)), amp=amp)
blocks = mg.input("x", (2, 4, 5, 5, 16))
centred = blocks - ops.mean(blocks, (0, 2, 3), keepdims=True)
functions("fused", "lanes", ((blocks * blocks).sum((0, 2, 3)), ops.exp(centred) + 1))
special = np.resize(np.array(SPECIAL, F32), (16, 40))
special[8:] = array(8, 40)
for i, number in enumerate(SPECIAL[:5]):
    special[8 + i, 3 * i] = number
for name, build in FUNCTIONS.items():
    functions("special", name, build(mg.input("x", special.shape)), special)


# ---------------------------------------------------------------- several kernels in one launch


def updates_of_vectors(sizes):
    """Adam's of parameters of these lengths, whose gradients are given."""
    pairs = [
        (mg.Parameter(array(n), f"w{i}"), mg.input(f"g{i}", (n,))) for i, n in enumerate(sizes)
    ]
    loss = mg.ops.sum(sum((w * g).sum() for w, g in pairs))
    return tuple(optim.Adam([w for w, _ in pairs]).minimize(loss).values())


# As those of a residual network: most are vectors, a few are long, some end between vectors.
LENGTHS = [*(64 << i % 4 for i in range(100)), *(4095 + i for i in range(58)), 300_001, 1 << 21]
functions("together", "adam", updates_of_vectors(LENGTHS))
vectors = [mg.input(f"x{i}", (n,)) for i, n in enumerate((1, 1000, 4097))]
functions(
    "together", "several texts", tuple(f(x) for x in vectors for f in (ops.exp, ops.negative))
)
long = mg.input("long", (1 << 18,))
functions("together", "a long sum", (long.sum() * 2 + 1, *map(ops.exp, vectors)))
many = [mg.input(f"x{i}", (i + 1,)) for i in range(500)]
functions("together", "more than an argument holds", tuple(map(ops.exp, many)))


# ---------------------------------------------------------------- compiling


def sources(names=CASES):
    """The texts of the cases that have these names, each once."""
    texts = (launch.source for c in every_case(names) for launch in c.kernel.launches)
    return sorted(set(texts), key=lambda source: source.name)


# ---------------------------------------------------------------- tests that the device shares


def check_sum_of_a_block(kernels):
    """A thread adds floats over short stretches only."""
    (case,) = cases("one block: sum")
    (launch,) = case.kernel.launches
    assert launch.grid == (1, 1, 1)
    (y,) = case.run(kernels)
    np.testing.assert_allclose(y, LARGE_FIRST.sum(dtype=np.float64), 1e-5)


def check_error_of_a_sum(name, kernels):
    """The error of a sum does not grow with its length."""
    (case,) = cases(name)
    (y,) = case.run(kernels)
    exact = case.xs[0].sum(case.node.op.axes, np.float64, keepdims=True)
    assert np.abs(y - exact).max() < 1e-6 * exact.max()
