"""Reading a file of arrays trusts nothing: damage is noticed."""

import json
import os
import re
import stat
import struct

import numpy as np
import pytest
from same_arrays import assert_same

from minigraph.errors import GraphError
from minigraph.serialization import load, save


def whole_file(path):
    save(path, {"weights": np.arange(50.0), "flag": np.array(True)})
    return path.read_bytes()


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
    with pytest.raises(GraphError, match="has 'small' as F8_E4M3"):
        load(path)


def test_a_name_that_no_file_can_have_is_an_error_that_says_it():
    with pytest.raises(GraphError, match="a\0b cannot be read"):
        load("a\0b")


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
        ({"a": entry("U8", [-1], -1), "b": entry("U8", [2], 2)}, b"ab", "damaged"),
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
