"""Kernels if the disk is read-only or full, or its folders belong to other users."""

import errno
import fcntl
import os
import time

import pytest
from needs import needs_compiler
from numbered_kernels import kernel, results

import minigraph as mg
from minigraph import options
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import compiler, library
from minigraph.platform import trust

pytestmark = needs_compiler

# ---------------------------------------------------------------- disks that cannot be written


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES], ids=os.strerror)
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_disk_that_refuses_costs_the_persistence_only(cache, monkeypatch, code, call):
    usual = getattr(os, call)

    def refuse(path, *args):
        if str(path).startswith(str(cache)):
            raise OSError(code, os.strerror(code))
        return usual(path, *args)

    monkeypatch.setattr(os, call, refuse)
    with pytest.warns(mg.MinigraphWarning, match=os.strerror(code)) as warned:
        assert results(kernel(1)) == [1]
        assert results(kernel(2)) == [2]
    assert len(warned) == 1
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_where_no_code_may_be_run_nothing_is_compiled(cache, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(library.mmap, "mmap", refuse)
    with pytest.warns(mg.MinigraphWarning, match="no machine code can be loaded") as warned:
        assert results(kernel(1)) == [None]
        assert results(kernel(2)) == [None]
    assert len(warned) == 1
    assert mg.jit.stats().compilations == 0


# ---------------------------------------------------------------- who else may write there


def test_nothing_is_compiled_where_others_could_exchange_it(cache, tmp_path, monkeypatch):
    work = tmp_path / "open" / "work"
    work.mkdir(parents=True)
    work.parent.chmod(0o777)
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(work))
    with pytest.warns(mg.MinigraphWarning, match="MINIGRAPH_JIT_WORKDIR is not used") as warned:
        assert results(kernel(1)) == [1]
        assert results(kernel(2)) == [2]
    assert len(warned) == 1
    monkeypatch.delenv("MINIGRAPH_JIT_WORKDIR")
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(work))
    assert results(kernel(3)) == [3]
    before = work.stat().st_mtime_ns
    monkeypatch.setattr(kernel_cache, "TEMPORARY_FOLDERS", ())
    with pytest.warns(mg.MinigraphWarning, match="open can be written by other users"):
        assert results(kernel(4)) == [None]
    assert list(work.iterdir()) == []
    assert work.stat().st_mtime_ns == before


def test_kernels_that_can_be_kept_nowhere_run(cache, tmp_path, monkeypatch):
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(tmp_path / "work"))
    monkeypatch.setattr(kernel_cache, "TEMPORARY_FOLDERS", ())
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(cache))
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results") as warned:
        assert results(kernel(1), kernel(2, 5000), kernel(3, 5000)) == [1, 2, 3]
    assert len(warned) == 1 and list(cache.iterdir()) == []
    kernels = compiler.KERNELS.stored([kernel(1), kernel(4)])
    assert [entry.subject for entry in kernels] == [kernel(1).name]
    monkeypatch.setattr(options, "cache_folder", lambda: None)
    assert compiler.KERNELS.stored([kernel(1)]) == kernels


def test_folders_that_killed_processes_left_go_when_the_next_one_compiles(
    cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(trust, "_searched", set())
    for name, age in {"jit-old": 601, "jit-new": 0, "jit-locked": 601, "bench-old": 601}.items():
        path = tmp_path / f"minigraph-{name}"
        path.mkdir()
        (path / "unit.so").touch()
        os.utime(path, (time.time() - age,) * 2)
    handle = os.open(tmp_path / "minigraph-jit-locked", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    (tmp_path / "minigraph-jit-link").symlink_to("minigraph-bench-old")
    results(kernel(1))
    os.close(handle)
    names = sorted(path.name for path in tmp_path.glob("minigraph-*"))
    assert names == [
        f"minigraph-{name}" for name in ("bench-old", "jit-link", "jit-locked", "jit-new")
    ]
    assert os.listdir(tmp_path / "minigraph-bench-old") == ["unit.so"]


def test_a_folder_in_use_is_locked_and_a_forked_child_does_not_remove_it(tmp_path):
    with trust.temporary_folder(tmp_path, "some-") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        with (
            pytest.MonkeyPatch.context() as patch,
            trust.temporary_folder(tmp_path, "some-") as other,
        ):
            patch.setattr(os, "getpid", lambda: 1)  # as in a child
        assert other.exists()
    assert os.listdir(tmp_path) == [other.name]
