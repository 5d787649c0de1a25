"""A cache folder that is damaged: misses, which are counted and mended."""

import functools
import json
import os
import random
import sqlite3
from pathlib import Path

import pytest
from attacks.damage import MUTATIONS
from cache_entries import MACHINE, OTHER, again, both, change, entry, found, kernel, newer
from long_runs import long

import minigraph as mg
from minigraph.cache import database
from minigraph.cache import store as module

pytestmark = pytest.mark.usefixtures("no_private_group")


ROW = {
    "body": "UPDATE entries SET body = '[2]'",
    "digest": "UPDATE entries SET digest = 'b'",
    "checksum": "UPDATE entries SET checksum = checksum || '0'",
    "type": "UPDATE entries SET body = x'5b315d'",
    "no text": "UPDATE entries SET body = CAST(x'ff' AS TEXT)",
    "swapped": "UPDATE entries SET body = (SELECT body FROM entries WHERE subject = 'b'),"
    " checksum = (SELECT checksum FROM entries WHERE subject = 'b')",
}


@pytest.mark.parametrize("name", ROW)
def test_a_damaged_row_is_a_miss_that_is_counted_and_can_be_kept_again(store, name):
    good = entry("b", "[5]")
    store.keep([entry("a"), good], newer)
    assert change(store.path, f"{ROW[name]} WHERE subject = 'a'") == 1
    assert store.verify() == [("a", "is damaged: its checksum is not that of its contents")]
    assert store.entries() == [good]
    assert found(store, entry("a")) is None
    assert store.rejected == 1
    assert store.keep([entry("a")], newer)
    assert (store.verify(), store.entries(), store.rejected) == ([], [entry("a"), good], 1)


def test_a_row_with_another_key_than_was_asked_for_is_a_miss(store, monkeypatch):
    store.keep([entry("a")], newer)
    # As an index that is damaged finds rows.
    monkeypatch.setattr(database, "WHERE_KEY", " WHERE ? IS NOT NULL AND ? <> ?")
    assert found(store, entry("a")) == entry("a")
    assert found(store, entry("b")) is None
    assert store.rejected == 1


def test_a_file_that_may_be_damaged_is_opened_with_care(store):
    def care(db):
        names = ("trusted_schema", "cell_size_check", "synchronous")
        values = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return dict(zip(names, values, strict=True)), db.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    store.keep([entry("a")], newer)
    settings = {"trusted_schema": 0, "cell_size_check": 1, "synchronous": 1}  # 1: normal
    assert store._run(care, None) == (settings, database.MAX_VALUE)


def test_a_damaged_row_is_not_merged(store):
    store.keep([entry("a", "[1]")], newer)
    change(store.path, "UPDATE entries SET body = '[7]'")
    store.keep([entry("a", "[2]")], both)
    assert found(store, entry("a")) == entry("a", "[2]")


def test_kernels_of_damaged_machine_code_are_misses_and_can_be_kept_again(store):
    kernels, other = [kernel("mg_one"), kernel("mg_two")], kernel("mg_three", b"other")
    for damage in (
        "UPDATE blobs SET blob = x'00' WHERE length(blob) > 5",
        "UPDATE blobs SET blob = CAST(blob AS TEXT) WHERE length(blob) > 5",
        "DELETE FROM blobs WHERE length(blob) > 5",
        "UPDATE blobs SET digest = 'a' WHERE length(blob) > 5",
    ):
        store.keep([*kernels, other], newer)
        assert change(store.path, damage) == 1
        assert [name for name, _ in store.verify()] == ["mg_one", "mg_two"]
        assert store.entries("jit") == [other]
        assert store.find([*kernels, other]) == [None, None, other]
    assert store.rejected == 2
    store.keep(kernels, newer)
    assert (store.find(kernels), store.verify()) == (kernels, [])


@pytest.mark.parametrize("environment", ["[]", "{", "3", '{"processor": 1}', "[" * 100_000])
def test_an_entry_with_a_malformed_environment_is_damaged(store, environment):
    store.keep([entry("a")], newer)
    change(store.path, "UPDATE entries SET environment = ?", environment)
    assert store.entries() == store.nearest("onednn", "a") == []
    assert store.verify() == [("a", "is damaged: its checksum is not that of its contents")]


def test_another_schema_is_as_if_there_were_nothing(store, monkeypatch):
    store.keep([entry("a")], newer)
    change(store.path, "PRAGMA user_version = 9")
    assert store.verify() == [("cache.db", "has schema 9; this version of minigraph reads 2")]
    assert found(store, entry("a")) is None
    assert store.keep([entry("b")], newer)
    assert store.entries() == [entry("b")]


@pytest.mark.filterwarnings("ignore:.*was damaged.*a new database replaces it")
@pytest.mark.parametrize("ending", ["", "-wal"])
@pytest.mark.parametrize("count", [100, long(1000)])
def test_no_mutation_of_a_file_makes_a_wrong_entry(store, ending, count):
    """As many of the database or of its log; afterwards entries can be kept again."""
    kept = [entry(f"{i}", json.dumps([i] * 200), (MACHINE, OTHER)[i % 2]) for i in range(60)]
    store.keep(kept, newer)
    db = sqlite3.connect(store.path)
    db.execute("SELECT count(*) FROM entries").fetchall()  # from now on the log does not go
    store.keep(kept[:20], newer)
    files = {end: Path(f"{store.path}{end}").read_bytes() for end in ("", "-wal")}
    db.close()
    assert all(len(data) > 10_000 for data in files.values())
    rng = random.Random(f"1 {ending}")
    missed = 0
    for i in range(count):
        name = list(MUTATIONS)[i % len(MUTATIONS)]
        Path(f"{store.path}-shm").unlink(missing_ok=True)
        for end, data in files.items():
            changed = MUTATIONS[name](data, rng) if end == ending else data
            Path(f"{store.path}{end}").write_bytes(changed)
        one = kept[rng.randrange(len(kept))]
        fresh = again(store)
        result = found(fresh, one)
        missed += result is None
        assert result in (None, one), name
        if i % 5 == 0:
            assert set(fresh.entries()) <= set(kept), name
            assert fresh.keep([one], newer), name
            assert found(fresh, one) == one, name
    assert missed > count // 10 or ending == "-wal"


def test_damage_is_reported_once_and_verify_repairs_nothing(store):
    store.keep([entry("a")], newer)
    store.path.write_bytes(b"garbage" * 1000)
    assert store.verify() == [("cache.db", "file is not a database")]
    assert store.path.stat().st_size == 7000
    with pytest.warns(mg.MinigraphWarning, match="a new database replaces it") as warned:
        assert store.entries() == []
        assert found(store, entry("a")) is None
    assert len(warned) == 1


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_a_directory_in_place_of_a_file_is_a_miss_with_a_warning(store, ending):
    store.keep([entry("a")], newer)
    path = Path(f"{store.path}{ending}")
    path.unlink(missing_ok=True)
    path.mkdir()
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results") as warned:
        for _ in range(3):
            assert found(store, entry("a")) is None
            assert not store.keep([entry("a")], newer)
    assert len(warned) == 1
    path.rmdir()
    assert store.keep([entry("a")], newer)


DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


@pytest.mark.parametrize("extended", [0, 7 << 8])
@pytest.mark.parametrize("code", range(1, 29))  # all primary codes of errors
def test_only_damage_codes_remove_a_database(store, code, extended):
    def refused(db):
        error = sqlite3.OperationalError("as if")
        error.sqlite_errorcode = code | extended
        raise error

    store.keep([entry("a")], newer)
    with pytest.warns(mg.MinigraphWarning, match="a new database" if code in DAMAGE else "as if"):
        assert store._run(refused, "failed") == "failed"
    assert store._lock_timeout == (0.0 if code in BUSY else module.LOCK_TIMEOUT)
    assert again(store).entries() == ([] if code in DAMAGE else [entry("a")])


def test_an_entry_that_is_too_large_is_not_kept_and_harms_no_other(store, monkeypatch):
    monkeypatch.setattr(database, "MAX_VALUE", 100_000)
    store.keep([entry("a")], newer)
    with pytest.warns(mg.MinigraphWarning, match="too big"):
        assert not store.keep([entry("b"), entry("c", json.dumps("x" * 100_000))], newer)
    assert store.entries() == [entry("a")]


def test_a_row_that_is_too_large_is_a_miss_and_can_be_kept_again(store, monkeypatch):
    store.keep([entry("a"), entry("b", "x" * 200_000), kernel("mg_one", bytes(200_000))], newer)
    monkeypatch.setattr(database, "MAX_VALUE", 100_000)
    expected = [entry("b"), entry("a"), kernel("mg_one", b"x")]
    assert store.find(expected) == [None, entry("a"), None]
    assert store.keep(expected, newer)
    assert store.find(expected) == expected


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


STATEMENTS = [
    f"CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT * FROM ({ENDLESS}); END",
    f"CREATE TRIGGER t BEFORE UPDATE ON entries BEGIN SELECT * FROM ({ENDLESS}); END",
    f"CREATE VIEW v AS {ENDLESS}",
    "CREATE INDEX i ON entries (body)",
    "CREATE TABLE other (x)",
    "ALTER TABLE entries ADD COLUMN more TEXT",
    "ALTER TABLE entries RENAME TO more",
    "DROP TABLE entries",
    "PRAGMA user_version = 0",
]


def pipe(path, ending):
    """Put a pipe in place of a file of the database."""
    Path(f"{path}{ending}").unlink(missing_ok=True)
    os.mkfifo(f"{path}{ending}")


def schema_without_text(path):
    path.write_bytes(path.read_bytes().replace(b"blob BLOB", b"`\xf2ob BLOB"))


# What is in place of the database, or beside it, and must not stay.
REPLACED = {
    **{sql: functools.partial(change, statement=sql) for sql in STATEMENTS},
    **{
        f"a pipe{ending}": functools.partial(pipe, ending=ending)
        for ending in ("", "-wal", "-shm", "-journal")
    },
    "a schema that is no text": schema_without_text,
    "a table of other columns": lambda path: (
        path.unlink(),
        change(path, "CREATE TABLE entries (x)"),
    ),
    "a link": lambda path: (path.rename(f"{path}.old"), path.symlink_to(f"{path}.old")),
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "open to the group": lambda path: path.chmod(0o660),
    "open to all": lambda path: path.chmod(0o606),
    "of another user": lambda path: os.chown(path, 12345, -1),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.usefixtures("promptly")
def test_a_database_with_other_tables_or_that_others_may_have_placed_is_replaced(store, name):
    if "user" in name and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    store.keep([entry("a")], newer)
    REPLACED[name](store.path)
    with pytest.warns(mg.MinigraphWarning, match="a new database replaces it"):
        assert found(store, entry("a")) is None
    assert store.keep([entry("b")], newer)
    assert store.entries() == [entry("b")]


@pytest.mark.usefixtures("promptly")
def test_a_query_that_does_not_end_is_stopped(store, monkeypatch):
    monkeypatch.setattr(database, "MAX_SECONDS", 0.1)
    store.keep([entry("a")], newer)
    with pytest.warns(mg.MinigraphWarning, match="interrupted"):
        assert store._run(lambda db: db.execute(ENDLESS).fetchall(), None) is None
    assert found(store, entry("a")) == entry("a")


def test_a_database_that_stays_damaged_is_a_miss_with_a_warning(store, monkeypatch):
    store.keep([entry("a")], newer)
    store.path.write_bytes(b"garbage" * 1000)
    # As a program that writes there all the time, and asks for no lock.
    monkeypatch.setattr(store, "_remove", lambda: None)
    with pytest.warns(mg.MinigraphWarning) as warned:
        for _ in range(3):
            assert found(store, entry("a")) is None
            assert store.entries() == store.nearest("onednn", "a") == []
            assert not store.keep([entry("a")], newer)
            store.clear()
    assert {"cannot keep results" in str(w.message) for w in warned} == {True, False}
    assert store.verify() == [("cache.db", "file is not a database")]
