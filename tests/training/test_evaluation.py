"""Evaluation: right means over whole loaders, and a network that stays as it was."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.data import DataLoader
from minigraph.distributed.world import World
from minigraph.training import Evaluation, evaluate

RNG = np.random.default_rng(0)
X = RNG.standard_normal((10, 4)).astype("float32")
LABELS = RNG.integers(0, 3, 10)
GRAPH = mg.comp_graph("reference")


def network():
    nn.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


def expected(net, x=X, labels=LABELS):
    """Return the means as NumPy computes them; the statistics of BatchNorm are 0 and 1."""
    weight, bias = net[0].weight.numpy(), net[0].bias.numpy()
    scores = (x @ weight.T + bias) / np.sqrt(1 + 1e-5)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(x)), labels]).mean()
    return {"loss": loss, "accuracy": (scores.argmax(1) == labels).mean()}


@pytest.mark.parametrize("batch_size", [1, 3, 4, 5, 10, 99])
def test_loss_and_accuracy_are_means_over_all_examples_however_they_are_batched(batch_size):
    net = network()
    means = evaluate(net, DataLoader((X, LABELS), batch_size), cg=GRAPH)
    assert list(means) == ["loss", "accuracy"]
    assert means == pytest.approx(expected(net), rel=1e-6)
    assert all(type(value) is float for value in means.values())


class WorldOfTwo(World):
    """A world of two processes, of which the other one has gathered some values already."""

    def __init__(self, rank, other):
        super().__init__()
        self.rank, self.size, self.other, self.given = rank, 2, other, None

    def gather(self, value):
        self.given = value
        return [self.other, value] if self.rank else [value, value * 0]


@pytest.mark.parametrize("batch_size", [2, 4, 6, 20])
def test_processes_that_share_the_examples_get_the_means_over_all(batch_size):
    net = network()
    first = WorldOfTwo(0, None)
    evaluate(net, DataLoader((X, LABELS), batch_size, shard=first), cg=GRAPH, world=first)
    second = WorldOfTwo(1, first.given)
    loader = DataLoader((X, LABELS), batch_size, shard=second)
    assert evaluate(net, loader, cg=GRAPH, world=second) == pytest.approx(expected(net), rel=1e-6)


def test_the_network_is_built_in_evaluation_and_left_as_it_was():
    net = network()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    before = net.state_dict()
    evaluate(net, [(X, LABELS)], cg=GRAPH)
    assert [module.training for module in net.modules()] == modes == [True, True, False, True]
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(mg.ShapeError):
        evaluate(net, [(X[:, :3], LABELS)], cg=GRAPH)
    assert [module.training for module in net.modules()] == modes


def test_an_evaluation_is_compiled_once_and_follows_the_parameters():
    compiled = []

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            compiled.append(x)
            return self.net(x)

    net = Counting()
    measure = Evaluation(net, cg=GRAPH)
    loader = DataLoader((X, LABELS), 4)
    first = measure(loader)
    assert len(compiled) == 1
    net.net[0].weight.assign(-net.net[0].weight.numpy())
    assert measure(loader) == pytest.approx(expected(net.net), rel=1e-6)
    assert measure(loader) != first
    assert len(compiled) == 1


def test_metrics_are_functions_of_outputs_and_target():
    targets = RNG.standard_normal((10, 3))
    net = nn.Linear(4, 3)
    metrics = {
        "squared": ops.mse_loss,
        "distances": lambda y, t: ops.sqrt(((y - t) ** 2).sum(axis=1)),
        "above": lambda y, t: y > t,
    }
    means = evaluate(net, DataLoader((X, targets), 4), metrics, cg=GRAPH)
    y = X @ net.weight.numpy().T + net.bias.numpy()
    assert means == pytest.approx(
        {
            "squared": ((y - targets) ** 2).mean(),
            "distances": np.sqrt(((y - targets) ** 2).sum(1)).mean(),
            "above": (y > targets).mean(),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("batch_size", [1, 2, 4, 9])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_metric_with_a_weight_is_a_mean_over_all_that_weighs(batch_size, reduction):
    lengths = np.array([5, 0, 1, 3, 2, 0, 0, 4, 1])  # batches of 1 have nothing that counts
    tokens = np.where(np.arange(5) < lengths[:, None], RNG.integers(1, 3, (9, 5)), 0)
    scores = RNG.standard_normal((9, 3, 5))

    def loss(scores, tokens):
        ignored = {"ignore_index": 0} if reduction == "mean" else {}
        return ops.cross_entropy(scores, tokens, reduction=reduction, **ignored), tokens != 0

    loader = DataLoader((scores, tokens), batch_size)
    means = evaluate(
        nn.Identity(), loader, {"loss": loss, "examples": lambda y, t: y[:, 0, 0]}, GRAPH
    )
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    losses = -np.take_along_axis(logs, tokens[:, None], 1)[:, 0]
    assert means["loss"] == pytest.approx(losses[tokens != 0].mean(), rel=1e-5)
    assert means["examples"] == pytest.approx(scores[:, 0, 0].mean(), rel=1e-5)


def test_a_network_may_have_several_inputs_and_masks_for_labels():
    class Masked(nn.Module):
        def forward(self, scores, mask):
            return scores * mask

    scores = RNG.standard_normal((6, 3, 2, 2)).astype("float32")
    masks, labels = scores[:, :1] > 0, RNG.integers(0, 3, (6, 2, 2))
    means = evaluate(Masked(), DataLoader((scores, masks, labels), 4), cg=GRAPH)
    assert means["accuracy"] == pytest.approx(((scores * masks).argmax(1) == labels).mean())


@pytest.mark.parametrize(("dtype", "net_dtype"), [("float64", "float32"), ("float32", "float64")])
def test_floats_become_what_the_network_computes_in(dtype, net_dtype):
    seen = []
    net = nn.Linear(4, 3, dtype=net_dtype)

    def metric(y, t):
        seen.append((y.dtype, t.dtype))
        return ops.mse_loss(y, t)

    evaluate(net, [(X.astype(dtype), np.zeros((10, 3), dtype))], {"m": metric}, cg=GRAPH)
    assert seen == [(net_dtype, net_dtype)]


def test_torch_loaders_give_batches_too(torch):
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(LABELS))
    net = network()
    means = evaluate(net, torch.utils.data.DataLoader(data, 4), cg=GRAPH)
    assert means == pytest.approx(expected(net), rel=1e-6)
