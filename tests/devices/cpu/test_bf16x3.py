"""`precision="bf16x3"`: products of float32 in three products of bfloat16, sixteen bits exact."""

import numpy as np
import pytest
from laid_out import WAYS, computed_by, drawn, in_lanes, meaning, plain_node, results_of
from needs import needs_bfloat16, needs_compiler, needs_onednn

import minigraph as mg
from minigraph import ops
from minigraph.autotune.measurement import Policy
from minigraph.devices.cpu import bf16x3, onednn
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.graph import BFLOAT16, Spec
from minigraph.ops.conv import Conv2d
from minigraph.ops.matmul import Matmul

needs_parts = [needs_bfloat16, needs_compiler]
# What is left out of a product, and what the two lower parts are rounded by: 2**-18 each.
BOUND = 3 * 2.0**-18
PRODUCTS = [((33, 65), (65, 17)), ((3, 9, 70), (3, 70, 5)), ((4, 9, 40), (40, 8)), ((1, 7), (7, 1))]
WINDOWS = {
    "one pixel": (Conv2d(), (2, 32, 7, 7), (16, 32, 1, 1)),
    "padded": (Conv2d(padding=(1, 2)), (2, 32, 9, 9), (48, 32, 3, 3)),
    "strided": (Conv2d(stride=(2, 1), padding=(1, 1)), (2, 16, 9, 8), (16, 16, 3, 3)),
    "dilated": (Conv2d(dilation=(2, 2)), (3, 16, 9, 9), (32, 16, 3, 3)),
    "few channels": (Conv2d(padding=(1, 1)), (2, 3, 9, 9), (5, 3, 3, 3)),
}


# Channels that are a multiple of 16 make blocks; `in_lanes` has one number of lanes for x and y.
LAID_OUT = [(name, "nchw") for name in WINDOWS]
LAID_OUT += [(name, "blocks") for name, (_, x, w) in WINDOWS.items() if x[1] % 16 == w[0] % 16 == 0]
LAID_OUT += [(name, "nhwc") for name, (_, x, w) in WINDOWS.items() if x[1] == w[0]]


@pytest.fixture
def with_amx(monkeypatch):
    """A processor with AMX, whose bfloat16 another instruction multiplies, and no small kernels."""
    monkeypatch.setattr(bf16x3, "features", lambda: frozenset(["amx_bf16"]))
    monkeypatch.setattr(bf16x3, "LEAST", 0)


def in_parts(node, *strides, threads=2):
    """Return the kernels of a node in parts of bfloat16."""
    steps = [*strides, *(x.spec.strides for x in node.inputs[len(strides) :])]
    problem, layouts = CpuProblems(threads, True, "bf16x3").tunable(node, steps)
    return [c.kernel for c in problem.candidates(layouts) if c.precision == "bf16x3"]


def assert_near(got, node, xs):
    """Compare a result with float64's: the error is a share of the sum of sizes of all products."""
    sizes = meaning(node, [np.abs(x) for x in xs])
    np.testing.assert_array_less(np.abs(got - meaning(node, xs)), BOUND * sizes + 1e-30)


def split(x, first):
    """Return the three parts of each row of an array."""
    rows, n = x.shape
    kernel = NativeKernel(mg.input("x", x.shape), [call(bf16x3._text(first), 2, rows, n)])
    kernel.scratch = 0
    (parts,) = results_of(kernel, [Spec((rows, 3, n), BFLOAT16)], [x])
    return parts.astype("float32").swapaxes(0, 1)


@pytest.mark.usefixtures("with_amx")
class TestInParts:
    pytestmark = needs_parts

    def test_a_number_is_the_sum_of_its_parts_but_for_seventeen_bits(self):
        x = np.random.default_rng(0).standard_normal((3, 9000), np.float32)
        x *= np.float32(10.0) ** np.linspace(-30, 37, 9000, dtype="float32")
        high, again, low = split(x, first=True)
        np.testing.assert_array_equal(high, again)
        assert (np.abs(high.astype("float64") + low - x) <= 2.0**-17 * np.abs(x)).all()
        np.testing.assert_array_equal(split(x, first=False)[[0, 2, 1]], [high, again, low])

    def test_no_number_becomes_infinite_and_infinity_and_nan_stand_alone(self):
        largest = np.finfo(np.float32).max
        x = np.array([[largest, -largest, np.inf, -np.inf, np.nan, 0.0]], "float32")
        high, again, low = split(x, first=True)[:, 0]
        np.testing.assert_array_equal(high[2:], x[0, 2:])
        assert np.isfinite([*high[:2], *again, *low]).all()
        np.testing.assert_allclose(high[:2] + low[:2].astype("float64"), x[0, :2], rtol=2.0**-16)

    @pytest.mark.parametrize(("left", "right"), PRODUCTS)
    @pytest.mark.parametrize("transposed", ["", "x", "y", "xy"])
    def test_a_product_is_exact_to_sixteen_bits(self, left, right, transposed):
        x, y = mg.input("x", left), mg.input("y", right)
        node = Matmul()(x, y)
        xs = drawn(node)
        columns = {name for name in transposed if min((x if name == "x" else y).shape[-2:]) > 1}
        given = [
            (v.swapaxes(-1, -2).copy(), lambda a: a.swapaxes(-1, -2)) if e.name in columns else v
            for e, v in zip((x, y), xs, strict=True)
        ]
        strides = [
            e.spec.strides if e.name not in columns else (*e.spec.strides[:-2], 4, 4 * e.shape[-2])
            for e in (x, y)
        ]
        kernels = in_parts(node, *strides)
        assert kernels
        for kernel in kernels:
            assert_near(computed_by(kernel, node, given), node, xs)

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(("window", "lanes"), LAID_OUT)
    def test_a_convolution_and_its_gradients_are_exact_to_sixteen_bits(self, window, lanes, way):
        conv, x, w = WINDOWS[window]
        node = plain_node(way, conv, x, w)
        if lanes != "nchw":
            node = in_lanes(node, onednn.block() if lanes == "blocks" else x[1])
        xs = drawn(node)
        kernels = in_parts(node)
        assert kernels or lanes == "blocks" or x[1] < 4  # for which oneDNN lacks some
        for kernel in kernels:
            assert_near(computed_by(kernel, node, xs), node, xs)

    def test_infinity_and_nan_reach_the_results_that_they_are_part_of_alone(self):
        node = Matmul()(mg.input("x", (5, 33)), mg.input("y", (33, 7)))
        x, y = drawn(node)
        x[1, 32], x[2, 0], y[20, 3] = np.inf, np.nan, -np.inf
        want = x.astype("float64") @ y
        kernels = in_parts(node)
        assert kernels
        for kernel in kernels:
            got = computed_by(kernel, node, [x, y])
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            infinite = np.isinf(want)
            np.testing.assert_array_equal(got[infinite], want[infinite])

    def test_a_function_computes_in_parts_where_the_option_says_so_and_only_there(self):
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


@needs_onednn
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_device_without_amx_refuses(device, monkeypatch):
    monkeypatch.setattr(bf16x3, "features", frozenset)
    x = mg.input("x", (2, 2))
    with pytest.raises(mg.DeviceError, match=r"precision='bf16x3' does not work .* with? AMX"):
        mg.comp_graph(device, {"precision": "bf16x3"}).compile([x], x @ x)
