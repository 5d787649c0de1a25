"""Device "cpu": which kernel computes a node, and running a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minigraph.backends.cpu import bulk, compiler, generated, heavy, onednn
from minigraph.backends.reference import Interpreter, NumpyKernel
from minigraph.graph import Node, Shape
from minigraph.program import Executor, Kernel, Memory, Program


class CpuBackend:
    """Device "cpu".

    threads  that kernels may use; small ones run on one
    bulk     run a step as one native call, else one call a kernel
    """

    device = "cpu"

    def __init__(self, threads: int, bulk: bool) -> None:
        self.threads = threads
        self.bulk = bulk
        self.library = onednn.library()
        self.versions: Mapping[str, str] = {
            "onednn": self.library.version if self.library else "none",
            "compiler": compiler.version(),
        }

    def kernel(self, node: Node, strides: Sequence[Shape]) -> Kernel:
        found: Kernel | None = None
        if self.library:
            found = heavy.kernel(node, strides, self.threads)
        if found is None and compiler.compiler():
            found = generated.kernel(node, strides, self.threads)
        return found or NumpyKernel(node)

    def bind(self, program: Program, memory: Memory) -> Executor:
        runtime = bulk.load() if compiler.compiler() else None
        if runtime is None:
            return Interpreter(program, memory)
        return bulk.NativeProgram(program, memory, runtime, self.threads, self.bulk)
