"""Device "cpu": which kernel computes a node, and running a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minigraph import options
from minigraph.backends.cpu import bulk, compiler, generated, heavy, onednn
from minigraph.backends.cpu.native import SequenceKernel
from minigraph.backends.cpu.onednn import OneDnnKernel
from minigraph.backends.reference import Interpreter, NumpyKernel
from minigraph.graph import Node, in_place_of
from minigraph.ops.epilogue import Activated
from minigraph.program import Executor, Kernel, Memory, Program
from minigraph.spec import Shape

JIT_BACKENDS = {
    "none": "MINIGRAPH_JIT_BACKEND is none",
    "halide": "MINIGRAPH_JIT_BACKEND is halide, which this version does not have",
}


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
        self.why_no_jit = ""
        if options.jit_backend() != "c":
            self.why_no_jit = JIT_BACKENDS[options.jit_backend()]
        elif compiler.compiler() is None:
            self.why_no_jit = "there is no C compiler"

    def kernel(self, node: Node, strides: Sequence[Shape]) -> Kernel:
        found: Kernel | None = None
        if isinstance(node.op, Activated):
            found = self._activated(node, strides)
        elif self.library:
            found = heavy.kernel(node, strides, self.threads)
        if found is None and compiler.compiler():
            found = generated.kernel(node, strides, self.threads)
        return found or NumpyKernel(node)

    def _activated(self, node: Node, strides: Sequence[Shape]) -> Kernel | None:
        """Return oneDNN's kernel for the first op followed by the activation's, if it has one.

        oneDNN could activate while it writes, but its ReLU gives 0 for NaN: a network that diverged
        would look healthy.  So the activation's own kernel passes over the output.
        """
        with in_place_of(node):
            (activated,) = node.op.expand(*node.inputs)
        (product,) = activated.inputs
        first = self.kernel(product, strides)
        if not isinstance(first, OneDnnKernel):
            return None
        return SequenceKernel(first, self.kernel(activated, [product.spec.strides]))

    def bind(self, program: Program, memory: Memory) -> Executor:
        runtime = bulk.load() if compiler.compiler() else None
        if runtime is None:
            return Interpreter(program, memory)
        return bulk.NativeProgram(program, memory, runtime, self.threads, self.bulk)
