"""Calling a compiled function: parameters, calls that fail, threads, processes, memory."""

import os
from pathlib import Path

import numpy as np
import pytest
from at_once import in_threads
from small_functions import real, user_line

import minigraph as mg
from minigraph import ops

# ---------------------------------------------------------------- parameters


def test_functions_that_share_a_parameter_see_its_current_value(cg):
    x, w = mg.input("x", (3,)), mg.Parameter([1.0, 2.0, 3.0], "w", dtype="float32")
    add = cg.compile([x], [], {w: w + x})
    double = cg.compile([], w, {w: w * 2})
    read = cg.compile([], w + 0)
    other = mg.comp_graph("reference").compile([], w * 1)

    def assert_is(expected):
        for value in (w.numpy(), read(), other()):
            np.testing.assert_array_equal(value, expected)

    assert_is([1, 2, 3])
    add([1, 1, 1])
    assert_is([2, 3, 4])
    np.testing.assert_array_equal(double(), [2, 3, 4])
    assert_is([4, 6, 8])
    w.assign([0, 0, 1])
    assert_is([0, 0, 1])
    add([1, 0, 0])
    assert_is([1, 0, 1])


# ---------------------------------------------------------------- a call that fails


def classifier(cg, with_loss=True):
    x, labels = mg.input("x", (4, 3)), mg.input("labels", (4,), "int64")
    w, count = mg.Parameter(np.eye(3, dtype="float32"), "w"), mg.Parameter(0, "count")
    loss = ops.cross_entropy(x @ w, labels)
    (dw,) = mg.grad(loss, [w])
    updates = {w: w - dw, count: count + 1}
    return cg.compile([x, labels], [loss] if with_loss else [], updates), [w, count]


@pytest.mark.parametrize("with_loss", [True, False])
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_out_of_range_names_op_and_line_and_changes_nothing(cg, label, with_loss):
    step, parameters = classifier(cg, with_loss)
    x = real(4, 3)
    step(x, [0, 1, 2, 0])
    before = [p.numpy() for p in parameters]
    message = rf"label {label} at \(1,\) is not in 0 \.\.\. 2"
    with pytest.raises(mg.GraphError, match=message) as error:
        step(x, [0, label, 2, 0])
    assert str(error.value).startswith(("one_hot", "cross_entropy"))
    assert "input labels: int64[4]" in str(error.value)
    assert user_line(error).startswith("loss = ops.cross_entropy")
    for p, value in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.numpy(), value)
    assert step.calls == 1


def test_a_function_works_after_a_call_that_failed(cg):
    (step, parameters), (other, expected) = classifier(cg), classifier(cg)
    x = real(4, 3)
    for wrong in ({"labels": [0, 1, 2, 9]}, {"labels": [0.5] * 4}, {"labels": [0]}, {}):
        with pytest.raises(mg.GraphError):
            step(x, **wrong)
        np.testing.assert_array_equal(step(x, [0, 1, 2, 0]), other(x, [0, 1, 2, 0]))
    for p, q in zip(parameters, expected, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_a_call_that_failed_draws_no_random_numbers(cg):
    x, labels = mg.input("x", (64, 3)), mg.input("labels", (64,), "int64")
    mask = ops.dropout(x)
    function = cg.compile([x, labels], [mask, ops.cross_entropy(x, labels)])
    first, second = (function(np.ones((64, 3)), [0] * 64)[0] for _ in range(2))
    function.calls = 1
    with pytest.raises(mg.GraphError):
        function(np.ones((64, 3)), [3] * 64)
    np.testing.assert_array_equal(function(np.ones((64, 3)), [0] * 64)[0], second)
    assert not np.array_equal(first, second)


# ---------------------------------------------------------------- threads, processes, memory


def product(cg, size=32):
    """A function with steps of every sort: product, elementwise, reduction, softmax."""
    x = mg.input("x", (size, size))
    y = ops.softmax(x @ x.T)
    return cg.compile([x], [ops.exp(y) * x, y.sum(0)])


def check_repeatedly(function, expected, seed, times=100):
    x = real(32, 32, seed=seed)
    for _ in range(times):
        for y, wanted in zip(function(x), expected[seed], strict=True):
            np.testing.assert_array_equal(y, wanted)


def test_one_function_may_be_called_from_several_threads(cg):
    function = product(cg)
    seeds = range(4)
    expected = {seed: function(real(32, 32, seed=seed)) for seed in seeds}
    in_threads(
        *(lambda seed=seed: check_repeatedly(function, expected, seed, 50) for seed in seeds)
    )
    assert function.calls == 4 + 4 * 50


def resident():
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="memory is read from /proc"
)


@needs_proc
def test_calls_do_not_grow_the_process(cg):
    x, w = mg.input("x", (64, 64)), mg.Parameter(np.eye(64, dtype="float32"), "w")
    step = cg.compile([x], [(x @ w).sum(), ops.softmax(x)], {w: w + x * 0})
    array = real(64, 64)
    for _ in range(100):
        step(array)
    before = resident()
    for _ in range(2000):
        step(array)
    assert resident() - before < 2 << 20  # a result that stayed would be 32 MiB


@needs_proc
def test_functions_that_are_gone_leave_no_memory(cg):
    x = mg.input("x", (512, 1024))

    def use():
        cg.compile([x], ops.exp(x + 1).sum())(np.zeros((512, 1024), "float32"))

    for _ in range(5):
        use()
    before = resident()
    for _ in range(30):
        use()
    assert resident() - before < 16 << 20  # arenas that stayed would be 120 MiB


def test_a_function_takes_the_memory_that_was_made_ready_while_it_was_compiled():
    x = mg.input("x", (1 << 20,))
    y = ops.tanh(ops.tanh(x) + x)
    function = mg.comp_graph("reference", {"graph_opt_level": 0}).compile([x], y + ops.tanh(y))
    needed = function.report().memory.arena_bytes
    arena = function._executor.arena
    assert arena.nbytes == needed < arena.base.nbytes
    limited = {"graph_opt_level": 0, "graph_opt.memory_limit": needed}
    again = mg.comp_graph("reference", limited).compile([x], y + ops.tanh(y))
    assert again.report().memory.arena_bytes == needed
