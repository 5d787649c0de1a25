"""Predictions beside PyTorch and onnxruntime."""

import os

import numpy as np
import pytest
from bench_plans import planned, scripted

from minigraph.bench import plan as plans
from minigraph.bench.cases import GROUPS, NAMES, PREDICTIONS
from minigraph.bench.worker import Worker, slowest


def test_a_group_of_cases_has_a_name():
    assert planned("--models", "inference,abc,resnet18-1").models == (*PREDICTIONS, "abc")
    assert {name for group in GROUPS.values() for name in group} == set(NAMES)


def test_predictions_are_measured_frozen_and_once_not_beside_onnxruntime(installed):
    plan = planned("--device", "cpu", "--levels", "0,3", "--peers", "torch,onnxruntime")
    sides = ["machine", "level 0", "level 3", "level 3, unfrozen"]
    sides += ["torch", "torch, channels last", "onnxruntime"]
    assert list(plan.sides("resnet18-1")) == sides
    assert not {"level 3, unfrozen", "onnxruntime"} & plan.sides("resnet18").keys()


def test_onnxruntime_needs_pytorch_and_is_asked_for_predictions_alone(monkeypatch):
    monkeypatch.setattr(plans, "find_spec", lambda name: None if name == "torch" else name)
    flags = ("--device", "cpu", "--peers", "onnxruntime", "--models")
    lacks = "does not run abc, resnet18 on cpu"
    assert planned(*flags, "abc,resnet18").missing() == {"onnxruntime": lacks}
    why = "needs torch, which is not installed"
    assert planned(*flags, "resnet18-1").missing() == {"onnxruntime": why}


def test_who_predicts_other_scores_is_not_timed(run):
    commands = {
        "level 3": scripted(losses=[1.0, 4.0001]),
        "onnxruntime": scripted(losses=[1.0, 4.1]),
        "torch": scripted(losses=[1.0, 4.0]),
    }
    sides = run(commands, models=("resnet18-1",)).cases["resnet18-1"].sides
    theirs = sides["onnxruntime"]
    assert theirs.error == "predicts other scores than torch: 2.5e-02 apart"
    assert not theirs.seconds and len(sides["level 3"].seconds) == 5
    assert sides["level 3"].apart == pytest.approx(2.5e-5, rel=0.01) and sides["torch"].apart == 0


def test_who_predicts_nan_is_not_timed(run):
    commands = {"torch": scripted(losses=[1.0, 4.0]), "onnxruntime": scripted(losses=[1.0, None])}
    (_, theirs) = run(commands, models=("resnet18-1",)).cases["resnet18-1"].sides.values()
    assert theirs.error == "predicts other scores than torch: nan apart" and not theirs.seconds


def test_the_slowest_of_a_hundred_calls_is_told_of_one_image():
    one, many = (planned("--device", "cpu").task(f"alexnet-{n}") for n in (1, 32))
    calls = {"step": [1.0] * 98 + [5.0] * 2}
    assert slowest(one, calls) == {"p99": 5.0} and slowest(many, calls) == {}
    assert slowest(one, {"step": []}) == {}


@pytest.mark.long
@pytest.mark.parametrize("model", ["alexnet-1", "resnet18-1"])
def test_all_libraries_predict_the_same(model, tmp_path, monkeypatch):
    for name in ("torch", "onnxruntime"):
        pytest.importorskip(name)
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path))
    plan = planned("--device", "cpu", "--levels", "0,3", "--models", model)
    found = {}
    for name, command_ in plan.sides(model).items():
        if name != "machine":
            worker = Worker(command_, os.environ, patience=300.0)
            found[name] = worker.ask("scores", 60.0)["scores"]
            worker.kill()
    assert len(found) == 8
    for scores in found.values():
        np.testing.assert_allclose(scores, found["torch"], rtol=0, atol=1e-3 * np.ptp(scores))
