"""The sides of a benchmark: processes that take turns, fail, or are missing."""

import os
import signal
import sys

import pytest
from bench_plans import planned, scripted, silent

from minigraph.bench import measure
from minigraph.bench import plan as plans
from minigraph.bench.page import terminal_lines
from minigraph.bench.results import SideResult
from minigraph.bench.schedule import Schedule
from minigraph.bench.worker import Failure, Worker


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
    plan = planned("--device", "cpu", "--models", models, *peers)
    assert plan.missing() == missing
    assert [name for name in plan.models if "jax" in plan.sides(name)] == (
        [name for name in plan.models if name in ("abc", "mlp")]
    )


def test_an_expression_has_no_channels_and_nothing_to_tune(installed):
    plan = planned("--device", "cpu", "--untuned", "--levels", "0,2,3", "--peers", "torch")
    of_expression, of_network = (plan.sides(name).keys() for name in ("abc", "mlp"))
    assert list(of_expression) == ["machine", "level 0", "level 2", "level 3", "torch"]
    assert of_network - of_expression == {
        "level 2, untuned",
        "level 3, untuned",
        "torch, channels last",
    }
