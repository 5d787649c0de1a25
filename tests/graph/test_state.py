"""The value of a parameter on several devices: `minigraph.graph.state`."""

import numpy as np

from minigraph.graph import State


class Copy:
    def __init__(self, spec):
        self.value = np.zeros(spec.shape, spec.dtype)
        self.moves = []

    def upload(self, value):
        self.moves.append("up")
        self.value[...] = value

    def download(self, into):
        self.moves.append("down")
        into[...] = self.value


def test_a_copy_is_made_once_and_renewed_only_after_a_change():
    state = State(np.arange(3.0))
    copy = state.on("a", Copy)
    assert copy.value.tolist() == [0, 1, 2]
    assert state.on("a", Copy) is copy
    assert state.read().tolist() == [0, 1, 2]
    assert copy.moves == ["up"]
    state.write()[0] = 5
    assert state.on("a", Copy).value.tolist() == [5, 1, 2]
    assert copy.moves == ["up", "up"]


def test_the_host_sees_what_a_device_has_written():
    state = State(np.arange(3.0))
    copy = state.on("a", Copy)
    copy.value[...] = 7
    state.written("a")
    assert state.read().tolist() == [7, 7, 7]
    assert state.read().tolist() == [7, 7, 7]
    assert copy.moves == ["up", "down"]


def test_a_second_device_gets_what_the_first_has_written():
    state = State(np.arange(3.0))
    one, two = state.on("a", Copy), state.on("b", Copy)
    one.value[...] = 4
    state.written("a")
    assert state.on("b", Copy) is two
    assert two.value.tolist() == [4, 4, 4]
    two.value[...] = 9
    state.written("b")
    assert state.on("a", Copy).value.tolist() == [9, 9, 9]
    assert state.read().tolist() == [9, 9, 9]


def test_a_change_on_the_host_keeps_the_rest_of_what_a_device_has_written():
    state = State(np.arange(3.0))
    copy = state.on("a", Copy)
    copy.value[...] = 7
    state.written("a")
    state.write()[0] = 1
    assert state.on("a", Copy).value.tolist() == [1, 7, 7]


def test_the_memory_of_the_host_stays_where_it_is():
    state = State(np.arange(3.0))
    host = state.read()
    assert state.write() is host
    assert host.ctypes.data % 64 == 0
