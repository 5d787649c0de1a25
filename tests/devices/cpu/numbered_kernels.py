"""Kernels that write a number, compiled in other processes."""

import ctypes

from new_process import wait

from minigraph.cache.counters import KernelStats
from minigraph.devices.cpu import compiler
from minigraph.jit.source import KernelSource

GCC = compiler.compiler()


def kernel(value, padding=0):
    """Return a kernel whose result is a number."""
    comment = f"/* {'.' * padding} */"
    return KernelSource(
        f"int NAME(const int64_t *a, char **slots) {{ return {value}; {comment} }}\n"
    )


def results(*kernels):
    """Load and call kernels; None for one that was not compiled."""
    found = compiler.KERNELS.functions(kernels)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return [prototype(found[k.name])(None, None) if found[k.name] else None for k in kernels]


def counts(compilations=0, memory_hits=0, disk_hits=0, loads=0):
    return KernelStats(compilations, memory_hits, disk_hits, loads)


PROGRAM = """
import sys
import numpy as np
import minigraph as mg
x = mg.input("x", (5,))
y = mg.ops.tanh(x) * x.sum() - mg.ops.exp(x).max()
print(mg.comp_graph("cpu").compile([x], y)(np.arange(5) / 5).tobytes().hex())
stats = mg.jit.stats()
print(stats.compilations, stats.memory_hits, stats.disk_hits, stats.loads)
"""


def finish(process):
    """Return what a program computed, and what it counted."""
    computed, counted = wait(process)[0].splitlines()
    return computed, KernelStats(*map(int, counted.split()))
