"""The use of the stack by kernels: threads may have 256 KiB."""

import resource

import new_process
import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops

pytestmark = needs_compiler
STACK = 256 << 10  # bytes
PROGRAM = """
import threading

import numpy as np

import minigraph as mg
from minigraph import nn, ops, optim

rng = np.random.default_rng(0)
rows, images = rng.normal(size=(8, 16384)), rng.normal(size=(4, 3, 28, 28))


def check(level):
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "num_threads": 2})
    x = mg.input("x", rows.shape, "float64")
    costly = [ops.exp(x), ops.tanh(x), ops.sin(x), ops.cos(x)]
    total = sum(y.sum(axis=1, keepdims=True) for y in costly)
    want = [np.exp(rows), np.tanh(rows), np.sin(rows), np.cos(rows)]
    want = sum(want) / sum(y.sum(axis=1, keepdims=True) for y in want)
    np.testing.assert_allclose(cg.compile([x], sum(costly) / total)(rows), want, rtol=1e-9)
    x, labels = mg.input("x", images.shape), mg.input("labels", (4,), "int64")
    net = nn.Sequential(
        nn.Conv2d(3, 32, 7, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 100), nn.LayerNorm(100), nn.Linear(100, 10),
    )
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    assert np.isfinite(cg.compile([x, labels], loss, updates)(images, np.arange(4)))
    checked.append(level)


checked = []
threading.stack_size(256 << 10)
for level in (0, 3):
    thread = threading.Thread(target=check, args=(level,))
    thread.start()
    thread.join()
check(3)
print(checked)
"""


def test_functions_run_in_threads_of_a_small_stack():
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (2 * STACK, before[1]))
    try:
        process = new_process.start("-c", PROGRAM, OMP_STACKSIZE="256k")
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)
    printed, _ = new_process.wait(process)
    assert printed == "[0, 3, 3]\n"


@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 1)])
def test_however_many_reductions_or_outputs_there_are_a_kernel_takes_little_of_a_stack(axes):
    x = mg.input("x", (30, 600) if len(axes) == 1 else (9, 20, 16), "float64")
    chain = [x]
    for _ in range(20):
        chain.append(ops.abs(chain[-1] * 1.01))
    outputs = chain[1:] + [ops.sum(y, axes) for y in chain] + [ops.max(y, axes) for y in chain]
    value = np.random.default_rng(0).normal(size=x.shape)
    # A kernel of a larger frame does not compile here, and would be NumPy's, with a warning.
    function = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], outputs)
    reference = mg.comp_graph("reference").compile([x], outputs)(value)
    for y, expected in zip(function(value), reference, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4)
    assert set(function.report().makers) == {"c"}
