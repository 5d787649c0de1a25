"""Modules in lists and dicts: torch's interface, names and text; plain ones are warned of."""

import inspect
import warnings

import pytest

import minigraph as mg
from minigraph import nn
from minigraph.errors import GraphError


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())


def layers(lib, count=3):
    return [lib.Linear(2 + i, 2) for i in range(count)]


class Holder(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.parts = value


CHANGES = [
    lambda lib, x: x,
    lambda lib, x: x.append(lib.ReLU()),
    lambda lib, x: x.extend([lib.ReLU(), lib.Tanh()]),
    lambda lib, x: x.insert(1, lib.ReLU()),
    lambda lib, x: x.pop(0),
    lambda lib, x: x.pop(-1),
    lambda lib, x: x.__setitem__(-1, lib.Linear(7, 7)),
    lambda lib, x: x.__delitem__(0),
    lambda lib, x: x.__delitem__(slice(0, 2)),
    lambda lib, x: x[1:].append(lib.ReLU()),
]


def outcome(lib, make, change):
    x = make(lib)
    change(lib, x)
    state = {k: tuple(v.shape) for k, v in x.state_dict().items()}
    return repr(x), state, len(x), [type(m).__name__ for m in x]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "make", [lambda lib: lib.ModuleList(layers(lib)), lambda lib: lib.Sequential(*layers(lib))]
)
def test_lists_of_modules_change_as_torchs(make, change, torch):
    assert outcome(nn, make, change) == outcome(torch.nn, make, change)


def test_lists_of_modules_are_indexed_sliced_and_added_as_torchs(torch):
    texts = []
    for lib in (torch.nn, nn):
        x = lib.ModuleList([*layers(lib), lib.Linear(4, 2), lib.ReLU()])
        assert x[-1] is x[4]
        assert x[1] in x
        assert lib.ReLU() not in x
        with pytest.raises(IndexError):
            x[5]
        texts.append(list(map(repr, (x, x[1:], x[::2], x + [lib.ReLU()], lib.ModuleList()))))
    assert texts[0] == texts[1]
    with pytest.raises(NotImplementedError):
        nn.ModuleList()(mg.input("x", (1,)))


def test_any_list_of_modules_takes_others_and_inserts_from_its_end():
    for x in (nn.Sequential(*layers(nn)), nn.ModuleList(layers(nn))):
        x += [nn.ReLU()]
        x.insert(-1, nn.Tanh())
        kinds = [type(m) for m in x]
        assert kinds == [nn.Linear] * 3 + [nn.Tanh, nn.ReLU]
        assert list(x.state_dict()) == [f"{i}.{p}" for i in range(3) for p in ("weight", "bias")]


@pytest.mark.parametrize("wrong", [5, nn.ReLU, None], ids=["number", "class", "itself"])
def test_a_module_that_cannot_be_inserted_leaves_the_list_as_it_was(wrong):
    for x in (nn.Sequential(*layers(nn)), nn.ModuleList(layers(nn))):
        modules, names = list(x), [p.name for p in x.parameters()]
        with pytest.raises(GraphError):
            x.insert(0, x if wrong is None else wrong)
        assert list(x) == modules
        assert [p.name for p in x.parameters()] == names


def test_equal_modules_in_a_list_are_shown_once_as_in_torch(torch):
    texts = [
        repr(
            lib.ModuleList(
                lib.Sequential(lib.Linear(2, n, bias=n < 4), lib.ReLU()) for n in (2, 2, 4, 2)
            )
        )
        for lib in (torch.nn, nn)
    ]
    assert texts[0] == texts[1]


def test_a_slice_appended_to_keeps_what_it_held():
    part = nn.Sequential(nn.ReLU(), nn.Tanh())[1:]
    assert [type(m) for m in part.append(nn.ReLU())] == [nn.Tanh, nn.ReLU]


def test_dicts_of_modules_are_torchs(torch):
    names = []
    for lib in (torch.nn, nn):
        x = lib.ModuleDict({"a": lib.Linear(2, 3), "b": lib.ReLU()})
        x["c"] = lib.Linear(3, 1)
        x.update([("d", lib.Tanh())])
        x.update(lib.ModuleDict({"b": lib.Linear(5, 5)}))
        assert x.pop("a").bias is not None
        del x["d"]
        assert "b" in x
        assert "a" not in x
        for gone in ("a", "nothing"):
            with pytest.raises(KeyError):
                x[gone]
            with pytest.raises(KeyError):
                del x[gone]
        texts = (repr(x), list(x), list(x.keys()), list(map(repr, x.values())))
        names.append((texts, len(x), list(x.state_dict()), [(k, repr(v)) for k, v in x.items()]))
        x.clear()
        assert len(x) == 0
    assert names[0] == names[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2)])
        self.layers.append(nn.Linear(2, 2))
        self.heads = nn.ModuleDict({"first": nn.ModuleList([nn.Linear(2, 1)])})

    def forward(self, x):
        for layer in self.layers[1:]:
            x = layer(x)
        return self.heads["first"][0](x)


def test_paths_and_names_of_parameters_hold_those_of_the_lists_that_they_are_in():
    net = nn.Sequential(Net())
    assert [p.name for p in net.parameters()] == list(net.state_dict())
    with pytest.raises(GraphError, match=r"in layer 0\.layers\.1, at "):
        net(mg.input("x", (4, 3)))
    net[0].heads["first"].insert(0, nn.Linear(3, 2))
    with pytest.raises(GraphError, match=r"in layer 0\.heads\.first\.0, at "):
        net(mg.input("x", (4, 2)))


def test_parameters_are_renamed_where_a_list_numbers_its_modules_anew():
    net = Net()
    net.layers.insert(0, nn.Linear(5, 5))
    net.layers[1].bias.rename("mine")
    del net.layers[0]
    names = [p.name for p in net.layers.parameters()]
    assert names == ["layers.0.weight", "mine", "layers.1.weight", "layers.1.bias"]


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda: [nn.ReLU()], r"Holder\.parts is a list of modules, .* use nn\.ModuleList at "),
        (lambda: (1, nn.ReLU()), r"Holder\.parts is a tuple of modules, .* use nn\.ModuleList at "),
        (lambda: [[nn.ReLU()]], r"Holder\.parts is a list of modules, .* use nn\.ModuleList at "),
        (lambda: {"a": nn.ReLU()}, r"Holder\.parts is a dict of modules, .* use nn\.ModuleDict at"),
        (lambda: [mg.Parameter([1.0])], r"a list of parameters, .* an attribute at "),
    ],
)
def test_a_plain_list_or_dict_of_modules_or_parameters_is_warned_of_with_the_line(value, text):
    value = value()
    with pytest.warns(mg.MinigraphWarning, match=text) as caught:
        first, second = [Holder(value) for _ in range(2)]
        assert len(caught) == 1  # of one line
        second.parts = first.parts  # of one attribute
    line = inspect.getsourcelines(Holder.__init__)[1] + 2
    assert str(caught[0].message).endswith(f"{__file__}:{line}")
    assert len(caught) == 1


def test_a_list_that_is_filled_later_is_warned_of_at_the_first_call():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = []
            for _ in range(2):
                self.parts.append(nn.ReLU())

        def forward(self, x):
            return x

    net, x = Late(), mg.input("x", (1,))
    with pytest.warns(mg.MinigraphWarning, match=r"Late\.parts is a list of modules") as caught:
        net(x)
        net(x)
    assert len(caught) == 1


def test_lists_without_modules_and_of_registered_modules_are_fine():
    class Fine(nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes = [1, 2]
            self.names = {"a": 1}
            self.one = nn.ReLU()
            self.all = (self.one,)
            self.layers = nn.ModuleList([nn.Linear(2, 2)])
            self.some = [self.layers[0], self.layers[0].weight]

        def forward(self, x):
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fine()(mg.input("x", (1,)))
