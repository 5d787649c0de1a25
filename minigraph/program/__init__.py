"""Programs: steps on buffers, lowered from a graph, and the interface of devices that run them."""

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
