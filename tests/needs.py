"""Requirements of tests: pytest skips tests on machines without them, with the reason."""

import pytest
from cuda_on_cpu import COMPILER

from minigraph.devices.cpu import compiler, halide_compiler, onednn
from minigraph.graph import BFLOAT16
from minigraph.platform import toolchain

NO_COMPILER, NO_ONEDNN = compiler.compiler() is None, onednn.library() is None
NO_BFLOAT16 = NO_ONEDNN or BFLOAT16 not in onednn.dtypes()

# Who makes generated kernels in this run: MINIGRAPH_JIT_BACKEND=halide pytest tests/jit
GENERATED = "halide" if halide_compiler.is_selected() else "c"

needs_compiler = pytest.mark.skipif(NO_COMPILER, reason="there is no C compiler")
needs_onednn = pytest.mark.skipif(NO_ONEDNN, reason="there is no oneDNN")
needs_both = pytest.mark.skipif(
    NO_COMPILER or NO_ONEDNN, reason="there is no oneDNN or no C compiler"
)
needs_kernels = pytest.mark.skipif(
    NO_COMPILER and NO_ONEDNN, reason="there is neither oneDNN nor a C compiler"
)
needs_bfloat16 = pytest.mark.skipif(
    NO_COMPILER or NO_BFLOAT16, reason="there is no AVX512_BF16 or AMX, no oneDNN or no C compiler"
)
needs_c = pytest.mark.skipif(
    NO_COMPILER or GENERATED != "c", reason="generated kernels are not the C compiler's"
)
needs_no_zig = pytest.mark.skipif(
    toolchain.zig() is not None, reason="there is a C compiler wherever PATH leads: ziglang"
)
needs_gpp = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
