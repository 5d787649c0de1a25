"""Files of arrays: everything comes back, nothing half-written is seen, damage is noticed."""

import os
import stat

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, optim
from minigraph.errors import DTypeError, GraphError
from minigraph.graph import DTYPES
from minigraph.serialization import load, save


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


# There and back


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
    found = load(path)
    assert all(np.array_equal(found[name], value) for name, value in odd.items())


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
    found = load(path)
    assert found["p"].tolist() == [1, 1]
    assert found["epoch"] == 3
    assert found["losses"].tolist() == [0.5, 0.25]


def test_torch_tensors_are_saved_and_torch_reads_the_file(path):
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    tensors = {
        "wants a gradient": torch.nn.Parameter(torch.ones(2, 3)),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    }
    save(path, tensors)
    found = safetensors_torch.load_file(path)
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    safetensors_torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    assert load(path)["bfloat16"].astype("float32").tolist() == [1.5, -2.0]


def test_names_may_be_any_text_and_a_mapping_may_be_empty(path):
    save(path, {"": np.ones(1), 'a "ü"\n.b': np.zeros(2)})
    assert set(load(path)) == {"", 'a "ü"\n.b'}
    save(path, {})
    assert load(path) == {}


# Writing is all or nothing


def test_a_write_that_fails_leaves_the_old_file_and_no_other(path, monkeypatch):
    save(path, {"a": np.ones(3)})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GraphError, match=r"model.safetensors .*No space left on device"):
        save(path, {"a": np.zeros(3)})
    assert load(path)["a"].tolist() == [1, 1, 1]
    assert os.listdir(path.parent) == [path.name]


def test_the_data_are_on_disk_before_the_file_has_its_name(path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, n=name, f=original: (done.append(n), f(*args))[1]
        )
    save(path, {"a": np.ones(3)})
    assert done == ["fsync", "replace"]


def test_a_link_stays_a_link_and_files_have_the_usual_rights(path, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    link = tmp_path / "latest"
    link.symlink_to(path)
    save(link, {"a": np.ones(1)})
    assert link.is_symlink()
    assert load(path)["a"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("name", ["absent/model", ".", "file/model", "a\0b"])
def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(GraphError, match="cannot be written") as caught:
        save(tmp_path / name, {"a": np.ones(1)})
    assert str(tmp_path / name) in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        ({"a.b": "text"}, DTypeError, "save: a.b: "),
        ({"a.b": None}, DTypeError, "save: a.b: "),
        ({"a.b": object()}, DTypeError, "save: a.b: "),
        ({"a.b": [[1], [2, 3]]}, DTypeError, "save: a.b: "),
        ({"a.b": np.ones(2, complex)}, DTypeError, "save: a.b: .*complex128"),
        ({"a.b": mg.input("x", (2,))}, DTypeError, "save: a.b: an expression is no array"),
        ({3: np.ones(1)}, GraphError, "names are strings, not 3"),
        ({"__metadata__": np.ones(1)}, GraphError, "__metadata__"),
        ({"\ud800": np.ones(1)}, GraphError, "model.safetensors cannot be written"),
        ([np.ones(1)], GraphError, "a mapping of names to arrays, not list"),
    ],
)
def test_what_cannot_be_saved_is_an_error_of_one_line_and_no_file(path, state, error, text):
    with pytest.raises(error, match=text) as caught:
        save(path, state)
    assert "\n" not in str(caught.value)
    assert not path.exists()


# Reading trusts nothing


def whole_file(path):
    save(path, {"weights": np.arange(50.0), "flag": np.array(True)})
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"short",
        lambda data: b"no safetensors file at all, but long enough",
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data + b"\0",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data.replace(b"F64", b"F16"),
        lambda data: data.replace(b"F64", b"C64"),
    ],
)
def test_a_damaged_or_foreign_file_is_an_error_that_names_it(path, damage):
    path.write_bytes(damage(whole_file(path)))
    with pytest.raises(GraphError, match=r"model\.safetensors") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_byte_that_changed_anywhere_is_noticed_or_harmless(path):
    data = whole_file(path)
    expected = load(path)
    noticed = 0
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0x11]) + data[i + 1 :])
        try:
            assert_same(load(path), expected)
        except GraphError:
            noticed += 1
    # Harmless: padding of the header, and the name of the checksum itself.
    assert len(data) - noticed < 32


def test_dtypes_that_are_not_ours_are_named(path):
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    safetensors_torch.save_file({"small": torch.zeros(2).to(torch.float8_e4m3fn)}, path)
    with pytest.raises(GraphError, match="holds small as F8_E4M3"):
        load(path)


@pytest.mark.parametrize("name", ["absent", "folder", "a\0b"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(GraphError, match="cannot be read") as caught:
        load(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
