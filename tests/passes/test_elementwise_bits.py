"""Elementwise ops have the same bits at every level, NumPy's if the formula is the same.

Denormals, which programs flush to zero, and the sign and payload of NaN are left out.  The random
expressions take in every elementwise op and dtype; their shapes make rows, columns, tails of
vectors and reductions beside them.
"""

import ml_dtypes
import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, accepts, is_random, operand_dtypes
from long_runs import long
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.graph import BOOL, DTYPES, FLOATS, Graph

OPS = [op for op in ELEMENTWISE.values() if not is_random(op)]
SHAPES = ((6, 37), (6, 37), (37,), (6, 1), ())
NODES = 30  # of the long runs; the short one has fewer
# One of each kind and form in C; tests/jit compares fused kernels of float16 with single ones.
SHORT = tuple(map(np.dtype, ("bfloat16", "float32", "float64", "bool", "int8", "uint32")))
LEVELS = (
    *({"graph_opt_level": level} for level in (0, 2, 3)),  # the rewrites of level 1 are in 2 and 3
    {"graph_opt_level": 2, "graph_opt.jit": 1},
)


def is_denormal(x):
    if x.dtype not in FLOATS:
        return np.zeros(x.shape, bool)
    return (x != 0) & (np.abs(x.astype(np.float64)) < float(ml_dtypes.finfo(x.dtype).tiny))


def differs(x, y):
    """Return where bits differ; all NaN are equal, denormals are zero."""
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    if x.dtype not in FLOATS:
        return x != y
    x, y = (np.where(is_denormal(v), np.copysign(v.dtype.type(0), v), v) for v in (x, y))
    nan = np.isnan(x) & np.isnan(y)
    return ~nan & ((x != y) | (np.signbit(x) != np.signbit(y)))


def numbers(rng, shape, dtype):
    """Return numbers of one magnitude, of all magnitudes, equal ones, and special ones."""
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype not in FLOATS:
        info = np.iinfo(dtype)
        wide = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.5, wide, rng.integers(0, 9, shape)).astype(dtype)
    special = rng.choice([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 7.7], shape)
    size = 10.0 ** rng.choice([0, 0, 1, 4, -3], shape)
    kinds = rng.integers(0, 12, shape)
    return np.where(kinds, rng.normal(size=shape) * size, special).astype(dtype)


class Expressions:
    """A random graph of elementwise ops of `dtype`, with values for its inputs."""

    def __init__(self, seed, dtype, nodes):
        rng = np.random.default_rng((seed, DTYPES.index(dtype)))
        self.inputs = [mg.input(f"x{i}", shape, dtype) for i, shape in enumerate(SHAPES)]
        self.inputs += [mg.input("across", (37, 6), dtype), mg.input("p", (6, 37), "bool")]
        self.arrays = [numbers(rng, x.shape, x.dtype) for x in self.inputs]
        self.arrays[1] = self.arrays[0].copy()  # differences of equal numbers
        *first, across, p = self.inputs
        known = [*first, p, across.T, ops.where(p, numbers(rng, (37,), dtype), first[0])]
        usable = [op for op in OPS if accepts(op, dtype)]
        for _ in range(nodes):
            op = usable[rng.integers(len(usable))]
            fitting = [[x for x in known if x.dtype == d][-9:] for d in operand_dtypes(op, dtype)]
            known.append(op(*(xs[rng.integers(len(xs))] for xs in fitting)))
        self.outputs = known[-nodes // 2 :]
        floats = [y for y in self.outputs if y.dtype in FLOATS and y.ndim == 2]
        self.sums = [y.sum(axis) for y in floats[:4] for axis in (0, 1)]

    def compiled(self, device, options):
        graph = mg.comp_graph(device, {"autotune": "off", **options})
        return graph.compile(self.inputs, [*self.outputs, *self.sums])

    def check(self, results, expected, what):
        for i, (x, y, node) in enumerate(zip(results, expected, self.outputs, strict=False)):
            wrong = differs(x, y)
            assert not wrong.any(), f"{what}: output {i}, {node}: {x[wrong][:3]}, {y[wrong][:3]}"

    def by_numpy(self):
        """Return NumPy's results for outputs that depend only on ops with NumPy's bits."""
        graph = Graph(tuple(self.inputs), tuple(self.outputs))
        alike = {}
        for node in graph:
            dtypes = [x.dtype for x in node.inputs]
            own = not dtypes or node.op.is_view or node.op.has_bits_of_numpy(dtypes[-1])
            alike[node] = own and all(alike[x] for x in node.inputs)
        with np.errstate(all="ignore"):
            values = Graph(graph.inputs, graph.order)(*self.arrays)
        denormal = any(is_denormal(v).any() for v in values)
        results = dict(zip(graph.order, values, strict=True))
        return {i: results[y] for i, y in enumerate(self.outputs) if alike[y] and not denormal}


@needs_compiler
@pytest.mark.parametrize(
    "seed, dtype, nodes",
    [
        *((0, dtype, 20) for dtype in SHORT),
        *(long(1, dtype, NODES) for dtype in DTYPES if dtype not in SHORT),
    ],
)
def test_every_level_has_the_same_bits(seed, dtype, nodes):
    expressions = Expressions(seed, dtype, nodes)
    expected = None
    for options in LEVELS:
        results = expressions.compiled("cpu", options)(*expressions.arrays)
        expected = expected or results
        expressions.check(results, expected, options)
    for i, value in expressions.by_numpy().items():
        assert not differs(expected[i], value).any(), expressions.outputs[i]
