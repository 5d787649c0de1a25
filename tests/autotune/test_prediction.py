"""What is expected of candidates for sizes that were never measured."""

import pytest
from problems import FakeProblem, measurement

from minigraph.autotune.prediction import predict


def table(n, m=64, **seconds):
    """Return what was measured of candidates for sizes, by their names; None is a failure."""
    rows = [measurement(name, t, error="" if t else "wrong result") for name, t in seconds.items()]
    problem = FakeProblem()
    problem.sizes = (n, m, m, n)
    return problem.table(rows, "measured")


def expected(n, *tables):
    return {row.name: row.seconds for row in predict((n, 64, 64, n), tables)}


def test_a_problem_of_which_nothing_is_measured_is_not_predicted():
    assert predict((8, 64, 64, 8), []) == []
    assert expected(8, table(8, a=None)) == {}
    assert predict((8, 64), [table(8, a=1.0)]) == [], "it has other axes"


def test_times_grow_with_the_sizes_and_keep_their_ratio():
    assert expected(32, table(16, a=1.0, b=3.0)) == pytest.approx({"a": 2.0, "b": 6.0})


def test_near_sizes_count_more_than_those_far_away():
    small, large = table(4, a=1.0, b=2.0), table(4096, a=8.0, b=4.0)
    for n, best in ((8, "a"), (2048, "b")):
        for tables in ((small, large), (large, small)):
            times = expected(n, *tables)
            assert min(times, key=times.get) == best


def test_one_odd_table_does_not_outvote_its_neighbours():
    tables = [table(n, a=1.0, b=1.5) for n in (14, 15, 18, 19)]
    times = expected(16, *tables, table(17, a=1.2, b=1.0))
    assert times["a"] < times["b"]


def test_what_failed_or_was_not_run_is_not_expected_to_be_fast():
    assert set(expected(16, table(15, a=1.0, b=None), table(17, a=1.0, c=2.0))) == {"a", "c"}


def test_a_prediction_is_no_measurement():
    near = table(15, a=1.0)
    (row,) = predict((16, 64, 64, 16), [near])
    assert row.rounds == 0 and row.key == near.measurements[0].key
