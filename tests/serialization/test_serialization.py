"""Files of arrays: everything comes back, and files of others are named."""

import importlib
import pickle
import re
import zipfile

import numpy as np
import pytest
from same_arrays import assert_same

import minigraph as mg
from minigraph import nn, optim
from minigraph.errors import GraphError
from minigraph.graph import DTYPES
from minigraph.serialization import load, save, tensor_file


def test_every_dtype_and_every_kind_of_shape_comes_back(path):
    shapes = ((), (0,), (2, 0, 3), (3, 2), (1,))
    arrays = {
        f"{dtype.name} {shape}": (np.arange(6) - 3)
        .astype(dtype)[: int(np.prod(shape))]
        .reshape(shape)
        for dtype in DTYPES
        for shape in shapes
    }
    save(path, arrays)
    assert_same(load(path), arrays)


def test_special_values_keep_their_bits(path):
    bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001], np.uint32)
    save(path, {"a": bits.view(np.float32)})
    assert load(path)["a"].view(np.uint32).tolist() == bits.tolist()


def test_arrays_that_are_not_contiguous_or_not_little_endian_come_back_equal(path):
    table = np.arange(12.0).reshape(3, 4)
    odd = {
        "transposed": table.T,
        "strided": table[::2, ::-1],
        "broadcast": np.broadcast_to(np.float32(2), (2, 3)),
        "big": table.astype(">f8"),
    }
    save(path, odd)
    arrays = load(path)
    assert all(np.array_equal(arrays[name], value) for name, value in odd.items())


def test_loaded_arrays_are_writable(path):
    save(path, {"a": np.zeros(3)})
    load(path)["a"][1] = 5


def test_a_module_and_an_optimizer_are_saved_by_their_state(path):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    adam = optim.Adam(net.parameters(), lr=0.3)
    for thing in (net, adam):
        save(path, thing)
        assert_same(load(path), thing.state_dict())
    adam.lr = 0.1
    adam.load_state_dict(load(path))
    assert adam.lr == 0.3


def test_parameters_numbers_and_lists_are_arrays(path):
    save(path, {"p": mg.Parameter(np.ones(2, "float32")), "epoch": 3, "losses": [0.5, 0.25]})
    arrays = load(path)
    assert arrays["p"].tolist() == [1, 1]
    assert arrays["epoch"] == 3
    assert arrays["losses"].tolist() == [0.5, 0.25]


def test_nested_mappings_with_strings_and_none_come_back(path):
    net = nn.Linear(2, 1)
    state = {
        "net": net,
        "": {"a.b": np.ones(1), "a": {"b": np.zeros(2), "none": {}}},
        ".a.b": np.arange(3),
        "of": {"what": 'a "ü"\n', "best": None, "epoch": np.array(3)},
    }
    save(path, state)
    arrays = load(path, mmap=True)
    assert arrays["of"] == state["of"] and arrays[""]["a"].pop("none") == {}
    assert_same(arrays["net"], net.state_dict())
    assert_same(arrays[""]["a"], {"b": np.zeros(2)})
    assert_same({"x": arrays[""]["a.b"], "y": arrays[".a.b"]}, {"x": np.ones(1), "y": np.arange(3)})
    holds_itself = {"a": np.ones(1)}
    holds_itself["b"] = holds_itself
    with pytest.raises(GraphError, match=r"cannot be written .*recursion"):
        save(path, holds_itself)


@pytest.mark.parametrize("tree", ['{"a": ["b"]}', '{"a": []}', "[]", '{"a": 3', '{"a": [[]]}'])
def test_a_tree_of_other_arrays_is_damage(path, tree):
    tensor_file.write("save", path, {"a": np.ones(1)}, {"minigraph.tree": tree})
    with pytest.raises(GraphError, match="its tree does not fit its arrays"):
        load(path)


def test_torch_tensors_are_saved_and_torch_reads_the_file(path, torch):
    safetensors_torch = pytest.importorskip("safetensors.torch")
    tensors = {
        "wants a gradient": torch.nn.Parameter(torch.ones(2, 3)),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    }
    save(path, tensors)
    arrays = safetensors_torch.load_file(path)
    assert all(torch.equal(arrays[name], value) for name, value in tensors.items())
    safetensors_torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    assert load(path)["bfloat16"].astype("float32").tolist() == [1.5, -2.0]


def test_names_may_be_any_text_and_a_mapping_may_be_empty(path):
    save(path, {"": np.ones(1), 'a "ü"\n.b': np.zeros(2)})
    assert set(load(path)) == {"", 'a "ü"\n.b'}
    save(path, {})
    assert load(path) == {}


# ---------------------------------------------------------------- files of others


def torch_file(path, **options):
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(2)}, path, **options)


def zip_file(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")


PICKLE = re.escape("a pickle of torch.save before version 1.6, which could run any")
FOREIGN = {
    "old torch": (lambda path: torch_file(path, _use_new_zipfile_serialization=False), PICKLE),
    **{
        f"pickle {n}": (lambda path, n=n: path.write_bytes(pickle.dumps({"a": 1}, n)), PICKLE)
        for n in range(2, 6)
    },
    "npy": (lambda path: np.save(path, np.ones(2)), "a file of np.save .* np.load reads it"),
    "npz": (lambda path: np.savez(path, a=np.ones(2)), "a file of np.save .* np.load reads it"),
    "zip": (zip_file, "not a safetensors file"),
}


@pytest.mark.parametrize(("write", "text"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_torch_or_numpy_is_an_error_that_says_what_reads_it(tmp_path, write, text):
    path = tmp_path / "model.npz"  # so that np.savez does not change the name
    write(path)
    (arrays,) = tmp_path.iterdir()
    with pytest.raises(GraphError, match=f"^load: .*{arrays.name} is {text}") as raised:
        load(arrays)
    assert "\n" not in str(raised.value)


def test_what_the_error_says_makes_a_file_that_loads(tmp_path):
    torch_file(tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(GraphError) as raised:
        load(tmp_path / "model.pt")
    program = str(raised.value).partition("with PyTorch: ")[2]
    exec(program, {"torch": importlib.import_module("torch")})
    assert load(tmp_path / "model.pt")["weight"].tolist() == [1, 1]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_damaged_safetensors_file_is_never_called_a_pickle(path, length):
    names = {"a" * n: np.zeros(1) for n in range(1, 40)}
    save(path, names)
    data = bytearray(path.read_bytes())
    data[:8] = (0x80 + 256 * length).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(GraphError, match="is not a safetensors file, or is damaged"):
        load(path)


@pytest.mark.parametrize("name", ["a.pt", "a.PTH", "a.npz", "a.npy"])
def test_a_name_of_torch_or_numpy_is_warned_of_and_the_file_is_written(tmp_path, name, monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    reader = "np.load" if "np" in name else "torch.load"
    with pytest.warns(mg.MinigraphWarning, match=f"{name} will be a safetensors .*{reader} does"):
        save(tmp_path / name, {"a": np.ones(1)})
    assert load(tmp_path / name)["a"] == 1
