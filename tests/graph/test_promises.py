"""What ops and passes may do.

What they must not do is in `wrong_calls/promises.txt` and `wrong_calls/rewrites.txt`.
"""

import numpy as np

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.levels import optimize

X = mg.input("x", (4,))


class WithoutC(Elementwise):
    """x, which only the device "reference" can compute."""

    accepts = "f"

    def forward(self, x):
        return x


def test_an_op_without_c_runs_on_the_reference():
    compiled = mg.comp_graph("reference").compile([X], WithoutC.of(X) + 1)
    np.testing.assert_array_equal(compiled(np.zeros(4, "float32")), np.ones(4))


def test_map_may_put_an_expression_of_a_node_in_its_place():
    def wrapped(graph, notes):
        def wrap(node, inputs):
            new = node.replace(inputs)
            return new + 1 if node.op.name == "exp" else new

        return graph.map(wrap)

    ((graph, _),) = optimize(Graph((X,), (ops.exp(X),)), [wrapped])
    (result,) = graph(np.zeros(4, "float32"))
    np.testing.assert_array_equal(result, np.full(4, 2))
