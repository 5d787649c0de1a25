"""The loops of subgraphs, the subgraphs that one kernel can compute, and their results."""

import random

import numpy as np
import pytest
from long_runs import mostly_long
from needs import GENERATED, needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.c.source import c_source
from minigraph.jit.domain import NotFusible, analyse
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import check_speed, specialise

X, Y = mg.input("x", (4, 6)), mg.input("y", (4, 6))
ROW, COLUMN = mg.input("row", (6,)), mg.input("column", (4, 1))
SQUARE = mg.input("square", (4, 4))


def of(*ys):
    """Return the graph of expressions, with their leaves as inputs."""
    order = Graph((), ys).order
    return Graph(tuple(x for x in order if not x.inputs and x.name != "constant"), ys)


def kernel(*ys):
    graph = of(*ys)
    return specialise(graph, [x.spec.strides for x in graph.inputs])


# ---------------------------------------------------------------- loops


def test_axes_that_run_together_are_one_loop():
    y = (X * ROW + COLUMN).T
    domain = analyse(of(y))
    assert domain.extents == (6, 4) and not domain.reduced
    assert [domain.loops[x] for x in (y, X, ROW, COLUMN)] == [(0, 1), (1, 0), (0,), (1, None)]


def test_axes_of_length_1_are_no_loops():
    assert analyse(of(ops.negative(X.reshape(1, 4, 1, 6, 1)))).extents == (4, 6)
    assert analyse(of(mg.input("one", (1, 1)) + 1)).extents == ()


def test_a_result_of_a_reduction_is_there_one_stage_later():
    peak = ops.max(X, 1, keepdims=True)
    e = ops.exp(X - peak)
    total = e.sum(1, keepdims=True)
    y = e / total
    domain = analyse(of(y))
    assert domain.reduced == {1} and domain.kept == {0}
    assert [domain.stages[node] for node in (X, peak, e, total, y)] == [0, 1, 1, 2, 2]


def test_reductions_that_nothing_else_connects_run_together():
    domain = analyse(of(X.sum(1) + Y.max(1)))
    assert domain.loops[X] == domain.loops[Y]
    domain = analyse(of(X.sum(1, keepdims=True) + Y))
    assert domain.loops[X] == domain.loops[Y] and domain.reduced == {1}


UNFIT = {
    "an op with a separate kernel": (lambda: X @ X.T, "matmul"),
    "a view that moves elements": (lambda: X.reshape(6, 4) + 1, "reshape"),
    "different axes": (
        lambda: X.sum(0, keepdims=True) + X.sum(1, keepdims=True),
        "its reductions run over different axes",
    ),
    "axes of different lengths": (lambda: X.sum() + ROW.sum(), "over different axes"),
    "two positions at once": (lambda: SQUARE + SQUARE.T, "one value at two positions at once"),
    "an outer product of sums": (
        lambda: X.sum(1, keepdims=True) * mg.input("z", (4, 7)),
        "its ops have no common iteration space",
    ),
    "a small result": (lambda: (X + ops.exp(ROW), ops.exp(ROW)), "a result has fewer axes"),
    "columns twice": (
        lambda: X - X.sum(0, keepdims=True),
        "it would run along the outer axis more than once",
    ),
    "an array of constants": (lambda: X + np.ones(6, "float32") * ROW, "array of constants"),
    "random numbers out of order": (
        lambda: ops.random_uniform((6, 4)).T * X,
        "random numbers are counted along one flat axis",
    ),
    "random numbers of each row": (
        lambda: ops.random_uniform((6,)) * X,
        "random numbers are counted along one flat axis",
    ),
    "too many axes": (
        lambda: mg.input("z", (2,) * 17).transpose(tuple(range(16, -1, -1))) + 1,
        "more than 16 axes",
    ),
}


@pytest.mark.parametrize(("build", "why"), UNFIT.values(), ids=UNFIT)
def test_what_no_kernel_computes_is_refused_with_a_reason(build, why):
    ys = build()
    with pytest.raises(NotFusible, match=why):
        check_speed(kernel(*ys if isinstance(ys, tuple) else (ys,)))


# ---------------------------------------------------------------- kernels


def test_the_form_is_that_of_the_innermost_axis():
    assert kernel(X + 1).pattern.form == "map"
    assert kernel((X + 1).sum(1)).pattern.form == kernel(X.sum()).pattern.form == "row"
    assert kernel(X.sum(0)).pattern.form == "column"
    assert (
        kernel((X.T + 1).sum(0)).pattern.form == "column"
    )  # the form depends on the loops, not on the operands
    assert kernel(mg.input("z", (4, 1)).sum(0)).pattern.form == "row"


def test_kernels_of_any_extents_with_one_pattern_of_broadcasting_are_equal():
    def build(*shape):
        x = mg.input("x", shape)
        return kernel(ops.exp(x * mg.input("row", shape[-1:]) + 0.1).sum(-1) * 0.5)

    first, second = build(4, 6), build(3, 5, 70)
    assert c_source(first.pattern) == c_source(second.pattern) and first.nest != second.nest
    assert c_source(first.pattern) != c_source(
        kernel(ops.exp(X * COLUMN + 0.1).sum(1) * 0.5).pattern
    )


def test_numbers_are_arguments_but_for_those_that_are_a_case_of_their_own():
    assert kernel(X * 0.1).pattern == kernel(X * 0.2).pattern
    assert kernel(X * 0.1).constants != kernel(X * 0.2).constants
    patterns = {kernel(X * v).pattern for v in (0.1, 0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)}
    assert len(patterns) == 7


def test_random_numbers_may_have_axes_of_length_1():
    numbers = ops.random_uniform((4, 1, 6)) * mg.input("z", (4, 1, 6))
    assert kernel(numbers).pattern.form == "map"


def test_an_output_may_overwrite_what_is_not_read_later():
    def inplace(*ys):
        graph = of(*ys)
        overwritten = specialise(graph, [x.spec.strides for x in graph.inputs]).inplace
        return dict(zip((x.name for x in graph.inputs), overwritten, strict=True))

    assert inplace(X * Y) == {"x": (0,), "y": (0,)}
    assert inplace(X * ROW) == {"x": (0,), "row": ()}
    assert inplace(SQUARE * 2 + mg.input("z", (4, 4)).T) == {"square": (0,), "z": ()}
    assert inplace(X.astype("int16")) == inplace(X.sum(1)) == {"x": ()}
    centred = X - X.mean(1, keepdims=True)
    assert inplace(centred) == {"x": (0,)}
    # The first is written while the second stage reads X again.
    assert inplace(ops.exp(X), X - ops.exp(X).sum(1, keepdims=True)) == {"x": (1,)}
    # The output holds exponentials while X is still needed.
    e = ops.exp(X)
    assert inplace(e / e.sum(0, keepdims=True) * X) == {"x": ()}


# ---------------------------------------------------------------- the C agrees with the graph


LARGE = [(9, 4500), (4500, 9), (20, 50, 40), (3, 20_000), (20_000, 3), (70_000,)]


class Subgraph:
    """A random graph of elementwise ops, reductions, and ops that move elements."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        choose = self.random.choice
        self.shape = tuple(choose([1, 2, 3, 5, 8, 33, 40]) for _ in range(choose([1, 2, 3, 3])))
        if seed % 10 == 0:  # enough for several threads
            self.shape = choose(LARGE)
        axes = range(len(self.shape))
        self.axes = tuple(sorted(self.random.sample(axes, self.random.randint(1, len(axes)))))
        self.dtype = choose(["float32", "float32", "float64", "int32", "uint8"])
        self.inputs = []
        nodes = [self.input() for _ in range(self.random.randint(1, 3))]
        while len(nodes) < 12 and self.random.random() < 0.9:
            nodes.append(self.grow(choose(nodes[-4:]), choose(nodes)))
        read = {x for node in nodes for x in node.inputs}
        ends = [n for n in nodes if n.inputs and (n not in read or self.random.random() < 0.2)]
        ends = tuple(ends[-4:]) or (ops.negative(nodes[-1]),)
        used = set(Graph((), ends))
        self.graph = Graph(tuple(x for x in self.inputs if x in used), ends)

    def input(self):
        """An input that broadcasts to the shape, in some order of its axes."""
        shape = [n if self.random.random() < 0.75 else 1 for n in self.shape]
        order = list(range(len(shape)))
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        node = mg.input(f"x{len(self.inputs)}", [shape[i] for i in order], self.dtype)
        self.inputs.append(node)
        return node.transpose([order.index(i) for i in range(len(order))])

    def grow(self, x, y):
        kind = self.random.random()
        if kind < 0.3:
            op = self.random.choice([ops.abs, ops.square, lambda v: 3 - v, ops.logical_not])
            return op(x).astype(self.dtype)
        if kind < 0.6:
            return self.random.choice([ops.add, ops.subtract, ops.maximum])(x, y)
        if kind < 0.85:
            reduced = self.random.choice([ops.sum, ops.max, ops.min])(x, self.axes, keepdims=True)
            return reduced.astype(self.dtype)
        if kind < 0.93:
            order = self.random.sample(range(x.ndim), x.ndim)
            back = [order.index(i) for i in range(x.ndim)]
            return (x.transpose(order) * 2).transpose(back)
        if kind < 0.96:
            return ops.broadcast_to(x, self.shape)
        return (x.reshape([n for n in x.shape if n != 1]) * 3).reshape(x.shape)

    def arrays(self, seed):
        rng = np.random.default_rng(seed)
        low = 0 if self.dtype == "uint8" else -5
        return [rng.uniform(low, 5, x.shape).astype(self.dtype) for x in self.graph.inputs]


def fits(graph):
    try:
        specialise(graph, [x.spec.strides for x in graph.inputs])
    except NotFusible:
        return False
    return True


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("first", mostly_long((0, 60), 1))
def test_random_kernels_compute_what_their_graphs_mean(first, threads):
    samples = [s for s in map(Subgraph, range(first, first + 60)) if fits(s.graph)]
    assert len(samples) > 25
    inputs, outputs, arrays = [], [], []
    for i, sample in enumerate(samples):
        xs = [mg.input(f"{x.name}_{i}", x.shape, x.dtype) for x in sample.graph.inputs]
        inputs += xs
        outputs += Fused(sample.graph).results(*xs)
        arrays += sample.arrays(i)
    options = {"graph_opt_level": 0, "num_threads": threads}
    function = mg.comp_graph("cpu", options).compile(inputs, outputs)
    assert {maker for _, maker, _ in function.report().steps} == {GENERATED}
    results = iter(function(*arrays))
    for i, sample in enumerate(samples):
        for expected in sample.graph(*sample.arrays(i)):
            result = next(results)
            assert result.dtype == expected.dtype
            exact = expected.dtype.kind != "f"
            tolerance = 0 if exact else 1e-10 if expected.dtype == np.float64 else 1e-4
            scale = 0 if exact else tolerance * np.abs(expected).max(initial=1)
            message = f"seed {i} of {threads} threads\n{sample.graph}"
            np.testing.assert_allclose(result, expected, tolerance, scale, err_msg=message)


@pytest.mark.parametrize(("shape", "axis"), [((2, 0, 3), 1), ((0, 3), 0), ((4, 0), 1), ((0,), 0)])
def test_a_kernel_reads_no_element_of_an_empty_array(shape, axis):
    x = mg.input("x", shape)
    strides = np.empty(shape, np.float32).strides  # zeros, like the strides of a broadcast scalar
    graph = of(ops.sum(x, axis))
    assert specialise(graph, [strides]).pattern.accesses[0] != "fixed"
