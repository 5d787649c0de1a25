"""A converted model: its memory, what it takes and gives, its modes and errors."""

import copy
import pickle
import runpy
import sys

import numpy as np
import pytest

import minigraph as mg
from minigraph import optim
from minigraph.data import DataLoader, Synthetic
from minigraph.training import evaluate

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
from torch import nn  # noqa: E402


class Model(nn.Module):
    """A model with arguments of all kinds and state of all kinds."""

    def __init__(self):
        super().__init__()
        self.update = nn.Linear(3, 2)  # a method of minigraph's modules has this name
        self.tied = nn.Linear(3, 2)
        self.tied.weight = self.update.weight
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)
        self.offset = torch.full((2,), 0.5)

    def forward(self, x, rest, *, mask=None, twice=False):
        y = self.norm(self.update(x)) * self.scale + self.offset
        y = y * 2 if twice else y
        return {"y": y.masked_fill(mask, 0.0), "others": (rest["z"] - self.tied(x), None, 7)}


def arguments(n=4):
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(n, k + 1, generator=generator)[:, 1:] for k in (3, 2))  # which are views
    return (x, {"z": z}), {"mask": z > 0, "twice": True}


def inputs_of(call):
    """Return the call with inputs of any number of rows in place of tensors, and the tensors."""
    inputs, arrays = [], []

    def replaced(x):
        if not isinstance(x, torch.Tensor):
            return x
        arrays.append(x.numpy())
        shape = (None, *x.shape[1:])
        inputs.append(mg.input(f"x{len(inputs)}", shape, x.numpy().dtype))
        return inputs[-1]

    return torch.utils._pytree.tree_map(replaced, call), inputs, arrays


@pytest.fixture
def model():
    return Model()


@pytest.mark.parametrize("training", [False, True])
def test_arguments_and_results_are_nested_as_the_models_and_rows_are_any(model, training):
    net = mgt.convert(model.train(training), *arguments(), dynamic=True)
    reference = copy.deepcopy(model)
    (args, kwargs), inputs, _ = inputs_of(arguments())
    kwargs = dict(reversed(kwargs.items()))  # in another order than in the example
    result = net(*args, **kwargs)
    assert result["others"][1:] == (None, 7)
    f = mg.comp_graph().compile(inputs, [result["y"], result["others"][0]], net.updates())
    for n in (4, 9, 2) if training else (4, 9, 1):
        args, kwargs = arguments(n)
        with torch.no_grad():
            expected = reference(*args, **kwargs)
        actual = f(*inputs_of((args, kwargs))[2])
        tensors = expected["y"], expected["others"][0]
        for y, want in zip(actual, tensors, strict=True):
            np.testing.assert_allclose(y, want.numpy(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_a_step_trains_the_model_itself(model):
    reference = copy.deepcopy(model)
    args, kwargs = arguments()
    net = mgt.convert(model, args, kwargs)
    nodes = [mg.input(f"x{i}", tuple(x.shape)) for i, x in enumerate((args[0], args[1]["z"]))]
    loss = net(nodes[0], {"z": nodes[1]}, mask=kwargs["mask"].numpy(), twice=True)["y"].sum()
    updates = optim.SGD(net.parameters(), 0.1).minimize(loss) | net.updates()
    mg.comp_graph().compile(nodes, loss, updates)(args[0].numpy(), args[1]["z"].numpy())
    sgd = torch.optim.SGD(reference.parameters(), 0.1)
    reference(*args, **kwargs)["y"].sum().backward()
    sgd.step()
    assert model.norm.num_batches_tracked == 1
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_names_and_values_are_those_of_the_models_state_dict(model, tmp_path):
    model.update.bias.requires_grad_(False)
    net = mgt.convert(model, *arguments())
    theirs = model.state_dict()
    assert list(net.state_dict()) == list(theirs)
    assert [name for name, _ in net.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert [p.name for p in net.parameters() if not p.trainable] == ["update.bias"]
    with torch.no_grad():
        model.norm.weight.fill_(5.0)
    np.testing.assert_array_equal(net.state_dict()["norm.weight"], [5.0, 5.0])
    mg.save(tmp_path / "net", net.state_dict())
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(mg.GraphError, match=r"convert a copy of the model, or save state_dict"):
            copied(net)
    net.load_state_dict({name: 0 * value for name, value in theirs.items()})
    assert not model.update.weight.any() and not model.tied.weight.any()
    saved = mg.load(tmp_path / "net")
    model.load_state_dict({name: torch.from_numpy(value) for name, value in saved.items()})
    assert net.state_dict()["norm.weight"][0] == 5


def test_tensors_of_no_module_are_as_they_are_when_a_function_is_called():
    offset = torch.zeros(2)

    class Shifted(nn.Module):
        def forward(self, x):
            return x + offset

    x = mg.input("x", (2,))
    f = mg.comp_graph("reference").compile([x], mgt.convert(Shifted(), (torch.zeros(2),))(x))
    offset.fill_(3.0)
    np.testing.assert_array_equal(f(np.zeros(2)), [3.0, 3.0])


def test_a_model_keeps_the_mode_in_which_it_was_converted(model):
    net = mgt.convert(model, *arguments())
    assert net.training and net.train() is net
    with pytest.raises(mg.GraphError, match=r"was in training; convert it again after model\.eva"):
        net.eval()
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval()
    predicting = mgt.convert(classifier, (torch.zeros(2, 3, 2, 2),), dynamic=True)
    loader = DataLoader(Synthetic((3, 2, 2), 2, 20), batch_size=16)
    assert 0 <= evaluate(predicting, loader)["accuracy"] <= 1


def test_channels_last_weights_move_and_stay_the_same(model):
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weight, before = conv.weight, conv.weight.detach().clone()
    net = mgt.convert(conv, (torch.zeros(1, 3, 5, 5),))
    assert conv.weight is weight and weight.is_contiguous() and (weight == before).all()
    np.testing.assert_array_equal(net.state_dict()["weight"], before.numpy())


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = nn.Sequential(nn.Identity(), Decomposing())

    def forward(self, x):
        return self.deep(x) + torch.special.bessel_j0(x).sum()


class Decomposing(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[0] + torch.linalg.svd(x + 1)[0]


@pytest.mark.parametrize(
    ("make", "example", "words"),
    [
        (Model, torch.zeros(4, 3), r"convert\(Model\): the example is a tuple of the model's argu"),
        (Unknown, (torch.ones(3, 3),), r"svd.*2 in layer deep\.1, at .*test_convert.*bessel"),
    ],
)
def test_a_model_that_cannot_be_converted_is_an_error(make, example, words):
    with pytest.raises(mg.GraphError, match=words) as raised:
        mgt.convert(make(), example)
    assert "\n" not in str(raised.value)


def test_one_row_says_nothing_of_others():
    with pytest.raises(mg.ShapeError, match="needs an example batch of two"):
        mgt.convert(nn.Linear(3, 2), (torch.zeros(1, 3),), dynamic=True)


def test_a_pytorch_that_is_too_old_is_an_error_at_import(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    words = r"minigraph\.torch needs PyTorch 2\.6 or newer, and 2\.5\.1\+cpu is installed"
    with pytest.raises(ImportError, match=words):
        runpy.run_path(mgt.__file__)


def test_a_pytorch_that_is_newer_than_those_tested_is_a_warning(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "99.1.0")
    with pytest.warns(
        mg.MinigraphWarning, match=r"PyTorch 99\.1\.0 is newer than 2\.\d+, the newest"
    ):
        runpy.run_path(mgt.__file__)


def test_a_pytorch_too_new_to_work_says_which_was_tested(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "99.1.0")
    monkeypatch.setitem(sys.modules, "minigraph.torch.training", None)
    words = r"does not work with PyTorch 99\.1\.0 \(.*\); 2\.\d+ is the newest that it was tested"
    with pytest.raises(ImportError, match=words):
        runpy.run_path(mgt.__file__)
