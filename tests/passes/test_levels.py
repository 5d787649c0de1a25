"""Random graphs have the results of NumPy at every level: NaN, infinity and signed zeros included.

Rounding may differ, by as much as the graph lets it matter (`noise.py`).  A failure prints the
program of its graph.
"""

import numpy as np
import pytest
from long_runs import mostly_long
from meaning import Meaning
from random_graphs import RandomGraph
from random_lines import MORE

import minigraph as mg
from minigraph import ops
from minigraph.debug import verify
from minigraph.graph import FLOATS, Constant, Graph, as_node
from minigraph.passes.kernels.horizontal_fusion import HorizontalFusionLimits
from minigraph.passes.levels import optimize, pipeline

COUNT, CHUNK = 2000, 100
NATIVE = 96  # graphs at each level with the CPU's kernels, which take long to generate
TOGETHER = 8  # graphs in one function
OPTIONS = [
    *({"graph_opt_level": level} for level in range(4)),
    *({"graph_opt_level": level, "graph_opt.jit": jit} for level in (0, 2) for jit in (1, 2)),
]


@pytest.mark.parametrize("first", mostly_long(range(0, COUNT, CHUNK), 2))
def test_every_pass_keeps_the_meaning(first):
    passes = pipeline(3, fast_math=False, jit=2, horizontal_fusion=HorizontalFusionLimits())
    exact = len(pipeline(1, fast_math=False))  # later passes may change the grouping of sums
    for seed in range(first, first + CHUNK):
        meaning = Meaning([RandomGraph(seed)])
        for i, (graph, record) in enumerate(optimize(meaning.written, passes)):
            if record.fired:
                meaning.check(graph(*meaning.args), record.name, signs=i < exact)


# Lines of graphs besides those that all have.
MORE_LINES = pytest.mark.parametrize(
    "more", [(), MORE], ids=["plain", "loops, places and mixtures"]
)


@MORE_LINES
@pytest.mark.parametrize("first", mostly_long(range(0, 600, 60), 2))
def test_every_level_computes_the_meaning(first, more):
    for seed in range(first, first + 60):
        meaning = Meaning([RandomGraph(seed, more=more)])
        options = OPTIONS[seed % len(OPTIONS)]
        meaning.check(meaning.call(meaning.compiled("reference", options)), str(options))


@MORE_LINES
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("first", mostly_long(range(0, NATIVE, TOGETHER), 1))
def test_every_level_computes_the_meaning_on_the_cpu(first, level, more):
    seeds = range(first, first + TOGETHER)
    meaning = Meaning([RandomGraph(seed, more=more) for seed in seeds])
    results = meaning.call(meaning.compiled("cpu", {"graph_opt_level": level}))
    meaning.check(results, f"on the CPU at level {level}")


@pytest.fixture
def exact(monkeypatch):
    """Let verification look closely at every output that does not have the bits of level 0."""
    monkeypatch.setattr(verify, "TOLERANCES", dict.fromkeys(verify.TOLERANCES, 0.0))
    monkeypatch.setattr(verify, "PERTURBED_RUNS", 0)


@pytest.mark.parametrize("first", mostly_long(range(0, 600, 60), 1))
@pytest.mark.usefixtures("exact")
def test_a_negative_level_raises_no_false_alarm(first):
    for seed in range(first, first + 60):
        meaning = Meaning([RandomGraph(seed, more=MORE)])
        meaning.call(meaning.compiled("reference", {"graph_opt_level": -1 - seed % 3}))


@pytest.mark.parametrize("first", mostly_long(range(0, NATIVE, TOGETHER), 1))
@pytest.mark.usefixtures("exact")
def test_a_negative_level_raises_no_false_alarm_on_the_cpu(first):
    meaning = Meaning([RandomGraph(seed) for seed in range(first, first + TOGETHER)])
    meaning.call(meaning.compiled("cpu", {"graph_opt_level": -3}))


@pytest.mark.parametrize("first", mostly_long(range(0, 1000, 200), 1))
def test_fast_math_keeps_the_meaning_of_what_is_finite_throughout(first):
    checked = 0
    for seed in range(first, first + 200):
        meaning = Meaning([RandomGraph(seed)])
        nodes = tuple(node for node in meaning.written if not node.is_bundle)
        values = Graph(meaning.written.inputs, nodes)(*meaning.args)
        if all(np.isfinite(value).all() for value in values):
            for graph, record in optimize(meaning.written, pipeline(1, fast_math=True)):
                checked += "apply_fast_math" in record.name and bool(record.fired)
                meaning.check(graph(*meaning.args), f"fast math, {record.name}")
    assert checked > 4


# ---------------------------------------------------------------- the test of the test


def plus_nothing(node, inputs):
    x, y = inputs
    return x if x.spec == node.spec and is_number(y, 0) else None


def times_nothing(node, inputs):
    _, y = inputs
    return y if y.spec == node.spec and is_number(y, 0) else None


def epsilon(node, inputs):
    x, y = inputs
    return x if x.spec == node.spec and is_number(y, np.float32(1e-5)) else None


def undone(node, inputs):
    return inputs[0].inputs[0] if inputs[0].op.name == "log" else None


def is_number(node, number):
    while node.op.name in ("broadcast_to", "reshape"):
        (node,) = node.inputs
    constant = isinstance(node.op, Constant)
    return constant and node.op.value.size == 1 and node.op.value.item() == number


# An op, what a rewrite makes of it, and the first graph that shows the mistake.
WRONG = {
    "-0.0 + 0 is not -0.0": ("add", plus_nothing, 179),
    "infinity times 0 is not 0": ("multiply", times_nothing, 12),
    "the epsilon counts": ("add", epsilon, 33),
    "the logarithm of a negative number is NaN": ("exp", undone, 419),
    "the maximum of NaN is NaN": ("maximum", lambda _, xs: ops.where(xs[0] > xs[1], *xs), 1435),
    "equals are not less": ("less", lambda _, xs: ops.less_equal(*xs), 56),
    "a flip turns": ("flip", lambda _, xs: xs[0], 6),
    "NaN is not positive": ("relu", lambda _, xs: ops.where(xs[0] > 0, xs[0], 0), 150),
    "a difference has an order": ("subtract", lambda _, xs: xs[1] - xs[0], 1),
    "tanh is no less than that": ("tanh", lambda node, xs: ops.tanh(xs[0]) * 0.99999, 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rewrite_is_found(name):
    op, rewrite, first = WRONG[name]
    changed = []

    def change(node, inputs):
        fits = node.op.name == op and inputs[0].dtype in FLOATS
        new = rewrite(node, inputs) if fits else None
        changed.append(new is not None)
        return node.replace(inputs) if new is None else new

    with pytest.raises(pytest.fail.Exception, match="of this program"):
        for seed in (*range(first, COUNT), *range(first)):
            meaning = Meaning([RandomGraph(seed)])
            changed.clear()
            graph = meaning.written.map(change)
            if any(changed):
                meaning.check(graph(*meaning.args), name, signs=True)


def test_the_printed_program_builds_the_same_graph(capsys):
    for seed in range(5):
        graph, scope = RandomGraph(seed), {}
        exec(str(graph), scope)
        for name in ("outputs", "updates"):
            again, once = (
                Graph(tuple(inputs), tuple(map(as_node, dict.fromkeys(values))))
                for inputs, values in (
                    (scope["inputs"], scope[name]),
                    (graph.inputs, getattr(graph, name)),
                )
            )
            assert str(again) == str(once)
        for x, y in zip(scope["arrays"], graph.arrays, strict=True):
            np.testing.assert_array_equal(x, y)
    assert capsys.readouterr().out


@pytest.mark.parametrize("jit", [0, 1, 2])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_values_that_rules_make_equal_are_computed_once(level, jit):
    x = mg.input("x", (4,))
    graph = Graph((x,), (ops.exp(ops.negative(-x)) + ops.exp(x),))
    (*_, (after, _)) = optimize(graph, pipeline(level, fast_math=False, jit=jit))
    assert str(after).count("exp") == 1  # by itself, or inside a kernel
