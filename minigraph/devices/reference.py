"""The reference backend: Python computes each op in NumPy, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from minigraph.devices.host import (
    HostBackend,
    Observer,
    call_in_order,
    external_memory,
    no_observer,
)
from minigraph.graph import Array, Node, Shape, compute
from minigraph.platform.signals import signals_deferred
from minigraph.program import Choice, Done, Kernel, KernelFailed, Memory, Program, Step, Timing


class NumpyKernel(Kernel):
    """The kernel that computes a node by its op's NumPy meaning, and copies the result."""

    maker = "numpy"
    validates_input = True

    def __init__(self, node: Node, why: str = "") -> None:
        self.node = node
        self.why_numpy = why
        self.strided = (True,) * len(node.inputs)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        with np.errstate(all="ignore"):
            results = compute(self.node, *inputs)
        if not self.node.is_bundle:
            results = (results,)
        for output, result in zip(outputs, results, strict=True):
            np.copyto(output, result)


def run_step(step: Step, kernel: Kernel, memory: Memory) -> None:
    kernel.run(
        [view.array(memory[view.buffer]) for view in step.inputs],
        [view.array(memory[view.buffer]) for view in step.outputs],
        memory[step.scratch],
    )


class Interpreter:
    """Runs the steps of a program one by one from Python."""

    launches = 0

    def __init__(self, program: Program, memory: Memory) -> None:
        self.program = program
        self.memory = memory
        self.failures: dict[Step, str] = {}

    def __call__(self, arrays: Sequence[Array], commit: Sequence[Done] = ()) -> None:
        self.profile(arrays, commit)

    def profile(
        self, arrays: Sequence[Array], commit: Sequence[Done], observer: Observer = no_observer
    ) -> list[Timing]:
        memory = {**self.memory, **external_memory(self.program, arrays)}
        timings = []
        steps = self.program.steps
        # From the first step on that changes a parameter, a call must run to its end.
        first_change = next((step for step in steps if step.changes_parameters), None)
        with ExitStack() as stack:
            for step in steps:
                if step is first_change:
                    stack.enter_context(signals_deferred())
                check_outputs = observer(step, memory)
                start = time.perf_counter()
                self._run_step(step, memory)
                timings.append(Timing(step, start, time.perf_counter() - start))
                check_outputs()
            call_in_order(commit)
        return timings

    def _run_step(self, step: Step, memory: Memory) -> None:
        try:
            run_step(step, step.kernel, memory)
        except KernelFailed as error:
            run_step(step, step.kernel.fallback or NumpyKernel(step.node), memory)
            if step.measured and not step.kernel.fallback:
                self.failures[step] = str(error)


class ReferenceBackend(HostBackend):
    """Device "reference": slow, but every other device has to agree with it."""

    device = "reference"

    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        return NumpyKernel(node)

    def loop(self, node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
        return NumpyKernel(node)

    def runner(self, program: Program, memory: Memory) -> Interpreter:
        return Interpreter(program, memory)
