"""The ways in which oneDNN computes convolutions and their gradients: layouts and implementations.

Images in another layout than nchw are what the graph says; weights are in the implementation's own
layout, into which they are reordered inside the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.onednn import F32, Descriptor, MemoryDescriptor, dims
from minigraph.devices.cpu.onednn_kernel import Implementation, Operand
from minigraph.graph import Shape
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import unpacked

POINT = (1, 1)  # a window of one pixel
IMAGES = {  # the arguments that x and y are
    "forward": (onednn.SRC, onednn.DST),
    "backward_data": (onednn.DIFF_SRC, onednn.DIFF_DST),
    "backward_weights": (onednn.SRC, onednn.DIFF_DST),
}


def image_layout(shape: Shape, blocked: bool = False) -> MemoryDescriptor:
    """Return oneDNN's layout of images that lie as `shape`: see `minigraph.ops.layout`.

    blocked  how to see one block of all channels, which is nhwc too
    """
    if len(shape) == 4:
        return onednn.strided(shape, F32)
    n, c, h, w = unpacked(shape)
    lanes = shape[4]
    if lanes == c and not blocked:
        return onednn.strided((n, c, h, w), F32, (c * h * w, 1, w * c, c))
    return onednn.blocked((n, c, h, w), F32, lanes)


def _image_layouts(x: Shape, y: Shape) -> tuple[MemoryDescriptor, MemoryDescriptor]:
    """Return the layouts of the two images of a convolution: both in blocks if either is."""
    blocked = any(len(s) == 5 and s[1] > 1 for s in (x, y))
    return image_layout(x, blocked), image_layout(y, blocked)


def conv2d(op: Conv2d, xs: list[Shape], ys: list[Shape]) -> Iterator[Implementation]:
    x, w, *bias = xs
    (y,) = ys
    given = _image_layouts(x, y)
    args = [
        (onednn.SRC, given[0], Operand("inputs", 0)),
        (onednn.WEIGHTS, _weights(op, w), Operand("inputs", 1)),
        *((onednn.BIAS, onednn.strided(b, F32), Operand("inputs", 2)) for b in bias),
        (onednn.DST, given[1], Operand("outputs", 0)),
    ]
    for suffix, descriptor in _descriptors("forward", op, x, w, y, given, bool(bias)):
        yield Implementation(descriptor, args, suffix=suffix)


def conv2d_backward_data(
    op: Conv2dBackwardData, xs: list[Shape], ys: list[Shape]
) -> Iterator[Implementation]:
    dy, w = xs
    (dx,) = ys
    given = _image_layouts(dx, dy)
    args = [
        (onednn.DIFF_DST, given[1], Operand("inputs", 0)),
        (onednn.WEIGHTS, _weights(op.conv, w), Operand("inputs", 1)),
        (onednn.DIFF_SRC, given[0], Operand("outputs", 0)),
    ]
    for suffix, descriptor in _descriptors("backward_data", op.conv, dx, w, dy, given):
        yield Implementation(descriptor, args, suffix=suffix)


def conv2d_backward_weights(
    op: Conv2dBackwardWeights, xs: list[Shape], ys: list[Shape]
) -> Iterator[Implementation]:
    dy, x = xs
    (dw,) = ys
    given = _image_layouts(x, dy)
    args = [
        (onednn.DIFF_DST, given[1], Operand("inputs", 0)),
        (onednn.SRC, given[0], Operand("inputs", 1)),
        (onednn.DIFF_WEIGHTS, _weights(op.conv, dw), Operand("outputs", 0)),
    ]
    for suffix, descriptor in _descriptors("backward_weights", op.conv, x, dw, dy, given):
        yield Implementation(descriptor, args, suffix=suffix)


def _weights(op: Conv2d, w: Shape) -> MemoryDescriptor:
    """The caller's weights; oneDNN has the groups first."""
    return onednn.strided(_grouped(w, op.groups), F32)


def _grouped(w: Shape, groups: int) -> Shape:
    return w if groups == 1 else (groups, w[0] // groups, *w[1:])


def _descriptors(
    kind: str,
    op: Conv2d,
    x: Shape,
    w: Shape,
    y: Shape,
    given: tuple[MemoryDescriptor, MemoryDescriptor],
    bias: bool = False,
) -> Iterator[tuple[str, Descriptor]]:
    """Yield the suffix of its name, and the descriptor, of each implementation, likely best first.

    Where both images are nchw, oneDNN may also choose layouts and reorder the images on the way.
    Windows of one pixel make matrix products, which are fast on images as they are; for larger ones
    what another layout gains outweighs the reorders.
    """
    plain = unpacked(x), unpacked(y)
    pairs = [("", given)]
    if len(x) == len(y) == 4:
        chosen = onednn.any_layout(x, F32), onednn.any_layout(y, F32)
        pairs.insert(1 if w[2:] == POINT else 0, (" with reorders", chosen))
    for suffix, (x_layout, y_layout) in pairs:
        try:
            for found in _implementations(kind, op, plain, w, x_layout, y_layout, bias):
                if not suffix or not _leaves(found, kind, given):
                    yield suffix, found
        except onednn.Unimplemented:
            continue


def _leaves(
    descriptor: Descriptor, kind: str, given: tuple[MemoryDescriptor, MemoryDescriptor]
) -> bool:
    """Whether an implementation that may choose layouts leaves both images as they are."""
    images = (descriptor.layout(arg) for arg in IMAGES[kind])
    return all(chosen == layout for chosen, layout in zip(images, given, strict=True))


def _implementations(
    kind: str,
    op: Conv2d,
    images: tuple[Shape, Shape],
    w: Shape,
    x_layout: MemoryDescriptor,
    y_layout: MemoryDescriptor,
    bias: bool,
) -> Iterator[Descriptor]:
    engine = onednn.loaded().engine
    weights = onednn.any_layout(_grouped(w, op.groups), F32)
    window = [
        dims(op.stride),
        dims(d - 1 for d in op.dilation),
        dims(op.padding),
        dims(_padding_behind(op, images[0], w, images[1])),
    ]
    forward: list[Any] = [
        "dnnl_convolution_forward_primitive_desc_create",
        engine,
        onednn.FORWARD_TRAINING,
        onednn.CONVOLUTION_DIRECT,
        x_layout,
        weights,
        onednn.strided(w[:1], F32) if bias else None,
        y_layout,
        *window,
    ]
    if kind == "forward":
        return onednn.implementations(*forward)
    free = [x_layout, weights, y_layout]
    if kind == "backward_weights":
        free.insert(2, None)  # type: ignore[arg-type]
    create = f"dnnl_convolution_{kind}_primitive_desc_create"
    hint = Descriptor(*forward)
    return onednn.implementations(create, engine, onednn.CONVOLUTION_DIRECT, *free, *window, hint)


def _padding_behind(op: Conv2d, x: Shape, w: Shape, y: Shape) -> list[int]:
    """oneDNN wants windows to end where the padding does; a remainder of the stride shortens it."""
    axes = zip(x[2:], w[2:], y[2:], op.stride, op.padding, op.dilation, strict=True)
    return [(o - 1) * t + d * (k - 1) + 1 - n - p for n, k, o, t, p, d in axes]
