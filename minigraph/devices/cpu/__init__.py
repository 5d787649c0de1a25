"""The CPU: oneDNN and minigraph's own kernels for heavy ops, generated C for the others.

NumPy computes the remaining ops.
"""

from minigraph.devices.cpu.device import CpuBackend
