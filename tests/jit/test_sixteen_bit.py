"""Generated kernels of float16 and bfloat16 have NumPy's bits, op by op and fused."""

import functools
import itertools
from collections import defaultdict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from elementwise_samples import (
    ELEMENTWISE,
    accepts,
    at_the_kinks,
    defined,
    draw,
    is_random,
    operand_dtypes,
)
from needs import GENERATED, needs_compiler
from samples import STRUCTURAL
from small_floats import (
    F16,
    F32,
    F64,
    SMALL,
    assert_bits,
    compiled,
    every,
    flushed,
    meaning,
    nodes_for,
    real,
    run,
    steps,
)

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16, BOOL, DTYPES, INTEGERS
from minigraph.ops.elementwise import kind

pytestmark = needs_compiler


def test_the_smallest_normal_number_is_one_step_from_zero():
    """There glibc's vector functions of tan(x) return 0 for SSE and AVX2, x for AVX-512."""
    tiny = float(ml_dtypes.finfo(BFLOAT16).tiny)
    from_zero = [0, tiny / 2, tiny, tiny * (1 + 2**-7), -tiny, np.nan]
    numbers = np.array(from_zero, BFLOAT16)
    zero = np.zeros(1, BFLOAT16)
    assert [steps(zero, x) for x in numbers[:4, None]] == [0, 0, 1, 2]
    assert steps(zero, -zero) == 1
    assert steps(numbers[2:3], numbers[4:5]) == 3
    assert steps(numbers[5:], -numbers[5:]) == 0
    assert steps(np.zeros(1, F16), np.array([2.0**-24], F16)) == 1


# ---------------------------------------------------------------- conversions


@SMALL
def test_every_number_converts_as_numpy_has_it(dtype):
    x = every(dtype)[~flushed(every(dtype))]
    targets = [t for t in DTYPES if t not in INTEGERS and t != dtype]
    (node,) = nodes_for([x])
    function = compiled([node], [ops.astype(node, target) for target in targets])
    assert {kernel for _, kernel, _ in function.report().steps} == {GENERATED}
    for y, target in zip(function(x), targets, strict=True):
        with np.errstate(all="ignore"):
            assert_bits(y, x.astype(target))


@SMALL
@pytest.mark.parametrize("source", [F32, F64], ids=str)
def test_floats_round_to_the_nearest_and_the_even_one_of_two(dtype, source):
    """Every number, the midpoint to the next one, and the neighbours of both."""
    inf = np.array(np.inf, dtype).view(np.uint16)
    x = every(dtype)
    x = x[~flushed(x)].view(np.uint16)
    x = np.unique(x[x & 0x7FFF < inf].view(dtype).astype(F64))
    beyond = [65519.99, 65520, 65536, 1e30] if dtype == F16 else [3.396e38, 3.39616e38]
    middles = (x[1:] + x[:-1]) / 2
    middles = middles[np.abs(middles) > 2.0**-125] if dtype == BFLOAT16 else middles
    centres = np.concatenate([x, middles, beyond, np.negative(beyond)]).astype(source)
    below, above = np.nextafter(centres, -np.inf), np.nextafter(centres, np.inf)
    x = np.concatenate([centres, below, above, [np.nan, np.inf, -np.inf, -0.0, 1e300]])
    with np.errstate(all="ignore"):
        x = x.astype(source)
    if dtype == BFLOAT16:  # denormals are 0 while programs run
        x = x[(x == 0) | ~(np.abs(x) < 2.0**-126)]
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    (y,) = run(ops.astype(mg.input("x", x.shape, source), dtype).op, x)
    assert_bits(y, expected)


def whole_numbers(dtype):
    """Return integers, or bools, that a cast to a 16-bit float rounds."""
    if dtype == BOOL:
        return np.array([False, True])
    info = np.iinfo(dtype)
    few = np.arange(info.min if info.bits == 8 else 0, 100)
    large = [v for b in range(7, info.bits) for v in (2**b - 1, 2**b + 2 ** max(b - 9, 0))]
    return np.array([*few, *(v for v in large if v <= info.max), info.min, info.max], dtype)


@SMALL
def test_integers_and_bools_convert_both_ways(dtype):
    """All casts are compiled in one function."""
    others = [*INTEGERS, BOOL]
    xs = [whole_numbers(other) for other in others]
    back = np.array([0, 1, 2.5, 100, 127], dtype)
    *inputs, small_input = nodes_for([*xs, back])
    outputs = [ops.astype(x, dtype) for x in inputs]
    function = compiled([*inputs, small_input], [*outputs, *map(small_input.astype, others)])
    assert {kernel for _, kernel, _ in function.report().steps} == {GENERATED}
    with np.errstate(all="ignore"):
        expected = [*(x.astype(dtype) for x in xs), *map(back.astype, others)]
    for y, wanted in zip(function(*xs, back), expected, strict=True):
        assert_bits(y, wanted)


@SMALL
def test_nan_stays_nan_and_quiet(dtype):
    x = np.array([0x7F800001, 0xFF800001, 0x7FBFFFFF, 0x7FC00001], np.uint32).view(F32)
    (y,) = run(ops.astype(mg.input("x", x.shape), dtype).op, x)
    quiet = 0x7E00 if dtype == F16 else 0x7FC0
    assert (y.view(np.uint16) & quiet == quiet).all()
    assert np.signbit(y).tolist() == [False, True, False, False]


# ---------------------------------------------------------------- ops alone


def in_float32(op, dtype, *xs):
    """Return results in float32, rounded once, unless the C rounds in between like NumPy."""
    if "{round}" in getattr(op, "c", ""):
        return meaning(op, *xs)
    ys = meaning(op, *(x.astype(F32) if x.dtype == dtype else x for x in xs))
    with np.errstate(all="ignore"):
        return [y.astype(dtype) if y.dtype == F32 else y for y in ys]


def specials(dtype):
    info = ml_dtypes.finfo(dtype)
    near = [0, 0.25, 0.5, 1, 1.5, 2.5, 3, 300, float(info.tiny), float(info.max), np.inf]
    near += [2.0**-24, 3e-5, 65472] if dtype == F16 else []
    return np.array([*near, *(-v for v in near), np.nan], dtype)


def elementwise_operands(op, dtype):
    """Return all combinations of special values, and numbers from the domain."""
    dtypes = operand_dtypes(op, dtype)
    values = [specials(d) if d == dtype else np.array([False, True]) for d in dtypes]
    if op.kinks:
        values[0] = np.concatenate([values[0], at_the_kinks(op, dtype)])
    grid = np.meshgrid(*values, indexing="ij")
    drawn = [draw(d, 1000, *op.domain, seed) for seed, d in enumerate(dtypes)]
    xs = [np.concatenate([g.ravel(), d]) for g, d in zip(grid, drawn, strict=True)]
    with np.errstate(all="ignore"):
        where = defined(op, *xs)
    return [x[where] for x in xs]


def small(xs, dtype):
    return [x.astype(dtype) if kind(x.dtype) == "f" else x for x in map(np.asarray, xs)]


def a_sample_for_each_type():
    """Yield an op's first sample for one dtype, and in long runs its second for the other dtype."""
    samples = {}
    for name, (op, xs) in STRUCTURAL.items():
        if xs and all(np.size(x) for x in xs) and op.name != "one_hot":
            samples.setdefault(op.name, []).append(name)
    for i, names in enumerate(samples.values()):
        yield names[0], (F16, BFLOAT16)[i % 2], False
        yield names[:2][-1], (BFLOAT16, F16)[i % 2], True


def cases(samples):
    """Return parameters (sample, dtype, whether only long runs test it)."""
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype}", marks=[pytest.mark.long] * only_long)
        for name, dtype, only_long in samples
    ]


OTHERS = cases(a_sample_for_each_type())
# Loads and stores of a dtype do not depend on the op: a short run tests each op with one dtype.
CASES = cases(
    (name, dtype, (i + j) % 2 and "{round}" not in getattr(op, "c", ""))
    for i, (name, op) in enumerate(ELEMENTWISE.items())
    for j, dtype in enumerate((F16, BFLOAT16))
    if accepts(op, dtype) and not is_random(op)
)


def elementwise_samples(names, dtype):
    ops = {name: ELEMENTWISE[name] for name in names}
    return {name: (op, elementwise_operands(op, dtype)) for name, op in ops.items()}


def other_samples(names, dtype):
    return {name: (STRUCTURAL[name][0], small(STRUCTURAL[name][1], dtype)) for name in names}


@pytest.fixture(scope="module")
def running(request):
    """The names of the samples that run, by the function of the test and the dtype."""
    names = defaultdict(tuple)
    for test in request.session.items:
        if test.path == Path(__file__) and "name" in test.fixturenames:
            case = test.callspec.params
            names[test.function, case["dtype"]] += (case["name"],)
    return names


@functools.cache
def computed(samples, names, dtype):
    """Return op, operands and results of each sample by name, compiled together; kernels by op."""
    selection = samples(names, dtype)
    nodes = {name: nodes_for(xs, name) for name, (_, xs) in selection.items()}
    ys = {name: op.results(*nodes[name]) for name, (op, _) in selection.items()}
    function = compiled(
        [x for xs in nodes.values() for x in xs], [y for r in ys.values() for y in r]
    )
    results = iter(function(*(x for _, xs in selection.values() for x in xs)))
    rows = {name: (*selection[name], [next(results) for _ in ys[name]]) for name in selection}
    return rows, {name: kernel for name, kernel, _ in function.report().steps}


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_c_agrees_with_the_meaning(name, dtype, running, request):
    """Bit by bit, unless an op calls a function of the C library."""
    results, kernels = computed(elementwise_samples, running[request.function, dtype], dtype)
    op, xs, (y,) = results[name]
    assert kernels[op.name] in {"c", GENERATED}
    if y.dtype != dtype:
        assert_bits(y, *meaning(op, *xs))
        return
    (expected,) = in_float32(op, dtype, *xs)
    if op.name.startswith("fma") and dtype == BFLOAT16:  # its products may be denormal
        normal = np.all([(x == 0) | ~(np.abs(x.astype(F32)) < 1e-30) for x in xs], 0)
        y, expected = y[normal], expected[normal]
    assert steps(y, expected) <= ("{f}(" in op.c)


@pytest.mark.parametrize(("name", "dtype"), OTHERS)
def test_every_op_agrees_with_its_meaning(name, dtype, running, request):
    op, xs, ys = computed(other_samples, running[request.function, dtype], dtype)[0][name]
    for y, expected in zip(ys, in_float32(op, dtype, *xs), strict=True):
        assert y.dtype == expected.dtype
        if kind(y.dtype) != "f":
            np.testing.assert_array_equal(y, expected)
            continue
        scale = np.abs(expected.astype(F64)).max(initial=1e-3)
        atol = 6 * float(ml_dtypes.finfo(dtype).eps) * scale
        np.testing.assert_allclose(y.astype(F64), expected.astype(F64), rtol=0, atol=atol)


# ---------------------------------------------------------------- reductions


@SMALL
def test_reductions_agree_with_numpy_on_special_values(dtype):
    x = real(40, 70, dtype=dtype)
    x[3, 5], x[7, 11], x[9, 13] = np.inf, -np.inf, np.nan
    node = mg.input("x", x.shape, dtype)
    kinds = itertools.product((ops.sum, ops.max, ops.min, ops.prod), (0, 1, (0, 1)))
    ys = [reduce(node, axis, keepdims=True) for reduce, axis in kinds]
    function = compiled([node], ys)
    assert {k for _, k, _ in function.report().steps} == {GENERATED}
    for y, result in zip(ys, function(x), strict=True):
        assert steps(result, *meaning(y.op, x)) <= 1, y.op


def test_a_sum_overflows_only_where_it_is_rounded():
    x = np.array([60000, 60000, -60000], F16)
    node = mg.input("x", x.shape, F16)
    assert compiled([node], [node.sum()])(x)[0] == 60000
    assert compiled([node], [node[:2].sum()])(x)[0] == np.inf


@SMALL
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_long_sum_is_rounded_once(threads, dtype):
    x = np.full((100_000,), 2.0**-4, dtype)
    node = mg.input("x", x.shape, dtype)
    (total,) = compiled([node], [node.sum()], num_threads=threads)(x)
    assert total == np.float64(6250).astype(dtype)


@SMALL
def test_a_large_result_is_streamed(dtype):
    count = (1 << 24) + 5
    x = np.resize(every(dtype)[:0x7000], count)
    x[flushed(x)] = 0
    node = mg.input("x", x.shape, dtype)
    (y,) = compiled([node], [-node])(x)
    assert (y.view(np.uint16) == x.view(np.uint16) ^ 0x8000).all()


@SMALL
def test_padding_and_joining_copy_bits(dtype):
    x = every(dtype).reshape(256, 256)
    node = mg.input("x", x.shape, dtype)
    padded, joined = ops.pad(node, 1), ops.concat([node, node.T], 1)
    function = compiled([node], [padded, joined, ops.flip(node, 0)])
    assert {k for _, k, _ in function.report().steps} <= {"c", GENERATED, "view"}
    y, z, flipped = (r.view(np.uint16) for r in function(x))
    np.testing.assert_array_equal(y, np.pad(x.view(np.uint16), 1))
    np.testing.assert_array_equal(z, np.concatenate([x, x.T], 1).view(np.uint16))
    np.testing.assert_array_equal(flipped, x.view(np.uint16)[::-1])
