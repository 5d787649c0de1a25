"""cuBLAS gets products as they lie: what it is told is what NumPy then computes."""

import itertools

import numpy as np
import pytest

pytest.importorskip("cupy")
pytest.importorskip("cudnn")
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import cublas_library
from cublas_library import strided
from cuda.pathfinder import DynamicLibNotFoundError
from heavy_nodes import product

from minigraph.autotune.candidate import Workbench, first_allowed
from minigraph.autotune.measurement import Policy
from minigraph.autotune.tuner import measure
from minigraph.devices.cuda import cublas, cublas_kernel
from minigraph.devices.cuda.candidates import CudaProblems
from minigraph.devices.cuda.kernels import Exactness
from minigraph.devices.problem import Arrangement
from minigraph.graph import as_dtype, input
from minigraph.ops.activation import Activated, Relu
from minigraph.ops.matmul import Matmul
from minigraph.ops.trigonometric import Tanh

EXACT, ALL = Exactness(), Policy()


@pytest.fixture
def library(monkeypatch):
    return cublas_library.instead(monkeypatch)


def problems(tf32=False, fast_math=False):
    exactness = Exactness(tf32, fast_math)
    return CudaProblems(None, Workbench(), exactness)


def first_kernel(node, steps, exactness=EXACT, policy=ALL):
    offered = cublas_kernel.candidates(Arrangement(node, steps, ()), 0, exactness)
    return first_allowed(offered, policy)


def node_of(xs, op=None):
    return (op or Matmul())(*(input("x", x.shape, x.dtype) for x in xs))


def check(xs, op=None, exactness=EXACT, copied=()):
    """Compute a product of views, `copied` of which have to be contiguous; return its kernel."""
    node = node_of(xs, op)
    policy = Policy(precision="tf32" if exactness.tf32 else "float32")
    kernel = first_kernel(node, [x.strides for x in xs], exactness, policy)
    assert [i for i in range(len(xs)) if not kernel.reads_strided(i)] == [
        *copied,
        *range(2, len(xs)),
    ]
    operands = [x if kernel.reads_strided(i) else np.ascontiguousarray(x) for i, x in enumerate(xs)]
    y = np.full(node.shape, np.nan, node.dtype)
    cublas_library.run(kernel, operands, [y])
    wide = node.op.forward(*(x.astype(np.float64) for x in xs))
    tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-12}[node.dtype.itemsize]
    np.testing.assert_allclose(y.astype(np.float64), wide, rtol=tolerance, atol=tolerance)
    return kernel


MATRICES = {  # shape, and steps in elements
    "rows": ((6, 5), (5, 1)),
    "columns": ((6, 5), (1, 6)),
    "rows with gaps": ((6, 5), (8, 1)),
    "columns with gaps": ((6, 5), (1, 9)),
    "one row": ((1, 5), (77, 1)),
    "one row with gaps": ((1, 5), (1, 3)),
    "one column": ((6, 1), (1, 77)),
    "one column with gaps": ((6, 1), (4, 1)),
    "one element": ((1, 1), (0, 7)),
}
COPIED = {"every second": ((6, 5), (10, 2)), "one row again": ((6, 5), (0, 1))}


@pytest.mark.parametrize("second", [*MATRICES, *COPIED])
@pytest.mark.parametrize("first", [*MATRICES, *COPIED])
def test_matrices_are_read_as_they_lie_if_rows_or_columns_have_no_gaps(library, first, second):
    (shape, steps), (turned, down) = ({**MATRICES, **COPIED}[name] for name in (first, second))
    x = strided(shape, steps, np.float32)
    y = strided(turned, down, np.float32, 1).T  # so the second is of columns where it says rows
    if x.shape[1] != y.shape[0]:
        y = strided((x.shape[1], 3), (3, 1), np.float32, 1)
        second = "rows"
    check([x, y], copied=[i for i, name in enumerate((first, second)) if name in COPIED])
    assert len(library.calls) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True])
def test_every_dtype_is_multiplied_and_a_bias_is_added_to_each_row(library, dtype, bias):
    rng = np.random.default_rng(0)
    shapes = (6, 5), (5, 7), *([(7,)] * bias)
    kernel = check([rng.normal(size=s).astype(as_dtype(dtype)) for s in shapes])
    assert kernel.way.gemm.bias == bias
    assert library.calls == [(70 if dtype == "float64" else 68, 1, 7, 6)]


def test_threads_that_share_a_product_each_add_their_own_bias(library, monkeypatch):
    """Functions of one comp_graph share kernels, and ctypes lets other threads run in a call."""
    both_here, multiply = threading.Barrier(2), library.functions["Matmul"]

    def matmul(*arguments):
        with contextlib.suppress(threading.BrokenBarrierError):
            both_here.wait(0.5)
        return multiply(*arguments)

    monkeypatch.setitem(library.functions, "Matmul", matmul)
    xs = [np.zeros((6, 5), np.float32), np.zeros((5, 7), np.float32), np.zeros(7, np.float32)]
    kernel = first_kernel(node_of(xs), [x.strides for x in xs])

    def call(number):
        y = np.empty((6, 7), np.float32)
        cublas_library.run(kernel, [*xs[:2], np.full(7, number, np.float32)], [y])
        return y

    with ThreadPoolExecutor(2) as pool:
        for number, y in enumerate(pool.map(call, range(2))):
            np.testing.assert_array_equal(y, number)


def test_float32_is_rounded_to_tf32_only_where_that_is_asked_for(library):
    for dtype in ("float32", "float16", "float64"):
        x = np.ones((4, 4), dtype)
        for tf32 in (False, True):
            check([x, x], exactness=Exactness(tf32=tf32))
    assert [compute for compute, *_ in library.calls] == [68, 77, 68, 68, 70, 70]


BATCHES = {  # the axes of x and y in memory, outermost first, then what is copied
    "in order": ("abij", "abij", ()),
    "the other order in both": ("baij", "baij", (0, 1)),  # that of the result is its own
    "heads": ("aibj", "aibj", (0, 1)),
    "heads of one": ("aibj", "abij", (0,)),
    "heads of the other, turned": ("abij", "ajbi", (1,)),
    "turned": ("abji", "abji", ()),
}


@pytest.mark.parametrize("case", BATCHES)
def test_leading_axes_join_where_they_lie_one_after_the_other(library, case):
    """Of [2, 3, m, k] and [2, 3, k, n]; what does not join even so is copied before."""
    sizes = [{"a": 2, "b": 3, "i": 4, "j": 5}, {"a": 2, "b": 3, "i": 5, "j": 7}]
    *orders, copied = BATCHES[case]
    xs = []
    for seed, (order, size) in enumerate(zip(orders, sizes, strict=True)):
        lying = np.random.default_rng(seed).normal(size=[size[axis] for axis in order])
        xs.append(lying.astype(np.float32).transpose([order.index(axis) for axis in "abij"]))
    check(xs, copied=copied)
    assert len(library.calls) == 1


@pytest.mark.parametrize(
    ("first", "second", "calls"),
    [
        ((2, 3), (), 1),
        ((), (6,), 1),
        ((2, 1), (2, 3), 2),
        ((2, 1), (1, 4), 2),
        ((1, 4), (2, 1), 2),
        ((3, 1, 2), (1, 5, 1), 6),
        ((1, 1), (2, 3), 1),
        ((70_000,), (70_000,), 2),
    ],
)
def test_leading_axes_broadcast_with_a_call_for_each_element_beyond_one_axis_or_its_limit(
    library, first, second, calls
):
    rng = np.random.default_rng(0)
    shapes = (*first, 4, 5), (*second, 5, 7)
    node = node_of([np.empty(s, np.float32) for s in shapes])
    xs = [rng.normal(size=s).astype(np.float32) for s in shapes]
    kernel = first_kernel(node, [x.strides for x in xs])
    y = np.empty(node.shape, np.float32)
    cublas_library.run(kernel, xs, [y])
    np.testing.assert_allclose(y, np.matmul(*xs), rtol=1e-5, atol=1e-5)
    assert len(library.calls) == calls


def test_where_calls_begin_inside_of_operands_less_alignment_is_promised(library):
    xs = [input("x", (2, 1, 3, 5)), input("y", (4, 5, 7))]
    (way,) = cublas_kernel.ways(Matmul()(*xs), [x.spec.strides for x in xs], Exactness())
    assert len(way.offsets) == 2 and way.gemm.alignment == 4
    assert cublas_kernel.ways(*product("rows", "rows"), Exactness())[0].gemm.alignment == 16


# ---------------------------------------------------------------- what follows a product


def ways(node, exactness):
    return cublas_kernel.ways(node, [x.spec.strides for x in node.inputs], exactness)


def test_what_follows_is_cublass_or_a_kernel_afterwards():
    shapes = (3, 5), (5, 7), (7,)
    xs = [input("x", shape) for shape in shapes]
    for fast_math in (False, True):
        fused, unfused = ways(Matmul()(*xs), Exactness(fast_math=fast_math))
        assert (fused.gemm.bias, fused.epilogue, fused.label) == (True, None, "")
        assert (unfused.gemm.bias, unfused.label) == (False, "unfused ")
        assert str(unfused.epilogue.op) == "fused[add]"
        (tanh,) = ways(Activated(Matmul(), Tanh())(*xs), Exactness(fast_math=fast_math))
        assert str(tanh.epilogue.op) == "fused[add, tanh]" and not tanh.gemm.bias
    relu = Activated(Matmul(), Relu())(*xs)
    (exact,) = ways(relu, Exactness())
    assert str(exact.epilogue.op) == "fused[add, relu]"
    fused, unfused = ways(relu, Exactness(fast_math=True))
    assert (fused.gemm.bias, fused.gemm.relu, unfused.gemm) == (True, True, exact.gemm)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("activation", [Relu(), Tanh()])
def test_every_candidate_with_an_activation_is_right(library, activation, fast_math):
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=s).astype(np.float32) for s in ((6, 5), (5, 7), (7,))]
    kernel = check(xs, Activated(Matmul(), activation), Exactness(fast_math=fast_math))
    assert (kernel.way.epilogue is None) == (fast_math and activation == Relu())
    assert len(kernel.launches) == (kernel.way.epilogue is not None)


def test_a_kernel_afterwards_stands_in_for_an_epilogue_that_cublas_lacks(monkeypatch):
    cublas_library.instead(monkeypatch, offers=lambda operation: operation[7] == 1)
    rng = np.random.default_rng(0)
    kernel = check([rng.normal(size=s) for s in ((6, 5), (5, 7), (7,))])
    assert kernel.name == "cublas unfused algorithm 60 {tile: 5}"


# ---------------------------------------------------------------- candidates


def run_on_the_host(monkeypatch):
    monkeypatch.setattr(
        cublas_kernel.CublasKernel,
        "run",
        lambda self, inputs, outputs, scratch: cublas_library.run(self, inputs, outputs),
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "orders", [*itertools.product(["rows", "columns"], repeat=2)], ids="-".join
)
def test_every_candidate_is_measured_and_found_again_by_its_name(
    library, monkeypatch, orders, bias
):
    run_on_the_host(monkeypatch)
    node, steps = product(*orders, bias)
    table = measure(problems().tunable(node, steps).problem, None)
    assert not [m for m in table.measurements if m.error]
    names = [f"algorithm 60 {{tile: {tile}}}" for tile in (5, 6, 7)]
    assert sorted(m.name for m in table.measurements) == sorted(
        [*names, *(f"unfused {name}" for name in names if bias)]
    )
    assert all(m.deterministic and m.precision == "float32" for m in table.measurements)
    new = problems().tunable(node, steps).problem
    for m in table.measurements:
        assert new.kernel(m).name == f"cublas {m.name}"
    library.algorithms = 1
    less = problems().tunable(node, steps).problem
    assert [m.name for m in table.measurements if less.kernel(m)] == [
        m.name for m in table.measurements if "tile: 5" in m.name
    ]


def test_the_first_candidate_is_cublass_first_choice_within_the_limit_on_its_workspace(monkeypatch):
    cublas_library.instead(monkeypatch, workspace=1000)
    node, steps = product("rows", "rows")
    kernel = first_kernel(node, steps)
    assert kernel.name == "cublas algorithm 60 {tile: 5}"
    assert kernel.scratch == 1000 + 256
    xs = [np.ones(x.shape, np.float32) for x in node.inputs]
    y = np.empty(node.shape, np.float32)
    cublas_library.run(kernel, xs, [y])  # which looks at its workspace
    np.testing.assert_array_equal(y, np.full((3, 7), 5))


def test_what_is_allowed_is_part_of_the_subject(library):
    node, steps = product("rows", "columns")
    exact, loose = (problems(tf32).tunable(node, steps).problem for tf32 in (False, True))
    assert exact.subject == "matmul of rows and columns float32[3, 5] float32[5, 7]"
    assert loose.subject == f"{exact.subject}, tf32"


def test_what_cublas_cannot_multiply_has_no_candidates(library, monkeypatch):
    for dtype, shape in (("int32", (4, 5)), ("float32", (0, 5))):
        node = Matmul()(input("x", shape, dtype), input("y", (5, 2), dtype))
        assert problems().product(node) is None
    cublas_library.instead(monkeypatch, offers=lambda operation: False)
    assert first_kernel(*product("rows", "rows")) is None


def test_a_call_that_cublas_refuses_is_an_error(library, monkeypatch):
    node, steps = product("rows", "rows")
    kernel = first_kernel(node, steps)
    xs, y = [np.ones(x.shape, np.float32) for x in node.inputs], np.empty(node.shape, np.float32)
    for result, error in ((15, cublas.KernelFailed), (13, cublas.DeviceError)):
        library.functions["Matmul"] = lambda *_, result=result: result
        with pytest.raises(error, match=f"^cublasLtMatmul: STATUS_{result}$"):
            cublas_library.run(kernel, xs, [y])


def test_the_real_library_takes_what_describes_a_product():
    """For that it needs no device."""
    try:
        cublas.library()
    except DynamicLibNotFoundError:
        pytest.skip("nvidia-cublas is not installed")
    assert int(cublas.version()) >= 130000
    for dtype, bias in (("bfloat16", True), ("float64", False)):
        matrices = cublas.Matrices(4, 4, 8, 1 << 40)
        gemm = cublas.Gemm(dtype, (matrices,) * 3, (True, False), batch=3, bias=bias, relu=bias)
        described = cublas.Descriptors(gemm)
        assert described.algorithms(cublas.c_void_p()) == []  # without a handle
    assert cublas.HeuristicResult().name == "algorithm 0 {}"
    with pytest.raises(cublas.DeviceError, match=r"^cublasLtMatmul: \w*_NOT_INITIALIZED$"):
        described.enqueue(cublas.HeuristicResult(), [256] * 3, 0, cublas.c_void_p(), 0)
