"""The CPU: oneDNN and Winograd's algorithm for the heavy ops, generated C for the rest.

NumPy computes what neither does.
"""

from minigraph.devices.cpu.device import CpuBackend
