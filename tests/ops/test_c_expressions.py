"""The C expressions of elementwise ops compute what the ops mean."""

import ctypes
import functools
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from elementwise_samples import (
    ANY_ZERO,
    ELEMENTWISE,
    accepts,
    assert_same,
    c_operands,
    is_random,
    operand_dtypes,
)
from needs import needs_compiler
from once import once
from op_values import forward

from minigraph.devices.cpu import compiler
from minigraph.graph import Spec
from minigraph.jit.c.vector_math import vector_functions, vector_math
from minigraph.jit.expression import c_type, expression, support
from minigraph.jit.source import digest

C_DTYPES = ("float32", "float64", "int32", "int64", "uint64", "uint8", "bool")
C_FLAGS = {
    "plain": lambda: ["-O2", "-fno-math-errno", "-ffp-contract=off"],
    "vector": compiler.flags,
}
C_LIBRARIES = {"plain": ["-lm"], "vector": ["-lmvec", "-lm"] if vector_functions() else ["-lm"]}
C_CASES = [
    pytest.param(name, dtype, id=f"{name}-{dtype}")
    for name, op in ELEMENTWISE.items()
    for dtype in C_DTYPES
    if accepts(op, np.dtype(dtype))
]


def c_name(name):
    return f"k_{name}".replace("-", "_")


def c_source(names, dtype, how):
    """Kernels of ops with operands of one dtype: what they call, once each, then a loop each."""
    called, kernels = {}, []
    for name in names:
        op = ELEMENTWISE[name]
        dtypes = operand_dtypes(op, dtype)
        result = op.infer(*(Spec((), d) for d in dtypes)).dtype
        called.update(dict.fromkeys(support(op, dtypes, result)))
        params = [f"const {c_type(d)} *x{k}" for k, d in enumerate(dtypes)]
        value = expression(op, dtypes, result, [f"x{k}[i]" for k in range(len(dtypes))])
        kernels.append(
            f"void {c_name(name)}(int64_t n, {c_type(result)} *y, {', '.join(params)}) {{\n"
            f"  for (int64_t i = 0; i < n; i++) y[i] = {value};\n}}"
        )
    text = "\n".join([*called, *kernels])
    vectors = vector_math(text) if how == "vector" else ""
    return f"#include <math.h>\n#include <stdint.h>\n#include <string.h>\n{vectors}\n{text}"


@pytest.fixture(scope="session")
def c_library(request, tmp_path_factory, kept_libraries):
    """A function: dtype, how -> the library of its kernels, compiled at the first call.

    It has the kernels of the tests that run.
    """
    tests = [test for test in request.session.items if test.path == Path(__file__)]
    cases = [test.callspec.params for test in tests]

    @functools.cache
    def build(dtype, how):
        source = tmp_path_factory.mktemp("c") / "k.c"
        names = [case["name"] for case in cases if case["dtype"] == dtype]
        source.write_text(c_source(names, np.dtype(dtype), how))
        command = [*shlex.split(compiler.compiler()), *C_FLAGS[how](), "-shared", "-fPIC"]

        def compile(path):
            run = subprocess.run(
                [*command, source, "-o", path, *C_LIBRARIES[how]], capture_output=True, text=True
            )
            assert run.returncode == 0, run.stderr

        made_of = (compiler.compiler_version(), *command, source.read_text())
        return ctypes.CDLL(str(once(kept_libraries / f"{digest(*made_of)}.so", compile)))

    return build


@needs_compiler
@pytest.mark.parametrize(("name", "dtype"), C_CASES)
def test_c_agrees_with_forward(name, dtype, c_library):
    op = ELEMENTWISE[name]
    if is_random(op):  # of three numbers and the element's index
        numbers = np.array([2**40 + 7, 2**33 + 5, 3], np.uint64)
        xs = [np.full(op.shape, v) for v in numbers]
        (want,) = forward(op, numbers)
    else:
        xs = c_operands(op, np.dtype(dtype))
        (want,) = forward(op, xs)
    for how in C_FLAGS:
        result = np.empty_like(want)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (result, *xs)]
        c_library(dtype, how)[c_name(name)](ctypes.c_int64(result.size), *pointers)
        ulps = 0 if op.has_bits_of_numpy(xs[-1].dtype) else 4
        assert_same(result, want, ulps, any_zero=op.name in ANY_ZERO)
