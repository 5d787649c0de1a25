"""Generated CUDA kernels without a GPU: NVRTC compiles them, and they run on the CPU.

A case is a node with arrays for its inputs; the kernels of all cases are built together, once.
"""

import functools
import re

import cuda_on_cpu
import numpy as np
import pytest
from cuda_generated_cases import (
    CASES,
    LENGTHS,
    Case,
    aligned,
    array,
    cases,
    check_error_of_a_sum,
    check_sum_of_a_block,
    every_case,
    of,
    sources,
)
from elementwise_samples import assert_same
from long_runs import ARCHITECTURES, long
from needs import needs_gpp

import minigraph as mg
from minigraph.devices.cuda.generated import generated_kernel
from minigraph.devices.cuda.kernel import Launch
from minigraph.graph import Copy
from minigraph.jit.fused import HorizontalFusion
from minigraph.jit.source import KernelSource
from minigraph.ops.arithmetic import Add
from minigraph.ops.reduction import Sum

pytestmark = needs_gpp


@pytest.fixture(scope="module")
def kernels(build_cuda):
    return build_cuda(sources())


GROUPS = {name.partition(":")[0] for name in CASES} - {"accuracy", "one block"}


@of(*GROUPS)
def test_a_generated_kernel_agrees_with_numpy(name, kernels):
    for case in cases(name):
        same = None
        if name.startswith("elementwise"):  # at special values, bit for bit
            any_zero = case.node.op.name in ("maximum", "minimum", "clip")
            same = functools.partial(assert_same, any_zero=any_zero)
        elif name.startswith("random"):
            same = np.testing.assert_array_equal
        case.check(kernels, same)


def test_the_ops_that_copy_and_combine_are_all_generated():
    structural = (cases(name) for name in CASES if name.startswith("structural"))
    names = {case.node.op.name for (case,) in structural}
    assert names >= {"sum", "prod", "max", "min", "pad", "concat", "copy", "reshape"}


def test_every_kernel_that_fusion_makes_has_a_cuda_text():
    for name in CASES:
        assert cases(name) and all(case.kernel is not None for case in cases(name))


# ---------------------------------------------------------------- how operands lie in memory


def test_extents_and_strides_are_arguments_of_a_kernel():
    cases = [Case(Add(), array(*shape), array(shape[-1])) for shape in ((2, 5), (7, 9), (3, 4, 6))]
    assert len({case.kernel.launches[0].source for case in cases}) == 1


def test_vectors_are_read_where_every_row_begins_at_one():
    x, wide = aligned(array(1024)), aligned(array(6, 8))
    views = [(x, 1), (x[4:], 1), (x[1:], 0), (x[2:], 0), (x[4:1023], 1)]
    views += [(wide[:, :4], 1), (wide[:, 4:], 1), (wide[:, 1:5], 0), (wide[1:, :3], 0)]
    views += [(aligned(array(6, 7))[:, :4], 0), (aligned(array(6, 7, dtype="float64"))[:, :4], 0)]
    for view, vector in views:
        (launch,) = Case(Copy(), view).kernel.launches
        *_, flag = launch.words([view.ctypes.data], [64], 0)
        assert flag == vector


# ---------------------------------------------------------------- reductions


def test_a_thread_adds_floats_over_short_stretches_only(kernels):
    check_sum_of_a_block(kernels)


@of("accuracy")
def test_the_error_of_a_sum_does_not_grow_with_its_length(name, kernels):
    check_error_of_a_sum(name, kernels)


def launches_of(name):
    (case,) = cases(name)
    return case.kernel.launches


def test_long_reductions_are_split_and_others_are_not():
    assert len(launches_of("reduction: sum of (200001,) over (0,)")) == 2
    assert len(launches_of("reduction: sum of (40000, 3) over (0,)")) == 2
    assert len(launches_of("reduction: sum of (1000, 33) over (1,)")) == 1


def blocks_of(shape, axis, processors):
    node = Sum((axis,))(mg.input("x", shape))
    kernel = generated_kernel(node, [node.inputs[0].spec.strides], processors)
    return [launch.grid[0] for launch in kernel.launches]


def test_split_sums_fill_the_device_and_are_joined_by_many_blocks():
    assert blocks_of((1 << 20, 64), 0, 14) == [4 * 14, 2]
    assert blocks_of((1 << 20, 64), 0, 132) == [4 * 132, 16]  # which join four columns each
    assert blocks_of((4, 1 << 22), 1, 132) == [8 * 132, 4]


def test_few_threads_stand_beside_the_last_column():
    """72 floats are 18 groups, which 8 threads take in three blocks: of 32, 14 would do nothing."""
    for columns, side in ((72, 8), (48, 16), (128, 32)):
        launch = Case(Sum((0,)), array(512, columns)).kernel.launches[0]
        *_, threads, _, _, _, _, _ = launch.words([64], [64], 64)
        assert threads == side


def test_what_a_thread_needs_next_is_loaded_before_it_uses_what_it_has():
    x = aligned(array(512, 64))
    for axis in (0, 1):
        text = Case(Sum((axis,)), x).kernel.launches[0].source.text
        loads, _, uses = text.partition("loaded0[4][4];")[2].partition("if (g + r * step < stop)")
        assert loads.count("mg_load") == 1 and "acc" not in loads and "acc" in uses


def test_indices_have_64_bits_where_32_are_too_few():
    names = [name for name in CASES if name.startswith("large")]
    assert names and all("int64_t g = " in launches_of(name)[0].source.text for name in names)


# ---------------------------------------------------------------- several ops in one kernel


def test_each_stage_of_what_is_split_is_a_launch_of_the_same_text():
    """A maximum, a sum, what is made of them: and what joins the splits of the first two."""
    launches = launches_of("fused: softmax (9, 80000)")
    assert len(launches) == 5
    assert len({launch.source for launch in launches}) == 1
    assert len(launches_of("fused: softmax (40, 1000)")) == 1


# ---------------------------------------------------------------- several kernels in one launch


def gathered(name):
    """Return how many kernels of a case run together, and their launches."""
    kernels = cases(f"together: {name}")
    (case,) = (c for c in kernels if isinstance(c.node.op, HorizontalFusion))
    return len(case.node.op.ops), case.kernel.launches


def grids(name):
    count, launches = gathered(name)
    return count, [launch.grid[0] for launch in launches]


def test_kernels_together_are_one_launch_unless_their_words_are_too_many():
    assert grids("several texts") == (6, [1 + 1 + 5 + 1 + 1 + 5])
    # Each vector has a count of steps beside it.
    for name, count in (("adam", 2 * 160), ("more than an argument holds", 500)):
        parts, launches = gathered(name)
        assert (parts, len(launches)) == (count, 2)


def test_the_blocks_of_a_launch_are_shared_out_by_what_each_kernel_has_to_do():
    """A block has 256 threads, and each of them four floats."""
    blocks = []
    for launch in gathered("adam")[1]:
        (count,) = re.findall(r"mg_kernel_of_block\(a.w, (\d+), ", launch.source.text)
        table = launch.words([64] * 2000, [64] * 2000, 64)[: int(count) + 1]
        assert table[0] == 0 and table[-1] == launch.grid[0]
        blocks += np.diff(table).tolist()
    counts = [1] * len(LENGTHS)
    assert sorted(blocks) == sorted([*(-(-n // 1024) for n in LENGTHS), *counts])


def test_a_sum_that_many_blocks_share_has_launches_of_its_own():
    split, joined, others = grids("a long sum")[1]
    assert split > 30 and joined == 1 and others == 1 + 1 + 5


# ---------------------------------------------------------------- compiling


def test_an_argument_has_the_words_that_its_kernel_declares():
    for case in every_case():
        operands = [64] * len(case.node.inputs), [64] * len(case.node.specs)
        for launch in case.kernel.launches:
            (declared,) = re.findall(r"NAME_args { \S.* w\[(\d+)\]", launch.source.text)
            assert len(launch.words(*operands, 64)) == int(declared) <= 32764 // 8


@pytest.mark.parametrize(
    ("step", "arch"),
    [*((60, arch) for arch in ARCHITECTURES), *(long(1, arch) for arch in ARCHITECTURES)],
)
def test_every_kernel_compiles_with_nvrtc(step, arch):
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    program = cuda_on_cpu.program(sources()[::step])
    assert nvrtc.compile_program(program, arch).startswith(b"\x7fELF")


def test_a_compile_error_is_one_line_that_says_where():
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    with pytest.raises(mg.CompileError, match=r"^NVRTC for sm_90: minigraph.cu\(2\): error: .*$"):
        nvrtc.compile_program("int one;\nint two = three;\n", "sm_90")
    with pytest.raises(mg.CompileError, match="invalid value for --gpu-architecture"):
        nvrtc.compile_program("", "sm_1")


# ---------------------------------------------------------------- what runs them here


BARRIER_OF_SOME = """
struct NAME_args { long long w[1]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  if (threadIdx.x % 2) __syncthreads();
}
"""


BETWEEN_VECTORS = """
struct NAME_args { long long w[1]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  float x[4];
  mg_load<4>(x, (char *)a.w[0] + 16 * threadIdx.x + (threadIdx.x == 5 ? 4 : 0));
}
"""


TAKE = """
struct NAME_args { long long w[1]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  int *y = (int *)a.w[0] + threadIdx.x * 6;
  const int64_t t = threadIdx.x, large = 0x140000000 + 1000003 * t;
  int64_t rest = large;
  y[0] = mg_unravel(&rest, 3 * t + 2000);
  y[1] = rest;
  rest = large;
  y[2] = mg_unravel(&rest, 0x100000001) & 0x7fffffff;
  y[3] = rest;
  rest = 1000003 * t;
  y[4] = mg_unravel(&rest, t + 1);
  y[5] = rest;
}
"""


@pytest.fixture(scope="module")
def output(build_cuda):
    def launch(text):
        source = KernelSource(text)
        kernels = build_cuda([source])
        y = np.zeros((96, 6), np.int32)
        launch = Launch(source, (1, 1, 1), (96, 1, 1), lambda _, ys, scratch: [ys[0]])
        cuda_on_cpu.run(kernels, [launch], [], [y])
        return y.T

    return launch


def test_an_index_of_more_than_32_bits_is_divided_as_one_of_less(output):
    t = np.arange(96)
    large = 0x140000000 + 1000003 * t
    cases = (large, 3 * t + 2000), (large, 0x100000001), (1000003 * t, t + 1)
    expected = [y for x, n in cases for y in (x % n & 0x7FFFFFFF, x // n)]
    np.testing.assert_array_equal(output(TAKE), expected)


def test_a_barrier_that_not_all_threads_reach_is_an_error(output):
    with pytest.raises(AssertionError, match="barrier"):
        output(BARRIER_OF_SOME)


def test_an_address_between_vectors_is_an_error(output):
    with pytest.raises(AssertionError, match="aligned"):
        output(BETWEEN_VECTORS)
