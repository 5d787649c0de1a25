"""CUDA devices run no loops: they are unrolled."""

import pytest

import minigraph as mg
from minigraph import nn, ops

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import StandIn, open_instead


@pytest.mark.parametrize("length", [3, None])
@pytest.mark.parametrize("level", [0, 3])
def test_a_recurrent_layer_is_unrolled(monkeypatch, level, length):
    def load(wanted, driver, on_disk):
        return {source.name: 0 for source in wanted}

    open_instead(monkeypatch, StandIn(), load)
    net, x = nn.GRU(4, 5), mg.input("x", (length, 2, 4))
    loss = ops.sum(net(x)[0])
    options = {"graph_opt_level": level, "autotune": "off"}
    step = mg.comp_graph("cuda", options).compile([x], [loss, *mg.grad(loss, [*net.parameters()])])
    if length:
        report = step.report()
        assert report.ops["scan"] == 0
        assert report.ops["matmul"] >= 2 * length
