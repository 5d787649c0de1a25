"""What a benchmark measures on a GPU, and in which precision."""

import json
from dataclasses import replace

import pytest
from bench_plans import on_cuda

import minigraph as mg
from minigraph.bench import ours
from minigraph.bench.cases import NAMES, PREDICTIONS, case, scale


def test_jax_is_left_out_where_it_has_no_such_precision(installed):
    small = on_cuda()
    assert small.missing() == {"jax": "is not measured in bfloat16"}
    assert replace(small, precision="tf32").missing() == {}
    commands = small.sides("mlp")
    assert "jax" not in commands and "torch" in commands
    assert all(json.loads(command[-1])["precision"] == "bfloat16" for command in commands.values())


def test_on_a_gpu_networks_are_compiled_by_pytorch_in_one_memory_format(installed):
    sides = on_cuda().sides("resnet50")
    assert "torch.compile, channels last" in sides and "torch.compile" not in sides
    assert {"torch", "torch, channels last"} <= sides.keys()
    assert "torch.compile" in on_cuda().sides("abc")


@pytest.mark.parametrize(
    ("setting", "precision", "options"),
    [
        ("3", "float32", {"graph_opt_level": 3}),
        ("3", "tf32", {"graph_opt_level": 3, "precision": "tf32"}),
        ("2, untuned", "float16", {"graph_opt_level": 2, "amp": "float16", "autotune": "off"}),
    ],
)
def test_precision_and_tuning_are_options_of_a_side(monkeypatch, setting, precision, options):
    class Recorder:
        def __init__(self, device, options):
            self.options = options
            asked.append(options)

        def set_option(self, name, value):
            self.options[name] = value

        def compile(self, *arguments):
            raise StopIteration  # all has been asked

    asked = []
    task = replace(on_cuda().task("mlp", setting), precision=precision)
    monkeypatch.setattr(mg, "comp_graph", Recorder)
    with pytest.raises(StopIteration):
        ours.minigraph_side(task)
    shared = {"num_threads": task.threads, "autotune.budget": task.budget}
    assert asked == [{**shared, **options}]


# ---------------------------------------------------------------- the scale


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("abc", "a * b * c, 256M floats"),
        ("softmax", "softmax, 16384 x 16384"),
        ("alexnet", "AlexNet, batch 256, 224 x 224"),
        ("resnet50", "ResNet-50, batch 128, 224 x 224"),
        ("mlp", "MLP 784-128-10, batch 32"),
    ],
)
def test_a_gpu_gets_larger_cases(name, title):
    assert case(name, device="cuda:1").title == title
    assert case(name).bytes <= case(name, device="cuda").bytes


def test_the_probe_keeps_a_gpu_busy():
    """On an H200, which copies 4.3 TB and computes up to 800 TFLOP a second."""
    work = scale("cuda").work.values()
    assert all(4e-4 < bytes / 4.3e12 + flops / 8e14 < 0.1 for bytes, flops in work)


def test_a_turn_on_a_gpu_is_expected_to_take_a_moment():
    plan = on_cuda()
    training = NAMES - PREDICTIONS.keys()
    assert all(plan.turn_seconds(plan.task(name).subject) < 0.5 for name in training)
