"""Level 3 from outside: options, the report, and the number of compilations."""

import numpy as np
import pytest
from level_3 import array, assert_same, check, compilations, compiled
from needs import needs_compiler
from new_process import begin

import minigraph as mg
from minigraph import ops
from minigraph.passes.kernels.group import MAX_NODES

pytestmark = needs_compiler


def three(x):
    return ops.softmax(x * 2 + 1) * 3


@pytest.mark.parametrize(
    ("level", "jit", "kernels"),
    [
        *((level, "auto", count) for level, count in ((0, 0), (1, 0), (2, 0), (3, 1))),
        *((level, 0, 0) for level in (0, 2, 3)),
        *((level, 2, 1) for level in (0, 1, 2, 3)),
    ],
)
def test_the_jit_option_says_whether_kernels_are_generated(level, jit, kernels):
    check(three, array(8, 9), kernels=kernels, level=level, **{"graph_opt.jit": jit})


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_first_jit_level_keeps_reductions_out(level):
    report = check(
        lambda x: ops.tanh(ops.exp(ops.sin(x)).sum(1)) * 3,
        array(8, 9),
        level=level,
        **{"graph_opt.jit": 1},
    )
    assert report.ops["sum"] == 1 and report.ops["fused"] == 2
    assert all("sum" not in kernel.ops for kernel in report.kernels)


def test_the_report_tells_of_each_kernel():
    x, y = mg.input("x", (40, 50)), mg.input("y", (50,))
    product = x * y
    function = compiled([product, ops.exp(product).sum(1)], [x, y])
    (kernel,) = function.report().kernels
    assert sorted(kernel.ops) == ["exp", "multiply", "sum"]
    assert (kernel.inputs, kernel.outputs) == (2, 2)
    assert kernel.bytes == 4 * (2 * 40 * 50 + 50 + 40)
    assert kernel.name in kernel.source and "expf" in kernel.source
    assert len(kernel.lines) == 2 and all("test_jit.py" in line for line in kernel.lines)
    assert kernel.name in function.report().section("kernels")


def test_the_report_says_why_neighbours_are_apart():
    x = mg.input("x", (40, 40))
    stops = compiled([ops.relu(ops.exp(x) @ x + 1) * 2], [x]).report().stops
    assert {(stop.producer, stop.consumer) for stop in stops} == {
        ("exp", "matmul"),
        ("matmul", "add"),
    }
    assert all("test_jit.py" in stop.line and stop.reason for stop in stops)
    assert compiled([ops.exp(x) * 2], [x]).report().stops == []


# ---------------------------------------------------------------- compilations


def test_a_hundred_equal_functions_compile_once(monkeypatch, tmp_path):
    begin(monkeypatch, tmp_path)

    def build():
        x = mg.input("x", (30, 40))
        compiled([ops.softmax(ops.tanh(x * 2) / 3 + 1)], [x])

    assert compilations(build) >= 1
    assert compilations(lambda: [build() for _ in range(100)]) == 0


def test_another_batch_size_compiles_nothing():
    def build(n):
        x = mg.input("x", (n, 40))
        y = ops.layer_norm(ops.gelu(x * 2), (40,)) + ops.dropout(x, 0.5)
        compiled([y, ops.mse_loss(y, x), *mg.grad(ops.mse_loss(y, x), [x])], [x])

    build(16)
    assert compilations(lambda: build(64)) == compilations(lambda: build(500)) == 0


def test_a_long_chain_is_several_kernels():
    length = 20 * MAX_NODES
    x = mg.input("x", (8,))
    y = x
    for i in range(length):
        y = ops.minimum(y, 3.0) if i % 2 else y * 1.0001
    function = compiled([y], [x])
    report = function.report()
    assert max(len(kernel.ops) for kernel in report.kernels) == MAX_NODES
    assert len(report.kernels) == 20
    values = array(8)
    expected = values.copy()
    for i in range(length):
        expected = np.minimum(expected, np.float32(3)) if i % 2 else expected * np.float32(1.0001)
    assert_same(function(values)[0], expected)
