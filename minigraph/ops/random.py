"""Random numbers from a counter: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", 2011).

An element is a function of the seed, the step (the number of calls of the compiled function), the
stream (the number of the random op in the function) and its index.  Nothing else is state, so every
level and device draws the same numbers, and a resumed run draws those of an uninterrupted one.

Seed and step are inputs of the graph that the compiled function feeds; the stream is set by
`number_streams` when a function is compiled.
"""

from __future__ import annotations

import math

import numpy as np

from minigraph.arguments import Probability
from minigraph.errors import DTypeError, GraphError
from minigraph.graph import (
    BFLOAT16,
    Array,
    DType,
    DTypeLike,
    Graph,
    Input,
    Node,
    Shape,
    Sizes,
    Spec,
    Tensor,
    builder,
    constant,
    zero_gradient,
)
from minigraph.ops.arithmetic import Floor
from minigraph.ops.comparison import Maximum, Minimum, where
from minigraph.ops.elementwise import Elementwise, astype, kind


class _CallInput(Node):
    """An input whose value compiled functions provide.  Copied and pickled expressions share it."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(Input(name), (), (Spec((), np.dtype(np.uint64)),))

    def __reduce__(self) -> str:
        return self.name.upper()  # of the variable below


SEED = _CallInput("seed")
STEP = _CallInput("step")

PHILOX = """
static inline void mg_philox(uint64_t index, uint64_t seed, uint64_t step, uint64_t stream,
                             uint32_t *word) {{
  uint32_t a = (uint32_t)index, b = (uint32_t)(index >> 32);
  uint32_t c = (uint32_t)step, d = (uint32_t)stream;
  uint32_t k = (uint32_t)seed, l = (uint32_t)(seed >> 32);
  #pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {{
    uint64_t x = (uint64_t)0xD2511F53u * a, y = (uint64_t)0xCD9E8D57u * c;
    a = (uint32_t)(y >> 32) ^ b ^ k;
    c = (uint32_t)(x >> 32) ^ d ^ l;
    b = (uint32_t)y;
    d = (uint32_t)x;
    k += 0x9E3779B9u;
    l += 0xBB67AE85u;
  }}
  word[0] = a;
  word[1] = b;
}}"""


def philox(index: Array, seed: int, step: int, stream: int) -> tuple[Array, Array]:
    """Return the first two words, uint32, of Philox 4x32-10 for each uint64 index."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    a, b = index & low, index >> shift
    c, d = (np.full_like(index, value & 0xFFFFFFFF) for value in (step, stream))
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        x, y = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (y >> shift) ^ b ^ np.uint64(k0), y & low
        c, d = (x >> shift) ^ d ^ np.uint64(k1), x & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a.astype(np.uint32), b.astype(np.uint32)


class Random(Elementwise):
    """An op on (seed, step, stream) whose elements depend on their row-major index, {i} in C."""

    shape: Shape
    dtype: DType

    support_int = PHILOX
    costly = True

    def infer(self, seed: Spec, step: Spec, stream: Spec) -> Spec:
        return Spec(self.shape, self.dtype)

    def words(self, seed: Array, step: Array, stream: Array) -> tuple[Array, Array]:
        index = np.arange(math.prod(self.shape), dtype=np.uint64).reshape(self.shape)
        return philox(index, int(seed), int(step), int(stream))

    grad = zero_gradient


class RandomUniform(Random):
    """Uniform in [0, 1): multiples of 2**-24 as float32, of 2**-53 as float64."""

    c = "mg_uniform_{R}({i}, {0}, {1}, {2})"
    support_int = (
        PHILOX
        + """
static inline float mg_uniform_float(uint64_t i, uint64_t seed, uint64_t step, uint64_t stream) {{
  uint32_t word[2];
  mg_philox(i, seed, step, stream, word);
  return (float)(word[0] >> 8) * 0x1p-24f;
}}
static inline double mg_uniform_double(uint64_t i, uint64_t seed, uint64_t step, uint64_t stream) {{
  uint32_t word[2];
  mg_philox(i, seed, step, stream, word);
  return ((double)(word[0] >> 5) * 0x1p26 + (double)(word[1] >> 6)) * 0x1p-53;
}}"""
    )

    def forward(self, seed: Array, step: Array, stream: Array) -> Array:
        a, b = self.words(seed, step, stream)
        if self.dtype == np.float64:
            return ((a >> 5) * 2.0**26 + (b >> 6)) * 2.0**-53
        return ((a >> 8) * np.float32(2.0**-24)).astype(np.float32)


class RandomNormal(Random):
    """Normal with mean 0 and variance 1, by Box and Muller's transformation."""

    c = "mg_normal_{R}({i}, {0}, {1}, {2})"
    support_int = (
        PHILOX
        + """
static inline double mg_normal_double(uint64_t i, uint64_t seed, uint64_t step, uint64_t stream) {{
  uint32_t word[2];
  mg_philox(i, seed, step, stream, word);
  double u = ((double)word[0] + 1) * 0x1p-32, v = (double)word[1] * 0x1p-32;
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}}
static inline float mg_normal_float(uint64_t i, uint64_t seed, uint64_t step, uint64_t stream) {{
  return (float)mg_normal_double(i, seed, step, stream);
}}"""
    )

    def has_bits_of_numpy(self, dtype: DType) -> bool:
        return False

    def forward(self, seed: Array, step: Array, stream: Array) -> Array:
        a, b = self.words(seed, step, stream)
        u, v = (a + 1.0) * 2.0**-32, b * 2.0**-32
        return (np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)).astype(self.dtype)


def number_streams(graph: Graph) -> Graph:
    """Number the random ops of the graph in its order, so that each has its own stream."""
    count = iter(range(1 << 32))

    def number(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node.op, Random):
            return node.replace((*inputs[:2], constant(next(count), "uint64")))
        return node.replace(inputs)

    if not any(isinstance(node.op, Random) for node in graph):
        return graph
    return graph.map(number)


_SIGNIFICAND_BITS = {BFLOAT16: 8, np.dtype(np.float16): 11}


def _draw(op: type[RandomUniform] | type[RandomNormal], shape: Shape, dtype: DType) -> Node:
    if kind(dtype) != "f":
        raise DTypeError(f"random numbers are floats, not {dtype.name}")
    working = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    stream = constant(0, "uint64")  # until `number_streams`
    return op(shape, working)(SEED, STEP, stream)


@builder
def random_uniform(
    shape: Sizes, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = "float32"
) -> Node:
    """Return numbers drawn uniformly from [low, high), anew at each call of the function.

    No number is rounded to `high`, unless `low` and `high` are equal in the dtype.

    >>> cg.compile([], ops.random_uniform((3,), low=1.0, high=2.0))()
    array([1.3990464, 1.9722412, 1.0194495], dtype=float32)
    """
    u = _draw(RandomUniform, shape, dtype)
    with np.errstate(over="ignore"):
        bounds = np.array([high, low, high - low], dtype)
    if not np.isfinite(bounds).all():
        raise GraphError(
            f"low is {low}, high is {high}; these and high - low have to be finite in {dtype.name}"
        )
    if dtype in _SIGNIFICAND_BITS:  # else numbers could round up to 1
        steps = 2.0 ** _SIGNIFICAND_BITS[dtype]
        u = Floor.of(u * steps) / steps
    u = astype(u, dtype)
    if (low, high) == (0, 1):
        return u
    last = np.nextafter(bounds[0], bounds[1])
    return (Minimum if low < high else Maximum).of(u * (high - low) + low, last)


@builder
def random_normal(
    shape: Sizes, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = "float32"
) -> Node:
    """Return normally distributed numbers, drawn anew at each call of the function.

    >>> cg.compile([], ops.random_normal((3,)))()
    array([ 0.9911377 , -0.15363823, -1.1863579 ], dtype=float32)
    """
    z = astype(_draw(RandomNormal, shape, dtype), dtype)
    return z if (mean, std) == (0, 1) else z * std + mean


@builder
def dropout(x: Tensor, p: Probability = 0.5, training: bool = True) -> Node:
    """Return x with each element 0 with probability p, else x / (1 - p) (Srivastava, 2014).

    >>> cg.compile([], ops.dropout(ops.ones((6,)), 0.5))()
    array([0., 2., 0., 2., 2., 0.], dtype=float32)
    """
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0
    mask = random_uniform(x.shape) >= p
    return where(mask, x * (1 / (1 - p)), 0)
