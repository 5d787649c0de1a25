"""Files of arrays: everything comes back, nothing half-written is seen, damage is noticed."""

import fcntl
import importlib
import json
import os
import pickle
import re
import stat
import struct
import time
import zipfile

import numpy as np
import pytest
from new_process import start
from other_user import OTHER, as_root

import minigraph as mg
from minigraph import nn, optim, regular_file
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


def test_torch_tensors_are_saved_and_torch_reads_the_file(path, torch):
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


# Files of others


def torch_file(path, **options):
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(2)}, path, **options)


def zip_file(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")


PICKLE = re.escape("a pickle, as torch.save writes it, which could run any program; with PyTorch,")
FOREIGN = {
    "torch": (torch_file, PICKLE),
    "old torch": (lambda path: torch_file(path, _use_new_zipfile_serialization=False), PICKLE),
    **{
        f"pickle {n}": (lambda path, n=n: path.write_bytes(pickle.dumps({"a": 1}, n)), PICKLE)
        for n in range(2, 6)
    },
    "npy": (lambda path: np.save(path, np.ones(2)), "a file of np.save .* np.load reads it"),
    "npz": (lambda path: np.savez(path, a=np.ones(2)), "a file of np.save .* np.load reads it"),
    "zip": (zip_file, "no safetensors file"),
}


@pytest.mark.parametrize(("write", "text"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_torch_or_numpy_is_an_error_that_says_what_reads_it(tmp_path, write, text):
    path = tmp_path / "model.npz"  # so that np.savez does not change the name
    write(path)
    (found,) = tmp_path.iterdir()
    with pytest.raises(GraphError, match=f"^load: .*{found.name} is {text}") as raised:
        load(found)
    assert "\n" not in str(raised.value)


def test_what_the_error_says_makes_a_file_that_loads(tmp_path):
    pytest.importorskip("safetensors.torch")
    torch_file(tmp_path / "model.pt")
    with pytest.raises(GraphError) as raised:
        load(tmp_path / "model.pt")
    program = str(raised.value).partition("its tensors: ")[2]
    exec(program, {name: importlib.import_module(name) for name in ("safetensors", "torch")})
    assert load(tmp_path / "model.safetensors")["weight"].tolist() == [1, 1]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_damaged_safetensors_file_is_never_called_a_pickle(path, length):
    names = {"a" * n: np.zeros(1) for n in range(1, 40)}
    save(path, names)
    data = bytearray(path.read_bytes())
    data[:8] = (0x80 + 256 * length).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(GraphError, match="is no safetensors file, or damaged"):
        load(path)


@pytest.mark.parametrize("name", ["a.pt", "a.PTH", "a.npz", "a.npy"])
def test_a_name_of_torch_or_numpy_is_warned_of_and_the_file_is_written(tmp_path, name, monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    reader = "np.load" if "np" in name else "torch.load"
    with pytest.warns(mg.MinigraphWarning, match=f"{name} will be a safetensors .*{reader} does"):
        save(tmp_path / name, {"a": np.ones(1)})
    assert load(tmp_path / name)["a"] == 1


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


def test_who_may_read_a_file_stays(path):
    save(path, {"a": np.ones(1)})
    path.chmod(0o640)
    save(path, {"a": np.zeros(1)})
    assert load(path)["a"] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_or_a_device_is_not_replaced(path, tmp_path, linked, promptly):
    """As root this would put a file in the place of /dev/null."""
    os.mkfifo(path)
    given = path
    if linked:
        given = tmp_path / "link"
        given.symlink_to(path)
    with pytest.raises(GraphError, match="is no regular file"):
        save(given, {"a": np.ones(1)})
    assert path.is_fifo()
    assert {path, given} == set(tmp_path.iterdir())


WRITER = """
import sys, numpy, minigraph.serialization
state = {"a": numpy.full(1 << 20, int(sys.argv[2]), numpy.uint8)}
while True:
    minigraph.serialization.save(sys.argv[1], state)
"""


def test_a_writer_that_does_not_end_is_not_waited_for_without_limit(path, monkeypatch):
    monkeypatch.setattr(regular_file, "PATIENCE", 0.1)
    with open(path.with_name(f".{path.name}.tmp"), "xb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(GraphError, match="another process holds it"):
            mg.save(path, {"x": np.ones(2)})
    mg.save(path, {"x": np.ones(2)})
    assert os.listdir(path.parent) == [path.name]


def test_writers_of_a_file_take_turns_and_what_they_leave_when_killed_goes(path):
    in_progress = path.parent / ".model.safetensors.tmp"
    writers = [start("-c", WRITER, path, value) for value in (1, 2)]
    seen = set()
    deadline = time.monotonic() + 60
    try:
        while len(seen) < 2 or not in_progress.exists():
            assert time.monotonic() < deadline
            assert [writer.poll() for writer in writers] == [None, None]
            if path.exists():
                values = load(path)["a"]
                assert values.min() == values.max()
                seen.add(values[0].item())
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    left = set(os.listdir(path.parent)) - {path.name}
    assert left <= {in_progress.name}
    in_progress.touch()  # also if the writer was killed just after the end of a write
    save(path, {"a": np.ones(3)})
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_what_is_in_the_way_of_a_temporary_file_is_replaced(path, kind, promptly):
    in_the_way = path.parent / ".model.safetensors.tmp"
    if kind == "pipe":
        os.mkfifo(in_the_way)
    else:
        in_the_way.write_bytes(b"left")
    save(path, {"a": np.ones(3)})
    assert load(path)["a"].tolist() == [1, 1, 1]
    assert os.listdir(path.parent) == [path.name]


@as_root
def test_a_link_of_another_user_is_not_saved_through(path):
    """In a folder where all may make files it could lead to any file of ours."""
    mine = path.parent / "mine"
    mine.write_text("precious")
    path.symlink_to(mine)
    os.lchown(path, OTHER, OTHER)
    with pytest.raises(mg.GraphError, match="is a link of another user"):
        save(path, {"a": np.ones(1)})
    assert mine.read_text() == "precious"


def test_a_link_in_the_way_of_a_temporary_file_is_not_followed(path):
    other = path.parent / "other"
    other.write_bytes(b"keep")
    (path.parent / ".model.safetensors.tmp").symlink_to(other)
    with pytest.raises(GraphError, match="cannot be written"):
        save(path, {"a": np.ones(3)})
    assert other.read_bytes() == b"keep"


def test_the_longest_name_of_a_file_can_be_saved(tmp_path):
    path = tmp_path / ("ä" * 127)
    save(path, {"a": np.ones(3)})
    assert os.listdir(tmp_path) == [path.name]


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


def test_dtypes_that_are_not_ours_are_named(path, torch):
    safetensors_torch = pytest.importorskip("safetensors.torch")
    safetensors_torch.save_file({"small": torch.zeros(2).to(torch.float8_e4m3fn)}, path)
    with pytest.raises(GraphError, match="holds 'small' as F8_E4M3"):
        load(path)


@pytest.mark.parametrize("name", ["absent", "folder", "a\0b"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(GraphError, match="cannot be read") as caught:
        load(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_pipe_and_a_device_are_refused_and_not_waited_for(path, endless, promptly):
    endless(path)
    with pytest.raises(GraphError, match=r"cannot be read .*no regular file") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_grows_is_read_to_the_size_it_had(path, monkeypatch):
    save(path, {"a": np.ones(3)})
    fstat = os.fstat

    def grow(descriptor):
        status = fstat(descriptor)
        with open(path, "ab") as file:
            file.write(b"more")
        return status

    monkeypatch.setattr(os, "fstat", grow)
    assert load(path)["a"].tolist() == [1, 1, 1]


def test_a_file_that_does_not_fit_into_memory_is_an_error_that_names_it(path, monkeypatch):
    save(path, {"a": np.ones(3)})
    status = list(os.stat(path))
    status[stat.ST_SIZE] = 1 << 62
    monkeypatch.setattr(os, "fstat", lambda descriptor: os.stat_result(status))
    with pytest.raises(GraphError, match=r"model\.safetensors cannot be read .*memory"):
        load(path)


def packed(header, data=b""):
    """A safetensors file with this header, a text or what JSON makes one of."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"a": entry("F32", [1] * 65, 4)}, b"1234", "65"),
        ({"a": entry("F32", [0, 2**63], 0)}, b"", str(2**63)),
        ({"a": entry("F32", [0, 2**40, 2**40], 0)}, b"", str(2**40)),
        ({"a": entry("BOOL", [2], 2)}, b"\1\2", "neither 0 nor 1"),
        ({"__metadata__": [1], "a": entry("U8", [0], 0)}, b"", "damaged"),
        ({"__metadata__": {"minigraph.crc32": 1}, "a": entry("U8", [0], 0)}, b"", "damaged"),
        ({"a": entry("U8", [-1], 0)}, b"", "damaged"),
        ({"a": entry("U8", 3, 3)}, b"abc", "damaged"),
        ({"a": entry("U8", [2.5], 2)}, b"ab", "damaged"),
        ({"a": entry("F4", [2], 1)}, b"a", "F4"),
        ({"a": None}, b"", "damaged"),
        ('{"__metadata__":' + "[" * 10**5, b"", "damaged"),
        ('{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", "damaged"),
    ],
)
def test_a_header_that_no_array_can_have_is_an_error_with_its_reason(path, header, data, reason):
    path.write_bytes(packed(header, data))
    with pytest.raises(GraphError, match=rf"model\.safetensors .*({reason})") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_header_may_have_null_for_metadata(path):
    path.write_bytes(packed({"__metadata__": None, "a": entry("U8", [2], 2)}, b"ab"))
    assert load(path)["a"].tolist() == [97, 98]


VALUES = [
    b"null", b"0", b"-1", b"1e400", b"18446744073709551616", b"[]", b"[[]]", b"{}", b"\"F32\"",
    b"\"\\ud800\"", b"\xff", b"[0,18446744073709551615]", b"[9223372036854775807]", b"true",
]  # fmt: skip


def test_any_value_in_any_place_of_a_header_loads_or_is_one_error(path):
    header = json.dumps(
        {"__metadata__": {"k": "v"}, "a": entry("F32", [1, 2], 8), "b": entry("U8", [0, 3], 8)}
    ).encode()
    places = [m.span() for m in re.finditer(rb'"[^"]*"(?!:)|\[[^[]*?\]|\b\d+\b|\{[^{]*?\}', header)]
    refused = 0
    for begin, end in places:
        for value in VALUES:
            changed = header[:begin] + value + header[end:]
            path.write_bytes(struct.pack("<Q", len(changed)) + changed + bytes(8))
            try:
                load(path)
            except GraphError as error:
                assert "model.safetensors" in str(error) and "\n" not in str(error)
                refused += 1
    assert refused > 100
