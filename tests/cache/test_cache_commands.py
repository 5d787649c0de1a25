"""`minigraph cache`: what it shows, checks, clears, exports and imports."""

import contextlib
import json
import os
import resource
import sqlite3
import subprocess
import sys

import pytest
from command_runs import HERE, KERNELS, MEASURED, UNIT, answer, fill, process, run, unused

import minigraph as mg
from minigraph.cache import KINDS, Entry, Store, environment_of, file


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder with an entry of each kind."""
    return fill(tmp_path / "cache", monkeypatch)


def test_an_empty_cache_is_reported_and_not_created(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    reply = answer("cache", "info")
    assert (reply["trusted"], reply["folder"]) == (True, str(tmp_path / "cache"))
    assert set(reply["kinds"]) == {"onednn", "cudnn", "jit"}
    assert all(kind == {"entries": 0, "bytes": 0} for kind in reply["kinds"].values())
    assert answer("cache", "list") == {"entries": [], "rejected": []}
    assert answer("cache", "verify") == {"damaged": []}
    assert answer("cache", "clear")["removed"] == {"onednn": 0, "cudnn": 0, "jit": 0}
    assert not (tmp_path / "cache").exists()


def test_info_counts_and_list_names_the_entries_of_each_kind(folder):
    kinds = answer("cache", "info")["kinds"]
    assert {kind: row["entries"] for kind, row in kinds.items()} == {
        "onednn": 1,
        "cudnn": 1,
        "jit": 2,
    }
    assert len(UNIT) < kinds["jit"]["bytes"] < 2 * len(UNIT)
    entries = answer("cache", "list")["entries"]
    assert [e["kind"] for e in entries] == ["onednn", "cudnn", "jit", "jit"]
    assert (entries[0]["subject"], entries[0]["environment"]) == ("convolution 3 64", dict(HERE))


def test_entries_stand_below_what_they_hold_for_in_lines_of_a_terminal(folder):
    other = environment_of({**dict(HERE), "oneDNN": "3.3.0", "compiler": "c" * 30, "flags": ""})
    more = [Entry("onednn", f"convolution {i} " * 9, other, "[]") for i in range(2)]
    assert Store(folder).keep(more, unused)
    lines = run("cache", "list", "--kind", "onednn")[0].splitlines()
    titles = [line for line in lines if "KiB" not in line]
    assert titles == [
        f"onednn, 2 entries: compiler {'c' * 23}…, oneDNN 3.3.0, processor",
        "  x86_64 of some kind",
        "onednn, 1 entry: oneDNN 3.2.0, processor x86_64 of some kind",
    ]
    numbers = [line.split()[2:4] for line in lines if "KiB" in line]
    assert numbers == [["convolution", n] for n in ("0", "1", "3")]


def test_a_folder_that_others_can_change_is_not_trusted(folder):
    folder.chmod(0o777)
    printed, errors = run("cache", "info", "--json")
    reply = json.loads(printed)
    assert (reply["trusted"], reply["kinds"]["onednn"]["entries"]) == (False, 0)
    assert "can be written by other users" in reply["reason"]
    assert all(line.startswith("minigraph: ") for line in errors.splitlines())
    run("cache", "clear")
    folder.chmod(0o700)
    assert len(Store(folder).entries(*KINDS)) == 4


def test_verify_finds_a_damaged_entry(folder):
    assert answer("cache", "verify") == {"damaged": []}
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as db, db:
        db.execute("UPDATE blobs SET blob = x'00'")
    damaged = answer("cache", "verify", status=1)["damaged"]
    assert [row["entry"] for row in damaged] == ["mg_one", "mg_two"]
    line = "mg_one: is damaged: its checksum is not that of its contents"
    assert run("cache", "verify", status=1)[0].splitlines()[0] == line


def test_clear_removes_the_entries_of_a_kind_or_all(folder):
    assert answer("cache", "clear", "--kind", "jit")["removed"] == {"jit": 2}
    assert [e["kind"] for e in answer("cache", "list")["entries"]] == ["onednn", "cudnn"]
    assert run("cache", "clear")[0].splitlines()[0] == "onednn  1 entry removed"
    assert answer("cache", "list") == {"entries": [], "rejected": []}


def test_what_was_exported_and_cleared_is_there_again_after_import(folder, tmp_path):
    before = answer("cache", "list")
    exported = answer("cache", "export", tmp_path / "all.cache")
    assert answer("cache", "list", tmp_path / "all.cache") == before
    assert exported == {"file": str(tmp_path / "all.cache"), "exported": 4}
    assert file.read(tmp_path / "all.cache").fields == {"minigraph": mg.__version__}
    run("cache", "clear")
    assert answer("cache", "import", tmp_path / "all.cache")["accepted"] == 4
    assert answer("cache", "list") == before
    assert Store(folder).entries("jit") == KERNELS
    assert answer("cache", "import", tmp_path / "all.cache")["accepted"] == 4  # twice is no harm
    assert answer("cache", "list") == before


def test_one_kind_is_exported_and_imported_alone(folder, tmp_path):
    assert answer("cache", "export", tmp_path / "a", "--kind", "jit")["exported"] == 2
    assert answer("cache", "export", tmp_path / "a", "--kind", "onednn")["exported"] == 1
    assert len(file.read(tmp_path / "a").entries) == 3
    (only,) = answer("cache", "list", tmp_path / "a", "--kind", "onednn")["entries"]
    assert only["subject"] == "convolution 3 64"
    run("cache", "clear")
    assert answer("cache", "import", tmp_path / "a", "--kind", "onednn")["accepted"] == 1
    assert [e["kind"] for e in answer("cache", "list")["entries"]] == ["onednn"]


def test_machine_code_from_a_file_that_others_can_change_is_refused(folder, tmp_path):
    run("cache", "export", tmp_path / "all")
    run("cache", "clear")
    (tmp_path / "all").chmod(0o666)
    reply = answer("cache", "import", tmp_path / "all")
    (name, why), _ = (rejected.values() for rejected in reply["rejected"])
    assert reply["accepted"] == 2
    assert name == "mg_one"
    assert why.startswith("is machine code that others may change: ")
    assert "can be written by other users" in why
    assert Store(folder).entries("jit") == []


@pytest.mark.parametrize("damage", ["missing", "entry"])
def test_a_broken_file_is_refused_with_the_reason(folder, tmp_path, damage):
    path = tmp_path / "some.cache"
    if damage == "entry":
        file.write(path, {}, MEASURED[:1], unused)
        path.write_bytes(path.read_bytes().replace(b"3 64", b"3 65"))
    reply = answer("cache", "import", path, status=1)
    ((name, why),) = (rejected.values() for rejected in reply["rejected"])
    assert reply["accepted"] == 0 and why
    assert name == ("convolution 3 65" if damage == "entry" else str(path))
    summary = f"0 entries accepted, 1 rejected\n{name}: {why}\n"
    assert run("cache", "import", path, status=1) == (summary, "")
    assert answer("cache", "list", path, status=1)["rejected"] == reply["rejected"]
    assert run("cache", "list", path, status=1)[0] == f"{name}: {why}\n"


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(folder, tmp_path):
    printed, errors = run("cache", "export", tmp_path / "missing" / "a", status=1)
    assert not printed
    assert errors == f"minigraph: {tmp_path / 'missing' / 'a'} cannot be written: " + (
        "No such file or directory\n"
    )


def test_a_name_from_a_file_does_nothing_to_the_terminal(folder, tmp_path):
    file.write(tmp_path / "a", {}, [Entry("onednn", "\x1b[2J\nü", HERE, "{}")], unused)
    run("cache", "import", tmp_path / "a")
    assert r"\x1b[2J" in process("cache", "list", PYTHONIOENCODING="utf-8")[0]


def test_a_reader_that_has_seen_enough_ends_it_quietly_and_a_full_disk_does_not(folder, tmp_path):
    command = [sys.executable, "-m", "minigraph", "cache", "list"]
    reader, writer = os.pipe()
    os.close(reader)
    completed = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (completed.returncode, completed.stderr) == (1, "")
    largest = 1 << 20

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    with open(tmp_path / "list", "ab") as full:  # as large as a file may be
        full.truncate(largest)
        completed = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limited
        )
    assert (completed.returncode, completed.stderr.count("\n")) == (1, 1)
    assert "File too large" in completed.stderr
