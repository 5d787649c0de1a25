"""The CPU device as a whole: one native call, denormals, threads, machines that lack things."""

import os
import site

import numpy as np
import pytest
from needs import needs_both, needs_compiler, needs_no_zig, needs_onednn
from new_process import python

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import onednn


def training_step(**options):
    nn.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net = nn.Sequential(net, nn.Dropout(0.3), nn.Linear(4 * 36, 5))
    x, y = mg.input("x", (8, 1, 6, 6)), mg.input("y", (8,), "int64")
    loss = ops.cross_entropy(net(x), y)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    step = mg.comp_graph("cpu", options).compile([x, y], loss, updates)
    rng = np.random.default_rng(0)
    return step, (rng.normal(size=(8, 1, 6, 6)).astype(np.float32), rng.integers(0, 5, 8))


@needs_compiler
def test_a_step_is_one_native_call_and_without_bulk_one_for_each_kernel():
    bulk, args = training_step(num_threads=1)
    single, _ = training_step(num_threads=1, bulk=False)
    assert (bulk.report().launches, bulk.report().syncs) == (1, 0)
    assert single.report().launches == len(single.report().steps)
    for _ in range(3):
        assert bulk(*args) == single(*args)


@needs_both
def test_new_values_of_parameters_are_written_in_place():
    """All of Adam's state and all weights: what is not would need memory of its own."""
    w = mg.Parameter(np.ones((512, 512), np.float32))
    x = mg.input("x", (4, 512))
    loss = (x @ w).mean()
    step = mg.comp_graph("cpu").compile([x], loss, optim.SGD([w], 0.1).minimize(loss))
    assert step.report().memory.arena_bytes < 1.1 * (w.spec.nbytes + 8192)
    step(np.ones((4, 512)))
    np.testing.assert_allclose(w.numpy(), 1 - 0.1 / 512, rtol=1e-6)


@needs_compiler
def test_memory_of_gradients_is_used_again_before_the_backward_pass_ends():
    parameters = [mg.Parameter(np.ones((256, 256), np.float32), f"w{i}") for i in range(20)]
    x = mg.input("x", (1, 256))
    y = x
    for w in parameters:
        y = ops.tanh(y @ w)
    loss = y.sum()
    step = mg.comp_graph("cpu").compile([x], loss, optim.Adam(parameters).minimize(loss))
    assert step.report().memory.arena_bytes < 6 * parameters[0].spec.nbytes


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_any_number_of_threads_gives_the_same_step(threads):
    step, args = training_step(num_threads=threads)
    expected, _ = training_step(num_threads=1)
    for _ in range(3):
        np.testing.assert_allclose(step(*args), expected(*args), rtol=1e-5)


PROGRAM = """
import warnings
import numpy as np
import minigraph as mg
from minigraph import nn, ops, optim
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
x, y = mg.input("x", (2, 1, 6, 6)), mg.input("y", (2,), "int64")
loss = ops.cross_entropy(net(x), y)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        updates = optim.SGD(net.parameters(), lr=0.0).minimize(loss)
        step = mg.comp_graph(options={"graph_opt.jit": 1}).compile([x, y], loss, updates)
        value = step(np.arange(72).reshape(2, 1, 6, 6) / 72, [0, 2])
print(f"{value:.5f}", *{kernel.split()[0] for _, kernel, _ in step.report().steps})
for w in caught:
    print(w.category.__name__, w.message)
"""


def run(**environment):
    """Run the program with another environment; return its first line, and its warnings."""
    first, *warnings = python("-c", PROGRAM, **environment)[0].splitlines()
    return first.split(), warnings


@pytest.fixture(scope="module")
def usual():
    return run()


@needs_both
def test_no_warning_is_given_where_nothing_is_missing(usual):
    assert usual[1] == []


@needs_onednn
@needs_no_zig
def test_without_a_compiler_numpy_takes_over_with_one_warning(usual, tmp_path):
    (value, *kernels), warnings = run(PATH=str(tmp_path), CC="", MINIGRAPH_JIT_BACKEND="c")
    assert value == usual[0][0]
    assert "c" not in kernels
    assert {"numpy", "onednn"} <= {*kernels}
    assert len(warnings) == 1
    assert "MinigraphWarning no C compiler was found" in warnings[0]


BROKEN = {
    "fails": ("echo 'kernels.c:1: error: out of order' >&2\nexit 1\n", "out of order"),
    "says nothing": ("exit 1\n", "exit status 1"),
}


@needs_onednn
@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_with_a_broken_compiler_numpy_takes_over_with_one_warning(usual, tmp_path, text, said):
    broken = tmp_path / "cc"
    broken.write_text(f"#!/bin/sh\n[ $1 = --version ] && exit\n{text}")
    broken.chmod(0o755)
    (value, *_), warnings = run(CC=str(broken))
    assert value == usual[0][0]
    assert len(warnings) == 1
    assert said in warnings[0]


@needs_onednn
def test_a_home_that_cannot_be_read_does_not_hide_the_library(tmp_path, monkeypatch):
    stat = os.stat

    def refuse(path, *args, **kwargs):
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(site, "getuserbase", lambda: str(tmp_path))
    monkeypatch.setattr(os, "stat", refuse)
    assert onednn.library.__wrapped__() is not None
