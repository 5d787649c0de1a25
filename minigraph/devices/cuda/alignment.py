"""What device memory has to begin at a multiple of, in bytes."""

READABLE = 16  # the widest loads of our kernels, and what cuDNN is told of its operands
ALIGNMENT = 256  # what the device's own allocations have, and cuDNN may expect of its workspace


def aligned(nbytes: int) -> int:
    """Return the least multiple of ALIGNMENT that is not below a size, or an address."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
