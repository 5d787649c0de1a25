"""Kernels of slices, paddings and concatenations, as in `cases/borders.txt`: arrays they access."""

import numpy as np
from attacks import fences
from needs import needs_compiler
from rewriting import assert_bits, run, values
from test_cases import CASES, FOLDER, parsed

import minigraph as mg
from minigraph.jit.fused import Fused
from minigraph.passes.kernels.fusion import fuse_kernels

FILE = FOLDER / "borders.txt"
GRADIENT = "the gradient of squared differences of neighbours"


def graph_of(name):
    """Return the graph of a case, with inputs that have its name, too."""
    case = parsed(FILE, name)
    case.inputs = {
        x.name: mg.input(f"{x.name} of {name}", x.shape, x.dtype) for x in case.inputs.values()
    }
    return case.graph()


def compiled(graphs, level, threads=1):
    """Return one function of all graphs."""
    options = {"graph_opt_level": level, "num_threads": threads, "autotune": "off"}
    inputs = [x for graph in graphs for x in graph.inputs]
    outputs = [y for graph in graphs for y in graph.outputs]
    return mg.comp_graph("cpu", options).compile(inputs, outputs)


@needs_compiler
def test_a_kernel_with_borders_has_the_bits_of_single_ops_and_touches_nothing_else():
    graphs = {name: graph_of(name) for path, name in CASES if path == FILE}
    names = [name for name, graph in graphs.items() for _ in graph.outputs]
    xs = [values(x.dtype, x.shape) for graph in graphs.values() for x in graph.inputs]
    expected = compiled(graphs.values(), 0)(*xs)
    for function in (compiled(graphs.values(), 3, threads) for threads in (1, 2)):
        for at_end in (False, True):
            results = fences.call(function, xs, at_end)
            for name, y, of_ops in zip(names, results, expected, strict=True):
                if "sum" in name:
                    np.testing.assert_allclose(y, of_ops, rtol=1e-5, err_msg=name)
                else:
                    assert_bits(y, of_ops, name)


def test_the_gradient_of_differences_reads_each_neighbour_once():
    before = parsed(FILE, GRADIENT).graph()
    graph, _ = run(fuse_kernels, before)
    (kernel,) = [node for node in graph if isinstance(node.op, Fused)]
    assert graph.outputs == (kernel,)
    assert kernel.inputs == before.inputs * (1 + 2 * 3)  # axes
