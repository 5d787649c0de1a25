"""Copies and pickles of expressions: shared nodes, deep graphs, random numbers."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Loop, toposort


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_parameter_shares_nothing_with_it(duplicate):
    w = mg.Parameter(np.ones(2, np.float32), "w", trainable=False)
    cg = mg.comp_graph("reference")
    step = cg.compile([], w * 3, {w: w + 1})  # from now on its state has a claim
    step()
    other = duplicate(w)
    both = cg.compile([], [w, other], {other: other * 5})
    both()
    np.testing.assert_array_equal(both(), [[2, 2], [10, 10]])
    assert (other.name, other.trainable, other.source) == ("w", False, w.source)


class Named(mg.Parameter):
    def __init__(self, title):
        super().__init__(np.ones(2, np.float32))
        self.title = title


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_a_parameter_of_a_class_of_ones_own_has_its_attributes(duplicate):
    other = duplicate(Named("the first"))
    assert (type(other), other.title) == (Named, "the first")
    np.testing.assert_array_equal(other.numpy(), [1, 1])


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_an_expression_computes_the_same_beside_it(duplicate):
    y = ops.exp(mg.Parameter(np.zeros(2, np.float32))) + 1
    both = mg.comp_graph("reference", {"graph_opt_level": 0}).compile([], [y, duplicate(y)])
    np.testing.assert_array_equal(both(), [[2, 2], [2, 2]])


def by_python(value):
    file = io.BytesIO()
    pickle._Pickler(file, 2).dump(value)
    return pickle.loads(file.getvalue())


DEEP = [copy.deepcopy, pickled, by_python]


def deep(x, depth=2000):
    for _ in range(depth):
        x = ops.tanh(x) + x
    return x


@pytest.mark.parametrize("duplicate", DEEP)
def test_a_deep_expression_is_copied_with_what_it_shares(duplicate):
    x = mg.input("x", (2,))
    y = deep(x)
    once, copied, again = duplicate([y, x, y * 2])
    assert again.inputs[0] is once
    assert Graph((copied,), (once,)).order[0] is copied
    for old, new in zip(Graph((x,), (y,)), Graph((copied,), (once,)), strict=True):
        assert (old.op.name, old.specs, old.source) == (new.op.name, new.specs, new.source)
        assert old.order != new.order


@pytest.mark.parametrize("duplicate", DEEP)
def test_a_copy_remembers_in_which_order_it_was_made(duplicate):
    x = mg.input("x", (2,))
    former = ops.exp(x)
    later = ops.sin(x)
    x, y = duplicate([x, later + former])
    later, former = y.inputs
    assert x.order < former.order < later.order < y.order


@pytest.mark.parametrize("duplicate", DEEP)
def test_a_loop_with_a_deep_body_is_copied(duplicate):
    x = mg.input("x", (3, 2))
    y = deep(ops.scan(lambda h, v: (deep(h * v, 600), h), x[0], x)[0], 600)
    again, _ = duplicate((deep(y, 600), x))
    assert len(Graph((), (again,)).order) == len(Graph((), (deep(y, 600),)).order)
    body = next(node.op.graph for node in toposort([again]) if isinstance(node.op, Loop))
    assert len(body.order) > 1200


@pytest.mark.parametrize("duplicate", DEEP)
def test_many_expressions_of_one_chain_are_copied_together(duplicate):
    chain = [mg.input("x", (2,))]
    for _ in range(700):
        chain.append(ops.tanh(chain[-1]))
    for nodes, step in ((chain, -1), (chain[::-1], 1)):
        copies = duplicate(nodes)
        read = copies[:-1] if step == -1 else copies[1:]
        readers = copies[1:] if step == -1 else copies[:-1]
        assert all(y.inputs[0] is x for x, y in zip(read, readers, strict=True))


def test_an_expression_that_could_not_be_pickled_can_be_later():
    y = deep(mg.input("x", (2,)))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps([y, threading.Lock()])
    assert len(Graph((), (pickled(y),)).order) == len(Graph((), (y,)).order)


@pytest.mark.parametrize("duplicate", DEEP)
def test_a_copy_of_a_random_expression_draws_the_same_numbers(duplicate):
    x = mg.input("x", (50,))
    y = ops.dropout(x, 0.5) + ops.random_normal((50,))
    cg = mg.comp_graph("reference")
    copied, again = duplicate([x, y])
    ones = np.ones(50)
    np.testing.assert_array_equal(cg.compile([copied], again)(ones), cg.compile([x], y)(ones))
