"""Making CUDA graphs of calls."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence

from minigraph.devices.cuda.driver import Driver
from minigraph.devices.cuda.step import Call
from minigraph.errors import DeviceError


def capture(parts: Sequence[Sequence[Call]], driver: Driver) -> list[int]:
    """Return what launches each part as one graph; raises where one of them cannot be captured."""
    graphs: list[int] = []
    with driver.capture_lock:
        # A destructor that frees memory of the device would spoil what is being captured.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            for calls in parts:
                graphs.append(_captured(calls, driver))
        except BaseException:
            driver.forget(graphs, [])
            raise
        finally:
            if collecting:
                gc.enable()
    return graphs


def _captured(calls: Sequence[Call], driver: Driver) -> int:
    stream = driver.captured
    driver.begin_capture(stream)
    try:
        for call in calls:
            call(stream)
    except BaseException:
        with contextlib.suppress(DeviceError):  # of the capture that is now invalid
            driver.close_graph(driver.end_capture(stream))
        raise
    graph = driver.end_capture(stream)
    try:
        return driver.instantiate(graph)
    finally:
        driver.close_graph(graph)
