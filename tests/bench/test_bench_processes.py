"""Sides that are several processes."""

import itertools
import json
from argparse import Namespace
from types import SimpleNamespace

import pytest
from bench_plans import planned

from minigraph import cli
from minigraph.bench import command
from minigraph.bench import plan as plans
from minigraph.bench.results import Results
from minigraph.bench.worker import hidden, hidden_share, take_cores


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
    monkeypatch.setattr(plans, "find_spec", lambda name: None if name == "torch" else name)
    assert [*planned(*asked, "--processes", "4").sides("mlp")][-1] == "level 3, 4 processes"


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
