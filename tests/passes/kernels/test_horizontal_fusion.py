"""Horizontal fusion of small kernels whose results no kernel reads."""

import numpy as np
from fused_units import ROW, A, B, C, W, of
from rewriting import run, values

import minigraph as mg
from minigraph import ops
from minigraph.jit.fused import HorizontalFusion
from minigraph.passes.kernels.fusion import fuse_kernels
from minigraph.passes.kernels.horizontal_fusion import HorizontalFusionLimits, fuse_horizontally
from minigraph.passes.notes import Notes

LIMITS = HorizontalFusionLimits()


def gather(graph, limits=LIMITS):
    """Return the graph after the pass, and the number of fused updates."""
    notes = Notes()
    return fuse_horizontally(graph, notes, limits), notes.fired["updates in one kernel"]


def gathered(*ys, limits=LIMITS):
    """Return the number of parts of each launch."""
    graph, _ = gather(of(*ys), limits)
    again, fired = gather(graph, limits)
    assert str(again) == str(graph) and not fired
    return [len(node.op.ops) for node in graph if isinstance(node.op, HorizontalFusion)]


def test_small_results_that_nothing_reads_are_one_launch():
    assert gathered(A + 1, B * 2, ROW - 1) == [3]
    assert gathered(*of(A + 1, B * 2, C).outputs) == [2]


def test_what_is_read_is_not_gathered():
    e = ops.exp(A)
    assert gathered(e, e @ W, B + 1, C + 1) == [2]
    assert gathered(e, e + 1) == []
    assert gathered(A + 1) == []


def test_what_is_large_has_a_launch_of_its_own():
    large = mg.input("large", (LIMITS.operand // 4 + 1,))
    assert gathered(large + 1, large * 2, A + 1) == []
    assert gathered(
        large + 1, large * 2, A + 1, limits=HorizontalFusionLimits(LIMITS.operand + 4)
    ) == [3]
    assert gathered(large[1:] + 1, large[:-1] + 2) == [2]


def test_what_would_wait_with_much_has_a_launch_of_its_own():
    sums = [ops.negative((ops.exp(x) @ W).sum(0, keepdims=True)) for x in (A, B)]
    graph, _ = run(fuse_kernels, of(*sums))
    assert gathered(*graph.outputs) == []
    assert gathered(*(ops.negative(ops.exp(x).sum(0)) for x in (A, B))) == [2]
    few = LIMITS.waiting // A.spec.nbytes
    products = of(*((A @ W) * i for i in range(few + 9)))
    assert gather(products)[1] == few
    assert gather(products, HorizontalFusionLimits(waiting=LIMITS.waiting * 2))[1] == few + 9


def test_casts_of_weights_are_one_launch():
    w, v, large = (mg.Parameter(np.ones(s, "float32")) for s in ((9, 9), (9, 9), (129, 129)))
    small = [x.astype("bfloat16") for x in (w, v)]
    casts = [
        *small,
        large.astype("bfloat16"),
        w.astype("float64"),
    ]  # which is larger, or makes more
    before = of(*(x @ x for x in casts))
    notes = Notes()
    graph = fuse_horizontally(before, notes, LIMITS)
    assert notes.fired == {"casts in one kernel": 2}
    for new, old in zip(graph(), before(), strict=True):
        np.testing.assert_array_equal(new, old)
    graph = fuse_horizontally(before, notes, HorizontalFusionLimits(waiting=small[0].spec.nbytes))
    assert not any(isinstance(node.op, HorizontalFusion) for node in graph)


def test_gathered_kernels_keep_their_several_results():
    e, f = ops.exp(A), ops.exp(ROW)
    before = of(e, e * B + 1, f, f + 1)
    graph, _ = gather(run(fuse_kernels, before)[0])
    (launch,) = (node for node in graph if isinstance(node.op, HorizontalFusion))
    assert [part.name for part in launch.op.ops] == ["fused", "fused"]
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(graph(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(new, old)
