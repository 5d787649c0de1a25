"""Running programs on a CUDA device: a stand-in for the driver writes down its calls."""

import ctypes
import gc
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Graph, constant
from minigraph.ops.elementwise import Elementwise
from minigraph.program import Home
from minigraph.program.lower import lower

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import DeviceArray, StandIn

from minigraph.devices.cuda import binding, one_hot, workbench
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.memory import ALIGNMENT
from minigraph.devices.cuda.parameter import copy_of
from minigraph.devices.cuda.program import CudaProgram
from minigraph.devices.cuda.step import run_alone


class Kernels:
    """What `lower` takes for a device: each node is one launch of a kernel of its own.

    by_numpy  ops that have none
    idle      ops that take no launch
    """

    def __init__(self, driver, by_numpy=(), idle=()):
        self.driver = driver
        self.by_numpy = by_numpy
        self.idle = idle

    def kernel(self, node, strides, choice=None):
        if node.op.name in self.by_numpy:
            return NumpyKernel(node)
        if node.op.name in self.idle:
            return CudaKernel(node, [])
        launch = self.driver.launch_of(node, [x.spec.strides for x in node.inputs])
        written = one_hot.KERNELS.get(type(node.op))
        range = written(node.op, node).range if written else None
        inplace = [(0,)] * len(node.inputs) if isinstance(node.op, Elementwise) else ()
        return CudaKernel(node, [launch], inplace=inplace, range=range)


def bind(inputs, outputs, updates=(), by_numpy=(), idle=(), bulk=True, **settings):
    """Return a program that is ready to run."""
    driver = StandIn(**settings)
    graph = Graph(tuple(inputs), (*outputs, *(y for _, y in updates)))
    parameters = [w for w, _ in updates]
    kernels = Kernels(driver, by_numpy, idle)
    lowered = lower(graph, len(outputs), parameters, kernels, lambda node, strides: None)
    run = CudaProgram(lowered, driver, {name: name for name in driver.kernels}, bulk)
    driver.log.clear()
    return run


def call(run, *inputs):
    """Return the outputs of a call, and what the driver was asked for in it."""
    run.driver.log.clear()
    return [y.array for y in run(inputs)], list(run.driver.log)


def example(**settings):
    """y = tanh(x) + w, and w becomes w * 2; return w too."""
    x = mg.input("x", (2, 3))
    w = mg.Parameter(np.ones((2, 3), np.float32), name="w")
    return bind([x], [ops.tanh(x) + w], [(w, w * 2)], **settings), w


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
NATIVE = ("launch", "launch_graph")


def natives(log):
    return [entry[0] for entry in log if entry[0] in NATIVE]


def labels_example(labels, **settings):
    """1 - one-hot labels, and w becomes w + 1; return w too."""
    x = mg.input("x", (3,), "int64")
    w = mg.Parameter(np.zeros(2, np.float32), name="w")
    return bind([x], [1 - ops.one_hot(labels(x), 4, "float32")], [(w, w + 1)], **settings), w


# ---------------------------------------------------------------- calls


def test_each_call_computes_with_what_the_one_before_has_left():
    run, w = example()
    for i in range(5):
        (y,), _ = call(run, X * i)
        np.testing.assert_allclose(y, np.tanh(X * i) + 2.0**i, rtol=1e-6)
    assert (w.numpy() == 32).all()


def test_the_first_call_launches_kernels_and_later_ones_one_graph():
    run, _ = example()
    logs = [natives(call(run, X)[1]) for _ in range(4)]
    assert logs == [["launch"] * 3, *[["launch_graph"]] * 3]
    assert (run.launches, run.syncs) == (1, 0)


def test_a_call_waits_for_nothing_but_the_batch_before_to_leave_pinned_memory():
    run, _ = example()
    call(run, X)
    call(run, X)
    assert call(run, X)[1] == [
        ("array", X.nbytes),
        ("record", "begun", "caller"),
        ("wait", "compute", "begun"),
        ("finish", "arrived"),
        ("wait", "copies", "landed"),
        ("upload", "copies"),
        ("record", "arrived", "copies"),
        ("wait", "compute", "arrived"),
        ("copy", ALIGNMENT, "compute"),
        ("record", "landed", "compute"),
        ("launch_graph", "compute"),
        ("copy", X.nbytes, "compute"),  # the result
        ("copy", X.nbytes, "compute"),  # the parameter, which was read after w * 2
        ("record", "done", "compute"),
        ("wait", "caller", "done"),
    ]


def test_an_input_on_the_device_does_not_travel_by_way_of_the_host():
    run, _ = example()
    (y,), log = call(run, DeviceArray(X))
    np.testing.assert_allclose(y, np.tanh(X) + 1, rtol=1e-6)
    assert "upload" not in [entry[0] for entry in log]


def test_inputs_on_the_host_and_on_the_device_mix():
    a, b, c = (mg.input(name, (3,)) for name in "abc")
    run = bind([a, b, c], [a - b * c])
    (y,), _ = call(run, X[0], DeviceArray(X[1]), X[0] + 1)
    np.testing.assert_allclose(y, X[0] - X[1] * (X[0] + 1), rtol=1e-6)


def test_without_bulk_kernels_are_launched_one_by_one_and_nothing_is_synchronised():
    run, _ = example(bulk=False)
    for _ in range(3):
        _, log = call(run, X)
        assert natives(log) == ["launch"] * 3
        assert not any(entry[0] == "synchronize" for entry in log)
    assert (run.launches, run.driver.graphs) == (3, [])


def test_a_parameter_lives_on_the_device_and_is_assigned_and_read_from_anywhere():
    run, w = example()
    uploads = []
    for _ in range(3):
        uploads.append(call(run, X)[1].count(("upload", "compute")))
    w.assign(np.full((2, 3), 5, np.float32))
    (y,), log = call(run, X)
    np.testing.assert_allclose(y, np.tanh(X) + 5, rtol=1e-6)
    assert (*uploads, log.count(("upload", "compute"))) == (0, 0, 0, 1)
    assert (w.numpy() == 10).all()


def test_two_functions_share_a_parameter_and_change_it_where_it_is():
    x = mg.input("x", (3,))
    w = mg.Parameter(np.ones(3, np.float32), name="w")
    y = x * w
    first, second = (bind([x], [y], [(w, w + y)]) for _ in range(2))
    second.driver.held += first.driver.held
    for i in range(6):
        (found,), log = call((first, second)[i % 2], np.ones(3, np.float32))
        assert (found == 2.0**i).all()
        assert log.count(("copy", 12, "compute")) == 1  # the result


def test_results_show_the_values_that_parameters_had_when_the_call_began():
    w, v = (mg.Parameter(np.ones(3, np.float32), name=name) for name in "wv")
    y = w * 3
    run = bind([], [y, w], [(w, y), (v, ops.stack([w, w, w])[1, ::-1][0:3])])
    for i in range(4):
        (new, old), log = call(run)
        assert (new == 3.0 ** (i + 1)).all() and (old == 3.0**i).all()
        assert (w.numpy() == 3.0 ** (i + 1)).all() and (v.numpy() == 3.0**i).all()
    assert natives(log) == ["launch_graph"]


def test_a_result_that_is_a_view_is_returned_as_an_array_of_its_own():
    x = mg.input("x", (2, 3))
    run = bind([x], [ops.tanh(x).T, x[:, ::2]])
    for scale in (1, 2, 3):
        (y, z), _ = call(run, X * scale)
        np.testing.assert_allclose(y, np.tanh(X * scale).T, rtol=1e-6)
        np.testing.assert_array_equal(z, X[:, ::2] * scale)


def profiled(run, *inputs):
    """Return the output of a profile, its timings, and what it has launched."""
    run.driver.log.clear()
    (y,), timings = run.profile(inputs)
    return y.array, timings, natives(run.driver.log)


def test_a_profile_has_the_time_of_each_step_and_does_what_a_call_does():
    run, w = example()
    for i in range(3):
        y, timings, _ = profiled(run, X)
        assert [t.step for t in timings] == run.program.steps
        assert {t.seconds for t in timings} == {0.5}
        np.testing.assert_allclose(y, np.tanh(X) + 2.0**i, rtol=1e-6)
    assert (w.numpy() == 8).all()


def test_a_profile_times_kernels_within_a_graph_once_they_have_run():
    run, _ = example()
    assert profiled(run, X)[2] == ["launch"] * 3
    assert run.driver.graphs == []
    assert profiled(run, X)[2] == ["launch_graph"]
    assert ("forget", [0]) in run.driver.log
    call(run, X)
    assert [*map(len, run.driver.graphs)] == [9, 3]  # a profile's has two events for each step


def test_words_are_the_addresses_that_the_plan_gave():
    x = mg.input("x", (64,))
    run = bind([x], [ops.tanh(ops.exp(ops.tanh(x)) + ops.sin(x))])
    call(run, np.zeros(64, np.float32))
    arena = run.driver.held[0].ctypes.data
    seen = 0
    for step, words in zip(run.program.steps, run.driver.words, strict=True):
        for view, word in zip((*step.inputs, *step.outputs), words, strict=True):
            if view.buffer.home is Home.ARENA:
                assert word == arena + view.buffer.offset + view.offset
                seen += 1
    assert seen == 8


# ---------------------------------------------------------------- where the arrays of a call are


@pytest.fixture
def direct(monkeypatch):
    """Let launches cost nothing, so that all inputs and outputs are used where they are."""
    monkeypatch.setattr(binding, "LAUNCHING", 0)


def aligned(array, offset=0):
    """Return a copy so many bytes after a multiple of 256."""
    memory = np.zeros(array.nbytes + 512, np.uint8)
    begin = -memory.ctypes.data % 256 + offset
    made = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def actions(log):
    return [entry[0] for entry in log if entry[0] in (*NATIVE, "copy", "gather", "upload")]


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
    held = len(run.driver.held)
    results = []
    for scale in range(4):
        value = DeviceArray(aligned(X * scale))
        run.driver.log.clear()
        results += run([value])
        assert run.driver.words[-1] == [value.data.ptr, results[-1].data.ptr]
        assert run.driver.log == [
            ("array", X.nbytes),
            ("record", "begun", "caller"),
            ("wait", "compute", "begun"),
            ("launch", "tanh", "compute"),
            ("record", "done", "compute"),
            ("wait", "caller", "done"),
        ]
    for scale, y in enumerate(results):  # no call has overwritten what another has returned
        np.testing.assert_allclose(y.array, np.tanh(X * scale), rtol=1e-6)
    assert len(run.driver.held) == held
    assert (run.launches, run.syncs, run.driver.graphs) == (1, 0, [])


def test_only_steps_that_touch_arrays_of_a_call_are_bound_anew_and_known_addresses_are_not(
    direct, monkeypatch
):
    bound = []

    def calls_of(step, *rest):
        bound.append(step.node.op.name)
        return real(step, *rest)

    real = binding.calls_of
    monkeypatch.setattr(binding, "calls_of", calls_of)
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
    room = [("synchronize", "compute"), ("allocate", 512)]
    rooms = []
    for first, second in values:
        (y,), log = call(run, first, second)
        one, two = (getattr(value, "array", value) for value in (first, second))
        np.testing.assert_array_equal(y, one - two)
        rooms.append([entry for entry in log if entry[0] in ("synchronize", "allocate")])
    assert rooms == [[], room, [room[0], ("allocate", 1024)], []]


# What is returned, of a function of x and w, and what is copied for it.
RETURNED = {
    "an input": (lambda m, x, w: [x, m.tanh(x)], ["copy"]),
    "part of an input": (lambda m, x, w: [x[1:], m.tanh(x)], ["copy"]),
    "a parameter": (lambda m, x, w: [w, m.tanh(x)], ["copy"]),
    "a constant": (lambda m, x, w: [X if m is np else constant(X), m.tanh(x)], ["copy"]),
    "a view": (lambda m, x, w: [m.tanh(x).T], ["gather"]),
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
        found, log = call(run, DeviceArray(aligned(X * scale)))
        done = [action for action in actions(log) if action != "launch"]
        assert done[: len(copies)] == copies and len(done) <= len(copies) + 1  # w's new value
        results += zip(found, expected, strict=True)
    for found, expected in results:
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len({id(found) for found, _ in results}) == len(results)


def test_an_update_may_be_what_is_read_or_returned_where_it_is(direct):
    x = mg.input("x", (2, 3))
    w, v = (mg.Parameter(np.zeros((2, 3), np.float32), name=name) for name in "wv")
    y = ops.tanh(x) + w
    run = bind([x], [y], [(w, y), (v, x)])
    total = 0
    for scale in (1, 2, 3):
        (found,), log = call(run, DeviceArray(aligned(X * scale)))
        total = total + np.tanh(X * scale)
        for value, expected in ((found, total), (w.numpy(), total), (v.numpy(), X * scale)):
            np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert actions(log)[-4:] == ["launch"] * 2 + ["copy"] * 2


def test_what_numpy_does_and_a_profile_use_arrays_where_they_are_too(direct):
    x = mg.input("x", (2, 3))
    y = ops.exp(x)
    run = bind([x], [y, ops.tanh(y)], by_numpy=("exp",))
    value = DeviceArray(aligned(X))
    for outputs in (run([value]), run.profile([value])[0], run([value])):
        for found, expected in zip(outputs, [np.exp(X), np.tanh(np.exp(X))], strict=True):
            np.testing.assert_allclose(found.array, expected, rtol=1e-6)
    assert (run.launches, run.syncs) == (1, 1)
    assert "copy" not in [entry[0] for entry in run.driver.log]


@pytest.mark.parametrize("labels", [lambda x: x, lambda x: x + x], ids=["given", "computed"])
def test_labels_out_of_range_are_refused_where_arrays_are_used_where_they_are(direct, labels):
    x = mg.input("x", (3,), "int64")
    w = mg.Parameter(np.zeros(2, np.float32), name="w")
    chosen = labels(x)
    run = bind([x], [1 - ops.one_hot(chosen, 4, "float32"), chosen], [(w, w + 1)])
    for given in ([0, 1, 0], [1, 0, 1]):
        given = np.array(given)
        with pytest.raises(mg.GraphError, match=r"one_hot: \d is not in 0 \.\.\. 3"):
            call(run, DeviceArray(aligned(given * 4)))
        assert run.driver.log[-2:] == [("record", "done", "compute"), ("wait", "caller", "done")]
        found = call(run, DeviceArray(aligned(given)))[0]
        expected = 1 - np.eye(4)[labels(given)], labels(given)
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
    assert (w.numpy() == 2).all()


def test_a_call_that_ends_in_the_middle_leaves_the_parameters_as_the_device_has_them():
    x, w = mg.input("x", (2, 3)), mg.Parameter(X, "w")
    run = bind([x], [ops.tanh(x)], [(w, w + 1)])
    call(run, X)
    w.assign(X * 2)
    launch, run.driver.launch = run.driver.launch, None  # as a driver that fails
    with pytest.raises(TypeError):
        call(run, X)
    run.driver.launch = launch
    ctypes.memset(copy_of(w, run.driver).address, 0, X.nbytes)  # an update, until then
    assert (w.numpy() == 0).all()


# ---------------------------------------------------------------- capture


def test_a_capture_has_a_stream_of_its_own_and_garbage_is_left_alone_meanwhile():
    run, _ = example()
    call(run, X)
    _, log = call(run, X)
    assert [entry[0] for entry in log if entry[0] == "captured"] == ["captured"] * 3
    assert run.driver.collecting == [False, False]
    assert gc.isenabled()


def test_a_capture_that_fails_is_warned_of_and_kernels_are_launched_one_by_one():
    run, _ = example(fail_in_capture=True)
    call(run, X)
    with pytest.warns(mg.MinigraphWarning, match="not while capturing") as warned:
        (y,), log = call(run, X)
    assert len(warned) == 1
    assert natives(log) == ["launch"] * 3
    np.testing.assert_allclose(y, np.tanh(X) + 2, rtol=1e-6)
    assert run.driver.capturing is None and not run.driver.capture_lock.locked()
    assert natives(call(run, X)[1]) == ["launch"] * 3
    assert run.launches == 3 and gc.isenabled()


def test_what_a_function_held_is_given_back_with_it():
    run, _ = example()
    call(run, X)
    call(run, X)
    driver = run.driver
    del run
    gc.collect()
    assert ("forget", [0]) in driver.log


# ---------------------------------------------------------------- what NumPy does, and refuses


def test_a_step_without_a_kernel_is_done_by_numpy_between_two_graphs():
    x = mg.input("x", (2, 3))
    y = ops.tanh(ops.exp(ops.sin(x)))
    run = bind([x], [y], by_numpy=("exp",))
    for _ in range(3):
        (found,), log = call(run, X)
        np.testing.assert_allclose(found, np.tanh(np.exp(np.sin(X))), rtol=1e-6)
    assert natives(log) == ["launch_graph"] * 2
    assert (run.launches, run.syncs) == (2, 1)


@pytest.mark.parametrize("place", [lambda x: x, DeviceArray], ids=["host", "device"])
def test_labels_that_are_inputs_are_refused_before_anything_runs(place):
    run, w = labels_example(lambda x: x)
    for _ in range(3):
        (y,), _ = call(run, np.array([0, 3, 1]))
        assert (y == 1 - np.eye(4)[[0, 3, 1]]).all()
    with pytest.raises(mg.GraphError, match=r"one_hot: 4 is not in 0 \.\.\. 3 .*test_cuda_program"):
        call(run, place(np.array([0, 4, 1])))
    assert natives(run.driver.log) == []
    assert (w.numpy() == 3).all()
    assert run.syncs == (place is DeviceArray)


def test_a_step_that_has_nothing_to_do_launches_nothing():
    x = mg.input("x", (0, 3))
    run = bind([x], [ops.sum(ops.tanh(x), 0)], idle=("tanh",))
    for _ in range(3):
        (y,), _ = call(run, np.zeros((0, 3), np.float32))
        assert y.tolist() == [0, 0, 0]
    assert (run.launches, run.syncs) == (1, 0)


def test_labels_that_are_computed_are_refused_before_a_parameter_changes():
    run, w = labels_example(lambda x: x + x)
    for _ in range(3):
        call(run, np.array([0, 1, 0]))
    assert (run.launches, run.syncs) == (2, 1)
    with pytest.raises(mg.GraphError, match=r"one_hot: 4 is not in 0 \.\.\. 3"):
        call(run, np.array([0, 2, 1]))
    assert (w.numpy() == 3).all()
    (y,), _ = call(run, np.array([1, 0, 1]))  # and the flag is down again
    assert (y == 1 - np.eye(4)[[2, 0, 2]]).all()


@pytest.mark.parametrize("by_numpy", [(), ("one_hot",)], ids=["device", "numpy"])
def test_a_step_runs_alone_on_arrays_of_the_host(by_numpy):
    driver = StandIn()
    x = mg.input("x", (3,), "int64")
    graph = Graph((x,), (ops.one_hot(x, 4),))
    kernels = Kernels(driver, by_numpy)
    (step,) = lower(graph, 1, [], kernels, lambda node, strides: None).steps
    views = (*step.inputs, *step.outputs)
    memory = {v.buffer: np.zeros(v.buffer.nbytes, np.uint8) for v in views}
    labels, result = (view.array(memory[view.buffer]) for view in views)
    functions = {name: name for name in driver.kernels}
    labels[...] = [0, 3, 1]
    run_alone(step, memory, functions, driver)
    assert (result == np.eye(4)[[0, 3, 1]]).all()
    labels[1] = 4
    with pytest.raises(mg.GraphError, match="one_hot"):
        run_alone(step, memory, functions, driver)


def test_memory_that_is_not_there_is_an_error_that_says_what_it_was_for():
    driver = StandIn()

    def full(nbytes):
        raise mg.DeviceError(f"out of memory: asked for {nbytes} bytes")

    driver.allocate = full
    x = mg.input("x", (1024, 1024))
    graph = Graph((x,), (ops.sum(ops.tanh(x)),))
    lowered = lower(graph, 1, [], Kernels(driver), lambda node, strides: None)
    expected = "asked for 4194304 bytes; the step has 4 MiB of intermediate results besides 4 MiB"
    with pytest.raises(mg.DeviceError, match=expected):
        CudaProgram(lowered, driver, {})


# ---------------------------------------------------------------- timing


@pytest.fixture
def bench(monkeypatch):
    device = StandIn()
    monkeypatch.setattr(
        workbench, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=nullcontext))
    )
    monkeypatch.setattr(workbench, "on_stream", nullcontext)
    return workbench.CudaWorkbench(device, None)


def test_a_run_is_timed_as_part_of_a_graph(bench):
    runs = []
    driver = bench.driver
    assert bench.seconds(lambda: runs.append(driver.capturing), 4, None) == 0.5 / 4
    assert runs == [None, *["captured"] * 4]
    assert ("launch_graph", driver.measuring) in driver.log
    assert ("forget", [0]) in driver.log


def test_a_run_that_cannot_be_captured_is_an_error_and_leaves_no_capture(bench):
    driver = bench.driver

    def run():
        if driver.capturing:
            raise mg.DeviceError("not while capturing")

    with pytest.raises(mg.DeviceError, match="not while capturing"):
        bench.seconds(run, 1, None)
    assert driver.capturing is None
