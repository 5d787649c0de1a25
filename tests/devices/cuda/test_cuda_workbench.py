"""Timing candidates on a CUDA device: a stand-in for the driver writes down its calls."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import minigraph as mg

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import StandIn

from minigraph.devices.cuda import candidates
from minigraph.errors import DeviceLost


@pytest.fixture
def bench(monkeypatch):
    device = StandIn()
    monkeypatch.setattr(
        candidates,
        "cupy",
        SimpleNamespace(cuda=SimpleNamespace(Device=lambda ordinal: nullcontext())),
    )
    monkeypatch.setattr(candidates, "on_stream", nullcontext)
    workbench = candidates.CudaWorkbench(device, None)
    with workbench.current():
        yield workbench


def test_a_run_is_timed_as_part_of_a_graph(bench):
    runs = []
    driver = bench.driver
    assert bench.seconds(lambda: runs.append(driver.capturing), 4, None) == 0.5 / 4
    assert runs == [None, *["captured"] * 4]
    assert {"launch_graph measuring", "destroy [0]"} <= {*driver.log}


def test_an_error_is_the_candidates_unless_memory_or_the_device_is_to_blame(bench):
    driver = bench.driver
    bench.reraise_device_error(RuntimeError("CUDNN_STATUS_NOT_SUPPORTED"), "engine 1")
    assert "synchronize measuring" in driver.log
    for error in (MemoryError("4 GiB"), RuntimeError("CUDNN_STATUS_ALLOC_FAILED\nin a plan")):
        with pytest.raises(MemoryError, match=r"^(4 GiB|CUDNN_STATUS_ALLOC_FAILED in a plan)$"):
            bench.reraise_device_error(error, "engine 1")
        assert driver.log[-1] == "free_unused"

    def lost(stream):
        raise DeviceLost("CUDA_ERROR_ILLEGAL_ADDRESS")

    driver.synchronize = lost
    with pytest.raises(DeviceLost, match=r"^CUDA_ERROR_ILLEGAL_ADDRESS; engine 1 ran last$"):
        bench.reraise_device_error(RuntimeError("CUDNN_STATUS_EXECUTION_FAILED"), "engine 1")


def test_a_run_that_cannot_be_captured_is_an_error_and_leaves_no_capture(bench):
    driver = bench.driver

    def run():
        if driver.capturing:
            raise mg.DeviceError("not while capturing")

    with pytest.raises(mg.DeviceError, match="not while capturing"):
        bench.seconds(run, 1, None)
    assert driver.capturing is None
