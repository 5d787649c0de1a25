"""Errors for ops that violate their contracts; `wrong_calls/rewrites.txt` has more."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.ops.elementwise import Elementwise
from minigraph.passes.levels import optimize

X = mg.input("x", (4,))
W = mg.Parameter(np.ones(4, "float32"), name="w")


class Same(Elementwise):
    """x, with a gradient that each test defines."""

    c = "{0}"
    accepts = "f"
    operands = ("x",)

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("grad", "found"),
    [
        (lambda self, dy, y, x: dy, "each input, not broadcast_to"),
        (lambda self, dy, y, x: None, "each input, not NoneType"),
        (lambda self, dy, y, x: (dy, dy), "each input: 1, not 2"),
        (lambda self, dy, y, x: (1.0,), "each input; float is neither"),
        (lambda self, dy, y, x: (dy.sum(),), "each input; that for parameter w: float32[4] is fl"),
        (lambda self, dy, y, x: (dy[:2],), "each input; that for parameter w: float32[4] is float"),
        (lambda self, dy, y, x: (dy.astype("float64"),), "each input; that for parameter w: float"),
    ],
)
def test_a_gradient_for_each_input_is_what_grad_returns(grad, found, monkeypatch):
    monkeypatch.setattr(Same, "grad", grad)
    with pytest.raises(mg.GraphError) as error:
        mg.grad(Same.of(W).sum(), [W])
    assert "same: grad returns a tuple of a gradient, or None, for " + found in str(error.value)
    assert "\n" not in str(error.value)


class WithoutC(Elementwise):
    """x, which only the device "reference" can compute."""

    accepts = "f"

    def forward(self, x):
        return x


class Scaled(Elementwise):
    """x times a number."""

    by: float

    accepts = "f"

    def forward(self, x):
        return x * self.by


@pytest.mark.parametrize("level", [0, 3])
def test_an_op_without_c_runs_on_the_reference_and_is_an_error_elsewhere(level):
    y = WithoutC.of(X) + 1
    numbers = np.zeros(4, "float32")
    np.testing.assert_array_equal(mg.comp_graph("reference").compile([X], y)(numbers), np.ones(4))
    with pytest.raises(
        mg.GraphError, match=r"^without_c has no C: the attribute `c` of its class is the C"
    ):
        mg.comp_graph("cpu", {"graph_opt_level": level}).compile([X], y)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{0} + {3}", "Replacement index 3 out of range"),
        ("({{0})", "Single '}' encountered"),
        ("{0", "expected '}' before end of string"),
        ("{0} * {op.by_much}", "has no attribute 'by_much'"),
        ("{x} * {op.by}", "'x'"),
        ("({ float y = {0}; y; })", "unexpected '{' in field name"),
        ("{0:d}", "Unknown format code 'd'"),
    ],
)
def test_an_error_names_the_fields_of_a_c_template(template, why, monkeypatch):
    monkeypatch.setattr(Scaled, "c", template)
    for level in (0, 3):
        with pytest.raises(mg.GraphError) as caught:
            mg.comp_graph("cpu", {"graph_opt_level": level}).compile([X], Scaled(2.0)(X) + 1)
        text = str(caught.value)
        assert text.startswith(f"scaled: cannot fill the C template {template!r} (") and why in text
        assert (
            "its fields may be {0}, {T}, {f}, {R}, {B}, {round}, {i}, {op.by}, and braces" in text
        )


def test_map_may_put_an_expression_of_a_node_in_its_place():
    def wrapped(graph, notes):
        def wrap(node, inputs):
            new = node.replace(inputs)
            return new + 1 if node.op.name == "exp" else new

        return graph.map(wrap)

    ((graph, _),) = optimize(Graph((X,), (ops.exp(X),)), [wrapped])
    (got,) = graph(np.zeros(4, "float32"))
    np.testing.assert_array_equal(got, np.full(4, 2))
