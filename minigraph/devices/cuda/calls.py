"""Calls that enqueue the steps of a program on a CUDA device, alone or captured in CUDA graphs.

A step without a kernel of the device runs in NumPy, on copies of the device's memory.

A CUDA graph needs fixed addresses, so inputs and outputs are copied.  If a function has few
launches and large arrays, the copies take longer than a graph saves.  Then the function is
*direct*: its kernels read and write the arrays of each call, whose addresses change.
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

# Bytes per second that a large GPU copies: its memory moves about 4 TB/s, and each byte is read and
# written.
COPY_BANDWIDTH = 2e12
LAUNCH_SECONDS = 3e-6  # by which a launch from Python is slower than one in a graph
# Cached calls, by their addresses.  In a loop the pool returns the same addresses each time, and
# making the calls of a step takes about 15 us.
CACHED_CALLS = 8

Call = Callable[[int], None]  # enqueues a part of a step on a stream
AddressMap = Mapping[Buffer, int]  # addresses in device memory


def launches_of(kernel: Kernel) -> int | None:
    """Return how many calls enqueue a step with this kernel; None if NumPy runs it."""
    if not isinstance(kernel, DeviceKernel):
        return None
    return len(kernel.launches) + isinstance(kernel, LibraryKernel)


def calls_of(
    step: Step, addresses: AddressMap, flag: int, functions: Mapping[str, int], driver: Driver
) -> list[Call]:
    """Return the calls that enqueue a step, in order, or run it in NumPy.

    flag       address of the int that the kernel sets if an integer is out of range
    functions  the loaded kernels, by the names of their sources
    """
    kernel = step.kernel
    if not isinstance(kernel, DeviceKernel):
        return [lambda stream: _interpret(step, addresses, driver, stream)]
    operands = step.inputs, step.outputs
    inputs, outputs = ([addresses[v.buffer] + v.offset for v in views] for views in operands)
    if isinstance(kernel, CudaKernel) and kernel.range is not None:
        outputs.append(flag)
    return kernel_calls(kernel, inputs, outputs, addresses[step.scratch], functions, driver)


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
        library_call = functools.partial(kernel.enqueue, inputs, outputs, scratch)
        calls.insert(kernel.library_position, library_call)
    return calls


def _interpret(step: Step, addresses: AddressMap, driver: Driver, stream: int) -> None:
    """Run a step in NumPy on a copy of the device's memory, and wait for the copies."""
    buffers = [*(view.buffer for view in (*step.inputs, *step.outputs)), step.scratch]
    memory = {buffer: np.empty(buffer.nbytes, np.uint8) for buffer in buffers}
    for view in step.inputs:
        driver.download(memory[view.buffer], addresses[view.buffer], stream)
    driver.synchronize(stream)
    run_step(step, step.kernel, memory)
    for view in step.outputs:
        driver.upload(addresses[view.buffer], memory[view.buffer], stream)
    driver.synchronize(stream)


def capture(parts: Sequence[Sequence[Call]], driver: Driver) -> list[int]:
    """Return a function for each part that launches it as a graph; raise if a capture fails."""
    graphs: list[int] = []
    with driver.capture_lock:
        # A destructor that frees memory of the device would invalidate the capture.  Collecting
        # garbage before it would take longer than most runs that tuning captures.
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
    """Return the inputs and outputs whose addresses change; none if a graph with copies is faster.

    A buffer that several results share keeps its address: each result is copied from it.
    """
    output_counts = Counter(view.buffer for view in program.outputs)
    outputs = [buffer for buffer in program.returned if output_counts[buffer] == 1]
    buffers = [*program.inputs, *outputs]
    copy_seconds = sum(buffer.nbytes for buffer in buffers) / COPY_BANDWIDTH
    launch_seconds = sum(launches_of(step.kernel) or 0 for step in program.steps) * LAUNCH_SECONDS
    return buffers if copy_seconds > launch_seconds else []


class BoundCalls(NamedTuple):
    """The addresses of a program's buffers, and the calls of its steps at these addresses."""

    addresses: AddressMap
    calls: Mapping[Step, list[Call]]


def bind(
    program: Program,
    fixed: AddressMap,
    moving: Sequence[Buffer],
    flags: Mapping[Step, int],
    functions: Mapping[str, int],
    driver: Driver,
) -> Callable[[tuple[int, ...]], BoundCalls]:
    """Return a function that binds a program to the addresses of the `moving` buffers.

    fixed  addresses of the other buffers
    flags  for each step that checks integers, the address of its flag
    """

    def calls(steps: Sequence[Step], addresses: AddressMap) -> dict[Step, list[Call]]:
        return {s: calls_of(s, addresses, flags.get(s, 0), functions, driver) for s in steps}

    moving_set = {*moving}
    fixed_steps: list[Step] = []
    moving_steps: list[Step] = []
    for step in program.steps:
        is_moving = any(view.buffer in moving_set for view in (*step.inputs, *step.outputs))
        (moving_steps if is_moving else fixed_steps).append(step)
    fixed_calls = calls(fixed_steps, fixed)

    @functools.lru_cache(CACHED_CALLS)
    def bind_external(external: tuple[int, ...]) -> BoundCalls:
        addresses = {**fixed, **dict(zip(moving, external, strict=True))}
        return BoundCalls(addresses, {**fixed_calls, **calls(moving_steps, addresses)})

    return bind_external
