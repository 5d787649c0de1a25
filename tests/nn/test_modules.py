"""Modules: their parts and names, their state, and modules in modules.

Errors of states, which name at most ten parameters, are in `tests/wrong_calls/states.txt`, too.
"""

import copy
import pickle
import re

import numpy as np
import pytest
from small_nets import IMAGES, Net, result

import minigraph as mg
from minigraph import nn, optim
from minigraph.errors import GraphError

# Parts and their names


def test_parts_are_listed_as_in_torch():
    net = Net()
    assert [name for name, _ in net.named_children()] == ["layer1", "fc"]
    for listed, expected in (
        (net.layer1.named_modules(), " 0 0.conv1 0.bn1 1 1.conv1 1.bn1"),
        (net.layer1[0].named_parameters(), "conv1.weight bn1.weight bn1.bias"),
        (net.layer1[0].named_buffers(), "bn1.running_mean bn1.running_var bn1.num_batches_tracked"),
    ):
        assert " ".join(name for name, _ in listed) == expected
    assert [*map(id, net.parameters())] == [id(p) for _, p in net.named_parameters()]
    assert not any(p.trainable for p in net.buffers())


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


def test_a_copy_shares_nothing_with_its_original():
    net = Net()
    x = mg.input("x", IMAGES.shape)
    net(x)
    other = copy.deepcopy(net)
    other.fc.weight.assign(np.zeros((3, 4)))
    assert net.fc.weight.numpy().any()
    assert other.updates() == {}
    assert result(other.eval()).shape == (4, 3)


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


@pytest.mark.parametrize("change", [{"2.weight": np.ones(1)}, {"1.bias": np.ones(3, complex)}])
def test_a_state_that_does_not_fit_assigns_nothing(change):
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3))
    before = net.state_dict()
    with pytest.raises(GraphError, match=r"^Sequential\.load_state_dict: "):
        net.load_state_dict({name: value + 1 for name, value in before.items()} | change)
    assert all(np.array_equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("strict", [True, False])
def test_the_count_of_batches_may_be_missing_and_stays(strict):
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3))
    net[1].num_batches_tracked.assign(5)
    state = {name: x + 1 for name, x in net.state_dict().items() if "tracked" not in name}
    assert net.load_state_dict(state, strict) == ([], [])
    assert net[1].num_batches_tracked.numpy() == 5
    np.testing.assert_array_equal(net[1].weight.numpy(), state["1.weight"])
    counted = {**state, "1.num_batches_tracked": 7}
    assert net.load_state_dict(counted, strict) == ([], [])
    assert net[1].num_batches_tracked.numpy() == 7


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.net."])
def test_names_that_all_begin_alike_are_one_line_that_says_how_to_load_them(prefix):
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(100)])
    state = {prefix + name: x + 1 for name, x in net.state_dict().items()}
    text = f"all names begin with {prefix!r}; without it they would match: "
    with pytest.raises(GraphError, match=re.escape(text)) as caught:
        net.load_state_dict(state)
    assert len(str(caught.value)) < 250
    remedy = str(caught.value).partition(text)[2]
    net.load_state_dict(eval(remedy, {"state": state}))
    assert (net[99].bias.numpy() == state[f"{prefix}99.bias"]).all()


def test_loading_that_is_not_strict_takes_what_fits_and_returns_the_rest():
    layer = nn.Linear(2, 1)
    left = layer.load_state_dict({"bias": np.ones(1), "gamma": np.ones(1)}, strict=False)
    assert left.missing_keys == ["weight"]
    assert left.unexpected_keys == ["gamma"]
    assert layer.bias.numpy() == 1


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


def test_modules_are_found_applied_to_frozen_and_given_buffers_as_in_torch():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 1)))
    assert net.get_submodule("1.1") is net[1][1]
    assert net.get_submodule("") is net

    seen = []
    assert net.apply(seen.append) is net
    assert seen == [net[0], net[1][0], net[1][1], net[1], net]
    assert net[1].requires_grad_(False) is net[1]
    assert [p.trainable for p in net.parameters()] == [True, True, False, False]
    net.register_buffer("mean", np.ones(2, "float32"))
    net.register_buffer("absent", None)
    assert dict(net.named_buffers()) == {"mean": net.mean}
    assert net.absent is None


def test_layers_may_share_a_parameter_and_an_attribute_stays_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5)
            self.head.weight = self.table.weight

    net = Tied()
    assert net.head.weight is net.table.weight
    assert [name for name, _ in net.named_parameters()] == ["table.weight", "head.bias"]
    net.head.weight = nn.Parameter(np.ones((5, 3), "float32"))
    assert net.head.weight.name == "weight"
    net.head.bias = None
    x = mg.input("x", (5, 3))
    for value in (np.ones((5, 3), "float32"), x, nn.ReLU()):
        with pytest.raises(mg.GraphError, match=r"Linear\.weight is a parameter .*assign\(value\)"):
            net.head.weight = value
    assert isinstance(net.head.weight, nn.Parameter)
