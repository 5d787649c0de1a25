"""Sessions: problems are measured once, stored, and found again."""

import contextlib
import io
import itertools
import pickle
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from problems import LAYOUTS, MACHINE, FakeProblem, Twice, Wrong, candidate, measurement, start

import minigraph as mg
from minigraph.autotune.candidate import Candidate, Workbench
from minigraph.autotune.measurement import QUARANTINE_PREFIX, Policy, ProblemTable, choose, merge
from minigraph.autotune.session import Session
from minigraph.cache import Store
from minigraph.cache.counters import TuningStats

pytestmark = pytest.mark.usefixtures("new_process")


def two(clock=None):
    """Two problems, the smaller one first."""
    return [
        FakeProblem(*(candidate(n, Twice(clock, 0.001)) for n in "ab"), subject=subject, work=work)
        for subject, work in (("small", 1.0), ("large", 9.0))
    ]


def nodes(problems):
    """Return requests for sessions: problems, each with the layouts of a node."""
    return [(problem, LAYOUTS[0]) for problem in problems]


def origins(tables):
    return {subject: table.origin for subject, table in tables.items()}


def measured(subject, *measurements):
    """Return the entry of a table."""
    return ProblemTable(subject, measurements).entry("onednn", MACHINE)


def test_a_second_session_measures_nothing(store, new_process):
    first = start(store)
    new = first.tables(nodes(two()))
    assert origins(new) == {"small": "measured", "large": "measured"}
    assert first.tables(nodes(two()[:1])).keys() == {"small"}, (
        "what it has it does not look up again"
    )
    assert mg.autotune.stats() == TuningStats(measurements=4, misses=2)
    assert sorted(entry.subject for entry in first.used_entries.values()) == ["large", "small"]
    new_process()
    second = start(store)
    old = second.tables(nodes(two()))
    assert origins(old) == {"small": "stored", "large": "stored"}
    assert old == new and second.used_entries == first.used_entries
    assert mg.autotune.stats() == TuningStats(hits=2)


def test_another_policy_is_answered_without_measuring(store, new_process):
    runner = Twice()
    runner.scratch = 4096
    fast = candidate("fast", runner, deterministic=False)
    start(store).tables(nodes([FakeProblem(fast, candidate("safe"))]))
    new_process()
    known = start(store).tables(nodes([FakeProblem(fast, candidate("safe"))]))["twice"]
    for policy in (Policy(workspace_limit=1024), Policy(deterministic=True)):
        assert choose(known.measurements, policy).name == "safe"
    assert mg.autotune.stats() == TuningStats(hits=1)


def test_off_touches_nothing_and_cached_measures_nothing(store):
    assert start(store, "off").tables(nodes(two())) == {}
    assert not store.root.exists()
    assert mg.autotune.stats() == TuningStats()
    start(store).tables(nodes(two()[:1]))
    one = start(store, "cached")
    assert origins(one.tables(nodes(two()))) == {"small": "stored"}
    one.quarantine("large", measurement("a"), "why")  # of which there is no table
    assert {entry.subject for entry in store.entries()} == {"small"}


def test_the_budget_is_kept_and_large_problems_come_first(store, clock):
    one = start(store, budget=0.02, clock=clock)
    assert origins(one.tables(nodes(two(clock)))) == {"large": "measured"}
    before = mg.autotune.stats()
    assert origins(one.tables(nodes(two(clock)))) == {"large": "measured"}
    assert mg.autotune.stats() == before
    assert {entry.subject for entry in store.entries()} == {"large"}
    assert start(store, budget=0.0).tables(nodes(two()[:1])) == {}


def test_nothing_is_prepared_when_the_budget_is_spent(clock):
    def never():
        raise AssertionError("there is no time left")

    late, large = two(clock)
    late.make_candidates = never
    one = start(budget=0.0155, clock=clock)  # the last of 16 runs begins after 0.015 seconds
    assert origins(one.tables(nodes([late, large]))) == {"large": "measured"}


def test_what_is_compiled_when_a_check_first_needs_it_takes_nothing_of_the_budget(clock):
    class Compiling(Workbench):
        seen = False

        def upload(self, array):
            clock.now += 0.0 if self.seen else 100.0
            self.seen = True
            return array

    problem = FakeProblem(candidate("a", Twice(clock)), workbench=Compiling())
    one = start(budget=0.02, clock=clock)
    assert origins(one.tables(nodes([problem]))) == {"twice": "measured"}
    assert clock.now > 100 and one.spent_seconds < 0.02


def test_an_interrupt_loses_no_more_than_one_problem(store):
    class Interrupted(Twice):
        def run(self, inputs, outputs, scratch):
            raise KeyboardInterrupt

    last = FakeProblem(candidate("a", Interrupted()), subject="last", work=0.0)
    with pytest.raises(KeyboardInterrupt):
        start(store).tables(nodes([last, *two()]))
    assert {entry.subject for entry in store.entries()} == {"small", "large"}


def test_a_frozen_miss_names_the_problem_and_the_field_that_differs(store):
    with pytest.raises(mg.CacheError, match=r'onednn small; compile once with autotune="tune"'):
        start(store, "frozen").tables(nodes(two()))
    start(store).tables(nodes(two()))
    assert len(start(store, "frozen").tables(nodes(two()))) == 2
    for field, differs in (
        (
            {"library": "3.3.0"},
            r"small \(elsewhere it is: library is '3.2.0' there, '3.3.0' here\)",
        ),
        ({"driver": "5"}, "driver is None there, '5' here"),
    ):
        with pytest.raises(mg.CacheError, match=differs):
            start(store, "frozen", machine={**MACHINE, **field}).tables(nodes(two()))
    assert mg.autotune.stats().measurements == 4


def test_a_candidate_in_quarantine_stays_there(store, new_process):
    one = start(store)
    best, other = one.tables(nodes(two()))["small"].measurements
    one.quarantine("small", best, "status 2")
    failed = f"{QUARANTINE_PREFIX}status 2"
    assert one.tables(nodes(two()))["small"].measurements[0].error == failed
    new_process()
    assert choose(start(store).tables(nodes(two()))["small"].measurements, Policy()) == other
    # Another process had measured it at the same time, and writes later.
    before = measured("small", best, other)
    store.keep([before], merge)
    assert start(store).tables(nodes(two()))["small"].measurements[0].error == failed
    # A file that was saved before it failed does not take it out either.
    loaded = start(store, loaded={before.key: before}).tables(nodes(two()))
    assert loaded["small"].measurements[0].error == failed


def test_what_another_process_has_kept_meanwhile_is_not_lost(store):
    failed, other = measurement("a", error=f"{QUARANTINE_PREFIX}crashed"), measurement("b")
    theirs = measured("twice", failed, other)

    class Meanwhile(Twice):
        def run(self, inputs, outputs, scratch):
            super().run(inputs, outputs, scratch)
            store.keep([theirs], merge)

    ours = FakeProblem(candidate("a", Meanwhile()))
    start(store).tables(nodes([ours]))
    known = start(store).tables(nodes([ours]))["twice"]
    a, b = known.measurements
    assert (a.error, b) == (failed.error, other)
    assert a.seconds is not None  # it was measured here


def test_what_there_is_no_memory_to_measure_is_left_to_heuristics_with_one_warning(store):
    def huge(x):
        raise MemoryError("Unable to allocate 4.00 TiB")

    big = FakeProblem(candidate("a"), subject="big", work=9.0, meaning=huge)
    small = FakeProblem(candidate("a"), subject="small")
    with pytest.warns(mg.MinigraphWarning, match=r"onednn big .* \(Unable to allocate") as caught:
        assert origins(start(store).tables(nodes([big, small]))) == {"small": "measured"}
        assert origins(start(store).tables(nodes([big, small]))) == {"small": "stored"}
    assert len(caught) == 1


def test_the_kernels_of_all_problems_are_compiled_together_before_any_is_measured(store):
    steps = []

    class Compiles(Workbench):
        def compile(self, kernels):
            steps.append([*kernels])

    def unable():
        raise OSError("not here")

    def of(subject, runner):
        offered = candidate("a", runner), Candidate("b", LAYOUTS[0], unable)
        return FakeProblem(*offered, subject=subject, workbench=bench)

    bench = Compiles()
    first, second = (Wrong(lambda i, o, s: steps.append("runs")) for _ in range(2))
    start(store).tables(nodes([of("first", first), of("second", second)]))
    assert steps[0] == [first, second]
    assert set(steps[1:]) == {"runs"}


def test_who_has_set_memory_aside_hears_of_it_before_anything_is_measured(store):
    events = []
    right = Wrong(lambda i, o, s: events.append("runs"))

    def compile_once():
        events.clear()
        begins = {"before_measuring": lambda: events.append("begins")}
        start(store, **begins).tables(nodes([FakeProblem(candidate("a", right))]))
        return events

    assert compile_once()[0] == "begins" and events.count("begins") == 1
    assert compile_once() == []


class Alone(Twice):
    """Notes how many of its kind run at the same time."""

    running, most = 0, 0

    def run(self, inputs, outputs, scratch):
        Alone.running += 1
        Alone.most = max(Alone.most, Alone.running)
        time.sleep(0.001)
        super().run(inputs, outputs, scratch)
        Alone.running -= 1


def test_tables_of_another_process_are_all_that_is_used(store):
    first = start(store)
    tables = first.tables(nodes(two()[:1]))
    assert first.all_tables == tables
    peer = pickle.loads(pickle.dumps(first.all_tables))
    other = Session("exhaustive", Policy(), 30.0, MACHINE, store, peer=peer)
    assert origins(other.tables(nodes(two()))) == {"small": "measured by another process"}
    best = tables["small"].measurements[0]
    other.quarantine("small", best, "why")
    assert other.tables(nodes(two()))["small"].measurements[0].error == f"{QUARANTINE_PREFIX}why"
    assert start(store).tables(nodes(two()))["small"].measurements[0].error == ""
    assert mg.autotune.stats().measurements == 4


def test_who_measures_at_the_same_time_takes_turns_and_measures_each_problem_once(tmp_path):
    together = threading.Barrier(4)

    def tables(_):
        own = start(Store(tmp_path / "cache"))
        problems = [FakeProblem(candidate("a", Alone()), subject=f"{i}") for i in range(5)]
        together.wait()
        return own.tables(nodes(problems))

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(tables, range(4))
    assert mg.autotune.stats().measurements == 5
    assert Alone.most == 1
    assert all(other == first for other in others)


def test_a_process_that_holds_the_measuring_lock_is_waited_for_once(store, monkeypatch):
    timeouts = []
    usual = Store.measuring_lock
    monkeypatch.setattr(Store, "measuring_lock", lambda s, p: timeouts.append(p) or usual(s, p))
    with usual(Store(store.root), 0.0) as alone:
        assert alone
        waiting = start(store)
        waiting._lock_timeout = 0.1
        waiting.tables(nodes(two()))
    assert mg.autotune.stats().measurements == 4
    assert timeouts == [0.1, 0.0, 0.0]  # for what compiles kernels, and for each problem
    start(store, budget=9.0).tables(nodes([FakeProblem(candidate("a"), subject="next")]))
    assert timeouts[3] == 9.0


def test_a_loaded_file_goes_before_the_store(store):
    start(store).tables(nodes(two()))
    entry = measured("small", measurement("a", 7.0))
    tables = start(store, loaded={entry.key: entry}).tables(nodes(two()))
    assert origins(tables) == {"small": "loaded file", "large": "stored"}
    assert tables["small"].measurements[0].seconds == 7.0
    elsewhere = measured("twice", measurement("a"))
    assert start(None, "cached", loaded={elsewhere.key: elsewhere}).tables(nodes(two())) == {}


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.filterwarnings("ignore:.*is no folder")
def test_without_a_store_that_can_be_written_a_process_measures_nothing_twice(tmp_path, broken):
    (tmp_path / "cache").touch()
    store = Store(tmp_path / "cache") if broken else None
    start(store).tables(nodes(two()))
    again = start(store)
    tables = again.tables(nodes(two()))
    assert origins(tables) == {"small": "measured", "large": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=4, misses=2, hits=2)
    again.quarantine("small", tables["small"].measurements[0], "why")
    assert (
        start(store).tables(nodes(two()))["small"].measurements[0].error
        == f"{QUARANTINE_PREFIX}why"
    )


def test_a_damaged_row_is_counted_and_measured_again(store, new_process):
    start(store).tables(nodes(two()[:1]))
    new_process()
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE entries SET body = '[]'")
    assert origins(start(store).tables(nodes(two()[:1]))) == {"small": "measured"}
    assert mg.autotune.stats() == TuningStats(measurements=2, misses=1, rejected=1)


def test_a_bar_is_shown_on_a_terminal_alone_and_leaves_nothing(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    times = itertools.count()
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(times)))
    for kind, shown in ((Terminal, True), (io.StringIO, False)):
        monkeypatch.setattr(sys, "stderr", kind())
        start().tables(
            nodes([FakeProblem(candidate("a"), subject=f"{kind} {i}") for i in range(5)])
        )
        text = sys.stderr.getvalue()
        assert ("autotune:" in text and " left" in text) == shown
        assert not text.rpartition("\r")[2].strip()
