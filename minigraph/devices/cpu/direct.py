"""Direct convolutions in C, for windows and strides that Winograd's algorithm does not cover.

They are sums of outer products, of a few pixels and a few vectors of channels, in registers.
Pixels of the result with the same taps are computed together, so padding is neither read nor
multiplied, and one text computes convolutions and gradients for the images.  Gradients for the
weights are sums over pixels, also those of depthwise convolutions.

Images are in blocks of channels, see `minigraph.ops.layout`.  Either x or y may be in nchw if it
has few channels, like the input of a network, or an image that it returns.  The gradient for
weights exchanges the two if y has few channels (`_exchanged`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import compiler, onednn, winograd
from minigraph.devices.cpu.convolution import LaidOutConvolution, axes_of, laid_out_convolution
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, call
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.cpu.prepacked import prepacked_kernel
from minigraph.devices.cpu.product import pinned, sums
from minigraph.devices.problem import FEW_CHANNELS, Arrangement, product_of
from minigraph.graph import Node, Op, Shape
from minigraph.jit.emitter import block, function, indented
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.conv import Conv2dBackwardData, Conv2dBackwardWeights

NAME = "direct"  # the algorithm
IMAGES_TEXT, WEIGHTS_TEXT = (
    Path(__file__).with_name(f"direct_{part}.c").read_text() for part in ("images", "weights")
)
PIXEL_TILES = (6, 3, 1)  # pixels with sums in registers at once, then those of remainders
PIXELS_PER_BASE = 3  # pixels that share a base address, to which multiples of their step are added
MAX_VECTORS = {8: 2, 16: 4}  # largest number of vectors of a pixel's sums, by lanes
PANEL_BYTES = {8: 40 << 10, 16: 160 << 10}  # bytes of packed weights that are used at once
STRIP_BYTES = 320 << 10  # bytes of partial results between two of these panels
# Gradients for weights: vectors of sums, sums for each vector, and bytes of images in a strip.
WEIGHT_VECTORS, WEIGHT_SUMS, WEIGHT_STRIP_BYTES = 2, {8: 4, 16: 8}, {8: 24 << 10, 16: 160 << 10}
MAX_TAPS = {8: 6, 16: 12}  # taps of a row that are summed at once if images are in nchw
MAX_SEQUENTIAL_PIXELS = 1024  # pixels of a strip that are added in sequence
TASKS_PER_THREAD = 4  # least number for each thread, if the work can be divided so far


# ---------------------------------------------------------------- the texts


def _pixel_products(pixels: int, vectors: int) -> str:
    """Return the function of the sums of `pixels` pixels, `q->x_pixel` apart."""
    cells = sums(pixels, vectors)
    bases = [f"const XT *x{r} = row + {r} * step;" for r in range(0, pixels, PIXELS_PER_BASE)]
    xs = [f"x{r - r % PIXELS_PER_BASE}[{r % PIXELS_PER_BASE} * step + l]" for r in range(pixels)]
    return function(
        f"MG_CONTRACT void NAME_products_{pixels}(\n"
        "    const NAME_sums *q, const XT *x, const vec *w, YT *y)",
        [
            "const int64_t step = q->x_pixel;",
            *(f"vec s{r}_{j} = {{0}};" for r, j in cells),
            "for (int64_t b = 0; b < q->blocks; b++, x += q->x_block, w += TAPS * LX * NV)",
            *indented(
                block(
                    "for (int64_t i = 0; i < q->taps_h; i++)",
                    "const XT *row = x + i * q->x_tap_h;",
                    "const vec *u = w + i * q->w_tap_h;",
                    *block(
                        "for (int64_t t = 0; t < q->taps_w; t++)",
                        *bases,
                        *block(
                            "for (int64_t l = 0; l < LX; l++)",
                            *(f"vec f{j} = u[l * NV + {j}];" for j in range(vectors)),
                            *pinned(vectors),
                            *(f"s{r}_{j} += {xs[r]} * f{j};" for r, j in cells),
                        ),
                        "row += q->x_tap_w;",
                        "u += q->w_tap_w;",
                    ),
                )
            ),
            *(f"YT *y{j} = y + {j} * q->y_block;" for j in range(vectors)),
            *block(
                "if (q->bias)",
                *(
                    f"y{j}[{r} * q->y_pixel] = NAME_total(s{r}_{j}) + q->bias[{j}];"
                    for r, j in cells
                ),
            ),
            *block("else", *(f"y{j}[{r} * q->y_pixel] += NAME_total(s{r}_{j});" for r, j in cells)),
        ],
    )


def _weight_products(name: str, count: int, vectors: int) -> str:
    """Return the function that adds the sums for `count` lanes or taps, from `skip` on."""
    cells = sums(count, vectors)
    return function(
        f"MG_CONTRACT void NAME_products_{name}(\n"
        "    int64_t rows, int64_t count, const XT *x, int64_t x_row, int64_t x_pixel,\n"
        "    const vec *dy, int64_t dy_row, int64_t dy_block, int64_t skip, vec *g)",
        [
            *(f"vec s{r}_{j} = {{0}};" for r, j in cells),
            *block(
                "for (int64_t i = 0; i < rows; i++, x += x_row, dy += dy_row)",
                "const XT *pixel = x;",
                *block(
                    "for (int64_t t = 0; t < count; t++, pixel += x_pixel)",
                    *(f"vec f{j} = dy[t + {j} * dy_block];" for j in range(vectors)),
                    *pinned(vectors),
                    *(f"s{r}_{j} += pixel[{r}] * f{j};" for r, j in cells),
                ),
            ),
            *itertools.chain.from_iterable(
                block(
                    f"if (skip <= {r})",
                    *(f"g[{r} * NV + {j}] += s{r}_{j};" for j in range(vectors)),
                )
                for r in range(count)
            ),
        ],
    )


@functools.cache
def _image_text(lanes: int, lanes_in: int, vectors: int, window: Shape) -> KernelSource:
    products = "\n".join(_pixel_products(pixels, vectors) for pixels in PIXEL_TILES)
    line = " ".join(
        f"for (; t + {n} <= count; t += {n})"
        f" NAME_products_{n}(q, x + t * q->x_pixel, w, y + t * q->y_pixel);"
        for n in PIXEL_TILES
    )
    text = IMAGES_TEXT.replace("PRODUCTS", products)
    dot = lanes == 1
    x_type, y_type = ("vec", "float") if dot else ("float", "vec")
    fixed = {"DOT": int(dot), "XT": x_type, "YT": y_type, "vec": "NAME_vec"}
    sizes = {"L": max(lanes, lanes_in), "LX": 1 if dot else lanes_in, "LY": lanes, "LI": lanes_in}
    taps = {"NV": vectors, "TAPS": math.prod(window), "TAPS_W": window[1]}
    return KernelSource(with_macros(text, LINE=line, **fixed, **sizes, **taps))


@functools.cache
def _weight_text(
    lanes: int, lanes_in: int, vectors: int, window: Shape, is_depthwise: bool
) -> KernelSource:
    taps_h, taps_w = window
    if lanes_in > 1:
        count = WEIGHT_SUMS[lanes]
    else:
        count = math.ceil(taps_w / math.ceil(taps_w / MAX_TAPS[lanes]))
    products = _weight_products("1", 1, vectors), _weight_products("R", count, vectors)
    text = WEIGHTS_TEXT.replace("PRODUCTS", "\n".join(products))
    fixed = {"L": lanes, "LX": lanes_in, "NV": vectors, "vec": "NAME_vec"}
    fixed |= {"DEPTH": int(is_depthwise), "XT": "vec" if is_depthwise else "float"}
    return KernelSource(with_macros(text, **fixed, R=count, TAPS_H=taps_h, TAPS_W=taps_w))


# ---------------------------------------------------------------- kernels


def is_depthwise_gradient(node: Node) -> bool:
    """Whether `node` is the gradient for the weights of a depthwise convolution, in any layout."""
    product = product_of(node)
    if product is None or not isinstance(product.op, Conv2dBackwardWeights):
        return False
    return product.op.conv.groups > 1 and node.shape[:2] == (product.op.conv.groups, 1)


def form_of(node: Node) -> LaidOutConvolution | None:
    """Return the convolution that `node` is, or None if these kernels do not support it."""
    form = laid_out_convolution(node)
    if form is None or winograd.computes(node):
        return None
    if form.window == (1, 1) and onednn.library():  # a matrix product
        return None
    to_weights = isinstance(node.op.plain, Conv2dBackwardWeights)  # type: ignore[attr-defined]
    if to_weights and _has_few_outputs(form):
        form = _exchanged(form)
    if form is None or max(form.lanes, form.lanes_in) not in onednn.blocks():
        return None
    # In nchw, and for depthwise convolutions, the weights' gradient sums taps of a row together, so
    # that their pixels have to be contiguous.
    in_blocks, adjacent = form.lanes_in == form.lanes, form.conv.dilation[1] == 1 or not to_weights
    if form.conv.groups > 1:
        return form if in_blocks and adjacent and is_depthwise_gradient(node) else None
    few_channels = form.lanes_in == 1 and form.x[1] <= FEW_CHANNELS
    return form if in_blocks or (few_channels and adjacent) or _has_few_outputs(form) else None


def _has_few_outputs(form: LaidOutConvolution) -> bool:
    """Whether a convolution reads images in blocks, and writes or reads few channels in nchw."""
    return form.lanes == 1 < form.lanes_in and form.y[1] <= FEW_CHANNELS


def _exchanged(form: LaidOutConvolution) -> LaidOutConvolution | None:
    """Return the gradient for weights as that of a convolution from y to x, or None.

    The sums over pixels of dy[k, p] * x[c, p + t - padding] are those of x[c, q] * dy[k, q + u -
    padding'], where u = window - 1 - t and padding' = window - 1 - padding.
    """
    conv = form.conv
    if conv.groups > 1 or not conv.stride == conv.dilation == (1, 1):
        return None
    (top, left), (height, width) = conv.padding, form.window
    conv = replace(conv, padding=(height - 1 - top, width - 1 - left))
    return LaidOutConvolution(conv, form.window, form.y, form.x, form.lanes_in, form.lanes)


def is_favourite(node: Node) -> bool:
    """Whether the algorithm is expected to be the fastest: oneDNN pads few channels to a block."""
    form = laid_out_convolution(node)
    if form is None:
        return False
    is_gradient = isinstance(node.op.plain, Conv2dBackwardData)  # type: ignore[attr-defined]
    few = _has_few_outputs(form) or (is_gradient and form.lanes_in == 1)
    return few and form_of(node) is not None and compiler.compiler() is not None


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithm if it supports a node and there is a compiler."""
    node, _, layouts = arrangement
    if form_of(node) and compiler.compiler():
        yield Candidate(NAME, layouts, functools.partial(direct_kernel, node, threads))


def direct_kernel(node: Node, threads: int) -> NativeKernel:
    """Return the kernel of a node that has a form."""
    form, op = form_of(node), node.op.plain  # type: ignore[attr-defined]
    assert form
    if isinstance(op, Conv2dBackwardWeights):
        kernel = _to_weights(node, form, threads)
    else:
        kernel = _to_images(node, op, form, threads)
    kernel.threads = threads
    return kernel


def _to_images(node: Node, op: Op, form: LaidOutConvolution, threads: int) -> NativeKernel:
    n, ins, *x_sides = form.x[:4]
    outs, *y_sides = form.y[1:4]
    lanes, lanes_in, taps = form.lanes, form.lanes_in, math.prod(form.window)
    vector = max(lanes, lanes_in)
    backward = isinstance(op, Conv2dBackwardData)
    if backward:
        axes, paces = axes_of(form.conv, form.y, form.x, form.window), (1, 1)
        steps = taps, outs * lanes * taps, 1
    else:
        axes, paces = axes_of(form.conv, form.x, form.y, form.window), form.conv.stride
        steps = ins * lanes_in * taps, taps, 1
    vectors = next(v for v in range(MAX_VECTORS[vector], 0, -1) if outs % v == 0)
    block_bytes = taps * lanes_in * vectors * lanes * F32.itemsize  # weights of a block of inputs
    chunk = max(1, min(PANEL_BYTES[vector] // block_bytes, ins))
    row = y_sides[1] * vectors * lanes * F32.itemsize
    images, rows = _strip(n, y_sides[0], row if chunk < ins else 0, outs // vectors, threads)
    sets = [axis.sets(backward) for axis in axes]
    values = [n, ins, outs, *x_sides, *y_sides, *steps, len(node.inputs) - 2, chunk, images, rows]
    return prepacked_kernel(
        node,
        NAME,
        _image_text(lanes, lanes_in, vectors, form.window),
        [*values, *paces, *map(len, sets), threads],
        weights=outs // vectors * ins * block_bytes,
        last_words=[*itertools.chain.from_iterable(itertools.chain(*sets))],
    )


def _strip(n: int, height: int, row: int, groups: int, threads: int) -> tuple[int, int]:
    """Return the number of images of a strip, and of rows of each image.

    row     bytes of a row; 0 if results need not stay in the cache
    groups  groups of outputs; each group has all strips
    """
    strips = math.ceil(TASKS_PER_THREAD * threads / groups)
    if row * height > STRIP_BYTES or n < strips:
        strips_per_image = max(math.ceil(row * height / STRIP_BYTES), math.ceil(strips / n))
        return 1, math.ceil(height / strips_per_image)
    images = math.ceil(n / strips)
    return (min(STRIP_BYTES // (row * height), images) if row else images), height


def _to_weights(node: Node, form: LaidOutConvolution, threads: int) -> NativeKernel:
    ins, outs, lanes, lanes_in = form.x[1], form.y[1], form.lanes, form.lanes_in
    n, (height, width), (dy_h, dy_w) = (form.x[0], form.x[2:4], form.y[2:4])
    vectors = math.gcd(outs, WEIGHT_VECTORS)
    conv, task_channels = form.conv, ins if lanes_in == 1 else 1
    is_depthwise = conv.groups > 1
    if is_depthwise:
        ins, lanes_in, vectors = 1, 1, 1
    tasks = outs // vectors * math.ceil(ins / task_channels)
    parts = min(n, math.ceil(TASKS_PER_THREAD * threads / tasks))
    row = (dy_w * vectors * lanes + conv.stride[0] * width * form.lanes_in) * F32.itemsize
    rows = max(1, min(WEIGHT_STRIP_BYTES[lanes] // row, MAX_SEQUENTIAL_PIXELS // dy_w, dy_h))
    steps = [*conv.padding, *conv.stride, *conv.dilation]
    exchanged, taps = form.x != node.inputs[1].shape, math.prod(form.window)
    if exchanged:
        strides = taps, outs * lanes * taps, -1, taps - 1
    else:
        strides = ins * lanes_in * taps, taps, 1, 0
    sizes = n, ins, outs, height, width, dy_h, dy_w
    values = [*sizes, *steps, *strides, task_channels, parts, rows, threads]

    source = _weight_text(lanes, lanes_in, vectors, form.window, is_depthwise)
    scratch = parts * outs * ins * taps * lanes_in * lanes * F32.itemsize
    products = call(source, *values, scratch=True)
    if exchanged:
        block = products.block
        products = KernelCall(source, lambda xs: block(xs._replace(inputs=xs.inputs[::-1])))
    return NativeKernel(node, [products], scratch, algorithm=NAME)
