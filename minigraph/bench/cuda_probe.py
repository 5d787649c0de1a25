"""A GPU itself: what the probe measures of a machine, and how fast cuBLAS multiplies matrices.

The probe's own product is one of minigraph's, which is no bound for itself.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from minigraph.bench.cases import CUBLAS, scale
from minigraph.bench.probe import machine_side
from minigraph.bench.worker import Side, Task, serve
from minigraph.devices.factory import ordinal
from minigraph.graph import DType, as_dtype

# Of CUDA's headers: cudaDataType_t, cublasComputeType_t, cublasOperation_t, cublasGemmAlgo_t.
TYPES: dict[str, tuple[DType, int]] = {
    "float32": (as_dtype("float32"), 0),
    "tf32": (as_dtype("float32"), 0),
    "float16": (as_dtype("float16"), 2),
    "bfloat16": (as_dtype("bfloat16"), 14),
}
COMPUTE_FLOAT32, COMPUTE_TF32 = 68, 77
NO_TRANSPOSE, DEFAULT_ALGORITHM = 0, -1


def gpu_side(task: Task) -> Side:
    """Return the steps of a machine, and a product by cuBLAS."""
    steps = machine_side(task).steps
    return Side({**steps, CUBLAS: product(scale(task.device).matrix, task)})


def product(n: int, task: Task) -> Callable[[], None]:
    """Return a step that multiplies n x n matrices in the task's precision, sums in float32."""
    dtype, cuda_type = TYPES[task.precision]
    compute = COMPUTE_TF32 if task.precision == "tf32" else COMPUTE_FLOAT32
    device = cupy.cuda.Device(ordinal(task.device))
    rng = np.random.default_rng(0)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    with device:
        # As bytes: CuPy has not all dtypes, and cuBLAS is told the type.
        arrays = [
            cupy.asarray(rng.random((n, n), np.float32).astype(dtype).view(np.uint8))
            for _ in range(3)
        ]
    x, y, result = ((array.data.ptr, cuda_type, n) for array in arrays)
    alpha, beta = (number.ctypes.data for number in (one, zero))
    sizes = (NO_TRANSPOSE, NO_TRANSPOSE, n, n, n)
    whole = [*sizes, alpha, *x, *y, beta, *result, compute, DEFAULT_ALGORITHM]

    def multiply(kept: object = (arrays, one, zero)) -> None:
        with device:
            cupy.cuda.cublas.gemmEx(device.cublas_handle, *whole)
            device.synchronize()

    return multiply


if __name__ == "__main__":
    serve(gpu_side)
