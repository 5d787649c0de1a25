"""Level 3 from outside: the numbers, the report, the memory, and what is compiled how often."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import FLOATS
from minigraph.passes.kernels.group import MAX_NODES
from minigraph.program import Home

pytestmark = needs_compiler

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, -2.5]


def array(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-4, 5, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def compiled(ys, inputs, updates=None, level=3, **options):
    options = {"graph_opt_level": level, "autotune": "off", **options}
    return mg.comp_graph("cpu", options).compile(inputs, ys, updates)


def assert_same(found, expected, tolerance=None, signs=True):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.dtype not in FLOATS:
        np.testing.assert_array_equal(found, expected)
        return
    if tolerance is None:
        tolerance = 1e-12 if found.dtype == np.float64 else 1e-5
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    scale = np.abs(expected[finite]).max(initial=1e-30)
    np.testing.assert_allclose(found[finite], expected[finite], tolerance, tolerance * scale)
    if signs:
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


def check(build, *xs, kernels=None, signs=True, **options):
    """Level 3 gives what NumPy and level 0 give, in `kernels` kernels; return its report."""
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    ys = build(*inputs)
    ys = list(ys) if isinstance(ys, tuple) else [ys]
    function = compiled(ys, inputs, **options)
    with np.errstate(all="ignore"):
        meaning = mg.comp_graph("reference", {"graph_opt_level": 0}).compile(inputs, ys)(*xs)
    for found, level_0, expected in zip(
        function(*xs), compiled(ys, inputs, level=0)(*xs), meaning, strict=True
    ):
        assert_same(found, expected, signs=signs)
        assert_same(found, level_0, signs=signs)
    report = function.report()
    assert kernels is None or len(report.kernels) == kernels
    assert report.ops["fused"] == len(report.kernels)
    return report


# ---------------------------------------------------------------- numbers


def by_hand(x, axis):
    e = ops.exp(x - ops.max(x, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


FUNCTIONS = {
    "elementwise": lambda x: ops.tanh(x * 2 + 1) * x - ops.maximum(x, 0.25),
    "several results": lambda x: (ops.exp(x), ops.exp(x) * x + 1, (ops.exp(x) * x).sum(1)),
    "softmax": lambda x: ops.softmax(x * 2),
    "softmax of columns": lambda x: by_hand(x, 0) + 1,
    "log_softmax": lambda x: ops.log_softmax(x) * 0.5,
    "logsumexp": lambda x: ops.logsumexp(x, 1) - 1,
    "layer_norm": lambda x: ops.layer_norm(x, x.shape[1:]) * 2 + 1,
    "variance": lambda x: (ops.var(x, 1) + 1, ops.var(x) + 1),
    "columns": lambda x: ((x * x).sum(0) * 2 + 1, x.max(0) - x.min(0)),
    "rows and columns": lambda x: ((x * 2).sum(0), (x * 2).sum(1)),
    "outer sum": lambda x: x.mean(1, keepdims=True) * 2 + ops.abs(x),
    "mse_loss": lambda x: ops.mse_loss(x, ops.cos(x)),
}
SHAPES = [(1, 1), (7, 1), (1, 31), (5, 33), (3, 4097), (40, 1000), (2, 70_000), (70_000, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_agree_with_numpy_for_rows_of_any_length(shape):
    xs = [mg.input(name.replace(" ", "_"), shape) for name in FUNCTIONS]
    parts = [build(x) for build, x in zip(FUNCTIONS.values(), xs, strict=True)]
    ys = [y for part in parts for y in (part if isinstance(part, tuple) else (part,))]
    arrays = [array(*shape, seed=i) for i in range(len(xs))]
    expected = mg.comp_graph("reference", {"graph_opt_level": 0}).compile(xs, ys)(*arrays)
    for threads in (1, 2, 5):
        function = compiled(ys, xs, num_threads=threads)
        assert {made for op, made, _ in function.report().steps if op == "fused"} == {"c"}
        for found, y in zip(function(*arrays), expected, strict=True):
            assert_same(found, y, 2e-5, signs=False)


@pytest.mark.parametrize("length", [33, 16_384])
def test_many_stages_in_one_kernel_take_no_longer_to_find_than_as_many_kernels(length):
    def stacked(x):
        for _ in range(12):
            x = ops.softmax(x * 2)
        return x

    check(stacked, array(8, length), kernels=1)


def test_what_all_parts_of_a_split_row_read_is_not_overwritten_before():
    """The mean could take the place of the sum, which each thread divides for itself."""
    x = mg.input("x", (2, 70_000))
    centred = x - ops.exp(x).sum(1, keepdims=True) / 70_000
    y = centred / ops.abs(centred * centred).sum(1, keepdims=True)
    values = array(2, 70_000)
    (expected,) = compiled([y], [x], level=0)(values)
    for threads in (1, 2, 5):
        assert_same(compiled([y], [x], num_threads=threads)(values)[0], expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_pass_as_at_level_0(name):
    x = np.resize(np.array(SPECIAL, "float32"), (16, 40))
    x[8:] = array(8, 40)
    for i, value in enumerate(SPECIAL[:5]):
        x[8 + i, 3 * i] = value
    check(FUNCTIONS[name], x, signs=name == "elementwise")


def test_exp_is_within_1_2_units_in_the_last_place():
    """Of every 4001st float; it is 0 where it would be denormal, as programs flush denormals."""
    bits = np.concatenate([np.arange(0, 0x7F800002, 4001), np.arange(0x7F7FFF00, 0x7F800002)])
    x = np.concatenate([bits, bits | 0x80000000]).astype(np.uint32).view(np.float32)
    edges = np.float32([-87.33655, -87.33654, 88.72283, 88.72284, *SPECIAL])
    x = np.concatenate([x, edges])
    a = mg.input("a", x.shape)
    (found,) = compiled([ops.exp(a)], [a])(x)
    with np.errstate(all="ignore"):  # signalling NaN, too
        exact = np.exp(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    tiny = np.finfo(np.float32).tiny
    assert np.isnan(found[np.isnan(x)]).all()
    assert (found[exact < tiny] == 0).all()
    assert np.isinf(found[np.isinf(rounded)]).all()
    usual = (exact >= tiny) & np.isfinite(rounded)
    unit = np.exp2(np.floor(np.log2(exact[usual])) - 23)
    assert (np.abs(found[usual] - exact[usual]) / unit).max() < 1.2


def test_the_sign_of_zero_and_nan_pass_through_a_kernel():
    x = np.resize(np.array(SPECIAL, "float32"), (3, 121))
    y = np.repeat(np.array(SPECIAL, "float32"), 33).reshape(3, 121)
    check(lambda a, b: (a * b - 0.0, ops.maximum(a, b) / b, -(a + b) * 0.0), x, y, kernels=1)
    check(lambda a, b: ops.where(a < b, a, b) * 1.0 + b, x, y)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int64", "uint8", "bool"])
def test_kernels_of_every_type(dtype):
    x, y = array(6, 50, dtype=dtype), array(50, dtype=dtype, seed=1)

    def build(a, b):
        if dtype == "bool":
            return ops.logical_not(a & b) | b, (a & b).sum(1) + 1
        return a * b + b, (a * b).max(1) - 1, (a * b).sum(0) * 2

    report = check(build, x, y)
    assert len(report.kernels) >= 2 or dtype == "float16"


VIEWS = {
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "steps": lambda x: x[1::2, ::3],
    "one column": lambda x: x[:, 3:4],
    "one row": lambda x: x[5],
    "repeated": lambda x: ops.broadcast_to(x[:, :1], x.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_read_in_place(view):
    x = array(50, 70)
    report = check(lambda a: ops.tanh(view(a)) * 2, x, kernels=1)
    assert [op for op, *_ in report.steps] == ["fused"]
    check(lambda a: ops.softmax(view(a) * 2), x, kernels=1)
    check(lambda a: ops.exp(a * 2) * 3 + view(ops.sin(a)).sum(), x)


def test_a_matrix_and_its_transpose_are_read_at_once():
    x = array(50, 50)
    check(lambda a: ops.tanh(a) * a.T, x, kernels=1)
    check(lambda a: (a + a.T).sum(1) - (a * a.T).max(1), x, kernels=1)
    check(lambda a: ops.exp(a) * 2 + ops.exp(a).T, x)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0,), (0, 3), (3, 0, 2)], ids=str)
def test_arrays_of_one_element_or_none(shape):
    x = array(*shape)
    check(lambda a: (a * 2 + 1, ops.exp(a) * a, (a * a).sum() + 1), x)


def test_random_numbers_are_those_of_level_0():
    x = mg.input("x", (64, 700))
    y = ops.dropout(x * 2, 0.3) * 3 + ops.random_normal((700, 64)).T + ops.random_uniform((700,))
    values = array(64, 700)
    results = []
    for options in ({"level": 0}, {"level": 3}, {"level": 3, "num_threads": 3}):
        function = compiled(y, [x], seed=7, **options)
        results.append([function(values), function(values)])
    for first, second in results[1:]:
        assert_same(first, results[0][0])
        assert_same(second, results[0][1])
    assert not np.array_equal(*results[0])


# ---------------------------------------------------------------- heavy ops, gradients, updates


def residual(x, w, scale):
    y = ops.relu(x * scale)
    z = ops.conv2d(y, w, padding=1)
    return ops.relu(z * scale + y), z.mean((0, 2, 3))


def test_kernels_around_a_convolution():
    check(residual, array(2, 8, 9, 9), array(8, 8, 3, 3) / 9, array(8, 1, 1), signs=False)


def test_batch_norm_by_hand_is_one_kernel_and_stores_little():
    """The result, the statistics and what is made of them, but neither x - mean nor the rest."""
    x, scale = mg.input("x", (4, 8, 9, 9)), mg.input("scale", (8, 1, 1))
    w = mg.Parameter(array(8, 8, 3, 3) / 9, name="w")
    h = ops.conv2d(x, w, padding=1)
    mean = h.mean((0, 2, 3), keepdims=True)
    centred = h - mean
    variance = (centred * centred).mean((0, 2, 3), keepdims=True)
    y = ops.relu(centred * ops.rsqrt(variance + 1e-5) * scale)
    z = ops.conv2d(y, w, padding=1)
    running = [mg.Parameter(np.ones((1, 8, 1, 1), "float32")) for _ in range(2)]
    updates = {p: p * 0.9 + v * 0.1 for p, v in zip(running, (mean, variance), strict=True)}
    outputs = [z, *mg.grad((z * ops.tanh(z)).sum(), [x, scale, w])]
    arrays = [array(*x.shape), array(*scale.shape, seed=2)]
    found = {}
    for level in (0, 3):
        for p in running:
            p.assign(np.ones(p.shape))
        function = compiled(outputs, [x, scale], updates, level)
        found[level] = [*function(*arrays), *(p.numpy() for p in running)]
    for new, old in zip(found[3], found[0], strict=True):
        assert_same(new, old, 2e-4, signs=False)
    forward = function.report().kernels[0]
    assert {"sum", "rsqrt", "relu"} <= set(forward.ops)
    assert forward.bytes < 2.1 * h.spec.nbytes


def test_what_is_cheap_is_computed_again_in_the_backward_pass():
    """Of x - mean neither pass stores anything: the backward one reads x again."""
    x = mg.input("x", (64, 256))
    w = mg.Parameter(array(256, 256), name="w")
    h = x @ w
    y = ops.tanh((h - h.mean(1, keepdims=True)) * 2) @ w
    function = compiled([y, *mg.grad((y * y).sum(), [w])], [x])
    forward = function.report().kernels[0]
    assert forward.outputs <= 2  # the mean, and what the product reads
    values = array(64, 256, seed=1) / 16
    for found, expected in zip(
        function(values),
        compiled([y, *mg.grad((y * y).sum(), [w])], [x], level=0)(values),
        strict=True,
    ):
        assert_same(found, expected, 1e-4, signs=False)


def test_parameters_are_updated_in_place_and_together():
    """Each new value is made of the old ones of both, by one kernel that overwrites both."""
    a, b = (mg.Parameter(array(40, 50, seed=i), name="ab"[i]) for i in range(2))
    old = a.numpy(), b.numpy()
    y = ops.exp(a) * b
    function = compiled([], [], {a: y, b: y - ops.sin(a)})
    function()
    y = np.exp(old[0]) * old[1]
    assert_same(a.numpy(), y)
    assert_same(b.numpy(), y - np.sin(old[0]))
    report = function.report()
    assert [op for op, *_ in report.steps] == ["fused"] and report.memory.arena_bytes == 0


@pytest.mark.parametrize("shape", [(30, 30), (30, 1), (1, 30)])
def test_an_update_that_reads_its_parameter_elsewhere_is_right(shape):
    p = mg.Parameter(array(30, 30), name="p")
    old = p.numpy()
    scale = p[: shape[0], : shape[1]]
    function = compiled([], [], {p: p * 2 + p.T + scale})
    for _ in range(2):
        function()
        old = old * 2 + old.T + old[: shape[0], : shape[1]]
        assert_same(p.numpy(), old)


def network(kind):
    """Inputs, loss and module of a small network like well-known ones."""
    labels = mg.input("labels", (4,), "int64")
    if kind == "mlp":
        x = mg.input("x", (4, 100))
        parts = [
            nn.Linear(100, 60),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.LayerNorm(60),
            nn.Linear(60, 10),
        ]
    elif kind == "alexnet":
        x = mg.input("x", (4, 3, 33, 33))
        parts = [nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.LocalResponseNorm(5)]
        parts += [nn.MaxPool2d(3, 2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten()]
        parts += [nn.Dropout(0.5), nn.Linear(16 * 49, 50), nn.ReLU(), nn.Linear(50, 10)]
    else:
        x = mg.input("x", (4, 3, 16, 16))
        parts = [
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            Block(),
            Block(),
        ]
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    net = nn.Sequential(*parts)
    for i, p in enumerate(net.parameters()):
        p.assign(array(*p.shape, seed=i) * 0.1 + (p.ndim == 1))
    return [x, labels], ops.cross_entropy(net(x), labels), net


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x):
        return ops.relu(self.norm(self.conv(x)) + x)


NETWORKS = ["mlp", "alexnet", "resnet"]
OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=1e-3),
    "adam": lambda ps: optim.Adam(ps, lr=0.01),
}


def training(kind, optimizer, level, **options):
    inputs, loss, net = network(kind)
    opt = OPTIMIZERS[optimizer](net.parameters())
    updates = {**opt.minimize(loss), **net.updates()}
    return compiled([loss], inputs, updates, level, **options), net, opt


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_train_as_at_level_0(kind, optimizer):
    losses, weights = [], []
    for level in (0, 3):
        step, net, _ = training(kind, optimizer, level, num_threads=2)
        x, _ = step._inputs
        batch = array(*x.shape, seed=5), np.array([1, 7, 3, 3])
        losses.append([float(step(*batch)[0]) for _ in range(4)])
        weights.append(net.state_dict())
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-4)
    for name, value in weights[0].items():
        if optimizer == "sgd":  # Adam makes a step of what is zero but for rounding
            assert_same(weights[1][name], value, 2e-4, signs=False)


def held(function):
    """The most bytes that intermediate results hold at once, and those that wait for a launch."""
    program = function._program
    changes = [0] * (len(program.steps) + 2)
    heirs = {b.successor for b in program.buffers}
    for buffer in program.buffers:
        if buffer.home is Home.ARENA and buffer not in heirs:
            last = buffer
            while last.successor:
                last = last.successor
            changes[buffer.first] += buffer.nbytes
            changes[last.last + 1] -= buffer.nbytes
    together = [step for step in program.steps if hasattr(step.node.op, "groups")]
    waiting = {v.buffer: v.buffer.nbytes for s in together for v in s.inputs}
    waiting = sum(n for b, n in waiting.items() if b.home is Home.ARENA)
    return max(np.cumsum(changes)), waiting


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_no_more_memory_is_held_than_without_kernels(kind, optimizer):
    """But for the gradients of small parameters that wait to be one launch."""
    without, _ = held(training(kind, optimizer, 2)[0])
    peak, waiting = held(training(kind, optimizer, 3)[0])
    assert peak <= without + waiting


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates_of_small_parameters_are_one_launch(optimizer):
    step, net, _ = training("resnet", optimizer, 3)
    (launch,) = (k for k in step.report().kernels if " more" in k.name)
    states = {"sgd": 2, "adam": 3}[optimizer]
    small = [p for p in net.parameters() if p.ndim == 1]
    assert launch.outputs >= states * len(small) - states  # but for a bias with its sum


# ---------------------------------------------------------------- options and report


def three(x):
    return ops.softmax(x * 2 + 1) * 3


@pytest.mark.parametrize(
    ("level", "jit", "kernels"),
    [
        *((level, "auto", count) for level, count in ((0, 0), (1, 0), (2, 0), (3, 1))),
        *((level, 0, 0) for level in (0, 2, 3)),
        *((level, 2, 1) for level in (0, 1, 2, 3)),
    ],
)
def test_the_jit_option_says_whether_kernels_are_generated(level, jit, kernels):
    check(three, array(8, 9), kernels=kernels, level=level, **{"graph_opt.jit": jit})


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_first_jit_level_keeps_reductions_out(level):
    report = check(
        lambda x: ops.tanh(ops.exp(ops.sin(x)).sum(1)) * 3,
        array(8, 9),
        level=level,
        **{"graph_opt.jit": 1},
    )
    assert report.ops["sum"] == 1 and report.ops["fused"] == 2
    assert all("sum" not in kernel.ops for kernel in report.kernels)


def test_level_minus_3_compares_with_level_0():
    check(three, array(8, 9), level=-3)


def test_the_report_tells_of_each_kernel():
    x, y = mg.input("x", (40, 50)), mg.input("y", (50,))
    product = x * y
    function = compiled([product, ops.exp(product).sum(1)], [x, y])
    (kernel,) = function.report().kernels
    assert sorted(kernel.ops) == ["exp", "multiply", "sum"]
    assert (kernel.inputs, kernel.outputs) == (2, 2)
    assert kernel.bytes == 4 * (2 * 40 * 50 + 50 + 40)
    assert kernel.name in kernel.source and "expf" in kernel.source
    assert len(kernel.lines) == 2 and all("test_jit.py" in line for line in kernel.lines)
    assert kernel.name in function.report().section("kernels")


def test_the_report_says_why_neighbours_are_apart():
    x = mg.input("x", (40, 40))
    stops = compiled([ops.relu(ops.exp(x) @ x + 1) * 2], [x]).report().stops
    assert {(stop.producer, stop.consumer) for stop in stops} == {
        ("exp", "matmul"),
        ("matmul", "add"),
    }
    assert all("test_jit.py" in stop.line and stop.reason for stop in stops)
    assert compiled([ops.exp(x) * 2], [x]).report().stops == []


def test_equal_kernels_have_equal_text():
    x, y = mg.input("x", (40, 50)), mg.input("y", (7,))
    reports = [compiled([ops.exp(v) * n + 1], [v]).report() for v, n in ((x, 2), (x, 3), (y, 4))]
    sources = [report.kernels[0].source for report in reports]
    assert sources[0] == sources[1] == sources[2]
    assert compiled([ops.exp(x) - 2], [x]).report().kernels[0].source != sources[0]


# ---------------------------------------------------------------- what is compiled


def compilations(build):
    mg.jit.reset_stats()
    build()
    return mg.jit.stats().compilations


def test_a_hundred_equal_functions_compile_once():
    def build():
        x = mg.input("x", (30, 40))
        compiled([ops.softmax(ops.tanh(x * 2) / 3 + 1)], [x])

    assert compilations(build) >= 1
    assert compilations(lambda: [build() for _ in range(100)]) == 0


def test_another_batch_size_compiles_nothing():
    def build(n):
        x = mg.input("x", (n, 40))
        y = ops.layer_norm(ops.gelu(x * 2), (40,)) + ops.dropout(x, 0.5)
        compiled([y, ops.mse_loss(y, x), *mg.grad(ops.mse_loss(y, x), [x])], [x])

    build(16)
    assert compilations(lambda: build(64)) == compilations(lambda: build(500)) == 0


def test_another_learning_rate_compiles_nothing():
    step, net, opt = training("mlp", "adam", 3)
    x, _ = step._inputs
    batch = array(*x.shape), np.array([1, 7, 3, 3])
    before = net.state_dict()
    opt.lr = 0.0
    assert compilations(lambda: step(*batch)) == 0
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    OPTIMIZERS["other"] = lambda ps: optim.Adam(ps, lr=0.5)
    try:
        assert compilations(lambda: training("mlp", "other", 3)) == 0
    finally:
        del OPTIMIZERS["other"]


def test_a_long_chain_is_several_kernels():
    x = mg.input("x", (8,))
    y = x
    for i in range(10_000):
        y = ops.minimum(y, 3.0) if i % 2 else y * 1.0001
    function = compiled([y], [x])
    report = function.report()
    assert max(len(kernel.ops) for kernel in report.kernels) == MAX_NODES
    assert len(report.kernels) == 10_000 // MAX_NODES
    values = array(8)
    expected = values.copy()
    for i in range(10_000):
        expected = np.minimum(expected, np.float32(3)) if i % 2 else expected * np.float32(1.0001)
    assert_same(function(values)[0], expected)
