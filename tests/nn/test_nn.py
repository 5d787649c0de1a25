"""Layers: torch's numbers, names and text; how they begin; what goes wrong, and where."""

import math

import numpy as np
import pytest
from small_nets import IMAGES, Net, compiled

import minigraph as mg
from minigraph import nn, optim
from minigraph.errors import ShapeError

# Like torch


@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
def test_running_statistics_after_three_steps_are_torchs(torch, momentum):
    theirs = torch.nn.BatchNorm2d(4, momentum=momentum)
    ours = nn.BatchNorm2d(4, momentum=momentum)
    x = mg.input("x", IMAGES.shape)
    step = compiled([x], ours(x), ours.updates())
    for scale in (1, 2, 3):
        step(IMAGES * scale + scale)
        theirs(torch.from_numpy(IMAGES * scale + scale))
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-6, err_msg=name)
    assert ours.num_batches_tracked.numpy() == 3


# Initialisation


@pytest.mark.parametrize(
    "layer", [nn.Linear(50, 400), nn.Conv2d(12, 300, (3, 2), groups=3)], ids=["Linear", "Conv2d"]
)
def test_weights_and_biases_start_uniform_within_one_over_the_root_of_fan_in(layer):
    bound = 1 / math.sqrt(math.prod(layer.weight.shape[1:]))
    for values in layer.state_dict().values():
        assert values.dtype == np.float32
        assert 0.98 * bound < np.abs(values).max() <= bound * 1.0001
        assert abs(values.std() - bound / math.sqrt(3)) < 0.05 * bound


def test_layers_are_made_in_other_dtypes_on_request():
    for layer in (nn.Linear(2, 3, dtype="float64"), nn.LayerNorm(3, dtype="float64")):
        assert {p.dtype for p in layer.parameters()} == {np.dtype("float64")}
    assert nn.BatchNorm2d(2, dtype="bfloat16").running_var.dtype == "bfloat16"


# Errors


def test_errors_name_the_path_of_the_layer_and_the_users_line():
    with pytest.raises(ShapeError, match=r"3 channels.* in layer layer1\.0\.conv1, .*small_nets"):
        Net()(mg.input("x", (2, 3, 8, 8)))


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty defines no forward"):
        Empty()(mg.input("x", ()))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("inputs, outputs", [(3, 0), (0, 3)])
def test_layers_without_inputs_or_outputs_compute_and_train(inputs, outputs, level):
    cg = mg.comp_graph(options={"graph_opt_level": level})
    for net, shape in (
        (nn.Linear(inputs, outputs), (2, inputs)),
        (nn.Conv2d(inputs, outputs, 3, padding=1), (2, inputs, 4, 4)),
    ):
        for fill in (nn.init.kaiming_normal_, nn.init.normal_, nn.init.uniform_):
            fill(net.weight)
        x = mg.input("x", shape)
        y = net(x)
        sgd = optim.SGD(net.parameters(), lr=0.5)
        step = cg.compile([x], y, updates=sgd.minimize(y.sum()))
        bias = net.bias.numpy()
        result = step(np.ones(shape, "float32"))
        assert result.shape == (2, outputs, *shape[2:])
        if not inputs:  # the sum of nothing
            assert np.array_equal(
                result, np.broadcast_to(bias.reshape(-1, *[1] * (len(shape) - 2)), result.shape)
            )
        assert np.allclose(net.bias.numpy(), bias - 0.5 * 2 * np.prod(shape[2:]))
