"""The model of how training scales, with given numbers, and its tables of given runs."""

import pytest
from comparisons.scaling import RUNS, Link, Run, checks, predictions, step_seconds

from minigraph.platform.records import decode, encode

LINK = Link(latency=1e-3, bandwidth=1e6)


def test_a_reduction_sends_two_messages_for_each_other_process():
    assert LINK.reduce_seconds(2, 1_000_000) == pytest.approx(1 + 2e-3)
    assert LINK.reduce_seconds(4, 1_000_000) == pytest.approx(1.5 + 6e-3)


@pytest.mark.parametrize("processes", [2, 4])
def test_two_reductions_show_the_link(processes):
    taken = [(nbytes, LINK.reduce_seconds(processes, nbytes)) for nbytes in (1 << 10, 1 << 22)]
    assert Link.fitted(processes, *taken) == pytest.approx(LINK)


def test_the_backward_pass_hides_all_but_the_last_bucket_at_best():
    last, most = LINK.reduce_seconds(2, 500), 3.0 + LINK.reduce_seconds(2, 1_000_500) + 2e-3
    assert step_seconds(3.0, LINK, 2, [1_000_000, 500]) == pytest.approx((3.0 + last, most))
    assert step_seconds(3.0, LINK, 2, [500]) == pytest.approx((3.0 + last, 3.0 + last))


def test_an_exchange_longer_than_the_backward_pass_shows():
    assert step_seconds(0.3, LINK, 2, [500_000, 500_000])[0] == pytest.approx(0.3 + 1.004 - 0.2)


def measured(processes, link, cpus=8):
    nbytes = {"small": 1 << 10, "large": 1 << 22, "exchange": 1_000_000}
    seconds = {what: (link.reduce_seconds(processes, size),) for what, size in nbytes.items()}
    taken = {"alone": (0.5,), "step": (1.0,), **seconds}
    facts = "2026-01-01", "a processor", cpus, "a network", processes, processes
    return Run(*facts, (1_000_000,), taken)


def test_a_run_is_compared_with_its_link_and_with_that_of_fewer_processes():
    runs = [measured(2, LINK), measured(4, Link(2e-3, 1e6))]
    assert decode(RUNS, encode(runs)) == runs
    rows = [[*row[1:4], *row[5:7]] for row in checks(runs).rows]
    assert rows == [
        ["2", "2 processes", "500.0 ms", "1002.0 ms", "1002.0 ms"],
        ["4", "2 processes", "500.0 ms", "1512.0 ms", "1506.0 ms"],
        ["4", "4 processes", "500.0 ms", "1512.0 ms", "1512.0 ms"],
    ]


def test_processes_that_share_cores_are_as_much_slower():
    runs = [measured(2, LINK, cpus=2), measured(4, LINK, cpus=2)]
    exchange = [row[6] for row in checks(runs).rows]
    assert exchange == ["1002.0 ms", "3012.0 ms", "1506.0 ms"]


def test_predictions_begin_with_the_last_run_of_fewest_processes():
    other = Link(4e-3, 2e6)
    runs = [measured(2, LINK), measured(4, LINK), measured(2, other), measured(4, LINK)]
    first, *nominal = predictions(runs).rows
    assert first[:3] == ["a network", "of 2 processes", "4000 µs, 0.002 GB/s"]
    most = 0.5 + other.reduce_seconds(8, 1_000_000)
    assert first[3] == f"{0.5 / most:.0%}"  # its only bucket is the last
    assert all(row[0] == "" for row in nominal)
