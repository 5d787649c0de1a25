"""Programs: steps on buffers, made from a graph, and what a device must offer to run them."""

from minigraph.program.program import (
    ALIGNMENT,
    NUMPY,
    Backend,
    Buffer,
    Executor,
    Home,
    Kernel,
    KernelFailed,
    Memory,
    Program,
    Step,
    Timing,
    Tunable,
    View,
    round_up,
)
