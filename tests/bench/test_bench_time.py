"""A run of `minigraph bench` ends after its minutes, however busy the machine is.

The clock and the workers are scripted: nothing here takes the time that it stands for.
"""

import itertools

import pytest
from bench_plans import planned

from minigraph.bench import measure
from minigraph.bench.measure import MIN_SIDES, MIN_TIMEOUT, MIN_TURNS, TimeLimit
from minigraph.bench.tables import remarks

START, TURN = 3.0, 0.3  # seconds on a machine that is not busy


class Machine:
    """A clock, and workers that take some time, times how busy the machine is."""

    def __init__(self, monkeypatch, plan, busy):
        self.now, self.plan, self.busy = 0.0, plan, itertools.cycle(busy)
        self.turns = lambda: itertools.repeat(1.0)
        self.hanging = None
        monkeypatch.setattr(measure, "Worker", lambda *asked: Scripted(self, *asked))

    def run(self):
        options = {"repeats": self.plan.repeats}
        return measure.measure_cases(
            self.plan, options, lambda what: None, lambda results: None, lambda: self.now
        )

    def spend(self, seconds, timeout):
        seconds *= next(self.busy)
        self.now += min(seconds, timeout)
        if seconds > timeout:
            raise measure.Failure(f"gave no answer within {timeout:.0f} s")


class Scripted:
    def __init__(self, machine, commanded, environment, timeout):
        self.machine = machine
        compiled = 10 if "compiled" in commanded[3] else 1
        self.first = 1e9 if commanded[2].endswith(machine.hanging or "-") else START * compiled
        machine.spend(self.first, timeout)
        self.turns = machine.turns()

    def ask(self, request, timeout):
        outputs = TURN if "resnet18-1" in self.machine.plan.models else 20 * TURN
        self.machine.spend({"outputs": outputs, "summary": 0.01}.get(request, TURN), timeout)
        if request == "turn":
            return {"step": TURN * next(self.turns)}
        return {"peak": 1, "p99": None, "roofline": None, "outputs": [1.0]}

    def kill(self):
        pass


@pytest.fixture
def machine(monkeypatch, installed):
    return lambda *arguments, busy=(1.0,): Machine(monkeypatch, planned(*arguments), busy)


RUNS = {
    "quick": ["--quick"],
    "full": [],
    "three networks": ["--models", "mlp,resnet18,resnet50", "--minutes", "10"],
    "inference": ["--models", "inference", "--minutes", "6"],
}


@pytest.mark.parametrize("busy", [(0.3,), (1,), (2,), (5,), (15,), (1, 9), (1, 1, 1, 1, 1, 30)])
@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
def test_a_run_ends_after_its_minutes(machine, arguments, busy):
    fake = machine(*arguments, busy=busy)
    results = fake.run()
    assert fake.now <= 60 * fake.plan.minutes + 2 * MIN_TIMEOUT
    assert results.cases
    if results.left_out:
        assert any("The time was up" in line for line in remarks(results))


@pytest.mark.parametrize("busy", [0.3, 1, 2])
@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
def test_a_side_that_is_started_has_its_turns(machine, arguments, busy):
    *cases, last = machine(*arguments, busy=(busy,)).run().cases.values()
    assert last.measured
    for case in cases:
        assert len(case.sides) == len(case.measured) >= MIN_SIDES
        assert all(len(side.seconds) >= MIN_TURNS for side in case.sides.values())
        assert not [side.error for side in case.sides.values() if side.error]


def test_a_busy_machine_gets_fewer_turns_and_sides_then_fewer_cases(machine):
    counts = []
    asked = ("--models", "abc,mlp,resnet18", "--peers", "torch", "--repeats", "20", "--once")
    for busy in (0.5, 3, 5):
        results = machine(*asked, "--minutes", "5", busy=(busy,)).run()
        sides = [side for case in results.cases.values() for side in case.sides.values()]
        turns = sum(len(side.seconds) for side in sides) / len(sides)
        counts.append((len(results.cases), len(sides), turns))
    cases, sides, turns = zip(*counts, strict=True)
    assert turns[0] == 20 > turns[1] and sides[0] > sides[1]
    assert cases[0] == cases[1] > cases[2]


def test_what_there_was_no_time_for_is_named(machine):
    results = machine("--quick", "--models", "resnet18,mlp", "--levels", "0,1,3", busy=(8,)).run()
    (line,) = [line for line in remarks(results) if "The time was up" in line]
    assert "not measured are " in line and " of ResNet-18; " in line and "--minutes" in line
    assert "level 1" in results.left_out[results.cases["resnet18"].title]
    assert "level 1" in line


def test_a_peer_that_hangs_leaves_time_for_the_others(machine):
    fake = machine("--quick", "--models", "abc,mlp")
    fake.hanging = "jax_peer"
    results = fake.run()
    assert "gave no answer" in results.cases["abc"].sides["jax"].error
    assert all(len(side.seconds) >= MIN_TURNS for side in results.cases["abc"].measured.values())
    assert "mlp" in results.cases


def test_sides_that_never_settle_warm_up_for_a_share_of_the_time(machine):
    fake = machine("--models", "mlp", "--repeats", "1000", "--minutes", "5")
    fake.turns = lambda: (0.9**i for i in itertools.count())
    sides = fake.run().cases["mlp"].sides.values()
    (warmup,), (turns,) = ({side.warmup for side in sides}, {len(side.seconds) for side in sides})
    assert 3 < warmup < 0.7 * turns


def test_a_case_that_needs_less_leaves_its_time_to_the_next():
    now = [0.0]
    limit = TimeLimit(90.0, 2, lambda: now[0])
    limit.begin_case()
    assert limit.case_end == 60.0
    now[0] = 10.0
    limit.begin_case()
    assert limit.case_end == limit.end == 90.0
