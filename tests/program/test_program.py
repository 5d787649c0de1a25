"""The memory plan, and that programs compute what their graphs mean, on random graphs."""

import itertools

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import CpuBackend
from minigraph.devices.reference import ReferenceBackend
from minigraph.graph import Graph
from minigraph.program import ALIGNMENT, Home
from minigraph.program.lower import lower
from minigraph.program.memory import foreseen

BACKENDS = {"cpu": lambda: CpuBackend(2, True), "reference": ReferenceBackend}
DEVICES = list(BACKENDS)

# ---------------------------------------------------------------- random graphs


def real(rng, size):
    return rng.uniform(-2, 2, size).astype(np.float32)


def unary(rng, nodes):
    fn = rng.choice([ops.tanh, ops.sin, ops.sigmoid, ops.relu, ops.abs, ops.negative])
    return fn(pick(rng, nodes))


def binary(rng, nodes):
    fn = rng.choice([ops.add, ops.subtract, ops.multiply, ops.maximum])
    return fn(pick(rng, nodes), pick(rng, nodes))


def choose(rng, nodes):
    x, y = pick(rng, nodes), pick(rng, nodes)
    return ops.where(x > 0, x, y)


def reduce(rng, nodes):
    x = pick(rng, nodes, axes=1)
    count = rng.integers(1, x.ndim + 1)
    axes = tuple(int(a) for a in rng.choice(x.ndim, count, replace=False))
    fn = rng.choice([ops.sum, ops.mean, ops.max, ops.min])
    return fn(x, axes, keepdims=bool(rng.integers(2)))


def reshape(rng, nodes):
    x = pick(rng, nodes)
    factors = [f for f in range(1, x.size + 1) if x.size % f == 0]
    f = int(rng.choice(factors))
    return ops.reshape(x, [(-1,), (f, x.size // f), (f, 1, x.size // f)][rng.integers(3)])


def transpose(rng, nodes):
    x = pick(rng, nodes, axes=2)
    return ops.permute_dims(x, rng.permutation(x.ndim).tolist())


def window(rng, nodes):
    x = pick(rng, nodes, axes=1)
    index = []
    for n in x.shape:
        start = int(rng.integers(n))
        step = int(rng.choice([1, 1, 2, 3, -1, -2]))
        index.append(slice(start, None, step))
    return x[tuple(index)]


def flip(rng, nodes):
    x = pick(rng, nodes, axes=1)
    return ops.flip(x, int(rng.integers(x.ndim)))


def broadcast(rng, nodes):
    x = pick(rng, nodes)
    return ops.broadcast_to(x, (int(rng.integers(1, 4)), *x.shape))


def product(rng, nodes):
    x = pick(rng, nodes, axes=2)
    partners = [y for y in nodes if y.ndim > 1 and y.shape[-2] == x.shape[-1]]
    y = pick(rng, partners) if partners else ops.permute_dims(x, (*range(x.ndim - 2), -1, -2))
    return ops.tanh(ops.matmul(x, y))


def join(rng, nodes):
    x = pick(rng, nodes, axes=1)
    axis = int(rng.integers(x.ndim))
    return ops.concat([x, ops.flip(x), ops.tanh(x)], axis)


def pad(rng, nodes):
    return ops.pad(pick(rng, nodes, axes=1), (int(rng.integers(3)), int(rng.integers(3))))


def normalise(rng, nodes):
    x = pick(rng, nodes, axes=1)
    return ops.softmax(x, int(rng.integers(x.ndim)))


STEPS = [
    unary,
    binary,
    binary,
    choose,
    reduce,
    reshape,
    transpose,
    window,
    flip,
    broadcast,
    product,
    join,
    pad,
    normalise,
]


def pick(rng, nodes, axes=0):
    """One of the nodes that have at least so many axes: late ones rather than early ones."""
    fitting = [x for x in nodes if x.ndim >= axes]
    return fitting[-1 - min(int(rng.exponential(4)), len(fitting) - 1)]


def random_graph(seed, length=30, longest=6, largest=4096):
    """Return inputs, outputs, updates and arguments of a function of every sort of op.

    length   nodes
    longest  axis of an input
    largest  number of elements of a node
    """
    rng = np.random.default_rng(seed)
    axes = (2, 1, rng.integers(1, 4))
    shapes = [tuple(rng.integers(1, longest + 1, ndim).tolist()) for ndim in axes]
    inputs = [mg.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    w = mg.Parameter(real(rng, shapes[0]), "w")
    nodes = [*inputs, w, ops.add(real(rng, shapes[1]), 0)]
    while len(nodes) < length:
        try:
            made = rng.choice(STEPS)(rng, nodes)
        except mg.ShapeError:
            continue  # the shapes do not broadcast
        if 0 < made.size <= largest and made.ndim < 6:
            nodes.append(made)
    outputs = [*(pick(rng, nodes) for _ in range(4)), nodes[-1]]
    fitting = [x for x in nodes if x.shape == w.shape and x is not w]
    updates = {w: pick(rng, fitting)} if fitting else {}
    return inputs, outputs, updates, [real(rng, shape) for shape in shapes]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def assert_close(y, expected):
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    scale = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * scale)


def assert_function_means_its_graph(function, inputs, outputs, updates, args):
    """Two calls, since the second finds the memory as the first left it."""
    graph = Graph(tuple(inputs), (*outputs, *updates.values()))
    for _ in range(2):
        expected = [np.array(y) for y in graph(*args)]
        results = function(*args)
        for y, wanted in zip(results, expected, strict=False):
            assert_close(y, wanted)
        for w, wanted in zip(updates, expected[len(outputs) :], strict=True):
            assert_close(w.numpy(), wanted)


@pytest.mark.parametrize("seed", range(24))
def test_a_random_function_computes_what_its_graph_means(device, seed):
    inputs, outputs, updates, args = random_graph(seed)
    function = mg.comp_graph(device).compile(inputs, outputs, updates)
    assert_function_means_its_graph(function, inputs, outputs, updates, args)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_function_of_large_arrays_computes_what_its_graph_means(seed):
    inputs, outputs, updates, args = random_graph(seed, longest=60, largest=1 << 19)
    function = mg.comp_graph("cpu", {"num_threads": 3}).compile(inputs, outputs, updates)
    assert_function_means_its_graph(function, inputs, outputs, updates, args)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_function_computes_the_same_step_by_step_as_in_bulk(seed):
    inputs, outputs, _, args = random_graph(seed)
    results = [
        mg.comp_graph("cpu", {"bulk": bulk}).compile(inputs, outputs)(*args)
        for bulk in (False, True)
    ]
    for y, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_of_a_random_function_is_what_its_graph_means(device, seed):
    inputs, outputs, _, args = random_graph(seed, length=16)
    loss = sum((y * y).mean() for y in outputs)
    gradients = mg.grad(loss, inputs)
    function = mg.comp_graph(device).compile(inputs, gradients)
    assert_function_means_its_graph(function, inputs, gradients, {}, args)


def test_random_graphs_have_every_sort_of_op():
    seen = set()
    for seed in range(24):
        inputs, outputs, updates, _ = random_graph(seed)
        graph = Graph(tuple(inputs), (*outputs, *updates.values()))
        seen |= {node.op.name for node in graph}
    wanted = "tanh add where sum max reshape permute_dims slice flip broadcast_to matmul concat pad"
    assert set(wanted.split()) <= seen


# ---------------------------------------------------------------- updates


STEPS_OF_ONE_SHAPE = [
    (1, ops.tanh),
    (1, lambda x: x.T),
    (1, lambda x: x[::-1]),
    (2, ops.add),
    (2, ops.multiply),
    (2, lambda x, y: ops.tanh(x @ y.T)),
]


def random_updates(seed):
    """Return outputs, and updates of parameters by expressions of all of them."""
    rng = np.random.default_rng(seed)
    parameters = [mg.Parameter(real(rng, (3, 3)), f"w{i}") for i in range(4)]
    nodes = list(parameters)

    def any_node():
        return nodes[rng.integers(len(nodes))]

    for _ in range(12):
        arity, fn = STEPS_OF_ONE_SHAPE[rng.integers(len(STEPS_OF_ONE_SHAPE))]
        nodes.append(fn(*(any_node() for _ in range(arity))))
    return [any_node() for _ in range(3)], {w: any_node() for w in parameters}


@pytest.mark.parametrize("seed", range(40))
def test_random_updates_take_effect_together(device, seed):
    outputs, updates = random_updates(seed)
    function = mg.comp_graph(device).compile([], outputs, updates)
    assert_function_means_its_graph(function, [], outputs, updates, [])


@pytest.mark.parametrize("seed", range(10))
def test_a_call_that_fails_applies_no_update(device, seed):
    outputs, updates = random_updates(seed)
    labels = mg.input("labels", (1,), "int64")
    checked = ops.cross_entropy(outputs[0][:1], labels)
    function = mg.comp_graph(device).compile([labels], [*outputs, checked], updates)
    before = [w.numpy() for w in updates]
    with pytest.raises(mg.GraphError, match="label 3"):
        function([3])
    for w, value in zip(updates, before, strict=True):
        np.testing.assert_array_equal(w.numpy(), value)


# ---------------------------------------------------------------- the memory plan


def lowered(device, outputs, inputs=(), updates=()):
    new = dict(updates)
    graph = Graph(tuple(inputs), (*outputs, *new.values()))
    return lower(graph, len(outputs), list(new), BACKENDS[device](), lambda *node: None)


def in_arena(program):
    return [b for b in program.buffers if b.home is Home.ARENA and b.nbytes]


def assert_plan_is_sound(program):
    buffers = in_arena(program)
    for b in buffers:
        assert 0 <= b.first <= b.last <= len(program.steps)
        assert b.offset % ALIGNMENT == 0
        assert 0 <= b.offset <= program.arena_bytes - b.nbytes
    for a, b in itertools.combinations(buffers, 2):
        together = a.first <= b.last and b.first <= a.last
        overlap = a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
        if together and overlap:  # in place: one ends where the other begins
            a, b = (a, b) if a.successor is b else (b, a)
            assert a.successor is b
            assert a.last == b.first
    for time, step in enumerate(program.steps):
        for b in (*(v.buffer for v in (*step.inputs, *step.outputs)), step.scratch):
            assert b in program.buffers
            assert b.first <= time <= b.last
    for view in (*program.outputs, *(view for _, view in program.updates)):
        assert view.buffer.last == len(program.steps)
    assert program.arena_bytes <= program.unplanned_bytes


@pytest.mark.parametrize("seed", range(60))
def test_buffers_that_live_at_the_same_time_do_not_overlap(device, seed):
    inputs, outputs, updates, _ = random_graph(seed, length=40)
    assert_plan_is_sound(lowered(device, outputs, inputs, updates))


def test_plan_of_a_training_step_is_sound(device):
    x, labels = mg.input("x", (8, 3, 12, 12)), mg.input("labels", (8,), "int64")
    rng = np.random.default_rng(0)
    w1, w2 = mg.Parameter(real(rng, (8, 3, 3, 3))), mg.Parameter(real(rng, (10, 8 * 25)))
    y = ops.max_pool2d(ops.relu(ops.conv2d(x, w1)), 2)
    y, _, _ = ops.batch_norm_with_statistics(y)
    loss = ops.cross_entropy(ops.linear(y.reshape(8, -1), w2), labels)
    updates = {w: w - 0.1 * dw for w, dw in zip((w1, w2), mg.grad(loss, [w1, w2]), strict=True)}
    program = lowered(device, [loss], [x, labels], updates)
    assert_plan_is_sound(program)
    assert program.arena_bytes < program.unplanned_bytes


def test_a_copy_is_said_to_be_made_where_its_value_is():
    x = mg.input("x", (4, 6))
    w = mg.Parameter(np.ones((6, 4), "float32"), "w")
    old = mg.Parameter(np.ones((6, 4), "float32"), "old")
    turned = ops.flip(x, 1)
    product = turned @ np.ones((6, 4), "float32")
    new = w + 1
    last, _ = ops.scan(lambda h, v: (v, h), x[0], x)
    outputs, updates = [product, last], {w: new, old: w}
    program = lowered("cpu", outputs, [x], updates)
    copies = [s.node for s in program.all_steps() if s.node.op.name == "copy"]
    assert {turned, w} <= {node.inputs[0] for node in copies}
    assert [node.source for node in copies] == [node.inputs[0].source for node in copies]
    profile = mg.comp_graph("cpu").compile([x], outputs, updates).profile(np.ones(x.shape, "f4"))
    lines = {node.source.brief for node in (turned, product, new, w, last)}
    assert {cost.name for cost in profile.by_layer} == lines


def test_a_long_chain_needs_a_few_buffers(device):
    x = mg.input("x", (1000,))
    y = x
    for _ in range(100):
        y = ops.tanh(y)
    program = lowered(device, [y], [x])
    assert len(program.steps) == 100
    assert program.arena_bytes <= 3 * 4032
    assert program.unplanned_bytes == 99 * 4032  # neither the input nor the result is in the arena
    assert_plan_is_sound(program)


def test_a_chain_of_growing_arrays_needs_little_more_than_the_two_largest(device):
    x = mg.input("x", (16,))
    y = x
    for _ in range(10):
        y = ops.tanh(ops.concat([y, y]))
    program = lowered(device, [y.sum()], [x])
    assert program.arena_bytes <= 3.5 * y.spec.nbytes
    assert_plan_is_sound(program)


def test_what_is_read_late_is_kept(device):
    x = mg.input("x", (1000,))
    early = [ops.tanh(x + i) for i in range(10)]
    y = x * 2
    for e in reversed(early):
        y = y + e
    program = lowered(device, [y], [x])
    assert_plan_is_sound(program)


def test_a_third_of_what_lives_at_once_is_foreseen():
    x, w = mg.input("x", (1000,)), mg.Parameter(np.ones((7, 11), "float32"))
    y = ops.tanh(x)
    shown = y.reshape(10, 100)
    z = ops.tanh(ops.tanh(y))
    assert foreseen(Graph((x,), (y,))) == 0  # a result is not in the arena
    assert foreseen(Graph((x,), (ops.tanh(y),))) == 4000 // 3
    assert foreseen(Graph((x,), (z + y,))) == 3 * 4000 // 3
    assert foreseen(Graph((x,), (ops.tanh(z).sum() + shown.sum(),))) == 3 * 4000 // 3
    assert foreseen(Graph((x,), (ops.tanh(ops.tanh(w * 2)),))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_foreseen_is_less_than_what_is_needed(seed):
    inputs, outputs, updates, _ = random_graph(seed, length=40)
    program = lowered("reference", outputs, inputs, updates)
    assert foreseen(program.graph) <= max(program.arena_bytes, 0)


@needs_compiler
def test_a_step_overwrites_what_it_reads_for_the_last_time():
    x = mg.input("x", (1000,))
    y = x
    for _ in range(100):
        y = ops.tanh(y)
    program = lowered("cpu", [y], [x])
    assert program.arena_bytes == 4032
    assert_plan_is_sound(program)


@pytest.mark.parametrize("turned", [ops.add, lambda y, z: z + y], ids=["second", "first"])
def test_what_a_step_reads_at_two_places_is_not_overwritten(device, turned):
    x = mg.input("x", (70, 70))
    y = ops.tanh(x)
    step = turned(y, y.T)
    function = mg.comp_graph(device, {"graph_opt_level": 0}).compile([x], step * 2)
    values = real(np.random.default_rng(0), (70, 70))
    wanted = (np.tanh(values) + np.tanh(values).T) * 2
    np.testing.assert_allclose(function(values), wanted, 1e-5, 1e-5)


def test_report_shows_the_plan(device):
    x, w = mg.input("x", (1000,)), mg.Parameter(np.ones(1000, "float32"))
    y = x * w
    for _ in range(100):
        y = ops.tanh(y)
    memory = mg.comp_graph(device).compile([x], [y.sum(), y], {w: w * 2}).report().memory
    assert memory.parameter_bytes == 4000
    assert 0 < memory.arena_bytes <= 4 * 4032
    assert memory.unplanned_bytes >= 99 * 4000
    assert memory.peak_bytes >= memory.arena_bytes + memory.parameter_bytes + 4000


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[1:, ::2],
        lambda x: x[::-1],
        lambda x: x.reshape(6, 4),
        lambda x: x[:, None],
        lambda x: ops.broadcast_to(x, (5, 4, 6)),
        lambda x: ops.split(x, 2)[1],
        lambda x: ops.stop_gradient(x),
        lambda x: ops.flip(x.T[1:3])[:, ::-2],
        lambda x: x.T.reshape(6, 2, 2),
    ],
)
def test_a_view_makes_no_step(device, view):
    x = mg.input("x", (4, 6))
    function = mg.comp_graph(device).compile([x], view(x + 1) + 1)
    assert [name for name, _, _ in function.report().steps] == ["add", "add"]
    value = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(function(value), Graph((x,), (view(x + 1) + 1,))(value)[0])


class Picky(ReferenceBackend):
    """A device whose products read memory from a multiple of 16 bytes on only."""

    def kernel(self, node, strides, algorithm=""):
        made = super().kernel(node, strides, algorithm)
        if node.op.name == "matmul":
            made.alignment = 16
            made.strided = (True, True)
            made.seen = strides
        return made


def test_a_view_is_copied_for_a_kernel_that_cannot_read_from_where_it_begins():
    x, y = mg.input("x", (6, 5)), mg.input("y", (5, 4))

    def steps(a):
        return lower(Graph((x, y), (a @ y,)), 1, [], Picky(), lambda node, strides: None).steps

    assert [step.node.op.name for step in steps(x)] == ["matmul"]
    copied = x[1:]  # rows of 20 bytes
    copy, product = steps(copied)
    assert (copy.node.op.name, product.inputs[0].offset) == ("copy", 0)
    assert product.kernel.seen[0] == (20, 4)
    for offset, names in ((4, ["matmul"]), (1, ["copy", "matmul"])):
        assert [step.node.op.name for step in steps(x[offset:])] == names


def test_a_view_alone_makes_no_step(device):
    x, w = mg.input("x", (4, 6)), mg.Parameter(np.ones((4, 6), "float32"))
    assert lowered(device, [x.T, w[1:], x[::-1].T], [x]).steps == []


def test_an_expression_that_is_used_twice_is_computed_once(device):
    x = mg.input("x", (4, 6))
    y = ops.tanh(x)
    program = lowered(device, [y + y, y * 2, y.T + 1, y], [x])
    assert [step.node.op.name for step in program.steps].count("tanh") == 1


def test_nothing_is_computed_that_no_result_needs(device):
    x = mg.input("x", (4, 6))
    y = ops.exp(x)
    _ = ops.tanh(y) + 1
    assert len(lowered(device, [y], [x]).steps) == 1


def test_an_empty_array_takes_no_memory(device):
    x = mg.input("x", (0, 6))
    program = lowered(device, [(ops.tanh(x) + 1).sum()], [x])
    assert_plan_is_sound(program)
    assert program.arena_bytes <= ALIGNMENT
