"""A stand-in for the CUDA driver, which logs its calls, a line of text for each.

It does what it is told to at once, in memory of the host; a kernel is its op's meaning.  What NCCL
is told to do it does as late as it may: when another stream waits for it.  It refuses what the
driver would refuse: see `StandIn.checked`.
"""

import contextlib
import ctypes
import functools
import gc
import threading
from types import SimpleNamespace

import numpy as np
from device_array import DeviceArray, lying_at, on_host

import minigraph as mg
from minigraph.autotune.candidate import Workbench
from minigraph.devices.cuda.kernel import Launch
from minigraph.devices.reference import NumpyKernel
from minigraph.errors import DeviceLost
from minigraph.graph import BFLOAT16, Spec
from minigraph.jit.source import KernelSource
from minigraph.program import KernelFailed


class NothingRuns(Workbench):
    """A workbench on which no candidate can be measured."""

    def runner(self, kernel):
        raise KernelFailed("a stand-in measures nothing")


# Calls that may wait for the device, which is not allowed while the thread captures.
WAITS = {"synchronize", "finish", "is_complete", "seconds", "pinned_memory", "load", "launch_graph"}
# Calls that may allocate with cudaMalloc, which invalidates a capture.
ALLOCATING = {"allocate", "array"}
# Calls that need a current context; CuPy sets its own, and `destroy` makes the device current.
CALLS = WAITS | {
    *("upload", "download", "copy", "gather", "clear", "launch", "stream", "high_priority_stream"),
    *("event", "record", "record_in_graph", "wait", "begin_capture", "end_capture"),
}


class StandIn:
    """A driver whose device is the host; `log` has the calls, and `words` those of the launches."""

    compute, copies, measuring, captured = "compute", "copies", "measuring", "captured"
    name, version, arch, processors = "a stand-in", (13, 0), "sm_90", 132
    lost = ""  # the error that each call gives, once there has been one that lasts

    def __init__(self, fail_in_capture=False, ordinal=0):
        self.ordinal, self.device = ordinal, f"cuda:{ordinal}"
        self.uuid = f"device {ordinal}"
        self.late = []  # pending work of NCCL's stream, and the events that it has to record
        self.recorded = {}  # events that were captured, with their streams
        self.joined = {}  # streams that a capture has forked to, and whether they have come back
        self.log = []
        self.words = []
        self.kernels = {}
        self.held = []
        self.graphs = []
        self.capturing = None
        self.spoilt = ""  # why the capture is invalid
        self.thread = threading.local()  # how often the device was made current in it
        self.capturing_thread = None
        self.capture_lock = threading.Lock()
        self.collecting = []  # whether garbage was collected when a capture began and ended
        self.fail_in_capture = fail_in_capture
        self.events = 0

    @contextlib.contextmanager
    def current(self):
        self.thread.depth = getattr(self.thread, "depth", 0) + 1
        try:
            yield
        finally:
            self.thread.depth -= 1

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        if name not in CALLS | ALLOCATING:
            return value
        return functools.partial(self.checked, name, value)

    def checked(self, name, function, *args, **named):
        """Call a function as the driver does, which refuses

        - everything once there was an error that lasts;
        - everything but allocations of CuPy's where no context is current;
        - in a thread that captures, what waits and what allocates: then the capture is invalid;
        - the stream that waits for all others, where others capture.
        """
        if self.lost:
            raise DeviceLost(f"{name}: {self.lost}")
        if name in CALLS and not getattr(self.thread, "depth", 0):
            raise mg.DeviceError(f"{name}: CUDA_ERROR_INVALID_CONTEXT")
        if self.capturing_thread == threading.get_ident() and (
            name in WAITS | ALLOCATING or None in args or 0 in args[-1:]
        ):
            self.spoilt = f"{name}: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            raise mg.DeviceError(self.spoilt)
        return function(*args, **named)

    def current_stream(self):
        return "caller"

    def allocate(self, nbytes):
        self._log("allocate", nbytes)
        self.held.append(np.zeros(nbytes, np.uint8))
        return DeviceArray(self.held[-1])

    def pinned_memory(self, nbytes):
        return np.zeros(nbytes, np.uint8)

    def event(self, timing=False):
        self.events += 1
        names = ["arrived", "second arrived", "landed", "begun", "done"]
        return names[self.events - 1] if self.events < 6 else f"event {self.events}"

    def high_priority_stream(self):
        return "nccl"

    def _captures(self, stream):
        return self.capturing is not None and stream in (self.capturing, *self.joined)

    def _do(self, stream, action, *call):
        if stream == "nccl":
            action = functools.partial(self.late.append, action)
        if self._captures(stream):
            if self.fail_in_capture:
                raise mg.DeviceError("not while capturing")
            if stream in self.joined:
                self.joined[stream] = False
            self.graphs[-1].append(action)
            self._log("captured", *call)
        else:
            self._log(*call, stream)
            action()

    def record(self, event, stream):
        self.recorded.pop(event, None)
        if self._captures(stream):
            self.recorded[event] = stream
            self.graphs[-1].append(lambda: self._record(event, stream))
            self._log("captured", "record", event, stream)
        else:
            self._log("record", event, stream)
            self._record(event, stream)

    def _record(self, event, stream):
        if stream == "nccl":
            self.late.append(event)

    def wait(self, stream, event):
        if event not in self.recorded:
            self._log("wait", stream, event)
            self._wait(stream, event)
            return
        if self.capturing is None:
            raise mg.DeviceError("the event was last recorded in a capturing stream")
        if stream == self.capturing:
            self.joined[self.recorded[event]] = True
        else:
            self.joined[stream] = False
        self.graphs[-1].append(lambda: self._wait(stream, event))
        self._log("captured", "wait", stream, event)

    def _wait(self, stream, event):
        while stream != "nccl" and event in self.late:
            action = self.late.pop(0)
            if callable(action):
                action()

    def is_complete(self, event):
        return event not in self.late

    def functions(self, sources, *others):
        """Return functions for kernels: those of `launch_of`."""
        return {source.name: source.name for source in sources}

    def launch_of(self, node, strides):
        """Return the launch of a kernel that is the meaning of a node, whose inputs lie so."""
        source = KernelSource(f"kernel {len(self.kernels)}")
        self.kernels[source.name] = node, strides
        return Launch(source, (1, 1, 1), (32, 1, 1), lambda i, o, scratch: [*i, *o])

    def launch(self, function, grid, block, stream, arguments):
        node, strides = self.kernels[function]
        words = arguments.words.tolist()
        self.words.append(words)

        def run():
            addresses, results = words[: len(strides)], words[len(strides) :]
            xs = list(map(lying_at, addresses, (x.spec for x in node.inputs), strides))
            ys = [on_host(at, spec) for at, spec in zip(results, node.specs, strict=False)]
            try:
                NumpyKernel(node).run(xs, ys, None)
            except mg.GraphError:  # the integers do not fit
                ctypes.c_int.from_address(words[-1]).value = 1

        self._do(stream, run, "launch", node.op.name)

    def copy(self, to, source, nbytes, stream):
        self._do(stream, lambda: ctypes.memmove(to, source, nbytes), "copy", nbytes)

    def array(self, spec):
        self._log("array", spec.nbytes)
        return DeviceArray(np.zeros(spec.shape, spec.dtype))

    def view(self, memory, spec, owner):
        return DeviceArray(on_host(memory.data.ptr, spec), owner=owner)

    def upload(self, to, source, stream):
        self._do(stream, lambda: ctypes.memmove(to, source.ctypes.data, source.nbytes), "upload")

    def download(self, to, source, stream):
        self._do(stream, lambda: ctypes.memmove(to.ctypes.data, source, to.nbytes), "download")

    def clear(self, address, nbytes, stream):
        self._do(stream, lambda: ctypes.memset(address, 0, nbytes), "clear")

    def begin_capture(self, stream):
        self.capturing, self.spoilt = stream, ""
        self.capturing_thread = threading.get_ident()
        self.graphs.append([])
        self.collecting.append(gc.isenabled())

    def end_capture(self, stream):
        self.capturing, self.capturing_thread, joined, self.joined = None, None, self.joined, {}
        self.recorded = dict.fromkeys(self.recorded, "a capture that has ended")
        if self.spoilt:
            raise mg.DeviceError(f"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED by {self.spoilt}")
        if not all(joined.values()):
            raise mg.DeviceError("the capture has work that was not joined to it")
        self.collecting.append(gc.isenabled())
        return len(self.graphs) - 1

    def launch_graph(self, executable, stream):
        self._log("launch_graph", stream)
        for action in self.graphs[executable]:
            action()

    def record_in_graph(self, event, stream):
        self._do(stream, lambda: None, "event")

    def seconds(self, begin, end):
        return 0.5

    def destroy(self, executables, events):
        self._log("destroy", list(executables))

    def __getattr__(self, name):
        log = functools.partial(self._log, name)
        return functools.partial(self.checked, name, log) if name in CALLS else log

    def _log(self, *call):
        self.log.append(" ".join(map(str, call)))


class Nccl:
    """A stand-in for CuPy's module, for the device of a stand-in; MPI carries what it exchanges.

    Its maximum loses NaN, as NCCL's does.
    """

    available, comm = True, None
    NcclError = RuntimeError
    TYPES = (*["b", "B", "i", "I", "q", "Q", "e", "f", "d"], BFLOAT16)

    def __init__(self, device):
        self.device = device

    def get_unique_id(self):
        return b"the id"

    def NcclCommunicator(self, size, name, rank):
        assert name == b"the id"
        if size > 1:
            self.comm = mg.distributed.world().mpi.COMM_WORLD.Dup()
        self.size, self.rank = size, rank
        return self

    def check_async_error(self):
        pass

    def _all(self, address, count, dtype):
        """Return what all processes have at an address, a row of each."""
        spec = Spec((count,), np.dtype(self.TYPES[dtype]))
        mine = on_host(address, spec).copy()
        if self.comm is None:
            return mine[None]
        everyone = np.empty((self.size, count), spec.dtype)
        self.comm.Allgather(mine.view(np.uint8), everyone.reshape(-1).view(np.uint8))
        return everyone

    def __getattr__(self, name):
        """Return what exchanges `count` elements from x to y, by NCCL's name for it."""

        def exchange(x, y, count, dtype, *how):
            *how, stream = how
            whole = count * (self.size if name == "reduceScatter" else 1)

            def action():
                rows = self._all(x, whole, dtype)
                value = EXCHANGES[name](self.rank, count, rows, *how)
                if value is not None:
                    on_host(y, Spec((value.size,), value.dtype))[...] = value.reshape(-1)

            self.device._do(stream, action, name, whole)

        return exchange


def combined(rows, how):
    with np.errstate(all="ignore"):
        return functools.reduce(np.fmax if how else np.add, rows).astype(rows.dtype)


EXCHANGES = {  # of the rank, the elements, what all processes have, and more that NCCL is told
    "allReduce": lambda rank, count, rows, how: combined(rows, how),
    "reduce": lambda rank, count, rows, how, root: combined(rows, how) if rank == root else None,
    "reduceScatter": lambda rank, count, rows, how: combined(rows, how)[rank * count :][:count],
    "broadcast": lambda rank, count, rows, root: rows[root],
    "allGather": lambda rank, count, rows: rows,
}


def open_instead(patch, device, load, without_cudnn=True):
    """Let minigraph open a stand-in, with `load` for its compiler."""
    from minigraph.devices.cuda import communicator, cublas, cublas_kernel, cudnn_kernel, nvrtc
    from minigraph.devices.cuda import device as device_module

    # The emulation is slow.
    patch.setattr(device_module.CudaBackend, "saturation", (1 << 12, 16))
    patch.setattr(device_module, "open_device", lambda ordinal: (device, None))
    patch.setattr(device_module, "device_count", lambda: device.ordinal + 1)
    patch.setattr(communicator, "_library", lambda: Nccl(device))
    patch.setattr(device_module, "CudaWorkbench", lambda *settings: NothingRuns())
    patch.setattr(device_module, "cupy", SimpleNamespace(ndarray=DeviceArray))
    patch.setattr(cublas, "version", lambda: "130100")
    patch.setattr(cublas_kernel, "product", lambda node: None)
    patch.setattr(device_module, "warn_once", lambda text, cause: None)  # of what NumPy computes
    if without_cudnn:
        patch.setattr(device_module.cudnn, "backend_version", lambda: 92800)
        patch.setattr(cudnn_kernel, "product", lambda node: None)
    patch.setattr(
        nvrtc.NvrtcKernels,
        "functions",
        lambda self, sources, on_disk=True: load(sources, self.driver, on_disk),
    )


def by_meaning(patch, device):
    """Let each kernel of a stand-in be the meaning of its node; no compiler is needed."""
    from minigraph.devices.cuda import collective
    from minigraph.devices.cuda import device as device_module
    from minigraph.devices.cuda.kernel import CudaKernel
    from minigraph.devices.cuda.kernels import HANDWRITTEN

    def generated(node, strides, processors):
        return CudaKernel(node, [device.launch_of(node, strides)])

    def kernel(node, strides, processors):
        if not all(spec.size for spec in (*(x.spec for x in node.inputs), *node.specs)):
            return None
        make = HANDWRITTEN.get(type(node.op))
        handwritten = make and make(node.op, node)
        launches, strided = [device.launch_of(node, strides)], (True,) * len(strides)
        return CudaKernel(node, launches, strided=strided, range=handwritten and handwritten.range)

    open_instead(patch, device, device.functions)
    patch.setattr(device_module, "cuda_kernel", kernel)
    patch.setattr(collective, "generated_kernel", generated)
