"""The arrays of a call on a CUDA device: used in place, or copied."""

import ctypes

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import constant

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import DeviceArray
from driver_log import X, bind, call, entries

from minigraph.devices.cuda import calls
from minigraph.devices.cuda.staging import copy_of


@pytest.fixture
def direct(monkeypatch):
    """Let launches cost nothing, so that all inputs and outputs are used where they are."""
    monkeypatch.setattr(calls, "LAUNCH_SECONDS", 0)


def aligned(array, offset=0):
    """Return a copy so many bytes after a multiple of 256."""
    memory = np.zeros(array.nbytes + 512, np.uint8)
    begin = -memory.ctypes.data % 256 + offset
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def actions(log):
    return entries(log, "launch", "launch_graph", "copy", "upload")


@pytest.mark.parametrize(
    ("size", "launches", "is_direct"),
    [(1 << 20, 1, True), (1 << 20, 3, False), (4 << 20, 3, True), (1 << 10, 1, False)],
)
def test_arrays_are_used_where_they_are_if_copies_take_longer_than_launches(
    size, launches, is_direct
):
    x = y = mg.input("x", (size,))
    for _ in range(launches):
        y = ops.tanh(y)
    run = bind([x], [y])
    assert run.launches == (launches if is_direct else 1)
    value = DeviceArray(aligned(np.ones(size, np.float32)))
    for _ in range(3):
        _, log = call(run, value)
    expected = ["launch"] * launches if is_direct else ["copy", "launch_graph", "copy"]
    assert actions(log) == expected


def test_a_kernel_reads_and_writes_the_callers_arrays_and_the_streams_wait_for_one_another(direct):
    x = mg.input("x", (2, 3))
    run = bind([x], [ops.tanh(x)])
    allocations = len(run.driver.held)
    results = []
    for scale in range(4):
        value = DeviceArray(aligned(X * scale))
        run.driver.log.clear()
        results += run([value])
        assert run.driver.words[-1] == [value.data.ptr, results[-1].data.ptr]
        assert run.driver.log == [
            *("array 24", "record begun caller", "wait compute begun", "launch tanh compute"),
            *("record done compute", "wait caller done"),
        ]
    for scale, y in enumerate(results):  # no call has overwritten what another has returned
        np.testing.assert_allclose(y.array, np.tanh(X * scale), rtol=1e-6)
    assert len(run.driver.held) == allocations
    assert (run.launches, run.syncs, run.driver.graphs) == (1, 0, [])


def test_only_steps_that_touch_arrays_of_a_call_are_bound_anew_and_known_addresses_are_not(
    direct, monkeypatch
):
    bound = []

    def calls_of(step, *rest):
        bound.append(step.node.op.name)
        return real(step, *rest)

    real = calls.calls_of
    monkeypatch.setattr(calls, "calls_of", calls_of)
    x = mg.input("x", (2, 3))
    run = bind([x], [ops.tanh(ops.exp(ops.sin(x)))])
    assert bound == ["exp"]
    output = DeviceArray(np.zeros((2, 3), np.float32))
    run.driver.array = lambda spec: output
    values = [DeviceArray(aligned(X)) for _ in range(2)]
    for i in (0, 1, 0, 1, 1):
        call(run, values[i])
    assert bound == ["exp", *["sin", "tanh"] * 2]


@pytest.mark.parametrize(
    ("value", "copies"),
    [
        (DeviceArray(aligned(X)), 0),
        (DeviceArray(aligned(X, offset=16)), 0),
        (DeviceArray(aligned(X, offset=4)), 1),
        (DeviceArray(aligned(X), ordinal=1), 1),
    ],
    ids=["aligned", "aligned enough", "not aligned", "of another device"],
)
def test_an_input_that_cannot_be_read_where_it_is_is_copied(direct, value, copies):
    x = mg.input("x", (2, 3))
    run = bind([x], [ops.tanh(x)])
    for _ in range(2):
        (y,), log = call(run, value)
        np.testing.assert_allclose(y, np.tanh(X), rtol=1e-6)
        assert actions(log) == ["copy"] * copies + ["launch"]
        assert run.driver.words[-1][0] % 16 == 0
    call(run, DeviceArray(aligned(X * 0)))  # is read where it is, also after one that was not
    assert actions(run.driver.log) == ["launch"]


def test_inputs_that_have_to_be_copied_get_room_when_they_first_come(direct):
    a, b = mg.input("a", (2, 3)), mg.input("b", (2, 3))
    run = bind([a, b], [a - b])
    on_device = DeviceArray(aligned(X))
    values = [(on_device, on_device), (X * 2, on_device), (X * 3, X), (on_device, X * 4)]
    rooms = []
    for first, second in values:
        (y,), log = call(run, first, second)
        one, two = (getattr(value, "array", value) for value in (first, second))
        np.testing.assert_array_equal(y, one - two)
        rooms.append([entry for entry in log if entries([entry], "synchronize", "allocate")])
    waits = "synchronize compute"
    assert rooms == [[], [waits, "allocate 512"], [waits, "allocate 1024"], []]


# What is returned, of a function of x and w, and what is copied for it.
RETURNED = {
    "an input": (lambda m, x, w: [x, m.tanh(x)], ["copy"]),
    "part of an input": (lambda m, x, w: [x[1:], m.tanh(x)], ["copy"]),
    "a parameter": (lambda m, x, w: [w, m.tanh(x)], ["copy"]),
    "a constant": (lambda m, x, w: [X if m is np else constant(X), m.tanh(x)], ["copy"]),
    "a view": (lambda m, x, w: [m.tanh(x).T], []),
    "a part": (lambda m, x, w: [m.tanh(x)[1:]], ["copy"]),
    "the same twice": (lambda m, x, w: [m.tanh(x), m.tanh(x)], []),
    "one buffer twice": (lambda m, x, w: [y := m.tanh(x), y.reshape(3, 2), y], ["copy"] * 3),
    "another shape": (lambda m, x, w: [m.tanh(x).reshape(3, 2)], []),
}


@pytest.mark.parametrize(("returned", "copies"), RETURNED.values(), ids=RETURNED)
def test_an_output_that_no_kernel_can_write_where_it_goes_is_copied(direct, returned, copies):
    x = mg.input("x", (2, 3))
    w = mg.Parameter(X + 1, name="w")
    run = bind([x], returned(ops, x, w), [(w, w * 2)])
    results = []
    for scale in (1, 2, 3):
        expected = returned(np, X * scale, w.numpy())
        actual, log = call(run, DeviceArray(aligned(X * scale)))
        moves = [action for action in actions(log) if action != "launch"]
        assert moves[: len(copies)] == copies and len(moves) <= len(copies) + 1  # w's new value
        results += zip(actual, expected, strict=True)
    for actual, expected in results:
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert len({id(actual) for actual, _ in results}) == len(results)


def test_an_update_may_be_what_is_read_or_returned_where_it_is(direct):
    x = mg.input("x", (2, 3))
    w, v = (mg.Parameter(np.zeros((2, 3), np.float32), name=name) for name in "wv")
    y = ops.tanh(x) + w
    run = bind([x], [y], [(w, y), (v, x)])
    total = 0
    for scale in (1, 2, 3):
        (actual,), log = call(run, DeviceArray(aligned(X * scale)))
        total = total + np.tanh(X * scale)
        for value, expected in ((actual, total), (w.numpy(), total), (v.numpy(), X * scale)):
            np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert actions(log)[-4:] == ["launch"] * 2 + ["copy"] * 2


def test_what_numpy_does_and_a_profile_use_arrays_where_they_are_too(direct):
    x = mg.input("x", (2, 3))
    y = ops.exp(x)
    run = bind([x], [y, ops.tanh(y)], by_numpy=("exp",))
    value = DeviceArray(aligned(X))
    for outputs in (run([value]), run.profile([value])[0], run([value])):
        for actual, expected in zip(outputs, [np.exp(X), np.tanh(np.exp(X))], strict=True):
            np.testing.assert_allclose(actual.array, expected, rtol=1e-6)
    assert (run.launches, run.syncs) == (1, 1)
    assert not entries(run.driver.log, "copy")


def test_a_call_that_ends_in_the_middle_leaves_the_parameters_as_the_device_has_them():
    x, w = mg.input("x", (2, 3)), mg.Parameter(X, "w")
    run = bind([x], [ops.tanh(x)], [(w, w + 1)])
    call(run, X)
    w.assign(X * 2)
    launch, run.driver.launch = run.driver.launch, None  # as a driver that fails
    with pytest.raises(TypeError):
        call(run, X)
    run.driver.launch = launch
    ctypes.memset(copy_of(w.state, run.driver).address, 0, X.nbytes)  # an update, until then
    assert (w.numpy() == 0).all()
