"""The stages of a compile: each is made from the one before, and can be printed."""

import numpy as np

import minigraph as mg
from minigraph import ops
from minigraph.compiler.pipeline import Compilation, CompileContext
from minigraph.compiler.trace import trace
from minigraph.devices.factory import open_backend


def test_each_stage_is_printed():
    x, b = mg.input("x", (4, 2)), mg.Parameter(np.ones(2, "float32"), "b")
    options = mg.comp_graph("reference", {"graph_opt_level": 1}).options
    context = CompileContext("reference", options, open_backend("reference", options))
    compilation = Compilation(
        trace([x], ops.exp(ops.negative(-x)) + b, {b: b * 2}, False), context, {}
    )
    assert "negative %" in str(compilation.traced)
    optimized = compilation.optimize()
    assert "simplify: 8 -> 6 nodes (double negation 1)" in str(optimized)
    program = compilation.lower(optimized.graph)
    assert str(program) == (
        "arena[0:8] = multiply(parameter b, constant constant) by numpy\n"
        "arena[64:96] = exp(input x) by numpy\n"
        "output = add(arena[64:96], parameter b) by numpy\n"
        "parameter b = arena[0:8] at the end\n"
        "arena of 128 bytes"
    )
    compilation.bind(program)
    assert compilation.executor([np.zeros((4, 2), "float32")])[0].tolist() == [[2, 2]] * 4
