"""Binaries on disk: whatever happens to the files, a unit is found as it was kept or not at all."""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from other_user import as_root

import minigraph as mg
from minigraph.cache import Binaries, Folder, binaries, environment_of

pytestmark = pytest.mark.usefixtures("no_private_group")
KEY = {"compiler": "cc", "flags": "-O3 -march=native"}
UNIT = bytes(range(256)) * 20


@pytest.fixture
def kept(tmp_path):
    """A store with a unit of one kernel."""
    Binaries(tmp_path / "cache").keep(UNIT, {"mg_one": KEY})
    return tmp_path / "cache"


def unit_of(store):
    """Return the bytes of the unit that a new process finds, or None."""
    return found(Binaries(store), "mg_one")


def found(store, kernel, key=KEY):
    """Return the bytes of the unit with a kernel, or None."""
    units = list(store.find({kernel: key}))
    assert all(names == [kernel] for _, names in units)
    return units[0][0] if units else None


def replace(path, data):
    path.unlink()
    path.write_bytes(data)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: replace(path, b""),
    "truncated": lambda path: replace(path, path.read_bytes()[:-1]),
    "longer": lambda path: replace(path, path.read_bytes() + b"0"),
    "bytes": lambda path: replace(path, os.urandom(1000)),
    "number": lambda path: replace(path, b"7"),
    "list": lambda path: replace(path, b'["sha256"]'),
    "nested": lambda path: replace(path, b"[" * 60_000),
    "foreign names": lambda path: replace(path, b'{"sha256": "../../x\\u0000", "unit": "/etc"}'),
    "huge": lambda path: (replace(path, b""), os.truncate(path, binaries.LIMIT + 1)),
    "link": lambda path: (path.rename(f"{path}.old"), path.symlink_to(f"{path}.old")),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "open to the group": lambda path: path.chmod(0o660),
    "open to all": lambda path: path.chmod(0o606),
}


@pytest.mark.parametrize("kind", ["*.json", "*.so"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_miss_and_is_written_anew(kept, kind, damage):
    assert unit_of(kept) == UNIT
    (path,) = kept.rglob(kind)
    damage(path)
    assert unit_of(kept) is None
    Binaries(kept).keep(UNIT, {"mg_one": KEY})
    assert unit_of(kept) == UNIT


def test_a_file_larger_than_it_can_be_is_not_read(tmp_path):
    folder = Folder(tmp_path, "some")
    folder.write("four", b"1234")
    assert folder.read("four", 4) == b"1234"
    assert folder.read("four", 3) is None


@as_root
@pytest.mark.parametrize("kind", ["*.json", "*.so"])
def test_a_file_of_another_user_is_a_miss(kept, kind):
    (path,) = kept.rglob(kind)
    os.chown(path, 12345, 12345)
    assert unit_of(kept) is None
    Binaries(kept).keep(UNIT, {"mg_one": KEY})
    assert unit_of(kept) == UNIT


@pytest.mark.parametrize("kind", ["*.json", "*.so"])
def test_a_directory_in_place_of_a_file_is_a_miss_with_a_warning(kept, kind):
    (path,) = kept.rglob(kind)
    path.unlink()
    path.mkdir()
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert all(unit_of(kept) is None for _ in range(9))
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results"):
        Binaries(kept).keep(UNIT, {"mg_one": KEY, "mg_two": KEY})
    assert unit_of(kept) is None
    assert not before or len(os.listdir("/proc/self/fd")) <= before
    assert not list(kept.rglob("*.tmp"))


def test_no_flipped_bit_makes_a_wrong_unit(kept):
    for kind in ("*.json", "*.so"):
        (path,) = kept.rglob(kind)
        whole = path.read_bytes()
        for i in range(0, len(whole), 1 if kind == "*.json" else 97):
            replace(path, whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
            assert unit_of(kept) is None
        replace(path, whole)


def test_an_entry_of_another_kernel_or_schema_is_a_miss(kept, monkeypatch):
    store = Binaries(kept)
    store.keep(UNIT, {"mg_two": KEY, "mg_three": {**KEY, "compiler": "other"}})
    one, *others = (
        kept / "jit" / binaries._entry_name(*x)
        for x in (("mg_one", KEY), ("mg_two", KEY), ("mg_three", {**KEY, "compiler": "other"}))
    )
    for other in others:
        shutil.copy(other, one)
        assert unit_of(kept) is None
    assert found(store, "mg_two")
    monkeypatch.setattr(binaries, "SCHEMA", 2)
    assert found(store, "mg_two") is None


# ---------------------------------------------------------------- who else may write there


def test_the_folders_and_files_are_for_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        Binaries(tmp_path / "some" / "cache").keep(UNIT, {"mg_one": KEY})
    finally:
        os.umask(old)
    folder = tmp_path / "some" / "cache"
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "jit")] == ["0o700"] * 2
    assert {oct(path.stat().st_mode & 0o777) for path in folder.glob("jit/*")} == {"0o600"}


UNSAFE = {
    "group": lambda root: root.chmod(0o770),
    "all": lambda root: root.chmod(0o707),
    "group, below": lambda root: (root / "jit").chmod(0o720),
    "all, above": lambda root: root.parent.chmod(0o777),
    "a file": lambda root: (root.rename(f"{root}.old"), root.touch()),
    "another user": lambda root: os.chown(root, 12345, -1),
    "another user, below": lambda root: os.chown(root / "jit", 12345, -1),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_folder_that_others_can_change_is_not_used(kept, name):
    if "user" in name and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*.*")}
    UNSAFE[name](kept)
    store = Binaries(kept)
    with pytest.warns(mg.MinigraphWarning, match="MINIGRAPH_CACHE_DIR") as warned:
        for _ in range(2):
            assert found(store, "mg_one") is None
            store.keep(UNIT, {"mg_one": KEY})
    assert len(warned) == 1
    if name != "a file":
        assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.*")} == before


def test_a_folder_in_a_shared_one_where_nobody_can_replace_it_is_used(kept):
    kept.parent.chmod(0o1777)
    assert unit_of(kept) == UNIT


@as_root
def test_a_folder_of_the_administrator_is_used_by_others(kept, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert unit_of(kept) == UNIT


def test_a_lock_ends_even_where_a_forked_child_has_its_handle(tmp_path, monkeypatch):
    folder = Folder(tmp_path, "some")
    folder.write("some", b"")
    handles = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", handles.append)  # the copy of a child stays open
        for _ in range(2):
            with folder.locked(exclusive=True, patience=0.0):
                pass
    for handle in handles:
        os.close(handle)
    assert handles


# ---------------------------------------------------------------- size


def test_what_was_not_used_for_longest_goes_with_its_entries(tmp_path):
    limit = 10_000
    store = Binaries(tmp_path, limit)
    for i in range(10):
        unit = bytes([i]) * 1000
        store.keep(unit, {f"mg_{i}_{k}": KEY for k in range(2)})
        (path,) = (p for p in tmp_path.glob("jit/*.so") if p.read_bytes() == unit)
        os.utime(path, (i, i))
    assert found(Binaries(tmp_path), "mg_1_1")  # used now
    Binaries(tmp_path, limit).keep(bytes(900), {"mg_new": KEY})
    assert found(Binaries(tmp_path), "mg_new")
    left = [i for i in range(10) if found(Binaries(tmp_path), f"mg_{i}_0")]
    assert left == [1, 5, 6, 7, 8, 9]  # room is made for a quarter
    assert len(list(tmp_path.glob("jit/*.so"))) == 7
    assert len(list(tmp_path.glob("jit/*.json"))) == 2 * 6 + 1


def test_a_store_below_its_limit_loses_nothing(tmp_path):
    for i in range(10):
        Binaries(tmp_path, 10_000).keep(bytes([i]) * 1000, {f"mg_{i}": KEY})
    assert all(found(Binaries(tmp_path), f"mg_{i}") for i in range(10))


def test_a_process_that_goes_on_writing_keeps_to_the_limit(tmp_path):
    store = Binaries(tmp_path, 1000)
    for i in range(40):
        store.keep(bytes([i]) * 100, {f"mg_{i}": KEY})
        size = sum(path.stat().st_size for path in tmp_path.glob("jit/*.so"))
        assert size <= 1000


def test_what_a_killed_process_left_counts_and_goes(tmp_path):
    store = Binaries(tmp_path, 1000)
    store.keep(b"1" * 400, {"mg_one": KEY})
    left = tmp_path / "jit" / "left.tmp"
    left.write_bytes(bytes(900))
    os.utime(left, (1, 1))
    Binaries(tmp_path, 1000).keep(b"2" * 400, {"mg_two": KEY})
    assert not left.exists()
    assert found(store, "mg_two")


def test_what_killed_processes_left_goes_with_the_first_file_of_the_next_one(tmp_path):
    Folder(tmp_path, "some").write("one", b"1")
    for name, age in {"old.tmp": 601, "new.tmp": 0, "locked.tmp": 601, "old": 601}.items():
        path = tmp_path / "some" / name
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    with open(tmp_path / "some" / "locked.tmp") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        Folder(tmp_path, "some").write("two", b"2")
    assert sorted(os.listdir(tmp_path / "some")) == ["locked.tmp", "new.tmp", "old", "one", "two"]


@as_root
def test_what_a_process_of_another_user_left_stays(tmp_path):
    Folder(tmp_path, "some").write("one", b"1")
    left = tmp_path / "some" / "left.tmp"
    left.touch()
    os.utime(left, (1, 1))
    os.chown(left, 12345, -1)
    Folder(tmp_path, "some").write("one", b"1")
    assert left.exists()


def test_the_newest_unit_stays_even_if_it_is_too_large(tmp_path):
    Binaries(tmp_path, 100).keep(UNIT, {"mg_one": KEY})
    assert found(Binaries(tmp_path, 100), "mg_one")


ODD = {
    "kernel": [None, 1, ["mg_one"], {}],
    "key": [None, [], "", {"a": 1}, {"a": None}, [["compiler", "cc"]]],
    "schema": ["1", 2, 1.0, True, None],
    "sha256": [None, 5, [], ["ab"], {}, "", "../" * 12, "A" * 64, "é" * 64],
    "unit": [None, 5, [], ["ab"], "other.so"],
    "more": [1],
}


@pytest.mark.parametrize("part, value", [(part, value) for part in ODD for value in ODD[part]])
def test_a_file_of_an_entry_with_odd_parts_is_no_entry(kept, part, value):
    (path,) = kept.rglob("*.json")
    odd = {**json.loads(path.read_text()), part: value}
    if part == "sha256" and value:  # the other parts agree
        odd["unit"] = f"{value[:32]}.so" if isinstance(value, str | list) else ""
    path.write_text(json.dumps(odd))
    store = Binaries(kept)
    assert found(store, "mg_one") is None
    assert store.entries() == []
    assert [name for name, _ in store.verify()] == [path.name]
    assert store.keep(UNIT, {"mg_one": KEY})
    assert found(store, "mg_one")


# ---------------------------------------------------------------- units as entries

HASH = hashlib.sha256(UNIT).hexdigest()
PARTS = {"support": "5a", "text": "7e"}


@pytest.fixture
def two(tmp_path):
    """A store with a unit of two kernels, and one of a kernel of another toolchain."""
    store = Binaries(tmp_path / "cache")
    assert store.keep(UNIT, {"mg_one": {**KEY, **PARTS}, "mg_two": {**KEY, "text": "8f"}})
    assert store.keep(UNIT[1:], {"mg_one": {**KEY, **PARTS, "compiler": "other"}})
    return store


def test_an_entry_is_a_unit_with_what_its_kernels_share_and_what_they_do_not(two):
    entry, other = sorted(two.entries(), key=lambda e: e.environment)
    assert (entry.kind, entry.environment, entry.blob) == ("jit", environment_of(KEY), UNIT)
    kernels = json.loads(entry.body)["kernels"]
    assert kernels == {"mg_one": PARTS, "mg_two": {"text": "8f"}}
    assert dict(other.environment)["compiler"] == "other"
    assert entry.subject != other.subject
    assert two.size > len(UNIT) * 2


def test_the_entries_of_kernels_are_the_units_that_they_need(two):
    (entry,) = two.entries({"mg_two": {**KEY, "text": "8f"}, "mg_none": KEY})
    assert json.loads(entry.body)["kernels"] == {"mg_two": {"text": "8f"}}
    assert two.entries({"mg_one": KEY}) == []


def test_kernels_that_are_added_elsewhere_are_found_there(two, tmp_path):
    other = Binaries(tmp_path / "other")
    assert [other.add(entry) for entry in two.entries()] == ["", ""]
    assert found(other, "mg_two", {**KEY, "text": "8f"}) == UNIT
    assert found(other, "mg_one", {**KEY, **PARTS, "compiler": "other"}) == UNIT[1:]
    assert other.entries() == two.entries()
    other.clear()
    assert (other.entries(), other.size) == ([], 0)
    assert found(other, "mg_two", {**KEY, "text": "8f"}) is None


def test_a_unit_that_comes_back_after_a_clear_is_verified_again(kept):
    store = Binaries(kept)
    assert found(store, "mg_one")
    store.clear()
    Binaries(kept).keep(UNIT, {"mg_one": KEY})
    DAMAGE["bytes"](*kept.rglob("*.so"))
    assert found(store, "mg_one") is None


def test_a_kernel_that_is_there_is_not_replaced(two, tmp_path):
    other = Binaries(tmp_path / "other")
    other.keep(b"mine", {"mg_two": {**KEY, "text": "8f"}})
    assert [other.add(entry) for entry in two.entries()] == ["", ""]
    assert found(other, "mg_two", {**KEY, "text": "8f"}) == b"mine"
    assert found(other, "mg_one", {**KEY, **PARTS}) == UNIT


@pytest.mark.parametrize(
    "change, why",
    [
        ({"blob": UNIT[:-1]}, "other machine code"),
        ({"blob": b""}, "other machine code"),
        ({"body": "{}"}, "missing required field `kernels`"),
        ({"body": "[" * 10_000}, "got `array`"),
        ({"body": '{"kernels": ' + '{"":' * 10_000}, "is wrong at kernels"),
        (
            {"body": '{"kernels": ["mg_one"], "sha256": ""}'},
            "is wrong at kernels: Expected `object`",
        ),
        ({"body": '{"kernels": {"mg_one": 5}, "sha256": ""}'}, "is wrong at kernels[...]"),
        (
            {"body": '{"kernels": {}, "sha256": ""}'},
            "is wrong at kernels: Expected `object` of length",
        ),
        ({"body": '{"kernels": {"mg_one": {"text": 5}}, "sha256": ""}'}, "Expected `str`"),
        ({"body": '{"kernels": {"mg_one": {"text": ""}}, "sha256": ""}'}, "is wrong at sha256"),
        ({"body": f'{{"kernels": {{"mg_one": {{}}}}, "sha256": "{HASH}", "more": 1}}'}, "`more`"),
        (
            {"body": f'{{"kernels": {{"mg_one": {{}}}}, "sha256": "{HASH}"}}', "environment": ()},
            "dep",
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(kept, tmp_path, change, why):
    (entry,) = Binaries(kept).entries()
    other = Binaries(tmp_path / "other")
    assert why in other.add(dataclasses.replace(entry, **change))
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_written_is_refused(kept, nowhere):
    (entry,) = Binaries(kept).entries()
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results"):
        assert Binaries(nowhere).add(entry) == "could not be written"


@pytest.mark.parametrize("kind", ["*.json", "*.so"])
@pytest.mark.parametrize("name", sorted(DAMAGE.keys() - {"missing", "link", "pipe"}))
def test_what_is_damaged_is_named_and_no_entry(kept, kind, name):
    assert Binaries(kept).verify() == []
    (path,) = kept.rglob(kind)
    DAMAGE[name](path)
    ((found, why),) = Binaries(kept).verify()
    assert found == (path.name if kind == "*.json" else "mg_one")
    assert why
    assert Binaries(kept).entries() == []
