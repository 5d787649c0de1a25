"""The cache folder: stored entries are found again, even if other processes write or are killed."""

import dataclasses
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import pytest
from cache_entries import ENTRIES, OTHER, UNIT, again, change, entry, found, kernel, newer
from long_runs import long
from new_process import start, wait
from other_user import as_root

import minigraph as mg
from minigraph.cache import KINDS, Store
from minigraph.cache import store as module

pytestmark = pytest.mark.usefixtures("no_private_group")


# ---------------------------------------------------------------- kept and found


def test_stored_entries_are_found_by_their_key_alone(store):
    assert store.keep(ENTRIES, newer)
    for one in ENTRIES:
        assert found(again(store), one) == one
    assert found(store, entry("c")) is None
    assert found(store, entry("product", fields=OTHER, kind="cudnn")) is None
    assert found(store, entry("product")) is None
    assert (store.rejected, store.verify()) == (0, [])


def test_kernels_that_were_compiled_together_share_their_machine_code(store):
    def blobs():
        return sqlite3.connect(store.path).execute("SELECT blob FROM blobs").fetchall()

    kernels = [kernel(f"mg_{i}") for i in range(20)]
    store.keep(kernels, newer)
    assert blobs() == [(UNIT,)]
    one, *others = store.find(kernels)
    assert one == kernels[0] and all(each.blob is one.blob for each in others)
    store.keep([kernel("mg_0", b"new")], newer)
    assert store.find(kernels) == [kernel("mg_0", b"new"), *kernels[1:]]
    store.clear("jit")
    assert blobs() == []


def test_nothing_is_made_to_look_something_up(store):
    assert found(store, entry("a")) is None
    assert store.keep([], newer)
    assert store.entries() == store.verify() == store.nearest("onednn", "a") == []
    store.clear()
    assert not store.root.exists()


def test_an_entry_that_is_there_is_merged(store):
    def append(old, new):
        return dataclasses.replace(
            new, body=json.dumps(json.loads(old.body) + json.loads(new.body))
        )

    for number in (3, 1, 2):
        store.keep([entry("a", f"[{number}]"), entry("b", f"[{-number}]")], append)
    assert [e.body for e in store.entries()] == ["[3, 1, 2]", "[-3, -1, -2]"]


def test_a_merge_that_fails_leaves_all_as_it_was(store):
    def fail(old, new):
        raise ZeroDivisionError

    store.keep([entry("a")], newer)
    with pytest.raises(ZeroDivisionError):
        store.keep([entry("b"), entry("a", "[2]")], fail)
    assert store.entries() == [entry("a")]
    assert store.keep([entry("a", "[2]")], newer)


def test_entries_are_listed_and_cleared_by_kind(store):
    one, other = entry("b"), entry("a", fields=OTHER)
    third, code = entry("a", kind="cudnn"), kernel("mg_one")
    store.keep([one, code, other, third], newer)
    assert store.entries() == [other, one, third]  # what was measured
    assert store.entries(*KINDS) == [other, one, third, code]
    assert store.entries("jit") == [code]
    store.clear("onednn", "jit")
    assert store.entries(*KINDS) == [third]
    store.clear()
    assert store.entries() == []


def test_the_nearest_are_about_the_same_in_other_environments(store):
    store.keep([entry("a"), entry("b", fields=OTHER)], newer)
    store.keep([entry("a", fields=OTHER)], newer)
    assert store.nearest("onednn", "a") == [entry("a", fields=OTHER), entry("a")]


def test_the_database_is_for_its_owner_alone(store):
    old = os.umask(0)
    try:
        store.keep([entry("a")], newer)
    finally:
        os.umask(old)
    modes = [path.stat().st_mode & 0o777 for path in (*store.root.iterdir(), store.path)]
    assert set(modes) == {0o600}
    assert store.root.stat().st_mode & 0o777 == 0o700


def test_threads_and_forked_children_use_one_store(store):
    def write(number):
        for i in range(10):
            assert store.keep([entry(f"{number} {i}")], newer)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.entries()) == 40
    script = """
import os
store.keep([entry("parent")], newer)
child = os.fork()
if not child:
    os._exit(not store.keep([entry("child")], newer) or found(store, entry("parent")) is None)
assert os.waitpid(child, 0)[1] == 0
assert found(store, entry("child"))
"""
    wait(begin(script, store))


# ---------------------------------------------------------------- size


def test_the_least_recently_used_entries_are_evicted_first(store):
    small = Store(store.root, limit=300_000)
    large = [entry(f"{i:02}", json.dumps("x" * 10_000)) for i in range(40)]
    for one in large[:15]:
        small.keep([one], newer)
    assert change(small.path, "UPDATE entries SET used = CAST(subject AS INTEGER)") == 15
    other = again(small)
    other.find(large[:2])
    change(small.path, "UPDATE entries SET used = ? WHERE subject = '04'", 1 << 62)  # in the future
    new = 15
    while len(small.entries()) == new:
        small.keep([large[new]], newer)
        new += 1
    left = {int(one.subject) for one in small.entries()}
    gone = set(range(new)) - left
    assert new / 5 < len(gone) < new / 2  # about a quarter makes room
    assert gone == set([4, 2, 3, *range(5, 15)][: len(gone)])
    small.keep(large, newer)  # more than there is room for: what is written stays
    assert small.entries() == large
    small.keep(large[:1], newer)
    assert small.path.stat().st_size < 1_000_000
    assert len(small.entries()) < 20


def test_an_entry_that_is_found_is_marked_as_used_once_an_hour(store):
    def used():
        return [row for (row,) in sqlite3.connect(store.path).execute("SELECT used FROM entries")]

    def use(store):
        store.find([entry(name) for name in "ab"])

    store.keep([entry("a"), entry("c")], newer)
    change(store.path, "UPDATE entries SET used = 7")
    use(store)
    now, unused = used()
    assert now > unused == 7
    use(again(store))
    assert used() == [now, 7]
    change(store.path, "UPDATE entries SET used = ? WHERE subject = 'a'", now + 7200)
    use(again(store))  # the clock was set back
    assert used()[0] < now + 3600


def test_machine_code_goes_with_the_last_kernel_that_it_has(tmp_path):
    store = Store(tmp_path, limit=300_000)
    for i in range(40):
        assert store.keep([kernel(f"mg_{i}_{k}", bytes([i]) * 20_000) for k in range(3)], newer)
        assert store.path.stat().st_size < 500_000
    left = store.entries("jit")
    assert 9 <= len(left) < 45
    assert kernel("mg_39_2", bytes([39]) * 20_000) in left
    assert store.verify() == []


# ---------------------------------------------------------------- folders and disks that refuse


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_change_is_not_used(store, mode):
    store.keep([entry("a")], newer)
    store.root.chmod(mode)
    with pytest.warns(mg.MinigraphWarning, match="can be written by other users") as warned:
        assert found(store, entry("a")) is None
        assert not store.keep([entry("b")], newer)
        assert store.entries() == []
    assert len(warned) == 1
    ((_, why),) = store.verify()
    assert "can be written by other users" in why
    store.root.chmod(0o700)
    assert store.entries() == [entry("a")]


def test_a_removed_folder_is_created_again(store):
    store.keep([entry("a")], newer)
    shutil.rmtree(store.root)
    assert found(store, entry("a")) is None
    assert store.keep([entry("b")], newer)
    assert store.entries() == [entry("b")]


def connection_waits(monkeypatch):
    """The list to which each new connection adds how long it waits for locks."""
    waits, connect = [], sqlite3.connect

    def connected(*args, timeout, **options):
        waits.append(timeout)
        return connect(*args, timeout=timeout, **options)

    monkeypatch.setattr(sqlite3, "connect", connected)
    return waits


@pytest.mark.parametrize("statement", ["BEGIN EXCLUSIVE", "PRAGMA locking_mode = EXCLUSIVE"])
def test_a_database_that_stays_locked_is_waited_for_once(store, monkeypatch, statement):
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.2)
    store.keep([entry("a")], newer)
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute(statement)
    db.execute("UPDATE entries SET used = 1")
    other = again(store)
    waits = connection_waits(monkeypatch)
    with pytest.warns(mg.MinigraphWarning, match="database is locked") as warned:
        assert not other.keep([entry("b")], newer)
        assert not other.keep([entry("b")], newer)
    assert (len(warned), waits) == (1, [0.2, 0])
    db.close()
    assert other.keep([entry("b")], newer)
    assert other._lock_timeout == 0.2
    assert other.entries() == [entry("a"), entry("b")]


def test_a_writer_that_stays_is_waited_for_once_and_stops_no_reader(store, monkeypatch, recwarn):
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 600.0)
    kept = [entry(f"{i}") for i in range(5)]
    store.keep(kept, newer)
    change(store.path, "UPDATE entries SET used = 7")  # so that finding them is a reason to write
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    other, began = again(store), time.monotonic()
    for one in kept:
        assert found(other, one) == one
    assert time.monotonic() - began < module.LOCK_TIMEOUT
    assert not recwarn.list
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.2)
    other, waits = again(store), connection_waits(monkeypatch)
    with pytest.warns(mg.MinigraphWarning, match="database is locked"):
        for one in kept:
            assert not other.keep([one], newer)
            assert found(other, one) == one
    assert waits == [0.2, *[0] * 9]
    db.close()
    assert other.keep(kept, newer)
    assert other._lock_timeout == 0.2


PROLOGUE = """
import dataclasses, json, os, random, resource, signal, sys, time, warnings
from pathlib import Path
from cache.cache_entries import *
store = Store(Path(sys.argv[1]))
"""


def begin(script, store, *arguments):
    """Start a script in another process, in which `store` is the same folder."""
    root = store.root
    return start("-c", PROLOGUE + script, root, *arguments, OPENBLAS_NUM_THREADS="1")


FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for limit in (0, 1, 4096, 10_000, 40_000, 100_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    warnings.simplefilter("ignore")
    kept = store.keep([entry(f"{i} {limit}", json.dumps([1] * 3000)) for i in range(20)], newer)
    assert found(store, entry("a")) in (None, entry("a"))
    assert not kept, limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    warnings.simplefilter("error")
    assert store.entries() == [entry("a")], limit
    assert store.verify() == []
    assert store.keep([entry("a")], newer)
"""


def test_a_disk_that_is_full_costs_the_new_entries_only(store):
    store.keep([entry("a")], newer)
    wait(begin(FULL, store))


READ_ONLY = """
os.seteuid(12345)
assert found(store, entry("a")) == entry("a")
assert store.entries() == [entry("a")]
assert store.verify() == []
warnings.simplefilter("ignore")
assert not store.keep([entry("b")], newer)
assert found(store, entry("a")) == entry("a")
"""


@as_root
@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_folder_that_can_only_be_read_is_read(ending):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        store = Store(root)
        store.keep([entry("a")], newer)
        if ending:
            Path(f"{store.path}{ending}").touch()
        store.root.chmod(0o755)
        for path in store.root.iterdir():
            path.chmod(0o644)
        wait(begin(READ_ONLY, store))


# ---------------------------------------------------------------- many processes


WRITERS, COUNT = 4, 20
WRITER = (
    f"COUNT = {COUNT}"
    + """
number = int(sys.argv[2])
for i in range(COUNT):
    mine, shared = entry(f"{number} {i}"), entry(f"shared {i % 7}", f"[{number * 100 + i}]")
    assert store.keep([mine, shared], both)
    assert number in {n // 100 for n in json.loads(found(store, shared).body)}
assert all(found(store, entry(f"{number} {i}")) for i in range(COUNT))
"""
)


def test_processes_that_write_at_once_lose_nothing(store):
    for writer in [begin(WRITER, store, number) for number in range(WRITERS)]:
        wait(writer)
    assert store.verify() == []
    kept = {e.subject: json.loads(e.body) for e in store.entries()}
    assert len(kept) == WRITERS * COUNT + 7
    for k in range(7):
        expected = [n * 100 + i for n in range(WRITERS) for i in range(COUNT) if i % 7 == k]
        assert kept[f"shared {k}"] == expected


KILLED = """
import select
rng = random.Random(0)
number = 0
for turn in range(int(sys.argv[2])):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        while True:
            number += 1
            tale = [entry(f"{number}", json.dumps([number] * 50)), entry("all", f"[{number}]")]
            if not store.keep(tale, newer):
                os._exit(1)
            os.write(tell, b"%d\\n" % number)
    os.close(tell)
    select.select([told], [], [], 60)  # it has begun
    time.sleep(rng.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    with open(told) as lines:
        acknowledged = [int(line) for line in lines]
    assert store.verify() == []
    (last,) = json.loads(found(store, entry("all")).body)
    assert last in (acknowledged[-1], acknowledged[-1] + 1)  # it died before it could tell
    for n in (*acknowledged, last):
        assert found(store, entry(f"{n}")).body == json.dumps([n] * 50)
    number = last
assert {e.subject for e in store.entries()} == {"all", *map(str, range(1, number + 1))}
assert store.rejected == 0
"""


@pytest.mark.parametrize("times", [10, long(200)])
def test_a_writer_that_is_killed_loses_nothing_that_it_had_kept(store, times):
    wait(begin(KILLED, store, times))
