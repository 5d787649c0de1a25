"""Short correlations with fewer products: the matrices of Winograd's algorithms, and C for them.

m results of a filter of r taps take m + r - 1 products instead of m r:

    y = AT ((G g) * (BT d))         with d of m + r - 1 inputs, g of r taps

The matrices are those of Cook and Toom's algorithm, which multiplies polynomials by their values at
m + r - 2 points and at infinity, transposed; see Lavin and Gray (2016, "Fast algorithms for
convolutional neural networks").  Points a and -a share the terms with even powers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

Matrix = list[list[Fraction]]


def matrices(results: int, taps: int, points: Sequence[Fraction]) -> tuple[Matrix, Matrix, Matrix]:
    """Return AT, G and BT for the given points and infinity."""
    if len(points) != results + taps - 2:
        raise ValueError(f"{results} results of {taps} taps take {results + taps - 2} points")
    at = [[p**i for p in points] + [Fraction(i == results - 1)] for i in range(results)]
    g, bt = [], []
    for point in points:
        others = [p for p in points if p != point]
        scale = math.prod(point - p for p in others)
        g.append([point**k / scale for k in range(taps)])
        bt.append([*_polynomial(others), Fraction(0)])
    g.append([Fraction(k == taps - 1) for k in range(taps)])
    bt.append(_polynomial(points))
    return at, g, bt


def transposed(matrix: Matrix) -> Matrix:
    return [list(row) for row in zip(*matrix, strict=True)]


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of all x - root, the constant first."""
    product = np.array([Fraction(1)])
    for root in roots:
        product = np.convolve(product, np.array([-root, Fraction(1)]))
    return [*product]


# ---------------------------------------------------------------- as C


def statements(matrix: Matrix) -> Iterator[str]:
    """Yield C that sets vectors y[i * y_stride] to `matrix` times the vectors x[k * x_stride]."""
    rows = [list(row) for row in matrix]
    names = [f"x{k}" for k in range(len(rows[0]))]
    for k, name in enumerate(names):
        yield f"const vec {name} = x[{k} * x_stride];"
    for k, other in _equal_up_to_signs(transposed(rows)):
        # Each row takes the sum of the two or the difference.
        yield f"const vec s{k} = {names[k]} + {names[other]}, d{k} = {names[k]} - {names[other]};"
        names[k], names[other] = f"s{k}", f"d{k}"
        for row in rows:
            is_equal = row[k] == row[other]
            row[k], row[other] = (row[k], Fraction(0)) if is_equal else (Fraction(0), row[k])
    pairs = dict(_equal_up_to_signs(rows))
    for i, other in pairs.items():
        even = [a if a == b else Fraction(0) for a, b in zip(rows[i], rows[other], strict=True)]
        odd = [a - b for a, b in zip(rows[i], even, strict=True)]
        yield f"const vec e{i} = {_sum(even, names)}, o{i} = {_sum(odd, names)};"
        yield f"y[{i} * y_stride] = e{i} + o{i};"
        yield f"y[{other} * y_stride] = e{i} - o{i};"
    for i, row in enumerate(rows):
        if i not in pairs and i not in pairs.values():
            yield f"y[{i} * y_stride] = {_sum(row, names)};"


def _equal_up_to_signs(rows: Matrix) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows that differ only in signs and have several nonzero elements."""
    remaining = list(range(len(rows)))
    while remaining:
        i = remaining.pop(0)
        for j in remaining:
            pairs = list(zip(rows[i], rows[j], strict=True))
            if sum(map(bool, rows[i])) > 1 and all(abs(a) == abs(b) for a, b in pairs):
                remaining.remove(j)
                yield i, j
                break


def _sum(coefficients: Sequence[Fraction], names: Sequence[str]) -> str:
    terms = [(c, name) for c, name in zip(coefficients, names, strict=True) if c]
    terms.sort(key=lambda term: term[0] < 0)
    text = ""
    for c, name in terms:
        sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
        text += sign + (name if abs(c) == 1 else f"{float(abs(c))!r}f * {name}")
    return text or "(vec){0}"
