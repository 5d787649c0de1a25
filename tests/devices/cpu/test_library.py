"""Machine code is loaded from the bytes that were given, wherever the system lets it run."""

import ctypes
import errno
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from needs import needs_compiler
from new_process import begin
from other_user import as_root, done_by

import minigraph as mg
from minigraph.cache import Entry, Store
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import compiler, library


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The bytes of libraries whose function `value` returns 0, 1 and so on."""
    folder = tmp_path_factory.mktemp("code")
    libraries = []
    for value in range(3):
        (folder / "x.c").write_text(f"int value(void) {{ return {value}; }}\n")
        command = [*shlex.split(compiler.compiler()), "-shared", "-fPIC", "x.c", "-o", "x.so"]
        subprocess.run(command, cwd=folder, check=True)
        libraries.append((folder / "x.so").read_bytes())
    return libraries


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder of a process that begins."""
    begin(monkeypatch)
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    begin(monkeypatch)


def no_memory(monkeypatch):
    def refuse(name, flags):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)


@needs_compiler
def test_what_is_loaded_is_what_was_given(code, temporary):
    """The loader takes a path that it has seen for the library that it has loaded from there."""
    handles = os.listdir("/proc/self/fd")
    order = [0, 1, 2, 1, 0, 2]
    assert [library.load(code[value]).value() for value in order] == order
    assert os.listdir("/proc/self/fd") == handles
    assert os.listdir(temporary) == []
    with pytest.raises(OSError):
        library.load(b"no library")


def test_no_two_libraries_in_memory_have_one_path():
    paths = []
    for _ in range(70):
        with library._in_memory(b"code") as path:
            assert Path(path).read_bytes() == b"code"
            paths.append(path)
    assert len(set(paths)) == len(paths)
    assert max(map(len, paths)) < 60


def test_a_library_in_memory_cannot_be_changed():
    with library._in_memory(b"code") as path:
        with pytest.raises(PermissionError), open(path, "r+b", buffering=0) as file:
            file.write(b"evil")
        with pytest.raises(PermissionError), open(path, "r+b") as file:
            file.truncate(0)
        assert Path(path).read_bytes() == b"code"


CLONE_NEWNS = 0x20000
MS_NOEXEC, MS_REC, MS_PRIVATE = 8, 0x4000, 0x40000


def mount_without_exec(folder):
    """Mount an empty disk that runs no programs on a folder, for this process alone."""
    call = ctypes.CDLL(None, use_errno=True)
    none, disk = b"none", b"tmpfs"
    if (
        call.unshare(CLONE_NEWNS)
        or call.mount(none, b"/", None, MS_REC | MS_PRIVATE, None)
        or call.mount(disk, os.fsencode(folder), disk, MS_NOEXEC, b"mode=0700")
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@needs_compiler
@as_root
def test_a_cache_on_a_disk_that_runs_no_programs_is_used(code, temporary, monkeypatch):
    def work():
        try:
            mount_without_exec(temporary)
        except OSError as error:
            return str(error)
        store = Store(temporary)
        assert store.keep([Entry("jit", "mg_two", (), "{}", code[2])], lambda old, new: new)
        (kernel,) = store.entries("jit")
        (temporary / "unit.so").write_bytes(code[2])
        with pytest.raises(OSError, match="failed to map"):
            ctypes.CDLL(str(temporary / "unit.so"))
        found = [kernel.subject, library.load(kernel.blob).value(), library.can_load_code()]
        no_memory(monkeypatch)
        begin(monkeypatch)
        with pytest.warns(mg.MinigraphWarning, match="no machine code can be loaded from memory"):
            return [*found, library.can_load_code()]

    found = done_by(0, work)
    if isinstance(found, str):
        pytest.skip(f"no disk can be mounted: {found}")
    assert found == ["mg_two", 2, True, False]
