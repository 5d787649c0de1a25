"""Compiled steps that several processes run together."""

import re
from pathlib import Path

import numpy as np
import pytest
from launched import start
from new_process import wait

import minigraph as mg
from minigraph import ops

TESTS = Path(__file__).parent.parent


def test_processes_agree_compute_what_numpy_does_and_train_as_one_does():
    printed, errors = wait(start(2, TESTS / "launched_collectives.py"))
    assert re.fullmatch(r"small: from .* apart by .*\n", printed) and errors == ""


# Four share the cores of two: of the large networks, they train the one without an excuse.
@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "name"),
    [
        *((2, name) for name in ("mlp", "small", "alexnet", "resnet18", "resnet18-float64")),
        *((4, name) for name in ("mlp", "small", "resnet18-float64")),
    ],
)
def test_processes_train_as_one_for_many_steps(count, name):
    program = "-W", "ignore:oneDNN has no", TESTS / "launched_training.py", name, 50
    wait(start(count, *program, OPENBLAS_NUM_THREADS="1"), timeout=900)


def test_in_a_world_of_one_process_nothing_is_exchanged():
    world = mg.distributed.world()
    x = mg.input("x", (2, 3))
    for op in (ops.all_reduce, ops.broadcast, ops.all_gather):
        assert op(x, world) is x
    p = mg.Parameter(np.ones(3, "float32"))
    loss = ((x - p) ** 2).sum()
    sgd = mg.optim.SGD([p], 0.1)
    alone, reduced = sgd.minimize(loss), sgd.minimize(loss, reduce=world)
    assert str(alone[p]) == str(reduced[p])
    mg.comp_graph().compile([x], ops.all_reduce(loss, world, "mean"), reduced)(np.ones((2, 3)))


# A native wait of over a second goes on in Python, which has the deadline.
LATE = """
import sys, time
import numpy as np
import minigraph as mg
world = mg.distributed.world()
x, p = mg.input("x", (3,)), mg.Parameter(np.zeros(3, "float32"), "bias")
loss = ((p - x) ** 2).sum()
options = {{"graph_opt_level": {level}, "distributed.timeout": {timeout}}}
updates = mg.optim.SGD([p], 0.5).minimize(loss, reduce=world)
step = mg.comp_graph("cpu", options).compile([x], loss, updates)
for late in (0, {late}):
    time.sleep(late * world.rank)
    step(np.full(3, world.rank, "float32"))
assert p.numpy().tolist() == [0.5] * 3
"""


@pytest.mark.parametrize("level", [0, pytest.param(3, marks=pytest.mark.long)])
def test_a_step_waits_for_a_late_process(level):
    wait(start(2, "-c", LATE.format(level=level, late=1.3, timeout=60.0)))


def test_a_step_that_waits_too_long_says_for_what():
    late = LATE.format(level=3, late=100, timeout=2.0)
    printed = "".join(wait(start(2, "-c", late), 1, timeout=60))
    assert "process 0 waited 2 s for all_reduce of bias (12 bytes)" in printed
    assert "process 1 is in no collective" in printed
