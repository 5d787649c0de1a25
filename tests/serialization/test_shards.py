"""Weights in several files, weights in mapped memory, and weights of which some fit."""

import json

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn
from minigraph.graph import DTYPES


@pytest.fixture
def index(tmp_path):
    """An index of two files with the weights of a network."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    state = {name: p.numpy() for name, p in net.named_parameters()}
    files = {name: f"model-0000{name[0]}-of-00002.safetensors" for name in state}
    for file in set(files.values()):
        mg.save(tmp_path / file, {name: state[name] for name in state if files[name] == file})
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 44}, "weight_map": files}))
    return path, state


@pytest.mark.parametrize("mmap", [False, True])
def test_an_index_gives_the_arrays_of_all_its_files(index, mmap):
    path, state = index
    arrays = mg.load(path, mmap=mmap)
    assert arrays.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(arrays[name], array)
        arrays[name][...] = 5
    assert not any((array == 5).all() for array in mg.load(path).values())


def test_arrays_of_a_mapping_are_aligned_whatever_lies_between_them(tmp_path):
    for length in range(8):
        arrays = {f"{d.name}{'x' * length}": np.ones(3, d) for d in DTYPES}
        mg.save(tmp_path / "a.safetensors", arrays)
        loaded = mg.load(tmp_path / "a.safetensors", mmap=True)
        assert all(array.flags.aligned and array.flags.writeable for array in loaded.values())


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"0.weight": "../model-00000-of-00002.safetensors"}, "no weights beside it"),
        ({"0.weight": "/etc/passwd"}, "no weights beside it"),
        ({"0.weight": ".."}, "no weights beside it"),
        ({"0.weight": "gone.safetensors"}, r"gone\.safetensors cannot be read"),
        ({"more": "model-00000-of-00002.safetensors"}, "lists 'more' in .*, which lacks it"),
        ({"0.weight": "model.safetensors.index.json"}, "no weights beside it"),
        ([], "an index has a weight_map"),
    ],
)
def test_an_index_that_lists_what_is_not_there_is_an_error(index, weight_map, message):
    path, _ = index
    path.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(mg.GraphError, match=message) as caught:
        mg.load(path)
    assert "\n" not in str(caught.value)


def test_what_matches_is_assigned_and_the_rest_is_reported(index):
    path, state = index
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4, bias=False), nn.Linear(4, 1))
    last = net[2].weight.numpy()
    matching = mg.load_matching(path, net)
    assert matching.matched == ["0.weight", "0.bias"]
    assert matching.missing == ["2.weight", "2.bias"]
    assert matching.unexpected == ["1.bias"]
    assert matching.misfits == ["1.weight has shape (1, 2), not (4, 2)"]
    assert str(matching).splitlines() == [
        *("2 matched: 0.weight, 0.bias", "2 missing: 2.weight, 2.bias", "1 unexpected: 1.bias"),
        "1.weight has shape (1, 2), not (4, 2)",
    ]
    np.testing.assert_array_equal(net[0].weight.numpy(), state["0.weight"])
    np.testing.assert_array_equal(net[2].weight.numpy(), last)


def test_arrays_and_dlpack_of_a_parameter_are_copies_of_its_value(torch):
    w = mg.Parameter(np.ones((2, 3), "float32"), "w")
    for copy in (np.asarray(w), np.array(w, "float64"), np.from_dlpack(w), torch.from_dlpack(w)):
        assert copy.shape == (2, 3) and float(copy.sum()) == 6
        copy[...] = 2
    assert w.numpy().sum() == 6
    with pytest.raises(ValueError, match="is a copy"):
        np.array(w, copy=False)
    assert isinstance(np.ones(3, "float32") + w, type(w + 1))
