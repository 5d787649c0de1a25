"""Programs: steps on buffers, made from a graph, and what a device must offer to run them."""

from minigraph.program.device import (
    NOTHING_RESERVED,
    Backend,
    Done,
    Executor,
    ReservedMemory,
    Tunable,
    nothing,
    on_host,
)
from minigraph.program.steps import (
    Buffer,
    Choice,
    Kernel,
    KernelFailed,
    Memory,
    MemorySpace,
    Program,
    Step,
    Timing,
    Traffic,
    View,
    round_up,
)
