"""Cache files that are none, or not as they were written: rejected by line and reason."""

import json
import os
import random
import re

import pytest
from attacks.damage import changed_lines
from cache_files import ENTRIES, FIELDS, by_key, change, never
from long_runs import long

from minigraph.cache import file

pytestmark = pytest.mark.usefixtures("no_private_group")


# ---------------------------------------------------------------- what is no such file


def refused(path):
    """Return the reason for which a file has nothing at all."""
    contents = file.read(path)
    assert (contents.fields, contents.entries) == ({}, [])
    ((name, why),) = contents.rejected
    assert name == str(path)
    return why


def test_what_is_no_file_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    assert refused(tmp_path / "missing") == "there is no such file"
    assert refused(tmp_path / "nowhere") == "there is no such file"
    assert refused(tmp_path) == "Is a directory"
    assert refused(tmp_path / "pipe") == "is no regular file"
    assert "symbolic links" in refused(tmp_path / "loop")
    assert "null" in refused("a\0b")
    assert refused("a" * 5000)


HEADER = {"file": "minigraph cache", "schema": 1, "fields": {}, "entries": 0, "checksum": ""}
GARBAGE = {
    "empty": (b"", "empty"),
    "random bytes": (bytes(range(256)), "no cache file"),
    "a pickle": (b"\x80\x04K\x01.", "no cache file"),
    "nothing but ends of lines": (b"\n" * 50, "empty"),
    "nested": (b"[" * 100_000, "no cache file"),
    "nested names": (b'{"schema":' * 100_000, "no cache file"),
    "a huge number": (b'{"file": "minigraph cache", "schema": ' + b"9" * 9999 + b"}", "no cache"),
    "twice": (b'{"file": "minigraph cache", "schema": 1, "schema": 1}', "is damaged"),
    "no object": (b'["file", "schema"]', "no cache file"),
    "another file": (json.dumps({**HEADER, "file": "x"}).encode(), "no cache file"),
    "a schema that is no number": (json.dumps({**HEADER, "schema": [1]}).encode(), "no cache"),
    "another schema": (json.dumps({**HEADER, "schema": 2}).encode(), "has schema 2"),
    "changed fields": (json.dumps({**HEADER, "fields": {"a": "b"}}).encode(), "checksum"),
    "fields that are no texts": (json.dumps({**HEADER, "fields": {"a": 1}}).encode(), "damaged"),
}


@pytest.mark.parametrize("data, why", GARBAGE.values(), ids=GARBAGE)
def test_a_file_that_is_none_of_ours_is_rejected_and_replaced(tmp_path, data, why):
    path = tmp_path / "some"
    path.write_bytes(data)
    assert why in refused(path)
    file.write(path, FIELDS, ENTRIES, never)
    assert by_key(file.read(path).entries) == by_key(ENTRIES)


def test_a_huge_file_is_not_read(saved):
    os.truncate(saved, file.LIMIT + 1)
    assert "larger than" in refused(saved)
    file.write(saved, FIELDS, ENTRIES[:1], never)
    assert file.read(saved).entries == ENTRIES[:1]


# ---------------------------------------------------------------- lines that are not as written


@pytest.mark.parametrize(
    "parts, why",
    [
        ({"kind": "other"}, "kind that is not known: other"),
        ({"subject": 7, "checksum": ""}, "subject"),
        ({"subject": "\ud800"}, "no JSON: .* surrogate"),
        ({"environment": {"a": 1}, "checksum": ""}, "environment"),
        ({"environment": [["a", "b"]], "checksum": ""}, "environment"),
        ({"body": [1], "checksum": "00"}, "checksum"),
        ({"blob": "AA=A", "checksum": ""}, "ase64|adding|ata"),
        ({"blob": None, "checksum": ""}, "blob"),
        ({"blob": "AAAA", "checksum": "00"}, "checksum"),
        ({"checksum": 5}, "checksum"),
        ({"more": 1}, "unknown field `more`"),
        ({"more": 1, "checksum": ""}, "unknown field `more`"),
    ],
)
def test_a_line_that_is_not_as_it_was_written_is_rejected(saved, parts, why):
    change(saved, 1, **parts)
    contents = file.read(saved)
    ((name, reason),) = contents.rejected
    assert name and re.search(why, reason)
    assert len(contents.entries) == len(ENTRIES) - 1


@pytest.mark.parametrize(
    "line, why",
    [
        (b"", "no JSON"),
        (b"\xff", "no text"),
        (b"\x00", "no JSON"),
        (b"[" * 100_000, "got `array`"),
        (b'{"subject": ' * 100_000, "got `object`"),
        (b"1" * 5000, "out of range"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `kind`"),
    ],
)
def test_a_line_that_is_no_entry_is_rejected_by_its_number(saved, line, why):
    lines = saved.read_bytes().split(b"\n")
    saved.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]))
    contents = file.read(saved)
    ((name, reason),) = contents.rejected
    assert (name, why in reason) == ("line 4", True)
    assert by_key(contents.entries) == by_key(ENTRIES)


def test_a_line_with_the_right_checksum_and_other_text_is_rejected(saved):
    lines = saved.read_bytes().splitlines()
    kind, rest = lines[1].split(b", ", 1)
    for text in (
        lines[1].replace(b'"kind": ', b'"kind": "jit", "kind": '),
        lines[1].replace(b'"values": ', b'"values":  '),
        b"{" + rest.removesuffix(b"}") + b", " + kind.removeprefix(b"{") + b"}",
        lines[1] + b" ",
        lines[1] + b"\r",
    ):
        saved.write_bytes(b"\n".join([lines[0], text, *lines[2:]]) + b"\n")
        ((name, why),) = file.read(saved).rejected
        assert name == "product"
        assert why.startswith(("is not as it was written", "is damaged"))


def test_a_body_in_which_nesting_is_too_deep_is_rejected_by_its_subject(saved):
    lines = saved.read_bytes().splitlines()
    deep = lines[1].replace(b"[3]", b"[" * 100_000 + b"]" * 100_000)
    saved.write_bytes(b"\n".join([lines[0], deep, *lines[2:]]) + b"\n")
    ((_, why),) = file.read(saved).rejected
    assert why == "is nested too deeply"


def test_a_file_that_is_cut_off_has_its_first_entries(saved):
    whole = saved.read_bytes()
    ends = [i + 1 for i, c in enumerate(whole) if c == ord("\n")]
    saved.write_bytes(whole[: ends[3] + 40])
    contents = file.read(saved)
    assert len(contents.entries) == 3
    assert [name for name, _ in contents.rejected] == ["line 5", str(saved)]
    assert "3 of 7 entries are missing" in contents.rejected[1][1]
    saved.write_bytes(whole[: ends[3]])
    ((_, why),) = file.read(saved).rejected
    assert "4 of 7 entries are missing" in why


def test_swapped_entries_are_good_and_swapped_checksums_are_not(saved):
    first, *lines = saved.read_text().splitlines()
    saved.write_text("\n".join([first, *lines[::-1]]))
    assert file.read(saved).rejected == []
    a, b = (json.loads(line)["checksum"] for line in lines[:2])
    lines[0], lines[1] = lines[0].replace(a, b), lines[1].replace(b, a)
    saved.write_text("\n".join([first, *lines]))
    assert len(file.read(saved).rejected) == 2


WORDS = [
    (b'"schema": 1', b'"schema": 2'),
    (b"x86_64 of some kind", b"x86_64 of another kind"),
    (b"3.2.0", b"3.3.0"),
    (b'"onednn"', b'"cudnn"'),
    (b"1e-05", b"1e-06"),
]


@pytest.mark.parametrize("count", [200, long(2000)])
def test_no_mutation_is_an_error_or_accepted_as_something_else(saved, count):
    whole = saved.read_bytes()
    originals = set(ENTRIES)
    changed = 0
    changed_files = changed_lines(whole, random.Random(0), WORDS)
    for _, data in zip(range(count), changed_files, strict=False):
        saved.write_bytes(data)
        contents = file.read(saved)
        assert originals.issuperset(contents.entries)
        assert contents.fields in ({}, FIELDS)
        assert all(name and why for name, why in contents.rejected)
        lost = originals.difference(contents.entries)
        assert contents.rejected or not lost
        changed += bool(lost)
    assert changed > count * 3 // 4
