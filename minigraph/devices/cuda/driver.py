"""The CUDA driver: memory, kernels, streams, events and graphs of one device.

All calls of the backend to the device go through a `Driver`.  Addresses, streams, events, functions
and graphs are integers, as in other libraries.  Device memory comes from CuPy's pool, which the
user's arrays share.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver as cuda

from minigraph.devices.cuda.kernel import Dim3
from minigraph.errors import DeviceError, DeviceLost
from minigraph.graph import Array, Spec
from minigraph.platform import forks

MIN_COMPUTE_CAPABILITY = (8, 0)  # compute capability
LOAD_ALIGNMENT = 16  # bytes of the widest loads of our kernels, and the alignment declared to cuDNN
ALIGNMENT = 256  # bytes: of the device's own allocations; cuDNN may expect it of its workspace
DEVICE_ATTRIBUTES = (
    cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
)
# CUDA's names of errors after which every call returns the same error.
STICKY_ERRORS = {
    f"CUDA_ERROR_{name}"
    for name in (
        *("ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC"),
        *("ILLEGAL_INSTRUCTION", "HARDWARE_STACK_ERROR", "ASSERT", "TENSOR_MEMORY_LEAK"),
        *("LAUNCH_FAILED", "LAUNCH_TIMEOUT", "CONTAINED", "CONTEXT_IS_DESTROYED"),
        *("ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "EXTERNAL_DEVICE", "MPS_CLIENT_TERMINATED"),
    )
}


class Arguments:
    """The words of a launch and pointers to them for the driver, at fixed addresses."""

    def __init__(self, words: Sequence[int]) -> None:
        # Addresses and constants may have the highest bit set.
        self.words = np.array([w % (1 << 64) for w in words], np.uint64)
        self._pointers = np.array([self.words.ctypes.data], np.uint64)
        self.address = int(self._pointers.ctypes.data)


class OutOfMemory(DeviceError, MemoryError):
    """The device has too little memory left."""


def aligned(nbytes: int) -> int:
    """Return a size or an address, rounded up to a multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class _Stream:
    """A stream with the protocol by which libraries exchange streams."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def on_stream(address: int) -> Any:
    """Return CuPy's stream for a stream's address, a context for CuPy's calls on it."""
    return cupy.cuda.Stream.from_external(_Stream(address))


def device_count() -> int:
    """Return the number of devices that this process sees: CUDA_VISIBLE_DEVICES may hide others."""
    try:
        _checked(cuda.cuInit, *cuda.cuInit(0))
    except RuntimeError:  # or a subclass, in some versions of the bindings
        raise DeviceError(
            "CUDA needs NVIDIA's driver (libcuda.so.1), which was not found"
        ) from None
    return int(_checked(cuda.cuDeviceGetCount, *cuda.cuDeviceGetCount()))


class Driver:
    """An open device.

    Calls with a stream only enqueue.  Errors of the driver are raised as DeviceError, in one line.

    device      name in minigraph, such as "cuda:0"
    name        of the hardware, such as "NVIDIA H200"
    capability  compute capability, such as (9, 0)
    processors  number of multiprocessors
    version     latest version of CUDA that the driver supports, such as (13, 0)
    total       bytes of memory
    uuid        unique among all devices of all machines
    """

    _capturing: int | None = None  # the thread that captures

    def __init__(self, ordinal: int = 0) -> None:
        count = device_count()
        if not 0 <= ordinal < count:
            raise DeviceError(f"device cuda:{ordinal} does not exist; number of devices: {count}")
        self.ordinal = ordinal
        self.device = f"cuda:{ordinal}"
        device = self._call(cuda.cuDeviceGet, ordinal)
        self.name: str = self._call(cuda.cuDeviceGetName, 256, device).split(b"\0")[0].decode()
        major, minor, self.processors = (
            int(self._call(cuda.cuDeviceGetAttribute, attribute, device))
            for attribute in DEVICE_ATTRIBUTES
        )
        self.capability = major, minor
        if self.capability < MIN_COMPUTE_CAPABILITY:
            pair = self.capability, MIN_COMPUTE_CAPABILITY
            actual, minimum = (".".join(map(str, capability)) for capability in pair)
            raise DeviceError(
                f"{self.name} has compute capability {actual}; at least {minimum} is needed"
            )
        self.version = divmod(self._call(cuda.cuDriverGetVersion) // 10, 100)
        self.total: int = self._call(cuda.cuDeviceTotalMem, device)
        self.uuid: str = self._call(cuda.cuDeviceGetUuid, device).bytes.hex()
        self._context = self._call(cuda.cuDevicePrimaryCtxRetain, device)
        # Modules and the context exist until the process ends, as CuPy's do.  All functions of a
        # device share its streams, so each function sees the parameters that another has updated.
        with self.current():
            self.compute, self.copies, self.measuring = (self.stream() for _ in range(3))
            # For captures, one at a time, while another thread may use `compute`.  The stream is
            # never destroyed, because a library's handle refers to the last stream that was set.
            self.captured = self.stream()
        self.capture_lock = forks.lock()

    @property
    def arch(self) -> str:
        """The device's architecture for compilers, such as "sm_90"."""
        return "sm_{}{}".format(*self.capability)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the device current in this thread during the block."""
        self._call(cuda.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            self._call(cuda.cuCtxPopCurrent)

    def _call(self, function: Any, *args: Any, nbytes: int = 0) -> Any:
        """Return the results of a function of the driver; raise its error.

        nbytes  bytes that the function allocates, for the message
        """
        out_of_memory = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        error, *results = function(*args)
        if error == out_of_memory:
            self.free_unused()
            error, *results = function(*args)
        if error == out_of_memory:
            raise self._out_of_memory(nbytes)
        return _checked(function, error, *results)

    def _destroy(self, function: Any, handles: Sequence[int]) -> None:
        """Free objects of the driver, also from a finalizer in any thread.

        It never raises: a lost device has raised an error elsewhere.
        """
        (error,) = cuda.cuCtxPushCurrent(self._context)
        if error == cuda.CUresult.CUDA_SUCCESS:
            for handle in handles:
                function(handle)
            cuda.cuCtxPopCurrent()

    # ------------------------------------------------------------ memory

    def free_bytes(self) -> int:
        """Return the free bytes of the device, without those in CuPy's pool."""
        error, free, _ = cuda.cuMemGetInfo()
        return int(free) if error == cuda.CUresult.CUDA_SUCCESS else 0

    def free_unused(self) -> None:
        """Return the unused memory of CuPy's pool to the device, for other libraries.

        The pool itself does that before it raises an error.
        """
        if self._capturing == threading.get_ident():  # freeing would invalidate the capture
            return
        with contextlib.suppress(RuntimeError), cupy.cuda.Device(self.ordinal):  # a lost device
            cupy.get_default_memory_pool().free_all_blocks()

    def _out_of_memory(self, nbytes: int) -> OutOfMemory:
        request = f"asked for {_mebibytes(nbytes)}, " if nbytes else ""
        return OutOfMemory(
            f"out of memory on {self.device} ({self.name}): {request}"
            f"{_mebibytes(self.free_bytes())} of {_mebibytes(self.total)} are free; "
            f"a smaller batch needs less"
        )

    def allocate(self, nbytes: int) -> Array:
        """Return a new CuPy array of at least one byte for work on the stream `compute`.

        The pool reuses its memory only for later work on that stream.
        """
        with cupy.cuda.Device(self.ordinal), on_stream(self.compute):
            return self.array(Spec((max(nbytes, 1),), np.dtype(np.uint8)))

    def pinned_memory(self, nbytes: int) -> Array:
        """Return page-locked bytes of the host, from and to which copies are asynchronous."""
        if not nbytes:
            return np.empty(0, np.uint8)
        flags = cuda.CU_MEMHOSTALLOC_PORTABLE
        address = int(self._call(cuda.cuMemHostAlloc, nbytes, flags, nbytes=nbytes))
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(memory, self._destroy, cuda.cuMemFreeHost, [address]).atexit = False
        return np.ctypeslib.as_array(memory)

    def upload(self, to: int, source: Array, stream: int) -> None:
        """Copy a contiguous array of the host, which must not change before the copy ends."""
        if source.nbytes:
            self._call(cuda.cuMemcpyHtoDAsync, to, source.ctypes.data, source.nbytes, stream)

    def download(self, to: Array, source: int, stream: int) -> None:
        """Copy to a contiguous array of the host."""
        if to.nbytes:
            self._call(cuda.cuMemcpyDtoHAsync, to.ctypes.data, source, to.nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy within the device, or from one device to another."""
        if nbytes:
            self._call(cuda.cuMemcpyAsync, to, source, nbytes, stream)

    def array(self, spec: Spec) -> Array:
        """Return a new, uninitialised CuPy array for the caller."""
        try:
            with cupy.cuda.Device(self.ordinal):
                return cupy.empty(spec.shape, spec.dtype)
        except cupy.cuda.memory.OutOfMemoryError:
            raise self._out_of_memory(spec.nbytes) from None

    def view(self, memory: Array, spec: Spec, owner: object) -> Array:
        """Return a CuPy array in the memory of another, which keeps `owner` alive."""
        unowned = cupy.cuda.UnownedMemory(memory.data.ptr, memory.nbytes, owner, self.ordinal)
        return cupy.ndarray(spec.shape, spec.dtype, cupy.cuda.MemoryPointer(unowned, 0))

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        if nbytes:
            self._call(cuda.cuMemsetD8Async, address, 0, nbytes, stream)

    # ------------------------------------------------------------ kernels

    def load(self, cubin: bytes, names: Sequence[str]) -> list[int]:
        module = self._call(cuda.cuModuleLoadData, cubin, nbytes=len(cubin))
        return [int(self._call(cuda.cuModuleGetFunction, module, n.encode())) for n in names]

    def launch(
        self, function: int, grid: Dim3, block: Dim3, stream: int, arguments: Arguments
    ) -> None:
        """Launch a kernel that takes only the words and has no dynamic shared memory."""
        self._call(cuda.cuLaunchKernel, function, *grid, *block, 0, stream, arguments.address, 0)

    # ------------------------------------------------------------ order and time

    def stream(self) -> int:
        """Return a new stream that does not wait for the default stream."""
        return int(self._call(cuda.cuStreamCreate, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def high_priority_stream(self) -> int:
        """Return a new stream whose kernels get free processors before those of other streams."""
        _, greatest = self._call(cuda.cuCtxGetStreamPriorityRange)
        flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self._call(cuda.cuStreamCreateWithPriority, flags, greatest))

    def current_stream(self) -> int:
        """Return CuPy's current stream in this thread, which is the caller's."""
        return int(cupy.cuda.get_current_stream(self.ordinal).ptr)

    def event(self, timing: bool = False) -> int:
        """Return a new event, which is cheaper without timing."""
        flags = cuda.CUevent_flags
        flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return int(self._call(cuda.cuEventCreate, flag))

    def record(self, event: int, stream: int) -> None:
        """Record an event after all work that a stream has so far."""
        self._call(cuda.cuEventRecord, event, stream)

    def record_in_graph(self, event: int, stream: int) -> None:
        """Record an event in the graph that a stream is capturing."""
        external = cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        self._call(cuda.cuEventRecordWithFlags, event, stream, external)

    def wait(self, stream: int, event: int) -> None:
        """Let later work of a stream wait for the last recording of an event."""
        self._call(cuda.cuStreamWaitEvent, stream, event, 0)

    def is_complete(self, event: int) -> bool:
        """Return whether the last recording of an event is complete."""
        error, *_ = cuda.cuEventQuery(event)
        if error == cuda.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self.finish(event)  # returns immediately, or raises the device's error
        return True

    def finish(self, event: int) -> None:
        """Wait until an event is complete."""
        self._call(cuda.cuEventSynchronize, event)

    def synchronize(self, stream: int) -> None:
        """Wait until all work of a stream is complete."""
        self._call(cuda.cuStreamSynchronize, stream)

    def seconds(self, begin: int, end: int) -> float:
        """Return the time between two complete events, both made with `timing`."""
        return float(self._call(cuda.cuEventElapsedTime, begin, end)) / 1000

    # ------------------------------------------------------------ graphs

    def begin_capture(self, stream: int) -> None:
        """Capture later work of the stream instead of running it.

        Other threads may still make calls that a capture forbids, such as allocations of CuPy.
        """
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call(cuda.cuStreamBeginCapture, stream, mode)
        self._capturing = threading.get_ident()

    def end_capture(self, stream: int) -> int:
        """Return a function that launches the captured graph."""
        self._capturing = None
        graph = self._call(cuda.cuStreamEndCapture, stream)
        try:
            return int(self._call(cuda.cuGraphInstantiate, graph, 0))
        finally:
            self._call(cuda.cuGraphDestroy, graph)

    def launch_graph(self, executable: int, stream: int) -> None:
        self._call(cuda.cuGraphLaunch, executable, stream)

    def destroy(self, executables: Sequence[int], events: Sequence[int]) -> None:
        """Destroy graphs and events."""
        self._destroy(cuda.cuGraphExecDestroy, executables)
        self._destroy(cuda.cuEventDestroy, events)


def _checked(function: Any, error: Any, *results: Any) -> Any:
    """Return the results of a function of the driver without the error; raise the error."""
    if error != cuda.CUresult.CUDA_SUCCESS:
        _, text = cuda.cuGetErrorString(error)
        message = f"{function.__name__}: {error.name}" + (f" ({text.decode()})" if text else "")
        if error.name in STICKY_ERRORS:
            raise DeviceLost(f"{message}; only another process can use the device again")
        raise DeviceError(message)
    return results[0] if len(results) == 1 else tuple(results)


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"
