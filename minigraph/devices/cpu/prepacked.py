"""Kernels of convolutions with packed weights."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.devices.cpu.kernel import (
    NO_PLACE,
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

WEIGHTS = 1  # index of the input
ALL, PACK, COMPUTE, ON_THE_FLY = range(4)  # modes of a call, see `PrepackedWeights`


class PrepackedWeights(NativeKernel):
    """A kernel of images and weights that computes with packed weights.

    Constant weights are packed once.  The argument block of `source` is `values`; the mode (0: pack
    and compute; 1: pack; 2: compute; 3: pack each weight right before its use); the places of
    images, weights, bias, result, workspace and packed weights; then `last_words`.

    weights     bytes of packed weights
    workspace   bytes of further memory
    on_the_fly  bytes of the workspace in mode 3; None if the kernel lacks that mode
    """

    def __init__(
        self,
        node: Node,
        algorithm: str,
        source: KernelSource,
        values: Sequence[int],
        *,
        weights: int,
        workspace: int = 0,
        on_the_fly: int | None = None,
        last_words: Sequence[int] = (),
    ) -> None:
        self.source = source
        self.values = values
        self.last_words = last_words
        constant = WEIGHTS in constants_of(node)
        self.mode = ALL
        if on_the_fly is not None and not constant:
            self.mode, weights, workspace = ON_THE_FLY, 0, on_the_fly
        self.weights = round_up(weights)
        scratch = workspace if constant else self.weights + workspace
        super().__init__(node, [], scratch, algorithm=algorithm)
        self.sources = [source]
        if constant:
            self.preparations = {WEIGHTS: Preparation(self.weights, self._prepack)}

    def calls(self, operands: Operands, linker: Linker) -> list[NativeCall]:
        slot, offset = operands.scratch
        if WEIGHTS in operands.prepared:
            weights = operands.prepared[WEIGHTS]
            return [self._call(linker, operands, weights, (slot, offset), COMPUTE)]
        workspace = (slot, offset + self.weights)
        return [self._call(linker, operands, (slot, offset), workspace, self.mode)]

    def _prepack(self, source: Place, target: Place, linker: Linker) -> list[NativeCall]:
        operands = Operands([NO_PLACE, source], [NO_PLACE], NO_PLACE)
        return [self._call(linker, operands, target, NO_PLACE, PACK)]

    def _call(
        self, linker: Linker, operands: Operands, weights: Place, workspace: Place, mode: int
    ) -> NativeCall:
        ins = operands.inputs
        places = (*ins[:2], ins[-1], *operands.outputs, workspace, weights)
        words = [*self.values, mode, *(v for place in places for v in place), *self.last_words]
        return linker.call(self.source, words)
