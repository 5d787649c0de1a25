"""Random functions of every sort of op, and programs that are lowered for both devices."""

import itertools

import numpy as np

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import CpuBackend
from minigraph.devices.reference import ReferenceBackend
from minigraph.graph import Graph
from minigraph.program import ALIGNMENT, MemorySpace
from minigraph.program.lower import lower
from minigraph.program.memory import plan

BACKENDS = {"cpu": lambda: CpuBackend(2, True), "reference": ReferenceBackend}
DEVICES = list(BACKENDS)


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
    *(unary, binary, binary, choose, reduce, reshape, transpose, window, flip, broadcast),
    *(product, join, pad, normalise),
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


def lowered(device, outputs, inputs=(), updates=()):
    new = dict(updates)
    graph = Graph(tuple(inputs), (*outputs, *new.values()))
    return plan(lower(graph, len(outputs), list(new), BACKENDS[device](), lambda *node: None))


def in_arena(program):
    return [b for b in program.buffers if b.space is MemorySpace.ARENA and b.nbytes]


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
