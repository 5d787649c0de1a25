"""Where candidates for a CUDA device are measured: in its memory, and by its own clock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import cupy

from minigraph.autotune.candidate import Run, Runner
from minigraph.devices.cuda.calls import capture
from minigraph.devices.cuda.driver import Driver, on_stream
from minigraph.errors import DeviceLost
from minigraph.graph import Array

# What cuDNN, NVRTC and the driver say where memory is missing.
OF_MEMORY = ("ALLOC_FAILED", "OUT_OF_MEMORY", "out of memory")
CHUNK = 1 << 28  # elements that are compared at once


class CudaWorkbench:
    """The workbench of a device.

    runner  returns what runs a kernel on arrays of the device

    A run is timed as it will be used, as part of a CUDA graph, so that what Python does in between
    does not count.  A candidate that cannot be captured is of no use in a step and fails here.
    """

    chunk = CHUNK

    def __init__(self, driver: Driver, runner: Callable[[Runner], Run]) -> None:
        self.driver = driver
        self.device = cupy.cuda.Device(driver.ordinal)
        self.runner = runner

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with self.driver.current(), self.device:
            yield

    def compile(self, kernels: Iterable[Runner]) -> None:
        pass  # making a kernel compiles it

    def empty(self, nbytes: int) -> Array:
        return cupy.empty(nbytes, cupy.uint8)

    def put(self, array: Array) -> Array:
        return cupy.asarray(array)

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        driver, stream = self.driver, self.driver.measuring

        def enqueue(stream: int) -> None:
            with on_stream(stream):
                run()

        with contextlib.ExitStack() as stack:
            driver.synchronize(driver.current_stream())  # which may still write the arrays
            enqueue(stream)  # kernels are loaded when they first run
            driver.synchronize(stream)
            graphs = capture([[enqueue] * calls], driver)
            stack.callback(driver.forget, graphs, [])
            events = [driver.event(timing=True) for _ in range(2)]
            stack.callback(driver.forget, [], events)
            begin, end = events
            driver.record(begin, stream)
            driver.launch_graph(graphs[0], stream)
            driver.record(end, stream)
            driver.finish(end)
            return driver.seconds(begin, end) / calls

    def examine(self, error: Exception, name: str) -> None:
        """Raise what is not the candidate's; libraries do not say what else has failed.

        cuDNN raises the same error for a plan that it cannot run and for a device that is lost.
        """
        if isinstance(error, MemoryError) or any(text in str(error) for text in OF_MEMORY):
            self.driver.free_unused()
            raise MemoryError(" ".join(str(error).split())) from None
        try:
            self.driver.synchronize(self.driver.measuring)
        except DeviceLost as lost:
            raise DeviceLost(f"{lost}; {name} ran last") from None

    def release(self) -> None:
        self.driver.free_unused()
