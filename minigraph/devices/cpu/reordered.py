"""Minigraph's own convolutions of images in nchw, between reorders to blocks of channels and back.

oneDNN does the same where it is there, and is preferred, but for weights' gradients of many pixels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import direct, onednn, winograd
from minigraph.devices.cpu.converted import Conversion, ConvertedKernel
from minigraph.devices.cpu.kernel import NativeKernel, constants_of
from minigraph.devices.cpu.kernels import native_kernel
from minigraph.devices.problem import (
    ROLES,
    Arrangement,
    Lanes,
    arrangement_of,
    layouts_of,
    product_of,
)
from minigraph.graph import Node, Op, Spec, placeholders
from minigraph.ops.conv import Conv2dBackwardWeights
from minigraph.ops.layout import Reorder, packed

MANY = 1024  # pixels


def sums_of_many_pixels(op: Op, node: Node) -> bool:
    """Whether a node adds up, for the gradient of weights, more pixels than oneDNN should.

    Its "jit" kernels for blocks of channels add up all pixels of all images one after the other.
    """
    dy = node.inputs[0]
    pixels = dy.shape[0] * math.prod(dy.shape[2:4])
    return isinstance(op, Conv2dBackwardWeights) and op.conv.groups == 1 and pixels > MANY


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithms for blocks of channels, with reorders, where oneDNN has none as good."""
    node, _, layouts = arrangement
    product = product_of(node)
    if not product or type(product.op) not in ROLES or max(product.lanes) > 1:
        return
    if onednn.library() and not sums_of_many_pixels(product.op, node):
        return
    operands, block = (*node.inputs[:2], node), onednn.block()
    first, second, result = (
        block if role != "w" and x.shape[1] % block == 0 else 1
        for role, x in zip(ROLES[type(product.op)], operands, strict=True)
    )
    lanes = first, second, result
    specs = [x.spec for x in node.inputs]
    blocked = layouts_of(product.op, lanes, [x.shape for x in specs], node.shape)
    inside = arrangement_of(product.op, product.activation, specs, constants_of(node), blocked)
    for generator in (winograd.candidates, direct.candidates):
        for candidate in generator(inside, threads):
            make = functools.partial(_between, node, candidate, lanes, threads)
            name = f"{candidate.name} with reorders"
            yield replace(candidate, name=name, layouts=layouts, make=make)


def _between(node: Node, candidate: Candidate, lanes: Lanes, threads: int) -> ConvertedKernel:
    """Return a kernel for blocks between the reorders of its images."""
    *ins, result = lanes
    before = [
        _reorder(x.spec, n, threads) if n > 1 else None
        for x, n in zip(node.inputs, [*ins, *(1 for _ in node.inputs[2:])], strict=True)
    ]
    after = [_back(node.spec, result, threads) if result > 1 else None]
    return ConvertedKernel(before, candidate.kernel, after, "with reorders")


def _reorder(x: Spec, lanes: int, threads: int) -> Conversion:
    return Conversion(_moved(x, lanes, threads), Spec(packed(x.shape, lanes), x.dtype))


def _back(y: Spec, lanes: int, threads: int) -> Conversion:
    blocked = Spec(packed(y.shape, lanes), y.dtype)
    return Conversion(_moved(blocked, 1, threads), blocked)


def _moved(x: Spec, lanes: int, threads: int) -> NativeKernel:
    """Return the kernel that brings contiguous images to these lanes, from or to nchw."""
    node = Reorder(lanes)(*placeholders([x]))
    kernel = native_kernel(node, [x.strides], threads)
    assert kernel is not None, "every reorder to or from nchw has a kernel"
    return kernel
