"""Products of float32 on AMX's tiles, in two or three parts of bfloat16."""

import shutil
import subprocess

import numpy as np
import pytest
from laid_out import WAYS, computed_by, drawn, in_lanes, meaning, plain_node
from needs import needs_compiler, needs_onednn

import minigraph as mg
from minigraph import ops
from minigraph.autotune.measurement import Policy
from minigraph.cache.machine import features
from minigraph.devices.cpu import amx, tiles
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.ops.conv import Conv2d
from minigraph.ops.matmul import Matmul

# By parts: the error of a sum of products, as a share of the sum of their sizes.  Of two parts,
# what is left out of a product, and what the two lower parts are rounded by: 2**-18 each.
BOUND = {2: 3 * 2.0**-18, 3: 2.0**-21}
PRODUCTS = [((33, 65), (65, 17)), ((70, 300), (300, 100)), ((1, 7), (7, 1)), ((64, 32), (32, 64))]
WINDOWS = {
    "one pixel": (Conv2d(), (2, 32, 7, 7), (16, 32, 1, 1)),
    "padded": (Conv2d(padding=(1, 2)), (3, 32, 9, 8), (48, 32, 3, 3)),
    "many borders": (Conv2d(padding=(3, 3)), (1, 64, 5, 6), (32, 64, 3, 2)),
    "spaced": (Conv2d(stride=(2, 3)), (2, 32, 9, 8), (48, 32, 1, 1)),
    "strided": (Conv2d(stride=(2, 1), padding=(1, 1)), (2, 16, 9, 8), (16, 16, 3, 3)),
    "strided and dilated": (Conv2d((2, 3), (2, 1), (3, 2)), (2, 32, 19, 18), (64, 32, 3, 3)),
    "strided past pixels": (Conv2d((3, 4), (1, 0)), (1, 32, 11, 13), (32, 32, 3, 3)),
    "dilated": (Conv2d(dilation=(2, 3)), (3, 32, 9, 9), (32, 32, 3, 3)),
    "of one row": (Conv2d(padding=(0, 1)), (2, 64, 1, 40), (64, 64, 1, 3)),
    "sixteen more": (Conv2d(padding=(1, 1)), (2, 48, 6, 6), (16, 48, 3, 3)),
}
# The lanes are those of both images.
LAID_OUT = [(name, 16) for name in WINDOWS]
LAID_OUT += [(name, w[0]) for name, (_, x, w) in WINDOWS.items() if x[1] == w[0] > 16]


@pytest.fixture(params=["tiles", "emulated"])
def with_tiles(request, monkeypatch):
    """A processor with AMX, or one whose tiles are computed in C; no product is too small."""
    if request.param == "tiles" and amx.why_not():
        pytest.skip(amx.why_not())
    if request.param == "emulated":
        monkeypatch.setattr(amx, "TEXT", amx.TEXT.replace("defined(__AMX", "0 && defined(__AMX"))
    monkeypatch.setattr(amx, "why_not", lambda: "")
    monkeypatch.setattr(tiles, "MIN_OPERATIONS", 0)
    tiles._text.cache_clear()
    yield
    tiles._text.cache_clear()


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Panels, strips and tasks so small that each of these products has several."""
    monkeypatch.setattr(tiles, "PANEL", 4)
    monkeypatch.setattr(tiles, "HEIGHT", 2)
    monkeypatch.setattr(tiles, "STRIP_BYTES", 1 << 14)


def in_tiles(node, *strides, threads=2):
    """Return the kernels of a node on tiles, with the parts of each."""
    steps = [*strides, *(x.spec.strides for x in node.inputs[len(strides) :])]
    problem, layouts = CpuProblems(threads, True, "bf16x3").tunable(node, steps)
    offered = [c for c in problem.candidates(layouts) if "tiles" in c.name]
    return [(2 if c.precision == "bf16x3" else 3, c.kernel) for c in offered]


def assert_near(actual, node, xs, parts):
    sizes = meaning(node, [np.abs(x) for x in xs])
    np.testing.assert_array_less(np.abs(actual - meaning(node, xs)), BOUND[parts] * sizes + 1e-30)


def assert_right(node, xs, operands=None, strides=()):
    kernels = in_tiles(node, *strides)
    assert sorted(parts for parts, _ in kernels) == [2, 3]
    for parts, kernel in kernels:
        assert_near(computed_by(kernel, node, operands or xs), node, xs, parts)


@needs_compiler
@needs_onednn
@pytest.mark.usefixtures("with_tiles")
class TestProducts:
    @pytest.mark.parametrize(("left", "right"), PRODUCTS)
    @pytest.mark.parametrize("columns", ["", "x", "y", "xy"])
    def test_matrices_in_rows_and_in_columns(self, left, right, columns):
        x, y = mg.input("x", left), mg.input("y", right)
        node = Matmul()(x, y)
        xs = drawn(node)
        turned = [e.name in columns and min(e.shape) > 1 for e in (x, y)]
        operands = [
            (v.T.copy(), lambda a: a.T) if t else v for v, t in zip(xs, turned, strict=True)
        ]
        strides = [
            (4, 4 * e.shape[0]) if t else e.spec.strides
            for e, t in zip((x, y), turned, strict=True)
        ]
        assert_right(node, xs, operands, strides)

    def test_a_product_with_a_bias(self):
        node = Matmul()(*(mg.input(*v) for v in (("x", (5, 70)), ("y", (70, 40)), ("b", (40,)))))
        assert_right(node, drawn(node))

    @pytest.mark.usefixtures("in_small_pieces")
    def test_a_product_in_several_panels(self):
        node = Matmul()(mg.input("x", (150, 400)), mg.input("y", (400, 70)))
        assert_right(node, drawn(node))

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(("window", "lanes"), LAID_OUT)
    def test_a_convolution_and_its_gradients(self, window, lanes, way):
        conv, x, w = WINDOWS[window]
        node = in_lanes(plain_node(way, conv, x, w), lanes)
        assert_right(node, drawn(node))

    @pytest.mark.usefixtures("in_small_pieces")
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("window", ["padded", "dilated", "many borders"])
    def test_a_convolution_in_several_strips(self, window, way):
        conv, x, w = WINDOWS[window]
        plain = plain_node(way, conv, (x[0] + 3, *x[1:]), w)
        node = in_lanes(plain, 16)
        assert_right(node, drawn(node))

    def test_infinity_nan_and_what_rounds_to_infinity_reach_their_own_sums_alone(self):
        node = Matmul()(mg.input("x", (70, 33)), mg.input("y", (33, 40)))
        x, y = drawn(node)
        x[1, 32], x[2, 0], y[20, 3], x[50, 5] = np.inf, np.nan, -np.inf, np.finfo("float32").max
        y[5] *= 0.1
        assert_same_specials(node, [x, y])

    @pytest.mark.parametrize("way", WAYS)
    def test_special_numbers_of_images_reach_the_pixels_that_meet_them_alone(self, way):
        conv, x, w = WINDOWS["padded"]
        node = in_lanes(plain_node(way, conv, x, w), 16)
        xs = drawn(node)
        xs[0].flat[[7, 999]] = np.inf, np.nan
        xs[1].flat[1234] = -np.inf
        assert_same_specials(node, xs)


def assert_same_specials(node, xs):
    with np.errstate(all="ignore"):
        expected = meaning(node, xs)
    kernels = in_tiles(node)
    assert len(kernels) == 2
    for _, kernel in kernels:
        np.testing.assert_allclose(computed_by(kernel, node, xs), expected, rtol=1e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFC00000])
@pytest.mark.usefixtures("with_tiles")
def test_a_nan_of_any_bits_stays_one(bits):
    node = Matmul()(mg.input("x", (4, 40)), mg.input("y", (40, 4)))
    x, y = drawn(node)
    x[2, 7] = np.uint32(bits).view(np.float32)
    for _, kernel in in_tiles(node):
        actual = computed_by(kernel, node, [x, y])
        np.testing.assert_array_equal(np.isnan(actual).all(axis=1), [False, False, True, False])


@needs_compiler
@needs_onednn
@pytest.mark.usefixtures("with_tiles")
def test_a_function_computes_in_two_parts_where_the_option_says_so_and_only_there():
    x, w = mg.input("x", (64, 96)), mg.Parameter(np.ones((80, 96), "float32"), name="w")
    loss = ops.square(ops.linear(x, w)).mean()
    updates = {w: w - 0.1 * mg.grad(loss, [w])[0]}

    def algorithms(**options):
        step = mg.comp_graph("cpu", {"autotune": "off", **options}).compile([x], loss, updates)
        step(np.ones((64, 96), "float32"))
        return [choice.name for choice in step.report().algorithms]

    assert all("bf16x3" in name for name in algorithms(precision="bf16x3"))
    assert not any("bf16x3" in name for name in algorithms())


def test_what_was_measured_in_parts_serves_no_function_in_float32():
    measured = type("Measured", (), {"error": "", "workspace": 0, "deterministic": True})
    measured.precision = "bf16x3"
    assert Policy(precision="bf16x3").allows(measured) == ""
    assert Policy().allows(measured) == Policy(precision="tf32").allows(measured)
    assert "bf16x3" in Policy().allows(measured)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_device_without_amx_refuses(device, monkeypatch):
    monkeypatch.setattr(amx, "why_not", amx.why_not.__wrapped__)
    monkeypatch.setattr(amx, "features", frozenset)
    x = mg.input("x", (2, 2))
    with pytest.raises(mg.DeviceError, match=r"precision='bf16x3' does not work .* (no|with) AMX"):
        mg.comp_graph(device, {"precision": "bf16x3"}).compile([x], x @ x)


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_a_compiler_for_a_processor_with_amx_makes_its_instructions(name):
    path = shutil.which(name)
    if path is None or "amx_bf16" not in features():
        pytest.skip("there is no such compiler, or no AMX")
    command = [path, "-march=native", "-E", "-x", "c", "-"]
    text = subprocess.run(command, input=amx.TEXT, capture_output=True, text=True, check=True)
    assert "tdpbf16ps" in text.stdout


@needs_compiler
def test_a_system_that_grants_no_tiles_is_named(monkeypatch):
    class Refusing:
        def __init__(self, name):
            pass

        def syscall(self, *arguments):
            return -1

    monkeypatch.setattr(amx, "features", lambda: frozenset(["amx_bf16"]))
    monkeypatch.setattr(amx.ctypes, "CDLL", Refusing)
    assert amx.why_not.__wrapped__() == "the operating system does not grant AMX's tiles"
