"""Networks of PyTorch give and learn here what they give and learn there."""

import copy

import pytest
from long_runs import long

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
from torch_networks import SMALL  # noqa: E402

STEPS = 10
OPTIONS = {"autotune": "off", "num_threads": 1}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    return request.param


# A short run predicts with every third network, and trains every third.
PREDICTED, TRAINED = (
    [name if i % 3 == first else long(name) for i, name in enumerate(SMALL)] for first in (1, 0)
)


@pytest.fixture
def small(request, device, monkeypatch):
    """A network in float64, a batch and the loss."""
    # PyTorch's fast path of an encoder takes GELU's approximation by tanh on a GPU.
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", device == "cpu")
    network = SMALL[request.param]
    inputs, targets = network.batch()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return network.make().double().to(device), (inputs.to(device), targets.to(device)), network.loss


def adam(model):
    """Return an Adam that leaves at rest what has no gradient but rounding errors.

    Such are biases before a batch norm; Adam divides gradients by their size, plus `eps`.
    """
    return torch.optim.Adam(model.parameters(), 1e-3, eps=1e-5)


def eager(model, loss, optimizer):
    """Return PyTorch's own step."""

    def step(*batch):
        optimizer.zero_grad()
        value = loss(model(*batch[:-1]), batch[-1])
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def door(model, loss, optimizer, batch):
    return mgt.training_step(model, loss, optimizer, batch, options=OPTIONS)


def assert_equal(actual, expected):
    """Compare states, nested as they are, to 1e-9."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("small", PREDICTED, indirect=True)
def test_a_converted_network_predicts_what_the_network_does(small, device):
    model, (inputs, _), _ = small
    model.eval()
    net = mgt.convert(model, (inputs,))
    x = mg.input("x", tuple(inputs.shape), inputs.cpu().numpy().dtype)
    with torch.no_grad():
        expected = model(inputs)
    for kind, level in (("reference" if device == "cpu" else device, 0), (device, 3)):
        graph = mg.comp_graph(kind, {**OPTIONS, "graph_opt_level": level})
        assert_equal(torch.from_dlpack(graph.compile([x], net(x))(inputs)), expected)


@pytest.mark.parametrize("small", TRAINED, indirect=True)
def test_a_network_learns_what_it_learns_in_pytorch_and_goes_on_in_either(small):
    reference, batch, loss = small
    converted = copy.deepcopy(reference)
    theirs, ours = adam(reference), adam(converted)
    torch_step, step = eager(reference, loss, theirs), door(converted, loss, ours, batch)

    def learn():
        for _ in range(STEPS):
            assert_equal(step(*batch), torch_step(*batch))
        assert_equal(converted.state_dict(), reference.state_dict())
        assert_equal(ours.state_dict(), theirs.state_dict())

    learn()
    saved = copy.deepcopy([x.state_dict() for x in (converted, ours, reference, theirs)])
    for x, state in zip((reference, theirs, converted, ours), saved, strict=True):  # each other's
        x.load_state_dict(state)
    learn()
