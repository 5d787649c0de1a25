"""Checks and printing inside of a graph."""

import re

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph.location import layer

LEVELS = [0, 1, 2, 3, -3]


def compiled(inputs, outputs, level=3, device="cpu", updates=None):
    return mg.comp_graph(device, {"graph_opt_level": level, "autotune": "off"}).compile(
        inputs, outputs, updates
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_check_passes_values_on_and_raises_what_is_wrong(level, device):
    x = mg.input("x", (2, 3))
    with layer("root"):
        checked = ops.check(x + 1 >= 0, "roots are of what is not negative", x + 1)
    f = compiled([x], ops.sqrt(checked) * 2 + 1, level, device)
    good = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_allclose(f(good), np.sqrt(good + 1) * 2 + 1, rtol=1e-6)
    good[1, 1] = -3
    with pytest.raises(mg.GraphError) as raised:
        f(good)
    text = str(raised.value)
    message = "roots are of what is not negative (1 of 6 elements are false, the first at (1, 1))"
    assert message in text and "in layer root, at " in text and "test_observation.py:" in text
    assert "\n" not in text


def test_a_check_of_a_value_names_the_value_once():
    x = mg.input("x", (2,))
    with pytest.raises(mg.GraphError, match=r"\(operands greater: bool\[2\]\) at "):
        compiled([x], ops.check(x > 0, "all are positive"), 0)([1, -1])


@pytest.mark.parametrize("level", LEVELS)
def test_a_check_that_fails_leaves_parameters_as_they_were(level):
    x, w = mg.input("x", (3,)), mg.Parameter(np.ones(3, "float32"))
    loss = ops.check((x < 5).all(), "x is small", (x * w).sum())
    step = compiled([x], loss, level, updates={w: w - mg.grad(loss, [w])[0]})
    step([1.0, 2.0, 3.0])
    before = w.numpy()
    with pytest.raises(mg.GraphError, match=r"x is small \(1 of 1 elements are false\)"):
        step([1.0, 2.0, 7.0])
    np.testing.assert_array_equal(w.numpy(), before)
    np.testing.assert_array_equal(before, [0, -1, -2])


def test_a_condition_alone_is_passed_on():
    x = mg.input("x", (3,))
    f = compiled([x], ops.check(x > 0, "positive").sum())
    assert f([1.0, 2.0, 3.0]) == 3
    with pytest.raises(mg.GraphError, match="positive"):
        f([1.0, 0.0, 3.0])


def test_a_condition_that_is_known_before_the_call_is_checked_in_it():
    x = mg.input("x", (3,))
    holds = compiled([x], ops.check(np.True_, "holds", x) * 2)
    np.testing.assert_array_equal(holds(np.ones(3)), [2, 2, 2])
    never = compiled([x], ops.check(np.False_, "never holds", x) * 2)
    with pytest.raises(mg.GraphError, match="never holds"):
        never(np.ones(3))


def test_a_check_runs_in_a_loop_and_in_a_gradient():
    x = mg.input("x", (4, 2))
    _, ys = ops.scan(lambda c, v: (c, ops.check(v < 9, "below 9", v) * c), np.ones(2, "float32"), x)
    (gradient,) = mg.grad(ys.sum(), [x])
    f = compiled([x], [ys, gradient])
    f(np.ones((4, 2)))
    with pytest.raises(mg.GraphError, match="below 9"):
        f(np.full((4, 2), 10.0))


def test_a_check_that_nothing_reads_is_not_run():
    x = mg.input("x", (3,))
    ops.check(x > 0, "positive", x)
    assert compiled([x], x * 2)([-1.0, 0.0, 1.0])[0] == -2


@pytest.mark.parametrize("level", LEVELS)
def test_values_are_printed_in_their_order_in_each_call(level, capsys):
    x = mg.input("x", (2,))
    y = ops.print(x * 2, "doubled")
    f = compiled([x], [ops.print(ops.exp(y) + x, "later"), y.sum()], level)
    f([0.0, 1.0])
    f([0.0, 2.0])
    lines = re.findall(r"(\w+), call (\d): (.*)", capsys.readouterr().out)
    expected = [
        ("doubled", "0", "[0. 2.]"),
        ("later", "0", "[1.       8.389056]"),
        ("doubled", "1", "[0. 4.]"),
        ("later", "1", "[ 1.      56.59815]"),
    ]
    # level 0 prints, too, and says the last digit its way
    assert [line[:2] for line in lines] == [
        w[:2] for half in (expected[:2], expected[2:]) for w in half * (1 + (level < 0))
    ]
    if level == 0:
        assert lines == expected


def test_constants_are_printed_in_calls_and_large_arrays_abridged(capsys):
    x = mg.input("x", (3,))
    f = compiled([x], x + ops.print(np.zeros((500, 500), "float32")).sum())
    assert capsys.readouterr().out == ""
    f(np.zeros(3))
    text = capsys.readouterr().out
    assert "..." in text and len(text) < 1000
    assert re.match(r"test_observation.py:\d+, call 0:\n", text)


def test_a_gradient_flows_through_what_is_printed(capsys):
    x = mg.input("x", (3,))
    (gradient,) = mg.grad((ops.print(x, "x") ** 2).sum(), [x])
    np.testing.assert_allclose(compiled([x], gradient)([1.0, 2.0, 3.0]), [2, 4, 6])
    assert capsys.readouterr().out.startswith("x, call 0: [1. 2. 3.]")
