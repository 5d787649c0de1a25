"""Cache files: what is read is what was written, whatever its writers do."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import stat

import pytest
from cache_files import ENTRIES, FIELDS, HERE, by_key, entry, never
from long_runs import long
from new_process import python
from other_user import as_root

import minigraph as mg
from minigraph.cache import Folder, environment_of, file

pytestmark = pytest.mark.usefixtures("no_private_group")


def union(old, new):
    """Merge entries that hold lists of numbers, the old ones first."""
    values = [v for e in (old, new) for v in json.loads(e.body)["values"]]
    return dataclasses.replace(new, body=json.dumps({"values": values}))


# ---------------------------------------------------------------- reading and writing


def test_what_is_read_is_what_was_written(saved):
    contents = file.read(saved)
    assert contents.fields == FIELDS
    assert by_key(contents.entries) == by_key(ENTRIES)
    assert contents.rejected == []
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert os.listdir(saved.parent) == [saved.name]


def test_each_line_is_json_that_a_person_can_read(saved):
    first, *lines = map(json.loads, saved.read_text("utf-8").splitlines())
    assert (first["file"], first["fields"]) == ("minigraph cache", FIELDS)
    assert lines[0]["environment"] == HERE | {"library": lines[0]["environment"]["library"]}
    assert lines[0]["body"]["seconds"] == 1e-05


def test_equal_contents_are_equal_files(saved, tmp_path):
    file.write(tmp_path / "other", FIELDS, ENTRIES[::-1], never)
    before = saved.read_bytes()
    assert (tmp_path / "other").read_bytes() == before
    file.write(saved, FIELDS, ENTRIES, never)
    assert saved.read_bytes() == before


def test_a_file_without_entries_is_whole(tmp_path):
    file.write(tmp_path / "none", {}, [], never)
    assert file.read(tmp_path / "none") == file.Contents({}, [], [])


def test_writing_merges_with_the_good_entries_that_are_there(saved):
    lines = saved.read_text().splitlines()
    saved.write_text("\n".join([*lines[:-1], "damaged"]))
    file.write(saved, {"new": "fields"}, [entry("product", 2, kind="cudnn"), entry("new")], union)
    contents = file.read(saved)
    assert (contents.fields, contents.rejected) == ({"new": "fields"}, [])
    found = {(e.subject, e.environment): json.loads(e.body) for e in contents.entries}
    assert len(contents.entries) == len(found) == len(ENTRIES)  # one was damaged, one is new
    assert found["product", environment_of(HERE)] == {"values": [3, 2]}
    assert found["new", environment_of(HERE)]["values"] == [1]


def test_the_space_in_a_body_means_nothing(tmp_path):
    dense = dataclasses.replace(ENTRIES[0], body='{"values":[1]}')
    file.write(tmp_path / "dense", {}, [dense], never)
    (found,) = file.read(tmp_path / "dense").entries
    assert (found.key, json.loads(found.body)) == (dense.key, {"values": [1]})


def test_a_link_stays_one(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    file.write(link, FIELDS, [entry("new")], never)
    assert link.is_symlink()
    assert len(file.read(saved).entries) == len(file.read(link).entries) == len(ENTRIES) + 1


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


def test_a_full_disk_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def full(*names, **folders):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(mg.CacheError, match="No space left"):
        file.write(saved, FIELDS, [entry("new")], never)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_file_that_would_be_too_large_to_read_is_not_written(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr(file, "LIMIT", len(before) + 10)
    with pytest.raises(mg.CacheError, match="larger"):
        file.write(saved, FIELDS, [entry("new")], never)
    assert saved.read_bytes() == before


def test_where_nothing_can_be_locked_files_are_written(saved, monkeypatch):
    @contextlib.contextmanager
    def refuse(self, exclusive, patience):
        raise OSError(errno.ENOLCK, "No locks available")
        yield

    monkeypatch.setattr(Folder, "locked", refuse)
    file.write(saved, FIELDS, [entry("new")], never)
    assert len(file.read(saved).entries) == len(ENTRIES) + 1


def test_a_writer_that_hangs_stops_nobody_for_ever(saved, monkeypatch):
    monkeypatch.setattr(file, "SECONDS", 0.05)
    handle = os.open(saved.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    file.write(saved, FIELDS, [entry("new")], never)
    os.close(handle)
    assert len(file.read(saved).entries) == len(ENTRIES) + 1


# ---------------------------------------------------------------- many writers, and killed ones


WRITERS = """
import itertools, json, os, random, signal, sys, time
from pathlib import Path
from minigraph.cache import Entry, file

def entry(subject, values, blob=b""):
    return Entry("onednn", subject, (("where", "here"),), json.dumps({"values": values}), blob)

def union(old, new):
    values = {v for e in (old, new) for v in json.loads(e.body)["values"]}
    return entry(new.subject, sorted(values), new.blob)

def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return pid

path = Path(sys.argv[1])
"""


KILLED = """
begun, begin = os.pipe()

def work():
    os.write(begin, b".")
    for i in range(1000):
        file.write(path, {}, [entry(f"{os.getpid()} {i}", [i], bytes(20_000))], union)

file.write(path, {}, [entry("first", [0])], union)
known, unfinished = set(file.read(path).entries), 0
turns = itertools.count(1)
while next(turns) <= int(sys.argv[2]) or not unfinished:
    pid = child(work)
    os.read(begun, 1)
    time.sleep(random.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = file.read(path)
    assert not found.rejected, found.rejected
    assert known <= set(found.entries)
    known = set(found.entries)
    left = len(os.listdir(path.parent)) - 1
    assert left <= 1
    unfinished += left
    if len(known) > 40:
        path.unlink()
        known = set()
        file.write(path, {}, [entry("first", [0])], union)
file.write(path, {}, [], union)
print(*os.listdir(path.parent))
"""


TOGETHER = """
def work(number):
    for i in range(10):
        new = [entry(f"{number} {i}", [i]), entry("all", [number]), entry("equal", [1])]
        file.write(path, {}, new, union)

pids = [child(lambda: work(number)) for number in range(16)]
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
"""


def run(program, path, *arguments):
    return python("-c", WRITERS + program, path, *arguments)[0].split()


@pytest.mark.parametrize("times", [40, long(200)])
def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path, times):
    """At least so many writers, and until one was killed in the middle."""
    assert run(KILLED, tmp_path / "some.cache", times) == ["some.cache"]


def test_of_many_writers_none_loses_the_entries_of_another(tmp_path):
    run(TOGETHER, tmp_path / "some.cache")
    contents = file.read(tmp_path / "some.cache")
    found = {e.subject: json.loads(e.body)["values"] for e in contents.entries}
    assert contents.rejected == []
    assert found.pop("all") == list(range(16))
    assert found.pop("equal") == [1]
    assert found == {f"{n} {i}": [i] for n in range(16) for i in range(10)}
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


@as_root
def test_a_link_of_another_user_is_not_written_through(saved, tmp_path):
    """It could lead to any file of ours."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (folder / "link").symlink_to(mine)
    os.lchown(folder / "link", 12345, 12345)
    with pytest.raises(mg.CacheError, match="link is a link of another user"):
        file.write(folder / "link", FIELDS, [entry("new")], never)
    assert mine.read_text() == "precious"


def test_what_killed_writers_left_goes_and_what_a_writer_uses_stays(saved):
    left, used = (saved.parent / f".minigraph-{name}.tmp" for name in ("left", "used"))
    left.touch()
    with open(used, "w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        file.write(saved, FIELDS, [entry("new")], never)
    assert sorted(os.listdir(saved.parent)) == [used.name, saved.name]
