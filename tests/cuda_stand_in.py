"""A stand-in for the CUDA driver, which writes down its calls.

It does what it is told to at once, in memory of the host; a kernel is its op's meaning.
"""

import contextlib
import ctypes
import gc
import threading
from types import SimpleNamespace

import numpy as np

import minigraph as mg
from minigraph.autotune.candidate import HostBench
from minigraph.devices.reference import NumpyKernel
from minigraph.program import KernelFailed


class NothingRuns(HostBench):
    """A workbench on which no candidate can be measured."""

    def runner(self, kernel):
        raise KernelFailed("a stand-in measures nothing")


class StandIn:
    """A driver whose device is the host; `log` has the calls, and `words` those of the launches."""

    compute, copies, measuring, captured = "compute", "copies", "measuring", "captured"
    device = "cuda:0"
    ordinal = 0
    name, version, arch, processors = "a stand-in", (13, 0), "sm_90", 132

    def __init__(self, fail_in_capture=False):
        self.log = []
        self.words = []
        self.kernels = {}
        self.held = []
        self.graphs = []
        self.capturing = None
        self.capture_lock = threading.Lock()
        self.collecting = []  # whether garbage was collected when a capture began and ended
        self.fail_in_capture = fail_in_capture
        self.events = 0

    def current(self):
        return contextlib.nullcontext()

    def current_stream(self):
        return "caller"

    def allocate(self, nbytes):
        self.log.append(("allocate", nbytes))
        self.held.append(np.zeros(nbytes, np.uint8))
        return SimpleNamespace(address=self.held[-1].ctypes.data, nbytes=nbytes)

    def pinned(self, nbytes):
        return np.zeros(nbytes, np.uint8)

    def event(self, timing=False):
        self.events += 1
        return ["arrived", "landed", "begun", "done"][self.events - 1] if self.events < 5 else ""

    def _do(self, stream, action, *call):
        if stream == self.capturing:
            if self.fail_in_capture:
                raise mg.DeviceError("not while capturing")
            self.graphs[-1].append(action)
            self.log.append(("captured", *call))
        else:
            self.log.append((*call, stream))
            action()

    def launch(self, function, grid, block, stream, arguments):
        node = self.kernels[function]
        words = arguments.words.tolist()
        self.words.append(words)

        def run():
            specs = [*(x.spec for x in node.inputs), *node.specs]
            arrays = [on_host(at, s) for at, s in zip(words, specs, strict=False)]
            try:
                NumpyKernel(node).run(arrays[: len(node.inputs)], arrays[len(node.inputs) :], None)
            except mg.GraphError:  # the integers do not fit
                ctypes.c_int.from_address(words[len(specs)]).value = 1

        self._do(stream, run, "launch", node.op.name)

    def copy(self, to, source, nbytes, stream):
        self._do(stream, lambda: ctypes.memmove(to, source, nbytes), "copy", nbytes)

    def array(self, spec):
        self.log.append(("array", spec.nbytes))
        return DeviceArray(np.zeros(spec.shape, spec.dtype))

    def gather(self, to, source, spec, strides, stream):
        interface = {"data": (source, True), "typestr": spec.dtype.str, "version": 3}
        interface |= {"shape": spec.shape, "strides": strides}
        view = np.asarray(SimpleNamespace(__array_interface__=interface))
        self._do(stream, lambda: np.copyto(on_host(to, spec), view), "gather")

    def upload(self, to, source, stream):
        self._do(stream, lambda: ctypes.memmove(to, source.ctypes.data, source.nbytes), "upload")

    def download(self, to, source, stream):
        self._do(stream, lambda: ctypes.memmove(to.ctypes.data, source, to.nbytes), "download")

    def clear(self, address, nbytes, stream):
        self._do(stream, lambda: ctypes.memset(address, 0, nbytes), "clear")

    def begin_capture(self, stream):
        self.capturing = stream
        self.graphs.append([])
        self.collecting.append(gc.isenabled())

    def end_capture(self, stream):
        self.capturing = None
        self.collecting.append(gc.isenabled())
        return len(self.graphs) - 1

    def instantiate(self, graph):
        return graph

    def launch_graph(self, executable, stream):
        self.log.append(("launch_graph", stream))
        for action in self.graphs[executable]:
            action()

    def record_in_graph(self, event, stream):
        self._do(stream, lambda: None, "event")

    def seconds(self, begin, end):
        return 0.5

    def forget(self, executables, events):
        self.log.append(("forget", list(executables)))

    def __getattr__(self, name):
        return lambda *args: self.log.append((name, *args))


def open_instead(patch, device, load, without_cudnn=True):
    """Let minigraph open a stand-in, with `load` for its compiler."""
    from minigraph.devices.cuda import compiler, cudnn_kernel
    from minigraph.devices.cuda import device as device_module

    patch.setattr(device_module, "opened", lambda ordinal: (device, None))
    patch.setattr(device_module, "CudaWorkbench", lambda *settings: NothingRuns())
    patch.setattr(device_module, "cupy", SimpleNamespace(ndarray=DeviceArray))
    if without_cudnn:
        patch.setattr(device_module.cudnn, "backend_version", lambda: 92800)
        patch.setattr(cudnn_kernel, "product", lambda node: None)
    patch.setattr(
        compiler.NvrtcKernels,
        "functions",
        lambda self, sources, on_disk: load(sources, self.driver, on_disk),
    )


def on_host(address, spec):
    memory = (ctypes.c_uint8 * spec.nbytes).from_address(address)
    return np.frombuffer(memory, spec.dtype).reshape(spec.shape)


class DeviceArray:
    """An array as CuPy has it, as far as it is looked at; `array` is what it holds."""

    def __init__(self, array, ordinal=0):
        self.array = array
        self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=ordinal)
        self.shape, self.dtype, self.flags = array.shape, array.dtype, array.flags

    def get(self):
        return self.array

    def astype(self, dtype, copy):
        return self if self.dtype == dtype else DeviceArray(self.array.astype(dtype))

    def copy(self, order):
        return DeviceArray(self.array.copy(order))
