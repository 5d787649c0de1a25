"""Where candidates for a CUDA device are measured: in its memory, and by its own clock."""

from __future__ import annotations

from collections.abc import Callable

import cupy

from minigraph.autotune.candidate import Run, Runner
from minigraph.devices.cuda.memory import on_stream
from minigraph.graph import Array

CHUNK = 1 << 28  # elements that are compared at once


class CudaWorkbench:
    """The workbench of a device, with the address of a stream that nobody else runs on.

    runner  returns what runs a kernel on arrays of the device

    A run is timed as it will be used, as part of a CUDA graph, so that what Python does in between
    does not count.  A candidate that cannot be captured is of no use in a step and fails here.
    """

    chunk = CHUNK

    def __init__(self, ordinal: int, stream: int, runner: Callable[[Runner], Run]) -> None:
        self.device = cupy.cuda.Device(ordinal)
        self.stream = on_stream(stream)
        self.runner = runner

    def empty(self, nbytes: int) -> Array:
        with self.device:
            return cupy.empty(nbytes, cupy.uint8)

    def put(self, array: Array) -> Array:
        with self.device:
            return cupy.asarray(array)

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        stream = self.stream
        cupy.cuda.get_current_stream().synchronize()  # arrays may have been written on another
        with self.device, stream:
            run()  # kernels are loaded when they first run
            stream.synchronize()
            stream.begin_capture()
            try:
                for _ in range(calls):
                    run()
            finally:
                graph = stream.end_capture()
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            graph.launch(stream)
            stop.record(stream)
            stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) / calls / 1000
