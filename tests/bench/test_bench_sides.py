"""The sides of a benchmark: processes that take turns, agree, fail, or are cut off."""

import os
import signal
import sys

import pytest
from bench_plans import planned, scripted

from minigraph.bench import measure
from minigraph.bench.measure import TimeLimit
from minigraph.bench.results import Results, SideResult
from minigraph.bench.tables import terminal_lines
from minigraph.bench.worker import Failure, Worker


def test_times_count_once_they_have_settled(run):
    side = run({"level 0": scripted(9.0, 0.5, 0.25)}).cases["abc"].sides["level 0"]
    assert side == SideResult([0.25] * 5, warmup=4, cold=0.5, peak=1 << 30)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("exit", "no more of it"),
        ("kill", "out of memory"),
        ("error", "MemoryError: too much"),
        ("noise", "gave an answer that is cut off, or no JSON: "),
    ],
)
def test_a_worker_that_fails_is_a_line_and_not_the_end(run, end, words):
    results = run({"level 0": scripted(), "torch": scripted(0.25, 0.25, 0.25, end)})
    sides = results.cases["abc"].sides
    assert len(sides["level 0"].seconds) == 5 and not sides["level 0"].error
    assert len(sides["torch"].seconds) == 1 and words in sides["torch"].error
    assert any(words in line for line in terminal_lines(results))


def test_a_worker_that_does_not_start_is_a_line_and_not_the_end(run):
    broken = [sys.executable, "-S", "-c", "import there_is_no_such_module"]
    results = run({"level 0": scripted(), "jax": broken})
    assert "there_is_no_such_module" in results.cases["abc"].sides["jax"].error
    assert results.cases["abc"].best_peer is None
    assert any(", jax: ended with status 1" in line for line in terminal_lines(results))


def test_a_worker_that_does_not_answer_is_given_up():
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with pytest.raises(Failure, match="gave no answer within 0 s, the time that was left"):
        Worker(sleeping, os.environ, timeout=0.05)


def test_a_case_that_cannot_be_run_is_said_in_the_words_of_its_error(tmp_path):
    plan = planned("--quick")
    command = plan.sides("mlp")["level 0"]
    case_run = measure.CaseRun(plan, "mlp", TimeLimit(60.0, 1), lambda what: None)
    case_run.measure({"level 0": [*command[:-1], '{"case": "nothing"}']}, tmp_path / "mlp")
    assert case_run.result.sides["level 0"].error.startswith("ValueError: is wrong: ")


def test_ctrl_c_keeps_what_was_measured(run, ctrl_c):
    shown = []

    def progress(what):
        shown.append(what)
        if shown.count("a * b * c (1 of 2): torch") == 4:  # its start and two turns before it
            os.kill(os.getpid(), signal.SIGINT)

    results = run({"level 0": scripted(), "torch": scripted()}, "abc,mlp", progress=progress)
    assert results.interrupted
    assert list(results.cases) == ["abc"]
    sides = results.cases["abc"].sides
    assert (len(sides["level 0"].seconds), len(sides["torch"].seconds)) == (1, 0)
    assert any("Interrupted" in line for line in terminal_lines(results))


def test_results_are_saved_after_each_case(run):
    saved = []
    run({"level 0": scripted()}, "abc,mlp", save=lambda results: saved.append([*results.cases]))
    assert saved == [["abc"], ["abc", "mlp"]]


def test_every_other_round_is_in_reverse(run):
    shown = []
    commands = {name: scripted() for name in ("level 0", "level 3", "torch")}
    run(commands, progress=lambda what: shown.append(what.rpartition(" ")[2]))
    turns = shown[3:9]  # after the starts
    assert turns == ["0", "3", "torch", "torch", "3", "0"]


# ---------------------------------------------------------------- outputs that agree

TRAINING = ("mlp", "--repeats", "2")


def test_losses_of_the_highest_level_are_compared_with_those_of_pytorch(run):
    names = ("level 0", "level 3", "level 3, untuned", "torch", "torch, channels last")
    commands = {name: scripted(outputs=[1 + i / 4]) for i, name in enumerate(names)}
    sides = run(commands, *TRAINING).cases["mlp"].sides
    compared = {name: s.difference for name, s in sides.items() if s.difference is not None}
    assert compared == {
        "level 3": pytest.approx(0.5 / 1.75),
        "torch": 0.0,
        "torch, channels last": pytest.approx(0.25 / 1.75),
    }


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (("mlp", "--quick"), ["level 3", "torch"]),
        (("abc", "--repeats", "2"), ["level 3", "torch"]),
        (TRAINING, ["level 3", "jax"]),
        (TRAINING, ["level 3, untuned", "torch"]),
    ],
)
def test_losses_need_time_a_training_step_and_both_sides(run, case, names):
    results = run({name: scripted(outputs="exit") for name in names}, *case)
    assert not any(side.losses_error for side in results.cases[case[0]].sides.values())


@pytest.mark.parametrize(
    ("outputs", "words"), [("kill", "out of memory"), ([2.0, None], "gives NaN or infinity")]
)
def test_losses_that_fail_harm_nothing_else(run, tmp_path, outputs, words):
    results = run(
        {"level 3": scripted(outputs=outputs), "torch": scripted(outputs=[2.0])}, *TRAINING
    )
    mine, _ = results.cases["mlp"].sides.values()
    assert words in mine.losses_error and not mine.error
    assert len(mine.seconds) == 2 and mine.peak == 1 << 30
    assert f"level 3: losses: {mine.losses_error}" in " ".join(terminal_lines(results))
    results.write(tmp_path)
    assert Results.read(tmp_path) == results


@pytest.mark.parametrize(
    ("scores", "words"),
    [([1.0, 4.1], "predicts other scores than torch"), ([1.0, None], "gives NaN or infinity")],
)
def test_a_side_with_other_scores_has_failed(run, scores, words):
    commands = {
        "level 3": scripted(outputs=[1.0, 4.0001]),
        "jax": scripted(outputs=scores),
        "torch": scripted(outputs=[1.0, 4.0]),
    }
    case = run(commands, "resnet18-1").cases["resnet18-1"]
    assert case.sides["jax"].error == words and case.best_peer[0] == "torch"
    assert case.sides["level 3"].difference == pytest.approx(2.5e-5, rel=0.01)
    assert not case.sides["level 3"].error and case.sides["torch"].difference == 0
