"""A parameter's value in the memory of a CUDA device."""

from __future__ import annotations

from minigraph.devices.cuda.driver import Driver
from minigraph.graph import Array, Parameter, Spec


class DeviceCopy:
    """The copy of a value; all functions of the device read it, or change it, where it is."""

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
