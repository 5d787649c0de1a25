"""Kernels, ops and arrays on a GPU: `pytest -m cuda`.  Skipped where there is none.

The cases that run as CUDA text on the CPU run here as well.
"""

import contextlib
import importlib
import itertools

import cuda_generated_cases as generated
import cuda_handwritten_cases as handwritten
import cuda_on_cpu
import numpy as np
import pytest
from cuda_device import close, losses, on_host, require, tolerance
from elementwise_samples import defined, is_random
from meaning import Meaning
from new_process import python
from random_graphs import RandomGraph
from samples import LOOPS, SAMPLES

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.ops.custom_gradient import Recomputed, WithGradient
from minigraph.ops.elementwise import Astype, kind
from minigraph.ops.shape import StopGradient

pytestmark = pytest.mark.cuda
LEVELS = [0, 1, 2, 3]
F32 = np.dtype("float32")
ALIGNED = 256  # bytes


# ---------------------------------------------------------------- kernels by themselves


def whole(array):
    """Return the array whose memory an array is a part of."""
    while array.base is not None:
        array = array.base
    return array


class OnDevice:
    """Runs launches as `cuda_on_cpu.run` does: on arrays of the host, at copies of their memory."""

    def __init__(self, backend, sources):
        self.driver, _ = backend.open_device(0)
        self.functions = backend.kernels_of(self.driver).functions(sources)
        self.arguments = importlib.import_module("minigraph.devices.cuda.driver").Arguments

    def copy(self, root):
        """Return memory with the bytes of an array, and how much further it is than the array."""
        memory = self.driver.allocate(root.nbytes + ALIGNED)
        at = root.ctypes.data
        address = memory.data.ptr + (at - memory.data.ptr) % ALIGNED
        self.driver.upload(address, root, self.driver.compute)
        return memory, address - at

    def run(self, kernels, launches, inputs, outputs, scratch=0):
        driver = self.driver
        roots = {id(root): root for root in map(whole, (*inputs, *outputs))}
        with driver.current():
            copies = {key: self.copy(root) for key, root in roots.items()}
            addresses = [
                [x.ctypes.data + copies[id(whole(x))][1] for x in xs] for xs in (inputs, outputs)
            ]
            room = driver.allocate(scratch)
            for launch in launches:
                driver.launch(
                    self.functions[launch.source.name],
                    launch.grid,
                    launch.block,
                    driver.compute,
                    self.arguments(launch.words(*addresses, room.data.ptr)),
                )
            for root in map(whole, outputs):
                address = root.ctypes.data + copies[id(root)][1]
                driver.download(root, address, driver.compute)
            driver.synchronize(driver.compute)


def names_that_run(request):
    """Return the names of the cases that this process runs."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    return {spec.params.get("name") for spec in specs if spec}


@pytest.fixture(scope="module")
def kernels(request):
    """Let launches run on the device; the kernels of all cases that run are compiled at once."""
    backend = importlib.import_module("minigraph.devices.cuda.device")
    run = {*names_that_run(request), "one block: sum"}
    names = [name for name in generated.CASES if name in run]
    device = OnDevice(backend, [*generated.sources(names), *handwritten.SOURCES])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_on_cpu, "run", device.run)
        yield


AGREEING = (
    *("sixteen bits", "structural", "memory", "reduction", "softmax", "large"),
    *("fused", "special", "together"),
)


@generated.of(*AGREEING)
def test_a_generated_kernel_agrees_with_numpy(name, kernels):
    for case in generated.cases(name):
        case.check(kernels, lambda got, expected: close(got, expected, tolerance(expected)))


def flushed(x):
    """Return an array with 0 for each denormal float32, of which the device knows nothing."""
    tiny = x.dtype == F32 and np.abs(x) < np.finfo(F32).tiny
    return np.where(tiny, np.copysign(np.zeros_like(x), x), x) if np.any(tiny) else x


def nearly(actual, expected):
    """Equal to a few roundings of the element, or of 1 where it is small."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if kind(expected.dtype) != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    relative, absolute = (1e-4, 1e-6) if expected.dtype == F32 else (1e-12, 1e-14)
    np.testing.assert_allclose(actual, expected, relative, absolute)


@generated.of("elementwise")
def test_an_op_agrees_with_numpy_at_special_values(name, kernels):
    (case,) = generated.cases(name)
    with np.errstate(all="ignore"):
        xs = [*map(flushed, case.xs)]
    generated.Case(case.node.op, *xs).check(kernels, nearly)


@pytest.mark.parametrize("name", handwritten.KERNELS)
def test_a_written_kernel_agrees_with_numpy(name, kernels):
    node, xs, kernel = handwritten.KERNELS[name]
    ys, flag = handwritten.run(None, node, xs, kernel)
    assert flag == 0
    for y, expected in zip(ys, handwritten.meaning(node, xs), strict=True):
        close(y, expected, tolerance(expected))


@generated.of("random")
def test_random_bits_are_those_of_the_cpu(name, kernels):
    (case,) = generated.cases(name)
    case.check(kernels, np.testing.assert_array_equal)


@generated.of("accuracy")
def test_the_error_of_a_sum_does_not_grow_with_its_length(name, kernels):
    generated.check_error_of_a_sum(name, kernels)


def test_a_thread_adds_floats_over_short_stretches_only(kernels):
    generated.check_sum_of_a_block(kernels)


# ---------------------------------------------------------------- ops


def narrow(x):
    return x.astype(F32) if x.dtype == np.float64 else x


def operands(op, xs):
    """Return the operands of a sample without those for which C leaves the result open."""
    return [np.where(defined(op, *xs), xs[0], 1)] if isinstance(op, Astype) else xs


CASES = {
    name: (op, operands(op, xs))
    for name, (op, xs) in SAMPLES.items()
    if not is_random(op) and name not in LOOPS
}
CASES |= {
    f"{name}-float32": (op, [*map(narrow, xs)])
    for name, (op, xs) in CASES.items()
    if any(x.dtype == np.float64 for x in xs)
}


def expressions(name):
    """Return the inputs of a case, and its results."""
    op, xs = CASES[name]
    inputs = tuple(mg.input(f"{name} {i}", x.shape, x.dtype) for i, x in enumerate(xs))
    return inputs, tuple(op.results(*inputs))


def gradients(name):
    """Return the inputs of a case, and the gradients of its float results for the float ones."""
    inputs, results = expressions(name)
    rng = np.random.default_rng(0)
    floats = [y for y in results if kind(y.dtype) == "f"]
    loss = sum(ops.sum(y * rng.normal(size=y.shape).astype(y.dtype)) for y in floats)
    return inputs, mg.grad(loss, [x for x in inputs if kind(x.dtype) == "f"])


DIFFERENTIABLE = [
    name
    for name, (op, xs) in CASES.items()
    if any(x.dtype == F32 for x in xs)
    and any(kind(y.dtype) == "f" for y in expressions(name)[1])
    and not isinstance(op, StopGradient | WithGradient | Recomputed)
]
PLAIN = {"graph_opt_level": 1, "autotune": "off"}


@pytest.fixture(scope="module")
def compiled(request):
    """Let all kernels of the cases but cuDNN's be compiled at once, which is much faster."""
    run = names_that_run(request)
    cheap = [n for n in CASES if n in run and "conv2d" not in n and "matmul" not in n]
    for graphs in (
        [expressions(name) for name in cheap],
        [gradients(name) for name in cheap if name in DIFFERENTIABLE],
    ):
        inputs, results = (
            list(itertools.chain.from_iterable(xs)) for xs in zip(*graphs, strict=True)
        )
        with contextlib.suppress(mg.GraphError):  # which the case itself tells
            mg.comp_graph("cuda", PLAIN).compile(inputs, results)


def agree(inputs, results, xs, limit=1):
    """A function on the device gives what NumPy does, to `limit` times the usual tolerance."""
    actual = mg.comp_graph("cuda", PLAIN).compile(inputs, results)(*xs)
    with np.errstate(all="ignore"):
        expected = Graph(inputs, tuple(results))(*xs)
    for y, wanted in zip(map(on_host, actual), expected, strict=True):
        close(y, wanted, limit * tolerance(wanted))


@pytest.mark.parametrize("name", CASES)
def test_every_op_computes_its_meaning(name, compiled):
    agree(*expressions(name), CASES[name][1])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_the_gradient_of_every_op_is_that_of_its_meaning(name, compiled):
    agree(*gradients(name), CASES[name][1], 10)


def test_what_is_dropped_is_what_the_cpu_drops_and_has_no_gradient():
    x = mg.input("x", (1000, 33))
    y = ops.dropout(x, 0.5) + ops.random_uniform((1000, 33))
    value = np.ones((1000, 33), np.float32)
    ys = [y, *mg.grad((ops.dropout(x, 0.25) * 3).sum(), [x])]
    for level in (0, 3):
        options = {"seed": 3, "graph_opt_level": level}
        steps = [mg.comp_graph(name, options).compile([x], ys) for name in ("cuda", "cpu")]
        for _ in range(3):
            for one, two in zip(*(map(on_host, step(value)) for step in steps), strict=True):
                np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("level", LEVELS)
def test_random_graphs_compute_their_meaning_at_every_level(level):
    for first in range(0, 90, 30):
        meaning = Meaning([RandomGraph(seed) for seed in range(first, first + 30)])
        options = {"graph_opt_level": level, "autotune": "off"}
        results = meaning.call(meaning.compiled("cuda", options))
        meaning.check(list(map(on_host, results)), f"on the GPU at level {level}")


# ---------------------------------------------------------------- arrays


def test_arrays_of_cupy_come_in_and_go_out_without_the_host():
    cupy = pytest.importorskip("cupy")
    x = mg.input("x", (1000,))
    step = mg.comp_graph("cuda").compile([x], x * 2 + 1)
    value = cupy.arange(1000, dtype=cupy.float32)
    first, second = step(value), step(value + 1)
    assert isinstance(first, cupy.ndarray)
    np.testing.assert_array_equal(first.get(), np.arange(1000, dtype=np.float32) * 2 + 1)
    np.testing.assert_array_equal(second.get(), first.get() + 2)


def test_large_arrays_are_read_and_written_where_they_are():
    cupy = pytest.importorskip("cupy")
    x = mg.input("x", (1 << 22,))
    step = mg.comp_graph("cuda").compile([x], x * 2 + 1)
    with cupy.cuda.Stream(non_blocking=True):
        value = cupy.arange(1 << 22, dtype=cupy.float32)
        first = step(value)
        value *= 0  # after the step has read it
        second = step(value)
        third = step(cupy.arange((1 << 22) + 1, dtype=cupy.float32)[1:])  # not aligned
    expected = np.arange(1 << 22, dtype=np.float32) * 2 + 1
    np.testing.assert_array_equal(first.get(), expected)
    np.testing.assert_array_equal(second.get(), expected * 0 + 1)
    np.testing.assert_array_equal(third.get(), expected + 2)


WITHOUT_CUPYS_KERNELS = """
import cupy, numpy as np
from cupy.cuda import compiler
from cuda_device import batch, training

def compile(*args, **named):
    raise AssertionError("CuPy compiles a kernel")

compiler._compile_with_cache_cuda = compile
images, labels = batch()
last = cupy.asarray(images.transpose(0, 2, 3, 1).copy()).transpose(0, 3, 1, 2)
wide = cupy.asarray(images.astype(np.float64))
step = training("cuda", autotune="off")
print(*(float(step(x, cupy.asarray(labels))) for x in (images, last, wide)))
"""


def test_a_step_of_training_needs_no_kernel_of_cupy():
    """Those take headers of CUDA, which only the tuner's checks may ask for."""
    printed, _ = python("-c", WITHOUT_CUPYS_KERNELS)
    expected, _ = losses("cuda", 3, autotune="off")
    np.testing.assert_allclose([*map(float, printed.split())], expected, rtol=1e-3)


def test_arrays_of_torch_come_in_and_go_out_without_the_host(torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    x = mg.input("x", (1000,))
    step = mg.comp_graph("cuda").compile([x], x * 2 + 1)
    value = torch.arange(1000, dtype=torch.float32, device="cuda")
    first, second = (torch.from_dlpack(step(v)) for v in (value, value + 1))
    assert first.is_cuda
    assert torch.equal(first, value * 2 + 1)
    assert torch.equal(second, first + 2)


@pytest.mark.parametrize("place", ["numpy", "cupy"])
def test_a_label_out_of_range_is_an_error_and_changes_nothing(place):
    array = pytest.importorskip(place).asarray
    x, labels = mg.input("x", (2, 3)), mg.input("labels", (2,), "int64")
    w = mg.Parameter(np.ones((3,), np.float32), "w")
    loss = ops.cross_entropy(x * w, labels)
    step = mg.comp_graph("cuda").compile([x, labels], loss, updates={w: w + 1})
    for i in range(1, 4):
        with pytest.raises(mg.GraphError, match="3"):
            step(np.zeros((2, 3), np.float32), array([0, 3]))
        np.testing.assert_array_equal(w.numpy(), np.full(3, i, np.float32))
        step(np.zeros((2, 3), np.float32), array([0, 2]))
        np.testing.assert_array_equal(w.numpy(), np.full(3, i + 1, np.float32))


require()
