"""Methods of expressions, and the errors for methods that only arrays have."""

import numpy as np
import pytest
from samples import real

import minigraph as mg
from minigraph.graph import Graph

X = mg.input("x", (2, 3, 4), "float64")
VALUE = real(2, 3, 4, low=0.5)

SAME = {
    "exp": (X.exp(), np.exp(VALUE)),
    "abs": ((-X).abs(), VALUE),
    "var": (X.var(axis=1, correction=1), VALUE.var(1, ddof=1)),
    "std": (X.std(1, keepdims=True), VALUE.std(1, keepdims=True)),
    "argmin": (X.argmin(-1), VALUE.argmin(-1)),
    "flatten": (X.flatten(1), VALUE.reshape(2, 12)),
    "squeeze": (X[:1].squeeze(0), VALUE[0]),
    "unsqueeze": (X.unsqueeze(-1), VALUE[..., None]),
    "view": (X.view(4, -1), VALUE.reshape(4, 6)),
    "permute": (X.permute(2, 0, 1), VALUE.transpose(2, 0, 1)),
    "permute-tuple": (X.permute((2, 0, 1)), VALUE.transpose(2, 0, 1)),
    "cumsum": (X.cumsum(0), VALUE.cumsum(0)),
    "clip": (X.clip(max=1), VALUE.clip(max=1)),
    "detach": (X.detach(), VALUE),
    "sort": (X.sort(1), np.sort(VALUE, 1)),
    "argsort": (X.argsort(), np.argsort(VALUE)),
    "topk": (X.topk(1)[0], VALUE.max(-1, keepdims=True)),
    "gather": (X.gather(0, [[[1]]]), VALUE[1:, :1, :1]),
    "index_add": (X.index_add(0, [1], X[:1]), VALUE + [[[0]], [[1]]] * VALUE[0]),
}


@pytest.mark.parametrize("name", SAME)
def test_methods_are_the_functions_of_ops(name):
    node, want = SAME[name]
    np.testing.assert_allclose(Graph((X,), (node,))(VALUE)[0], want, rtol=1e-13, strict=True)


def test_a_detached_expression_passes_no_gradient():
    (dx,) = mg.grad((X.detach() * X).sum(), [X])
    np.testing.assert_array_equal(Graph((X,), (dx,))(VALUE)[0], VALUE)
