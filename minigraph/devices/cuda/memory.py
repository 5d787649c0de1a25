"""Device memory: its alignment, and addresses and streams as CuPy's arrays and streams."""

from __future__ import annotations

from typing import Any

import cupy

from minigraph.graph import Array, Shape, Spec

READABLE = 16  # bytes: the widest loads of our kernels, and the alignment that cuDNN is told
ALIGNMENT = 256  # bytes: of the device's own allocations; cuDNN may expect it of its workspace


def aligned(nbytes: int) -> int:
    """Return the least multiple of ALIGNMENT that is not below a size, or an address."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class _Stream:
    """A stream in the terms of the protocol that libraries share."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def on_stream(address: int) -> Any:
    """Return CuPy's stream for a stream's address; what CuPy does within it is enqueued there."""
    return cupy.cuda.Stream.from_external(_Stream(address))


def array_at(address: int, spec: Spec, strides: Shape) -> Array:
    """Return the CuPy array at an address on the current device, which somebody else owns."""
    memory = cupy.cuda.UnownedMemory(address, spec.nbytes, None, cupy.cuda.get_device_id())
    return cupy.ndarray(spec.shape, spec.dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
