"""Arrays of a stand-in for a CUDA device, in memory of the host."""

import ctypes
from types import SimpleNamespace

import numpy as np


def lying_at(address, spec, strides):
    """Return the array at an address that has these strides."""
    bits = np.dtype(f"u{spec.dtype.itemsize}")  # an interface knows no bfloat16
    interface = {"data": (address, True), "typestr": bits.str, "version": 3}
    interface |= {"shape": spec.shape, "strides": strides}
    return np.asarray(SimpleNamespace(__array_interface__=interface)).view(spec.dtype)


def on_host(address, spec):
    memory = (ctypes.c_uint8 * spec.nbytes).from_address(address)
    return np.frombuffer(memory, spec.dtype).reshape(spec.shape)


class DeviceArray:
    """An array as CuPy has it, as far as it is looked at; `array` is what it holds."""

    def __init__(self, array, ordinal=0, owner=None):
        self.array, self.owner = array, owner
        self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=ordinal)
        self.shape, self.dtype, self.flags = array.shape, array.dtype, array.flags
        self.size, self.strides, self.nbytes = array.size, array.strides, array.nbytes

    def get(self):
        return self.array

    def __float__(self):
        return float(self.array)
