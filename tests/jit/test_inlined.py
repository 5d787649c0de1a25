"""Functions of elements are parts of the loops that call them, which vectors then compute."""

import shutil
import subprocess

import pytest
from needs import needs_c

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernels import native_kernel
from minigraph.devices.kernel_cache import CompilationUnit
from minigraph.graph import Graph, Node, placeholders
from minigraph.jit.c.prelude import PRELUDE
from minigraph.jit.c.vector_math import vector_math
from minigraph.jit.fused import Fused

pytestmark = needs_c

FUNCTIONS = {
    "tanh": ops.tanh,
    "exp": ops.exp,
    "remainder": lambda x: ops.remainder(x, 0.7),
    "floor_divide": lambda x: ops.floor_divide(x, 0.7),
    "logaddexp": lambda x: ops.logaddexp(x, 0.3),
    "nextafter": lambda x: ops.nextafter(x, 9.0),
    "clip": lambda x: ops.clip(x, -0.9, 0.9),
    "pow": lambda x: ops.abs(x) ** 1.7,
    "float16": lambda x: ops.astype(ops.astype(x, "float16"), "float32"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_called_several_times_has_no_code_of_its_own(name, tmp_path):
    if not shutil.which("nm"):
        pytest.skip("there is no nm")
    (x,) = placeholders([mg.input("x", (64, 64)).spec])
    y = x
    for _ in range(4):
        y = FUNCTIONS[name](y * 0.5)
    op = Fused(Graph((x,), (y,)))
    kernel = native_kernel(Node(op, (x,), (y.spec,)), [x.spec.strides], 1)
    text = CompilationUnit(tuple(kernel.texts)).text("")
    unit = f"{PRELUDE}\n{vector_math(text)}{text}"
    library = tmp_path / "kernel.so"
    command = [compiler.compiler(), *compiler.flags(), "-x", "c", "-", "-o", str(library), "-lm"]
    subprocess.run(command, input=unit, text=True, check=True, capture_output=True)
    listed = subprocess.run(["nm", library], text=True, check=True, capture_output=True).stdout
    (kernel_text,) = kernel.texts
    own = {line.split()[-1].partition(".")[0] for line in listed.splitlines() if " t mg_" in line}
    own -= {kernel_text.name, f"{kernel_text.name}_units"}
    own -= {"mg_log1pf", "mg_powf"}  # which call the C library
    # What reads argument blocks, and what threads begin with, is compiled once for all kernels.
    assert own <= {"mg_find", "mg_begin", "mg_wrap", "mg_stream", "mg_flushing"}
