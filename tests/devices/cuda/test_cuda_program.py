"""Running programs on a CUDA device: a stand-in for the driver writes down its calls."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.program.lower import lower
from minigraph.program.memory import plan

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import DeviceArray, StandIn
from driver_log import Kernels, X, bind, call, entries, natives

from minigraph.devices.cuda import calls, staging
from minigraph.devices.cuda.driver import ALIGNMENT
from minigraph.devices.cuda.program import CudaProgram
from minigraph.errors import DeviceLost


def example(**settings):
    """y = tanh(x) + w, and w becomes w * 2; return w too."""
    x = mg.input("x", (2, 3))
    w = mg.Parameter(np.ones((2, 3), np.float32), name="w")
    return bind([x], [ops.tanh(x) + w], [(w, w * 2)], **settings), w


def labels_example(labels, **settings):
    """1 - one-hot labels, and the labels, and w becomes w + 1; return w too."""
    x = mg.input("x", (3,), "int64")
    w = mg.Parameter(np.zeros(2, np.float32), name="w")
    classes = labels(x)
    results = [1 - ops.one_hot(classes, 4, "float32"), classes]
    return bind([x], results, [(w, w + 1)], **settings), w


# ---------------------------------------------------------------- calls


def views(x):
    return [ops.tanh(x).T, x[:, ::2]]


# A function of x, how it is bound, what later calls launch, and how often they wait.
FUNCTIONS = {
    "kernels in one graph": (lambda x: [ops.exp(ops.tanh(x))], {}, ["launch_graph"], 0),
    "kernels one by one": (lambda x: [ops.exp(ops.tanh(x))], {"bulk": False}, ["launch"] * 2, 0),
    "results that are views": (views, {}, ["launch_graph"], 0),
    "NumPy between two graphs": (
        lambda x: [ops.tanh(ops.exp(ops.sin(x)))],
        {"by_numpy": ("exp",)},
        ["launch_graph"] * 2,
        1,
    ),
    "a step with nothing to do": (
        lambda x: [ops.sum(ops.tanh(x[:0]), 0)],
        {"idle": ("tanh",)},
        ["launch_graph"],
        0,
    ),
}


@pytest.mark.parametrize("place", [np.array, DeviceArray], ids=["host", "device"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_compute_their_function_and_launch_few_graphs(name, place):
    function, settings, launched, syncs = FUNCTIONS[name]
    x = mg.input("x", (2, 3))
    results = function(x)
    run = bind([x], results, **settings)
    for i in range(4):
        actual, log = call(run, place(X * i))
        for y, expected in zip(actual, Graph((x,), tuple(results))(X * i), strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert natives(log) == launched
    assert (run.launches, run.syncs) == (len(launched), syncs)
    assert not entries(log, "synchronize") or syncs
    assert bool(entries(log, "upload")) == (place is np.array or syncs > 0)


def test_a_call_waits_for_nothing_but_the_batch_before_the_last_to_leave_pinned_memory():
    run, _ = example()
    call(run, X)
    call(run, X)
    assert call(run, X)[1] == [
        *("array 24", "record begun caller", "wait compute begun"),
        *("finish arrived", "wait copies landed", "upload copies", "record arrived copies"),
        *("wait compute arrived", f"copy {ALIGNMENT} compute", "record landed compute"),
        "launch_graph compute",
        "copy 24 compute",  # the result
        "copy 24 compute",  # the parameter, which was read after w * 2
        *("record done compute", "wait caller done"),
    ]


def test_the_first_batch_lands_after_what_its_memory_was_used_for_before():
    """The memory comes from the pool, for work on `compute`; another stream brings the batch."""
    driver = StandIn()
    with driver.current():
        memory = staging.Staging([], driver)
    assert memory and driver.log == ["allocate 0", "record landed compute"]


def test_two_pinned_memories_take_turns():
    run, _ = example()
    waits = [[entry for entry in call(run, X)[1] if "finish" in entry] for _ in range(4)]
    assert waits == [["finish arrived"], ["finish second arrived"]] * 2


def test_threads_bring_a_large_batch_in_pieces_that_travel_by_themselves(monkeypatch):
    monkeypatch.setattr(staging, "PIECE_BYTES", 1000)
    a, b, c = (mg.input(name, (n,)) for name, n in (("a", 400), ("b", 3), ("c", 1000)))
    run = bind([a, b, c], [a.sum() + b, c * 2])
    rng = np.random.default_rng(0)
    for place, uploads in ((np.array, 7), (DeviceArray, 5)):
        for _ in range(5):
            x, y, z = (rng.normal(size=n.shape).astype(np.float32) for n in (a, b, c))
            results, log = call(run, place(x), y, z)
            np.testing.assert_allclose(results[0], x.sum() + y, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(results[1], z * 2)
            assert log.count("upload copies") == uploads
            assert log.count("record arrived copies") <= 1


def test_a_parameter_lives_on_the_device_and_is_assigned_and_read_from_anywhere():
    run, w = example()
    uploads = [call(run, X)[1].count("upload compute") for _ in range(3)]
    w.assign(np.full((2, 3), 5, np.float32))
    (y,), log = call(run, X)
    np.testing.assert_allclose(y, np.tanh(X) + 5, rtol=1e-6)
    assert (*uploads, log.count("upload compute")) == (0, 0, 0, 1)
    assert (w.numpy() == 10).all()


def test_two_functions_share_a_parameter_and_change_it_where_it_is():
    x = mg.input("x", (3,))
    w = mg.Parameter(np.ones(3, np.float32), name="w")
    y = x * w
    first, second = (bind([x], [y], [(w, w + y)]) for _ in range(2))
    second.driver.held += first.driver.held
    for i in range(6):
        (result,), log = call((first, second)[i % 2], np.ones(3, np.float32))
        assert (result == 2.0**i).all()
        assert log.count("copy 12 compute") == 1  # the result


def test_results_show_the_values_that_parameters_had_when_the_call_began():
    w, v = (mg.Parameter(np.ones(3, np.float32), name=name) for name in "wv")
    y = w * 3
    run = bind([], [y, w], [(w, y), (v, ops.stack([w, w, w])[1, ::-1][0:3])])
    assert all(view.contiguous for _, view in run.program.updates)
    for i in range(4):
        (new, old), log = call(run)
        assert (new == 3.0 ** (i + 1)).all() and (old == 3.0**i).all()
        assert (w.numpy() == 3.0 ** (i + 1)).all() and (v.numpy() == 3.0**i).all()
    assert natives(log) == ["launch_graph"]


def test_a_profile_times_each_step_in_a_graph_once_they_have_run_and_does_what_a_call_does():
    run, w = example()
    for i in range(3):
        run.driver.log.clear()
        (y,), timings = run.profile([X])
        assert [t.step for t in timings] == run.program.steps
        assert {t.seconds for t in timings} == {0.5}
        np.testing.assert_allclose(y.array, np.tanh(X) + 2.0**i, rtol=1e-6)
        assert natives(run.driver.log) == (["launch_graph"] if i else ["launch"] * 3)
        assert ("destroy [0]" in run.driver.log) == (i == 1)
    assert (w.numpy() == 8).all()
    call(run, X)
    assert [*map(len, run.driver.graphs)] == [9, 9, 3]  # a profile's has two events for each step


# ---------------------------------------------------------------- capture


def test_a_capture_has_a_stream_of_its_own_and_garbage_is_left_alone_meanwhile():
    run, _ = example()
    call(run, X)
    assert entries(call(run, X)[1], "captured") == ["captured"] * 3
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
    assert "destroy [0]" in driver.log


# ---------------------------------------------------------------- what NumPy does, and refuses


def test_labels_of_the_host_are_refused_before_anything_runs():
    run, w = labels_example(lambda x: x)
    for _ in range(3):
        (y, _), _ = call(run, np.array([0, 3, 1]))
        assert (y == 1 - np.eye(4)[[0, 3, 1]]).all()
    with pytest.raises(mg.GraphError, match=r"one_hot: 4 is not in 0 \.\.\. 3 .*test_cuda_program"):
        call(run, np.array([0, 4, 1]))
    assert natives(run.driver.log) == []
    assert (w.numpy() == 3).all() and run.syncs == 0


@pytest.mark.parametrize("direct", [False, True], ids=["copied", "where they are"])
@pytest.mark.parametrize("labels", [lambda x: x, lambda x: x + x], ids=["given", "computed"])
def test_labels_on_the_device_are_refused_before_a_parameter_changes(labels, direct, monkeypatch):
    """The host waits once, behind the kernel that checks them and before the others."""
    if direct:
        monkeypatch.setattr(calls, "LAUNCH_SECONDS", 0)
    run, w = labels_example(labels)
    for i, place in enumerate((np.array, DeviceArray, DeviceArray, np.array, DeviceArray), 1):
        (y, values), log = call(run, place(np.array([0, 1, 0])))
        assert (values == labels(np.array([0, 1, 0]))).all() and (y == 1 - np.eye(4)[values]).all()
        with pytest.raises(mg.GraphError, match=r"one_hot: [48] is not in 0 \.\.\. 3"):
            call(run, place(np.array([0, 4, 1])))
        assert run.driver.log[-2:] == ["record done compute", "wait caller done"]
        assert (w.numpy() == i).all()
    launched = entries(log, "launch", "launch_graph", "synchronize")
    at = launched.index("synchronize")
    assert launched.count("synchronize") == run.syncs == 1 and 0 < at < len(launched) - 1
    assert len(launched) == run.launches + 1


def test_many_labels_of_the_host_are_checked_on_the_device(monkeypatch):
    monkeypatch.setattr("minigraph.devices.cuda.program.MAX_CHECKED_BY_HOST", 2)
    run, w = labels_example(lambda x: x)
    call(run, np.array([0, 3, 1]))
    with pytest.raises(mg.GraphError, match=r"one_hot: 4 is not in 0 \.\.\. 3 .*test_cuda_program"):
        call(run, np.array([0, 4, 1]))
    assert (w.numpy() == 1).all() and run.syncs == 1


def test_labels_that_several_steps_read_are_checked_by_the_first():
    x = mg.input("x", (3,), "int64")
    run = bind([x], [ops.one_hot(x, 4, dtype) for dtype in ("float32", "int32")], bulk=False)
    _, log = call(run, DeviceArray(np.array([0, 3, 1])))
    assert entries(log, "launch", "synchronize") == ["launch", "synchronize", "launch"]


def test_all_of_each_input_is_checked_also_if_a_step_reads_a_part_of_it_first():
    a, b = (mg.input(name, (3,), "int64") for name in "ab")
    run = bind([a, b], [ops.one_hot(x, 4) for x in (a[:2], a, b)])
    for places in ((DeviceArray, np.array), (DeviceArray, DeviceArray)):
        for labels in ([0, 3, 4], [0, 3, 1]), ([0, 3, 1], [0, 3, 4]):
            xs = [place(np.array(x)) for place, x in zip(places, labels, strict=True)]
            with pytest.raises(mg.GraphError, match="4 is not in"):
                call(run, *xs)


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
    labels[...] = [0, 3, 1]
    kernels.run_alone(step, memory)
    assert (result == np.eye(4)[[0, 3, 1]]).all()
    labels[1] = 4
    with pytest.raises(mg.GraphError, match="one_hot"):
        kernels.run_alone(step, memory)


def test_memory_that_is_not_there_is_an_error_that_says_what_it_was_for():
    driver = StandIn()

    def full(nbytes):
        raise mg.DeviceError(f"out of memory: asked for {nbytes} bytes")

    driver.allocate = full
    x = mg.input("x", (1024, 1024))
    graph = Graph((x,), (ops.sum(ops.tanh(x)),))
    lowered = plan(lower(graph, 1, [], Kernels(driver), lambda node, strides: None))
    expected = "asked for 4194304 bytes; the step has 4 MiB of intermediate results besides 4 MiB"
    with pytest.raises(mg.DeviceError, match=expected):
        CudaProgram(lowered, driver, {})


# ---------------------------------------------------------------- what the driver refuses


def in_a_capture(driver, action):
    """Do something while a stream is captured; return what the capture then says."""
    driver.begin_capture("captured")
    with pytest.raises(mg.DeviceError, match="CAPTURE_UNSUPPORTED"):
        action()
    with pytest.raises(mg.DeviceError, match="CAPTURE_INVALIDATED"):
        driver.end_capture("captured")


def test_the_stand_in_refuses_what_the_driver_refuses():
    driver = StandIn()
    with pytest.raises(mg.DeviceError, match="record: CUDA_ERROR_INVALID_CONTEXT"):
        driver.record("an event", "compute")
    with driver.current():
        driver.record("an event", "compute")
        in_a_capture(driver, lambda: driver.synchronize("compute"))
        in_a_capture(driver, lambda: driver.allocate(4))
        in_a_capture(driver, lambda: driver.is_complete("an event"))
        in_a_capture(driver, lambda: driver.clear(0, 4, 0))  # on the default stream
        with ThreadPoolExecutor(1) as other:
            driver.begin_capture("captured")
            assert other.submit(driver.allocate, 4).result().nbytes == 4
            driver.end_capture("captured")
        driver.lost = "CUDA_ERROR_ILLEGAL_ADDRESS"
        for call in (driver.event, lambda: driver.allocate(4)):
            with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS"):
                call()


def test_a_call_on_a_device_that_is_lost_says_so_each_time():
    run, _ = example()
    call(run, X)
    run.driver.lost = "CUDA_ERROR_ILLEGAL_ADDRESS"
    for _ in range(3):
        with pytest.raises(DeviceLost, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            run([X])
    del run
    gc.collect()  # nothing that is given back raises
