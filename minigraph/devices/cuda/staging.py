"""Arrays of the host in device memory: copies of parameters, and inputs at fixed addresses."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from minigraph.devices.cuda.driver import Driver, aligned
from minigraph.graph import Array, Parameter, Spec
from minigraph.program import Buffer


class Staging:
    """Fixed places for inputs.

    Arrays of the host go from pinned memory to a landing place on the stream `copies`, and from
    there to their fixed places on `compute`: they travel while the call before is computing.

    places  the addresses; inputs that turn up later get theirs then
    """

    def __init__(self, buffers: Sequence[Buffer], driver: Driver) -> None:
        self._driver = driver
        self._arrived, self._landed = events = [driver.event() for _ in range(2)]
        weakref.finalize(self, driver.forget, [], events).atexit = False
        self._make_room(buffers)

    def _make_room(self, buffers: Sequence[Buffer]) -> None:
        offsets = [*itertools.accumulate((aligned(b.nbytes) for b in buffers), initial=0)]
        # Inputs lie in pinned memory and in the landing place as they lie in theirs.
        memory, pinned = self._driver.allocate(2 * offsets[-1]), self._driver.pinned(offsets[-1])
        self._memory, self._pinned = memory, pinned
        self._base, self._landing = self._memory.address, self._memory.address + offsets[-1]
        self._offsets = dict(zip(buffers, offsets, strict=False))
        self.places = {b: self._base + offset for b, offset in self._offsets.items()}

    def enqueue(self, inputs: Mapping[Buffer, Array]) -> None:
        """Enqueue on `compute` the copies of inputs to their places."""
        driver, compute, copies = self._driver, self._driver.compute, self._driver.copies
        new = [buffer for buffer in inputs if buffer not in self.places]
        if new:
            driver.synchronize(compute)  # the room there is may be in use
            self._make_room([*self.places, *new])
        pieces = []
        for buffer, array in inputs.items():
            if isinstance(array, np.ndarray):
                pieces.append((self._offsets[buffer], array))
            else:
                driver.copy(self.places[buffer], array.data.ptr, buffer.nbytes, compute)
        if not pieces:
            return
        driver.finish(self._arrived)  # the batch before has left the pinned memory
        for offset, array in pieces:
            to = self._pinned[offset : offset + array.nbytes]
            np.copyto(to.view(array.dtype).reshape(array.shape), array)
        whole = len(pieces) == len(self.places)
        parts = [(0, self._pinned.nbytes)] if whole else [(o, x.nbytes) for o, x in pieces]
        driver.wait(copies, self._landed)
        for offset, nbytes in parts:
            driver.upload(self._landing + offset, self._pinned[offset : offset + nbytes], copies)
        driver.record(self._arrived, copies)
        driver.wait(compute, self._arrived)
        for offset, nbytes in parts:
            driver.copy(self._base + offset, self._landing + offset, nbytes, compute)
        driver.record(self._landed, compute)


class DeviceCopy:
    """The copy of a parameter's value that all functions of the device share."""

    def __init__(self, spec: Spec, driver: Driver) -> None:
        self._driver = driver
        self._memory = driver.allocate(spec.nbytes)
        self.address = self._memory.address

    def upload(self, value: Array) -> None:
        # After what functions still have to do; memory that is not pinned is read at once.
        with self._driver.current():
            self._driver.upload(self.address, value, self._driver.compute)

    def download(self, into: Array) -> None:
        with self._driver.current():
            self._driver.download(into, self.address, self._driver.compute)
            self._driver.synchronize(self._driver.compute)


def copy_of(parameter: Parameter, driver: Driver) -> DeviceCopy:
    """Return the copy of a parameter on a device, with its current value."""
    copy: DeviceCopy = parameter.state.on(driver.device, lambda spec: DeviceCopy(spec, driver))
    return copy
