"""Padding is no operand: an infinity in the weights does not meet its zeros."""

import numpy as np
import pytest
from heavy_nodes import CONVOLUTIONS, assert_agrees
from heavy_samples import SAMPLES, compiled, meaning, with_odd_values
from needs import needs_compiler, needs_onednn

import minigraph as mg
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.devices.cpu.kernel import KernelRunner
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.problem import arranged
from minigraph.graph import Spec, aligned_empty

pytestmark = needs_onednn


PADDED = [name for name, (*_, fields) in CONVOLUTIONS.items() if "padding" in fields]


@needs_compiler
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("case", PADDED)
@pytest.mark.parametrize("way", ["conv2d", "conv2d_backward_data", "conv2d_backward_weights"])
def test_no_candidate_multiplies_padding(way, case, odd):
    op, xs = SAMPLES[f"{way}-{case}"]
    xs = [with_odd_values(x, seed=4) if i == odd else x for i, x in enumerate(xs)]
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(xs)]
    (wanted,) = meaning(op, *xs)
    problem = CpuProblems(2, on_disk=True).tunable(op(*inputs), [x.strides for x in xs]).problem
    names = []
    for candidate in problem.candidates(None):
        kernel = candidate.make()
        lying = [arranged(x, layout) for x, layout in zip(xs, candidate.layouts, strict=False)]
        result = arranged(wanted, candidate.layouts[-1])
        y, scratch = (
            aligned_empty(Spec(shape, dtype))
            for shape, dtype in ((result.shape, F32), ((kernel.scratch,), np.dtype(np.uint8)))
        )
        KernelRunner(kernel, on_disk=True).run(lying, [y], scratch)
        assert_agrees([y], [result], tolerance=1e-4)
        names.append(candidate.name)
    assert any("gemm" in name for name in names)


def test_without_a_compiler_onednn_multiplies_no_padding(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    op, xs = SAMPLES["conv2d-padding-beyond-the-window"]
    w = with_odd_values(xs[1], seed=4)
    assert_agrees(compiled(op, xs[0], w)(xs[0], w), meaning(op, xs[0], w))
