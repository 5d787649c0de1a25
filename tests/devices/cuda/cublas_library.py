"""A cublasLt on the host: it knows the calls, and NumPy computes, column by column."""

import ctypes
import dataclasses
import math

import numpy as np
import pytest

pytest.importorskip("cuda.pathfinder")
from minigraph.devices.cuda import cublas
from minigraph.graph import BFLOAT16

DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16")]
DTYPES = {**dict(enumerate(DTYPES)), 14: BFLOAT16}
NOT_SUPPORTED = 15


@dataclasses.dataclass
class Library:
    """A stand-in for the library.

    algorithms  how many the heuristic returns
    workspace   bytes that each needs
    offers      whether it has any for a product: a function of its operation's attributes
    calls       the compute type, and the rows and columns of d, of each product
    """

    algorithms: int = 3
    workspace: int = 0
    offers: object = staticmethod(lambda operation: True)
    calls: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.described = {}
        self.functions = {
            name: getattr(self, f"_{name.lower()}", None) for name in cublas.SIGNATURES
        }
        self.functions["GetVersion"] = lambda: 130100
        self.functions["GetStatusName"] = lambda result: f"STATUS_{result}".encode()
        for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
            self.functions[f"{kind}Init_internal"] = self._begin
            self.functions[f"{kind}SetAttribute"] = self._set

    def _create(self, handle):
        handle._obj.value = 1
        return 0

    def _begin(self, at, size, *arguments):
        assert size == ctypes.sizeof(at)
        self.described[ctypes.addressof(at)] = arguments, {}
        return 0

    def _set(self, at, attribute, value, size):
        assert size == ctypes.sizeof(value._obj)
        self._of(at)[1][attribute] = value._obj.value
        return 0

    def _of(self, at):
        return self.described[ctypes.addressof(at)]

    def _matmulalgogetheuristic(
        self, handle, operation, a, b, c, d, preference, max_count, algorithms, count
    ):
        assert handle.value == 1
        _, limits = self._of(preference)
        if not self.offers(self._of(operation)[1]):
            return NOT_SUPPORTED
        count._obj.value = min(self.algorithms, max_count)
        for i in range(count._obj.value):
            algorithms[i].opaque[0] = i
            algorithms[i].workspace = self.workspace
            assert self.workspace <= limits[cublas.PREFERRED_WORKSPACE]
        return 0

    def _matmulalgoconfiggetattribute(self, algorithm, attribute, value, size, written):
        values = {0: 60, 1: algorithm._obj.opaque[0] + 5}  # the algorithm, and its tile
        value._obj.value = values.get(attribute, 0)
        return 0

    def _matmul(self, handle, operation, one, a, la, b, lb, zero, c, lc, d, ld, *rest):
        _algorithm, workspace, size, _stream = rest
        assert (one._obj.value, zero._obj.value, c, lc) == (1, 0, d, ld)
        assert size == self.workspace and workspace % 256 == 0 and (workspace or not size)
        (compute, scale), how = self._of(operation)
        first, second, result = (self._array(*x) for x in ((a, la), (b, lb), (d, ld)))
        assert scale == (result.dtype == np.float64)
        if how[3]:
            first = first.swapaxes(1, 2)
        if how[4]:
            second = second.swapaxes(1, 2)
        y = first.astype(np.float64) @ second.astype(np.float64)
        if how[7] & cublas.BIAS:
            spec = np.dtype(result.dtype)
            memory = (ctypes.c_char * (spec.itemsize * y.shape[1])).from_address(how[8])
            y += np.frombuffer(memory, spec).astype(np.float64)[:, None]
        if how[7] & cublas.RELU:
            y = np.fmax(y, 0)
        result[...] = y.astype(result.dtype)
        self.calls.append((compute, *result.shape))
        return 0

    def _array(self, address, layout):
        (kind, rows, columns, lead), how = self._of(layout)
        assert lead >= rows
        dtype, batch, step = DTYPES[kind], how[cublas.LAYOUT_BATCH], how[cublas.LAYOUT_STEP]
        size = 1 + (batch - 1) * step + (columns - 1) * lead + rows - 1
        memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
        flat = np.frombuffer(memory, dtype)
        steps = [n * dtype.itemsize for n in (step, 1, lead)]
        return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), steps)


def instead(patch, **settings):
    """Let a new library stand in for cublasLt, and return it."""
    library = Library(**settings)
    patch.setattr(cublas, "library", lambda: library.functions)
    cublas.handle.cache_clear()
    return library


def run(kernel, inputs, outputs):
    """Run a kernel of the library at arrays of the host; what follows is its meaning."""
    from minigraph.devices.reference import NumpyKernel

    scratch = np.zeros(max(kernel.scratch, 1), np.uint8)
    kernel.enqueue(
        [x.ctypes.data for x in inputs],
        [y.ctypes.data for y in outputs],
        scratch.ctypes.data if kernel.scratch else 0,
        0,
    )
    if kernel.way.epilogue is not None:
        NumpyKernel(kernel.way.epilogue).run([outputs[0], *inputs[2:]], outputs, scratch)


def strided(shape, steps, dtype, seed=0):
    """Return random numbers with these steps in elements, and the rest of their memory NaN."""
    span = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    memory = np.full(span, np.nan, dtype)
    view = np.lib.stride_tricks.as_strided(memory, shape, [s * memory.itemsize for s in steps])
    view[...] = np.random.default_rng(seed).normal(size=math.prod(shape)).reshape(shape)
    return view
