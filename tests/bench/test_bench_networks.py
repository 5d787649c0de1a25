"""The networks of the benchmark and their data."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn
from minigraph.bench import networks, ours
from minigraph.bench.cases import NAMES, NETWORKS, case, first_value

ROOT = Path(__file__).parents[2]


SIZES = {
    "alexnet": 61_100_840,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenetv2": 3_504_872,  # as torchvision says
    "resnet20": 272_474,
    "unet": 1_927_108,
    "gpt": 826_112,
    "lstm": 1_101_920,
}
EXAMPLES = {"alexnet": "AlexNet", "resnet18": "resnet18", "resnet50": "resnet50", "gpt": "GPT"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_networks_are_those_of_the_examples(name):
    folder = {"alexnet": "alexnet", "gpt": "gpt"}.get(name, "resnet")
    path = ROOT / "examples" / folder / "model.py"
    spec = importlib.util.spec_from_file_location(f"example_{folder}", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    make = getattr(example, EXAMPLES[name])
    net = make(networks.VOCABULARY) if name == "gpt" else make()
    network = NETWORKS[name].network(ours.LIBRARY)
    shapes = [sorted(p.shape for p in each.parameters()) for each in (net, network)]
    assert shapes[0] == shapes[1]
    subject = case(name, batch_size=2)
    x = mg.input("x", (2, *subject.shape), subject.data()[0][0].dtype)
    scores = net(x).swapaxes(1, 2).reshape(2 * 64, -1) if name == "gpt" else net(x)
    assert network(x).shape == scores.shape


@pytest.mark.parametrize("name", SIZES)
def test_the_parameters_are_those_of_the_network_and_the_labels_fit_the_scores(name):
    subject = case(name, batch_size=2)
    net = subject.network(ours.LIBRARY)
    count = sum(p.size for p in net.parameters() if p.trainable)
    assert count == SIZES[name]
    for examples, labels in subject.data():
        scores = net(mg.input("x", examples.shape, examples.dtype))
        assert scores.shape[1] == subject.spec.classes
        assert labels.shape == scores.shape[:1] + scores.shape[2:]
        assert set(np.unique(labels)) <= set(range(subject.spec.classes))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["mobilenetv2", "resnet20", "unet", "gpt", "lstm"])
def test_a_network_is_the_same_in_pytorch(name, torch):
    torch_peer = importlib.import_module("minigraph.bench.torch_peer")
    subject = case(name, batch_size=2, quick=True)
    nets = [subject.network(lib) for lib in (ours.LIBRARY, torch_peer.LIBRARY)]
    state = {n: first_value(n, tuple(p.shape)) for n, p in nets[1].named_parameters()}
    assert {n: p.shape for n, p in nets[0].named_parameters()} == {
        n: value.shape for n, value in state.items()
    }
    nets[0].load_state_dict({**nets[0].state_dict(), **state})
    nets[1].load_state_dict({n: torch.from_numpy(v) for n, v in state.items()}, strict=False)
    value = subject.data()[0][0]
    x = mg.input("x", value.shape, value.dtype)
    result = mg.comp_graph("reference").compile([x], nets[0].eval()(x))(value)
    with torch.no_grad():
        want = nets[1].eval()(torch.from_numpy(value)).numpy()
    np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-3 * abs(want).max())


@pytest.mark.parametrize("name", NAMES)
def test_data_are_numbers_and_none_of_them_is_the_same_for_long(name):
    subject = case(name, batch_size=2, quick=True)
    for part in subject.data():
        images = part[0] if isinstance(part, tuple) else part
        assert abs(images.flat[:1000]).min() > 0 and images.flat[:1000].std() > 0.1


def test_first_values_follow_from_name_and_shape():
    weight = first_value("0.weight", (64, 3, 11, 11))
    assert (weight == first_value("0.weight", (64, 3, 11, 11))).all()
    assert (weight != first_value("3.weight", (64, 3, 11, 11))).any()
    assert weight.std() == pytest.approx((3 * 3 * 11 * 11) ** -0.5, rel=0.05)
    assert set(first_value("1.weight", (5,))) == {1} and not first_value("1.bias", (5,)).any()


def test_dropout_is_left_out_of_the_losses():
    net = networks.alexnet(networks.without_dropout(ours.LIBRARY))
    dropped = [layer.p for layer in net.modules() if isinstance(layer, nn.Dropout)]
    assert dropped == [0, 0]
