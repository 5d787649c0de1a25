"""Arrays of the caller on the device, made what an input takes: contiguous, and of its dtype.

CuPy could do it, too, but compiles its kernels for that, which takes headers of CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from minigraph.devices.cuda.calls import kernel_calls
from minigraph.devices.cuda.driver import Driver
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.kernels import cuda_kernel
from minigraph.graph import DTYPES, FLOATS, Array, DType, Graph, Shape, Spec, cast, copy_of, input
from minigraph.jit.fused import Fused
from minigraph.ops.comparison import Isfinite, NotEqual
from minigraph.ops.elementwise import astype
from minigraph.ops.reduction import Max
from minigraph.program import Kernel

BYTE = np.dtype(np.uint8)
# Returns the loaded functions of kernels, by their sources' names.
Load = Callable[[Sequence[Kernel]], Mapping[str, int]]


def without_gaps(array: Array, driver: Driver, load: Load) -> Array:
    """Return an array contiguous; of a dtype that no input casts, as it is."""
    if array.flags.c_contiguous or array.dtype not in DTYPES:
        return array
    if array.data.device_id != driver.ordinal:
        return array.copy(order="C")  # by CuPy: kernels may not reach it
    return _converted(array, array.dtype, False, driver, load)[0]


def cast_on_device(array: Array, dtype: DType, driver: Driver, load: Load) -> Array:
    """Return an array in another dtype, as `graph.cast` does."""
    safe = np.can_cast(array.dtype, dtype)
    floats = array.dtype in FLOATS and dtype in FLOATS
    if not array.size or array.data.device_id != driver.ordinal or not (safe or floats):
        return cast(array.get(), dtype)  # of integers few come in another dtype
    made, *lost = _converted(array, dtype, not safe, driver, load)
    found = np.zeros(len(lost), np.bool_)
    with driver.current():
        for flag in lost:
            stream = driver.current_stream()
            driver.download(found, flag.data.ptr, stream)
            driver.synchronize(stream)
    return cast(array.get(), dtype) if found.any() else made  # which says what does not fit


def _converted(
    array: Array, dtype: DType, checked: bool, driver: Driver, load: Load
) -> list[Array]:
    """Return an array in a dtype, contiguous, and if `checked` whether it has lost a number."""
    spec = Spec(array.shape, array.dtype)
    kernel = _kernel(spec, array.strides, dtype, checked, driver.processors)
    with driver.current():
        made = [driver.array(each) for each in kernel.node.specs]
        scratch = driver.array(Spec((kernel.scratch,), BYTE))
        at = [array.data.ptr], [y.data.ptr for y in made], scratch.data.ptr
        for call in kernel_calls(kernel, *at, load([kernel]), driver):
            call(driver.current_stream())
    return made


@functools.lru_cache(64)
def _kernel(spec: Spec, strides: Shape, dtype: DType, checked: bool, processors: int) -> CudaKernel:
    x = input("x", spec.shape, spec.dtype)
    y = copy_of(x) if dtype == spec.dtype else astype(x, dtype)
    if checked:
        lost = Max(tuple(range(x.ndim)))(NotEqual.of(Isfinite.of(x), Isfinite.of(y)))
        y = Fused(Graph((x,), (y, lost))).results(x)[0].inputs[0]
    kernel = cuda_kernel(y, [strides], processors)
    assert kernel is not None, "casts are generated"
    return kernel
