"""The losses that a benchmark compares, and the values that networks begin with."""

import importlib.util
import math
import os

import pytest
from bench_plans import planned, scripted

from minigraph import nn
from minigraph.bench import networks, ours
from minigraph.bench.cases import LOSSES, first_value
from minigraph.bench.page import terminal_lines
from minigraph.bench.results import Results
from minigraph.bench.tables import loss_difference
from minigraph.bench.worker import Worker


def test_losses_of_the_highest_level_and_of_pytorch_are_kept(run):
    names = ("level 0", "level 3", "level 3, untuned", "torch", "torch, channels last")
    commands = {name: scripted(losses=[float(i)]) for i, name in enumerate(names)}
    sides = run(commands, models=("mlp",), flags=("--repeats", "2")).cases["mlp"].sides
    kept = {name: side.losses for name, side in sides.items() if side.losses}
    assert kept == {"level 3": [1.0], "torch": [3.0], "torch, channels last": [4.0]}


@pytest.mark.parametrize(
    ("model", "flags", "names"),
    [
        ("mlp", ["--quick"], ["level 3", "torch"]),
        ("abc", ["--repeats", "2"], ["level 3", "torch"]),
        ("mlp", ["--repeats", "2"], ["level 3", "jax"]),
        ("mlp", ["--repeats", "2"], ["level 3, untuned", "torch"]),
    ],
)
def test_no_losses_without_time_training_or_either_side(model, flags, names):
    assert planned(*flags, "--device", "cpu").compared(model, names) == []


def test_losses_that_fail_harm_nothing_else(run):
    commands = {"level 3": scripted(losses="kill"), "torch": scripted(losses=[2.0])}
    found = run(commands, models=("mlp",), flags=("--repeats", "2"))
    mine, theirs = found.cases["mlp"].sides.values()
    assert "out of memory" in mine.lost and not mine.error and not mine.losses
    assert len(mine.seconds) == 2 and mine.peak == 1 << 30
    assert theirs.losses == [2.0] and not theirs.lost
    assert any("level 3: was killed" in line for line in terminal_lines(found))


def test_a_loss_that_is_no_number_is_told_and_the_results_can_be_read(run, tmp_path):
    commands = {"level 3": scripted(losses=[2.0, None]), "torch": scripted(losses=[2.0, 1.0])}
    found = run(commands, models=("mlp",), flags=("--repeats", "2"))
    assert any("level 3: a loss is NaN or infinite" in line for line in terminal_lines(found))
    found.write(tmp_path)
    assert Results.read(tmp_path) == found


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_first_losses_are_those_of_pytorch():
    plan = planned("--device", "cpu", "--batch-size", "4", "--threads", "1")
    commands = plan.sides("mlp")
    found = []
    for name in ("level 3", "torch"):
        worker = Worker(commands[name], os.environ, patience=60.0)
        found.append(worker.ask("losses", 60.0)["losses"])
        worker.kill()
    mine, theirs = found
    assert len(mine) == LOSSES and mine[-1] < 0.9 * mine[0]
    assert loss_difference(mine, theirs) < 1e-3


def test_first_values_follow_from_name_and_shape():
    weight = first_value("0.weight", (64, 3, 11, 11))
    assert (weight == first_value("0.weight", (64, 3, 11, 11))).all()
    assert (weight != first_value("3.weight", (64, 3, 11, 11))).any()
    assert weight.std() == pytest.approx((3 * 3 * 11 * 11) ** -0.5, rel=0.05)
    assert set(first_value("1.weight", (5,))) == {1} and not first_value("1.bias", (5,)).any()


def test_libraries_differ_by_their_largest_distance_over_the_loss():
    assert loss_difference([1.0, 2.2, 4.0], [1.0, 2.0, 4.2]) == pytest.approx(0.1)
    assert math.isnan(loss_difference([1.0, math.nan, 1.0], [1.0, 1.0, 1.0]))


def test_dropout_is_left_out_of_the_losses():
    net = networks.alexnet(networks.without_dropout(ours.LIBRARY))
    dropped = [layer.p for layer in net.modules() if isinstance(layer, nn.Dropout)]
    assert dropped == [0, 0]
