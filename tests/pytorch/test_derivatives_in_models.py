"""Models that differentiate by `torch.autograd.grad`, as physics-informed networks do."""

import numpy as np
import pytest

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
from captured import X, interpreted  # noqa: E402
from image_programs import Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import grad  # noqa: E402
from trained_pair import assert_learns  # noqa: E402


def network(inputs):
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, 1))


def residual(m, x, t):
    """The residual of Burgers' equation (Raissi, 2019)."""
    x.requires_grad_(True), t.requires_grad_(True)
    u = m.net(torch.cat([x, t], 1))
    ux, ut = grad(u, [x, t], grad_outputs=torch.ones_like(u), create_graph=True)
    uxx = grad(ux.sum(), x, retain_graph=True, create_graph=True)[0]
    return ut + u * ux * m.scale - uxx


def penalty(m, real, fake):
    """The penalty of a critic's slopes (Gulrajani, 2017)."""
    between = ((real + fake) / 2).requires_grad_()
    slopes = grad(m.net(between), between, torch.ones(len(real), 1), create_graph=True)[0]
    return m.net(fake) - m.net(real) + (slopes.norm(2, dim=1, keepdim=True) - 1) ** 2


def of_a_copy(m, x, unused):
    """A gradient at a copy, which counts only what is made of the copy."""
    copy = x.clone().requires_grad_()
    y = m.net(copy).sum() + m.net(x).square().sum()
    return grad(y, copy, create_graph=True)[0].square()


def adapts(create_graph):
    """Two steps of gradient descent within the model (Finn, 2017)."""

    def adapt(m, x, y):
        weight = m.weight
        for _ in range(2):
            loss = (x @ weight - y).square().mean()
            (dw,) = grad(loss, [weight], create_graph=create_graph)
            weight = weight - 0.1 * dw
        return torch.tanh(y @ weight)

    return adapt


def descends(m, x, start):
    """Samples of an energy, which carry no gradient (Du, 2019)."""
    y = start
    for _ in range(2):
        y = y.detach().requires_grad_(True)
        y = y - 0.1 * grad(m.net(y).sum(), y)[0]
    return m.net(x) - m.net(y.detach())


MODELS = {
    "equations": (residual, 1, lambda: {"net": network(2), "scale": nn.Parameter(torch.ones(1))}),
    "penalties": (penalty, 3, lambda: {"net": network(3)}),
    "copies": (of_a_copy, 3, lambda: {"net": network(3)}),
    "adaptation": (adapts(True), 4, lambda: {"weight": nn.Parameter(torch.randn(4, 4))}),
    "first order": (adapts(False), 4, lambda: {"weight": nn.Parameter(torch.randn(4, 4))}),
    "energies": (descends, 3, lambda: {"net": network(3)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_from_its_own_derivatives(name):
    function, features, parts = MODELS[name]

    def batch():
        x, y = torch.randn(2, 5, features, dtype=torch.float64)
        return x, y, torch.zeros(1)

    assert_learns(Net(function, **parts()), batch, lambda y, unused: y.square().mean())


def test_a_loss_may_differentiate_the_model():
    def loss(outputs, target):
        y, x = outputs
        (slopes,) = grad(y, x, torch.ones_like(y), create_graph=True)
        return (y - target).square().mean() + slopes.square().mean()

    model = Net(lambda m, x: (m.net(x.requires_grad_(True)), x), net=network(3))
    assert_learns(model, lambda: (torch.randn(4, 3).double(), torch.randn(4, 1).double()), loss)


def test_forces_are_predicted_without_a_gradient_for_weights():
    @torch.no_grad()
    def forces(m, places):
        with torch.enable_grad():
            places = places.detach().requires_grad_(True)
            return -grad(m.net(places).sum(), places)[0]

    model, places = Net(forces, net=network(3)).eval(), torch.randn(4, 3)
    net, x = mgt.convert(model, (places,)), mg.input("x", (4, 3))
    predicted = mg.comp_graph("reference").compile([x], net(x))(places.numpy())
    np.testing.assert_allclose(predicted, model(places).numpy(), rtol=1e-5, atol=1e-6)


def test_what_no_output_depends_on_has_a_gradient_of_zeros():
    def unused(model, x):
        y = model.linear(x)
        return grad(y.sum(), [x, model.mean], allow_unused=True)[1]

    inputs, result, _ = interpreted(unused, X)
    compiled = mg.comp_graph("reference").compile(inputs, result.outputs)
    np.testing.assert_array_equal(compiled(X.numpy()), np.zeros(4))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, r"output 0 has shape \(3, 4\), and grad_outputs are None; torch.ones_like"),
        ({"grad_outputs": torch.ones(4)}, r"grad_outputs are of shape \(4,\); torch.ones_like"),
        ({"grad_outputs": torch.ones(2, 3, 4), "is_grads_batched": True}, "is_grads_batched=True"),
    ],
)
def test_weights_that_do_not_fit_an_output_are_an_error(arguments, said):
    with pytest.raises(mg.GraphError, match=said):
        interpreted(lambda model, x: grad(model.linear(x), x, **arguments), X)
