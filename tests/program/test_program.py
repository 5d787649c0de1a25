"""Programs compute what their graphs mean, on random graphs."""

import numpy as np
import pytest
from random_functions import random_graph, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph


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
