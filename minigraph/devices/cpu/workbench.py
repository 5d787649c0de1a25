"""Where candidates for the CPU are measured."""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.autotune.candidate import HostBench, Run, Runner
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import CpuKernel, KernelRunner


class CpuBench(HostBench):
    """The workbench of this machine's processor.

    on_disk  whether kernels may be looked for, and kept, on disk
    """

    def __init__(self, on_disk: bool) -> None:
        self.on_disk = on_disk

    def compile(self, kernels: Iterable[Runner]) -> None:
        native = (kernel for kernel in kernels if isinstance(kernel, CpuKernel))
        texts = [text for kernel in native for text in kernel.texts]
        if texts:
            compiler.KERNELS.functions(texts, self.on_disk)

    def runner(self, kernel: Runner) -> Run:
        return (
            KernelRunner(kernel, self.on_disk).run if isinstance(kernel, CpuKernel) else kernel.run
        )
