"""What is measured is right, kept whole and chosen by policy; and never measured twice."""

import contextlib
import dataclasses
import io
import itertools
import json
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msgspec import structs
from new_process import forget_measurements

import minigraph as mg
from minigraph.autotune.block import GUARD
from minigraph.autotune.candidate import Candidate, HostBench, Problem
from minigraph.autotune.measurement import QUARANTINE, Measurement, ProblemTable, merge, table
from minigraph.autotune.policy import Policy, choose
from minigraph.autotune.session import Session
from minigraph.autotune.tuner import measure
from minigraph.cache import Entry, Measurements
from minigraph.cache.counters import TuningStats
from minigraph.graph import FLOATS, Spec

MACHINE = {"library": "3.2.0", "processor": "one"}


class Clock:
    """Time passes only where a candidate says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Forget what was measured and counted; return a function that does it again."""
    forget_measurements(monkeypatch)
    return lambda: forget_measurements(monkeypatch)


class Twice:
    """Doubles an array, in a time."""

    scratch = 0

    def __init__(self, clock=None, *times):
        self.clock = clock
        self.times = itertools.cycle(times or [1e-3])
        self.runs = 0

    def run(self, inputs, outputs, scratch):
        self.runs += 1
        if self.clock:
            self.clock.now += next(self.times)
        outputs[0][...] = inputs[0] * inputs[0].dtype.type(2)


def candidate(name, runner=None, layouts=("ab", "ab"), **facts):
    return Candidate(name, layouts, lambda: runner or Twice(), **facts)


def double(x):
    return (2 * x,)


def arrange(array, layout):
    return np.ascontiguousarray(array if layout == "ab" else array.T)


def problem(*candidates, subject="twice", work=1.0, shape=(5, 7), dtype="float32"):
    spec = Spec(shape, np.dtype(dtype))
    return Problem(
        "onednn",
        subject,
        (spec,),
        (spec,),
        double,
        arrange,
        LAYOUTS,
        lambda layouts: candidates,
        work,
    )


LAYOUTS = list(itertools.product(["ab", "ba"], repeat=2))


def ticking():
    """Return a clock that shows a millisecond more each time."""
    times = itertools.count()
    return lambda: next(times) / 1000


def errors(*candidates, **facts):
    """Measure candidates, and return the errors by name of those that have one."""
    measured = measure(problem(*candidates, **facts), None, ticking())
    return {m.name: m.error for m in measured.measurements if m.error}


# ---------------------------------------------------------------- right or not


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_right_candidate_has_a_time_in_every_layout_and_dtype(dtype):
    class Right(Twice):
        scratch = 100

        def __init__(self, transposes):
            self.transposes = transposes

        def run(self, inputs, outputs, scratch):
            assert scratch.nbytes == 100
            assert all(x.ctypes.data % 64 == 0 for x in (*inputs, *outputs, scratch))
            assert outputs[0].dtype == inputs[0].dtype == dtype
            doubled = inputs[0] * dtype.type(2)
            outputs[0][...] = doubled.T if self.transposes else doubled

    right = [candidate(f"{a} {b}", Right(a != b), (a, b)) for a, b in LAYOUTS]
    measured = measure(problem(*right, shape=(300, 301), dtype=dtype), None, ticking())
    assert [m.layouts for m in measured.measurements] == LAYOUTS
    for m in measured.measurements:
        assert (m.error, m.workspace, m.rounds) == ("", 100, 7)
        assert m.seconds == pytest.approx(1e-3)


class Wrong(Twice):
    """Gives the right result and then changes something."""

    def __init__(self, change, scratch=0):
        super().__init__()
        self.change = change
        self.scratch = scratch

    def run(self, inputs, outputs, scratch):
        super().run(inputs, outputs, scratch)
        self.change(inputs, outputs, scratch)


def around(array):
    """Return the bytes of the memory that an array is part of, and where it begins and ends."""
    whole = array
    while whole.base is not None:
        whole = whole.base
    start = array.ctypes.data - whole.ctypes.data
    return whole.view(np.uint8), start, start + array.nbytes


def write_at(array, offset):
    """Write a byte before an array if the offset is negative, else after it."""
    memory, start, end = around(array)
    memory[start + offset if offset < 0 else end + offset] = 0


WRONG = {
    "off by a little": (lambda i, o, s: np.multiply(o[0], 1.1, o[0]), "wrong result"),
    "one element": (lambda i, o, s: o[0].__setitem__((4, 6), 100), "wrong result: off by"),
    "zeros": (lambda i, o, s: o[0].fill(0), "wrong result: off by"),
    "NaN": (lambda i, o, s: o[0].__setitem__((2, 2), np.nan), "wrong result: NaN"),
    "infinity": (lambda i, o, s: o[0].__setitem__((2, 2), np.inf), "wrong result: off by inf"),
    "before": (lambda i, o, s: write_at(o[0], -1), "outside its results"),
    "far before": (lambda i, o, s: write_at(o[0], -GUARD), "outside its results"),
    "after": (lambda i, o, s: write_at(o[0], 0), "outside its results"),
    "far after": (lambda i, o, s: write_at(o[0], GUARD - 1), "outside its results"),
    "before scratch": (lambda i, o, s: write_at(s, -1), "outside its results and scratch"),
    "after scratch": (lambda i, o, s: write_at(s, 0), "outside its results and scratch"),
    "input": (lambda i, o, s: i[0].__setitem__((0, 0), 9), "wrote to its inputs"),
    "before input": (lambda i, o, s: write_at(i[0], -1), "wrote to its inputs or around them"),
    "after input": (lambda i, o, s: write_at(i[0], 3), "wrote to its inputs or around them"),
    "raises": (lambda i, o, s: [].pop(), "IndexError: pop from empty list"),
}


class Zeroed(HostBench):
    """A workbench in whose memory a zero that is written is seen only if guards are filled."""

    def empty(self, nbytes):
        array = super().empty(nbytes)
        array.fill(0)
        return array


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_kept_with_its_error_and_without_a_time(name):
    change, error = WRONG[name]
    wrong = Wrong(change, scratch=24)
    three = problem(candidate("a"), candidate("b", wrong), candidate("c"))
    measured = measure(dataclasses.replace(three, workbench=Zeroed()), None)
    a, b, c = measured.measurements
    assert error in b.error
    assert (b.seconds, b.rounds, wrong.runs) == (None, 0, 1)
    assert (a.error, c.error) == ("", "")  # others are not made wrong
    assert mg.autotune.stats().measurements == 2


def test_what_a_candidate_leaves_out_is_no_result_of_the_one_before():
    class Half(Twice):
        def run(self, inputs, outputs, scratch):
            np.multiply(inputs[0][1:], 2, outputs[0][1:])

    wrong = "wrong result: NaN, or not written"
    assert errors(candidate("a"), candidate("half", Half())) == {"half": wrong}


def test_scratch_is_not_cleared_before_a_candidate_that_counts_on_it():
    def add(inputs, outputs, scratch):
        outputs[0][0, 0] += scratch.view(np.float32)[0]

    assert "NaN" in errors(candidate("careless", Wrong(add, scratch=8)))["careless"]


def test_a_smaller_scratch_is_guarded_where_a_larger_one_was():
    large = Wrong(lambda i, o, s: s.fill(7), scratch=1000)
    small = Wrong(lambda i, o, s: write_at(s, 0), scratch=10)
    found = errors(candidate("large", large), candidate("small", small), shape=(0, 3))
    assert found == {"small": "wrote outside its results and scratch"}


def test_a_candidate_that_cannot_be_made_is_kept_with_its_error_and_a_reference_not_even_made():
    def fail():
        raise RuntimeError("status 3:\nunimplemented")

    no = Candidate("no", ("ab", "ab"), fail)
    found = errors(no, dataclasses.replace(no, name="ref", reference=True), candidate("yes"))
    never = "a reference implementation, never run"
    assert found == {"no": "RuntimeError: status 3: unimplemented", "ref": never}


def test_a_candidate_that_fails_only_later_is_kept_with_its_error():
    class Later(Twice):
        def run(self, inputs, outputs, scratch):
            super().run(inputs, outputs, scratch)
            if self.runs == 3:
                raise OSError("no more")

    assert errors(candidate("later", Later())) == {"later": "OSError: no more"}


def test_rounding_in_a_lower_precision_is_allowed_where_the_candidate_says_so():
    class Rounds(Twice):
        def run(self, inputs, outputs, scratch):
            outputs[0][...] = inputs[0] * 2.007

    found = errors(candidate("a", Rounds()), candidate("b", Rounds(), precision="tf32"))
    assert list(found) == ["a"]
    assert not errors(candidate("a", Rounds()), dtype="float16")  # whose own rounding is larger


def test_what_has_to_come_out_is_computed_in_float32_at_least():
    def meaning(x):
        assert x.dtype == np.promote_types(dtype, np.float32)
        return double(x)

    for dtype in FLOATS:
        doubled = dataclasses.replace(problem(candidate("a"), dtype=dtype), meaning=meaning)
        assert measure(doubled, None, ticking()).measurements[0].error == ""


def test_a_problem_has_the_same_data_each_time():
    def data(subject):
        seen = []
        keep = candidate("a", Wrong(lambda i, o, s: seen.append(i[0].copy())))
        measure(problem(keep, subject=subject, shape=(64, 64)), None)
        return seen[0]

    one, again, other = data("one"), data("one"), data("other")
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert abs(one.mean()) < 0.1
    assert abs(one.std() - 1) < 0.1


# ---------------------------------------------------------------- how long it is timed


def timed(clock, *times):
    """Measure candidates that take times, and return their measurements."""
    runners = [Twice(clock, *(t if isinstance(t, tuple) else (t,))) for t in times]
    named = [candidate(f"{i}", runner) for i, runner in enumerate(runners)]
    measured = measure(problem(*named), None, clock).measurements
    return [(m.seconds, m.rounds, runner.runs) for m, runner in zip(measured, runners, strict=True)]


def test_a_hopeless_candidate_is_run_once_wherever_it_stands(clock):
    fast, slow = (pytest.approx(0.0045), 6, 7), (pytest.approx(0.014), 1, 1)
    assert timed(clock, 0.0045, 0.014) == [fast, slow]
    assert timed(clock, 0.014, 0.0045) == [slow, fast]


def test_the_first_of_short_runs_makes_no_candidate_hopeless(clock):
    first_is_slow = (9e-4, *[2e-5] * 1000)
    (known, *_), (seconds, rounds, _) = timed(clock, 4e-5, first_is_slow)
    assert (known, seconds, rounds) == (pytest.approx(4e-5), pytest.approx(2e-5), 7)


def test_a_candidate_is_timed_more_often_the_shorter_it_is(clock):
    (seconds, rounds, runs), *others = timed(clock, 2e-5, 0.005, 0.025, 0.4)
    assert (seconds, rounds, runs) == (pytest.approx(2e-5), 7, 1 + 7 * 25)
    assert [r for _, r, _ in timed(clock, 0.0047, 0.0051)] == [6, 5]
    assert timed(clock, 0.1) == [(pytest.approx(0.1), 3, 4)]
    assert timed(clock, 0.4) == [(pytest.approx(0.4), 2, 2)]
    assert [runs for *_, runs in others] == [1, 1, 1]


def test_a_candidate_is_timed_no_more_once_it_has_lost(clock):
    # Their first runs are those that are checked: 1.5 times after one timed run, 1.25 after two.
    assert [r for _, r, _ in timed(clock, 0.0045, 0.007, 0.006, 0.00515)] == [6, 1, 2, 4]
    # The times of other layouts are wanted too: a whole network may be faster with them.
    one, other = candidate("a", Twice(clock, 0.0045)), candidate("b", Twice(clock, 0.007))
    both = problem(one, dataclasses.replace(other, layouts=("ba", "ba")))
    assert [m.rounds for m in measure(both, None, clock).measurements] == [6, 4]
    # A pause of the machine is not theirs: the shortest run counts.
    paused = (0.0046, 0.09)
    assert [r for _, r, _ in timed(clock, 0.0045, paused)] == [6, 6]


def test_the_time_is_that_of_the_shortest_run_and_the_spread_leads_to_the_lower_quartile(clock):
    # The first run is the one that is checked.
    runner = Twice(clock, 0.0025, 0.002, 0.0025, 0.003, 0.0025, 0.0025, 0.1, 0.002)
    (m,) = measure(problem(candidate("a", runner)), None, clock).measurements
    assert m.seconds == pytest.approx(0.002)
    assert m.spread == pytest.approx(0.00225 / 0.002 - 1)


def test_candidates_take_turns():
    order = []
    noted = {n: Wrong(lambda i, o, s, name=n: order.append(name)) for n in "abc"}
    measure(problem(*(candidate(name, runner) for name, runner in noted.items())), None, ticking())
    assert "".join(order) == "abc" * 8


def test_nothing_half_measured_is_kept(clock):
    def measured_by(deadline):
        clock.now = 0.0
        mg.autotune.reset_stats()
        found = measure(problem(candidate("a", Twice(clock, 0.1))), deadline, clock)
        return found and found.measurements[0].rounds, mg.autotune.stats().measurements

    assert measured_by(0.45) == (3, 1)
    assert measured_by(0.25) == (None, 0)
    assert measured_by(0.0) == (None, 0)


# ---------------------------------------------------------------- which one is used


def measurement(name, seconds=1.0, **facts):
    known = {"layouts": ("ab", "ab"), "workspace": 0, "deterministic": True, "precision": "float32"}
    return Measurement(name, **{**known, "rounds": 7, "seconds": seconds, **facts})


def chosen(*measurements, **policy):
    best = choose(measurements, Policy(**policy))
    return best and best.name


def test_the_incumbent_stays_unless_another_is_clearly_faster():
    a = measurement("a", 1.0)
    assert chosen(a, measurement("b", 0.98)) == "a"
    assert chosen(a, measurement("b", 0.96)) == "b"
    assert chosen(a, measurement("b", 0.9, spread=0.2)) == "a"
    assert chosen(measurement("a", 1.0, spread=0.2), measurement("b", 0.9)) == "a"
    assert chosen(measurement("a", 1.0, spread=5.0), measurement("b", 0.4)) == "b"
    assert chosen(a, measurement("b", 0.9), measurement("c", 0.89)) == "b"
    assert chosen(measurement("a", 0.0), measurement("b", 0.0)) == "a"


def test_ties_go_to_the_first_and_clear_ones_do_not_depend_on_the_order():
    tied = [measurement(name, 1.0 + i / 1000) for i, name in enumerate("cab")]
    for shuffled in itertools.permutations(tied):
        assert chosen(*shuffled) == shuffled[0].name
        assert chosen(*shuffled[:2], measurement("fast", 0.5), shuffled[2]) == "fast"


def test_noise_changes_no_choice():
    noise = np.random.default_rng(0).normal(1, 0.005, (500, 3))
    runs = [[measurement(n, t) for n, t in zip("abc", row, strict=True)] for row in noise]
    assert {chosen(*run) for run in runs} == {"a"}


def test_a_policy_says_why_it_does_not_allow_a_candidate():
    m = measurement("a", workspace=4096, deterministic=False, precision="tf32")
    reason = "needs 4096 bytes of workspace, the limit is 1024"
    assert Policy(workspace_limit=1024).allows(m) == reason
    assert Policy(deterministic=True, precision="tf32").allows(m) == "not deterministic"
    assert Policy().allows(m) == "precision tf32"
    assert Policy(workspace_limit=4096, precision="tf32").allows(m) == ""
    assert Policy().allows(structs.replace(m, error="wrong")) == "wrong"
    assert chosen(m, workspace_limit=0) is None
    assert chosen() is None


# ---------------------------------------------------------------- in an entry


def entry_of(*measurements):
    return ProblemTable("twice", measurements).entry("onednn", MACHINE)


def test_a_table_comes_back_from_its_entry():
    whole = (measurement("a", 1e-5, spread=0.1), measurement("b", None, error="wrong"))
    assert table(entry_of(*whole)) == ProblemTable("twice", whole)
    assert table(entry_of()) == ProblemTable("twice", ())


def test_a_time_that_is_no_number_is_odd_in_its_entry():
    assert "neither a time" in table(entry_of(measurement("a", float("nan"))))


def test_an_error_that_no_file_can_hold_is_kept_as_well_as_it_can():
    kept = table(entry_of(measurement("a", None, error="no \udcff")))
    assert kept.measurements[0].error == "no \\udcff"


VALUES = {
    "name": [1, None, ["a"]],
    "layouts": ["ab", [1], None],
    "workspace": [-1, 1.0, "1", True],
    "deterministic": [1, None],
    "precision": [None],
    "seconds": [-1.0, float("nan"), float("inf"), "1", True, None, 1e300],
    "spread": [-0.1, None, float("nan")],
    "rounds": [-1, 1.5],
    "error": [None, 0],
    "more": [1],
}
(ROW,) = json.loads(entry_of(measurement("a")).body)
ODD = {
    "no JSON": "{",
    "nested": "[" * 100_000,
    "no list": json.dumps(ROW),
    "no rows": "[[]]",
    "a field too few": json.dumps([dict(list(ROW.items())[1:])]),
    "twice the same": json.dumps([ROW, ROW]),
    "a huge number": f"[{'9' * 10_000}]",
    **{f"{k} {v!r}": json.dumps([{**ROW, k: v}]) for k, values in VALUES.items() for v in values},
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_an_odd_body_is_rejected_with_a_reason(body):
    bad = dataclasses.replace(entry_of(), body=body)
    reason = table(bad)
    assert isinstance(reason, str)
    assert 0 < len(reason) < 200
    good = entry_of(measurement("a"))
    assert merge(bad, good) == merge(good, bad) == good


def test_merging_keeps_all_candidates_the_newer_times_and_what_failed_at_run_time():
    broken = measurement("b", error=f"{QUARANTINE}crashed")
    old = entry_of(measurement("a", 1.0), broken, measurement("c", 3.0))
    new = entry_of(measurement("d", 0.1), measurement("b", 0.2), measurement("a", 0.3))
    assert table(merge(old, new)).measurements == (
        measurement("d", 0.1),
        measurement("b", 0.2, error=f"{QUARANTINE}crashed"),
        measurement("a", 0.3),
        measurement("c", 3.0),
    )
    assert merge(new, new) == new


# ---------------------------------------------------------------- sessions


@pytest.fixture
def store(tmp_path):
    return Measurements(tmp_path / "cache")


def start(store=None, mode="tune", budget=30.0, machine=MACHINE, **other):
    return Session(mode, Policy(), budget, machine, store, **other)


def two(clock=None):
    """Two problems, the smaller one first."""
    return [
        problem(*(candidate(n, Twice(clock, 0.001)) for n in "ab"), subject="small", work=1.0),
        problem(*(candidate(n, Twice(clock, 0.001)) for n in "ab"), subject="large", work=9.0),
    ]


def origins(tables):
    return {subject: origin for subject, (_, origin) in tables.items()}


def test_a_second_session_measures_nothing(store, new_process):
    first = start(store)
    measured = first.tables(two())
    assert origins(measured) == {"small": "measured", "large": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=4, misses=2)
    assert sorted(entry.subject for entry in first.used.values()) == ["large", "small"]
    new_process()
    second = start(store)
    found = second.tables(two())
    assert origins(found) == {"small": "stored", "large": "stored"}
    assert [t for t, _ in found.values()] == [t for t, _ in measured.values()]
    assert mg.autotune.stats() == TuningStats(hits=2)
    assert second.used == first.used


def test_what_a_session_knows_it_does_not_look_up_again(store):
    one = start(store)
    one.tables(two())
    assert origins(one.tables(two()[:1])) == {"small": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=4, misses=2)


def test_another_policy_is_answered_without_measuring(store, new_process):
    runner = Twice()
    runner.scratch = 4096
    fast = candidate("fast", runner, deterministic=False)
    start(store).tables([problem(fast, candidate("safe"))])
    new_process()
    known, _ = start(store).tables([problem(fast, candidate("safe"))])["twice"]
    for policy in (Policy(workspace_limit=1024), Policy(deterministic=True)):
        assert choose(known.measurements, policy).name == "safe"
    assert mg.autotune.stats() == TuningStats(hits=1)


def test_off_touches_nothing(store):
    assert start(store, "off").tables(two()) == {}
    assert not store.folder.root.exists()
    assert mg.autotune.stats() == TuningStats()


def test_cached_measures_nothing(store):
    start(store).tables(two()[:1])
    one = start(store, "cached")
    assert origins(one.tables(two())) == {"small": "stored"}
    one.quarantine("large", measurement("a"), "why")  # of which there is no table
    assert {entry.subject for entry in store.entries()} == {"small"}


def test_the_budget_is_kept_and_large_problems_come_first(store, clock):
    one = start(store, budget=0.02, clock=clock)
    assert origins(one.tables(two(clock))) == {"large": "measured"}
    before = mg.autotune.stats()
    assert origins(one.tables(two(clock))) == {"large": "measured"}
    assert mg.autotune.stats() == before
    assert {entry.subject for entry in store.entries()} == {"large"}
    assert start(store, budget=0.0).tables(two()[:1]) == {}


def test_nothing_is_prepared_when_the_budget_is_spent(clock):
    def never():
        raise AssertionError("there is no time left")

    small, large = two(clock)
    late = dataclasses.replace(small, candidates=never)
    one = start(budget=0.0155, clock=clock)  # the last of 16 runs begins after 0.015 seconds
    assert origins(one.tables([late, large])) == {"large": "measured"}


def test_an_interrupt_loses_no_more_than_one_problem(store):
    class Interrupted(Twice):
        def run(self, inputs, outputs, scratch):
            raise KeyboardInterrupt

    last = problem(candidate("a", Interrupted()), subject="last", work=0.0)
    with pytest.raises(KeyboardInterrupt):
        start(store).tables([last, *two()])
    assert {entry.subject for entry in store.entries()} == {"small", "large"}


def test_a_frozen_miss_names_the_problem_and_the_field_that_differs(store):
    with pytest.raises(mg.CacheError, match=r'onednn small; compile once with autotune="tune"'):
        start(store, "frozen").tables(two())
    start(store).tables(two())
    assert len(start(store, "frozen").tables(two())) == 2
    other = {"library": "3.3.0", "processor": "one"}
    differs = r"small \(library is '3.3.0', measured with '3.2.0'\)"
    with pytest.raises(mg.CacheError, match=differs):
        start(store, "frozen", machine=other).tables(two())
    with pytest.raises(mg.CacheError, match="driver is '5', measured with None"):
        start(store, "frozen", machine={**MACHINE, "driver": "5"}).tables(two())
    assert mg.autotune.stats().measurements == 4


def test_a_candidate_in_quarantine_stays_there(store, new_process):
    one = start(store)
    best, other = one.tables(two())["small"][0].measurements
    one.quarantine("small", best, "status 2")
    failed = f"{QUARANTINE}status 2"
    assert one.tables(two())["small"][0].measurements[0].error == failed
    new_process()
    known, _ = start(store).tables(two())["small"]
    assert choose(known.measurements, Policy()) == other
    # Another process had measured it at the same time, and writes later.
    store.keep([ProblemTable("small", (best, other)).entry("onednn", MACHINE)], merge)
    known, _ = start(store).tables(two())["small"]
    assert known.measurements[0].error == failed
    # A file that was saved before it failed does not take it out either.
    before = ProblemTable("small", (best, other)).entry("onednn", MACHINE)
    loaded = start(store, loaded={before.key: before}).tables(two())
    assert loaded["small"][0].measurements[0].error == failed


def test_what_another_process_has_kept_meanwhile_is_not_lost(store):
    failed = measurement("a", layouts=("ab", "ab"), error=f"{QUARANTINE}crashed")
    other = measurement("b", layouts=("ab", "ab"))
    theirs = ProblemTable("twice", (failed, other)).entry("onednn", MACHINE)

    class Meanwhile(Twice):
        def run(self, inputs, outputs, scratch):
            super().run(inputs, outputs, scratch)
            store.keep([theirs], merge)

    ours = problem(candidate("a", Meanwhile()))
    start(store).tables([ours])
    known, _ = start(store).tables([ours])["twice"]
    a, b = known.measurements
    assert (a.error, b) == (failed.error, other)
    assert a.seconds is not None  # it was measured here


def test_what_there_is_no_memory_to_measure_is_left_to_heuristics_with_one_warning(store):
    def huge(x):
        raise MemoryError("Unable to allocate 4.00 TiB")

    big = dataclasses.replace(problem(candidate("a"), subject="big", work=9.0), meaning=huge)
    small = problem(candidate("a"), subject="small")
    with pytest.warns(mg.MinigraphWarning, match=r"onednn big .* \(Unable to allocate") as caught:
        assert origins(start(store).tables([big, small])) == {"small": "measured"}
        assert origins(start(store).tables([big, small])) == {"small": "stored"}
    assert len(caught) == 1


def test_the_kernels_of_all_problems_are_compiled_together_before_any_is_measured(store):
    steps = []

    class Compiles(HostBench):
        def compile(self, kernels):
            steps.append([*kernels])

    def unable():
        raise OSError("not here")

    def of(subject, runner):
        offered = candidate("a", runner), Candidate("b", LAYOUTS[0], unable)
        never = candidate("c", Twice(), reference=True)
        made = problem(*offered, never, subject=subject)
        return dataclasses.replace(made, workbench=bench)

    bench = Compiles()
    first, second = (Wrong(lambda i, o, s: steps.append("runs")) for _ in range(2))
    start(store).tables([of("first", first), of("second", second)])
    assert steps[0] == [first, second]
    assert set(steps[1:]) == {"runs"}


def test_who_has_set_memory_aside_is_told_before_anything_is_measured(store):
    told = []
    right = Wrong(lambda i, o, s: told.append("runs"))
    one = problem(candidate("a", right))
    start(store, measures=lambda: told.append("told")).tables([one])
    assert told[0] == "told"
    assert told.count("told") == 1
    told.clear()
    start(store, measures=lambda: told.append("told")).tables([one])
    assert not told  # it is known


def test_one_problem_after_the_other_is_measured_in_the_same_memory(store):
    places = []
    kept = Wrong(lambda i, o, s: places.append((i[0].ctypes.data, o[0].ctypes.data)))
    shape = (100, 1000)
    start(store).tables([problem(candidate("a", kept), subject=s, shape=shape) for s in "xyz"])
    assert len(places) >= 3 * 4
    assert len(set(places)) == 1


class Alone(Twice):
    """Notes how many of its kind run at the same time."""

    running, most = 0, 0

    def run(self, inputs, outputs, scratch):
        Alone.running += 1
        Alone.most = max(Alone.most, Alone.running)
        time.sleep(0.001)
        super().run(inputs, outputs, scratch)
        Alone.running -= 1


def test_who_measures_at_the_same_time_takes_turns_and_measures_each_problem_once(tmp_path):
    together = threading.Barrier(4)

    def tables(_):
        own = start(Measurements(tmp_path / "cache"))
        problems = [problem(candidate("a", Alone()), subject=f"{i}") for i in range(5)]
        together.wait()
        return own.tables(problems)

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(tables, range(4))
    assert mg.autotune.stats().measurements == 5
    assert Alone.most == 1
    assert all([t for t, _ in o.values()] == [t for t, _ in first.values()] for o in others)


def test_who_measures_and_does_not_end_is_waited_for_once(store, monkeypatch):
    patience = []
    usual = Measurements.turn
    monkeypatch.setattr(Measurements, "turn", lambda s, p: patience.append(p) or usual(s, p))
    with usual(Measurements(store.folder.root), 0.0) as alone:
        assert alone
        waiting = start(store)
        waiting._patience = 0.1
        waiting.tables(two())
    assert mg.autotune.stats().measurements == 4
    assert patience == [0.1, 0.0, 0.0]  # for what compiles kernels, and for each problem
    start(store, budget=9.0).tables([problem(candidate("a"), subject="next")])
    assert patience[3] == 9.0


def test_a_candidate_fails_in_one_layout_alone():
    one, other = measurement("a"), measurement("a", layouts=("ba",))
    found = ProblemTable("twice", (one, other)).with_error(other, "why")
    assert [m.error for m in found.measurements] == ["", "why"]


def test_a_loaded_file_goes_before_the_store(store):
    start(store).tables(two())
    entry = ProblemTable("small", (measurement("a", 7.0),)).entry("onednn", MACHINE)
    found = start(store, loaded={entry.key: entry}).tables(two())
    assert origins(found) == {"small": "loaded file", "large": "stored"}
    assert found["small"][0].measurements[0].seconds == 7.0
    elsewhere = entry_of(measurement("a"))
    assert start(None, "cached", loaded={elsewhere.key: elsewhere}).tables(two()) == {}


def test_without_a_store_a_process_measures_nothing_twice():
    start().tables(two())
    assert origins(start().tables(two())) == {"small": "measured", "large": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=4, misses=2, hits=2)


def test_a_store_that_cannot_be_written_costs_the_persistence_only(tmp_path):
    (tmp_path / "cache").touch()
    broken = Measurements(tmp_path / "cache")
    with pytest.warns(mg.MinigraphWarning, match="is no folder"):
        start(broken).tables(two())
    known, _ = start(broken).tables(two())["small"]
    again = start(broken)
    again.tables(two())
    again.quarantine("small", known.measurements[0], "why")
    assert start(broken).tables(two())["small"][0].measurements[0].error == f"{QUARANTINE}why"
    assert mg.autotune.stats().measurements == 4


def test_what_is_cleared_is_measured_again(store):
    start(store).tables(two())
    store.clear()
    assert origins(start(store).tables(two())) == {"small": "measured", "large": "measured"}
    assert mg.autotune.stats().misses == 4


def test_a_body_of_another_kind_is_measured_again(store):
    odd = Entry("onednn", "small", entry_of().environment, '{"algorithm": 3}')
    store.keep([odd], lambda old, new: new)
    assert origins(start(store).tables(two()[:1])) == {"small": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=2, misses=1, rejected=1)
    assert origins(start(store).tables(two()[:1])) == {"small": "stored"}


def test_a_damaged_row_is_counted_and_measured_again(store, new_process):
    start(store).tables(two()[:1])
    new_process()
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE entries SET body = '[]'")
    assert origins(start(store).tables(two()[:1])) == {"small": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=2, misses=1, rejected=1)


def test_a_bar_is_shown_on_a_terminal_alone_and_leaves_nothing(monkeypatch, store):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    times = itertools.count()
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(times)))
    for kind, shown in ((Terminal, True), (io.StringIO, False)):
        monkeypatch.setattr(sys, "stderr", kind())
        start().tables([problem(candidate("a"), subject=f"{kind} {i}") for i in range(5)])
        text = sys.stderr.getvalue()
        assert ("autotune:" in text and " left" in text) == shown
        assert not text.rpartition("\r")[2].strip()
