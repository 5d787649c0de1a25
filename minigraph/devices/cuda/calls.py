"""Calls that enqueue the steps of a program on a CUDA device, alone or captured in CUDA graphs.

A step without a kernel of the device runs in NumPy, on copies of the device's memory.

A CUDA graph needs fixed addresses, so inputs are copied to them and outputs from them.  For a
function of a few launches on large arrays those copies take longer than a graph saves.  It is
*direct*: its inputs and outputs move, that is, they are the arrays of each call.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minigraph.devices.cuda.driver import Arguments, Driver
from minigraph.devices.cuda.kernel import CudaKernel, DeviceKernel, Launch, LibraryKernel
from minigraph.devices.reference import run_step
from minigraph.errors import DeviceError
from minigraph.program import Buffer, Kernel, Program, Step

# Bytes that a large GPU copies in a second: its memory moves some 4 TB/s, and a byte that is copied
# is read and written.
COPY_BANDWIDTH = 2e12
# Delay of a kernel that is launched from Python compared with one of a graph, about the time of the
# launch.
LAUNCH_SECONDS = 3e-6
# Calls that are cached, by their addresses.  The pool gives a loop the same addresses each time,
# and the calls of a step take some 15 us to make.
CACHED_CALLS = 8

Call = Callable[[int], None]  # enqueues a part of a step on a stream
Places = Mapping[Buffer, int]  # addresses in device memory


def launches_of(kernel: Kernel) -> int | None:
    """Return how many calls enqueue a step with this kernel; None if NumPy runs it."""
    if not isinstance(kernel, DeviceKernel):
        return None
    return len(kernel.launches) + isinstance(kernel, LibraryKernel)


def calls_of(
    step: Step, places: Places, flag: int, functions: Mapping[str, int], driver: Driver
) -> list[Call]:
    """Return the calls that enqueue a step, in order, or run it in NumPy.

    flag       address of the int that the kernel sets if it finds an integer out of range
    functions  the loaded kernels, by the names of their sources
    """
    kernel = step.kernel
    if not isinstance(kernel, DeviceKernel):
        return [lambda stream: _interpret(step, places, driver, stream)]
    inputs, outputs = (
        [places[v.buffer] + v.offset for v in views] for views in (step.inputs, step.outputs)
    )
    if isinstance(kernel, CudaKernel) and kernel.range is not None:
        outputs.append(flag)
    return kernel_calls(kernel, inputs, outputs, places[step.scratch], functions, driver)


def kernel_calls(
    kernel: DeviceKernel,
    inputs: Sequence[int],
    outputs: Sequence[int],
    scratch: int,
    functions: Mapping[str, int],
    driver: Driver,
) -> list[Call]:
    """Return the calls that enqueue a kernel with operands at these addresses, in order."""

    def call(launch: Launch) -> Call:
        function = functions[launch.source.name]
        arguments = Arguments(launch.words(inputs, outputs, scratch))
        return lambda stream: driver.launch(function, launch.grid, launch.block, stream, arguments)

    calls = [call(launch) for launch in kernel.launches]
    if isinstance(kernel, LibraryKernel):
        enqueue = kernel.enqueue
        calls.insert(
            kernel.library_position, lambda stream: enqueue(inputs, outputs, scratch, stream)
        )
    return calls


def _interpret(step: Step, places: Places, driver: Driver, stream: int) -> None:
    """Let NumPy do a step on the device's memory, and wait until that is done."""
    buffers = [*(view.buffer for view in (*step.inputs, *step.outputs)), step.scratch]
    memory = {buffer: np.empty(buffer.nbytes, np.uint8) for buffer in buffers}
    for view in step.inputs:
        driver.download(memory[view.buffer], places[view.buffer], stream)
    driver.synchronize(stream)
    run_step(step, step.kernel, memory)
    for view in step.outputs:
        driver.upload(places[view.buffer], memory[view.buffer], stream)
    driver.synchronize(stream)


def capture(parts: Sequence[Sequence[Call]], driver: Driver) -> list[int]:
    """Return a function for each part that launches it as a graph; raise if a capture fails."""
    graphs: list[int] = []
    with driver.capture_lock:
        # A destructor that frees memory of the device would invalidate the capture.  Garbage is not
        # collected before, as that takes longer than most runs that tuning captures.
        collecting = gc.isenabled()
        gc.disable()
        try:
            for calls in parts:
                graphs.append(_captured(calls, driver))
        except BaseException:
            driver.destroy(graphs, [])
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
            driver.destroy([driver.end_capture(stream)], [])
        raise
    return driver.end_capture(stream)


# ---------------------------------------------------------------- the calls of a program


def rebound_buffers(program: Program) -> list[Buffer]:
    """Return the inputs and outputs that move; none if copying them costs less than launching.

    A buffer that is returned once is returned whole; more than one array is copied from it.
    """
    shown = Counter(view.buffer for view in program.outputs)
    outputs = [buffer for buffer in program.returned if shown[buffer] == 1]
    found = [*program.inputs, *outputs]
    copying = sum(buffer.nbytes for buffer in found) / COPY_BANDWIDTH
    launching = sum(launches_of(step.kernel) or 0 for step in program.steps) * LAUNCH_SECONDS
    return found if copying > launching else []


class BoundCalls(NamedTuple):
    """The addresses of a program's buffers, and the calls of its steps there."""

    places: Places
    calls: Mapping[Step, list[Call]]


def bind(
    program: Program,
    fixed: Places,
    moving: Sequence[Buffer],
    flags: Mapping[Step, int],
    functions: Mapping[str, int],
    driver: Driver,
) -> Callable[[tuple[int, ...]], BoundCalls]:
    """Return a function that binds a program to the addresses of its external buffers.

    fixed  addresses of the other buffers
    flags  addresses of the flags of the steps that set one
    """

    def calls(steps: Sequence[Step], places: Places) -> dict[Step, list[Call]]:
        return {s: calls_of(s, places, flags.get(s, 0), functions, driver) for s in steps}

    moves = {*moving}
    fixed_steps: list[Step] = []
    moving_steps: list[Step] = []
    for step in program.steps:
        touches = any(view.buffer in moves for view in (*step.inputs, *step.outputs))
        (moving_steps if touches else fixed_steps).append(step)
    fixed_calls = calls(fixed_steps, fixed)

    @functools.lru_cache(CACHED_CALLS)
    def at(addresses: tuple[int, ...]) -> BoundCalls:
        places = {**fixed, **dict(zip(moving, addresses, strict=True))}
        return BoundCalls(places, {**fixed_calls, **calls(moving_steps, places)})

    return at
