"""The representations of expressions in notebooks and consoles."""

import html

import numpy as np

import minigraph as mg
from minigraph import nn, ops


def lines(expression):
    text = html.unescape(expression._repr_html_())
    return text.removeprefix("<pre>").removesuffix("</pre>").splitlines()


def test_a_notebook_lists_the_ops_of_an_expression_with_operands_and_lines():
    x, w = mg.input("<x>", (3, 4)), mg.Parameter(np.ones((4, 5), "float32"), "weights")
    y = ops.relu(x @ w)
    picture = lines(y)
    assert [line.partition(", made")[0] for line in picture] == [
        "%0: input <x>: float32[3,4]",
        "%1: parameter weights: float32[4,5]",
        "%2: matmul: float32[3,5] %0 %1",
        "%3: relu: float32[3,5] %2",
    ]
    assert all("test_picture.py:" in line for line in picture)
    assert "<x>" not in y._repr_html_()


def test_a_large_expression_shows_what_is_nearest_and_stays_small():
    x = mg.input("x", (3,))
    for _ in range(5000):
        x = ops.exp(x)
    first, second, *_ = lines(x)
    assert first == "4977 ops before these"
    assert second.startswith("%0: exp: float32[3] …")
    wide = ops.concat([mg.input(f"x{i}", (3,)) for i in range(500)], 0)
    assert len(wide._repr_html_()) < 20_000


def test_reprs_are_lines():
    x = mg.input("x", (4, 3, 8, 8))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    long = ops.where(x > 0, x, np.arange(8.0)) + mg.input("n" * 1000, (8,))
    for value in (x, net(x), long, long.inputs[1], mg.grad(x.sum(), [x])[0]):
        assert len(repr(value)) < 200 and "\n" not in repr(value)
