"""The CPU: oneDNN for the heavy ops, generated C for the rest, NumPy where neither is there."""

from minigraph.backends.cpu.backend import CpuBackend
