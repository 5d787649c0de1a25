"""Measuring between calls: a little each time, in lent memory, and no call is a half-made one."""

import dataclasses
import threading

import numpy as np
import pytest
from needs import needs_both
from new_process import forget_measurements
from small_network import batch, compiled, network, work

import minigraph as mg
from minigraph import ops
from minigraph.autotune import online
from minigraph.autotune.candidate import Candidate, HostBench, NotCompiled, Problem
from minigraph.autotune.lent import LentBench
from minigraph.autotune.measurement import Measurement, ProblemTable
from minigraph.autotune.online import LEAST, SHARE, OnlineTuner, WhileCallsGoOn
from minigraph.autotune.policy import Policy, choose
from minigraph.autotune.session import Session
from minigraph.cache import Measurements
from minigraph.graph import FLOATS, Spec

LAYOUTS = ("x", "x")
WORK = 1e7  # operations, which take half a millisecond where nothing is known


class Clock:
    """Time passes only while a candidate runs."""

    now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """Doubles an array, or multiplies it by another factor, in so many seconds."""

    scratch = 0

    def __init__(self, clock, seconds, factor=2):
        self.clock, self.seconds, self.factor = clock, seconds, factor
        self.runs = 0

    def run(self, inputs, outputs, scratch):
        self.runs += 1
        self.clock.now += self.seconds
        outputs[0][...] = inputs[0] * np.float32(self.factor)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def new_process(tmp_path, monkeypatch):
    """Begin with an empty cache folder."""
    forget_measurements(monkeypatch, tmp_path / "empty")


def problem(size=10, work=WORK, **runners):
    spec = Spec((size,))
    return Problem(
        kind="onednn",
        subject=f"double float32[{size}]",
        inputs=(spec,),
        results=(spec,),
        meaning=lambda x: pytest.fail("NumPy computes nothing between calls"),
        arrange=lambda x, layout: x,
        layouts=[LAYOUTS],
        candidates=lambda layouts: [
            Candidate(name, LAYOUTS, lambda made=made: made) for name, made in runners.items()
        ],
        work=work,
    )


def session(*problems, budget=30.0, store=None, clock=None):
    made = Session("online", Policy(), budget, {"processor": "one"}, store, clock=clock or Clock())
    made.tables(problems)
    return made


def memory(nbytes=1 << 20):
    """Return lent memory, in which another user has left NaN."""
    return np.full(nbytes, 0xFF, np.uint8)


def known(of, *problems):
    """Return what a session knows of the candidates of problems, by name."""
    tables = of.tables(problems)
    return {m.name: m for p in problems for m in tables[p.subject][0].measurements}


def until_done(tuner, call, clock):
    """Return how long each wait before a call was, until all is measured."""
    waits, done, lent = [], False, memory()
    while not done and len(waits) < 1000:
        start = clock.now
        lent.fill(0xFF)  # as a call does
        done = tuner.advance(call, lent)
        waits.append(clock.now - start)
    assert done
    return waits


def test_a_call_waits_for_a_share_of_the_last_and_in_the_end_all_is_measured(clock):
    runners = {name: Slow(clock, 0.02 + 0.001 * i) for i, name in enumerate("abcde")}
    one = problem(**runners)
    of = session(one, clock=clock)
    waits = until_done(OnlineTuner(of, clock), 0.2, clock)
    assert max(waits) <= SHARE * 0.2 and len(waits) > 5
    assert {m.name: round(m.seconds, 3) for m in known(of, one).values()} == {
        name: runner.seconds for name, runner in runners.items()
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_heuristics_choice_reads_the_dtype_of_the_problem(clock, dtype):
    class Same(Slow):
        def run(self, inputs, outputs, scratch):
            assert inputs[0].dtype == outputs[0].dtype == dtype
            super().run(inputs, outputs, scratch)
            outputs[0][...] = inputs[0] * dtype.type(2)

    spec = Spec((10,), dtype)
    one = dataclasses.replace(problem(a=Same(clock, 0.001)), inputs=(spec,), results=(spec,))
    of = session(one, clock=clock)
    until_done(OnlineTuner(of, clock), 0.2, clock)
    assert known(of, one)["a"].error == ""


def test_a_piece_of_work_that_takes_longer_is_done_when_enough_calls_have_saved_for_it(clock):
    one = problem(work=1e9, a=Slow(clock, 0.05), b=Slow(clock, 0.05))
    waits = until_done(OnlineTuner(session(one, clock=clock), clock), 0.01, clock)
    # What is checked is compared with the heuristic's choice, which is run once more for that.
    assert sum(waits) <= LEAST * len(waits) + 0.1
    assert set(np.round(waits, 3)) == {0.0, 0.05, 0.1}


def test_the_smallest_problem_comes_first_then_the_largest_and_each_is_learnt_at_once(
    clock, tmp_path
):
    sizes = (3, 4, 5)
    problems = [problem(size, work=WORK * size, a=Slow(clock, 0.01)) for size in sizes]
    small, middle, large = (each.subject for each in problems)
    store = Measurements(tmp_path / "cache")
    of = session(*problems, store=store, clock=clock)
    tuner = OnlineTuner(of, clock)
    for expected in ([small], [large, small], [large, middle, small]):
        while len(of.waiting) > len(sizes) - len(expected):
            tuner.advance(0.03, memory())
        assert sorted(entry.subject for entry in store.entries("onednn")) == sorted(expected)


def test_nothing_waits_once_the_budget_is_spent(clock):
    of = session(problem(1, a=Slow(clock, 0.01)), budget=0.01, clock=clock)
    until_done(OnlineTuner(of, clock), 0.02, clock)
    of.tables([problem(2, a=Slow(clock, 0.01))])
    assert not of.waiting


def test_a_result_that_differs_from_the_heuristics_choice_is_no_candidate(clock):
    one = problem(right=Slow(clock, 0.02), wrong=Slow(clock, 0.01, factor=3))
    of = session(one, clock=clock)
    until_done(OnlineTuner(of, clock), 1.0, clock)
    found = known(of, one)
    assert "wrong result" in found["wrong"].error and found["wrong"].seconds is None
    assert found["right"].error == ""


def test_a_candidate_that_is_hopeless_for_other_sizes_is_not_run(clock):
    runners = {"a": Slow(clock, 0.01), "b": Slow(clock, 0.01 * online.HOPELESS + 0.001)}
    large, small = problem(100, WORK * 2, **runners), problem(90, WORK, **runners)
    of = session(large, small, clock=clock)
    tuner = OnlineTuner(of, clock)
    while small.subject in of.waiting:
        tuner.advance(0.03, memory())
    runs = runners["b"].runs
    until_done(tuner, 1.0, clock)
    assert runners["b"].runs == runs
    assert (
        "not tried: 2.1 times as slow as the fastest for other sizes" in known(of, large)["b"].error
    )


def test_the_budget_ends_it(clock):
    one = problem(a=Slow(clock, 0.01), b=Slow(clock, 0.01))
    of = session(one, budget=0.02, clock=clock)
    until_done(OnlineTuner(of, clock), 0.02, clock)
    assert of.spent >= 0.02 and of.tables([one]) == {}


def test_while_another_process_measures_a_call_does_not_wait(clock, tmp_path):
    one = problem(a=Slow(clock, 0.01))
    of = session(one, store=Measurements(tmp_path / "cache"), clock=clock)
    with Measurements(tmp_path / "cache").turn(1.0) as alone:
        assert alone
        assert not OnlineTuner(of, clock).advance(1.0, memory()) and clock.now == 0.0
    assert OnlineTuner(of, clock).advance(10.0, memory())


def test_arrays_lie_in_the_lent_memory_as_far_as_they_fit():
    lent = memory(256)
    bench = LentBench(HostBench(), lent)
    first, second, third = bench.empty(100), bench.empty(100), bench.empty(100)
    assert [np.shares_memory(lent, array) for array in (first, second, third)] == [
        True,
        True,
        False,
    ]
    assert not np.shares_memory(first, second) and third.nbytes == 100
    kept = LentBench(HostBench(), lent).stored(np.arange(8.0))
    assert np.shares_memory(lent, kept) and kept.tolist() == [*range(8)]


def test_a_kernel_is_compiled_beside_the_calls_which_do_not_wait_for_it(clock):
    compiled_now = threading.Event()

    class Compiling(HostBench):
        def runner(self, kernel):
            if kernel is late:
                assert compiled_now.wait(10)
            return kernel.run

    early, late = Slow(clock, 0.01), Slow(clock, 0.005)
    one = dataclasses.replace(problem(early=early, late=late), workbench=Compiling())
    of = session(one, clock=clock)
    tuner = OnlineTuner(of, clock)
    for _ in range(3):
        assert not tuner.advance(1.0, memory())
    assert (early.runs > 0, late.runs) == (True, 0)
    bench = WhileCallsGoOn(Compiling(), memory())
    with pytest.raises(NotCompiled):
        bench.runner(late)
    compiled_now.set()
    until_done(tuner, 1.0, clock)
    assert known(of, one)["late"].seconds == pytest.approx(0.005)


@pytest.mark.parametrize("mode", ["tune", "online"])
def test_who_borrows_takes_what_all_other_sizes_lead_to_expect_and_measures_the_rest(
    mode, tmp_path, clock
):
    def learnt(size, **seconds):
        rows = [Measurement(n, LAYOUTS, 0, True, "float32", s) for n, s in seconds.items()]
        return ProblemTable(problem(size).subject, tuple(rows))

    # The nearest one alone would have b be the fastest.
    tables = [learnt(n, a=1.0, b=1.5) for n in (14, 15, 18, 19)]
    tables.append(learnt(17, a=1.2, b=1.0))
    store = Measurements(tmp_path / "cache")
    environment = {"processor": "one"}
    for known in tables:
        assert store.keep([known.entry("onednn", environment)], lambda old, new: new)
    one = problem(16, a=Slow(clock, 0.01), b=Slow(clock, 0.01))
    other = dataclasses.replace(problem(16, c=Slow(clock, 0.01)), subject="triple float32[16]")
    made = Session(mode, Policy(), 30.0, environment, store, borrows=True, clock=clock)
    other = dataclasses.replace(other, meaning=lambda x: (x * 2,))
    found = made.tables([one, other])
    table, origin = found[one.subject]
    assert (
        origin == "measured for another size" and choose(table.measurements, Policy()).name == "a"
    )
    assert [*made.waiting] == ([other.subject] if mode == "online" else [])
    assert (other.subject in found) == (mode == "tune")


def test_what_the_store_has_of_other_sizes_predicts_until_a_problem_is_measured(clock, tmp_path):
    store = Measurements(tmp_path / "cache")
    runners = {"slow": Slow(clock, 0.02), "fast": Slow(clock, 0.01)}
    small, large = problem(10, **runners), problem(20, WORK * 2, **runners)
    until_done(OnlineTuner(session(small, store=store, clock=clock), clock), 1.0, clock)
    later = session(large, store=store, clock=clock)
    table, origin = later.tables([large])[large.subject]
    assert origin == "measured for another size" and [*later.waiting] == [large.subject]
    assert [m.name for m in table.measurements] == ["slow", "fast"]
    slow, fast = (m.seconds for m in table.measurements)
    assert slow == pytest.approx(2 * fast)
    until_done(OnlineTuner(later, clock), 1.0, clock)
    assert later.tables([large])[large.subject][1] == "measured"
    found = known(later, large)
    assert found["slow"].seconds == pytest.approx(2 * found["fast"].seconds)
    assert found["fast"].seconds == pytest.approx(0.01)


# ---------------------------------------------------------------- functions


@pytest.fixture
def hasty(monkeypatch):
    """Measure for longer between the calls of small functions: fewer calls do."""
    monkeypatch.setattr(online, "LEAST", 0.05)


def called(function, times):
    return np.array([function(*batch()) for _ in range(times)])


def until_measured(function):
    """Call a function until what was compiled anew runs; return what the calls gave."""
    got = []
    while not function.report().online.lowered:
        got += [*called(function, 5)]
    return got


@needs_both
@pytest.mark.usefixtures("hasty")
def test_calls_give_the_bits_of_heuristics_until_all_is_measured_and_are_right_then():
    nets = [network() for _ in range(3)]
    function = compiled(nets[0], autotune="online")
    untuned = compiled(nets[1], autotune="off")
    plain = compiled(nets[2], level=0)
    assert work()[0] == 0
    got = until_measured(function)
    calls = len(got)
    want = called(untuned, calls)
    (lowered,) = function.report().online.lowered
    np.testing.assert_array_equal(got[:lowered], want[:lowered])
    np.testing.assert_allclose(got, want, rtol=1e-3)
    np.testing.assert_allclose(got[:5], called(plain, 5), rtol=1e-4)
    assert function.calls == calls > lowered


@needs_both
@pytest.mark.usefixtures("hasty")
def test_afterwards_the_choices_are_those_of_measurements_and_no_process_measures_again():
    function = compiled(autotune="online")
    assert {a.origin for a in function.report().algorithms} == {"heuristic"}
    assert "compiled anew" not in function.report().section("online")
    until_measured(function)
    found = function.report()
    (lowered,) = found.online.lowered
    assert {a.origin for a in found.algorithms} == {"measured"}
    assert found.online.calls[0] == 1 and found.online.seconds > 0
    assert found.online.compiling == (found.online.calls[1] + 1, lowered)
    assert f"runs from call {lowered}" in found.section("online") and found.online.longest > 0
    measured = work()[0]
    again = compiled(autotune="frozen")
    assert work()[0] == measured > 0
    assert [a.name for a in again.report().algorithms] == [a.name for a in found.algorithms]
    assert compiled(autotune="online").report().online is None


@needs_both
@pytest.mark.usefixtures("hasty")
def test_the_cache_file_of_a_function_has_what_was_measured_later(tmp_path, monkeypatch):
    until_measured(compiled(autotune="online", cache_dir=tmp_path))
    forget_measurements(monkeypatch, tmp_path / "other")
    compiled(autotune="frozen", cache_dir=tmp_path)
    assert work()[0] == 0


@needs_both
@pytest.mark.usefixtures("hasty")
def test_a_function_of_any_size_measures_its_first_size_between_calls():
    x = mg.input("x", (None, 32, 8, 8))
    weights = mg.Parameter(np.ones((32, 32, 3, 3), np.float32))
    cg = mg.comp_graph("cpu", {"graph_opt_level": 2, "autotune": "online"})
    function = cg.compile([x], ops.relu(ops.conv2d(x, weights, padding=1)))
    images = np.ones((32, 32, 8, 8), np.float32)
    want = function(images)
    while not function.report().online.lowered:
        np.testing.assert_allclose(function(images), want, rtol=1e-5)
    function(images[:30])
    report = function.report()
    assert report.online is None and {a.origin for a in report.algorithms} == {
        "measured for another size"
    }


@needs_both
def test_a_negative_level_measures_when_it_compiles():
    function = compiled(level=-2, autotune="online")
    assert work()[0] > 0 and function.report().online is None


@needs_both
@pytest.mark.usefixtures("hasty")
def test_what_cannot_be_compiled_anew_leaves_the_function_as_it_is(monkeypatch):
    function = compiled(autotune="online")
    want = compiled(autotune="off")
    got = [function(*batch())]

    def refused(*_):
        raise mg.DeviceError("no memory")

    with monkeypatch.context() as here, pytest.warns(UserWarning, match="compiled first: no mem"):
        here.setattr(function._backend, "bind", refused)
        while function._online or function._recompiling:
            got.append(function(*batch()))
    assert function.report().online is None
    np.testing.assert_array_equal(got, called(want, len(got)))
