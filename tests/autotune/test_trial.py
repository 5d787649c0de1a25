"""Trials of candidates: right or not, and how long each is timed."""

import itertools

import numpy as np
import pytest
from problems import LAYOUTS, FakeProblem, Twice, Wrong, candidate, double

import minigraph as mg
from minigraph.autotune.candidate import Candidate, Workbench
from minigraph.autotune.data import GUARD_BYTES
from minigraph.autotune.tuner import measure
from minigraph.errors import DeviceLost
from minigraph.graph import FLOATS

pytestmark = pytest.mark.usefixtures("new_process")


def ticking():
    """Return a clock that shows a millisecond more each time."""
    times = itertools.count()
    return lambda: next(times) / 1000


def errors(*candidates, **facts):
    """Measure candidates, and return the errors by name of those that have one."""
    measured = measure(FakeProblem(*candidates, **facts), None, ticking())
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
    measured = measure(FakeProblem(*right, shape=(300, 301), dtype=dtype), None, ticking())
    assert [m.layouts for m in measured.measurements] == LAYOUTS
    for m in measured.measurements:
        assert (m.error, m.workspace, m.rounds) == ("", 100, 7)
        assert m.seconds == pytest.approx(1e-3)


def around(array):
    """Return the bytes of the memory around an array, and the array's first and last byte there."""
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
    "far before": (lambda i, o, s: write_at(o[0], -GUARD_BYTES), "outside its results"),
    "after": (lambda i, o, s: write_at(o[0], 0), "outside its results"),
    "far after": (lambda i, o, s: write_at(o[0], GUARD_BYTES - 1), "outside its results"),
    "before scratch": (lambda i, o, s: write_at(s, -1), "outside its results and scratch"),
    "after scratch": (lambda i, o, s: write_at(s, 0), "outside its results and scratch"),
    "input": (lambda i, o, s: i[0].__setitem__((0, 0), 9), "wrote to its inputs"),
    "before input": (lambda i, o, s: write_at(i[0], -1), "wrote to its inputs or around them"),
    "after input": (lambda i, o, s: write_at(i[0], 3), "wrote to its inputs or around them"),
    "raises": (lambda i, o, s: [].pop(), "IndexError: pop from empty list"),
}


class Zeroed(Workbench):
    """A workbench in whose memory a zero that is written is seen only if guards are filled."""

    def empty(self, nbytes):
        array = super().empty(nbytes)
        array.fill(0)
        return array


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_kept_with_its_error_and_without_a_time(name):
    change, error = WRONG[name]
    wrong = Wrong(change, scratch=24)
    three = FakeProblem(candidate("a"), candidate("b", wrong), candidate("c"), workbench=Zeroed())
    a, b, c = measure(three).measurements
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
    failures = errors(candidate("large", large), candidate("small", small), shape=(0, 3))
    assert failures == {"small": "wrote outside its results and scratch"}


def test_a_candidate_that_cannot_be_made_is_kept_with_its_error():
    def fail():
        raise RuntimeError("status 3:\nunimplemented")

    no = Candidate("no", ("ab", "ab"), fail)
    assert errors(no, candidate("yes")) == {"no": "RuntimeError: status 3: unimplemented"}


def test_a_candidate_that_fails_only_later_is_kept_with_its_error():
    class Later(Twice):
        def run(self, inputs, outputs, scratch):
            super().run(inputs, outputs, scratch)
            if self.runs == 3:
                raise OSError("no more")

    assert errors(candidate("later", Later())) == {"later": "OSError: no more"}


@pytest.mark.parametrize("at", [1, 3])
def test_an_error_of_memory_or_of_the_device_is_not_the_candidates(at):
    class Fails(Twice):
        def __init__(self, error):
            super().__init__()
            self.error = error

        def run(self, inputs, outputs, scratch):
            super().run(inputs, outputs, scratch)
            if self.runs == at:
                raise self.error

    class Lost(Workbench):
        def reraise_device_error(self, error, name):
            raise DeviceLost(f"the device is lost; {name} ran last")

    for error, bench in ((MemoryError("too much"), Workbench()), (OSError(), Lost())):
        expected = type(error) if isinstance(error, MemoryError) else DeviceLost
        with pytest.raises(expected, match=r"too much|fails ran last"):
            errors(candidate("fails", Fails(error)), workbench=bench)


def test_a_candidate_for_which_memory_does_not_suffice_is_left_out():
    def starved():
        raise MemoryError

    problem = FakeProblem(Candidate("no", ("ab", "ab"), starved), candidate("yes"))
    (only,) = measure(problem, None, ticking()).measurements
    assert only.name == "yes" and not only.error


def test_rounding_in_a_lower_precision_is_allowed_where_the_candidate_says_so():
    class Rounds(Twice):
        def run(self, inputs, outputs, scratch):
            outputs[0][...] = inputs[0] * 2.007

    failures = errors(candidate("a", Rounds()), candidate("b", Rounds(), precision="tf32"))
    assert list(failures) == ["a"]
    assert not errors(candidate("a", Rounds()), dtype="float16")  # whose own rounding is larger


def test_what_has_to_come_out_is_computed_in_float32_at_least():
    def meaning(x):
        assert x.dtype == np.promote_types(dtype, np.float32)
        return double(x)

    for dtype in FLOATS:
        doubled = FakeProblem(candidate("a"), dtype=dtype, meaning=meaning)
        assert measure(doubled, None, ticking()).measurements[0].error == ""


def test_a_problem_has_the_same_data_each_time():
    def data(subject):
        seen = []
        keep = candidate("a", Wrong(lambda i, o, s: seen.append(i[0].copy())))
        measure(FakeProblem(keep, subject=subject, shape=(64, 64)), None)
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
    measured = measure(FakeProblem(*named), None, clock).measurements
    return [(m.seconds, m.rounds, runner.runs) for m, runner in zip(measured, runners, strict=True)]


def test_a_hopeless_candidate_is_run_twice_wherever_it_stands(clock):
    fast, slow = (pytest.approx(0.0045), 6, 7), (pytest.approx(0.014), 1, 2)
    assert timed(clock, 0.0045, 0.014) == [fast, slow]
    assert timed(clock, 0.014, 0.0045) == [slow, fast]


def test_the_first_of_short_runs_makes_no_candidate_hopeless(clock):
    first_is_slow = (0.0045, *[2e-5] * 1000)
    (known, *_), (seconds, rounds, _) = timed(clock, 4e-5, first_is_slow)
    assert (known, seconds, rounds) == (pytest.approx(4e-5), pytest.approx(2e-5), 6)


def test_a_pause_of_the_machine_makes_no_candidate_hopeless(clock):
    paused = (0.02, *[0.002] * 1000)
    _, (seconds, rounds, _) = timed(clock, 0.0045, paused)
    assert (seconds, rounds) == (pytest.approx(0.002), 7)


def test_a_candidate_is_timed_more_often_the_shorter_it_is(clock):
    (seconds, rounds, runs), *others = timed(clock, 2e-5, 0.0065, 0.025, 0.4)
    assert (seconds, rounds, runs) == (pytest.approx(2e-5), 7, 1 + 7 * 25)
    assert [r for _, r, _ in timed(clock, 0.0047, 0.0051)] == [6, 5]
    assert timed(clock, 0.1) == [(pytest.approx(0.1), 3, 4)]
    assert timed(clock, 0.4) == [(pytest.approx(0.4), 2, 2)]
    assert [runs for *_, runs in others] == [2, 2, 1]


def test_a_candidate_is_timed_no_more_once_it_has_lost(clock):
    # Their first runs are those that are checked: 1.5 times after one timed run, 1.25 after two.
    assert [r for _, r, _ in timed(clock, 0.0045, 0.007, 0.006, 0.00515)] == [6, 1, 2, 4]
    # The times of other layouts are wanted too: a whole network may be faster with them.
    times = {"aa": 0.0045, "bb": 0.0067, "cc": 0.007}
    all_layouts = [candidate(name, Twice(clock, t), (name, name)) for name, t in times.items()]
    # But not where one is so slow that other layouts will hardly make up for it.
    diagonal = FakeProblem(*all_layouts, layouts=[(name, name) for name in times])
    assert [m.rounds for m in measure(diagonal, None, clock).measurements] == [6, 4, 1]
    # A pause of the machine is not theirs: the shortest run counts.
    paused = (0.0046, 0.09)
    assert [r for _, r, _ in timed(clock, 0.0045, paused)] == [6, 6]


def test_the_time_is_that_of_the_shortest_run_and_the_spread_leads_to_the_lower_quartile(clock):
    # The first run is the one that is checked.
    runner = Twice(clock, 0.0025, 0.002, 0.0025, 0.003, 0.0025, 0.0025, 0.1, 0.002)
    (m,) = measure(FakeProblem(candidate("a", runner)), None, clock).measurements
    assert m.seconds == pytest.approx(0.002)
    assert m.spread == pytest.approx(0.00225 / 0.002 - 1)


def test_candidates_take_turns():
    order = []
    noted = {n: Wrong(lambda i, o, s, name=n: order.append(name)) for n in "abc"}
    measure(
        FakeProblem(*(candidate(name, runner) for name, runner in noted.items())), None, ticking()
    )
    assert "".join(order) == "abc" * 8


def test_nothing_half_measured_is_kept(clock):
    def measured_by(deadline):
        clock.now = 0.0
        mg.autotune.reset_stats()
        table = measure(FakeProblem(candidate("a", Twice(clock, 0.1))), deadline, clock)
        return table and table.measurements[0].rounds, mg.autotune.stats().measurements

    assert measured_by(0.45) == (3, 1)
    assert measured_by(0.25) == (None, 0)
    assert measured_by(0.0) == (None, 0)
