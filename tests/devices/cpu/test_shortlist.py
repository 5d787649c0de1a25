"""The candidates that "tune" measures on the CPU: uncertain ones whose gain exceeds the cost."""

import pytest
from needs import needs_both

import minigraph as mg
from minigraph.devices.cpu import amx, direct, onednn, product, winograd
from minigraph.devices.cpu.candidates import MAX_RIVALS, CpuProblems
from minigraph.ops.conv import Conv2d
from minigraph.ops.matmul import Matmul

pytestmark = needs_both


@pytest.fixture(autouse=True)
def without_amx(monkeypatch):
    monkeypatch.setattr(amx, "why_not", lambda: "the processor has no AMX")


def shortlist(node, blocked=True, precision="float32"):
    """Return the names of the candidates for a node, whose images are in blocks if it has any."""
    tunable = CpuProblems(threads=2, on_disk=False, precision=precision).tunable(
        node, [x.spec.strides for x in node.inputs]
    )
    problem, layouts = tunable
    lanes = f"nChw{onednn.block()}c"
    names = [each for each in problem.layouts if lanes in (each[0], each[-1])]
    if blocked and names:
        layouts = problem.layouts[names[0]]
    return [c.name for c in problem.shortlist(layouts)]


def convolution(n, channels, size, outputs, window, **attributes):
    x = mg.input("x", (n, channels, size, size))
    return Conv2d(**attributes)(x, mg.input("w", (outputs, channels, window, window)))


def test_a_large_problem_whose_fastest_algorithm_is_known_is_not_measured():
    same = {"padding": (1, 1)}
    assert shortlist(convolution(16, 64, 56, 64, 3, **same)) == [winograd.NAME]
    assert len(shortlist(convolution(16, 64, 56, 256, 1))) == 1
    assert len(shortlist(convolution(16, 3, 224, 64, 7, stride=(2, 2), padding=(3, 3)))) == 1
    product = Matmul()(mg.input("x", (512, 512)), mg.input("y", (512, 512)))
    assert len(shortlist(product)) == 1
    batch = Matmul()(mg.input("x", (128, 64, 128)), mg.input("y", (128, 128, 64)))
    assert len(shortlist(batch)) == 1
    thin = Matmul()(mg.input("x", (32, 2048)), mg.input("y", (2048, 2048)))
    assert len(shortlist(thin)) > 1


def test_tiles_are_taken_for_large_products_that_winograds_algorithm_does_not_compute(monkeypatch):
    monkeypatch.setattr(amx, "why_not", lambda: "")
    product = Matmul()(mg.input("x", (512, 512)), mg.input("y", (512, 512)))
    for node in (convolution(16, 512, 14, 256, 1), product):
        assert shortlist(node) == ["tiles bf16x6"]
    assert shortlist(convolution(16, 64, 56, 64, 3, padding=(1, 1))) == [winograd.NAME]
    assert "tiles" not in shortlist(convolution(16, 64, 56, 256, 1))[0]


def test_three_products_are_taken_only_for_enough_channels(monkeypatch):
    monkeypatch.setattr(amx, "why_not", lambda: "")

    def first(*sizes, **attributes):
        return shortlist(convolution(*sizes, **attributes), precision="bf16x3")[0]

    same = {"padding": (1, 1)}
    assert first(16, 64, 56, 64, 3, **same) == first(16, 64, 56, 256, 1) == "tiles bf16x3"
    for name in (first(128, 16, 32, 16, 3, **same), first(128, 16, 32, 32, 1, stride=(2, 2))):
        assert "tiles" not in name


def test_three_products_are_measured_for_few_rows_and_a_large_matrix(monkeypatch):
    monkeypatch.setattr(amx, "why_not", lambda: "")
    product = Matmul()(mg.input("x", (32, 1024)), mg.input("y", (1024, 1024)))
    problem, layouts = CpuProblems(2, on_disk=False, precision="bf16x3").tunable(
        product, [x.spec.strides for x in product.inputs]
    )
    names = [c.name for c in problem.candidates(layouts)]
    assert "tiles" not in names[0] and "tiles bf16x3" in names


def test_a_large_convolution_with_strides_is_measured():
    names = shortlist(convolution(16, 64, 56, 128, 3, stride=(2, 2), padding=(1, 1)))
    assert direct.NAME in names and len(names) > 1


def test_a_small_problem_is_measured_beside_what_needs_no_compiler():
    names = shortlist(convolution(4, 32, 16, 32, 3, padding=(1, 1)))
    assert names[0] == winograd.NAME and 1 < len(names) <= 1 + MAX_RIVALS
    strided = shortlist(convolution(1, 32, 8, 32, 3, stride=(2, 2), padding=(1, 1)))
    assert direct.NAME not in strided, "to compile it takes longer than it may gain"


@pytest.mark.parametrize(
    ("rows", "sums", "columns", "transposed", "first"),
    [
        (8, 512, 512, False, "gemm"),
        (256, 512, 512, False, "brg"),
        (2, 512, 512, True, "gemm"),
        (8, 512, 512, True, "brg"),
        (512, 512, 1, False, "gemm"),
        (1024, 32, 1024, False, "gemm"),
        (1024, 96, 1024, False, "brg"),
        (512, 32, 512, False, "brg"),
    ],
)
def test_a_thin_product_begins_with_what_copies_nothing(rows, sums, columns, transposed, first):
    x, y = mg.input("x", (rows, sums)), mg.input("y", (sums, columns))
    strides = [x.spec.strides, (4, 4 * sums) if transposed else y.spec.strides]
    problem, layouts = CpuProblems(2, on_disk=False).tunable(Matmul()(x, y), strides)
    names = [c.name for c in problem.candidates(layouts)]
    if len({name.partition(":")[0] for name in names}) > 1:  # some processors have one of them
        assert names[0].startswith(first)


@pytest.mark.parametrize(
    ("channels", "groups", "window", "padding"),
    [(64, 64, (1, 31), (0, 15)), (16, 16, (15, 15), (7, 7)), (8, 1, (31, 31), (15, 15))],
)
def test_panels_of_pixels_that_serve_few_rows_are_expected_to_be_slow(
    channels, groups, window, padding
):
    x = mg.input("x", (2, channels, 40, 40))
    w = mg.input("w", (channels, channels // groups, *window))
    node = Conv2d(padding=padding, groups=groups)(x, w)
    problem, _ = CpuProblems(1, on_disk=False).tunable(node, [x.spec.strides, w.spec.strides])
    first = {each: next(iter(problem.candidates(each)), None) for each in problem.options}
    names = {each: candidate.name for each, candidate in first.items() if candidate}
    if {*names.values()} != {product.NAME}:  # some processors have nothing else
        assert names[min(problem.options, key=problem.estimate)] != product.NAME
