"""The CUDA driver without a GPU: a stand-in for its Python bindings answers."""

import contextlib
import ctypes
import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda.pathfinder import DynamicLibNotFoundError
from cupy.cuda.memory import OutOfMemoryError

from minigraph.devices.cuda import driver as driver_module
from minigraph.devices.cuda.driver import Arguments, Driver, OutOfMemory
from minigraph.errors import DeviceLost


class Bindings:
    """A stand-in for `cuda.bindings.driver`: every call succeeds, but for what `answers` says."""

    def __init__(self, **answers):
        self.answers = {
            "cuDeviceGetCount": (1,),
            "cuDeviceGetName": (b"NVIDIA H200\0\0",),
            "cuDeviceGetUuid": (SimpleNamespace(bytes=bytes(range(16))),),
            "cuDriverGetVersion": (13020,),
            "cuDeviceTotalMem": (1 << 30,),
            "cuMemGetInfo": (3 << 20, 1 << 30),
            "cuGetErrorString": (b"invalid argument",),
            "cuStreamCreate": (7,),
            **answers,
        }
        self.calls = []

    @property
    def names(self):
        return [name for name, *_ in self.calls]

    def __getattr__(self, name):
        if not name.startswith("cu"):
            return getattr(REAL, name)

        def function(*args):
            self.calls.append((name, *args))
            answer = self.answers.get(name, (9,))
            if isinstance(answer, Exception):
                raise answer
            if callable(answer):
                answer = answer(*args)
            return answer if isinstance(answer[0], REAL.CUresult) else (OK, *answer)

        function.__name__ = name
        return function


REAL = driver_module.cuda
OK = REAL.CUresult.CUDA_SUCCESS
NOTHING = {"cuCtxPopCurrent": (OK,), "cuCtxPushCurrent": (OK,), "cuInit": (OK,)}


@pytest.fixture
def bindings(monkeypatch):
    """Return a function that puts stand-ins with these answers in place."""

    def replace(**answers):
        stub = Bindings(**{**NOTHING, **answers})
        monkeypatch.setattr(driver_module, "cuda", stub)
        return stub

    return replace


def test_a_device_is_described_when_it_is_opened(bindings):
    bindings()
    driver = Driver()
    assert (driver.name, driver.capability, driver.arch) == ("NVIDIA H200", (9, 9), "sm_99")
    assert (driver.version, driver.total) == ((13, 2), 1 << 30)


def test_a_thread_has_its_own_device_back_after_a_call(bindings):
    stub = bindings()
    opened = Driver()
    stub.calls.clear()
    with pytest.raises(ZeroDivisionError), opened.current():
        raise ZeroDivisionError
    assert stub.names == ["cuCtxPushCurrent", "cuCtxPopCurrent"]


def test_a_kernel_gets_its_words_as_one_argument(bindings):
    launches = []

    def launch(*args):
        words = ctypes.c_uint64.from_address(args[9]).value
        launches.append((args[:9], bytes((ctypes.c_char * 24).from_address(words))))
        return (OK,)

    bindings(cuLaunchKernel=launch)
    words = [1 << 63, -1, 5]
    Driver().launch(11, (2, 3, 4), (32, 8, 1), 7, Arguments(words))
    expected = b"".join((w % (1 << 64)).to_bytes(8, "little") for w in words)
    assert launches == [((11, 2, 3, 4, 32, 8, 1, 0, 7), expected)]


def test_pinned_memory_is_given_back_with_the_last_array_that_shows_it(bindings):
    memory = np.arange(100, dtype=np.uint8)
    stub = bindings(cuMemHostAlloc=(memory.ctypes.data,))
    part = Driver().pinned_memory(100)[10:20]
    assert part.tolist() == [*range(10, 20)]
    assert "cuMemFreeHost" not in stub.names
    del part
    gc.collect()
    assert stub.names[-3:] == ["cuCtxPushCurrent", "cuMemFreeHost", "cuCtxPopCurrent"]
    assert stub.calls[-2][1] == memory.ctypes.data


def failing(name):
    return (getattr(REAL.CUresult, name),)


NONE = r"device cuda:2 does not exist; number of devices: 1"
OLD = r"NVIDIA H200 has compute capability 7\.7; at least 8\.0 is"
FULL = r"out of memory on cuda:0 \(NVIDIA H200\): 3\.0 MiB of 1,024\.0 MiB are free"


@pytest.mark.parametrize(
    ("answers", "ordinal", "message"),
    [
        ({"cuDeviceGetAttribute": (7,)}, 0, OLD),
        ({}, 2, NONE),
        ({"cuDeviceGetCount": failing("CUDA_ERROR_NO_DEVICE")}, 0, "cuDeviceGetCount: CUDA_ERROR"),
        ({"cuDevicePrimaryCtxRetain": failing("CUDA_ERROR_OUT_OF_MEMORY")}, 0, FULL),
        ({"cuInit": DynamicLibNotFoundError("libcuda")}, 0, "needs NVIDIA's driver"),  # 13.4
        ({"cuInit": RuntimeError("Failed to dlopen")}, 0, "needs NVIDIA's driver"),  # 13.0
    ],
)
def test_a_device_that_will_not_do_is_an_error_of_one_line(bindings, answers, ordinal, message):
    bindings(**answers)
    with pytest.raises(mg.DeviceError, match=message) as raised:
        Driver(ordinal)
    assert "\n" not in str(raised.value)


def test_an_error_has_the_drivers_name_and_words_for_it_and_says_if_it_lasts(bindings):
    stub = bindings(cuStreamSynchronize=failing("CUDA_ERROR_INVALID_VALUE"))
    opened = Driver()
    with pytest.raises(mg.DeviceError, match=r"^cuStreamSynchronize: CUDA_ERROR_INVALID_VALUE \(i"):
        opened.synchronize(7)
    stub.answers["cuStreamSynchronize"] = failing("CUDA_ERROR_ILLEGAL_ADDRESS")
    expected = r"^cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS .* only another process can use"
    with pytest.raises(DeviceLost, match=expected):
        opened.synchronize(7)
    assert {
        name for name in driver_module.STICKY_ERRORS if not hasattr(REAL.CUresult, name)
    } == set()


def test_an_event_has_happened_or_not_and_fails_as_what_it_stands_for(bindings):
    stub = bindings(cuEventQuery=failing("CUDA_ERROR_NOT_READY"), cuEventSynchronize=(OK,))
    opened = Driver()
    assert not opened.is_complete(3)
    stub.answers["cuEventQuery"] = (OK,)
    assert opened.is_complete(3)
    stub.answers |= dict.fromkeys(
        ("cuEventQuery", "cuEventSynchronize"), failing("CUDA_ERROR_ILLEGAL_ADDRESS")
    )
    with pytest.raises(mg.DeviceError, match="cuEventSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"):
        opened.is_complete(3)


def test_an_urgent_stream_has_the_greatest_priority(bindings):
    stub = bindings(cuCtxGetStreamPriorityRange=(0, -5), cuStreamCreateWithPriority=(8,))
    assert Driver().high_priority_stream() == 8
    assert stub.calls[-1][0] == "cuStreamCreateWithPriority" and stub.calls[-1][2] == -5


class Pool:
    """A stand-in for CuPy's pool: `streams` is where it allocates, `freed` what it gave up."""

    def __init__(self):
        self.streams, self.freed, self.full = [], [], False

    def empty(self, shape, dtype):
        if self.full:
            raise OutOfMemoryError(*shape, 0)
        return SimpleNamespace(data=SimpleNamespace(ptr=100 * self.streams[-1]))

    @contextlib.contextmanager
    def on_stream(self, address):
        self.streams.append(address)
        yield
        self.streams.pop()

    def free_all_blocks(self):
        self.freed.append("blocks")


@pytest.fixture
def pool(monkeypatch):
    stub = Pool()
    memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    device = SimpleNamespace(Device=lambda ordinal: contextlib.nullcontext(), memory=memory)
    cupy = SimpleNamespace(cuda=device, empty=stub.empty, get_default_memory_pool=lambda: stub)
    monkeypatch.setattr(driver_module, "cupy", cupy)
    monkeypatch.setattr(driver_module, "on_stream", stub.on_stream)
    return stub


def test_memory_is_for_work_on_the_compute_stream_and_says_what_is_missing(bindings, pool):
    """CuPy's pool gives it again to the stream it was taken on, which alone knows its last use."""
    streams = iter(range(7, 17))
    bindings(cuStreamCreate=lambda *args: (next(streams),))
    opened = Driver()
    assert len({opened.compute, opened.copies, opened.measuring}) == 3
    assert opened.allocate(4).data.ptr == 100 * opened.compute
    pool.full = True
    with pytest.raises(mg.DeviceError, match=r"asked for 4\.0 MiB, 3\.0 MiB of 1,024\.0 MiB are"):
        opened.allocate(4 << 20)


@pytest.mark.parametrize("package", ["cupy", "cuda.bindings", "cudnn"])
def test_a_missing_package_is_an_error_that_names_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("device", "driver"):
        monkeypatch.delitem(sys.modules, f"minigraph.devices.cuda.{module}", raising=False)
    with pytest.raises(mg.DeviceError, match=r"pip install .*\[cuda\]'"):
        mg.comp_graph("cuda")


@pytest.mark.parametrize("name", ["cuMemHostAlloc", "cuModuleLoadData", "cuGraphInstantiate"])
def test_what_is_out_of_memory_is_tried_again_without_what_the_pool_does_not_use(
    bindings, pool, name
):
    memory = np.arange(8, dtype=np.uint8)
    answers = iter([failing("CUDA_ERROR_OUT_OF_MEMORY"), (OK, memory.ctypes.data)])
    bindings(**{name: lambda *args: next(answers)})
    opened = Driver()
    calls = {
        "cuMemHostAlloc": lambda: opened.pinned_memory(8),
        "cuModuleLoadData": lambda: opened.load(b"cubin", []),
        "cuGraphInstantiate": lambda: opened.end_capture(1),
    }
    calls[name]()
    assert pool.freed == ["blocks"]


def test_nothing_is_freed_while_this_thread_captures(bindings, pool):
    stub = bindings(cuStreamBeginCapture=(OK,), cuGraphLaunch=failing("CUDA_ERROR_OUT_OF_MEMORY"))
    opened = Driver()
    opened.begin_capture(7)
    with pytest.raises(OutOfMemory):
        opened.launch_graph(1, 7)
    assert pool.freed == []
    opened.end_capture(7)
    with pytest.raises(OutOfMemory):
        opened.launch_graph(1, 7)
    assert pool.freed == ["blocks"] and stub.names.count("cuGraphLaunch") == 4


def test_events_and_graphs_are_given_back_in_whatever_thread_and_without_an_error(bindings):
    stub = bindings(cuEventDestroy=failing("CUDA_ERROR_INVALID_VALUE"))
    opened = Driver()
    stub.calls.clear()
    opened.destroy([4], [5, 6])
    assert stub.names == [
        *("cuCtxPushCurrent", "cuGraphExecDestroy", "cuCtxPopCurrent"),
        *("cuCtxPushCurrent", "cuEventDestroy", "cuEventDestroy", "cuCtxPopCurrent"),
    ]
    stub.answers["cuCtxPushCurrent"] = failing("CUDA_ERROR_CONTEXT_IS_DESTROYED")
    stub.calls.clear()
    opened.destroy([4], [])
    assert stub.names == ["cuCtxPushCurrent"] * 2
