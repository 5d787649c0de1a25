"""Loops of models of ONNX whose steps differ in what shapes depend on."""

import re

import numpy as np
import pytest

import minigraph as mg

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.parser")

HEAD = '<ir_version: 10, opset_import: ["" : 21]> net '
# The means of parts of a vector that begin and end where `ends` says, as torch's exporter writes
# EmbeddingBag.
BAGS = """(float[n] x) => (float[m] y) <int64[4] ends = {0, 1, 3, 6}, int64 times = {3},
    bool yes = {1}, int64[1] zero = {0}, int64 one = {1}>
{
    y = Loop (times, yes) <body = step (int64 i, bool c) => (bool go, float mean) {
        go = Identity (c)
        low = Gather (ends, i)
        next = Add (i, one)
        high = Gather (ends, next)
        lows = Unsqueeze (low, zero)
        highs = Unsqueeze (high, zero)
        part = Slice (x, lows, highs, zero)
        mean = ReduceMean <keepdims = 0> (part)
    }>
}"""
GROWING = """(float[2] x) => (float[m] y) <int64 times = {3}, bool yes = {1}>
{
    y = Loop (times, yes, x) <body = step (int64 i, bool c, float[k] a) => (bool go, float[l] b) {
        go = Identity (c)
        b = Concat <axis = 0> (a, x)
    }>
}"""
SCANNED = """(float[6] x) => (float[m] y) <int64[3, 1] ends = {{1, 3, 6}}, float start = {{0}},
    int64[1] zero = {{0}}>
{{
    last, y = Scan <num_scan_inputs = 1,
    body = step (float s, int64[1] end) => (float t, float z) {{
        part = Slice (x, zero, end, zero)
        t = ReduceSum <keepdims = 0> (part)
        z = Add (s, t)
    }}> (start, {ends})
}}"""
# Doubles a vector until a counter reaches `limit`, as tf2onnx writes `while`.
WHILE = """(float[2] x, int64 limit) => (float[2] y, int64[m] counts)
    <int64 one = {1}, int64 zero = {0}>
{
    go = Less (zero, limit)
    n, y, counts = Loop (, go, zero, x) <body = step (int64 i, bool c, int64 k, float[2] a)
    => (bool d, int64 l, float[2] b, int64 count) {
        l = Add (k, one)
        b = Add (a, a)
        d = Less (l, limit)
        count = Identity (l)
    }>
}"""


def parsed(text):
    return onnx.parser.parse_model(HEAD + text)


def test_the_shapes_of_a_step_may_depend_on_its_number():
    x = np.arange(6, dtype="f")
    function = mg.onnx.function(parsed(BAGS), "reference")
    np.testing.assert_array_equal(function(x), [0, 1.5, 4])
    np.testing.assert_array_equal(function(x[::-1].copy()), [5, 3.5, 1])


def test_what_a_loop_carries_may_grow():
    function = mg.onnx.function(parsed(GROWING), "reference")
    np.testing.assert_array_equal(function(np.float32([1, 2])), [1, 2] * 4)


def test_the_shapes_of_a_step_of_a_scan_may_depend_on_a_known_slice():
    function = mg.onnx.function(parsed(SCANNED.format(ends="ends")), "reference")
    np.testing.assert_array_equal(function(np.ones(6, "f")), [1, 4, 9])


def test_the_values_that_the_shapes_in_a_loop_depend_on_are_those_of_the_call():
    text = SCANNED.format(ends="given").replace("(float[6] x)", "(float[6] x, int64[k, 1] given)")
    function = mg.onnx.function(parsed(text), "reference")
    for ends, results in (([1, 3, 6], [1, 4, 9]), ([2, 2, 2], [2, 4, 4])):
        np.testing.assert_array_equal(function(np.ones(6, "f"), np.array(ends)[:, None]), results)
    with pytest.raises(mg.GraphError, match=r"its k steps differ; .* shapes="):
        mg.onnx.load(parsed(text))
    with pytest.raises(mg.GraphError, match=r"value of the input given; onnx.load"):
        mg.onnx.load(parsed(text), shapes={"given": (3, 1)})
    with pytest.raises(mg.GraphError, match="2,000 steps"):
        function(np.ones(6, "f"), np.ones((2000, 1), "int64"))


def test_a_loop_of_many_steps_that_differ_is_an_error_of_one_line():
    text = BAGS.replace("times = {3}", "times = {100000}")
    with pytest.raises(mg.GraphError, match="100,000 steps") as caught:
        mg.onnx.function(parsed(text), "reference")
    assert "\n" not in str(caught.value)


def test_a_loop_runs_until_its_body_says_that_it_ends():
    function = mg.onnx.function(parsed(WHILE), "reference")
    for limit in (3, 1, 0):
        y, counts = function(np.float32([1, 2]), limit)
        np.testing.assert_array_equal(y, np.float32([1, 2]) * 2**limit)
        np.testing.assert_array_equal(counts, np.arange(1, limit + 1))
    with pytest.raises(mg.GraphError, match="more than 1,000 steps, and any may end the loop"):
        function(np.float32([1, 2]), 1 << 40)
    with pytest.raises(mg.GraphError, match=r"value of the input limit; onnx.load"):
        mg.onnx.load(parsed(WHILE))


@pytest.mark.parametrize("none", ["yes = {0}", "times = {0}"])
def test_a_loop_of_which_no_step_runs_returns_what_it_was_given(none):
    title = none.partition(" ")[0]
    text = re.sub(rf"{title} = {{\d}}", none, GROWING)
    results = mg.onnx.function(parsed(text), "reference")(np.float32([1, 2]))
    np.testing.assert_array_equal(results, [1, 2])
