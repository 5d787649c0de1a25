"""Each kernel of a function is compared with NumPy on its own inputs; right ones are not blamed."""

import contextlib

import numpy as np
import pytest
from needs import needs_compiler
from samples import SAMPLES

import minigraph as mg
from minigraph import ops
from minigraph.debug.fault_localization import check_steps
from minigraph.debug.rounding import evaluate
from minigraph.graph import FLOATS, Graph, Node
from minigraph.ops.random import SEED, STEP


def compiled(device, inputs, outputs):
    return mg.comp_graph(device, {"graph_opt_level": 3}).compile(inputs, outputs)


@needs_compiler
def test_a_kernel_whose_terms_cancel_is_not_blamed():
    x = mg.input("x", (3000, 17))
    y = ops.layer_norm(x, (17,))
    function = compiled("cpu", x, mg.grad((y * y).sum(), [x]))  # 0 but for rounding
    feeds = {x: np.random.default_rng(0).normal(size=(3000, 17)).astype(np.float32)}
    assert isinstance(check_steps(function._program, function._backend, feeds), list)


def test_no_right_kernel_is_blamed():
    """Of no op that there is, nor of its gradient."""
    for op, xs in SAMPLES.values():
        inputs = [mg.input(f"x{i}", np.shape(x), np.asarray(x).dtype) for i, x in enumerate(xs)]
        floats = [x for x in inputs if x.dtype in FLOATS]
        outputs = [*op.results(*inputs)]
        with contextlib.suppress(mg.GraphError):  # it has no gradient
            total = sum(y.astype("float32").sum() for y in outputs if y.dtype in FLOATS)
            outputs += mg.grad(total, floats) if floats and isinstance(total, Node) else []
        function = compiled("reference", inputs, outputs)
        feeds = {**dict(zip(inputs, map(np.asarray, xs), strict=True)), SEED: function.seed}
        feeds[STEP] = np.zeros((), np.uint64)
        faults = check_steps(function._program, function._backend, feeds)
        if isinstance(faults, tuple):
            pytest.fail(f"{faults[0].node}\n{faults[1].statistics('NumPy', 'kernel')}")


def test_a_graph_of_float64_is_evaluated_in_float32_without_a_warning():
    x = mg.input("x", (3,), "float64")
    (y,) = evaluate(Graph((x,), (x * 2,)), [np.array([1, 2, np.inf])], np.dtype(np.float32))
    assert y.dtype == np.float32 and y.tolist() == [2, 4, np.inf]
