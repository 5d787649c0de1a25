"""Device "cpu": the kernel for each node, and the runner of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minigraph import options
from minigraph.cache import Entry
from minigraph.cache.machine import model, processor
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import (
    amx,
    compiler,
    halide_compiler,
    kernels,
    onednn,
    openmp,
    primitives,
    walker,
)
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.devices.cpu.collective import collective_kernel
from minigraph.devices.cpu.converted import upcast_kernel
from minigraph.devices.cpu.kernel import CpuKernel, Linker, SequenceKernel
from minigraph.devices.cpu.loop import loop_kernel, small_products
from minigraph.devices.host import HostBackend, StepRunner
from minigraph.devices.problem import MIN_WARNED_OPERATIONS, operations
from minigraph.devices.reference import Interpreter, NumpyKernel
from minigraph.distributed import World
from minigraph.errors import warn_once
from minigraph.graph import Node, Shape, in_place_of
from minigraph.ops.activation import Activated
from minigraph.program import Choice, Kernel, Memory, Program, Tunable
from minigraph.version import __version__


class CpuBackend(HostBackend):
    """Device "cpu".

    threads  threads of large kernels; small kernels run on one thread
    """

    device = "cpu"
    tuning = "onednn"

    def __init__(
        self,
        number: int | None,
        values: Mapping[str, Any],
        on_disk: bool = True,
        world: World | None = None,
    ) -> None:
        self.threads = openmp.available_threads(options.num_threads(values["num_threads"]))
        self.values = values
        self.on_disk = on_disk
        self.library = onednn.library()
        self._problems = CpuProblems(self.threads, on_disk, values["precision"])
        if values["precision"] == amx.PRECISION:
            self.ignored_options = {}
        self.versions = {
            "onednn": self.library.version if self.library else "none",
            "instructions": hex(self.library.instructions) if self.library else "none",
            "compiler": compiler.compiler_version(),
        }
        self.why_no_jit = "" if halide_compiler.is_selected() else compiler.why_no_jit()
        # Whether a library or compiled kernels compute convolutions and products, or only NumPy.
        self._convolves = self.library is not None or compiler.compiler() is not None
        if self._convolves:
            self.blocks = onednn.blocks()

    def refusal(self, option: str, value: str) -> str:
        if option == "precision":
            return amx.why_not() if value == amx.PRECISION else ""
        if value == "off":
            return ""
        if value != "bfloat16":
            return 'the CPU supports only "bfloat16" and "off"'
        if not self.library:
            return "oneDNN is missing: pip install onednn-cpu-gomp (x86-64)"
        if onednn.BFLOAT16 in onednn.dtypes():
            return ""
        return (
            f"{model()} has neither AVX512_BF16 nor AMX, or ONEDNN_MAX_CPU_ISA forbids them; "
            'amp="off" computes in float32'
        )

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        if not self._convolves:
            return None
        product = _parts(node)[0] if isinstance(node.op, Activated) else node
        if compiler.compiler() and small_products(product, strides):
            return None
        return self._problems.tunable(product, strides)

    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        if isinstance(node.op, Activated):
            return self._activated(node, strides, choice)
        return self._native(node, strides, choice) or NumpyKernel(node, self._why_numpy(node))

    def _native(
        self, node: Node, strides: Sequence[Shape], choice: Choice | None = None
    ) -> CpuKernel | None:
        kernel: CpuKernel | None = choice.kernel if choice else None  # type: ignore[assignment]
        if not choice and compiler.compiler():
            kernel = small_products(node, strides)
        if not choice and kernel is None and self.library:
            kernel = primitives.onednn_kernel(node, strides, self.threads)
        if kernel is None and compiler.compiler():
            kernel = collective_kernel(node, self.values["distributed.timeout"])
        if kernel is None and (compiler.compiler() or halide_compiler.is_selected()):
            kernel = kernels.native_kernel(node, strides, self.threads)
            kernel = kernel or upcast_kernel(node, strides, self._native)
        return kernel

    def loop(self, node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
        if compiler.compiler():
            return loop_kernel(node, strides, body)
        return NumpyKernel(node, compiler.NO_COMPILER)

    def _why_numpy(self, node: Node) -> str:
        """Return why NumPy computes a node; warn if that is slow and kernels exist."""
        if not compiler.compiler():
            return compiler.NO_COMPILER
        if not kernels.has_kernels(node.op):
            return f"{node.op.name} has no kernel"
        why = f"no kernel of {node.op.name} fits its shapes and types"
        if operations(node) >= MIN_WARNED_OPERATIONS:
            warn_once(
                f"{why}: NumPy computes it; report().numpy names every such step",
                cause=f"NumPy computes {node.op.name}",
            )
        return why

    def _activated(self, node: Node, strides: Sequence[Shape], choice: Choice | None) -> Kernel:
        """Return the first op's kernel followed by the activation's, or NumPy's for both.

        The activation has a separate kernel: oneDNN's fused ReLU turns NaN into 0, so a diverged
        network would look healthy.
        """
        product, activated = _parts(node)
        first = self._native(product, strides, choice)
        if first is None:
            return NumpyKernel(node, self._why_numpy(product))
        return SequenceKernel(first, self.kernel(activated, [product.spec.strides]), activated)

    def runner(self, program: Program, memory: Memory) -> StepRunner:
        linker = Linker(walker.texts(program), self.on_disk)  # Halide's kernels need no compiler
        for kernel in (step.kernel for step in program.all_steps()):
            if isinstance(kernel, CpuKernel):
                kernel.why_numpy = linker.error(kernel.texts, kernel.substitutes)
        walk = walker.load(linker)
        if walk is None:
            return Interpreter(program, memory)
        bulk = self.values["bulk"]
        return walker.NativeProgram(program, memory, walk, linker, self.threads, bulk)

    def environment(self, kind: str) -> Mapping[str, str]:
        if kind == "onednn" and self._convolves:
            return {"minigraph": __version__, **self.versions, "processor": processor()}
        if kind != "jit":
            return {}
        cache = compiler.KERNELS if compiler.compiler() else halide_compiler.KERNELS
        return cache.environment()

    def kernels(self, program: Program) -> list[Entry]:
        return halide_compiler.stored(walker.texts(program))

    def keep_kernels(self, entries: Sequence[Entry]) -> None:
        kernel_cache.keep_kernels(entries, replace=False)


def _parts(node: Node) -> tuple[Node, Node]:
    """Return the two nodes that an Activated fuses."""
    with in_place_of(node):
        (activated,) = node.op.expand(*node.inputs)
    return activated.inputs[0], activated
