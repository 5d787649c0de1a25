"""How fast a device is, and the least time of work on it."""

import pytest

import minigraph as mg
from minigraph.devices.factory import open_backend
from minigraph.inspect.roofline import Bound, speeds


def test_the_slower_of_moving_and_computing_bounds_a_step():
    moving, computing = Bound(1e9, 1e12, 2_000_000, 8), Bound(1e9, 1e12, 8, 3_000_000_000)
    assert (moving.of_memory, moving.seconds) == (True, pytest.approx(2e-3))
    assert (computing.of_memory, computing.seconds) == (False, pytest.approx(3e-3))


def test_a_device_is_measured_once():
    first = speeds(open_backend("cpu", mg.comp_graph().options), 1)
    assert first.bandwidth > 1e8 and first.peak > 1e8
    assert speeds(open_backend("cpu", mg.comp_graph().options), 1) is first
