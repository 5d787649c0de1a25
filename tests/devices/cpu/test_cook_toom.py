"""Winograd's transforms: the matrices are exact, and the C multiplies by them."""

import re
from fractions import Fraction

import numpy as np
import pytest

from minigraph.devices.cpu.cook_toom import matrices, statements, transposed
from minigraph.devices.cpu.winograd import POINTS, TILE

LAVIN_GRAY = [Fraction(p) for p in (0, 1, -1, 2, -2)]
SEVEN = [*LAVIN_GRAY, Fraction(1, 2), Fraction(-1, 2)]

# (results, taps, points)
CORRELATIONS = {
    **{f"{r}-taps-used": (TILE, r, points) for r, points in POINTS.items()},
    "4-results-lavin-gray": (4, 3, LAVIN_GRAY),
    "6-results": (6, 3, SEVEN),
    "5-taps": (2, 5, LAVIN_GRAY),
    "no-pairs": (3, 2, [Fraction(1, 3), Fraction(2), Fraction(-5, 7)]),
    "one-result": (1, 3, [Fraction(1), Fraction(4)]),
    "one-tap": (3, 1, [Fraction(1), Fraction(-1)]),
    "one-product": (1, 1, []),
}
every_correlation = pytest.mark.parametrize(
    ("results", "taps", "points"), CORRELATIONS.values(), ids=CORRELATIONS
)


def times(matrix, vector):
    return [sum(c * v for c, v in zip(row, vector, strict=True)) for row in matrix]


def products(a, b):
    return [x * y for x, y in zip(a, b, strict=True)]


def fractions(n, seed):
    rng = np.random.default_rng(seed)
    return [Fraction(int(a), int(b)) for a, b in rng.integers((-50, 1), (50, 20), (n, 2))]


# ---------------------------------------------------------------- the matrices


@every_correlation
def test_a_correlation_takes_a_product_for_each_input(results, taps, points):
    at, g, bt = matrices(results, taps, points)
    inputs = results + taps - 1
    assert (len(at), len(g), len(bt)) == (results, inputs, inputs)
    d, weights = fractions(inputs, seed=0), fractions(taps, seed=1)
    expected = [sum(products(weights, d[i : i + taps])) for i in range(results)]
    assert times(at, products(times(g, weights), times(bt, d))) == expected


@every_correlation
def test_the_transposed_algorithm_gives_the_gradient_for_the_taps(results, taps, points):
    at, g, bt = matrices(results, taps, points)
    d, dy = fractions(results + taps - 1, seed=0), fractions(results, seed=1)
    expected = [sum(products(dy, d[k : k + results])) for k in range(taps)]
    assert times(transposed(g), products(times(transposed(at), dy), times(bt, d))) == expected


@pytest.mark.parametrize("points", [LAVIN_GRAY[:4], SEVEN], ids=len)
def test_too_few_or_too_many_points_are_refused(points):
    with pytest.raises(ValueError, match="4 results of 3 taps take 5 points"):
        matrices(4, 3, points)


# ---------------------------------------------------------------- as C

X_STRIDE, Y_STRIDE = 3, 2  # in elements of x and of y


def run(matrix, x):
    """Return what the C for a matrix makes of fractions, its lines read as Python."""
    operands = {k * X_STRIDE: value for k, value in enumerate(x)}
    results = {}
    names = {
        "x": operands,
        "y": results,
        "x_stride": X_STRIDE,
        "y_stride": Y_STRIDE,
        "Fraction": Fraction,
    }
    for line in statements(matrix):
        text = line.removeprefix("const vec ").removesuffix(";")
        text = re.sub(r"([\d.e+-]+)f \*", r"Fraction(\1) *", text)
        exec(text.replace("(vec){0}", "Fraction(0)").replace(", ", "; "), names)
    assert set(results) == {i * Y_STRIDE for i in range(len(matrix))}
    return [results[i * Y_STRIDE] for i in range(len(matrix))]


def whole(*rows):
    return [[Fraction(c) for c in row] for row in rows]


# What there may be to share, and what not.
MATRICES = [
    whole([0, 0], [0, 0]),
    whole([-1]),
    whole([1, 0, 0], [0, 0, 1], [0, -1, 0]),  # copies
    whole([3, 0, 0], [-3, 0, 0]),
    whole([1, 2, 3], [1, -2, 3], [1, 2, -3]),
    whole([1, -1, 1], [2, 2, 2], [5, 5, -5]),
    whole([1, 1, 2], [1, 1, -2], [3, -3, 0], [3, -3, 0]),
    [[Fraction(1, 2**20), Fraction(3)], [Fraction(1), Fraction(2**60)]],
]


def drawn(seed):
    """Return a matrix of which rows are alike but for signs."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(-2, 3, (3, rng.integers(1, 7)))
    kinds[0, 1:] = 0
    rows = kinds[rng.integers(0, 3, rng.integers(1, 7))]
    rows = rows * rng.choice((-1, 1), rows.shape) * rng.choice((0, 1, 1, 1), (len(rows), 1))
    return whole(*rows.tolist())


def test_the_c_computes_what_a_matrix_says():
    for matrix in (*MATRICES, *map(drawn, range(100))):
        for rows in (matrix, transposed(matrix)):
            x = fractions(len(rows[0]), seed=0)
            assert run(rows, x) == times(rows, x), matrix


@every_correlation
def test_the_c_of_transforms_rounds_the_coefficients_alone(results, taps, points):
    for matrix in matrices(results, taps, points):
        for rows in (matrix, transposed(matrix)):
            x = fractions(len(rows[0]), seed=2)
            near = [float(y) for y in run(rows, x)]
            np.testing.assert_allclose(near, [float(y) for y in times(rows, x)], rtol=1e-12)


def test_points_with_both_signs_share_what_is_even_in_them():
    _, _, bt = matrices(TILE, 3, POINTS[3])
    text = "".join(statements(bt))
    terms = [c for row in bt for c in row if c]
    assert text.count("f * ") < sum(abs(c) != 1 for c in terms)
    assert len(re.findall(" [+-] ", text)) < len(terms) - len(bt)
