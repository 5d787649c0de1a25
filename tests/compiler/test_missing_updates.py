"""A step that trains a layer and leaves out the state that the layer changes is warned of."""

import warnings

import pytest

import minigraph as mg
from minigraph import nn, ops, optim

X = mg.input("x", (8, 3, 4, 4))


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())


def compiled(outputs, updates):
    return mg.comp_graph("reference").compile([X], outputs, updates)


def network(**kwargs):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **kwargs), nn.ReLU())


def trained(net, *others):
    loss = (net(X) ** 2).sum()
    parameters = [p for part in (net, *others) for p in part.parameters()]
    return loss, optim.SGD(parameters, 0.1).minimize(loss)


@pytest.mark.parametrize("affine", [True, False])
def test_a_step_without_the_running_statistics_is_warned_of_with_layers_lines_and_remedy(affine):
    net = nn.Sequential(network(affine=affine))
    with pytest.warns(mg.MinigraphWarning, match="evaluation will use wrong statistics") as caught:
        loss, updates = trained(net)
        compiled(loss, updates)
        compiled([loss, loss], updates)
    (warning,) = caught
    text = str(warning.message)
    assert f"(in layer 0.1, at {__file__}:" in text
    assert "{**optimizer.minimize(loss), **net.updates()}" in text
    assert "\n" not in text


def test_of_many_layers_three_are_named():
    net = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(5)))
    net.append(net[0])  # called twice, it is one layer
    text = r"\(in layer 5, [^;]*; in layer 1, [^;]*; in layer 2, [^;]*; and 2 more\)"
    with pytest.warns(mg.MinigraphWarning, match=text):
        compiled(*trained(net))


def test_updates_of_another_graph_do_not_serve():
    net = network()
    loss, updates = trained(net)
    net.eval()(X)  # begins another graph: what `updates()` gives is of both calls
    net.updates()
    net.train()(X)
    others = net.updates()
    compiled(loss, {**updates, **others})  # the statistics are updated
    net(X)
    with pytest.warns(mg.MinigraphWarning, match="made before net is called again"):
        compiled(loss, updates)


def test_what_trains_with_its_statistics_or_trains_nothing_is_fine():
    net = network()
    loss, updates = trained(net)
    statistics = net.updates()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(loss, {**updates, **statistics})
        compiled(loss, None)
        compiled(loss, statistics)
        compiled(mg.grad(loss, list(net.parameters())), None)
        compiled(*trained(network(track_running_stats=False)))
        compiled(*trained(network().eval()))


def test_a_step_that_trains_another_network_may_leave_a_layers_statistics():
    generator, discriminator = network(), nn.Sequential(nn.BatchNorm2d(4))
    loss = (discriminator(generator(X)) ** 2).mean()
    for part, other in ((generator, discriminator), (discriminator, generator)):
        updates = optim.SGD(part.parameters(), 0.1).minimize(loss)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(loss, {**updates, **part.updates()})
        with pytest.warns(mg.MinigraphWarning, match="wrong statistics"):
            compiled(loss, {**updates, **other.updates()})


def test_state_of_users_own_modules_counts_too():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = mg.Parameter([2.0], dtype="float32")
            self.register_buffer("calls", 0)

        def forward(self, x):
            self.update(self.calls, self.updated(self.calls) + 1)
            return x * self.scale, [x]

    net = Counting()
    loss = net(X)[0].sum()
    updates = optim.SGD(net.parameters(), 0.1).minimize(loss)
    with pytest.warns(mg.MinigraphWarning, match=rf"\(at {__file__}:"):
        compiled(loss, updates)
    assert not X.changes  # an input is no result of the call


def test_the_warning_takes_nothing_from_random_ops():
    net = nn.Sequential(network(), nn.Dropout(0.5))
    with pytest.warns(mg.MinigraphWarning, match="wrong statistics"):
        compiled(*trained(net))
    assert ops.sum(X).changes == ()
