"""Device "toy": an example of a device, which the tests of all devices run on too.

NumPy computes its kernels, but in memory of its own: what goes there and comes back is counted.
"""

import time
from collections import Counter

import numpy as np

from minigraph.devices import factory
from minigraph.devices.reference import NumpyKernel, run_step
from minigraph.platform.signals import signals_deferred
from minigraph.program import Backend, Executor, MemorySpace, Timing, nothing

BYTE = np.dtype(np.uint8)
counts = Counter()  # of bytes that were uploaded and downloaded, and of kernels that were launched


def register():
    """Add the device to the table of devices."""
    factory.DEVICES["toy"] = factory.DeviceRow("toy_device", "ToyBackend")


class ToyBackend(Backend):
    """The device: which kernel computes a node, and what runs a program."""

    device = "toy"

    def kernel(self, node, strides, choice=None):
        return NumpyKernel(node)

    def bind(self, program, arenas=()):
        return ToyExecutor(program)


class ToyMemory:
    """Bytes of the device; as the copy of a parameter's value, what `State` calls a `Replica`."""

    def __init__(self, spec):
        self.bytes = np.zeros(spec.nbytes, BYTE)

    def upload(self, value):
        self.bytes[...] = np.ascontiguousarray(value).reshape(-1).view(BYTE)
        counts["uploaded"] += self.bytes.nbytes

    def download(self, into):
        into[...] = self.bytes.view(into.dtype).reshape(into.shape)
        counts["downloaded"] += self.bytes.nbytes


class ToyExecutor(Executor):
    """A program with its memory on the device."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        arena = np.zeros(program.arena_bytes, BYTE)
        self.memory = {}
        for buffer in program.buffers:
            if buffer.space is MemorySpace.ARENA:
                self.memory[buffer] = arena[buffer.offset : buffer.offset + buffer.nbytes]
            elif buffer.space is MemorySpace.PARAMETER:
                self.memory[buffer] = replica(buffer.node).bytes
            else:
                self.memory[buffer] = np.zeros(buffer.nbytes, BYTE)
            if buffer.space is MemorySpace.CONSTANT:
                self.upload(buffer, buffer.node.op.value)

    def __call__(self, inputs, done=nothing):
        return self.profile(inputs, done)[0]

    def profile(self, inputs, done=nothing):
        for buffer, value in zip(self.program.inputs, inputs, strict=True):
            self.upload(buffer, value)
        for parameter in self.program.parameters:
            replica(parameter)  # which uploads the value that the host has changed
        with signals_deferred():  # an interrupt must not leave a part of the parameters changed
            timings = [self.launch(step) for step in self.program.steps]
            results = [self.download(view) for view in self.program.outputs]
            new = [(p, self.view(view).copy()) for p, view in self.program.updates]
            for parameter, value in new:
                replica(parameter).bytes[...] = value.reshape(-1).view(BYTE)
            for parameter in self.program.changed:
                parameter.state.mark_written("toy")
            done()
        return results, timings

    def launch(self, step):
        """Run a step; return how long it took."""
        counts["launched"] += 1
        start = time.perf_counter()
        run_step(step, step.kernel, self.memory)
        return Timing(step, start, time.perf_counter() - start)

    def view(self, view):
        return view.array(self.memory[view.buffer])

    def upload(self, buffer, value):
        self.memory[buffer][...] = np.ascontiguousarray(value).reshape(-1).view(BYTE)
        counts["uploaded"] += buffer.nbytes

    def download(self, view):
        counts["downloaded"] += view.spec.nbytes
        return self.view(view).copy()


def replica(parameter):
    """Return the copy of a parameter on the device, with its current value."""
    return parameter.state.on("toy", ToyMemory)
