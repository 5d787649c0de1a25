"""The model of how training scales, with given numbers, and its tables of given runs."""

import pytest
from comparisons.scaling import Link, Run, hidden_share, measured, predicted, step_seconds

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


@pytest.mark.parametrize(
    ("together", "share"), [(5.0, 0.0), (4.0, 0.5), (3.0, 1.0), (2.9, 1.0), (6.0, 0.0)]
)
def test_what_is_hidden_is_a_share_of_the_shorter_of_backward_pass_and_exchange(together, share):
    assert hidden_share(together, 3.0, 2.0) == share
    assert hidden_share(together + 1, 3.0, 3.0) == share


def test_a_run_stands_beside_the_model_of_its_link_and_of_nominal_ones():
    nbytes = {"small": 1 << 10, "large": 1 << 22, "exchange": 1_000_000}
    seconds = {what: [LINK.reduce_seconds(4, size)] for what, size in nbytes.items()}
    run = Run("a network", 4, (1_000_000,), {"alone": [0.5], "step": [1.0], **seconds})
    (row,) = measured([run]).rows
    assert row[:6] == ["a network", "4", "500.0 ms", "1", "1506.0 ms", "1506.0 ms"]
    assert row[6:9] == ["1000.0 ms", "2006.0 ms", "100%"]
    first, *nominal = predicted([run]).rows
    assert first[:3] == ["a network", "of 4 processes", "1000 µs, 0.001 GB/s"]
    most = 0.5 + LINK.reduce_seconds(8, 1_000_000)
    assert first[3] == f"{0.5 / most:.0%}"  # its only bucket is the last
    assert all(row[0] == "" for row in nominal)
