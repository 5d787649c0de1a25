"""Images in other layouts than nchw: their memory, and the kernels of max pooling for them."""

import functools

import numpy as np
import pytest
from needs import needs_compiler
from rewriting import assert_bits
from samples import real

import minigraph as mg
from minigraph import ShapeError, ops
from minigraph.graph import Graph
from minigraph.ops.conv import Conv2d
from minigraph.ops.layout import LaidOut, Reorder, image_layout, pack, packed, unpack, unpacked
from minigraph.ops.pooling import MaxPool2d, MaxPool2dBackward, Pooling

# ---------------------------------------------------------------- how images lie

LANES = [1, 2, 3, 6]


@pytest.mark.parametrize("lanes", LANES)
def test_a_channel_is_a_lane_of_a_block_and_unpacking_undoes_packing(lanes):
    x = real(2, 6, 3, 4)
    y = pack(x, lanes)
    assert y.shape == packed(x.shape, lanes) and y.flags.c_contiguous
    for c in range(6):
        lane = y[:, c] if lanes == 1 else y[:, c // lanes, :, :, c % lanes]
        np.testing.assert_array_equal(lane, x[:, c])
    assert unpacked(y.shape) == x.shape and unpack(y).flags.c_contiguous
    np.testing.assert_array_equal(unpack(y), x)


@pytest.mark.parametrize(
    ("lanes", "channels", "name"),
    [(1, 16, "nchw"), (8, 16, "nChw8c"), (16, 64, "nChw16c"), (16, 16, "nhwc"), (64, 64, "nhwc")],
)
def test_layouts_have_the_names_that_onednn_gives_them(lanes, channels, name):
    assert image_layout(lanes, channels).name == name


def test_channels_that_are_no_multiple_of_the_lanes_are_refused():
    x = mg.input("x", (2, 12, 3, 4))
    with pytest.raises(ShapeError, match="12 channels are not a multiple of 8"):
        Reorder(8)(x)
    with pytest.raises(ShapeError, match="6 channels are not a multiple of 4"):
        LaidOut(Conv2d(), (1, 1), (4,))(x, mg.input("w", (6, 12, 1, 1)))


def test_images_may_be_reordered_from_any_layout_to_any_other():
    x = real(2, 12, 3, 4)
    for before in (1, 2, 4, 12):
        for after in (1, 2, 4, 12):
            np.testing.assert_array_equal(Reorder(after).forward(pack(x, before)), pack(x, after))


# ---------------------------------------------------------------- max pooling


def compiled(*parts, threads=2):
    """A function of several ops, each with its arrays; compiled at once."""
    inputs, outputs = [], []
    for op, *xs in parts:
        nodes = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs, len(inputs))]
        inputs += nodes
        outputs += op.results(*nodes)
    return mg.comp_graph("cpu", {"num_threads": threads}).compile(inputs, outputs)


def kernels(function):
    return [kernel for _, kernel, _ in function.report().steps]


def largest(size, *args):
    return ops.max_pool2d(mg.input("x", size), *args).inputs[0].op


def laid_out(plain, lanes):
    """Return the op for images and places that all have these lanes."""
    back = isinstance(plain, MaxPool2dBackward)
    return LaidOut(plain, (lanes, lanes) if back else (lanes,), (lanes,) if back else (lanes,) * 2)


def both_directions(x, lanes, *args):
    """Max pooling and its gradient, each with its arrays, and the result of the first."""
    plain = largest(x.shape, *args)
    forward = laid_out(plain, lanes)
    packed_x = pack(x, lanes)
    with np.errstate(all="ignore"):
        y, at = forward.forward(packed_x)
    # Whole numbers: any order of adding them gives the same sum.
    dy = np.random.default_rng(1).integers(-9, 9, y.shape).astype(x.dtype)
    backward = laid_out(MaxPool2dBackward(plain.pooling, x.shape), lanes)
    return (forward, packed_x), (backward, dy, at), y


def assert_pools(x, lanes, *args, threads=2):
    """Both directions give the bits of the meaning, from kernels of ours."""
    forward, back, y = both_directions(x, lanes, *args)
    function = compiled(forward, back, threads=threads)
    assert kernels(function) == ["c", "c"]
    (_, packed_x), (backward, dy, at) = forward, back
    for _ in range(2):  # the second time its memory is not fresh
        actual, places, dx = function(packed_x, dy, at)
        assert_bits(actual, y)
        np.testing.assert_array_equal(places, at)
        assert_bits(dx, backward.forward(dy, at))


# (h, w), then the arguments after x
POOLINGS = {
    "2x2": ((8, 6), 2, 2),
    "2x2-remainder": ((7, 9), 2, 2),
    "3x3-padding": ((9, 8), 3, 2, 1),
    "3x3-stride-1": ((5, 6), 3, 1, 1),
    "ceil": ((8, 8), 3, 2, 0, True),
    "ceil-padding": ((8, 7), 3, 2, 1, True),
    "unequal": ((8, 9), (3, 2), (2, 1), (1, 0)),
    "gaps": ((9, 8), 2, 4),
    "window-of-one": ((5, 4), 1, 2),
    "one-pixel": ((1, 1), 1),
    "one-pixel-padding": ((1, 1), 2, 2, 1),
    "whole-image": ((4, 5), (4, 5)),
    "places-beyond-uint8": ((18, 17), (17, 16), 1),
}
DTYPES = ["float32", "float64", "bfloat16", "int32", "int8", "uint8", "int64", "uint16"]


def images(image):
    return real(2, 48, *image).astype("float32")


def whole_numbers(dtype):
    x = np.random.default_rng(0).integers(0, 127, (2, 48, 7, 8))
    return (x - (dtype[0] != "u") * 60).astype(dtype)


@functools.cache
def compile_all(lanes):
    """Compile the kernels of all poolings with these lanes together, in half the time."""
    cases = [(images(image), *args) for image, *args in POOLINGS.values()]
    cases += [(whole_numbers(dtype), 3, 2, 1) for dtype in DTYPES]
    pairs = (both_directions(x, lanes, *args) for x, *args in cases)
    compiled(*(part for forward, backward, _ in pairs for part in (forward, backward)))


@needs_compiler
@pytest.mark.parametrize("lanes", [3, 8, 16, 48])
@pytest.mark.parametrize(("image", "args"), [(i, a) for i, *a in POOLINGS.values()], ids=POOLINGS)
def test_max_pooling_agrees_with_its_meaning(image, args, lanes):
    compile_all(lanes)
    assert_pools(images(image), lanes, *args)


@needs_compiler
@pytest.mark.parametrize("lanes", [3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_max_pooling_agrees_with_its_meaning_for_every_type(dtype, lanes):
    compile_all(lanes)
    assert_pools(whole_numbers(dtype), lanes, 3, 2, 1)


def special(value, share, dtype="float32", shape=(2, 48, 9, 9)):
    """Return images in which a share of the pixels has a value; the others are whole numbers."""
    is_special = np.random.default_rng(0).random(shape) < share
    return np.where(is_special, np.float32(value), np.round(real(*shape))).astype(dtype)


@needs_compiler
@pytest.mark.parametrize("lanes", [8, 48])
@pytest.mark.parametrize("args", [(2,), (3, 2), (3, 2, 1), (3, 1, 1), (3, 2, 1, True)], ids=str)
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf, 0.0])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_max_pooling_passes_special_values_and_takes_the_first_of_equals(value, args, lanes, share):
    assert_pools(special(value, share), lanes, *args)


def limits(dtype):
    """Return images of the limits of a type of integers."""
    info = np.iinfo(dtype)
    values = np.array([info.min] * 9 + [info.max], dtype)
    return np.random.default_rng(0).choice(values, (2, 16, 10, 10))


@needs_compiler
@pytest.mark.parametrize(
    "x",
    [
        *(special(value, 0.3, "bfloat16") for value in (np.nan, -np.inf, np.inf, -0.0)),
        *(limits(dtype) for dtype in ("int8", "int32", "uint8", "uint64")),
    ],
    ids=lambda x: x.dtype.name,
)
def test_max_pooling_of_other_types_passes_special_values_and_limits(x):
    forward, packed_x = laid_out(largest(x.shape, 3, 2, 1), 8), pack(x, 8)
    y, at = forward.forward(packed_x)
    actual, places = compiled((forward, packed_x))(packed_x)
    assert_bits(actual, y)
    np.testing.assert_array_equal(places, at)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [(1, 16, 56, 57), (5, 48, 15, 15)], ids=str)
@pytest.mark.parametrize("lanes", [8, 16])
def test_max_pooling_agrees_with_any_number_of_threads(size, lanes, threads):
    assert_pools(real(*size).astype("float32"), lanes, 3, 2, 1, threads=threads)


@needs_compiler
def test_sums_are_made_in_the_same_order_in_every_layout():
    size = (2, 16, 12, 13)
    plain = largest(size, 3, 1, 1)
    at = plain.forward(np.round(real(*size)))[1]
    dy, back = real(*at.shape).astype("float32"), MaxPool2dBackward(plain.pooling, size)
    (expected,) = compiled((back, dy, at))(dy, at)
    for lanes in (8, 16):
        packed_dys = pack(dy, lanes), pack(at, lanes)
        (actual,) = compiled((laid_out(back, lanes), *packed_dys))(*packed_dys)
        assert_bits(actual, pack(expected, lanes))


def test_max_pooling_from_one_layout_to_another_has_no_kernel_but_is_computed():
    pool = Pooling((2, 2), (2, 2), ((0, 0), (0, 0)))
    op = LaidOut(MaxPool2d(pool), (8,), (16, 8))
    x = pack(real(2, 16, 6, 6), 8)
    function = compiled((op, x))
    assert kernels(function) == ["numpy"]
    for actual, expected in zip(function(x), op.forward(x), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_reordered_images_give_what_the_plain_op_gives():
    x = mg.input("x", (2, 16, 9, 8))
    plain = largest(x.shape, 3, 2, 1)
    ys = laid_out(plain, 8).results(Reorder(8)(x))
    graph = Graph((x,), tuple(Reorder(1)(y) for y in ys))
    args = real(*x.shape).astype("float32")
    function = mg.comp_graph("cpu").compile([x], list(graph.outputs))
    for actual, expected in zip(function(args), plain.forward(args), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_blocks_that_onednn_has_no_layout_of_are_reordered():
    x = real(2, 6, 3, 4).astype("float32")
    node = mg.input("x", x.shape)
    y = mg.comp_graph("cpu").compile([node], Reorder(2)(node))(x)
    np.testing.assert_array_equal(y, pack(x, 2), strict=True)
