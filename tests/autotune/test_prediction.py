"""What is expected of candidates for sizes that were never measured."""

import dataclasses

import pytest

from minigraph.autotune.measurement import Measurement, ProblemTable
from minigraph.autotune.prediction import family_of, predicted, sizes_of

LAYOUTS = ("rows", "rows")


def subject(n, m=64):
    return f"product float32[{n}, {m}] float32[{m}, {n}], 2 threads"


def table(n, **seconds):
    """Return what was measured of candidates for a size, by their names; None is a failure."""
    rows = [
        Measurement(name, LAYOUTS, 0, True, "float32", t, error="" if t else "wrong result")
        for name, t in seconds.items()
    ]
    return ProblemTable(subject(n), tuple(rows))


def expected(n, *tables):
    return {m.name: m.seconds for m in predicted(subject(n), tables).measurements}


def test_sizes_are_the_numbers_in_brackets_and_in_shapes():
    gradient = "gradient[conv[stride=(2, 2)], shape=(8, 3, 32, 32)] float32[8, 16, 16, 16]"
    assert [round(2.718281828**x) for x in sizes_of(gradient)] == [8, 3, 32, 32, 8, 16, 16, 16]
    assert "stride=(2, 2)" in family_of(gradient) and "8" not in family_of(gradient)
    assert family_of(subject(8)) == family_of(subject(9)) != family_of("sum float32[8]")


def test_a_problem_of_which_nothing_is_measured_is_not_predicted():
    assert predicted(subject(8), []) is None
    other = dataclasses.replace(table(8, a=1.0), subject="sum float32[8, 64]")
    assert predicted(subject(8), [other, table(8, a=None)]) is None


def test_times_grow_with_the_sizes_and_keep_their_ratio():
    found = expected(32, table(16, a=1.0, b=3.0))
    assert found == pytest.approx({"a": 2.0, "b": 6.0})


def test_near_sizes_count_more_than_those_far_away():
    small, large = table(4, a=1.0, b=2.0), table(4096, a=8.0, b=4.0)
    for n, best in ((8, "a"), (2048, "b")):
        for tables in ((small, large), (large, small)):
            found = expected(n, *tables)
            assert min(found, key=found.get) == best


def test_one_odd_table_does_not_outvote_its_neighbours():
    tables = [table(n, a=1.0, b=1.5) for n in (14, 15, 18, 19)]
    found = expected(16, *tables, table(17, a=1.2, b=1.0))
    assert found["a"] < found["b"]


def test_what_failed_or_was_not_run_is_not_expected_to_be_fast():
    assert set(expected(16, table(15, a=1.0, b=None), table(17, a=1.0, c=2.0))) == {"a", "c"}


def test_a_prediction_is_no_measurement():
    made = table(15, a=1.0).measurements[0]
    (row,) = predicted(subject(16), [table(15, a=1.0)]).measurements
    assert row.rounds == 0 and row.key == made.key
