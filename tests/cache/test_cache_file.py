"""Cache files: entries are read as they were written, or rejected with a reason."""

import errno
import fcntl
import os
import random
import sqlite3
import stat
from pathlib import Path

import pytest
from attacks.damage import MUTATIONS
from cache_entries import ENTRIES, FIELDS, UNIT, both, by_key, change, entry, kernel, never, newer
from long_runs import long
from new_process import python
from other_user import as_root

import minigraph as mg
from minigraph.cache import database, file
from minigraph.platform import regular_file

pytestmark = pytest.mark.usefixtures("no_private_group")

# ---------------------------------------------------------------- reading and writing


def test_what_is_read_is_what_was_written(saved):
    contents = file.read(saved)
    assert contents.fields == FIELDS
    assert by_key(contents.entries) == by_key(ENTRIES)
    assert contents.rejected == []
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert os.listdir(saved.parent) == [saved.name]


def test_a_file_has_its_fields_in_clear_text_and_machine_code_once(saved):
    data = saved.read_bytes()
    assert all(value.encode() in data for value in FIELDS.values())
    assert len(data) < 2 * len(UNIT) + 30_000


def test_equal_contents_are_equal_files(saved, tmp_path):
    file.write(tmp_path / "other", FIELDS, ENTRIES[::-1], never)
    before = saved.read_bytes()
    assert (tmp_path / "other").read_bytes() == before
    file.write(saved, FIELDS, ENTRIES, never)
    assert saved.read_bytes() == before


def test_a_file_without_entries_is_whole(tmp_path):
    file.write(tmp_path / "none", {}, [], never)
    assert file.read(tmp_path / "none") == file.Contents({}, [], [])


def test_the_database_of_a_cache_folder_is_read_as_a_file(store):
    store.keep(ENTRIES, never)
    contents = file.read(store.path)
    assert (by_key(contents.entries), contents.rejected) == (by_key(ENTRIES), [])


def test_writing_merges_with_the_good_entries_that_are_there(saved):
    change(saved, "UPDATE entries SET body = '[7]' WHERE environment LIKE '%two%'")
    new = [entry("product", "[2]", kind="cudnn"), entry("new")]
    file.write(saved, {"new": "fields"}, new, both)
    contents = file.read(saved)
    assert (contents.fields, contents.rejected) == ({"new": "fields"}, [])
    damaged, product = ENTRIES[1], ENTRIES[2]
    kept = [one for one in ENTRIES if one not in (damaged, product)]
    merged = entry("product", "[2, 3]", kind="cudnn")
    assert by_key(contents.entries) == by_key([*kept, merged, entry("new")])


# ---------------------------------------------------------------- what cannot be written


def test_a_place_where_no_file_can_be_is_an_error_of_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "missing" / "a", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "is no regular file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(mg.CacheError, match=why) as raised:
            file.write(path, {}, [], never)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == ["pipe"]


def full(*names, **folders):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "value", "why"),
    [
        (os, "replace", full, "No space left"),
        (file, "SIZE_LIMIT", 30_000, "it would be larger than 30000 bytes"),
        (database, "MAX_VALUE", 20_000, "too big"),
    ],
)
def test_a_failed_write_leaves_the_old_file(saved, monkeypatch, module, name, value, why):
    before = saved.read_bytes()
    monkeypatch.setattr(module, name, value)
    new = kernel("mg_new", bytes(30_000))
    with pytest.raises(mg.CacheError, match=why):
        file.write(saved, FIELDS, [new], never)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_hanging_writer_blocks_others_only_until_a_timeout(saved, monkeypatch):
    monkeypatch.setattr(regular_file, "LOCK_TIMEOUT", 0.05)
    with open(saved.parent / f".{saved.name}.tmp", "xb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(mg.CacheError, match="another process holds it"):
            file.write(saved, FIELDS, [entry("new")], never)
    file.write(saved, FIELDS, [entry("new")], never)  # what a writer has left is removed
    assert len(file.read(saved).entries) == len(ENTRIES) + 1
    assert os.listdir(saved.parent) == [saved.name]


# ---------------------------------------------------------------- many writers


WRITERS = """
import os, sys
from pathlib import Path
from cache.cache_entries import both, entry
from minigraph.cache import file

pids = []
for number in range(8):
    pids.append(os.fork())
    if not pids[-1]:
        for i in range(10):
            new = [entry(f"{number} {i}"), entry("all", f"[{number}]"), entry("equal")]
            file.write(Path(sys.argv[1]), {}, new, both)
        os._exit(0)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
"""


def test_of_many_writers_none_loses_the_entries_of_another(tmp_path):
    python("-c", WRITERS, tmp_path / "some.cache")
    contents = file.read(tmp_path / "some.cache")
    assert contents.rejected == []
    expected = [entry(f"{n} {i}") for n in range(8) for i in range(10)]
    expected += [entry("all", str([*range(8)])), entry("equal")]
    assert by_key(contents.entries) == by_key(expected)
    assert os.listdir(tmp_path) == ["some.cache"]


# ---------------------------------------------------------------- who else may have written


def unsafe(path):
    """Return why machine code from a file must not run, whose entries can be read all the same."""
    contents = file.read(path)
    assert by_key(contents.entries) == by_key(ENTRIES)
    return contents.unsafe


def test_a_file_of_ours_is_safe_in_a_folder_of_ours_or_where_only_owners_replace(saved):
    assert unsafe(saved) == ""
    saved.parent.chmod(0o1777)
    assert unsafe(saved) == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o620),
        lambda path: path.chmod(0o602),
        lambda path: path.parent.chmod(0o770),
        lambda path: path.parent.chmod(0o707),
    ],
)
def test_a_file_that_others_can_change_is_not_safe(saved, change):
    change(saved)
    assert "can be written by other users" in unsafe(saved)


@as_root
def test_a_file_of_another_user_is_not_safe(saved):
    os.chown(saved.parent, 12345, -1)
    assert unsafe(saved) == f"{saved.parent} belongs to another user"
    saved.parent.chmod(0o1777)  # its owner may replace files all the same
    assert unsafe(saved) == f"{saved.parent} belongs to another user"
    os.chown(saved.parent, 0, -1)
    os.chown(saved, 12345, -1)
    assert unsafe(saved) == f"{saved} belongs to another user"


def test_a_link_is_as_safe_as_its_folder_and_its_file(saved, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "link").symlink_to(saved)
    assert unsafe(folder / "link") == ""
    folder.chmod(0o777)
    assert unsafe(folder / "link")
    folder.chmod(0o700)
    saved.chmod(0o666)
    assert unsafe(folder / "link")


# ---------------------------------------------------------------- what is no such file


def refused(path):
    """Return the reason for which a file has nothing at all."""
    contents = file.read(path)
    assert (contents.fields, contents.entries) == ({}, [])
    ((name, why),) = contents.rejected
    assert name == str(path) and "\n" not in why
    return why


def test_what_is_no_file_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    assert refused(tmp_path / "missing") == "does not exist"
    assert refused(tmp_path / "nowhere") == "does not exist"
    assert refused(tmp_path) == "Is a directory"
    assert refused(tmp_path / "pipe") == "is no regular file"
    assert "symbolic links" in refused(tmp_path / "loop")
    assert "null" in refused("a\0b")
    assert refused("a" * 5000)


def statement(text):
    """Return a function that changes a file by a statement of SQL."""

    def make(path):
        db = sqlite3.connect(path)
        db.executescript(text)
        db.close()

    return make


def data(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


GARBAGE = {
    "empty": (data(lambda whole: b""), "is empty"),
    "random bytes": (data(lambda whole: bytes(range(256))), "is no cache file of minigraph"),
    "a pickle": (data(lambda whole: b"\x80\x04K\x01."), "is no cache file of minigraph"),
    "cut off": (data(lambda whole: whole[:-100]), "is cut off or damaged"),
    "longer": (data(lambda whole: whole + b"0"), "is cut off or damaged"),
    "half of it": (data(lambda whole: whole[: len(whole) // 2]), "is cut off or damaged"),
    "the header alone": (data(lambda whole: whole[:100]), "is cut off or damaged"),
    "garbage behind it": (data(lambda whole: whole[:100] + bytes(len(whole) - 100)), "is damaged"),
    "huge": (lambda path: os.truncate(path, file.SIZE_LIMIT + 1), "is larger than"),
    "another schema": (statement("PRAGMA user_version = 9"), "has schema 9; this version of"),
    "no schema": (
        statement("PRAGMA user_version = 0"),
        "does not have exactly the tables of a cache",
    ),
    "another database": (
        lambda path: (path.unlink(), statement("CREATE TABLE a (b)")(path)),
        "does not have exactly the tables of a cache",
    ),
    "an empty database": (
        lambda path: (path.unlink(), statement("CREATE TABLE a (b); DROP TABLE a")(path)),
        "it has no tables",
    ),
    "a trigger": (
        statement("CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END"),
        "does not have exactly the tables of a cache",
    ),
    "fields that are no texts": (statement("UPDATE fields SET value = x'00'"), "Expected `str`"),
}


@pytest.mark.parametrize(("spoil", "why"), GARBAGE.values(), ids=GARBAGE)
def test_a_file_that_is_none_of_ours_is_rejected_and_replaced(saved, spoil, why):
    spoil(saved)
    assert why in refused(saved)
    file.write(saved, FIELDS, ENTRIES, never)
    assert by_key(file.read(saved).entries) == by_key(ENTRIES)


# ---------------------------------------------------------------- what is not as it was written

DAMAGE = "is damaged: its checksum is not that of its contents"


@pytest.mark.parametrize(
    "change_one",
    [
        "kind = 'cudnn'",
        "subject = 'other'",
        "environment = '[]'",
        "environment = '{\"processor\": 1}'",
        'environment = \'{"processor": "three"}\'',
        "body = '[5]'",
        "body = x'5b325d'",
        "body = CAST(x'ff' AS TEXT)",
        "digest = 'missing'",
        "checksum = ''",
    ],
)
def test_an_entry_that_is_not_as_it_was_written_is_rejected_by_name(saved, change_one):
    statement = f"UPDATE entries SET {change_one} WHERE environment LIKE '%two%'"
    assert change(saved, statement) == 1
    contents = file.read(saved)
    name = "other" if "other" in change_one else ENTRIES[1].subject
    assert contents.rejected == [(name, DAMAGE)]
    others = [one for one in ENTRIES if one is not ENTRIES[1]]
    assert by_key(contents.entries) == by_key(others)


def test_an_entry_of_a_kind_that_is_not_known_is_rejected(tmp_path):
    file.write(tmp_path / "some", {}, [entry("a", kind="other")], newer)
    assert file.read(tmp_path / "some").rejected == [("a", "has an unknown kind: other")]


@pytest.mark.parametrize("count", [200, long(2000)])
def test_no_mutation_is_an_error_or_accepted_as_something_else(saved, count):
    whole, originals, rng = saved.read_bytes(), set(ENTRIES), random.Random(0)
    rejections = 0
    for i in range(count):
        name = list(MUTATIONS)[i % len(MUTATIONS)]
        Path(saved).write_bytes(MUTATIONS[name](whole, rng))
        contents = file.read(saved)
        assert originals.issuperset(contents.entries), name
        assert all(subject and why and "\n" not in why for subject, why in contents.rejected), name
        assert contents.rejected or originals == {*contents.entries}, name
        rejections += bool(contents.rejected)
    assert rejections > count * 2 // 3
