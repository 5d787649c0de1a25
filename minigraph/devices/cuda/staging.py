"""Arrays of the host in device memory: parameters, inputs at fixed addresses, and batches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from minigraph import options as settings
from minigraph.devices.cuda.driver import Driver, aligned
from minigraph.errors import DeviceError
from minigraph.graph import Array, Spec, State
from minigraph.platform.signals import signals_deferred
from minigraph.program import Buffer

Range = tuple[int, int]  # begin and end in bytes
PIECE_BYTES = 4 << 20  # bytes that a thread copies at a time, in about 0.5 ms
MAX_COPY_THREADS = 8  # they copy about 30 GB/s, half of the bus's bandwidth


class Staging:
    """Device memory with fixed addresses for inputs.

    Arrays of the host are copied to pinned memory, from there to a staging area on the stream
    `copies`, and to their fixed addresses on `compute`: the transfer overlaps with the call before.
    Threads copy a large batch to pinned memory in pieces, and each piece is transferred while they
    copy the next.  Of two pinned memories, one takes a batch while the other is still transferred.

    addresses  by buffer; an input that first occurs in a later call gets its address there
    """

    def __init__(self, buffers: Sequence[Buffer], driver: Driver) -> None:
        self._driver = driver
        *self._copy_events, self._staged_event = events = [driver.event() for _ in range(3)]
        weakref.finalize(self, driver.destroy, [], events).atexit = False
        self._allocate(buffers)
        # The pool orders uses of its memory on `compute` only, where earlier work may still use
        # this memory.
        driver.record(self._staged_event, driver.compute)

    def _allocate(self, buffers: Sequence[Buffer]) -> None:
        offsets = [*itertools.accumulate((aligned(b.nbytes) for b in buffers), initial=0)]
        # Inputs have the same offsets in pinned memory, in the staging area and in fixed memory.
        self._memory = self._driver.allocate(2 * offsets[-1])
        # Copies from pinned memory are asynchronous; the event is recorded after the copy.
        pinned = [(self._driver.pinned_memory(offsets[-1]), event) for event in self._copy_events]
        self._pinned = itertools.cycle(pinned)
        self._base: int = self._memory.data.ptr
        self._staging_address = self._base + offsets[-1]
        self._offsets = dict(zip(buffers, offsets, strict=False))
        self.addresses = {b: self._base + offset for b, offset in self._offsets.items()}

    def enqueue(self, inputs: Mapping[Buffer, Array]) -> None:
        """Enqueue on `compute` the copies of inputs to their fixed addresses."""
        driver, compute, copies = self._driver, self._driver.compute, self._driver.copies
        new = [buffer for buffer in inputs if buffer not in self.addresses]
        if new:
            driver.synchronize(compute)  # earlier calls may use the old memory
            self._allocate([*self.addresses, *new])
        arrays: list[tuple[int, Array]] = []
        for buffer, array in inputs.items():
            if isinstance(array, np.ndarray):
                arrays.append((self._offsets[buffer], array.reshape(-1).view(np.uint8)))
            else:
                driver.copy(self.addresses[buffer], array.data.ptr, buffer.nbytes, compute)
        if not arrays:
            return
        pinned, copy_event = next(self._pinned)
        driver.finish(copy_event)  # the last batch in this pinned memory has been transferred
        all_from_host = len(arrays) == len(self.addresses)
        parts = [(0, pinned.nbytes)] if all_from_host else [(o, o + x.nbytes) for o, x in arrays]
        driver.wait(copies, self._staged_event)
        _upload(driver, pinned, arrays, parts, self._staging_address)
        driver.record(copy_event, copies)
        driver.wait(compute, copy_event)
        for begin, end in parts:
            driver.copy(self._base + begin, self._staging_address + begin, end - begin, compute)
        driver.record(self._staged_event, compute)


class BatchUploader:
    """Copies arrays to new arrays of the device, in one thread beside the calls of another.

    When the caller drops such an array, its memory takes the next array of that size.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pinned = np.empty(0, np.uint8)
        self._unused: dict[int, list[tuple[Array, int]]] = defaultdict(list)
        with driver.current():
            self._copy_event = driver.event()
        self._events = [self._copy_event]
        weakref.finalize(self, driver.destroy, [], self._events).atexit = False

    def __call__(self, array: Array) -> Array:
        """Return the copy, which is complete."""
        driver, copies, nbytes = self._driver, self._driver.copies, array.nbytes
        with driver.current():
            memory, last_use = self._memory(aligned(nbytes))
            if self._pinned.nbytes < nbytes:
                self._pinned = driver.pinned_memory(nbytes)
            driver.wait(copies, last_use)
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            _upload(driver, self._pinned, [(0, content)], [(0, nbytes)], memory.data.ptr)
            driver.record(self._copy_event, copies)
            driver.finish(self._copy_event)
        owner = _Owner()
        weakref.finalize(owner, self._release, memory, last_use).atexit = False
        return driver.view(memory, Spec(array.shape, array.dtype), owner)

    def _memory(self, nbytes: int) -> tuple[Array, int]:
        """Return memory and the event that ends its last use."""
        if self._unused[nbytes]:
            return self._unused[nbytes].pop()
        memory, event = self._driver.allocate(nbytes), self._driver.event()
        self._events.append(event)
        self._driver.record(event, self._driver.compute)  # as in `Staging`
        return memory, event

    def _release(self, memory: Array, last_use: int) -> None:
        """Let another array use the memory after the work that the caller's stream has so far."""
        with contextlib.suppress(DeviceError), self._driver.current():  # a lost device
            self._driver.record(last_use, self._driver.current_stream())
            self._unused[memory.nbytes].append((memory, last_use))


class _Owner:
    """What the arrays in a piece of memory keep alive."""


def _upload(
    driver: Driver,
    pinned: Array,
    arrays: Sequence[tuple[int, Array]],
    ranges: Sequence[Range],
    address: int,
) -> None:
    """Copy arrays of bytes to pinned memory at their offsets, and its ranges to the device."""
    pieces = [
        (i, min(i + PIECE_BYTES, end))
        for begin, end in ranges
        for i in range(begin, end, PIECE_BYTES)
    ]
    fill = functools.partial(_fill, pinned, arrays)
    is_large = sum(end - begin for begin, end in ranges) > PIECE_BYTES
    # Without `signals_deferred`, a signal could end the call while threads still copy.
    with signals_deferred() if is_large else contextlib.nullcontext():
        for begin, end in (_threads().map if is_large else map)(fill, pieces):
            driver.upload(address + begin, pinned[begin:end], driver.copies)


def _fill(pinned: Array, arrays: Sequence[tuple[int, Array]], piece: Range) -> Range:
    """Copy the bytes of arrays that belong to a piece of pinned memory; return the piece."""
    begin, end = piece
    for offset, array in arrays:
        first, last = max(begin, offset), min(end, offset + array.nbytes)
        if first < last:
            np.copyto(pinned[first:last], array[first - offset : last - offset])
    return piece


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads that copy for all functions of the process."""
    return ThreadPoolExecutor(min(settings.num_threads(None), MAX_COPY_THREADS), "minigraph-copies")


class DeviceCopy:
    """The copy of a parameter's value that all functions of the device share.

    memory  a caller's array for the copy; None allocates one
    """

    def __init__(self, spec: Spec, driver: Driver, memory: Array | None = None) -> None:
        self._driver = driver
        self._memory = driver.allocate(spec.nbytes) if memory is None else memory
        self.address: int = self._memory.data.ptr
        self._is_shared = memory is not None

    def upload(self, value: Array) -> None:
        # The copy follows the enqueued work of functions; memory that is not pinned is read now.
        with self._driver.current(), self._ordered_with_caller():
            self._driver.upload(self.address, value, self._driver.compute)

    def download(self, into: Array) -> None:
        with self._driver.current(), self._ordered_with_caller():
            self._driver.download(into, self.address, self._driver.compute)
            self._driver.synchronize(self._driver.compute)

    @contextlib.contextmanager
    def _ordered_with_caller(self) -> Iterator[None]:
        """Run the block after the earlier work of the caller's stream and before its later work."""
        if self._is_shared:
            self._driver.synchronize(self._driver.current_stream())
        yield
        if self._is_shared:
            self._driver.synchronize(self._driver.compute)


def copy_of(state: State, driver: Driver) -> DeviceCopy:
    """Return the copy of a parameter's value on a device, up to date."""
    copy: DeviceCopy = state.on(driver.device, lambda spec: DeviceCopy(spec, driver))
    return copy
