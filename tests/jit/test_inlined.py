"""Functions of elements are inlined into loops, which are then vectorised."""

import re
import shlex
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
from minigraph.jit.c.vector_math import vector_functions, vector_math
from minigraph.jit.fused import Fused

pytestmark = [
    needs_c,
    pytest.mark.skipif("clang" in compiler.compiler_name(), reason="clang inlines as it likes"),
]

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


def text_of(x, y):
    """Return the text of the kernel that computes y from x."""
    op = Fused(Graph((x,), (y,)))
    (text,) = native_kernel(Node(op, (x,), (y.spec,)), [x.spec.strides], 1).texts
    return text


def compile_to(path, text, *more):
    kernels = CompilationUnit((text,)).text("")
    unit = f"{PRELUDE}\n{vector_math(kernels)}{kernels}"
    flags = [*compiler.flags(), "-x", "c", "-", "-o", str(path), *more]
    command = [*shlex.split(compiler.compiler()), *flags]
    subprocess.run(command, input=unit, text=True, check=True, capture_output=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_called_several_times_has_no_code_of_its_own(name, tmp_path):
    if not shutil.which("nm"):
        pytest.skip("there is no nm")
    (x,) = placeholders([mg.input("x", (64, 64)).spec])
    y = x
    for _ in range(4):
        y = FUNCTIONS[name](y * 0.5)
    kernel_text, library = text_of(x, y), tmp_path / "kernel.so"
    compile_to(library, kernel_text, "-lm")
    listed = subprocess.run(["nm", library], text=True, check=True, capture_output=True).stdout
    own = {line.split()[-1].partition(".")[0] for line in listed.splitlines() if " t mg_" in line}
    own -= {kernel_text.name, f"{kernel_text.name}_units"}
    own -= {"mg_log1pf", "mg_powf", "mg_fmodf", "mg_fmodf_by_lane"}  # they call the C library
    # Functions that read argument blocks and start threads are compiled once for all kernels.
    assert own <= {
        "mg_unravel_unit",
        "mg_unravel_row",
        "mg_odometer_carry",
        "mg_stream_copy",
        "mg_run_flushing_denormals",
    }


@pytest.mark.parametrize(
    "function",
    [
        *(ops.elu, ops.softplus, ops.mish, ops.sinh),
        *(FUNCTIONS["remainder"], FUNCTIONS["floor_divide"]),
    ],
)
def test_what_only_a_choice_needs_is_computed_in_vectors_all_the_same(function, tmp_path):
    if not vector_functions():
        pytest.skip("calls of the C library are scalar")
    (x,) = placeholders([mg.input("x", (64, 64)).spec])
    assembly = tmp_path / "kernel.s"
    compile_to(assembly, text_of(x, function(x)), "-S")
    assert re.search(r"(call|jmp)\s+_ZGV\w+_mg_", assembly.read_text())
