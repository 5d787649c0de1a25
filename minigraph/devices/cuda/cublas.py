"""cublasLt: its algorithms for products of matrices, and their calls.

Its matrices are column-major.  A call takes its stream and its workspace, and the library keeps no
state between calls, so a stream may be captured.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

from cuda.pathfinder import load_nvidia_dynamic_lib

from minigraph.devices.cuda.driver import LOAD_ALIGNMENT
from minigraph.errors import DeviceError
from minigraph.platform import forks
from minigraph.program import KernelFailed

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
COMPUTE = {"float32": 68, "tf32": 77, "float64": 70}  # cublasComputeType: the first is never tf32
MAX_WORKSPACE = 32 << 20  # bytes; cuBLAS's recommendation for an H100
MAX_ALGORITHMS = 5  # algorithms of a problem to measure: the heuristic lists the best first
# Partial sums are float32, and are added in a fixed order.
REDUCTION = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
OPERATION_TRANSPOSED, OPERATION_EPILOGUE, OPERATION_BIAS = (3, 4), 7, 8
LAYOUT_BATCH, LAYOUT_STEP = 5, 6
PREFERRED_WORKSPACE, PREFERRED_REDUCTION, PREFERRED_ALIGNMENT = 1, 3, (5, 6, 7, 8)
RELU, BIAS = 2, 4  # bits of an epilogue; 1 means neither
DEVICE_ERRORS = (1, 3, 11, 13, 14)  # results after which the next call will fail, too
# The attributes that distinguish algorithms: their numbers and types.
CONFIGURATION = {
    "tile": (1, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "split": (2, c_int32),
    "reduction": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "option": (5, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "Create": (c_void_p,),
    "MatmulDescInit_internal": (c_void_p, c_size_t, c_int, c_int),
    "MatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatrixLayoutInit_internal": (c_void_p, c_size_t, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulPreferenceInit_internal": (c_void_p, c_size_t),
    "MatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "MatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, c_void_p, c_void_p),
    "MatmulAlgoConfigGetAttribute": (c_void_p, c_int, c_void_p, c_size_t, c_void_p),
    "Matmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


@functools.cache
def library() -> dict[str, Any]:
    """Return the functions of cublasLt."""
    loaded = ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    functions = {name: getattr(loaded, f"cublasLt{name}") for name in SIGNATURES}
    for name, function in functions.items():
        function.argtypes = SIGNATURES[name]
    version, name_of_status = loaded.cublasLtGetVersion, loaded.cublasLtGetStatusName
    version.restype, name_of_status.restype = c_size_t, ctypes.c_char_p
    return {**functions, "GetVersion": version, "GetStatusName": name_of_status}


def version() -> str:
    """Return cuBLAS's version, on which its algorithms depend."""
    return str(library()["GetVersion"]())


@functools.cache
def handle(ordinal: int) -> c_void_p:
    """Return cublasLt's handle for a device, which must be current."""
    new_handle = c_void_p()
    _call("Create", byref(new_handle))
    return new_handle


def _call(name: str, *arguments: Any) -> None:
    result = library()[name](*arguments)
    if result:
        error_type = DeviceError if result in DEVICE_ERRORS else KernelFailed
        raise error_type(f"cublasLt{name}: {library()['GetStatusName'](result).decode()}")


class HeuristicResult(ctypes.Structure):
    """An algorithm for a product, as the heuristic returns it (cublasLtMatmulHeuristicResult_t)."""

    _fields_ = (
        ("opaque", c_uint64 * 8),
        ("workspace", c_size_t),
        ("result", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )

    @property
    def name(self) -> str:
        """Its name, the same in every process."""
        values = {name: self._get(*attribute) for name, attribute in CONFIGURATION.items()}
        knobs = ", ".join(f"{name}: {value}" for name, value in values.items() if value)
        return f"algorithm {self._get(0, c_int32)} {{{knobs}}}"

    def _get(self, attribute: int, kind: Any) -> int:
        value = kind()
        size = ctypes.sizeof(value)
        _call("MatmulAlgoConfigGetAttribute", byref(self), attribute, byref(value), size, None)
        return int(value.value)


class Matrices(NamedTuple):
    """A batch of column-major matrices.

    leading_dimension  elements from a column to the next
    batch_stride       elements from a matrix to the next
    """

    rows: int
    columns: int
    leading_dimension: int
    batch_stride: int


@dataclass(frozen=True)
class Gemm:
    """The products d of two batches a and b of matrices.

    operands    a, b and d
    transposed  whether a and b are stored transposed
    bias        whether a vector is added to each column of d
    relu        whether results that are not above 0, NaN included, become 0
    tf32        whether products of float32 may be rounded to tf32
    alignment   of each operand, in bytes

    Sums are float64 for float64, else float32.
    """

    dtype: str
    operands: tuple[Matrices, Matrices, Matrices]
    transposed: tuple[bool, bool]
    batch: int = 1
    bias: bool = False
    relu: bool = False
    tf32: bool = False
    alignment: int = LOAD_ALIGNMENT


class Descriptors:
    """The descriptors of a product for cublasLt."""

    def __init__(self, gemm: Gemm) -> None:
        is_double = gemm.dtype == "float64"
        scalar: Any = c_double if is_double else c_float
        compute = "float64" if is_double else "tf32" if gemm.tf32 else "float32"
        self._one, self._zero = scalar(1), scalar(0)
        self._operation = _Descriptor("MatmulDesc", COMPUTE[compute], TYPES["float64"] * is_double)
        for attribute, transposed in zip(OPERATION_TRANSPOSED, gemm.transposed, strict=True):
            self._operation.set(attribute, c_int32(transposed))
        epilogue = (BIAS if gemm.bias else 0) | (RELU if gemm.relu else 0)
        self._operation.set(OPERATION_EPILOGUE, c_int32(epilogue or 1))
        if gemm.bias:
            # Until `enqueue` sets the address, a number with the alignment of the bias.
            self._operation.set(OPERATION_BIAS, c_void_p(LOAD_ALIGNMENT))
        self._layouts = []
        for matrices in gemm.operands:
            layout = _Descriptor("MatrixLayout", TYPES[gemm.dtype], *matrices[:3])
            layout.set(LAYOUT_BATCH, c_int32(gemm.batch))
            layout.set(LAYOUT_STEP, c_int64(matrices.batch_stride))
            self._layouts.append(layout)
        self._bias = gemm.bias
        self._in_use = forks.lock()  # functions that share a kernel set its bias one at a time
        self._alignment = gemm.alignment

    def algorithms(self, handle: c_void_p) -> list[HeuristicResult]:
        """Return up to MAX_ALGORITHMS algorithms, the best first."""
        preference = _Descriptor("MatmulPreference")
        preference.set(PREFERRED_WORKSPACE, c_uint64(MAX_WORKSPACE))
        preference.set(PREFERRED_REDUCTION, c_int32(REDUCTION))
        for attribute in PREFERRED_ALIGNMENT:
            preference.set(attribute, c_int32(self._alignment))
        algorithms = (HeuristicResult * MAX_ALGORITHMS)()
        count = c_int()
        a, b, d = self._layouts
        descriptors = (x.bytes for x in (self._operation, a, b, d, d, preference))
        heuristic = library()["MatmulAlgoGetHeuristic"]
        if heuristic(handle, *descriptors, MAX_ALGORITHMS, algorithms, byref(count)):
            return []
        return [each for each in algorithms[: count.value] if not each.result]

    def enqueue(
        self,
        algorithm: HeuristicResult,
        addresses: Sequence[int],
        workspace: int,
        handle: c_void_p,
        stream: int,
    ) -> None:
        """Enqueue the product with operands a, b, d, then the bias, at these addresses."""
        a, b, d, *bias = addresses
        a_layout, b_layout, d_layout = (layout.bytes for layout in self._layouts)
        one, zero = byref(self._one), byref(self._zero)
        operands = one, a, a_layout, b, b_layout, zero, d, d_layout, d, d_layout
        choice = byref(algorithm), workspace, algorithm.workspace
        with self._in_use:
            if self._bias:
                self._operation.set(OPERATION_BIAS, c_void_p(*bias))
            _call("Matmul", handle, self._operation.bytes, *operands, *choice, stream)


class _Descriptor:
    """A descriptor of cublasLt in the caller's memory."""

    SIZE = 512  # bytes; every descriptor fits

    def __init__(self, kind: str, *arguments: int) -> None:
        self.kind = kind
        self.bytes = (c_uint64 * (self.SIZE // 8))()
        _call(f"{kind}Init_internal", self.bytes, self.SIZE, *arguments)

    def set(self, attribute: int, value: Any) -> None:
        _call(f"{self.kind}SetAttribute", self.bytes, attribute, byref(value), ctypes.sizeof(value))
