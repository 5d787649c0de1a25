"""The API of cache files: nothing is measured or compiled twice, whatever is on disk."""

import dataclasses
import shutil

import pytest
from cache_calls import compile_with, entries, loaded
from needs import needs_both
from new_process import begin, forget_measurements
from small_network import compiled, elsewhere, network, work

import minigraph as mg
from minigraph.autotune.measurement import merge
from minigraph.cache import file

pytestmark = [needs_both, pytest.mark.usefixtures("no_private_group")]


@pytest.fixture
def saved(tuned, tmp_path):
    """A copy of the file."""
    return shutil.copy(tuned / "net.cache", tmp_path / "net.cache")


# ---------------------------------------------------------------- between processes


def test_a_second_process_measures_and_compiles_nothing(start, tuned):
    folder = start(tuned)
    compiled()
    assert work() == (0, 0)
    assert elsewhere(folder, "compiled() and work()") == [0, 0]


def test_stored_measurements_serve_every_level(start, tuned):
    start(tuned, forget_measurements)
    compiled(level=3)
    assert mg.autotune.stats().measurements == 0
    start(tuned, forget_measurements)
    compiled(level=-2, bulk=False)
    assert mg.autotune.stats().measurements == 0


# ---------------------------------------------------------------- save_cache, load_cache


@pytest.mark.parametrize("type", ["onednn", "mkldnn", "all"])
def test_measurements_are_loaded_from_a_file(start, tuned, tmp_path, type):
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
    for type, kind in (("jit", "jit"), ("mkldnn", "onednn")):
        start()
        _, result = loaded(saved, type)
        assert (result.accepted, result.rejected) == (len(entries(saved, kind)), [])
        assert result.accepted > 0


def test_a_loaded_file_counts_for_its_graph_compiler_alone(start, saved):
    cg, _ = loaded(saved, "onednn")
    compiled(autotune="cached", optimize=None)
    assert {a.origin for a in compiled(autotune="cached").report().algorithms} == {"heuristic"}
    assert {a.origin for a in compile_with(cg).report().algorithms} == {"loaded file"}


def test_a_missing_file_is_rejected_by_name(start, tuned, tmp_path):
    start(tuned, forget_measurements)
    for type in ("all", "onednn", "cudnn"):
        cg, result = loaded(tmp_path / "missing", type)
        assert result.accepted == 0
        assert result.rejected == [(str(tmp_path / "missing"), "does not exist")]
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
    of_kind = entries(saved, kind)
    assert [name for name, _ in result.rejected] == [f"{kind} {e.subject}" for e in of_kind]
    assert {why for _, why in result.rejected} == {f"{field} is {here!r} there, 'another' here"}
    assert result.accepted == len(entries(saved)) - len(of_kind)


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
    assert [name for name, _ in result.rejected] == [f"onednn {bad.subject}"]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_machine_code_from_a_file_that_others_can_write_is_refused(start, saved, mode):
    saved.chmod(mode)
    for type in ("jit", "all"):
        with pytest.raises(
            mg.CacheError, match=r"can be written by other users.*, so no machine code"
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

    all_, first, second = ({*entries(path)} for path in (both, one, other))
    assert all_ == first | second
    assert first - second and second - first
    start()
    cg, result = loaded(both)
    assert result.rejected == []
    compile_with(cg)
    net = network(size=4)
    cg.compile(net.inputs, net.loss, updates=net.updates)
    assert work() == (0, 0)
