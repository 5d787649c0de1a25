"""Collectives on CUDA devices: stand-ins for the driver and for NCCL write down their calls."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from launched import start
from long_runs import long
from needs import needs_gpp
from new_process import wait

import minigraph as mg
from minigraph import ops
from minigraph.distributed import World
from minigraph.graph import BFLOAT16
from minigraph.ops.collective import AllReduce

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("cudnn")
from cuda_stand_in import StandIn, by_meaning
from driver_log import natives

from minigraph.devices.cuda import collective, communicator
from minigraph.devices.cuda import device as device_module

TESTS = Path(__file__).parents[2]
X = np.linspace(-1, 1, 6, dtype=np.float32)


def example(patch, level=1, by_numpy=(), **settings):
    """Return y = exp(sum of all tanh(x)) + sin(exp(x)) in a world of one, and its device."""
    device = StandIn(**settings)
    by_meaning(patch, device)
    meaning = device_module.cuda_kernel

    def kernel(node, strides, processors):
        return None if node.op.name in by_numpy else meaning(node, strides, processors)

    patch.setattr(device_module, "cuda_kernel", kernel)
    x = mg.input("x", (6,))
    total = AllReduce(World(), "sum", "w")(ops.tanh(x))
    options = {"graph_opt_level": level, "graph_opt.jit": 0, "autotune": "off"}
    y = ops.exp(total) + ops.sin(ops.exp(x))
    return mg.comp_graph("cuda", options).compile([x], y), device


def right(step):
    np.testing.assert_allclose(step(X).array, np.exp(np.tanh(X)) + np.sin(np.exp(X)), rtol=1e-6)


def captured(device):
    """Return the captured calls, without the names of the events."""
    calls = [entry.split()[1:] for entry in device.log if entry.startswith("captured")]
    return [f"{name} {more[-1 if name == 'record' else 0]}" for name, *more in calls]


def test_an_exchange_has_a_stream_of_its_own_beside_the_kernels_of_one_graph(monkeypatch):
    step, device = example(monkeypatch)
    for _ in range(3):
        right(step)
    assert captured(device) == [
        *("launch tanh", "record captured", "wait nccl", "allReduce 6", "record nccl"),
        *("launch exp", "launch sin", "wait captured", "launch exp", "launch add"),
    ]
    assert len(device.graphs) == 1 and step.report().launches == 1
    device.log.clear()
    right(step)
    assert natives(device.log) == ["launch_graph"]


def test_as_written_a_collective_is_waited_for_at_once(monkeypatch):
    step, device = example(monkeypatch, level=0)
    right(step)
    right(step)
    expected = "record captured, wait nccl, allReduce 6, record nccl, wait captured"
    assert expected in ", ".join(captured(device))


def test_an_exchange_comes_back_to_the_graph_that_began_it_before_numpy_does_a_step(monkeypatch):
    step, device = example(monkeypatch, by_numpy=("sin",))
    for _ in range(3):
        right(step)
    assert len(device.graphs) == step.report().launches == 2
    _, _, after = ", ".join(captured(device)).partition("allReduce 6, ")
    assert after.startswith("record nccl, launch exp, wait captured")
    assert after.count("wait captured") == 1


def test_a_step_that_cannot_be_captured_is_an_error_since_other_processes_may_capture_theirs(
    monkeypatch,
):
    step, _ = example(monkeypatch, fail_in_capture=True)
    right(step)
    with pytest.raises(mg.DeviceError, match="the step cannot become a CUDA graph: not while"):
        step(X)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_profile_takes_the_times_of_exchanges(monkeypatch, calls):
    step, device = example(monkeypatch)
    assert [t.times for t in step.report().traffic] == [0] and step.report().hidden is None
    seconds = {True: 4e-3, False: 1e-3}  # of what ends on the stream of NCCL, and of a step
    recorded = set()

    def note(event, stream):
        if stream == "nccl":
            recorded.add(event)

    for name in ("_record", "record_in_graph"):
        before = getattr(device, name)
        monkeypatch.setattr(
            device, name, lambda e, s, before=before: (note(e, s), before(e, s))[-1]
        )
    device.seconds = lambda begin, end: seconds[end in recorded]
    step.profile(X, calls=calls)
    (traffic,) = step.report().traffic
    assert traffic.what == "all_reduce of w (24 bytes)" and traffic.times == calls
    assert traffic.pending == pytest.approx(4e-3 * calls)
    assert traffic.waited == pytest.approx(1e-3 * calls)
    assert "1 collective; computation overlaps 75%" in str(step.report())
    right(step)


@needs_gpp
def test_what_nccl_cannot_combine_is_gathered_and_combined_by_kernels(build_cuda):
    cases = []
    for how, dtype in (("max", BFLOAT16), ("sum", "uint16")):
        node = AllReduce(World(), how)(mg.input("x", (3, 5), dtype))
        three = SimpleNamespace(world=SimpleNamespace(size=3), combines=how)
        cases.append((node, *collective._combining_launches(node, three, 132)))
    sources = [launch.source for _, launches, _ in cases for launch in launches]
    kernels = build_cuda(sources)
    for node, launches, scratch in cases:
        parts = np.random.default_rng(0).integers(0, 1 << 15, (3, 3, 5)).astype(node.dtype)
        if node.dtype == BFLOAT16:
            parts[1, 2, 3] = np.nan
        combine = {"max": np.maximum, "sum": np.add}[node.op.combines]
        with np.errstate(invalid="ignore"):
            expected = combine(combine(parts[0], parts[1]), parts[2])
        memory, y = np.zeros(scratch + 64, np.uint8), np.zeros((3, 5), node.dtype)
        at = -memory.ctypes.data % 64
        memory[at : at + parts.nbytes] = np.frombuffer(parts.tobytes(), np.uint8)
        for launch in launches:
            words = launch.words([0], [y.ctypes.data], memory.ctypes.data + at)
            sizes = [(ctypes.c_uint * 3)(*size) for size in (launch.grid, launch.block)]
            argument = np.array(words, np.int64)
            assert not kernels[launch.source.name](ctypes.c_void_p(argument.ctypes.data), *sizes)
        np.testing.assert_array_equal(y.astype("float64"), expected.astype("float64"))


def test_missing_nccl_is_an_error_that_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", SimpleNamespace(available=False))
    with pytest.raises(mg.DeviceError, match=r"pip install .*\[cuda\]' installs it, as nvi"):
        communicator._library()


def test_processes_that_have_the_same_device_are_named(monkeypatch):
    monkeypatch.setattr(communicator, "_library", lambda: None)
    world = SimpleNamespace(mpi=None, gather=lambda uuid, timeout: ["a", "b", uuid])
    with pytest.raises(mg.DeviceError, match="processes 0 and 2 have the same device, a stand-in"):
        communicator.Communicator(world, SimpleNamespace(uuid="a", name="a stand-in"), 1.0)
    communicator._check_distinct_devices(world, SimpleNamespace(uuid="c", name="a stand-in"), 1.0)


def test_an_mpi_for_one_thread_will_not_do():
    level = {"Query_thread": lambda: 2, "THREAD_MULTIPLE": 3, "get_vendor": lambda: ("MPICH",)}
    with pytest.raises(
        mg.DeviceError, match="several threads may call, but MPICH was started for one"
    ):
        communicator._check_threads(SimpleNamespace(mpi=SimpleNamespace(**level)))


@pytest.mark.parametrize(
    ("variables", "devices", "ordinal"),
    [
        ({"MPI_LOCALRANKID": "2"}, 4, 0),  # which no launcher has set
        ({"PMI_RANK": "6", "MPI_LOCALRANKID": "2"}, 4, 2),
        ({"PMI_RANK": "6", "MPI_LOCALRANKID": "2", "SLURM_LOCALID": "0"}, 4, 2),
        ({"PMIX_RANK": "6", "SLURM_LOCALID": "2"}, 1, 0),  # it sees its own alone
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 4, 3),
    ],
)
def test_each_process_of_a_machine_takes_a_device_of_its_own(
    monkeypatch, variables, devices, ordinal
):
    monkeypatch.setattr(device_module, "device_count", lambda: devices)
    for name in ("PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert device_module.ordinal(None) == ordinal
    assert device_module.ordinal(1) == 1


def test_a_start_that_fails_is_an_error_of_one_line(monkeypatch):
    class Refusing:
        NcclError = RuntimeError

        def get_unique_id(self):
            return b"the id"

        def NcclCommunicator(self, *_):
            raise RuntimeError("unhandled cuda error")

    monkeypatch.setattr(communicator, "_library", Refusing)
    with pytest.raises(mg.DeviceError, match="NCCL: unhandled cuda error"):
        communicator.communicator_of(World(), StandIn(), 5.0)


# ---------------------------------------------------------------- in two processes


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("ends", 1, "process 0 waits for all_reduce of bias (12 bytes); process 1 has ended"),
        long("hangs", 1, "(option distributed.timeout): process 0 waits for all_reduce"),
        long("is killed", 9, "EXIT CODE: 9"),
    ],
)
def test_processes_compute_as_on_the_cpu_and_one_that_fails_ends_those_that_wait_for_it(
    fault, status, line
):
    printed = "".join(wait(start(2, TESTS / "launched_cuda.py", fault), status, timeout=60))
    assert line in printed, printed
