"""Rows of convolutions, pools and resizing of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import FLOATS, Array, Node, constant
from minigraph.onnx.operators.table import MICROSOFT, ROWS, row, rows, vector_along
from minigraph.onnx.values import integers, value_of
from minigraph.ops.nd_windows import Windows
from minigraph.ops.sampling import CUBIC, REACH, cubic_kernel, grid_sample


def windows(
    x: Node, kernel_shape: Sequence[int], strides: Any = None, pads: Any = None,
    dilations: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
) -> Windows:  # fmt: skip
    """Return the windows that the attributes of a pool or a convolution describe."""
    rank = len(kernel_shape)
    stride, dilation = [*(strides or [1] * rank)], [*(dilations or [1] * rank)]
    flat = [*pads] if pads and auto_pad == "NOTSET" else [0] * 2 * rank
    if {len(stride), len(dilation), len(flat) / 2, x.ndim - 2} != {rank}:
        raise GraphError(f"a window of {[*kernel_shape]} does not fit {x.spec}, or its strides")
    if min([*kernel_shape, *stride, *dilation], default=1) < 1:
        raise GraphError("sizes, strides and dilations of windows must be 1 or more")
    if auto_pad.startswith("SAME"):
        borders = []
        for n, k, s, d in zip(x.shape[2:], kernel_shape, stride, dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            half = total // 2
            borders.append((half, total - half) if "UPPER" in auto_pad else (total - half, half))
    else:
        borders = [*zip(flat[:rank], flat[rank:], strict=True)]
    return Windows([*kernel_shape], stride, borders, dilation, bool(ceil_mode))


@row("MaxPool", counting=True)
def _max_pool(x: Node, storage_order: int = 0, outputs: int = 1, **window: Any) -> Any:
    w = windows(x, **window)
    y = w.maximum(x)
    if outputs == 1:
        return y
    indices, size = w.place_of_maximum(x), math.prod(x.shape[2:])
    if storage_order:  # counted by columns
        height, width = x.shape[-2:]
        inner = indices % (height * width)
        indices = indices - inner + inner % width * height + inner // width
    images = (*x.shape[:2], *(1,) * len(w.size))
    return [y, indices + ops.reshape(ops.arange(math.prod(images)) * size, images)]


def _lp(x: Node, p: int, axes: Any, keepdims: bool) -> Node:
    if p in (1, 2):
        return ops.norm(x, p, axes, keepdims)
    return ops.pow(ops.sum(ops.pow(ops.abs(x), p), axes, keepdims), 1 / p)


def _spatial(x: Node) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


rows(
    {
        "AveragePool": lambda x, count_include_pad=0, **window: windows(x, **window).mean(
            x, bool(count_include_pad)
        ),
        "LpPool": lambda x, p=2, **window: _lp(windows(x, **window).taps(x), p, 0, False),
        "GlobalAveragePool": lambda x: ops.mean(x, _spatial(x), True),
        "GlobalMaxPool": lambda x: ops.max(x, _spatial(x), True),
        "GlobalLpPool": lambda x, p=2: _lp(x, p, _spatial(x), True),
    }
)


@row("Conv")
def convolution(
    x: Node, w: Node, bias: Node | None = None, group: int = 1, kernel_shape: Any = None,
    **window: Any,
) -> Node:  # fmt: skip
    """Return the convolution of images with one to three axes."""
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise GraphError(f"its kernel_shape {[*kernel_shape]} does not match the weights {w.spec}")
    return windows(x, w.shape[2:], **window).convolution(x, w, bias, group)


@row(f"{MICROSOFT}.FusedConv")
def _fused_convolution(
    x: Node, w: Node, bias: Node | None = None, term: Node | None = None, activation: str = "",
    activation_params: Sequence[float] = (), **window: Any,
) -> Node:  # fmt: skip
    y = convolution(x, w, bias, **window)
    y = y if term is None else y + term
    return ROWS[activation](y, *activation_params) if activation else y


@row("ConvTranspose")
def _conv_transpose(
    x: Node, w: Node, bias: Node | None = None, group: int = 1, strides: Any = None,
    pads: Any = None, dilations: Any = None, auto_pad: str = "NOTSET", output_padding: Any = None,
    output_shape: Any = None, kernel_shape: Any = None,
) -> Node:  # fmt: skip
    window = windows(x, w.shape[2:], strides, pads, dilations)
    rank, extra = len(window.size), [*(output_padding or [0] * len(window.size))]
    if output_shape or auto_pad.startswith("SAME"):
        target = output_shape or [n * s for n, s in zip(x.shape[2:], window.stride, strict=True)]
        axes = zip(x.shape[2:], window.size, window.stride, window.dilation, strict=True)
        sizes = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in axes]  # without borders
        totals = [n + e - m for n, e, m in zip(sizes, extra, target[-rank:], strict=True)]
        halves = [(t // 2, t - t // 2) for t in totals]
        same_upper = auto_pad == "SAME_UPPER"
        window = window._replace(padding=halves if same_upper else [(b, a) for a, b in halves])
    return window.transposed_convolution(x, w, bias, extra, group)


ROUNDING: dict[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


@row("Upsample")
def _upsample(x: Node, scales: Node, mode: str = "nearest", nearest_mode: str = "floor") -> Node:
    return _resize(
        x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric",
        nearest_mode=nearest_mode,
    )  # fmt: skip


@row("Resize")
def _resize(
    x: Node, roi: Node | None = None, scales: Node | None = None, sizes: Node | None = None,
    mode: str = "nearest", coordinate_transformation_mode: str = "half_pixel",
    axes: Sequence[int] | None = None, keep_aspect_ratio_policy: str = "stretch",
    nearest_mode: str = "round_prefer_floor", antialias: int = 0, cubic_coeff_a: float = CUBIC,
    exclude_outside: int = 0, extrapolation_value: float = 0.0,
) -> Node:  # fmt: skip
    resized_axes = [axis % x.ndim for axis in axes or range(x.ndim)]
    old = [x.shape[axis] for axis in resized_axes]
    if any(each is not None and each.size not in (0, len(old)) for each in (scales, sizes)):
        raise ShapeError(f"its scales or sizes are not one for each of {len(old)} axes")
    if sizes is not None and sizes.size:
        new = integers(sizes) or []
        factors = [m / n for m, n in zip(new, old, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            factor = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            new, factors = [math.floor(n * factor + 0.5) for n in old], [factor] * len(old)
    else:
        if scales is None:
            raise GraphError("it has neither scales nor sizes")
        if not 0 < value_of(scales).min(initial=1) <= value_of(scales).max(initial=1) < math.inf:
            raise GraphError(f"its scales are {value_of(scales)}; they must be above 0")
        factors = [*value_of(scales)]  # in float32, where 10 * 2.3 is 23, not 22.9999995
        new = [
            n * int(f) if f == int(f) else math.floor(n * f)
            for n, f in zip(old, factors, strict=True)
        ]
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    corners = value_of(roi).tolist() if crop and roi is not None else [0.0, 1.0] * len(old)
    settings = (mode, coordinate_transformation_mode, nearest_mode)
    repeats, dtype = settings in [("nearest", "asymmetric", r) for r in ("", "floor")], x.dtype
    for i, axis in enumerate(resized_axes):
        n, m = old[i], new[i]
        if m == n and factors[i] == 1 and not crop:
            continue
        if repeats and factors[i] == int(factors[i]):
            x = ops.repeat(x, int(factors[i]), axis)  # of any size
            continue
        interval = (corners[i], corners[i + len(old)]) if crop else (0.0, 1.0)
        positions = _positions(coordinate_transformation_mode, n, m, factors[i], interval)
        if mode == "nearest":
            rounding = nearest_mode or ("ceil" if factors[i] < 1 else "floor")
            indices = np.clip(ROUNDING[rounding](positions), 0, n - 1).astype(np.int64)
            x = ops.take(x, constant(indices), axis)
        else:
            stretch = min(factors[i], 1.0) if antialias else 1.0
            weights = _weights(mode, positions, n, stretch, cubic_coeff_a, bool(exclude_outside))
            wide = x if dtype in FLOATS else ops.astype(x, "float32")
            y = ops.matmul(ops.moveaxis(wide, axis, -1), constant(weights.T, wide.dtype))
            x = ops.moveaxis(y, -1, axis)
        if crop:
            inside = (positions >= 0) & (positions <= n - 1)
            inside = inside.reshape(-1, *(1,) * (x.ndim - 1 - axis))
            x = ops.where(inside, x, extrapolation_value)
    return x if x.dtype == dtype else ops.astype(ops.round(x), dtype)


def _positions(mode: str, n: int, m: int, scale: float, interval: tuple[float, float]) -> Array:
    """Return the position of each of m new pixels among the n pixels along an axis."""
    pixels = np.arange(m, dtype=np.float32)  # in float32, as elsewhere, 3 / 0.6 is 5
    match mode:
        case "asymmetric":
            return pixels / scale
        case "tf_half_pixel_for_nn":  # until opset 12
            return (pixels + 0.5) / scale
        case "align_corners":
            return pixels * ((n - 1) / (scale * n - 1) if m > 1 else 0)
        case "tf_crop_and_resize":
            a, b = interval
            if m == 1:
                return np.full(1, 0.5 * (a + b) * (n - 1))
            return a * (n - 1) + pixels * ((b - a) * (n - 1) / (scale * n - 1))
        case "pytorch_half_pixel" if m == 1:
            return np.zeros(1)
        case "half_pixel_symmetric":
            return n / 2 * (1 - m / (scale * n)) + (pixels + 0.5) / scale - 0.5
    return (pixels + 0.5) / scale - 0.5


def _weights(
    mode: str, positions: Array, n: int, stretch: float, a: float, exclude_outside: bool
) -> Array:
    """Return the matrix (new pixels, n) of an interpolation along an axis."""
    first = math.floor(-REACH[mode] / stretch) + 1
    offsets = np.arange(first, 2 - first)
    below = np.floor(positions).astype(np.int64)[:, None]
    t = (offsets - (positions[:, None] - below)) * stretch
    weights = np.maximum(1 - abs(t), 0) if mode == "linear" else cubic_kernel(np, t, a)
    indices = below + offsets
    if exclude_outside:
        weights = np.where((indices >= 0) & (indices < n), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((len(positions), n))
    np.add.at(matrix, (np.arange(len(positions))[:, None], np.clip(indices, 0, n - 1)), weights)
    return matrix


@row("AffineGrid")  # ONNX's definition fails for one image
def _affine_grid(theta: Node, size: Node, align_corners: int = 0) -> Node:
    """Return where the pixels of images lie in others, from -1 to 1 along an axis; x is first."""
    sizes = (integers(size) or [])[2:]
    rank, shape = len(sizes), tuple(sizes)
    coordinates = [ops.ones(shape, theta.dtype)]
    for axis, n in enumerate(sizes):
        pixels = ops.arange(n, dtype=theta.dtype)
        pixels = pixels * (2 / max(n - 1, 1)) - 1 if align_corners else (2 * pixels + 1) / n - 1
        coordinates.insert(0, ops.broadcast_to(vector_along(pixels, rank, axis), shape))
    grid = ops.reshape(ops.stack(coordinates, -1), (math.prod(sizes), rank + 1))
    return ops.reshape(grid @ ops.matrix_transpose(theta), (theta.shape[0], *sizes, rank))


@row("GridSample")
def _grid_sample(
    x: Node, grid: Node, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Node:
    return grid_sample(x, grid, mode.removeprefix("bi"), padding_mode, bool(align_corners))
