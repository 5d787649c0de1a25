"""Kernels that Halide compiles: their bits compared with C's, the cache, unsupported kernels.

All other tests of this folder run with them, too: MINIGRAPH_JIT_BACKEND=halide pytest tests/jit
"""

import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, accepts, c_operands, is_random
from level_3 import array, before_a_guard, check, compiled
from long_runs import mostly_long
from needs import needs_compiler, needs_no_zig
from new_process import python

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler, elf, halide_compiler

pytestmark = pytest.mark.skipif(
    bool(compiler.why_no_halide()), reason=compiler.why_no_halide() or "Halide is here"
)
DTYPES = ("float32", "uint8", "bool", "float64", "int8", "int32", "int64", "uint64")
# Units in the last place by which results differ at most from those of C; the table of the
# documents says the same.  Of all other ops the bits are the same.
ULPS = {
    **dict.fromkeys(("log", "log1p", "log2", "log10", "expm1", "pow"), 4),
    "hypot": 512,  # where C's squares are denormal
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "atan2"), 4),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh", "logaddexp"), 4),
}
DOUBLES = {**ULPS, **dict.fromkeys(("exp", "tanh", "sigmoid"), 4)}
# Ops with branches in C, or with calls of functions that Halide does not have.
BRANCHES = {"floor_divide", "remainder"}
LACKING = {
    "bool": set(),
    "float32": BRANCHES | {"fma"},
    "float64": BRANCHES.union(
        ("fma", "expm1", "log1p", "log2", "log10", "erf", "erfc", "hypot", "logaddexp")
    ),
}


@pytest.fixture
def backend(monkeypatch):
    """Return a function that selects the backend of kernels."""
    return lambda name: monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", name)


@pytest.fixture
def no_kernels(monkeypatch, tmp_path):
    """An empty cache: a test run starts with the kernels of earlier runs."""
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))


def ordered(x):
    """Return the bits of floats as integers in the order of the floats."""
    bits = x.view(f"int{8 * x.itemsize}").astype(np.int64)
    return np.where(bits < 0, -(bits & np.iinfo(f"int{8 * x.itemsize}").max), bits)


def is_denormal(x):
    return (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny) if x.dtype.kind == "f" else x != x


def units_apart(x, y):
    """Return differences of floats in units in the last place; denormals equal flushed ones."""
    if x.dtype.kind != "f":
        return np.abs(x.astype(np.int64) - y.astype(np.int64))
    tiny = np.finfo(x.dtype).tiny
    flushed = (np.abs(x) <= tiny) & (np.abs(y) <= tiny)
    nan = np.isnan(x) & np.isnan(y)
    return np.where(nan | flushed, 0, np.abs(ordered(x) - ordered(y)))


@needs_compiler
@pytest.mark.parametrize("dtype", mostly_long(DTYPES, 3))  # one of each kind
def test_elementwise_results_have_the_bits_of_c_but_for_some_functions(dtype, backend):
    operands = {
        name: c_operands(op, np.dtype(dtype))
        for name, op in ELEMENTWISE.items()
        if accepts(op, np.dtype(dtype)) and not is_random(op)
    }
    values, lacking = {}, LACKING.get(dtype, BRANCHES | {"pow"})
    for maker in ("c", "halide"):
        backend(maker)
        inputs, outputs = [], []
        for name, xs in operands.items():
            nodes = [mg.input(f"x{len(inputs)}_{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
            inputs += nodes
            outputs += ELEMENTWISE[name].results(*nodes)
        function = compiled(outputs, inputs, level=0)
        others = {name for name, by, _ in function.report().steps if by != maker}
        assert others == (lacking if maker == "halide" else set())
        results = function(*(x for xs in operands.values() for x in xs))
        values[maker] = dict(zip(operands, results, strict=True))
    most = DOUBLES if dtype == "float64" else ULPS
    for name, xs in operands.items():
        usual = ~np.any([is_denormal(x) for x in xs], 0)  # others are flushed, or not
        apart = units_apart(values["halide"][name][usual], values["c"][name][usual])
        assert apart.max() <= most.get(ELEMENTWISE[name].name, 0), name


# What reads, and shapes: lengths that fill vectors, and such as do not.
READING = {
    "rows that are kept": (lambda x: ops.softmax(x, -1), [(3, 100), (2, 512), (4, 64), (1, 300)]),
    "reduced rows": (lambda x: (ops.sum(ops.exp(x), -1), ops.max(x, -1)), [(3, 100), (1, 1023)]),
    "reduced columns": (lambda x: ops.exp(ops.sum(ops.tanh(x), 0)) * 2, [(100, 3), (3, 300)]),
    "channels": (lambda x: x - x.mean((0, 1), keepdims=True), [(5, 7, 8), (3, 5, 16)]),
}


@pytest.mark.parametrize("kind", READING)
def test_kernels_read_nothing_behind_their_inputs(kind, backend):
    backend("halide")
    build, shapes = READING[kind]
    for shape in shapes:
        with before_a_guard(shape) as x:
            x[...] = array(*shape)
            check(build, x)


def test_a_kernel_is_compiled_once_for_all_shapes_and_found_on_disk_later(backend, no_kernels):
    backend("halide")
    program = """
import numpy as np, minigraph as mg
from minigraph import ops
for shape in ((37, 70), (5, 129)):
    x = mg.input("x", shape)
    options = {"graph_opt_level": 3, "autotune": "off"}
    y = ops.softmax(x * 3.25) + 0.75, ops.dropout(x, 0.25)
    f = mg.comp_graph("cpu", options).compile([x], y)
    assert [made for _, made, _ in f.report().steps] == ["halide"]
    f(np.ones(shape, "float32"))
stats = mg.jit.stats()
print(stats.compilations, stats.disk_hits)
"""
    first, second = ([*map(int, python("-c", program)[0].split())] for _ in range(2))
    # Besides two pipelines, the functions that call them, on any number of threads, and the walker.
    assert first[0] and sum(first) == (2 if compiler.compiler() is None else 5)
    assert second == [0, sum(first)]


def test_it_prints_the_schedule_and_the_program_if_asked(backend, no_kernels, monkeypatch, capfd):
    backend("halide")
    monkeypatch.setenv("MINIGRAPH_HALIDE_DEBUG", "1")
    x = mg.input("x", (5, 70))
    compiled([ops.sum(x * 1.375 + 2.625, 1)], [x])(np.ones(x.shape, "float32"))
    printed, errors = capfd.readouterr()
    assert "vectorized" in errors + printed
    assert "strict_add" in printed and "module name=" in printed


def test_objects_that_are_damaged_are_not_loaded():
    for code in (b"", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(200), b"no object"):
        with pytest.raises(OSError):
            elf.load(code)
        with pytest.raises(OSError):
            halide_compiler.KERNELS.load(code, ["mg_kernel"])


def test_a_folder_that_a_package_has_left_is_no_package(monkeypatch, tmp_path):
    (tmp_path / "mg_gone" / "__pycache__").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiler, "HALIDE_PACKAGES", ("halide", "mg_gone"))
    assert compiler.why_no_halide.__wrapped__().startswith("mg_gone is not installed")


@needs_compiler
def test_without_the_package_a_warning_says_so_and_c_takes_over(backend, monkeypatch):
    backend("halide")
    monkeypatch.setattr(compiler, "why_no_halide", lambda: "it is not installed")
    x = mg.input("x", (5, 70))
    with pytest.warns(mg.MinigraphWarning, match="halide, but it is not installed; .* compiler's"):
        function = compiled([ops.exp(x) * 3], [x])
    assert {maker for _, maker, _ in function.report().steps} == {"c"}


@needs_no_zig
def test_without_a_compiler_halide_makes_what_c_would(tmp_path):
    program = """
import warnings
import numpy as np, minigraph as mg
from minigraph import ops
warnings.simplefilter("always")
x, y = mg.input("x", (300, 1001)), mg.input("y", (1001,))
f = mg.comp_graph("cpu", {"graph_opt_level": 3, "num_threads": 2}).compile(
    [x, y], [ops.softmax(ops.tanh(x) * y), (x * y).sum(0), ops.mean(x)])
a, b = np.linspace(-3, 3, 300300, dtype="float32").reshape(300, 1001), np.arange(1001.) / 500
values = f(a, b.astype("float32"))
print({made for _, made, _ in f.report().steps}, [float(v.astype("float64").sum()) for v in values])
"""
    environment = {"PATH": str(tmp_path), "CC": "", "MINIGRAPH_JIT_BACKEND": ""}
    printed, errors = python("-W", "default", "-c", program, **environment)
    assert printed.startswith("{'halide'}")
    assert errors.count("no C compiler was found; Halide compiles") == 1
    sums = eval(printed[printed.index("[") :])
    a = np.linspace(-3, 3, 300300).reshape(300, 1001)
    np.testing.assert_allclose(sums, [300, (a * np.arange(1001) / 500).sum(), 0], 1e-5, 1e-5)


@needs_no_zig
def test_kernels_that_are_kept_run_without_halide_and_others_in_numpy(no_kernels, tmp_path):
    program = """
import sys
if sys.argv[1] == "without":
    sys.modules["halide"] = None
import numpy as np, minigraph as mg
from minigraph import ops
x = mg.input("x", (3, 70))
y = [ops.exp(x) * 3, ops.sum(x)][int(sys.argv[2])]
f = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"}).compile([x], y)
value, stats = f(np.zeros(x.shape)), mg.jit.stats()
print({made for _, made, _ in f.report().steps}, value.sum(), stats.compilations, stats.disk_hits)
"""
    environment = {"PATH": str(tmp_path), "CC": "", "MINIGRAPH_JIT_BACKEND": "halide"}
    runs = (("with", "0"), ("without", "0"), ("without", "1"))
    arguments = (("-W", "default", "-c", program, *run) for run in runs)
    (first, _), (second, errors), (other, _) = (python(*each, **environment) for each in arguments)
    assert (first, second) == ("{'halide'} 630.0 1 0\n", "{'halide'} 630.0 0 1\n")
    assert "halide is not installed" in errors
    assert other.endswith("0.0 0 0\n")  # of what is kept nowhere, NumPy computes it
