"""Rewrites of loops and their gradients: merged loops, dead results, shared values."""

from scanned import trained

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.ops.scan import Scan
from minigraph.passes.rewrite.loops import merge_loops


def loops(*outputs):
    """Return the loops that remain in a graph with these outputs."""
    return [node.op for node in merge_loops(Graph((), outputs)) if isinstance(node.op, Scan)]


def names(op):
    return [node.op.name for node in op.graph if node.inputs]


def test_the_forward_loop_runs_once_for_values_and_gradients():
    loss, last, wrt = trained()
    forward, backward = loops(loss, last, *mg.grad(loss, wrt))
    assert (forward.reverse, backward.reverse) == (False, True)


def test_the_weights_are_transposed_outside_of_the_loop():
    loss, _, wrt = trained()
    assert names(loops(loss)[0]) == ["matmul", "add", "tanh"]
    assert "permute_dims" not in names(loops(*mg.grad(loss, wrt))[1])


def test_the_gradient_of_the_weights_is_one_product_after_the_loop():
    loss, _, wrt = trained()
    _, backward = loops(*mg.grad(loss, wrt))
    assert names(backward).count("matmul") == 1
    assert backward.carried == 1
    products = [x for x in Graph((), tuple(mg.grad(loss, wrt))) if x.op.name == "matmul"]
    assert [x.inputs[0].shape for x in products] == [(3, 36)]


def test_unread_results_are_not_computed():
    x, h = mg.input("x", (9, 3)), mg.input("h", (3,))

    def body(carry, v):
        first, second = carry
        return (first + v, ops.sin(second)), (ops.cos(v), first * 2)

    (first, _), (_, doubled) = ops.scan(body, (h, h), x)
    assert names(loops(first)[0]) == ["add"]
    assert loops(first)[0].carried == 1
    assert sorted(names(loops(doubled)[0])) == ["add", "multiply"]
    assert loops(first, doubled)[0].carried == 1


def test_different_loops_are_not_merged():
    x, h = mg.input("x", (9, 3)), mg.input("h", (3,))
    step = lambda c, v: (c * v, c)  # noqa: E731
    ends = [ops.scan(step, h, x)[0], ops.scan(step, h, x, reverse=True)[0]]
    assert len(loops(*ends)) == 2
    assert len(dict.fromkeys(loops(*ends), 0)) == 2
    assert loops(ends[0])[0] == loops(ops.scan(step, h, x)[0])[0]
    doubled, _ = ops.scan(lambda c, v: (c * v * 2, c), h, x)
    tripled, _ = ops.scan(lambda c, v: (c * v * 3, c), h, x)
    assert loops(doubled)[0] != loops(tripled)[0]
    prints = [mg.comp_graph("cpu").compile([x, h], y).report() for y in (doubled, tripled)]
    assert prints[0].fingerprint != prints[1].fingerprint
