"""Layers: torch's numbers, names and text; what a call changes; what goes wrong, and where."""

import copy
import math
import pickle

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.errors import DTypeError, GraphError, ShapeError

IMAGES = np.random.default_rng(0).standard_normal((4, 4, 9, 10), np.float32)


def compiled(inputs, outputs, updates=None):
    return mg.comp_graph("reference").compile(inputs, outputs, updates=updates)


def result(module, array=IMAGES):
    x = mg.input("x", array.shape, array.dtype)
    return compiled([x], module(x))(array)


def torch_result(torch, module, array=IMAGES):
    with torch.no_grad():
        return module(torch.from_numpy(array)).numpy()


def norms(width=4, **kwargs):
    return nn.Sequential(nn.BatchNorm2d(width, **kwargs), nn.BatchNorm2d(width, **kwargs))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)

    def forward(self, x):
        return ops.relu(self.bn1(self.conv1(x))) + x


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer1 = nn.Sequential(Block(width), Block(width))
        self.fc = nn.Linear(width, 3)

    def forward(self, x):
        return self.fc(self.layer1(x).mean((2, 3)))


# Like torch


def torch_and_ours(torch):
    """A network with every kind of layer that has state, made of each library's layers."""
    return [
        lib.Sequential(
            lib.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
            lib.BatchNorm2d(8),
            lib.ReLU(inplace=True),
            lib.Sequential(
                lib.Conv2d(8, 6, 3, bias=False), lib.BatchNorm2d(6, eps=1e-3, momentum=None)
            ),
            lib.LocalResponseNorm(3),
            lib.MaxPool2d(3, 2, 1),
            lib.AdaptiveAvgPool2d((2, 3)),
            lib.Dropout(0.0),
            lib.Hardswish(),
            lib.Flatten(),
            lib.Linear(36, 12),
            lib.LayerNorm(12),
            lib.Identity(),
            lib.Linear(12, 5, bias=False),
        )
        for lib in (torch.nn, nn)
    ]


def test_a_torch_state_dict_loads_and_gives_torchs_results_in_training_and_evaluation(torch):
    theirs, ours = torch_and_ours(torch)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    with torch.no_grad():
        for p in (*theirs.parameters(), *theirs.buffers()):
            if p.is_floating_point():
                p.uniform_(0.5, 1.5)
    ours.load_state_dict(theirs.state_dict())
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        expected = torch_result(torch, copy.deepcopy(theirs))
        np.testing.assert_allclose(result(ours), expected, rtol=2e-5, atol=2e-5)


def test_our_state_dict_loads_into_torch(torch):
    theirs, ours = torch_and_ours(torch)
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})


def test_modules_print_as_in_torch(torch):
    theirs, ours = torch_and_ours(torch)
    assert repr(ours) == repr(theirs)
    for name, args in (("AvgPool2d", [3]), ("Sequential", []), ("ReLU", []), ("Dropout", [0.1])):
        assert repr(getattr(nn, name)(*args)) == repr(getattr(torch.nn, name)(*args))


@pytest.mark.parametrize(
    "make",
    [
        lambda lib: lib.MaxPool2d(3, ceil_mode=True),
        lambda lib: lib.MaxPool2d((2, 3), (1, 2), (1, 0)),
        lambda lib: lib.AvgPool2d(3, 2, 1),
        lambda lib: lib.AvgPool2d(2, None, 1, True, False),
        lambda lib: lib.AdaptiveAvgPool2d(1),
        lambda lib: lib.AdaptiveAvgPool2d((None, 4)),
        lambda lib: lib.LocalResponseNorm(5, 1e-2, 0.5, 2.0),
        lambda lib: lib.LayerNorm((9, 10), 1e-3, False),
        lambda lib: lib.LayerNorm(10, bias=False),
        lambda lib: lib.Flatten(2),
        lambda lib: lib.Flatten(0, 1),
        lambda lib: lib.BatchNorm2d(4, affine=False),
        lambda lib: lib.BatchNorm2d(4, bias=False),
        lambda lib: lib.BatchNorm2d(4, track_running_stats=False).eval(),
        lambda lib: lib.Dropout().eval(),
        lambda lib: lib.Identity(1, two=3),
    ],
)
def test_layers_compute_what_torchs_do(torch, make):
    expected = torch_result(torch, make(torch.nn))
    np.testing.assert_allclose(result(make(nn)), expected, rtol=1e-5, atol=1e-6)


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


def test_a_seed_makes_initialisation_reproducible():
    made = []
    for seed in (7, 7, 8):
        nn.manual_seed(seed)
        made.append(nn.Linear(5, 5).weight.numpy())
    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


def test_kaiming_normal_scales_by_the_fan_that_was_asked_for():
    p = nn.Conv2d(20, 40, 5).weight
    for mode, fan in (("fan_in", 20 * 25), ("fan_out", 40 * 25)):
        nn.init.kaiming_normal_(p, mode=mode, nonlinearity="relu")
        assert p.numpy().std() == pytest.approx(math.sqrt(2 / fan), rel=0.03)
    with pytest.raises(GraphError, match='mode is \'out\'; it takes "fan_in" or "fan_out"'):
        nn.init.kaiming_normal_(p, mode="out")
    with pytest.raises(ShapeError, match="weights are"):
        nn.init.kaiming_normal_(nn.Linear(2, 2).bias)


def test_layers_are_made_in_other_dtypes_on_request():
    for layer in (nn.Linear(2, 3, dtype="float64"), nn.LayerNorm(3, dtype="float64")):
        assert {p.dtype for p in layer.parameters()} == {np.dtype("float64")}
    assert nn.BatchNorm2d(2, dtype="bfloat16").running_var.dtype == "bfloat16"


# What a call changes besides its result


def test_evaluation_and_batch_norms_without_statistics_change_nothing():
    x = mg.input("x", IMAGES.shape)
    net = Net()
    net.eval()(x)
    assert net.updates() == {}
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    layer(x)
    assert layer.updates() == {}
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_a_call_in_evaluation_leaves_the_updates_of_the_training_call_before():
    x = mg.input("x", IMAGES.shape)
    net = norms()
    net(x)
    net.eval()(x)
    assert set(net.updates()) == set(net.buffers())


def test_several_calls_of_one_graph_count_one_after_the_other(torch):
    theirs, ours = torch.nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    x = mg.input("x", IMAGES.shape)
    ours(x)
    ours(x * 2 + 1)
    compiled([x], [], ours.updates())(IMAGES)
    theirs(torch.from_numpy(IMAGES))
    theirs(torch.from_numpy(IMAGES * 2 + 1))
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-6, err_msg=name)


def test_asked_again_updates_are_the_same_so_that_a_graph_can_be_compiled_at_each_level():
    net = Net()
    net(mg.input("x", IMAGES.shape))
    first, again = net.updates(), net.updates()
    assert len(first) == 6
    assert list(first) == list(again)
    assert all(first[p] is again[p] for p in first)


def test_the_first_call_after_updates_begins_a_new_graph():
    net = Net()
    graphs = []
    for batch in (4, 2):
        x = mg.input("x", (batch, *IMAGES.shape[1:]))
        graphs.append(compiled([x], net(x), net.updates()))  # would lack an input if they mixed
    for batch, step in zip((4, 2), graphs, strict=True):
        step(IMAGES[:batch])
    assert net.layer1[0].bn1.num_batches_tracked.numpy() == 2
    net.eval()(x)
    assert net.updates() == {}


def test_parts_that_the_new_graph_does_not_call_have_no_updates_in_it():
    x = mg.input("x", IMAGES.shape)
    net = norms()
    net(x)
    net.updates()
    net[1](x)
    assert set(net.updates()) == set(net[1].buffers())


def test_asking_a_part_for_its_updates_takes_nothing_from_the_whole():
    net = norms()
    net(mg.input("x", IMAGES.shape))
    assert set(net[0].updates()) == set(net[0].buffers())
    assert set(net.updates()) == set(net.buffers())


def test_a_call_that_raises_changes_nothing():
    net = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 9 * 10, 2))
    good, bad = (mg.input("x", (2, 4, 9, width)) for width in (10, 11))
    y = net(good)
    first = net.updates()
    for _ in range(2):
        with pytest.raises(ShapeError):
            net(bad)
        again = net.updates()
        assert all(first[p] is again[p] for p in first)
    y = net(good)
    with pytest.raises(ShapeError):
        net(bad)
    compiled([good], y, net.updates())(IMAGES[:2])
    assert net[0].num_batches_tracked.numpy() == 1


def test_users_modules_record_what_a_call_changes():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = nn.Buffer(np.float32(0))

        def forward(self, x):
            self.update(self.calls, self.updated(self.calls) + 1)
            return x

    counter = Counter()
    x = mg.input("x", ())
    y = counter(counter(x))
    compiled([x], y, counter.updates())(0.0)
    assert counter.calls.numpy() == 2


def test_parameters_and_buffers_are_made_by_the_names_that_torch_has():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(np.ones(3, "float32"))
            self.seen = nn.Buffer(np.int64(0))

    net = Scaled()
    assert [(name, type(p)) for name, p in net.named_parameters()] == [("scale", mg.Parameter)]
    assert list(net.state_dict()) == ["scale", "seen"]


def test_dropout_obeys_training():
    layer = nn.Dropout(0.5)
    values = result(layer, np.ones((100, 100), np.float32))
    assert set(np.unique(values)) == {0.0, 2.0}
    assert abs(values.mean() - 1) < 0.1
    assert np.array_equal(result(layer.eval()), IMAGES)


def test_train_and_eval_reach_every_module_and_return_the_module():
    net = Net()
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    assert net.train() is net
    assert all(m.training for m in net.modules())


# Parts and their names


def test_parts_are_listed_as_in_torch():
    net = Net()
    assert [name for name, _ in net.named_children()] == ["layer1", "fc"]
    for found, expected in (
        (net.layer1.named_modules(), " 0 0.conv1 0.bn1 1 1.conv1 1.bn1"),
        (net.layer1[0].named_parameters(), "conv1.weight bn1.weight bn1.bias"),
        (
            net.layer1[0].named_buffers(),
            "bn1.running_mean bn1.running_var bn1.num_batches_tracked",
        ),
    ):
        assert " ".join(name for name, _ in found) == expected
    assert [*map(id, net.parameters())] == [id(p) for _, p in net.named_parameters()]
    assert not any(p.trainable for p in net.buffers())


def test_a_parameter_that_is_not_trainable_is_still_a_parameter():
    layer = nn.Linear(2, 2)
    layer.weight.trainable = False
    assert list(dict(layer.named_parameters())) == ["weight", "bias"]


def test_parameters_get_the_full_path_as_their_name():
    net = Net()
    assert all(p.name == name for name, p in (*net.named_parameters(), *net.named_buffers()))


def test_a_name_that_the_user_gave_stays():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = mg.Parameter(np.float32(1), name="gain")

    assert nn.Sequential(Own())[0].scale.name == "gain"


def test_a_shared_part_is_listed_once_but_saved_under_each_name():
    layer = nn.Linear(3, 3, bias=False)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    assert next(net.parameters()) is layer.weight
    assert len(list(net.parameters())) == 1
    assert len(list(net.children())) == 2
    assert list(net.state_dict()) == ["0.weight", "2.weight"]
    assert result(net, np.ones((1, 3), np.float32)).shape == (1, 3)


def test_an_attribute_can_be_replaced_and_deleted():
    net = Net()
    net.fc = nn.Identity()
    del net.layer1
    assert list(net.state_dict()) == []
    assert [name for name, _ in net.named_children()] == ["fc"]


def test_a_sequential_takes_names_and_is_indexed_as_a_list():
    net = nn.Sequential({"conv": nn.Conv2d(1, 1, 1), "act": nn.ReLU()})
    assert list(net.state_dict()) == ["conv.weight", "conv.bias"]
    assert net[-1] is net.act
    assert len(net) == 2
    assert list(net[:1]) == [net.conv]
    with pytest.raises(GraphError, match="takes modules, not function"):
        nn.Sequential(nn.ReLU(), ops.relu)


def test_a_copy_shares_nothing_with_its_original():
    net = Net()
    x = mg.input("x", IMAGES.shape)
    net(x)
    other = copy.deepcopy(net)
    other.fc.weight.assign(np.zeros((3, 4)))
    assert net.fc.weight.numpy().any()
    assert other.updates() == {}
    assert result(other.eval()).shape == (4, 3)


def test_a_pickled_net_and_its_optimizer_go_on_together():
    net = nn.Linear(3, 2)
    adam = optim.Adam(net.parameters())
    x = mg.input("x", (4, 3))
    mg.comp_graph("reference").compile([x], [], adam.minimize(net(x).sum()))(np.ones((4, 3)))
    other, descent = pickle.loads(pickle.dumps((net, adam)))
    step = mg.comp_graph("reference").compile(
        [x], net(x) - other(x), descent.minimize(other(x).sum())
    )
    first, second = (step(np.ones((4, 3))) for _ in range(2))
    assert not first.any() and second.all()


# State dicts


def test_a_state_dict_holds_copies():
    layer = nn.Linear(2, 2)
    before = layer.state_dict()
    before["weight"][:] = 7
    assert not (layer.weight.numpy() == 7).any()


def test_loading_casts_and_takes_tensors_that_want_gradients_and_bfloat16(torch):
    layer = nn.Linear(2, 1)
    weight = torch.nn.Parameter(torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16))
    layer.load_state_dict({"weight": weight, "bias": np.array([3.0])})
    assert layer.weight.numpy().tolist() == [[1.5, 2.5]]
    assert layer.bias.numpy().tolist() == [3.0]
    assert layer.bias.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"0.bias": None}, GraphError, "missing 0.bias$"),
        ({"2.weight": np.ones(1)}, GraphError, "unexpected 2.weight$"),
        ({"0.bias": np.ones((3, 1))}, ShapeError, r"0.bias has shape \(3, 1\), not \(3,\)$"),
        ({"0.bias": np.ones(3, complex)}, DTypeError, "0.bias: .*complex128"),
        ({"1.num_batches_tracked": np.array(1.5)}, DTypeError, "float64 does not cast to int64"),
        ({"0.bias": np.ones(4), "x": 1}, GraphError, "unexpected x; 0.bias has shape"),
        ({"0.bias": "text"}, DTypeError, "0.bias: "),
    ],
)
def test_a_state_that_does_not_fit_is_one_line_and_assigns_nothing(change, error, text):
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3))
    before = net.state_dict()
    state = {name: value + 1 for name, value in before.items()} | change
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(error, match=f"^Sequential.load_state_dict: .*{text}") as caught:
        net.load_state_dict(state)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert all(np.array_equal(before[name], value) for name, value in net.state_dict().items())


def test_loading_that_is_not_strict_takes_what_fits_and_returns_the_rest():
    layer = nn.Linear(2, 1)
    left = layer.load_state_dict({"bias": np.ones(1), "gamma": np.ones(1)}, strict=False)
    assert left.missing_keys == ["weight"]
    assert left.unexpected_keys == ["gamma"]
    assert layer.bias.numpy() == 1
    with pytest.raises(ShapeError, match="bias has shape"):
        layer.load_state_dict({"bias": np.ones(2)}, strict=False)
    with pytest.raises(GraphError, match="a mapping of names to arrays, not str"):
        layer.load_state_dict("file")


# Errors


def test_errors_name_the_path_of_the_layer_and_the_users_line():
    with pytest.raises(ShapeError, match=r"3 channels.* in layer layer1\.0\.conv1, at .*test_nn"):
        Net()(mg.input("x", (2, 3, 8, 8)))


def test_errors_of_layers_themselves_name_the_path_and_the_operands():
    net = nn.Sequential({"first": nn.Sequential({"norm": nn.BatchNorm2d(4)})})
    with pytest.raises(ShapeError, match=r"BatchNorm2d: .*x: float32\[2,4\].*layer first\.norm,"):
        net(mg.input("x", (2, 4)))
    with pytest.raises(ShapeError, match=r"more than one value per channel.*layer first\.norm,"):
        net(mg.input("x", (1, 4, 1, 1)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Conv2d(4, 6, 3, groups=4), "4 input and 6 output channels"),
        (lambda: nn.Conv2d(4, 6, 0), "Conv2d: kernel_size is 0; it takes an integer from 1"),
        (lambda: nn.Linear(-1, 2), "Linear: in_features is -1; it takes an integer >= 0"),
        (lambda: nn.Linear(2.5, 2), r"Linear: in_features is 2\.5"),
        (lambda: nn.BatchNorm2d(-1), "BatchNorm2d: num_features is -1"),
        (lambda: nn.Dropout(1.5), r"Dropout: p is 1\.5; it takes a probability"),
        (lambda: nn.MaxPool2d(2, dilation=2), "dilation other than 1"),
        (lambda: nn.Linear(2, 2, dtype="int32"), "weights are floats, not int32"),
        (lambda: nn.manual_seed(-1), "manual_seed: seed is -1; it takes an integer >= 0"),
        (lambda: nn.Flatten(2, 1)(mg.input("x", (1, 2, 3))), "comes after"),
    ],
)
def test_bad_arguments_are_graph_errors(make, text):
    with pytest.raises(GraphError, match=text):
        make()


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty defines no forward"):
        Empty()(mg.input("x", ()))


# Modules in modules


def test_a_module_that_would_contain_itself_is_refused():
    inner = nn.Sequential(nn.ReLU())
    outer = nn.Sequential(inner)
    for module in (inner, outer):
        with pytest.raises(GraphError, match="Sequential: again would contain itself"):
            inner.again = module
    assert [type(m) for m in outer.modules()] == [nn.Sequential, nn.Sequential, nn.ReLU]


def nested_from_above(depth):
    top = last = nn.Sequential()
    for _ in range(depth):
        last.inner = nn.Sequential()
        last = last.inner
    return top


@pytest.mark.parametrize(
    "use",
    [
        repr,
        copy.deepcopy,
        pickle.dumps,
        lambda net: net(mg.input("x", (2,))),
        lambda net: net.train(),
        lambda net: net.state_dict(),
        lambda net: nn.Sequential(net),
        lambda net: list(net.parameters()),
    ],
)
def test_modules_that_are_nested_too_deep_are_one_error(use):
    use(nested_from_above(90))
    for depth in (101, 5000):
        with pytest.raises(GraphError, match="nested more than 100 deep"):
            use(nested_from_above(depth))


def test_a_pickled_network_and_its_optimizer_go_on_as_the_originals_do():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    adam = optim.Adam(net.parameters(), lr=0.1)

    def stepping(net, adam):
        x = mg.input("x", (5, 3))
        loss = (net(x) ** 2).mean()
        updates = {**adam.minimize(loss), **net.updates()}
        return mg.comp_graph("reference").compile([x], loss, updates)

    x = np.random.default_rng(0).normal(size=(5, 3))
    step = stepping(net, adam)
    step(x)  # from now on a function uses the parameters
    again, other = pickle.loads(pickle.dumps((net, adam)))
    repeated = stepping(again, other)
    assert [step(x) for _ in range(2)] == [repeated(x) for _ in range(2)]
    step(x)
    assert (again[0].weight.numpy() != net[0].weight.numpy()).any()
    assert [p.name for p in again.parameters()] == [p.name for p in net.parameters()]


def test_modules_wrapped_too_often_are_one_error():
    net = nn.ReLU()
    with pytest.raises(GraphError, match="nested more than 100 deep"):
        for _ in range(5000):
            net = nn.Sequential(net)


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


def test_modules_are_found_applied_to_frozen_and_given_buffers_as_in_torch():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    assert net.get_submodule("1.1") is net[1][1]
    assert net.get_submodule("") is net
    with pytest.raises(GraphError, match="Sequential has no module at"):
        net.get_submodule("1.2")
    seen = []
    assert net.apply(seen.append) is net
    assert seen == [net[0], net[1][0], net[1][1], net[1], net]
    assert net[1].requires_grad_(False) is net[1]
    assert [p.trainable for p in net.parameters()] == [True, True, False, False]
    net.register_buffer("mean", np.ones(2, "float32"))
    net.register_buffer("absent", None)
    assert dict(net.named_buffers()) == {"mean": net.mean}
    assert net.absent is None
