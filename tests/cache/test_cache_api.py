"""What a user does with caches: nothing is measured or compiled twice, whatever is on disk."""

import contextlib
import dataclasses
import json
import os
import shutil

import pytest
from needs import needs_both
from new_process import begin, forget_measurements
from small_network import batch, compiled, elsewhere, graph_compiler, network, work
from tuned_folder import tuned_folder

import minigraph as mg
from minigraph.autotune.measurement import merge
from minigraph.cache import file

pytestmark = [
    needs_both,
    pytest.mark.usefixtures("no_private_group"),
]


@pytest.fixture(scope="module")
def tuned(run_folder):
    """A folder with a cache folder, in which all is measured and compiled, and a file with it."""
    return tuned_folder(run_folder)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that begins a process, with an empty cache folder or with a copy of one.

    The test itself begins with an empty one, and with the kernels of this process.
    """

    def start(copied=None, begin=begin):
        folder = tmp_path / "cache"
        shutil.rmtree(folder, ignore_errors=True)
        if copied:
            shutil.copytree(copied / "cache", folder)
        begin(monkeypatch, folder)
        return folder

    start(begin=forget_measurements)
    return start


@pytest.fixture
def saved(tuned, tmp_path):
    """A copy of the file."""
    return shutil.copy(tuned / "net.cache", tmp_path / "net.cache")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def loaded(path, type="all"):
    """Return a graph compiler that has loaded a file, and the result."""
    cg = graph_compiler()
    return cg, cg.load_cache(path, type)


def compile_with(cg):
    net = network()
    return cg.compile(net.inputs, net.loss, updates=net.updates)


@contextlib.contextmanager
def warned_once(match):
    """Check that there is one warning inside, of one line."""
    with pytest.warns(mg.MinigraphWarning, match=match) as found:
        yield
    assert len(found) == 1
    assert "\n" not in str(found[0].message)


# ---------------------------------------------------------------- between processes


def test_a_second_process_measures_and_compiles_nothing(start, tuned):
    folder = start(tuned)
    compiled()
    assert work() == (0, 0)
    assert elsewhere(folder, "compiled() and work()") == [0, 0]


def test_what_is_stored_serves_every_level(start, tuned):
    start(tuned, forget_measurements)
    compiled(level=3)
    assert mg.autotune.stats().measurements == 0
    start(tuned, forget_measurements)
    compiled(level=-2, bulk=False)
    assert mg.autotune.stats().measurements == 0


# ---------------------------------------------------------------- save_cache, load_cache


@pytest.mark.parametrize("type", ["onednn", "mkldnn", "all"])
def test_what_was_measured_comes_back_from_a_file(start, tuned, tmp_path, type):
    start(tuned)
    path = tmp_path / "one.cache"
    compiled().save_cache(path, type)
    start(begin=begin if type == "all" else forget_measurements)
    cg, result = loaded(path, type)
    assert (result.accepted > 0, result.rejected) == (True, [])
    assert {a.origin for a in compile_with(cg).report().algorithms} == {"loaded file"}
    assert work() == (0, 0)


def test_kernels_come_back_from_a_file(start, tuned, tmp_path):
    start(tuned)
    compiled(autotune="off").save_cache(tmp_path / "one.cache", "jit")
    start()
    cg, result = loaded(tmp_path / "one.cache", "jit")
    cg.set_option("autotune", "off")
    compile_with(cg)
    assert (result.accepted > 0, result.rejected) == (True, [])
    assert (work(), mg.jit.stats().disk_hits > 0) == ((0, 0), True)


def test_a_type_that_the_device_has_no_use_for_is_an_empty_file(start, saved, tmp_path):
    compiled(autotune="off").save_cache(tmp_path / "one.cache", "cudnn")
    for path in (tmp_path / "one.cache", saved):
        _, result = loaded(path, "cudnn")
        assert (result.accepted, result.rejected) == (0, [])


def test_a_type_takes_its_entries_out_of_a_file_that_has_more(start, saved):
    kinds = [line["kind"] for line in lines(saved)[1:]]
    for type, count in (("jit", kinds.count("jit")), ("mkldnn", kinds.count("onednn"))):
        start()
        _, result = loaded(saved, type)
        assert (result.accepted, result.rejected) == (count, [])
    assert set(kinds) == {"jit", "onednn"}


def test_a_loaded_file_counts_for_its_graph_compiler_alone(start, saved):
    cg, _ = loaded(saved, "onednn")
    compiled(autotune="cached", optimize=None)
    assert {a.origin for a in compiled(autotune="cached").report().algorithms} == {"heuristic"}
    assert {a.origin for a in compile_with(cg).report().algorithms} == {"loaded file"}


def test_an_unknown_type_is_an_option_error_that_lists_the_types(start, saved):
    function = compiled(autotune="off")
    for use in (graph_compiler().load_cache, function.save_cache):
        with pytest.raises(mg.OptionError, match="'onednn', 'mkldnn', 'cudnn', 'jit', 'all'"):
            use(saved, "cublas")


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tuned, start, tmp_path, nowhere):
    start(tuned)
    function = compiled()
    for place in (tmp_path / "missing" / "net.cache", tmp_path, nowhere):
        with pytest.raises(mg.CacheError, match=f"{place} cannot be written: ") as failed:
            function.save_cache(place)
        assert "\n" not in str(failed.value)


def test_a_missing_file_is_rejected_by_name(start, tuned, tmp_path):
    start(tuned, forget_measurements)
    for type in ("all", "onednn", "cudnn"):
        cg, result = loaded(tmp_path / "missing", type)
        assert result.accepted == 0
        assert result.rejected == [(str(tmp_path / "missing"), "there is no such file")]
    assert mg.autotune.stats().rejected == 3
    compile_with(cg)


@pytest.mark.parametrize(
    ("field", "kind"), [("onednn", "onednn"), ("processor", "onednn"), ("version", "jit")]
)
def test_an_entry_of_another_machine_is_rejected_with_the_field_and_both_values(
    start, saved, tuned, field, kind, monkeypatch
):
    start(tuned)
    function = compiled()
    real = type(function._backend).environment

    def other(self, asked):
        return {**real(self, asked), **({field: "another"} if asked == kind else {})}

    here = real(function._backend, kind)[field]
    monkeypatch.setattr(type(function._backend), "environment", other)
    _, result = loaded(saved)
    of_kind = [line["subject"] for line in lines(saved)[1:] if line["kind"] == kind]
    assert [entry for entry, _ in result.rejected] == [f"{kind} {name}" for name in of_kind]
    assert {why for _, why in result.rejected} == {f"{field} is {here!r} there, 'another' here"}
    assert result.accepted == len(lines(saved)) - 1 - len(of_kind)


def test_a_damaged_entry_is_rejected_and_the_others_are_used(start, saved):
    start()
    text = saved.read_text().replace('"seconds": ', '"seconds": 1', 1)
    saved.write_text(text)
    cg, result = loaded(saved)
    (damaged, why), *more = result.rejected
    assert "conv2d" in damaged or "matmul" in damaged or "reorder" in damaged
    assert (why, more) == ("is damaged: its checksum is not that of its contents", [])
    assert result.accepted == len(lines(saved)) - 2
    assert mg.autotune.stats().rejected == 1
    compile_with(cg)
    assert mg.autotune.stats().misses == 1


def test_a_measurement_that_makes_no_sense_is_rejected_though_its_checksum_is_right(
    start, tuned, tmp_path
):
    """A file is not trusted: whoever writes it can write checksums too."""
    start(tuned, forget_measurements)
    function = compiled()
    bad, *rest = (entry for entry in function.cache_entries() if entry.kind == "onednn")
    odd = dataclasses.replace(bad, body='[{"name": "x"}]')
    file.write(tmp_path / "odd.cache", {}, [odd, *rest], merge)
    _, result = loaded(tmp_path / "odd.cache")
    assert result.accepted == len(rest)
    assert [entry for entry, _ in result.rejected] == [f"onednn {bad.subject}"]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_machine_code_from_a_file_that_others_can_write_is_refused(start, saved, mode):
    saved.chmod(mode)
    for type in ("jit", "all"):
        with pytest.raises(
            mg.CacheError, match=r"can be written by other users.*, and machine code"
        ):
            loaded(saved, type)
    _, result = loaded(saved, "onednn")
    assert (result.accepted > 0, result.rejected) == (True, [])


def test_functions_share_a_file_and_nothing_is_lost(start, tuned, tmp_path):
    start(tuned)
    both, one, other = (tmp_path / f"{name}.cache" for name in ("both", "one", "other"))
    first, second = compiled(), compiled(network(size=4))
    for path in (both, one):
        first.save_cache(path)
    for path in (both, other):
        second.save_cache(path)

    def entries(path):
        return {json.dumps(line, sort_keys=True) for line in lines(path)[1:]}

    assert entries(both) == entries(one) | entries(other)
    assert entries(one) - entries(other)
    assert entries(other) - entries(one)
    start()
    cg, result = loaded(both)
    assert result.rejected == []
    compile_with(cg)
    net = network(size=4)
    cg.compile(net.inputs, net.loss, updates=net.updates)
    assert work() == (0, 0)


def test_saving_twice_changes_nothing(start, tuned, tmp_path):
    start(tuned)
    function = compiled()
    function.save_cache(tmp_path / "a.cache")
    before = (tmp_path / "a.cache").read_bytes()
    function.save_cache(tmp_path / "a.cache")
    assert (tmp_path / "a.cache").read_bytes() == before


# ---------------------------------------------------------------- compile(optimize=, cache_dir=)


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
    fields = lines(beside)[0]["fields"]
    assert fields["fingerprint"][-7:] == beside.stem
    assert {"minigraph", "onednn", "device", "options", "graph"} <= fields.keys()


def test_the_file_of_a_function_serves_where_the_cache_folder_takes_nothing(beside, start):
    start().write_text("no folder")
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results"):
        function = compiled(optimize=True, cache_dir=beside.parent)
    assert work() == (0, 0)
    assert {a.origin for a in function.report().algorithms} == {"loaded file"}


def test_a_file_to_which_nothing_is_added_is_not_written(beside, start, tuned):
    os.utime(beside, ns=(7, 7))
    compiled(optimize=True, cache_dir=beside.parent)
    start(tuned)
    compiled(optimize=True, cache_dir=beside.parent)
    start()
    compiled(optimize=True, cache_dir=beside.parent)
    assert beside.stat().st_mtime_ns == 7


def test_a_file_that_lacks_something_is_completed(beside, start):
    whole = lines(beside)
    beside.unlink()
    compiled(optimize=None, autotune="off", cache_dir=beside.parent)
    some = lines(beside)
    assert {line["kind"] for line in some[1:]} == {"jit"}
    compiled(optimize=True, cache_dir=beside.parent)
    assert lines(beside)[0]["fields"] == whole[0]["fields"]
    assert all(line in lines(beside) for line in (*some[1:], *whole[1:]))


def header(**changed):
    """Return what changes fields of a file as another version, or function, would have them."""

    def change(path):
        file.write(path, {**file.read(path).fields, **changed}, [], merge)

    return change


def replaced(path, *texts):
    path.write_text(path.read_text().replace(*texts, 1))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "garbage": (lambda path: path.write_bytes(bytes(range(256))), "no cache file of minigraph"),
    "cut off": (truncated, "is cut off, or no JSON"),
    "another schema": (lambda p: replaced(p, '"schema": 1', '"schema": 9'), "has schema 9"),
    "changed": (lambda p: replaced(p, '"seconds": ', '"seconds": 1'), "is damaged: its checksum"),
    "another version": (header(minigraph="0.0.1"), "minigraph is '0.0.1' there, '.*' here"),
    "another graph": (header(graph="4f2c"), "graph is '4f2c' there, '.*' here"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_of_no_use_is_told_once_and_made_anew(beside, start, tuned, name):
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


def test_a_file_that_others_can_write_is_told_and_not_used(beside, start):
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


# ---------------------------------------------------------------- the fingerprint


def fingerprint(net=None, **options):
    return compiled(net, autotune="off", **options).report().fingerprint


def test_a_fingerprint_is_that_of_what_is_computed_and_how(start, tuned):
    folder = start(tuned, forget_measurements)
    base = fingerprint()
    same = [
        compiled().report().fingerprint,
        compiled(optimize=False).report().fingerprint,
        fingerprint(seed=7),
        fingerprint(bulk=False),
        fingerprint(workspace_limit=1 << 30, deterministic=True, budget=1.0),
        elsewhere(folder, "compiled().report().fingerprint"),
    ]
    assert set(same) == {base}
    net = network()
    others = [
        fingerprint(network(size=4)),
        fingerprint(network(wide=32)),
        fingerprint(network(scale=2.0)),
        fingerprint(network(scale=3.0)),
        fingerprint(level=1),
        fingerprint(num_threads=1),
        fingerprint(net._replace(loss=mg.ops.exp(net.loss))),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert all(len(f) == 40 and int(f, 16) >= 0 for f in (base, *others))
