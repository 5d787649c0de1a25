"""Programs compute what their graphs mean, on random graphs."""

import numpy as np
import pytest
from meaning import Meaning
from plans import real
from random_graphs import RandomGraph

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_function_of_large_arrays_computes_what_its_graph_means(seed, bulk):
    """Twice, since the second call finds the memory as the first left it."""
    meaning = Meaning([RandomGraph(seed, lengths=(3, 60, 127), largest=1 << 19)])
    step = meaning.compiled("cpu", {"num_threads": 3, "bulk": bulk})
    for _ in range(2):
        meaning.check(meaning.call(step), f"bulk {bulk}")


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
    graph = Graph((), (*outputs, *updates.values()))
    for _ in range(2):
        expected = [np.array(y) for y in graph()]
        results = [*function(), *(w.numpy() for w in updates)]
        for y, wanted in zip(results, expected, strict=True):
            scale = np.abs(wanted).max(initial=1)
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5 * scale)


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


def test_a_parameter_that_the_first_step_reads_gets_a_constant(device):
    w = mg.Parameter(np.ones(3, "float32"))
    function = mg.comp_graph(device).compile([], w * 2, {w: np.zeros(3, "float32")})
    assert function().tolist() == [2, 2, 2]
    assert w.numpy().tolist() == [0, 0, 0]
