"""Kernels of convolutions that bring the weights into an order of their own before they compute."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.devices.cpu.kernel import (
    NOWHERE,
    Linker,
    NativeCall,
    NativeKernel,
    Operands,
    Place,
    Preparation,
    constants_of,
)
from minigraph.graph import Node
from minigraph.jit.source import KernelSource
from minigraph.program import round_up

WEIGHTS = 1  # which input they are
ALL, PACK, COMPUTE, AS_USED = range(4)  # what a call does, see `PrepackedWeights`


class PrepackedWeights(NativeKernel):
    """A kernel of images and weights that computes with packed weights.

    Weights that are constants are packed once.  The argument block of `source` is `values`; what
    is to be done (0: all; 1: pack the weights; 2: compute with packed weights; 3: all, with
    weights that are packed as they are used); the places of images, weights, bias, result, other
    memory, and packed weights; then `after`.

    weights  bytes that they take when packed
    others   bytes of other memory
    as_used  bytes of that where they are packed as they are used; None if they never are
    """

    def __init__(
        self,
        node: Node,
        algorithm: str,
        source: KernelSource,
        values: Sequence[int],
        *,
        weights: int,
        others: int = 0,
        as_used: int | None = None,
        after: Sequence[int] = (),
    ) -> None:
        self.source = source
        self.values = values
        self.after = after
        constant = WEIGHTS in constants_of(node)
        self.work = ALL
        if as_used is not None and not constant:
            self.work, weights, others = AS_USED, 0, as_used
        self.weights = round_up(weights)
        scratch = others if constant else self.weights + others
        super().__init__(node, [], scratch, algorithm=algorithm)
        self.sources = [source]
        if constant:
            self.preparations = {WEIGHTS: Preparation(self.weights, self._prepack)}

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        slot, offset = operands.scratch
        if WEIGHTS in operands.prepared:
            weights = operands.prepared[WEIGHTS]
            return [self._call(linker, operands, weights, (slot, offset), COMPUTE)]
        others = (slot, offset + self.weights)
        return [self._call(linker, operands, (slot, offset), others, self.work)]

    def _prepack(self, source: Place, target: Place, linker: Linker) -> list[NativeCall]:
        operands = Operands([NOWHERE, source], [NOWHERE], NOWHERE)
        return [self._call(linker, operands, target, NOWHERE, PACK)]

    def _call(
        self, linker: Linker, operands: Operands, weights: Place, others: Place, work: int
    ) -> NativeCall:
        ins = operands.inputs
        places = (*ins[:2], ins[-1], *operands.outputs, others, weights)
        words = [*self.values, work, *(v for place in places for v in place), *self.after]
        return linker.call(self.source, words)
