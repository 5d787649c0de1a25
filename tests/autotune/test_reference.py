"""Reference results of candidates: the heuristic's choice, whose checksums NumPy verifies."""

import copy
import math
import tracemalloc

import numpy as np
import pytest
from needs import needs_onednn

import minigraph as mg
from minigraph.autotune.candidate import Candidate, Workbench
from minigraph.autotune.data import (
    TOLERANCE,
    TrialData,
    checksums,
    largest_difference,
    numpy_results,
    reference_results,
    root_mean_square,
)
from minigraph.autotune.tuner import measure
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights

SHAPES = [  # images, channels before and behind, pixels, window, stride, groups, bias
    (4, 8, 6, 9, 3, 1, 1, False),
    (3, 6, 4, 8, 3, 2, 2, True),
    (8, 3, 70, 11, 5, 2, 1, True),
    (1, 67, 5, 4, 1, 1, 1, False),
    (2, 5, 5, 6, 3, 1, 5, False),
]


def problems(images, before, behind, pixels, window, stride, groups, bias, dtype="float32"):
    """Return the problems of a convolution and its two gradients."""
    conv = Conv2d((stride, stride), (window // 2, window // 2), (1, 1), groups)
    x = mg.input("x", (images, before, pixels, pixels), dtype)
    w = mg.input("w", (behind, before // groups, window, window), dtype)
    y = conv(x, w, *([mg.input("b", (behind,), dtype)] if bias else []))
    dy = mg.input("dy", y.shape, dtype)
    backward = Conv2dBackwardData(conv, x.shape)(dy, w), Conv2dBackwardWeights(conv, w.shape)(dy, x)
    of = CpuProblems(1, on_disk=False)
    return [of.tunable(n, [x.spec.strides for x in n.inputs]).problem for n in (y, *backward)]


def inputs_of(problem):
    random = np.random.default_rng(0)
    return [random.standard_normal(x.shape).astype(x.dtype) for x in problem.inputs]


class Computes:
    """A kernel that gives NumPy's results after `spoil` has changed them."""

    scratch = 64

    def __init__(self, problem, spoil):
        self.problem, self.spoil = problem, spoil

    def run(self, inputs, outputs, scratch):
        outputs[0][...] = numpy_results(self.problem, inputs)[0]
        self.spoil(outputs[0])


def spoiled(problem, spoil=lambda y: None, meaning=None, **of_candidate):
    """Return the problem with one candidate, whose results `spoil` changes.

    meaning  what NumPy is asked for if its sums are wrong
    """
    kernel = Computes(problem, spoil)
    changed = copy.copy(problem)
    one = Candidate("one", next(iter(problem.layouts.values())), lambda: kernel, **of_candidate)
    changed.candidates = lambda: [one]
    changed.meaning = meaning or (lambda *xs: pytest.fail("NumPy computes all"))
    return changed


def compared_with(problem, xs, spoil=lambda y: None, meaning=None, **of_candidate):
    """Return the reference results if the heuristic's choice computes wrong ones."""
    return reference_results(spoiled(problem, spoil, meaning, **of_candidate), Workbench(), xs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_of_operands_give_the_sums_of_the_result(shape, dtype):
    for problem in problems(*shape):
        narrow = [x.astype(mg.graph.Spec((), dtype).dtype) for x in inputs_of(problem)]
        y = numpy_results(problem, narrow)[0].astype(narrow[0].dtype)
        results, expected = checksums(problem.sums, lambda x: x, y, narrow)
        assert results.shape == expected.shape and results.dtype == expected.dtype == np.float32
        allowed = TOLERANCE[dtype] * root_mean_square(y, 1 << 16)
        assert largest_difference(results, expected, 1 << 16) < 0.7 * allowed


def test_results_whose_sums_are_right_are_taken():
    for problem in problems(*SHAPES[0]):
        xs = inputs_of(problem)
        error = compared_with(problem, xs)
        assert np.array_equal(error[0], numpy_results(problem, xs)[0])


def spoilers(size):
    """Yield functions that make a result wrong in one of many ways."""

    def off(place, error):
        def spoil(y):
            y.reshape(-1)[place] += error * y.std()

        return spoil

    for place in (0, 1, size // 3, size // 2, size - 2, size - 1):
        for error in (2e-3, -1.0, 1e30, math.nan, math.inf):
            yield off(place, error)
    for exchanged in ([1, 0], [-1, *range(1, 4)]):
        yield lambda y, order=exchanged: y.__setitem__(slice(len(order)), y[order])
    yield lambda y: y.__setitem__((slice(None), [0, 1]), y[:, [1, 0]])
    yield lambda y: y.fill(0)
    yield lambda y: np.multiply(y, 1.01, out=y)
    yield lambda y: np.lib.stride_tricks.as_strided(y, (y.size + 1,), (4,)).fill(1)


def test_a_result_that_is_wrong_anywhere_makes_numpy_compute_all():
    for problem in problems(*SHAPES[0]):
        xs = inputs_of(problem)
        right = numpy_results(problem, xs)
        for spoil in spoilers(right[0].size):
            assert compared_with(problem, xs, spoil, lambda *xs, right=right: right) is right


def test_axes_that_are_exchanged_make_numpy_compute_all():
    for problem in problems(4, 4, 4, 5, 3, 1, 1, False):
        xs = inputs_of(problem)
        right = numpy_results(problem, xs)

        def spoil(y):
            y[...] = y.swapaxes(0, 1).copy()

        assert compared_with(problem, xs, spoil, lambda *xs, right=right: right) is right


def test_a_heuristic_that_is_wrong_is_measured_as_wrong():
    (problem, *_) = problems(*SHAPES[0])
    wrong = spoiled(problem, lambda y: y.__setitem__((-1, -1, -1, -1), 9.0), problem.meaning)
    (measurement,) = measure(wrong).measurements
    assert measurement.error.startswith("wrong result: off by")


def test_what_fails_or_is_less_exact_is_no_reference():
    (problem, *_) = problems(*SHAPES[0])
    xs = inputs_of(problem)
    right = numpy_results(problem, xs)

    def fails(y):
        raise OSError("no more")

    assert compared_with(problem, xs, fails, lambda *xs: right) is right
    assert compared_with(problem, xs, meaning=lambda *xs: right, precision="tf32") is right


@needs_onednn
def test_candidates_in_several_layouts_take_the_memory_of_one():
    problem = problems(32, 32, 32, 24, 3, 1, 1, False)[0]
    lanes = {c.layouts[0].lanes: c for c in problem.candidates()}
    assert len(lanes) > 2
    data = TrialData(problem, Workbench())
    tracemalloc.start()
    for candidate in lanes.values():
        inputs, (y,) = data.operands(candidate)
        for block, x, layout in zip(inputs, data.plain, candidate.layouts, strict=False):
            np.testing.assert_array_equal(block.array, problem.to_layout(x, layout))
            assert not block.is_changed()
        y[...] = problem.to_layout(data.reference[0], candidate.layouts[-1])
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        assert not data.check_results(candidate)
        assert tracemalloc.get_traced_memory()[1] - before < y.nbytes / 2
        for i in (0, -1):
            right, y.reshape(-1)[i] = y.reshape(-1)[i], 1e3
            assert "wrong result: off by" in data.check_results(candidate)
            y.reshape(-1)[i] = right
    arrays = sum(x.nbytes for x in data.plain) + y.nbytes
    assert tracemalloc.get_traced_memory()[0] < 1.1 * arrays
    tracemalloc.stop()
