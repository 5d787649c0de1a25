"""Kernels of what is cut out, padded and joined: which there are, their bits, what they touch."""

import numpy as np
import pytest
from attacks import fences
from fused_units import fused, of, reasons
from rewriting import assert_bits, run, values

import minigraph as mg
from minigraph import ops
from minigraph.jit.fused import Fused
from minigraph.passes.kernels.fusion import fuse_kernels

X = mg.input("x", (40, 130))
Y = mg.input("y", (42, 130))
D = mg.input("d", (4, 6, 300), "float64")
N = mg.input("n", (3, 200), "int32")
H = mg.input("h", (3, 200), "float16")
B = mg.input("b", (3, 200), "bool")
BLOCKS = mg.input("blocks", (2, 4, 9, 9, 16))


def compiled(y, inputs, level=3, threads=1):
    options = {"graph_opt_level": level, "num_threads": threads, "autotune": "off"}
    return mg.comp_graph("cpu", options).compile(inputs, y)


def differences(x):
    """The gradient of squared differences of neighbours along each axis, as autodiff writes it."""
    first = (slice(None),)
    cut = [(first * a + (slice(1, None),), first * a + (slice(None, -1),)) for a in range(x.ndim)]
    return mg.grad(sum(ops.square(x[b] - x[a]).mean() for a, b in cut), [x])[0]


ONE_KERNEL = {
    "padded before": (ops.pad(X * 2, ((2, 0), (0, 0))) + Y, "multiply pad add"),
    "padded by a number, along rows": (
        ops.pad(X, ((1, 1), (3, 2)), 0.5)[:, 3:-2] * Y,
        "pad multiply",
    ),
    "padded by -0": (-ops.pad(X, ((0, 0), (1, 1)), -0.0), "pad negative"),
    "padded twice": (
        ops.exp(ops.pad(ops.pad(D, 1, 1) + 1, ((0, 1), (0, 0), (2, 2)), 3)),
        "pad add pad exp",
    ),
    "cut out of what is padded": (ops.pad(D, 2)[1:-2, :, 5:] + 1, "pad add"),
    "integers": (ops.pad(N + 2, 1, 7) * 3, "add pad multiply"),
    "floats of 16 bits": (ops.pad(H * 3, 1, 7) + 1, "multiply pad add"),
    "bools": (ops.logical_not(ops.pad(B, 1, True)), "pad logical_not"),
    "backwards": (ops.pad(X[:, ::-1] * 2, 1) + 1, "multiply pad add"),
    "transposed": (ops.pad(X.T * 2, ((1, 1), (0, 0))) + 1, "multiply pad add"),
    "one of several elements": (ops.pad(X[:1] * 2, ((0, 1), (0, 0))) + 1, "multiply pad add"),
    "joined along rows": (ops.concat([X, X * 2, X + 1], 1) + 1, "multiply add concat add"),
    "joined along columns": (ops.abs(ops.concat([X - 1, Y], 0)), "subtract concat abs"),
    "joined blocks of channels": (
        ops.concat([BLOCKS, BLOCKS * 2], 1) * mg.input("lanes", (16,)),
        "multiply concat multiply",
    ),
    "summed": ((ops.pad(X, ((1, 1), (0, 0))) * Y).sum(), "pad multiply sum"),
    "summed along rows": ((ops.pad(X * 2, ((0, 0), (2, 2))) + 1).sum(1), "multiply pad add sum"),
    "blocks of channels": (
        ops.relu(ops.pad(BLOCKS, ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))),
        "pad relu",
    ),
}


@pytest.mark.parametrize(("y", "kernel"), ONE_KERNEL.values(), ids=ONE_KERNEL)
def test_what_is_padded_cut_out_or_joined_is_in_the_kernel_of_what_reads_it(y, kernel):
    assert fused(y) == [kernel]


@pytest.mark.parametrize("at_end", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", ["gradient of differences", *ONE_KERNEL])
def test_a_kernel_with_borders_has_the_bits_of_single_ops_and_touches_nothing_else(name, at_end):
    y = differences(D) if name not in ONE_KERNEL else ONE_KERNEL[name][0]
    graph = of(y)
    xs = [values(x.dtype, x.shape) for x in graph.inputs]
    expected = compiled(y, graph.inputs, level=0)(*xs)
    for threads in (1, 2):
        found = fences.call(compiled(y, graph.inputs, threads=threads), xs, at_end)
        if name.startswith("summed"):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        else:
            assert_bits(found, expected)


def test_the_gradient_of_differences_is_one_kernel_that_reads_each_neighbour_once():
    graph, _ = run(fuse_kernels, of(differences(D)))
    (kernel,) = [node for node in graph if isinstance(node.op, Fused)]
    assert graph.outputs == (kernel,)
    assert kernel.inputs == (D,) * (1 + 2 * D.ndim)


def test_what_a_padding_and_others_read_is_computed_again_only_where_it_is_cheap():
    y = ops.exp(X)
    assert fused(ops.pad(y, ((0, 2), (0, 0))) + ops.pad(y, ((2, 0), (0, 0)))) == [
        "[exp]",
        "pad pad add",
    ]


def test_borders_stay_out_of_kernels_that_they_would_slow_down():
    short = mg.input("short", (100, 20))
    assert fused(ops.pad(short, 1) + 1) == ["[pad]", "[add]"]
    assert fused(ops.concat([X + i for i in range(5)]) * 2)[-2:] == ["[concat]", "[multiply]"]
    assert fused((ops.pad(X, ((1, 1), (0, 0))) + Y).sum(0)) == ["[pad]", "add sum"]
    assert fused(ops.pad(BLOCKS, ((0, 0), (1, 1), *[(0, 0)] * 3)).sum(-1) + 1) == [
        "[pad]",
        "sum add",
    ]
    assert fused(ops.pad(X[:4] * 2, ((0, 38), (0, 0))) + Y) == ["[multiply]", "pad add"]
    why = "most of what the kernel would compute is cut off"
    assert ("multiply", "pad", why) in reasons(ops.pad(X[:4] * 2, ((0, 38), (0, 0))) + Y)
    assert fused(ops.pad(X, 0)[::2] + 1, mg.grad((X[::2] * 2).sum(), [X])[0] + X)[-1] == "[add]"


def test_one_array_at_two_places_of_another_is_joined_by_a_kernel_of_its_own():
    assert fused(ops.concat([X, X]) * 2) == ["[concat]", "[multiply]"]
