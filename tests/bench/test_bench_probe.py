"""The probe multiplies matrices by cuBLAS on a GPU; here NumPy stands in for cuBLAS."""

import contextlib
import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from minigraph.bench.cases import CUBLAS, PRECISIONS, PRODUCT, scale
from minigraph.bench.results import CaseResult, ProbeResult
from minigraph.graph import as_dtype

DTYPES = {0: as_dtype("float32"), 2: as_dtype("float16"), 14: as_dtype("bfloat16")}
N = 8


class Device(contextlib.nullcontext):
    cublas_handle = "handle"

    def __init__(self, ordinal):
        super().__init__()
        assert ordinal == 1

    def synchronize(self):
        """All is done at once."""


def matrix(address, dtype):
    memory = (ctypes.c_char * (N * N * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(N, N).T  # cuBLAS has the columns first


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cublas_multiplies_in_the_precision_of_the_task(monkeypatch, precision):
    pytest.importorskip("cupy")
    from minigraph.bench import cuda_probe as probe

    given = []

    def array(value):
        given.append(np.array(value))
        return SimpleNamespace(data=SimpleNamespace(ptr=given[-1].ctypes.data))

    def multiply(handle, *sizes_and_operands):
        *sizes, alpha, x, xt, ldx, y, yt, ldy, beta, z, zt, ldz, compute, algorithm = (
            sizes_and_operands
        )
        assert (handle, sizes, algorithm) == ("handle", [0, 0, N, N, N], -1)
        assert {ldx, ldy, ldz} == {N} and xt == yt == zt
        assert compute == (77 if precision == "tf32" else 68)
        one, zero = (ctypes.c_float.from_address(number).value for number in (alpha, beta))
        a, b, c = (matrix(at, DTYPES[zt]) for at in (x, y, z))
        c[...] = one * (a.astype("float32") @ b.astype("float32")) + zero * c

    monkeypatch.setattr(probe.cupy.cuda, "Device", Device)
    monkeypatch.setattr(probe.cupy, "asarray", array)
    monkeypatch.setitem(vars(probe.cupy.cuda), "cublas", SimpleNamespace(gemmEx=multiply))
    probe.product(N, SimpleNamespace(precision=precision, device="cuda:1"))()
    dtype = as_dtype("float32" if precision == "tf32" else precision)
    x, y, z = (value.view(dtype).astype("float32") for value in given)
    np.testing.assert_allclose(z, y @ x, rtol=0.02)


def test_the_faster_product_is_the_bound():
    work = scale("cuda").work
    assert work[CUBLAS] == work[PRODUCT] and CUBLAS != PRODUCT
    machine = {"copy": ProbeResult(100, 0, [1.0])}
    machine |= {PRODUCT: ProbeResult(0, 100, [4.0]), CUBLAS: ProbeResult(0, 100, [2.0])}
    case = CaseResult("a network", 1, bytes=10, flops=1000, machine=machine)
    assert case.bound.seconds == 1000 / (100 / 2.0)
