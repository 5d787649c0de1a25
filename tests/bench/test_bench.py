"""`minigraph bench`: what it measures, and what it survives."""

import importlib.util
import itertools
import json
import math
import os
import signal
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph import cli, nn
from minigraph.bench import command, measure, networks, ours
from minigraph.bench import plan as plans
from minigraph.bench.cases import (
    CUBLAS,
    EXPRESSIONS,
    GROUPS,
    LOSSES,
    NAMES,
    NETWORKS,
    PREDICTIONS,
    case,
    first_value,
    scale,
)
from minigraph.bench.page import terminal_lines
from minigraph.bench.plan import Plan
from minigraph.bench.results import Results, SideResult
from minigraph.bench.schedule import Schedule
from minigraph.bench.tables import loss_difference
from minigraph.bench.worker import (
    Failure,
    Worker,
    hidden,
    hidden_share,
    slowest,
    take_cores,
)
from minigraph.devices.cpu import onednn

ROOT = Path(__file__).parents[2]


# ---------------------------------------------------------------- from the command line


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of a run of the command on its smallest case."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    arguments = "--quick --models mlp --levels 0,3 --peers none --repeats 3 --batch-size 4"
    arguments += " --budget 1"
    assert cli.main(["bench", *arguments.split(), "--out", str(folder)]) == 0
    return folder


def test_a_run_keeps_every_sample_of_every_side(out):
    found = Results.read(out)
    assert list(found.cases) == ["mlp"]
    mlp = found.cases["mlp"]
    assert list(mlp.sides) == ["level 0", "level 3"]
    for side in mlp.sides.values():
        assert len(side.seconds) == 3 and min(side.seconds) > 0
        assert not side.error and side.cold > 0 and side.warm is None
        assert side.kernels
        if sys.platform == "linux":
            assert side.peak > 1 << 20
    work = {name: (step.bytes, step.flops) for name, step in mlp.machine.items()}
    assert work == {n: w for n, w in scale("cpu").work.items() if n != CUBLAS}
    assert found.versions["minigraph"] == mg.__version__
    assert found.options["quick"] and found.options["levels"] == [0, 3]


def test_the_pages_made_again_from_the_results_are_the_same(out, capsys):
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert cli.main(["bench", "--render", str(out)]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    plots = set(before) - {"results.json", "README.md"}
    assert bool(plots) == bool(importlib.util.find_spec("matplotlib"))
    assert all(f"({name})" in before["README.md"].decode() for name in plots)


def test_a_run_without_matplotlib_says_at_once_that_there_will_be_no_plots(
    monkeypatch, tmp_path, capsys
):
    def measure(plan, folder):
        said.append(capsys.readouterr().err)
        return Results.begin({})

    said = []
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "_measured", measure)
    assert cli.main(["bench", "--quick", "--out", str(tmp_path)]) == 0
    (early,) = said
    assert early.count("\n") == 1 and "matplotlib is not installed" in early
    assert "minigraph[bench]" in early
    assert cli.main(["bench", "--quick"]) == 0
    assert said[1] == ""


def test_plots_that_cannot_be_drawn_are_one_line(monkeypatch, tmp_path, capsys):
    Results.begin({}).write(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no fonts')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    assert cli.main(["bench", "--render", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == "minigraph: the plots cannot be drawn: SystemExit: no fonts\n"
    assert "README.md is written" in said.out


@pytest.mark.parametrize(
    "arguments",
    ["--models nonsense", "--levels 4", "--peers tensorflow", "--precision int8", "--repeats 0"],
)
def test_arguments_that_do_not_fit_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *arguments.split()])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said.count("\n") == 1 and arguments.split()[1] in said


def test_a_folder_that_cannot_be_made_is_one_line_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["bench", "--models", "abc", "--out", str(tmp_path / "file" / "out")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"minigraph: --out: {tmp_path}/file/out cannot be made: Not a directory"


def test_results_that_cannot_be_written_are_printed_nevertheless(monkeypatch, tmp_path, capsys):
    (tmp_path / "results.json").mkdir()

    def measure(plan, options, begin, keep):
        keep(Results.begin(options))
        return Results.begin(options)

    monkeypatch.setattr(command, "measure_cases", measure)
    assert cli.main(["bench", "--models", "abc", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    error = f"minigraph: {tmp_path}/results.json cannot be written: Is a directory"
    assert said.err.splitlines()[-1] == error
    assert said.out.strip()


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert cli.main(["bench", "--render", str(tmp_path)]) == 1
    assert "minigraph bench --out" in capsys.readouterr().err
    (tmp_path / "results.json").write_text('{"cases": {"abc": 3}}')
    assert cli.main(["bench", "--render", str(tmp_path)]) == 1
    assert "holds no results" in capsys.readouterr().err


def test_a_precision_that_the_cpu_does_not_have_is_one_line(tmp_path, capsys):
    arguments = ["--device", "cpu", "--precision", "tf32", "--out", str(tmp_path / "out")]
    assert cli.main(["bench", *arguments]) == 1
    said = capsys.readouterr().err
    assert "--precision tf32 takes --device cuda" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_cpu_is_measured_in_bfloat16_where_it_computes_in_it(monkeypatch):
    monkeypatch.setattr(onednn, "dtypes", lambda: frozenset((onednn.F32, onednn.BFLOAT16)))
    plan = planned("--device", "cpu", "--precision", "bfloat16")
    assert plan.precision == "bfloat16" and plan.missing().keys() <= {"jax", "torch"}
    monkeypatch.setattr(onednn, "dtypes", lambda: frozenset((onednn.F32,)))
    with pytest.raises(mg.DeviceError, match="AVX512_BF16"):
        planned("--device", "cpu", "--precision", "bfloat16")


def planned(*arguments):
    return command.planned(cli._parser().parse_args(["bench", *arguments]))


def test_all_is_measured_unless_less_is_asked_for(monkeypatch):
    monkeypatch.delenv("MINIGRAPH_NUM_THREADS", raising=False)
    plan = planned("--device", "cpu")
    assert plan.models == (*EXPRESSIONS, *NETWORKS) and plan.levels == (0, 1, 2, 3)
    assert plan.peers == ("torch", "torch.compile", "jax", "onnxruntime")
    less = planned("--quick", "--models", "abc,mlp", "--peers", "jax", "--threads", "1")
    assert (less.models, less.peers, less.threads) == (("abc", "mlp"), ("jax",), 1)
    assert less.budget < plan.budget and less.repeats < plan.repeats
    assert (plan.promised, less.promised) == (plan.seconds(), 120.0)
    assert planned("--quick", "--minutes", "5").promised == 300.0
    short = planned("--device", "cpu", "--budget", "7", "--once")
    assert (short.budget, short.twice) == (7.0, False)
    assert plan.twice


# ---------------------------------------------------------------- the sides

SCRIPT = """
import json, os, sys
def say(what):
    print(json.dumps(what), flush=True)
say({"first": 0.5})
times = iter(json.loads(sys.argv[1]))
for line in sys.stdin:
    if line in ("details\\n", "scores\\n"):
        say({"peak": 1 << 30, "scores": json.loads(sys.argv[2])})
        continue
    took = json.loads(sys.argv[2]) if line == "losses\\n" else next(times, 0.25)
    if took == "exit":
        sys.exit("no more of it")
    elif took == "kill":
        os.kill(os.getpid(), 9)
    elif took == "noise":
        print("Warning: [[[", flush=True)
    elif took == "error":
        say({"error": "MemoryError: too much"})
    else:
        say({"losses" if line == "losses\\n" else "step": took})
"""


def scripted(*times, losses=()):
    """The command of a worker that says it took these times, then a quarter of a second."""
    return [sys.executable, "-S", "-c", SCRIPT, json.dumps(times), json.dumps(losses)]


def silent(what, left):
    """Show no progress."""


@pytest.fixture
def run(monkeypatch):
    """A function that runs a benchmark whose workers are scripted."""

    def run(commands, progress=silent, models=("abc",), flags=("--quick",), keep=lambda _: None):
        plan = planned(*flags, "--device", "cpu", "--models", ",".join(models))
        monkeypatch.setattr(Plan, "sides", lambda plan, model: commands)
        return measure.measure_cases(plan, {}, progress, keep)

    return run


def test_an_answer_that_is_none_ends_the_side_and_no_other(run):
    sides = run({"level 0": scripted("noise"), "level 1": scripted()}).cases["abc"].sides
    assert sides["level 0"].error.startswith("gave an answer that is cut off, or no JSON: ")
    assert (sides["level 1"].error, len(sides["level 1"].seconds)) == ("", 5)


def test_times_count_once_they_have_settled(run):
    side = run({"level 0": scripted(9.0, 0.5, 0.25)}).cases["abc"].sides["level 0"]
    assert side == SideResult([0.25] * 5, warmup=4, cold=0.5, peak=1 << 30)


@pytest.mark.parametrize(
    ("end", "words"),
    [("exit", "no more of it"), ("kill", "out of memory"), ("error", "MemoryError: too much")],
)
def test_a_worker_that_fails_is_a_line_and_not_the_end(run, end, words):
    found = run({"level 0": scripted(), "torch": scripted(0.25, 0.25, 0.25, end)})
    sides = found.cases["abc"].sides
    assert len(sides["level 0"].seconds) == 5 and not sides["level 0"].error
    assert len(sides["torch"].seconds) == 1 and words in sides["torch"].error
    assert any(words in line for line in terminal_lines(found))


def test_a_worker_that_does_not_start_is_a_line_and_not_the_end(run):
    broken = [sys.executable, "-S", "-c", "import there_is_no_such_module"]
    found = run({"level 0": scripted(), "jax": broken})
    assert "there_is_no_such_module" in found.cases["abc"].sides["jax"].error
    assert found.cases["abc"].best_peer is None
    assert any(", jax: ended with status 1" in line for line in terminal_lines(found))


def test_a_worker_that_does_not_answer_is_given_up(tmp_path):
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with pytest.raises(Failure, match="gave no answer within 0 s, the time that was left"):
        Worker(sleeping, os.environ, patience=0.05)


def test_a_case_that_cannot_be_run_is_said_in_the_words_of_its_error(tmp_path):
    plan = planned("--quick", "--device", "cpu")
    command = plan.sides("mlp")["level 0"]
    case_run = measure.CaseRun(plan, "mlp", Schedule(60.0, 60.0, silent))
    case_run.measure({"level 0": [*command[:-1], '{"case": "nothing"}']}, tmp_path / "mlp")
    assert case_run.result.sides["level 0"].error.startswith("ValueError: is wrong: ")


def test_ctrl_c_keeps_what_was_measured(run, ctrl_c):
    said = []

    def progress(what, seconds):
        said.append(what)
        if said.count("a * b * c: torch") == 4:  # its start and two turns before it
            os.kill(os.getpid(), signal.SIGINT)

    found = run({"level 0": scripted(), "torch": scripted()}, progress, models=("abc", "mlp"))
    assert found.interrupted
    assert list(found.cases) == ["abc"]
    sides = found.cases["abc"].sides
    assert (len(sides["level 0"].seconds), len(sides["torch"].seconds)) == (1, 0)
    assert any("Interrupted" in line for line in terminal_lines(found))


def test_what_is_measured_is_kept_after_each_case(run):
    kept = []
    run(
        {"level 0": scripted()},
        models=("abc", "mlp"),
        keep=lambda found: kept.append([*found.cases]),
    )
    assert kept == [["abc"], ["abc", "mlp"]]


def test_every_other_round_is_in_reverse(run):
    said = []
    commands = {name: scripted() for name in ("level 0", "level 3", "torch")}
    run(commands, lambda what, seconds: said.append(what.rpartition(" ")[2]))
    turns = said[3:9]  # after the starts
    assert turns == ["0", "3", "torch", "torch", "3", "0"]


def test_peers_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    plan = planned("--device", "cpu")
    assert plan.missing() == dict.fromkeys(("torch", "jax"), "is not installed")
    assert list(plan.sides("abc")) == ["machine", *(f"level {level}" for level in (0, 1, 2, 3))]


def test_the_results_name_the_peers_that_are_not_installed(run, monkeypatch):
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    assert run({"level 0": scripted()}).missing == {"torch": "is not installed"} | {
        "jax": "is not installed"
    }


@pytest.fixture
def installed(monkeypatch):
    """Let all peers seem to be installed."""
    monkeypatch.setattr(plans, "find_spec", lambda name: name)


def test_an_expression_has_no_channels_and_nothing_to_tune(installed):
    plan = planned("--device", "cpu", "--untuned", "--levels", "0,2,3", "--peers", "torch")
    of_expression, of_network = (plan.sides(name).keys() for name in ("abc", "mlp"))
    assert list(of_expression) == ["machine", "level 0", "level 2", "level 3", "torch"]
    assert of_network - of_expression == {
        "level 2, untuned",
        "level 3, untuned",
        "torch, channels last",
    }


# ---------------------------------------------------------------- several processes


def test_networks_are_trained_in_several_processes_which_share_the_threads(installed, monkeypatch):
    monkeypatch.setattr(plans.shutil, "which", lambda name, path: f"/bin/{name}")
    asked = ("--device", "cpu", "--levels", "0,3", "--peers", "torch")
    sides = planned(*asked, "--processes", "4").sides("mlp")
    many = {name: command for name, command in sides.items() if name.endswith(" processes")}
    assert list(many) == ["level 3, 4 processes", "torch, channels last, 4 processes"]
    for each in many.values():
        assert each[:3] == ["/bin/mpiexec", "-n", "4"]
        assert json.loads(each[-1])["threads"] == 1
    assert json.loads(sides["level 3"][-1])["threads"] == 4
    assert planned(*asked).sides("mlp").keys() == sides.keys() - many.keys()
    of_expression = planned(*asked, "--processes", "4").sides("abc")
    assert not of_expression.keys() & many.keys()
    more = planned(*asked, "--processes", "2", "--threads", "6").sides("mlp")
    assert json.loads(more["level 3, 2 processes"][-1])["threads"] == 3


def test_without_a_launcher_there_are_no_sides_of_several_processes(installed, monkeypatch):
    monkeypatch.setattr(plans.shutil, "which", lambda name, path: None)
    plan = planned("--device", "cpu", "--processes", "2", "--levels", "3", "--peers", "none")
    assert list(plan.sides("mlp")) == ["machine", "level 3"]
    assert "minigraph[mpi]" in plan.missing()["several processes"]


def test_several_processes_on_cuda_take_the_device_of_each(installed, monkeypatch):
    monkeypatch.setattr(plans.shutil, "which", lambda name, path: f"/bin/{name}")
    monkeypatch.setattr(command.mg, "comp_graph", lambda device: Namespace(device=device))
    asked = ("--levels", "3", "--peers", "none", "--processes", "2")
    many = planned("--device", "cuda", *asked).sides("mlp")["level 3, 2 processes"]
    assert json.loads(many[-1])["device"] == "cuda"


@pytest.mark.long
def test_a_step_of_two_processes_is_measured(tmp_path):
    pytest.importorskip("mpi4py")
    arguments = "--quick --models mlp --levels 3 --peers none --processes 2 --batch-size 4"
    assert cli.main(["bench", *arguments.split(), "--out", str(tmp_path)]) == 0
    side = Results.read(tmp_path).cases["mlp"].sides["level 3, 2 processes"]
    assert not side.error and len(side.seconds) == 5 and 0 <= side.hidden <= 1
    assert side.peak > 1 << 20


@pytest.mark.parametrize(
    ("together", "share"), [(5.0, 0.0), (4.0, 0.5), (3.0, 1.0), (2.9, 1.0), (6.0, 0.0)]
)
def test_what_is_hidden_is_a_share_of_the_shorter_of_backward_pass_and_talking(
    monkeypatch, together, share
):
    monkeypatch.setattr("minigraph.bench.worker.seconds", lambda step: step())
    times = itertools.cycle([together, together, 99.0])  # of which the medians count
    assert hidden(lambda: next(times), lambda: 3.0, lambda: 2.0) == share
    assert hidden_share(together + 1, 3.0, 3.0) == share


def test_processes_have_cores_by_their_place_on_the_machine(monkeypatch):
    taken = []
    team = SimpleNamespace(rank=3, gather=lambda name: ["one", "two", "one", name])
    monkeypatch.setattr("minigraph.bench.worker.world", lambda: team)
    monkeypatch.setattr("platform.node", lambda: "two")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(5)), raising=False)
    monkeypatch.setattr(
        "os.sched_setaffinity", lambda pid, cores: taken.append(cores), raising=False
    )
    take_cores(2)
    take_cores(5)  # none is left for it
    assert taken == [[2, 3], {*range(5)}]


# ---------------------------------------------------------------- precision


def on_cuda():
    """A plan for a GPU, made where there may be none."""
    return replace(planned("--device", "cpu"), device="cuda", precision="bfloat16")


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


def test_small_types_halve_what_layers_write_and_not_the_parameters():
    full, small = (case("resnet50", precision=name) for name in ("tf32", "bfloat16"))
    parameters = 24 * SIZES["resnet50"]
    assert small.bytes - parameters == (full.bytes - parameters) / 2 > 0


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


# ---------------------------------------------------------------- the losses


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


# ---------------------------------------------------------------- the networks

SIZES = {
    "alexnet": 61_100_840,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenetv2": 3_504_872,  # as torchvision says
    "resnet20": 272_474,
    "unet": 1_927_108,
    "gpt": 826_112,
    "lstm": 1_101_920,
}
EXAMPLES = {"alexnet": "AlexNet", "resnet18": "resnet18", "resnet50": "resnet50", "gpt": "GPT"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_networks_are_those_of_the_examples(name):
    folder = {"alexnet": "alexnet", "gpt": "gpt"}.get(name, "resnet")
    path = ROOT / "examples" / folder / "model.py"
    spec = importlib.util.spec_from_file_location(f"example_{folder}", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    make = getattr(example, EXAMPLES[name])
    net = make(networks.VOCABULARY) if name == "gpt" else make()
    made = NETWORKS[name].network(ours.LIBRARY)
    shapes = [sorted(p.shape for p in each.parameters()) for each in (net, made)]
    assert shapes[0] == shapes[1]
    subject = case(name, batch_size=2)
    x = mg.input("x", (2, *subject.shape), subject.data()[0][0].dtype)
    scores = net(x).swapaxes(1, 2).reshape(2 * 64, -1) if name == "gpt" else net(x)
    assert made(x).shape == scores.shape


@pytest.mark.parametrize("name", SIZES)
def test_what_is_counted_are_the_parameters_and_the_labels_fit_the_scores(name):
    subject = case(name, batch_size=2)
    net = subject.network(ours.LIBRARY)
    count = sum(p.size for p in net.parameters() if p.trainable)
    assert subject.arithmetic.parameters == count == SIZES[name]
    for examples, labels in subject.data():
        scores = net(mg.input("x", examples.shape, examples.dtype))
        assert scores.shape[1] == subject.classes
        assert labels.shape == scores.shape[:1] + scores.shape[2:]
        assert set(np.unique(labels)) <= set(range(subject.classes))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["mobilenetv2", "resnet20", "unet", "gpt", "lstm"])
def test_a_network_is_the_same_in_pytorch(name, torch):
    torch_peer = importlib.import_module("minigraph.bench.torch_peer")
    subject = case(name, batch_size=2, quick=True)
    nets = [subject.network(lib) for lib in (ours.LIBRARY, torch_peer.LIBRARY)]
    state = {n: first_value(n, tuple(p.shape)) for n, p in nets[1].named_parameters()}
    assert {n: p.shape for n, p in nets[0].named_parameters()} == {
        n: value.shape for n, value in state.items()
    }
    nets[0].load_state_dict({**nets[0].state_dict(), **state})
    nets[1].load_state_dict({n: torch.from_numpy(v) for n, v in state.items()}, strict=False)
    value = subject.data()[0][0]
    x = mg.input("x", value.shape, value.dtype)
    got = mg.comp_graph("cpu").compile([x], nets[0].eval()(x))(value)
    with torch.no_grad():
        want = nets[1].eval()(torch.from_numpy(value)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * abs(want).max())


# ---------------------------------------------------------------- predictions


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
    assert planned(*flags, "abc,resnet18").missing() == {}
    why = "needs torch, which is not installed"
    assert planned(*flags, "resnet18-1").missing() == {"onnxruntime": why}


def test_who_predicts_other_scores_is_not_timed(run):
    commands = {
        "level 3": scripted(losses=[1.0, 4.0001]),
        "jax": scripted(losses=[1.0, 4.1]),
        "torch": scripted(losses=[1.0, 4.0]),
    }
    sides = run(commands, models=("resnet18-1",)).cases["resnet18-1"].sides
    assert sides["jax"].error == "predicts other scores than torch: 2.5e-02 apart"
    assert not sides["jax"].seconds and len(sides["level 3"].seconds) == 5
    assert sides["level 3"].apart == pytest.approx(2.5e-5, rel=0.01) and sides["torch"].apart == 0


def test_who_predicts_nan_is_not_timed(run):
    commands = {"torch": scripted(losses=[1.0, 4.0]), "jax": scripted(losses=[1.0, None])}
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
    for name in ("torch", "jax", "onnxruntime"):
        pytest.importorskip(name)
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path))
    plan = planned("--device", "cpu", "--levels", "0,3", "--models", model)
    found = {}
    for name, command_ in plan.sides(model).items():
        if name != "machine":
            worker = Worker(command_, os.environ, patience=300.0)
            found[name] = worker.ask("scores", 60.0)["scores"]
            worker.kill()
    assert len(found) == 9
    for scores in found.values():
        np.testing.assert_allclose(scores, found["torch"], rtol=0, atol=1e-3 * np.ptp(scores))


@pytest.mark.parametrize(
    ("name", "multiplications"), [("alexnet", 714e6), ("resnet18", 1.814e9), ("resnet50", 4.089e9)]
)
def test_a_training_step_computes_three_times_what_is_published_for_an_image(name, multiplications):
    subject = case(name, batch_size=2)
    first = 64 * 55 * 55 * 3 * 11 * 11 if name == "alexnet" else 64 * 112 * 112 * 3 * 7 * 7
    assert subject.flops == pytest.approx(2 * 2 * (3 * multiplications - first), rel=0.002)
    assert case(f"{name}-32").flops == pytest.approx(2 * 32 * multiplications, rel=0.002)


@pytest.mark.parametrize("name", NAMES)
def test_data_are_numbers_and_none_of_them_is_the_same_for_long(name):
    subject = case(name, batch_size=2, quick=True)
    for part in subject.data():
        images = part[0] if isinstance(part, tuple) else part
        assert abs(images.flat[:1000]).min() > 0 and images.flat[:1000].std() > 0.1
