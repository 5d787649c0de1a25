"""Kernels of slices, paddings and concatenations, as in `cases/borders.txt`: arrays they access."""

import numpy as np
import pytest
from attacks import fences
from rewriting import assert_bits, run, values
from test_cases import CASES, FOLDER, parsed

import minigraph as mg
from minigraph.jit.fused import Fused
from minigraph.passes.kernels.fusion import fuse_kernels

FILE = FOLDER / "borders.txt"
GRADIENT = "the gradient of squared differences of neighbours"


def compiled(graph, level, threads=1):
    options = {"graph_opt_level": level, "num_threads": threads, "autotune": "off"}
    return mg.comp_graph("cpu", options).compile(graph.inputs, list(graph.outputs))


@pytest.mark.parametrize("name", [name for path, name in CASES if path == FILE])
def test_a_kernel_with_borders_has_the_bits_of_single_ops_and_touches_nothing_else(name):
    graph = parsed(FILE, name).graph()
    xs = [values(x.dtype, x.shape) for x in graph.inputs]
    expected = compiled(graph, 0)(*xs)
    for function in (compiled(graph, 3, threads) for threads in (1, 2)):
        for at_end in (False, True):
            for y, want in zip(fences.call(function, xs, at_end), expected, strict=True):
                if "sum" in name:
                    np.testing.assert_allclose(y, want, rtol=1e-5)
                else:
                    assert_bits(y, want)


def test_the_gradient_of_differences_reads_each_neighbour_once():
    before = parsed(FILE, GRADIENT).graph()
    graph, _ = run(fuse_kernels, before)
    (kernel,) = [node for node in graph if isinstance(node.op, Fused)]
    assert graph.outputs == (kernel,)
    assert kernel.inputs == before.inputs * (1 + 2 * 3)  # axes
