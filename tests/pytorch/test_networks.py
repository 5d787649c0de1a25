"""Networks of PyTorch give and learn here what they give and learn there."""

import copy
import functools

import pytest
from long_runs import long

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
from torch_networks import SMALL  # noqa: E402
from trained_pair import Pair  # noqa: E402

STEPS = 10
OPTIONS = {"autotune": "off", "num_threads": 1}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    return request.param


# A short run predicts with every fifth network, and trains every fifth.
PREDICTED, TRAINED = (
    [name if i % 5 == first else long(name) for i, name in enumerate(SMALL)] for first in (1, 0)
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


# Adam divides gradients by their size, plus `eps`: this one leaves at rest what has no gradient but
# rounding errors, such as biases before a batch norm.
adam = functools.partial(torch.optim.Adam, lr=1e-3, eps=1e-5)


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
        results = torch.from_dlpack(graph.compile([x], net(x))(inputs))
        torch.testing.assert_close(results, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("small", TRAINED, indirect=True)
def test_a_network_learns_what_it_learns_in_pytorch_and_goes_on_in_either(small):
    model, batch, loss = small
    pair = Pair(adam, model, lambda: batch, loss, options=OPTIONS)
    pair.train(STEPS)
    pair.same()
    others = *reversed(pair.both), *reversed(pair.optimizers)
    states = copy.deepcopy([x.state_dict() for x in others])
    for x, state in zip((*pair.both, *pair.optimizers), states, strict=True):
        x.load_state_dict(state)
    pair.train(STEPS)
    pair.same()
