"""Comparison of functions at level 3 with NumPy."""

import contextlib
import ctypes
import mmap

import numpy as np

import minigraph as mg
from minigraph.graph import FLOATS

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, -2.5]


def array(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        low = 0 if np.dtype(dtype).kind == "u" else -4
        return rng.integers(low, 5, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


@contextlib.contextmanager
def before_a_guard(shape, dtype="float32"):
    """An array, up to a page long, behind which is memory that nothing may read."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    guard = ctypes.c_void_p(begin + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)
    assert protect(*guard, 0) == 0
    try:
        size = int(np.prod(shape))
        place = mmap.PAGESIZE - size * np.dtype(dtype).itemsize
        yield np.frombuffer(memory, dtype, size, place).reshape(shape)
    finally:
        protect(*guard, mmap.PROT_READ | mmap.PROT_WRITE)


def compiled(ys, inputs, updates=None, level=3, device="cpu", **options):
    options = {"graph_opt_level": level, "autotune": "off", **options}
    return mg.comp_graph(device, options).compile(inputs, ys, updates)


def assert_same(result, expected, tolerance=None, signs=True):
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    if result.dtype not in FLOATS:
        np.testing.assert_array_equal(result, expected)
        return
    if tolerance is None:
        tolerance = 1e-12 if result.dtype == np.float64 else 1e-5
    scale = np.abs(expected).max(initial=1e-30, where=np.isfinite(expected))
    np.testing.assert_allclose(result, expected, tolerance, tolerance * scale)
    if signs:
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]))


def each_alone(functions):
    """Return the function of one input for each of the functions that has all their results."""

    def build(*xs):
        results = [fn(x) for fn, x in zip(functions, xs, strict=True)]
        return tuple(y for ys in results for y in (ys if isinstance(ys, tuple) else (ys,)))

    return build


def check(build, *xs, kernels=None, tolerance=None, signs=True, **options):
    """Level 3 gives what NumPy gives, in `kernels` kernels; return its report.

    That the kernels of single ops, of level 0, give it has tests of its own.
    """
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    ys = build(*inputs)
    ys = list(ys) if isinstance(ys, tuple) else [ys]
    function = compiled(ys, inputs, **options)
    with np.errstate(all="ignore"):
        meaning = compiled(ys, inputs, level=0, device="reference")(*xs)
    for result, expected in zip(function(*xs), meaning, strict=True):
        assert_same(result, expected, tolerance, signs)
    report = function.report()
    assert kernels is None or len(report.kernels) == kernels
    assert report.ops["fused"] == len(report.kernels)
    return report


def compilations(build):
    mg.jit.reset_stats()
    build()
    return mg.jit.stats().compilations
