"""CUDA kernels of what is padded, joined and cut: groups of elements, which windows never part."""

import random

import cuda_on_cpu
import pytest
from cuda_case import Case, aligned, array
from needs import needs_gpp

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.cuda.thread_mapping import map_to_threads
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import kernel_of


def case(build, *xs):
    """The kernel of an expression of some arrays, views as they are."""
    inputs = tuple(mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs))
    return Case(Fused(Graph(inputs, (build(*inputs),))), *xs)


def group_of(case):
    """Return the numbers of elements of operands that a thread loads and stores at once."""
    specs = tuple(x.spec for x in case.node.inputs)
    mapped, _ = map_to_threads(kernel_of(case.node.op, specs, tuple(x.strides for x in case.xs)))
    assert mapped.pattern.windows
    return mapped.group


def joined(axis):
    return lambda *xs: ops.concat([xs[0] + xs[0], *xs[1:]], axis) + 1


def padded(low, high, value=3):
    """Loaded values are 0 outside of their window; computed values are selected by it."""
    borders = tuple(zip(low, high, strict=True))
    return lambda x: ops.pad(x + x if value else x, borders, value) + 1


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "lengths", "group"),
    [
        ("bfloat16", (4, 5), 1, (64, 64), 8),
        ("bfloat16", (4, 5), 1, (60, 68), 4),
        ("bfloat16", (4, 5), 1, (62, 66), 2),
        ("bfloat16", (4, 5), 1, (63, 65), 1),
        ("bfloat16", (4, 16), 0, (3, 5), 8),  # the counter is one of the outer axes' elements
        ("bfloat16", (4, 5, 7, 7), 1, (3, 5), 1),
        ("bfloat16", (4, 5, 6, 6), 1, (3, 5), 4),
        ("float32", (4, 5), 1, (60, 68), 4),
        ("float64", (4, 5), 1, (62, 66), 2),
        ("int8", (4, 5), 1, (40, 8), 8),
        ("int8", (4, 5), 1, (36, 8), 4),
    ],
)
def test_a_group_is_as_long_as_all_windows_are_whole_multiples_of(
    dtype, shape, axis, lengths, group
):
    shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]
    assert group_of(case(joined(axis), *(array(*s, dtype=dtype) for s in shapes))) == group


def test_a_group_is_short_where_an_operand_begins_between_vectors():
    """The window begins at a multiple of 8, the elements that are read first do not."""
    x = aligned(array(4, 71, dtype="bfloat16"))[:, :64]
    assert group_of(case(padded((0, 8), (0, 8)), x)) == 1
    y = aligned(array(4, 72, dtype="bfloat16"))[:, :64]
    assert group_of(case(padded((0, 8), (0, 8)), y)) == 8


def test_what_is_transposed_is_read_one_by_one_beside_groups_where_its_rows_are_neighbours():
    x, y = (aligned(array(2, 64, 64, dtype="bfloat16", seed=i)) for i in range(2))
    assert group_of(case(joined(0), x, y.transpose(0, 2, 1))) == 8
    assert group_of(case(joined(0), x, y[:, :, ::-1])) == 1
    every_second = aligned(array(2, 64, 128, dtype="bfloat16"))[:, :, ::2]
    assert group_of(case(joined(0), x, every_second)) == 1


# ---------------------------------------------------------------- on the CPU


DTYPES = ("float32", "bfloat16", "float16", "float64", "int8", "int64")
UNITS = (1, 2, 3, 4, 8, 16)  # of which lengths and offsets are multiples


def random_case(seed):
    """A kernel that joins or pads arrays of any shapes and layouts, and may add the result up."""
    draw = random.Random(seed)
    dtype, rank, unit = draw.choice(DTYPES), draw.randint(1, 3), draw.choice(UNITS)
    axis, over = draw.randrange(rank), draw.randrange(rank)
    shape = [draw.randint(1, 5) for _ in range(rank)]
    shape[-1] *= draw.choice((1, 8, 16, 24))

    def piece(i):
        """An array, a part of one, or a transposed one."""
        shape[axis] = unit * draw.randint(1, 20 if axis == rank - 1 else 4)
        if draw.random() < 0.25:
            return aligned(array(*shape[::-1], dtype=dtype, seed=i)).T
        before, behind = draw.choice(((0, 0), (0, -shape[axis] % 16), (0, unit), (unit, 0)))
        sizes = [*shape[:axis], before + shape[axis] + behind, *shape[axis + 1 :]]
        part = (*[slice(None)] * axis, slice(before, before + shape[axis]))
        return aligned(array(*sizes, dtype=dtype, seed=i))[part]

    if draw.random() < 0.5:
        build, xs = joined(axis), [piece(i) for i in range(draw.randint(2, 4))]
    else:
        low, high = (
            [unit * draw.randint(a == axis, 3) * (a in (axis, over)) for a in range(rank)]
            for _ in range(2)
        )
        build, xs = padded(low, high, draw.choice((0, 1))), [piece(0)]
    summed = draw.random() < 0.3
    return case(lambda *xs: build(*xs).sum(-1) if summed else build(*xs), *xs)


RANDOM = [found for seed in range(80) if (found := random_case(seed)).kernel]
OTHERS = {
    "bool": case(lambda x, y: ~ops.concat([~x, y], 1), *2 * [array(3, 64, dtype="bool")]),
    **{
        f"a block of channels that is summed, from byte {4 * i} on": case(
            lambda x: padded((1, 0, 0), (1, 0, 0), 0)(x).sum((0, 1)),
            aligned(array(500))[i : i + 480].reshape(6, 5, 16),
        )
        for i in (0, 1)
    },
    "a tile": case(joined(0), *(aligned(array(128, 128)) for _ in range(2))),
}
CASES = {**{str(seed): found for seed, found in enumerate(RANDOM)}, **OTHERS}


@pytest.fixture(scope="module")
def kernels(build_cuda):
    launches = [launch for case in CASES.values() for launch in case.kernel.launches]
    return build_cuda([launch.source for launch in launches])


@needs_gpp
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_with_windows_agrees_with_numpy_and_reads_aligned_addresses(name, kernels):
    CASES[name].check(kernels)


def test_groups_of_every_length_are_among_the_random_cases():
    assert {group_of(case) for case in RANDOM} == {1, 2, 4, 8}


def test_kernels_with_windows_compile_with_nvrtc():
    nvrtc = pytest.importorskip("minigraph.devices.cuda.nvrtc", exc_type=ImportError)
    sources = [launch.source for name in OTHERS for launch in CASES[name].kernel.launches]
    assert nvrtc.compile_program(cuda_on_cpu.program(sources), "sm_90").startswith(b"\x7fELF")
