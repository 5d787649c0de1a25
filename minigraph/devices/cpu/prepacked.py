"""Kernels of convolutions with packed weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from minigraph.devices.cpu.kernel import (
    NO_PLACE,
    KernelCall,
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
ALL, PACK, COMPUTE, ON_THE_FLY = range(4)  # modes of a call, see `prepacked_kernel`


def prepacked_kernel(
    node: Node,
    algorithm: str,
    source: KernelSource,
    values: Sequence[int],
    *,
    weights: int,
    workspace: int = 0,
    on_the_fly: int | None = None,
    last_words: Sequence[int] = (),
) -> NativeKernel:
    """Return a kernel of images and weights that computes with packed weights.

    Constant weights are packed once.  The argument block of `source` is `values`; the mode (0: pack
    and compute; 1: pack; 2: compute; 3: pack each weight right before its use); the places of
    images, weights, bias, result, workspace and packed weights; then `last_words`.

    weights     bytes of packed weights
    workspace   bytes of further memory
    on_the_fly  bytes of the workspace in mode 3; None if the kernel lacks that mode
    """
    constant = WEIGHTS in constants_of(node)
    mode = COMPUTE if constant else ALL
    if on_the_fly is not None and not constant:
        mode, weights, workspace = ON_THE_FLY, 0, on_the_fly
    nbytes = round_up(weights)

    def words(mode: int, operands: Operands, space: Place, packed: Place) -> list[int]:
        ins = operands.inputs
        places = (*ins[:2], ins[-1], *operands.outputs, space, packed)
        return [*values, mode, *itertools.chain(*places), *last_words]

    def block(operands: Operands) -> list[int]:
        slot, offset = scratch = operands.scratch
        if constant:
            return words(mode, operands, scratch, operands.prepared[WEIGHTS])
        return words(mode, operands, (slot, offset + nbytes), scratch)

    def pack(place: Place, target: Place, linker: Linker) -> list[NativeCall]:
        operands = Operands([NO_PLACE, place], [NO_PLACE], NO_PLACE)
        return [linker.call(source, words(PACK, operands, NO_PLACE, target))]

    scratch = workspace if constant else nbytes + workspace
    kernel = NativeKernel(node, [KernelCall(source, block)], scratch, algorithm=algorithm)
    if constant:
        kernel.preparations = {WEIGHTS: Preparation(nbytes, pack)}
    return kernel
