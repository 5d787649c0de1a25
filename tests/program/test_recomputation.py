"""Recomputation keeps a step within a limit of memory, and keeps its bits."""

import functools
import random
import re

import numpy as np
import pytest
from needs import needs_kernels

import minigraph as mg
from minigraph import nn, ops, optim

BATCH, SIZE = 4, 12


class Tangle(nn.Module):
    """Blocks of random layers, some with a way around them, some of two parts that are joined."""

    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([self.block() for _ in range(8)])
        self.last = nn.Linear(8 * SIZE * SIZE, 5)

    def block(self):
        layer = self.random.choice([self.convolution, nn.ReLU, nn.Tanh, self.norm, self.dropout])
        return nn.Sequential(layer(), self.convolution(), self.norm(), nn.ReLU())

    def convolution(self):
        return nn.Conv2d(8, 8, self.random.choice([1, 3]), padding="same", bias=False)

    def norm(self):
        return nn.BatchNorm2d(8)

    def dropout(self):
        return nn.Dropout(0.3)

    def forward(self, x):
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            y = block(x)
            if i % 3 == 1:
                y = y + x
            if i % 3 == 2:
                y = ops.concat([x[:, 4:], y[:, :4] * y[:, 4:]], axis=1)
            x = y
        return self.last(x.reshape(BATCH, -1))


@functools.cache
def trained(limit=None, level=3, steps=3, seed=2):
    """The report, the losses and the parameters of some steps of training."""
    nn.manual_seed(seed)
    net = Tangle(seed)
    x, labels = mg.input("x", (BATCH, 3, SIZE, SIZE)), mg.input("labels", (BATCH,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters(), lr=1e-2).minimize(loss), **net.updates()}
    options = {"graph_opt_level": level, "autotune": "off", "graph_opt.memory_limit": limit}
    step = mg.comp_graph(options=options).compile([x, labels], loss, updates=updates)
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((BATCH, 3, SIZE, SIZE)).astype("float32")
    losses = [step(images, rng.integers(0, 5, BATCH)).tobytes() for _ in range(steps)]
    return step.report(), losses, {k: v.tobytes() for k, v in net.state_dict().items()}


def repeated(report):
    """Return the repeated ops, with their counts."""
    return {k: n for record in report.passes if record.name == "recompute"
            for k, n in record.fired.items()}  # fmt: skip


@pytest.mark.parametrize("level", [0, 2, 3])
def test_a_step_within_a_limit_gives_the_same_bits(level):
    whole, losses, state = trained(None, level)
    limit = int(0.75 * whole.memory.arena_bytes)
    report, again, same = trained(limit, level)
    assert report.memory.arena_bytes <= limit
    assert (again, same) == (losses, state)
    assert repeated(report) and not repeated(whole)
    assert len(report.steps) == len(whole.steps) + sum(repeated(report).values())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_random_networks_keep_their_bits_within_any_limit(seed):
    whole, losses, state = trained(level=seed % 4, seed=seed)
    for share in (0.9, 0.7, 0.5):
        limit = int(share * whole.memory.arena_bytes)
        try:
            report, again, same = trained(limit, seed % 4, seed=seed)
        except mg.GraphError as error:
            assert "recomputation brings them down to" in str(error)
            break
        assert report.memory.arena_bytes <= limit
        assert (again, same) == (losses, state)


def test_what_costs_least_is_repeated_first():
    whole, *_ = trained(None, 3)
    report, *_ = trained(int(0.93 * whole.memory.arena_bytes))
    assert "fused" in repeated(report)
    assert set(repeated(report)) <= {"fused", "reorder"}


def test_a_limit_that_is_kept_already_changes_nothing():
    whole, *_ = trained(None, 3)
    report, *_ = trained(whole.memory.arena_bytes, steps=1)
    assert (report.steps, report.memory) == (whole.steps, whole.memory)


def test_a_limit_out_of_reach_is_an_error_that_says_what_is_in_reach():
    whole, *_ = trained(None, 3)
    with pytest.raises(mg.GraphError, match="memory_limit allows 1000 bytes") as caught:
        trained(1000, steps=0)
    least = int(str(caught.value).split("brings them down to ")[1].split(":")[0])
    assert least < whole.memory.arena_bytes
    report, *_ = trained(least, steps=0)
    assert report.memory.arena_bytes <= least
    place = r"(in layer .*, )?at .*test_recomputation\.py:\d+"
    text = rf": the fullest step, \w+ {place}, uses \d+ of them, the largest for (.* bytes\)); (.*)"
    assert re.search(text, str(caught.value))


@needs_kernels
def test_a_wrong_label_leaves_the_parameters_as_they_were():
    whole, *_ = trained(None, 3)
    limit = int(0.7 * whole.memory.arena_bytes)
    nn.manual_seed(2)
    net = Tangle(2)
    x, labels = mg.input("x", (BATCH, 3, SIZE, SIZE)), mg.input("labels", (BATCH,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    options = {"graph_opt_level": 3, "autotune": "off", "graph_opt.memory_limit": limit}
    step = mg.comp_graph(options=options).compile([x, labels], loss, updates=updates)
    before = {p: p.numpy() for p in updates}
    with pytest.raises(mg.GraphError, match="label"):
        step(np.ones((BATCH, 3, SIZE, SIZE), "float32"), np.array([0, 1, 2, 5]))
    assert all(np.array_equal(p.numpy(), value) for p, value in before.items())


def test_verification_compares_what_is_recomputed():
    whole, *_ = trained(None, 3)
    limit = int(0.8 * whole.memory.arena_bytes)
    report, *_ = trained(limit, level=-3, steps=2)
    assert repeated(report)
