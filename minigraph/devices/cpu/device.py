"""Device "cpu": which kernel computes a node, and running a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minigraph import options
from minigraph.cache import Entry
from minigraph.cache.machine import processor
from minigraph.devices.cpu import (
    candidates,
    compiler,
    kernels,
    onednn,
    primitives,
    walker,
    winograd,
)
from minigraph.devices.cpu.kernel import SequenceKernel
from minigraph.devices.host import HostBackend, StepRunner
from minigraph.devices.reference import Interpreter, NumpyKernel
from minigraph.graph import Node, Shape, in_place_of
from minigraph.ops.activation import Activated
from minigraph.program import NUMPY, Kernel, Memory, Program, Tunable
from minigraph.version import __version__

JIT_BACKENDS = {
    "none": "MINIGRAPH_JIT_BACKEND is none",
    "halide": "MINIGRAPH_JIT_BACKEND is halide, which this version does not have",
    "nvrtc": "MINIGRAPH_JIT_BACKEND is nvrtc, which is for CUDA devices",
}


class CpuBackend(HostBackend):
    """Device "cpu".

    threads  that kernels may use; small ones run on one
    bulk     run a step as one native call, else one call a kernel
    on_disk  whether kernels may be looked for, and kept, on disk
    """

    device = "cpu"
    tuning = "onednn"

    def __init__(self, threads: int, bulk: bool, on_disk: bool = True) -> None:
        self.threads = threads
        self.bulk = bulk
        self.on_disk = on_disk
        self.library = onednn.library()
        self.versions: Mapping[str, str] = {
            "onednn": self.library.version if self.library else "none",
            "compiler": compiler.version(),
        }
        self.why_no_jit = ""
        if options.jit_backend() not in ("", "c"):
            self.why_no_jit = JIT_BACKENDS[options.jit_backend()]
        elif compiler.compiler() is None:
            self.why_no_jit = "there is no C compiler"

    @property
    def block(self) -> int:
        return onednn.block() if self.library else 1

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        if not self.library:
            return None
        first = _parts(node)[0] if isinstance(node.op, Activated) else node
        return candidates.tunable(first, strides, self.threads, self.on_disk)

    def kernel(self, node: Node, strides: Sequence[Shape], algorithm: str = "") -> Kernel:
        found: Kernel | None = None
        if isinstance(node.op, Activated):
            found = self._activated(node, strides, algorithm)
        elif self.library and algorithm != NUMPY:
            if algorithm in winograd.NAMES and compiler.compiler():
                found = winograd.kernel(node, algorithm, primitives.threads_for(node, self.threads))
            found = found or primitives.kernel(node, strides, self.threads, algorithm)
        if found is None and compiler.compiler():
            found = kernels.kernel(node, strides, self.threads)
        return found or NumpyKernel(node)

    def _activated(self, node: Node, strides: Sequence[Shape], algorithm: str) -> Kernel | None:
        """Return the kernel for the first op followed by the activation's; None if it is NumPy's.

        oneDNN could activate while it writes, but its ReLU gives 0 for NaN: a network that diverged
        would look healthy.  So the activation's own kernel passes over the output.
        """
        product, activated = _parts(node)
        first = self.kernel(product, strides, algorithm)
        if isinstance(first, NumpyKernel):
            return None
        return SequenceKernel(first, self.kernel(activated, [product.spec.strides]))

    def runner(self, program: Program, memory: Memory) -> StepRunner:
        runtime = walker.load(self.on_disk) if compiler.compiler() else None
        if runtime is None:
            return Interpreter(program, memory)
        return walker.NativeProgram(program, memory, runtime, self.threads, self.bulk, self.on_disk)

    def environment(self, kind: str) -> Mapping[str, str]:
        if kind == "onednn" and self.library:
            return {
                "minigraph": __version__,
                **self.versions,
                "instructions": hex(self.library.instructions),
                "processor": processor(),
            }
        return compiler.toolchain() if kind == "jit" and compiler.compiler() else {}

    def kernels(self, program: Program) -> list[Entry]:
        sources = [s for step in program.steps for s in walker.sources_of(step.kernel)]
        return compiler.export_kernels([*walker.ROUTINES, *sources])

    def keep_kernels(self, entry: Entry) -> str:
        return compiler.import_kernels(entry)


def _parts(node: Node) -> tuple[Node, Node]:
    """The two ops that an Activated is made of."""
    with in_place_of(node):
        (activated,) = node.op.expand(*node.inputs)
    return activated.inputs[0], activated
