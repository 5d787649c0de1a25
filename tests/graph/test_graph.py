"""Graphs: text, order of nodes, rebuilding and checking."""

import numpy as np
import pytest
from lines import value

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Op, constant
from minigraph.ops.arithmetic import Add
from minigraph.ops.batch_norm import BatchNorm

PROGRAM = """\
graph(x: float32[2,3]):
  %0: float32[3,4] = parameter w
  %1: float32[2,4] = matmul x %0
  %2: float32[] = const 0.5
  %3: float32[2,4] = add %1 %2
  %4: float32[4] = const<4>
  %5: float32[4] = const<4>
  %6: float32[2,4], float32[4], float32[4] = batch_norm[eps=0.5] %3 %4 %5
  %7: float32[4] = item[index=1] %6
  %8: float32[1] = sum[axes=(0,)] %7
  %9: float32[] = reshape[shape=()] %8
  return %3, %9, x"""


def test_a_graph_prints_as_a_program():
    x, w = mg.input("x", (2, 3)), mg.Parameter(np.ones((3, 4), "float32"), "w")
    y = x @ w + 0.5
    _, mean, _ = ops.batch_norm_with_statistics(y, eps=0.5)
    assert str(Graph((x,), (y, mean.sum(), x))) == PROGRAM


def test_constants_print_their_value_or_their_size():
    assert str(constant(2.5).op) == "const 2.5"
    assert str(constant(True).op) == "const 1"
    assert str(constant([[3]]).op) == "const 3"
    assert str(constant([1, 2]).op) == "const<2>"
    assert str(constant(1, "bfloat16").op) in ("const 1", "const<1>")
    assert repr(mg.input("x", (2,))) == "input x: float32[2]"


def test_a_graph_lists_each_node_once_after_its_inputs():
    x = mg.input("x", ())
    y = x
    for _ in range(50):
        y = y + y  # 2 ** 50 paths
    graph = Graph((x,), (y, y, x))
    order = list(graph)
    assert len(order) == len(set(order)) == 51
    seen = set()
    for node in order:
        assert seen.issuperset(node.inputs)
        seen.add(node)
    assert order == list(graph.order) or all(a is b for a, b in zip(order, graph, strict=True))
    assert graph(np.float32(1))[0] == 2.0**50


def test_the_order_depends_on_nothing_but_the_graph():
    def build():
        x, y = mg.input("x", (2,)), mg.input("y", (2,))
        a, b = ops.exp(x), ops.sin(y)
        return Graph((x, y), (b * a, a + b))

    assert str(build()) == str(build())
    assert [n.op.name for n in build()] == ["y", "sin", "x", "exp", "multiply", "add"]


def test_parameters_come_in_the_order_of_their_first_use():
    a, b, c = (mg.Parameter(0.0, name) for name in "abc")
    assert [p.name for p in Graph((), (c + a, b * a)).parameters] == ["c", "a", "b"]


def test_users_are_listed_once_for_each_use():
    x = mg.input("x", ())
    y = x * x
    users = Graph((x,), (y, y + x)).users()
    assert [n.op.name for n in users[x]] == ["multiply", "multiply", "add"]
    assert [n.op.name for n in users[y]] == ["add"]


def test_map_rebuilds_what_changes_and_keeps_the_rest():
    x, y = mg.input("x", ()), mg.input("y", ())
    kept, changed = ops.exp(x), ops.sin(y)
    graph = Graph((x, y), (kept, changed + kept))

    def cos_for_sin(node, inputs):
        return ops.cos(*inputs) if node.op.name == "sin" else node.replace(inputs)

    new = graph.map(cos_for_sin)
    assert new.outputs[0] is kept
    assert [n.op.name for n in new] == ["x", "exp", "y", "cos", "add"]
    assert [n.op.name for n in graph] == ["x", "exp", "y", "sin", "add"]
    assert graph.map(lambda node, inputs: node.replace(inputs)).outputs[1] is graph.outputs[1]


def test_map_gives_a_node_what_it_reads_from_now_on():
    x, y = mg.input("x", ()), mg.input("y", ())
    outer = ops.exp(ops.sin(ops.negative(x)))
    graph = Graph((x, y), (outer,))

    def product(node, inputs):
        return inputs[0] * inputs[1] if node is outer else node.replace(inputs)

    new = graph.map(product, reads={outer: (x, y)})
    assert [n.op.name for n in new] == ["x", "y", "multiply"]


def test_substituted_nodes_may_be_written_with_substituted_nodes():
    x, y = mg.input("x", ()), mg.input("y", ())
    inner = ops.sin(x)
    outer = ops.exp(inner) + y
    graph = Graph((x, y), (outer, inner, y))
    new = graph.substitute({inner: [ops.cos(x)], outer: [y - inner]})
    assert [n.op.name for n in new] == ["y", "x", "cos", "subtract"]
    assert new.outputs[0].inputs[1] is new.outputs[1] and new.outputs[2] is y
    assert graph.substitute({}) is graph


def test_the_items_of_a_substituted_bundle_are_its_new_results():
    x, w = mg.input("x", (2, 3, 4, 4)), mg.input("w", (3,))
    y, _, var = BatchNorm(0.1).results(x, w, w)
    graph = Graph((x, w), (ops.exp(var), y))
    new = graph.substitute({y.inputs[0]: [x, w, w + 1]})
    assert [n.op.name for n in new] == ["w", "constant", "add", "exp", "x"]
    assert new.outputs[1] is x


def test_check_accepts_what_the_ops_infer():
    x = mg.input("x", (1, 1, 4, 4))
    y = ops.max_pool2d(ops.exp(x + mg.Parameter(1.0)), 2)
    Graph((x,), (y, *mg.grad(y.sum(), [x]))).check()


def test_nodes_and_ops_cannot_be_changed_by_accident():
    with pytest.raises(AttributeError):
        mg.input("x", ()).colour = "red"
    with pytest.raises(AttributeError):
        Add().name = "plus"


class Twice(Op):
    """An op that a user defines."""

    def infer(self, x):
        return x

    def forward(self, x):
        return x + x


class Narrows(Twice):
    """An op whose meaning contradicts its shape rule, by a shape that broadcasts."""

    def forward(self, x):
        return x[:1]


class Forgets(Twice):
    """An op whose meaning returns nothing."""

    def forward(self, x):
        x + x


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Narrows(), r"narrows: forward returned float32\[1\]; the op infers float32\[2\]"),
        (Forgets(), r"forgets: forward returned object\[\]; the op infers float32\[2\]"),
    ],
)
def test_an_op_that_contradicts_itself_is_an_error(op, error, level):
    x = mg.input("x", (2,))
    with pytest.raises(mg.GraphError, match=error):
        mg.comp_graph(options={"graph_opt_level": level}).compile([x], op(x) + 1)(np.ones(2, "f"))


def test_an_op_in_a_program_of_its_own_needs_shape_rule_and_meaning_alone():
    x = mg.input("x", (2,))
    y = Twice()(x)
    assert str(y.op) == "twice"
    np.testing.assert_array_equal(value(y, x=np.ones(2)), [2, 2])
