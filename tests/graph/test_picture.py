"""The picture of an expression that a notebook shows."""

import re
from xml.etree import ElementTree

import numpy as np

import minigraph as mg
from minigraph import nn, ops


def texts(expression):
    root = ElementTree.fromstring(expression._repr_html_())
    return [element.text for element in root.iter() if element.tag.endswith("text")]


def test_a_picture_has_a_box_for_each_op_and_its_result():
    x, w = mg.input("<x>", (3, 4)), mg.Parameter(np.ones((4, 5), "float32"), "weights")
    y = ops.relu(x @ w + np.ones(5, "float32"))
    found = texts(y)
    assert found[::2] == ["relu", "add", "matmul", "<x>", "weights"]
    assert found[1] == "float32[3,5]"
    assert y._repr_html_().count("<line") == 4
    assert "test_picture.py:" in y._repr_html_()


def test_boxes_stand_below_what_they_read():
    x = mg.input("x", (3,))
    y = ops.exp(x) + x
    tops = [int(y) for y in re.findall(r'<rect x="\d+" y="(\d+)"', y._repr_html_())]
    add, exp, leaf = tops
    assert leaf < exp < add


def test_a_large_expression_shows_what_is_nearest_and_stays_small():
    x = mg.input("x", (3,))
    for _ in range(5000):
        x = ops.exp(x)
    page = x._repr_html_()
    assert "and 4977 more above" in page
    assert len(page) < 20_000
    wide = ops.concat([mg.input(f"x{i}", (3,)) for i in range(500)], 0)
    assert len(wide._repr_html_()) < 20_000


def test_a_result_of_several_and_a_parameter_have_pictures():
    net = nn.BatchNorm2d(3)
    assert texts(ops.relu(net(mg.input("x", (4, 3, 2, 2)))))[::2][:3] == ["relu", "batch_norm", "x"]
    assert texts(mg.Parameter(np.ones(3), "p"))[0] == "p"


def test_reprs_are_lines():
    x = mg.input("x", (4, 3, 8, 8))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    long = ops.where(x > 0, x, np.arange(8.0)) + mg.input("n" * 1000, (8,))
    for value in (x, net(x), long, long.inputs[1], mg.grad(x.sum(), [x])[0]):
        assert len(repr(value)) < 200 and "\n" not in repr(value)
