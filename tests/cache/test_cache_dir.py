"""`compile(optimize=, cache_dir=)`: a function's own file, whatever is on disk."""

import os
import shutil

import pytest
from cache_calls import entries, warned_once
from cache_entries import change
from needs import needs_both
from new_process import forget_measurements
from small_network import batch, compiled, work

import minigraph as mg
from minigraph.autotune.measurement import merge
from minigraph.cache import file

pytestmark = [needs_both, pytest.mark.usefixtures("no_private_group")]


@pytest.fixture
def beside(start, tuned, tmp_path):
    """The file that a function has in a folder of its own, with a copy of the cache folder."""
    start(tuned)
    (tmp_path / "mine").mkdir(mode=0o700)
    function = compiled(optimize=True, cache_dir=tmp_path / "mine")
    (path,) = (tmp_path / "mine").iterdir()
    assert path.name == f"{function.report().fingerprint[-7:]}.cache"
    return path


def test_the_file_of_a_function_holds_all_that_it_needs(beside, start):
    start()
    compiled(optimize=True, cache_dir=beside.parent)
    assert work() == (0, 0)
    fields = file.read(beside).fields
    assert fields["fingerprint"][-7:] == beside.stem
    assert {"minigraph", "onednn", "device", "options", "graph"} <= fields.keys()


def test_the_file_of_a_function_serves_where_the_cache_folder_takes_nothing(beside, start):
    start().write_text("no folder")
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results"):
        function = compiled(optimize=True, cache_dir=beside.parent)
    assert work() == (0, 0)
    assert {a.origin for a in function.report().algorithms} == {"loaded file"}


def test_a_cache_folder_that_cannot_be_made_raises_a_warning(start, monkeypatch):
    start()  # without kernels of other tests, which have the same text
    # A process has no folders but those that the system makes.
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", "/proc/self/cache")
    x = mg.input("x", (4,))
    with pytest.warns(mg.MinigraphWarning, match="/proc/self/cache cannot keep results"):
        mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], x * 0.3125 + 7)


def test_an_unwritable_folder_is_warned_of_once(beside, start, tmp_path):
    start()
    (tmp_path / "file").touch()
    with pytest.warns(
        mg.MinigraphWarning, match="Not a directory; measurements and kernels are not"
    ) as all_:
        for n in (64, 65):
            x = mg.input("x", (n, 64))
            mg.comp_graph().compile([x], x @ x.T, optimize=True, cache_dir=tmp_path / "file")
    assert len(all_) == 1


def test_a_file_to_which_nothing_is_added_is_not_written(beside, start, tuned):
    os.utime(beside, ns=(7, 7))
    compiled(optimize=True, cache_dir=beside.parent)
    start(tuned)
    compiled(optimize=True, cache_dir=beside.parent)
    start()
    compiled(optimize=True, cache_dir=beside.parent)
    assert beside.stat().st_mtime_ns == 7


def test_a_file_that_lacks_something_is_completed(beside, start):
    whole, fields = {*entries(beside)}, file.read(beside).fields
    beside.unlink()
    compiled(optimize=None, autotune="off", cache_dir=beside.parent)
    some = {*entries(beside)}
    assert {entry.kind for entry in some} == {"jit"}
    compiled(optimize=True, cache_dir=beside.parent)
    assert file.read(beside).fields == fields
    assert {*entries(beside)} >= some | whole


def header(**changed):
    """Return a function that changes a file's fields to those of another version or function."""

    return lambda path: file.write(path, {**file.read(path).fields, **changed}, [], merge)


BODIES = "UPDATE entries SET body = body || ' ' WHERE kind = 'onednn'"
DAMAGE = {  # test_cache_file.py has the other ways in which a file is damaged
    "garbage": (lambda path: path.write_bytes(bytes(range(256))), "no cache file of minigraph"),
    "changed": (lambda path: change(path, BODIES), "is damaged: its checksum .* and [0-9]+ more"),
    "another version": (header(minigraph="0.0.1"), "minigraph is '0.0.1' there, '.*' here"),
    "another graph": (header(graph="4f2c"), "graph is '4f2c' there, '.*' here"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_unusable_file_is_warned_of_once_and_written_again(beside, start, tuned, name):
    whole = beside.read_bytes()
    damage, why = DAMAGE[name]
    damage(beside)
    start(tuned)
    with warned_once(why):
        first = compiled(optimize=True, cache_dir=beside.parent)
        damage(beside)
        compiled(optimize=True, cache_dir=beside.parent)
    assert first(*batch()).shape == ()
    assert beside.read_bytes() == whole


def no_folder(path):
    shutil.rmtree(path.parent)


def a_directory(path):
    path.unlink()
    path.mkdir()


def not_a_folder(path):
    no_folder(path)
    path.parent.write_text("")


@pytest.mark.parametrize("spoil", [no_folder, a_directory, not_a_folder])
def test_a_place_where_no_file_can_be_costs_the_file_only(beside, start, tuned, spoil):
    spoil(beside)
    start(tuned)
    with warned_once(str(beside)):
        for _ in range(2):
            function = compiled(optimize=True, cache_dir=beside.parent)
    assert function(*batch()).shape == ()
    assert {a.origin for a in function.report().algorithms} == {"stored"}


def test_a_file_writable_by_other_users_is_warned_of_and_not_used(beside, start):
    start()
    beside.chmod(0o666)
    with warned_once("can be written by other users"):
        compiled(optimize=True, cache_dir=beside.parent)
    assert min(work()) > 0


def test_without_optimizing_no_cache_is_read_or_written(start, beside, monkeypatch, tmp_path):
    want = compiled()(*batch())
    before = beside.read_bytes()
    folder = start()
    os.utime(beside, ns=(7, 7))
    monkeypatch.chdir(tmp_path)
    there = sorted(tmp_path.rglob("*"))
    function = compiled(level=3, optimize=False, cache_dir=beside.parent)
    assert function(*batch()) == pytest.approx(want, rel=1e-5)
    assert {a.origin for a in function.report().algorithms} == {"heuristic"}
    assert work()[0] == 0
    assert (beside.read_bytes(), beside.stat().st_mtime_ns) == (before, 7)
    assert not folder.exists()
    assert sorted(tmp_path.rglob("*")) == there
    stats = mg.autotune.stats()
    assert (stats.hits, stats.misses, mg.jit.stats().disk_hits) == (0, 0, 0)


def test_optimizing_tunes_where_the_option_is_off(start, tuned):
    start(tuned, forget_measurements)
    for level in (1, 2):
        function = compiled(level=level, optimize=True, autotune="off")
        assert {a.origin for a in function.report().algorithms} <= {"stored", "measured"}
        assert function.report().options["autotune"] == "tune"
