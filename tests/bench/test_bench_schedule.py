"""A run of `minigraph bench` ends when it was promised to end, however busy the machine is.

The clock and the workers are scripted: nothing here takes the time that it stands for.
"""

import io
import itertools
import sys

import pytest

from minigraph import cli
from minigraph.bench import command, measure, plan
from minigraph.bench.page import remarks
from minigraph.bench.schedule import Schedule


class Machine:
    """A clock, and workers which take as long as was planned for them, times how busy it is."""

    def __init__(self, monkeypatch, plan, busy):
        self.now, self.plan, self.busy, self.left = 0.0, plan, itertools.cycle(busy), []
        self.turns = lambda name: itertools.repeat(1.0)
        self.hanging = None
        monkeypatch.setattr(measure, "Worker", self.worker)

    def run(self):
        options = {"repeats": self.plan.repeats}
        return measure.measure_cases(
            self.plan, options, self.progress, lambda _: None, lambda: self.now
        )

    def progress(self, what, left):
        self.left.append((self.now, left))

    def take(self, seconds, patience):
        seconds *= next(self.busy)
        self.now += min(seconds, patience)
        if seconds > patience:
            raise measure.Failure(f"gave no answer within {patience:.0f} s")

    def worker(self, commanded, environment, patience):
        return Scripted(self, commanded, patience)


class Scripted:
    def __init__(self, machine, commanded, patience):
        program = commanded[2].rpartition(".")[2]
        text = commanded[3]
        self.machine = machine
        self.subject = next(
            machine.plan.task(name).subject for name in machine.plan.models if f'"{name}"' in text
        )
        self.probe = program == "probe"
        compiled = "torch.compile" if "compiled" in text else "level 0"
        planned = machine.plan.start_seconds(compiled, self.subject) / (1 + machine.plan.twice)
        machine.take(1e9 if program == machine.hanging else planned, patience)
        self.first = planned
        self.turns = machine.turns(program)

    def ask(self, request, patience):
        turn = self.machine.plan.turn_seconds(self.subject)
        if request == "details":
            self.machine.take(5 * turn, patience)
            return {"peak": 1}
        if request == "losses":
            self.machine.take(20 * turn, patience)
            return {"losses": [1.0]}
        self.machine.take(turn, patience)
        if request == "scores":
            return {"scores": [1.0]}
        names = ("copy", "copy by NumPy", "product") if self.probe else ("step",)
        return dict.fromkeys(names, turn * next(self.turns))

    def kill(self):
        pass


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(plan, "find_spec", lambda name: name)  # all peers seem to be installed

    def made(*arguments, busy=(1.0,)):
        asked = cli._parser().parse_args(["bench", "--device", "cpu", *arguments])
        return Machine(monkeypatch, command.planned(asked), busy)

    return made


RUNS = {"quick": ["--quick"], "full": [], "three networks": ["--models", "mlp,resnet18,resnet50"]}
PREDICTING = {"inference": ["--models", "inference"]}


@pytest.mark.parametrize("busy", [(0.3,), (1,), (2,), (5,), (15,), (1, 9), (1, 1, 1, 1, 1, 30)])
@pytest.mark.parametrize("arguments", (RUNS | PREDICTING).values(), ids=RUNS | PREDICTING)
def test_a_run_ends_when_it_was_promised_to_end(machine, arguments, busy):
    made = machine(*arguments, busy=busy)
    found = made.run()
    assert made.now <= 1.05 * made.plan.promised
    assert found.cases
    if found.left_out:
        assert any("The time was up" in line for line in remarks(found))


@pytest.mark.parametrize("busy", [0.3, 1, 2, 5])
@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
def test_all_that_is_begun_ends(machine, arguments, busy):
    for case in machine(*arguments, busy=(busy,)).run().cases.values():
        assert len(case.sides) == len(case.measured) >= measure.PAIR
        assert all(len(side.seconds) >= measure.LEAST for side in case.sides.values())
        assert not [s.error for s in case.sides.values() if s.error]


@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
def test_the_seconds_left_never_reach_beyond_the_promise_and_do_not_jump(machine, arguments):
    for busy in [(0.3,), (1,), (5,), (0.5, 0.5, 4)]:
        made = machine(*arguments, busy=busy)
        made.run()
        promised = made.plan.promised
        ends = [now + left for now, left in made.left if now < promised]
        assert all(end <= promised * (1 + 1e-9) for end in ends)
        assert max(b - a for a, b in itertools.pairwise(ends)) < 0.1 * promised


def test_a_machine_as_fast_as_planned_measures_everything(machine):
    made = machine("--models", "mlp,resnet18", "--repeats", "4")
    found = made.run()
    assert not found.left_out and not remarks(found)
    sides = [side for case in found.cases.values() for side in case.sides.values()]
    assert {len(side.seconds) for side in sides} == {4}
    assert made.left[0][1] == pytest.approx(made.plan.seconds())


def test_a_busy_machine_gets_fewer_turns_then_fewer_sides_then_fewer_cases(machine):
    done = []
    for busy in (1, 1.5, 3, 15):
        found = machine("--models", "abc,alexnet,resnet18", "--repeats", "20", busy=(busy,)).run()
        sides = [side for case in found.cases.values() for side in case.sides.values()]
        turns = sum(len(side.seconds) for side in sides) / len(sides)
        done.append((len(found.cases), len(sides), turns))
    cases, sides, turns = zip(*done, strict=True)
    assert turns[0] == 20 > turns[1] and sides[0] == sides[1]
    assert sides[1] > sides[2] and cases[0] == cases[2] > cases[3]


def test_what_there_was_no_time_for_is_named(machine):
    found = machine("--quick", "--models", "resnet18,mlp", "--minutes", "1", busy=(12,)).run()
    (line,) = [line for line in remarks(found) if "The time was up" in line]
    assert "not measured are 4 sides and the bounds of ResNet-18 and " in line
    assert "--minutes" in line
    assert "level 1" in found.left_out[found.cases["resnet18"].title]


def test_a_peer_that_hangs_takes_no_more_than_the_time_that_is_left(machine):
    made = machine("--quick", "--models", "abc,mlp")
    made.hanging = "jax_peer"
    found = made.run()
    assert made.now <= 1.1 * made.plan.promised
    assert "gave no answer" in found.cases["abc"].sides["jax"].error
    assert all(len(side.seconds) >= measure.LEAST for side in found.cases["abc"].measured.values())


def test_sides_that_never_settle_warm_up_for_a_share_of_the_time(machine):
    made = machine("--models", "mlp", "--repeats", "60")
    made.turns = lambda program: (0.9**i for i in itertools.count())
    warmup = {side.warmup for side in made.run().cases["mlp"].sides.values()}
    assert len(warmup) == 1 and 6 < warmup.pop() <= 30


def test_sides_that_have_settled_do_not_warm_up(machine):
    made = machine("--models", "mlp", "--repeats", "60")
    made.turns = lambda program: itertools.cycle([1.0, 1.5, 0.7])
    assert {side.warmup for side in made.run().cases["mlp"].sides.values()} == {2}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_counts_down_while_a_part_runs(monkeypatch):
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    now = [0.0]
    bar = command.Bar(200.0, lambda: now[0])
    bar.begin("ResNet-18: torch", 100.0)
    assert "ResNet-18: torch" in shown.getvalue()
    assert "00:00, about 01:40 left" in shown.getvalue()
    now[0] = 30.0
    bar.show()
    assert " 30%|" in shown.getvalue() and "00:30, about 01:10 left" in shown.getvalue()
    now[0] = 130.0
    bar.show()
    assert "100%|" in shown.getvalue() and "02:10, about 00:00 left" in shown.getvalue()
    with bar:
        pass


def test_a_file_gets_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    with command.Bar(200.0) as bar:
        bar.begin("ResNet-18: torch", 100.0)
    assert shown.getvalue() == ""


def test_a_case_that_needs_less_leaves_its_time_to_the_next():
    now = [0.0]
    schedule = Schedule(100.0, 100.0, lambda what, left: None, lambda: now[0])
    with schedule.case(50.0):
        assert schedule.until == 50.0
        now[0] = 10.0
    with schedule.case(25.0):
        assert schedule.until == 55.0
        assert schedule.left == 50.0
