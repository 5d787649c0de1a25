"""The sides that a run measures, and the peers that it leaves out."""

import json
from dataclasses import replace

import pytest
from bench_plans import on_cuda, planned, results

import minigraph as mg
from minigraph.bench import ours
from minigraph.bench import plan as plans
from minigraph.bench.cases import EXPRESSIONS, GROUPS, NAMES, NETWORKS, PREDICTIONS
from minigraph.devices.cpu import onednn


def test_all_is_measured_unless_less_is_asked_for(monkeypatch):
    monkeypatch.delenv("MINIGRAPH_NUM_THREADS", raising=False)
    plan = planned()
    assert plan.models == (*EXPRESSIONS, *NETWORKS) and plan.levels == (0, 1, 2, 3)
    assert plan.peers == ("torch", "torch.compile", "jax", "onnxruntime") and plan.twice
    less = planned("--quick", "--models", "abc,mlp", "--peers", "jax", "--threads", "1")
    assert (less.models, less.peers, less.threads) == (("abc", "mlp"), ("jax",), 1)
    assert less.budget < plan.budget and less.repeats < plan.repeats
    assert (plan.minutes, less.minutes) == (60, 2)
    assert planned("--quick", "--minutes", "5").minutes == 5
    short = planned("--budget", "7", "--once")
    assert (short.budget, short.twice) == (7.0, False)


def test_a_group_of_cases_has_a_name():
    assert planned("--models", "inference,abc,resnet18-1").models == (*PREDICTIONS, "abc")
    assert {name for group in GROUPS.values() for name in group} == set(NAMES)


@pytest.mark.parametrize(
    ("model", "flags", "sides"),
    [
        ("abc", ["--untuned"], ["level 0", "level 3", "torch"]),
        (
            "mlp",
            ["--untuned"],
            ["level 0", "level 3", "level 3, untuned", "torch", "torch, channels last"],
        ),
        (
            "resnet18-1",
            [],
            ["level 0", "level 3", "level 3, unfrozen", "torch", "torch, channels last"],
        ),
    ],
)
def test_a_case_has_the_sides_in_which_it_differs(installed, model, flags, sides):
    plan = planned("--levels", "0,3", "--peers", "torch", *flags)
    assert list(plan.sides(model)) == sides


def test_models_of_pytorch_that_minigraph_runs_are_measured_on_request(installed):
    assert not any(name.startswith("minigraph.") for name in planned().peers)
    plan = planned("--levels", "3", "--peers", "torch,minigraph.torch,minigraph.compile")
    frontend = ["minigraph.torch", "minigraph.compile"]
    eager = ["level 3", "torch", "torch, channels last"]
    assert list(plan.sides("resnet18")) == [*eager, *frontend]
    assert list(plan.sides("abc")) == ["level 3", "torch", "minigraph.compile"]
    on_gpu = replace(on_cuda(), peers=("minigraph.torch",), named=True)
    assert "does not run abc, " in on_gpu.missing()["torch"]
    best = results(resnet18={"level 3": [1.0], "torch": [3.0], "minigraph.torch": [2.0]})
    assert best.cases["resnet18"].best_peer[0] == "torch"


def test_peers_that_are_not_installed_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    plan = planned()
    assert plan.missing() == {
        name: f"is not installed (pip install {name})" for name in ("torch", "jax")
    }
    assert list(plan.sides("abc")) == [f"level {level}" for level in (0, 1, 2, 3)]


@pytest.mark.parametrize(
    ("peers", "models", "missing"),
    [
        ((), "mlp,resnet18,thin.py", {}),
        (("--peers", "torch,jax"), "abc,mlp", {}),
        (("--peers", "jax"), "mlp,resnet18,gpt", {"jax": "does not run resnet18, gpt on cpu"}),
        (("--peers", "jax"), "alexnet-1,thin.py", {"jax": "does not run alexnet-1, thin on cpu"}),
    ],
)
def test_a_peer_that_was_named_says_what_it_does_not_run(
    installed, tmp_path, monkeypatch, peers, models, missing
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thin.py").touch()
    plan = planned("--models", models, *peers)
    assert plan.missing() == missing
    assert [name for name in plan.models if "jax" in plan.sides(name)] == (
        [name for name in plan.models if name in ("abc", "mlp")]
    )


def test_the_cpu_is_measured_in_bfloat16_where_it_computes_in_it(monkeypatch):
    monkeypatch.setattr(onednn, "dtypes", lambda: frozenset((onednn.F32, onednn.BFLOAT16)))
    plan = planned("--precision", "bfloat16")
    assert plan.precision == "bfloat16" and plan.missing().keys() <= {"jax", "torch"}
    monkeypatch.setattr(onednn, "dtypes", lambda: frozenset((onednn.F32,)))
    with pytest.raises(mg.DeviceError, match="AVX512_BF16"):
        planned("--precision", "bfloat16")


# ---------------------------------------------------------------- on a GPU


def test_jax_is_left_out_where_it_has_no_such_precision(installed):
    small = on_cuda()
    assert small.missing() == {"jax": "is not measured in bfloat16"}
    assert replace(small, precision="tf32").missing() == {}
    commands = small.sides("mlp")
    assert "jax" not in commands and "torch" in commands
    assert all(json.loads(command[-1])["precision"] == "bfloat16" for command in commands.values())


@pytest.mark.parametrize(
    ("device", "setting", "mode"),
    [
        ("cpu", "compiled", None),
        ("cpu", plans.FASTEST_TORCH_SETTING, None),
        ("cuda", "compiled", "reduce-overhead"),
        ("cuda", plans.FASTEST_TORCH_SETTING, "max-autotune"),
    ],
)
def test_inductor_measures_its_kernels_only_in_the_best_setting_on_a_gpu(
    monkeypatch, device, setting, mode
):
    torch_peer = pytest.importorskip("minigraph.bench.torch_peer")
    modes = []
    monkeypatch.setattr(torch_peer.torch, "compile", lambda fn, mode=None: modes.append(mode))
    torch_peer._compiled(abs, replace(on_cuda(), device=device).task("resnet50", setting))
    assert modes == [mode]


@pytest.mark.parametrize(
    ("setting", "precision", "options"),
    [
        ("1", "float32", {"graph_opt_level": 1}),
        ("3", "tf32", {"graph_opt_level": 3, "precision": "tf32", "autotune": "exhaustive"}),
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
