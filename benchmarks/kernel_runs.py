"""What runs the kernels of candidates on given arrays, for the programs that time them."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu.workbench import KernelRunner
from minigraph.graph import Array


def kernel_runs(
    candidates: Iterable[Candidate], operands: Sequence[Array], result: Array
) -> dict[str, Callable[[], None]]:
    """Return what runs each candidate's kernel, by its name; all write the same result."""
    return {candidate.name: _run(candidate, operands, result) for candidate in candidates}


def _run(candidate: Candidate, operands: Sequence[Array], result: Array) -> Callable[[], None]:
    kernel = candidate.make()
    run, scratch = KernelRunner(kernel, on_disk=True), np.empty(kernel.scratch, np.uint8)
    return lambda: run(operands, [result], scratch)
