"""Kernels are compiled once, found again by every process, and right whatever is on disk."""

import ctypes
import errno
import fcntl
import json
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from needs import needs_compiler
from new_process import begin, start, wait

import minigraph as mg
from minigraph import options
from minigraph.cache import Binaries, Entry, temporary
from minigraph.cache.counters import KernelStats, kernel_counters
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import compiler, library, processes
from minigraph.jit.source import KernelSource

GCC = compiler.compiler()


def kernel(value, padding=0):
    """Return a kernel whose result is a number."""
    comment = f"/* {'.' * padding} */"
    return KernelSource(
        f"int NAME(const int64_t *a, char **slots) {{ return {value}; {comment} }}\n"
    )


def results(*kernels):
    """Load kernels and call them; None where one was not compiled."""
    found = compiler.KERNELS.functions(kernels)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return [prototype(found[k.name])(None, None) if found[k.name] else None for k in kernels]


def counts(compilations=0, memory_hits=0, disk_hits=0, loads=0):
    return KernelStats(compilations, memory_hits, disk_hits, loads)


@pytest.fixture
def new_process(monkeypatch):
    """A function that makes this process forget what it found, compiled, loaded and counted."""
    yield lambda: begin(monkeypatch)
    begin(monkeypatch)  # what it found with another environment is not for the next test


@pytest.fixture
def cache(tmp_path, monkeypatch, new_process):
    """The folder, empty, of a process that begins; with headers that are compiled quickly."""
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "PRELUDE", "#include <stdint.h>\n")
    new_process()
    return tmp_path / "cache" / "jit"


@pytest.fixture
def use_compiler(tmp_path, monkeypatch, new_process):
    """A function that puts a shell script before the compiler, in whose folder it runs."""

    def use(script):
        path = tmp_path / "cc"
        path.write_text(f'#!/bin/sh\n{script}\nexec {GCC} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        new_process()
        return tmp_path

    return use


# ---------------------------------------------------------------- found again

PROGRAM = """
import sys
import numpy as np
import minigraph as mg
x = mg.input("x", (5,))
y = mg.ops.tanh(x) * x.sum() - mg.ops.exp(x).max()
print(mg.comp_graph("cpu").compile([x], y)(np.arange(5) / 5).tobytes().hex())
stats = mg.jit.stats()
print(stats.compilations, stats.memory_hits, stats.disk_hits, stats.loads)
"""


def finish(process):
    """Return what a program computed, and what it counted."""
    computed, counted = wait(process)[0].splitlines()
    return computed, KernelStats(*map(int, counted.split()))


@needs_compiler
def test_a_second_process_compiles_nothing(tmp_path):
    computed, stats = finish(start("-c", PROGRAM, MINIGRAPH_CACHE_DIR=str(tmp_path / "cache")))
    n = stats.compilations
    assert n > 2
    assert stats == counts(compilations=n, loads=n)
    again = finish(start("-c", PROGRAM, MINIGRAPH_CACHE_DIR=str(tmp_path / "cache")))
    assert again == (computed, counts(disk_hits=n, loads=n))


@needs_compiler
def test_processes_that_begin_together_leave_a_cache_that_serves_the_next(tmp_path):
    folder = str(tmp_path / "cache")
    first = [
        finish(p) for p in [start("-c", PROGRAM, MINIGRAPH_CACHE_DIR=folder) for _ in range(2)]
    ]
    assert len({computed for computed, _ in first}) == 1
    computed, stats = finish(start("-c", PROGRAM, MINIGRAPH_CACHE_DIR=folder))
    assert (computed, stats.compilations) == (first[0][0], 0)
    assert not list(Path(folder).rglob("*.tmp"))


@needs_compiler
def test_equal_kernels_of_different_graphs_are_compiled_once(tmp_path, monkeypatch, new_process):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    new_process()
    for sizes in ((3, 2), (70,)):
        x = mg.input("x", sizes)
        f = mg.comp_graph("cpu", {"graph_opt_level": 0}).compile([x], mg.ops.tanh(x) + 1.5)
        np.testing.assert_allclose(f(np.ones(sizes)), np.full(sizes, np.tanh(1) + 1.5), rtol=1e-6)
        stats = mg.jit.stats()
        mg.jit.reset_stats()
        if len(sizes) == 2:
            assert stats == counts(compilations=stats.loads, loads=stats.loads)
            assert stats.loads >= 2
    assert stats == counts(memory_hits=stats.memory_hits)
    assert stats.memory_hits >= 2


@needs_compiler
def test_a_kernel_is_found_in_memory_then_on_disk(cache, new_process):
    assert results(kernel(1), kernel(2), kernel(1)) == [1, 2, 1]
    assert mg.jit.stats() == counts(compilations=2, loads=2)
    assert results(kernel(2), kernel(3)) == [2, 3]
    assert mg.jit.stats() == counts(compilations=3, loads=3, memory_hits=1)
    new_process()
    assert results(kernel(3), kernel(1)) == [3, 1]
    assert mg.jit.stats() == counts(disk_hits=2, loads=2)


@needs_compiler
def test_only_what_is_missing_is_compiled(cache, new_process):
    results(kernel(1))
    new_process()
    assert results(kernel(1), kernel(2)) == [1, 2]
    assert mg.jit.stats() == counts(compilations=1, disk_hits=1, loads=2)


@needs_compiler
def test_functions_that_a_kernel_calls_are_part_of_it(cache):
    body = "int NAME(const int64_t *a, char **slots) { return mg_test(); }\n"
    one, two = (
        KernelSource(body, (f"static int mg_test(void) {{ return {n}; }}",)) for n in (1, 2)
    )
    assert results(one) == [1]
    assert results(two) == [2]


# ---------------------------------------------------------------- what a binary depends on


@needs_compiler
@pytest.mark.parametrize("what", ["version", "path", "flags", "processor", "prelude", "math"])
def test_a_kernel_of_another_toolchain_is_not_used(
    cache, use_compiler, new_process, monkeypatch, what
):
    use_compiler("")
    results(kernel(1))
    if what == "version":
        use_compiler('[ "$1" = --version ] && echo "cc 99" && exit 0')
    elif what == "path":
        monkeypatch.setenv("CC", GCC)
    elif what == "flags":
        monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-O1"))
    elif what == "processor":
        monkeypatch.setattr(compiler, "processor", lambda: "x86_64 of another kind")
    elif what == "prelude":
        monkeypatch.setattr(compiler, "PRELUDE", compiler.PRELUDE + "\n#define MG_OTHER\n")
    else:
        monkeypatch.setattr(compiler, "vector_math", lambda: "double cbrt(double);\n")
    new_process()
    assert results(kernel(1)) == [1]
    assert mg.jit.stats() == counts(compilations=1, loads=1)
    new_process()
    results(kernel(1))
    assert mg.jit.stats() == counts(disk_hits=1, loads=1)


@needs_compiler
def test_an_entry_says_in_clear_text_what_it_is_for(cache):
    results(kernel(1))
    (entry,) = (json.loads(path.read_text()) for path in cache.glob("*.json"))
    assert entry["kernel"] == kernel(1).name
    assert entry["key"]["compiler"] == GCC
    assert entry["key"]["version"] == compiler.compiler_version()
    assert "-march=native" in entry["key"]["flags"]
    assert os.uname().machine in entry["key"]["processor"]
    assert (cache / entry["unit"]).is_file()


# ---------------------------------------------------------------- threads


@needs_compiler
def test_threads_that_ask_together_compile_a_kernel_once(cache, use_compiler):
    folder = use_compiler("echo $$ >> runs; sleep 0.2".replace("runs", "${0%/*}/runs"))
    compiler.compiler_version()
    (folder / "runs").unlink()
    kernels = [kernel(n) for n in range(10)]
    with ThreadPoolExecutor(8) as pool:
        asked = [kernels[i : i + 3] for i in range(8)]
        found = list(pool.map(lambda some: results(*some), asked))
    assert found == [[i, i + 1, i + 2] for i in range(8)]
    assert mg.jit.stats() == counts(compilations=10, loads=10, memory_hits=14)
    assert len((folder / "runs").read_text().split()) <= 8


@needs_compiler
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_compiles_what_its_parent_is_compiling(cache, use_compiler):
    folder = use_compiler("cd ${0%/*}; mkdir first && until test -e go; do sleep 0.01; done; cd -")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(results, kernel(7))
        while not (folder / "first").exists():
            time.sleep(0.01)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            os._exit(results(kernel(7)) != [7])
        assert os.waitpid(child, 0)[1] == 0
        (folder / "go").touch()
        assert waiting.result() == [7]


@needs_compiler
def test_a_kernel_does_not_wait_for_another_one(cache, use_compiler):
    folder = use_compiler(
        "grep -q '/\\* SLOW' *.c 2>/dev/null && while [ ! -e ${0%/*}/go ]; do sleep 0.02; done"
    )
    slow = KernelSource(kernel(1).text + "/* SLOW */")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(results, slow)
        while not compiler.KERNELS._sought:
            time.sleep(0.01)
        second = pool.submit(results, slow)
        assert results(kernel(2)) == [2]
        assert not (first.done() or second.done())
        (folder / "go").touch()
        assert first.result() == second.result() == [1]
    assert mg.jit.stats().compilations == 2


@needs_compiler
def test_a_kernel_whose_compilation_was_interrupted_is_compiled_by_who_waits(cache, monkeypatch):
    usual, begun, go_on = processes.run, threading.Event(), threading.Event()

    def interrupted(*args):
        monkeypatch.setattr(processes, "run", usual)
        begun.set()
        go_on.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "run", interrupted)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(results, kernel(1))
        begun.wait()
        second = pool.submit(results, kernel(1))
        while not mg.jit.stats().memory_hits:
            time.sleep(0.01)
        go_on.set()
        assert isinstance(first.exception(), KeyboardInterrupt)
        assert second.result() == [1]


def test_counting_loses_nothing_among_threads():
    mg.jit.reset_stats()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [kernel_counters.count("loads") for _ in range(2000)], range(8)))
    assert mg.jit.stats() == counts(loads=16000)


# ---------------------------------------------------------------- damage


@needs_compiler
@pytest.mark.parametrize("kind", ["*.json", "*.so"])
def test_a_kernel_whose_file_is_damaged_is_compiled_again(cache, new_process, kind):
    results(kernel(1))
    new_process()
    (path,) = cache.glob(kind)
    whole = path.read_bytes()
    path.unlink()  # not in place: this process may have it mapped
    path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    assert results(kernel(1)) == [1]
    assert mg.jit.stats() == counts(compilations=1, loads=1)
    assert path.read_bytes() == whole


@needs_compiler
def test_a_unit_that_lacks_its_kernel_or_is_no_library_is_a_miss(cache, new_process):
    results(kernel(1))
    (library,) = cache.glob("*.so")
    for unit in (library.read_bytes(), b"no library"):
        Binaries(cache.parent).keep(unit, {kernel(2).name: compiler.KERNELS.key(kernel(2))})
        new_process()
        assert results(kernel(2)) == [2]
        assert mg.jit.stats() == counts(compilations=1, loads=1)


@needs_compiler
def test_a_unit_that_is_removed_after_it_was_found_is_a_miss(cache, new_process):
    results(kernel(1))
    new_process()
    one = {kernel(1).name: compiler.KERNELS.key(kernel(1))}
    assert list(kernel_cache._store().find(one))
    shutil.rmtree(cache)
    assert results(kernel(1)) == [1]
    assert mg.jit.stats() == counts(compilations=1, loads=1)
    assert len(list(cache.iterdir())) == 2


# ---------------------------------------------------------------- disks that cannot be written


@needs_compiler
@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES], ids=os.strerror)
@pytest.mark.parametrize("call", ["mkdir", "open", "replace"])
def test_a_disk_that_refuses_costs_the_persistence_only(cache, monkeypatch, code, call):
    usual = getattr(os, call)

    def refuse(path, *args, **folders):
        folder = folders.get("dir_fd", folders.get("src_dir_fd"))
        where = "" if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        if os.path.join(where, path).startswith(str(cache.parent)):
            raise OSError(code, os.strerror(code))
        return usual(path, *args, **folders)

    monkeypatch.setattr(os, call, refuse)
    with pytest.warns(mg.MinigraphWarning, match=os.strerror(code)) as warned:
        assert results(kernel(1)) == [1]
        assert results(kernel(2)) == [2]
    assert len(warned) == 1
    assert not [path for path in cache.parent.rglob("*") if path.is_file()]


@needs_compiler
def test_a_folder_that_cannot_exist_costs_the_persistence_only(monkeypatch, new_process, nowhere):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(nowhere))
    new_process()
    with pytest.warns(mg.MinigraphWarning, match=str(nowhere)) as warned:
        assert results(kernel(1)) == [1]
        assert results(kernel(2)) == [2]
    assert len(warned) == 1


LIMITED = """
import resource, warnings
from minigraph.cache import Folder
write = Folder.write
def limited(*args):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        return write(*args)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
Folder.write = limited
warnings.filterwarnings("error")
warnings.filterwarnings("ignore", ".*cannot keep results .File too large.*")
"""


@needs_compiler
def test_a_disk_that_is_full_half_way_through_a_file_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "cache"
    _, stats = finish(start("-c", LIMITED + PROGRAM, MINIGRAPH_CACHE_DIR=str(folder)))
    assert stats.compilations == stats.loads > 2
    assert list((folder / "jit").iterdir()) == []


@needs_compiler
def test_where_no_code_may_be_run_nothing_is_compiled(cache, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(library, "_map", refuse)
    with pytest.warns(mg.MinigraphWarning, match="noexec") as warned:
        assert results(kernel(1)) == [None]
        assert results(kernel(2)) == [None]
    assert len(warned) == 1
    assert mg.jit.stats().compilations == 0


# ---------------------------------------------------------------- who else may write there


@needs_compiler
def test_kernels_run_where_the_folder_is_refused(cache):
    cache.parent.mkdir()
    cache.parent.chmod(0o777)
    with pytest.warns(mg.MinigraphWarning, match="can be written by other users") as warned:
        assert results(kernel(1)) == [1]
        assert results(kernel(1), kernel(2)) == [1, 2]
    assert len(warned) == 1
    assert list(cache.parent.iterdir()) == []


@needs_compiler
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
    monkeypatch.setattr(kernel_cache, "TEMPORARY", ())
    with pytest.warns(mg.MinigraphWarning, match="open can be written by other users"):
        assert results(kernel(4)) == [None]
    assert list(work.iterdir()) == []
    assert work.stat().st_mtime_ns == before


@needs_compiler
def test_kernels_that_can_be_kept_nowhere_run(cache, tmp_path, monkeypatch):
    cache.parent.mkdir()
    cache.parent.chmod(0o777)
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(tmp_path / "work"))
    monkeypatch.setattr(kernel_cache, "TEMPORARY", ())
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(cache.parent))
    with pytest.warns(mg.MinigraphWarning, match="cannot keep results") as warned:
        assert results(kernel(1), kernel(2, 5000), kernel(3, 5000)) == [1, 2, 3]
    assert len(warned) == 1
    entry = Entry("jit", "unit", (), "{}")
    assert "`kernels`" in kernel_cache.import_kernels(entry)
    monkeypatch.delenv("MINIGRAPH_CACHE_DIR")
    monkeypatch.setattr(options, "cache_folder", lambda: None)
    assert kernel_cache.import_kernels(entry) == "could not be written"


@needs_compiler
def test_folders_that_killed_processes_left_go_when_the_next_one_compiles(
    cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "_cleared", set())
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
    left = sorted(path.name for path in tmp_path.glob("minigraph-*"))
    assert left == [
        f"minigraph-{name}" for name in ("bench-old", "jit-link", "jit-locked", "jit-new")
    ]
    assert os.listdir(tmp_path / "minigraph-bench-old") == ["unit.so"]


@needs_compiler
def test_a_folder_in_use_is_locked_and_a_forked_child_does_not_remove_it(tmp_path):
    with temporary.folder(tmp_path, "some-") as made:
        assert made.stat().st_mode & 0o777 == 0o700
        handle = os.open(made, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        with pytest.MonkeyPatch.context() as patch, temporary.folder(tmp_path, "some-") as other:
            patch.setattr(os, "getpid", lambda: 1)  # as in a child
        assert other.exists()
    assert os.listdir(tmp_path) == [other.name]


# ---------------------------------------------------------------- several runs of the compiler


def test_kernels_are_split_into_units_of_equal_length():
    kernels = [kernel(i, padding) for i, padding in enumerate([9000, 100, 8000, 5000, 4000, 900])]
    units = kernel_cache.split(kernels, 3, 4000)
    assert {s for unit in units for s in unit.sources} == set(kernels)
    lengths = [sum(len(s.text) for s in unit.sources) for unit in units]
    assert max(lengths) - min(lengths) < 1500
    assert kernel_cache.split(kernels, 3, 4000) == units
    assert sum(len(unit.sources) for unit in units) == len(kernels)


@pytest.mark.parametrize(
    ("padding", "kernels", "at_most", "units"),
    [(10, 2, 8, 1), (5000, 2, 8, 2), (5000, 8, 3, 3), (5000, 1, 8, 1), (50_000, 1, 8, 1)],
)
def test_a_unit_is_worth_a_run(padding, kernels, at_most, units):
    made = kernel_cache.split(
        [kernel(i, padding) for i in range(kernels)], at_most, compiler.WORTH_A_RUN
    )
    assert len(made) == units


@needs_compiler
def test_as_many_compilers_run_at_once_as_there_are_cpus(cache, use_compiler, monkeypatch):
    """Each waits until there are three."""
    monkeypatch.setattr(options, "cpus", lambda: 3)
    folder = use_compiler(
        '[ "$1" = --version ] || { touch ${0%/*}/run$$; '
        "while [ $(ls ${0%/*} | grep -c run) -lt 3 ]; do sleep 0.02; done; }"
    )
    assert results(*(kernel(i, 5000) for i in range(6))) == list(range(6))
    assert len(list(folder.glob("run*"))) == 3
    assert len(list(cache.glob("*.so"))) == 3
    assert len(list(cache.glob("*.json"))) == 6


# ---------------------------------------------------------------- kernels and compilers that fail

BAD = {
    "an error": kernel("no_such_name"),
    "a symbol that is nowhere": KernelSource(
        "int mg_nowhere(void);\nint NAME(const int64_t *a, char **s) { return mg_nowhere(); }\n"
    ),
    "an array whose length a shape decides": KernelSource(
        "int NAME(const int64_t *a, char **slots) { char x[a[0]]; return x[0]; }\n"
    ),
    "another name": KernelSource("int NAME_2(const int64_t *a, char **slots) { return 1; }\n"),
}


@needs_compiler
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_kernel_does_not_take_the_others_with_it(cache, new_process, bad):
    with pytest.warns(mg.MinigraphWarning, match="could not compile kernels") as warned:
        assert results(kernel(1), bad, kernel(2)) == [1, None, 2]
        assert results(bad) == [None]
    assert len(warned) == 1
    assert mg.jit.stats() == counts(compilations=2, loads=2, memory_hits=1)
    new_process()
    assert results(kernel(1), kernel(2)) == [1, 2]
    assert mg.jit.stats() == counts(disk_hits=2, loads=2)


@needs_compiler
def test_a_compiler_that_crashes_on_a_kernel_compiles_the_others(cache, use_compiler):
    use_compiler('for f in "$@"; do case $f in *.c) grep -q CRASH $f && kill -SEGV $$;; esac; done')
    bad = KernelSource(kernel(3).text + "/* CRASH */")
    with pytest.warns(mg.MinigraphWarning, match="killed by signal 11"):
        assert results(kernel(1), bad) == [1, None]


@needs_compiler
def test_a_compiler_that_hangs_is_given_up(cache, use_compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "SECONDS", 0.2)
    late = tmp_path / "late"
    use_compiler(f'[ "$1" = --version ] || {{ sleep 30; touch {late}; }}')
    with pytest.warns(mg.MinigraphWarning, match=r"did not end within 0\.2 seconds"):
        assert results(kernel(1)) == [None]
    assert not late.exists()


@needs_compiler
@pytest.mark.parametrize("path", [None, "", "/nowhere/at/all"])
def test_a_compiler_finds_its_assembler_and_linker_whatever_the_path_is(
    cache, monkeypatch, new_process, path
):
    monkeypatch.setenv("CC", GCC)
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    new_process()
    assert results(kernel(7)) == [7]


@needs_compiler
def test_a_compiler_may_be_named_by_a_relative_path(cache, monkeypatch, use_compiler):
    monkeypatch.chdir(use_compiler(""))
    monkeypatch.setenv("CC", "./cc")
    assert results(kernel(7)) == [7]


@needs_compiler
def test_a_compiler_works_in_plain_english_in_its_own_folder_and_without_foreign_code(
    cache, monkeypatch, use_compiler, tmp_path
):
    folder = use_compiler(f"/usr/bin/env > {tmp_path}/variables")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    monkeypatch.setenv("LD_PRELOAD", "libprofiler.so")
    monkeypatch.setenv("LD_RUN_PATH", str(tmp_path))
    monkeypatch.setenv("DEPENDENCIES_OUTPUT", str(tmp_path / "dependencies"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/gcc/lib64")
    assert results(kernel(7)) == [7]
    variables = dict(line.split("=", 1) for line in (folder / "variables").read_text().splitlines())
    assert variables["LC_ALL"] == "C"
    assert variables["TMPDIR"] == variables["PWD"]
    assert not {"LD_PRELOAD", "LD_RUN_PATH", "DEPENDENCIES_OUTPUT"} & variables.keys()
    assert variables["LD_LIBRARY_PATH"] == "/opt/gcc/lib64"
    assert not (tmp_path / "dependencies").exists()


@needs_compiler
def test_a_kernel_made_with_other_headers_is_not_used(cache, monkeypatch, new_process, tmp_path):
    source = KernelSource("#include <mg_seven.h>\nint NAME(void *a, void *b) { return SEVEN; }\n")
    for seven in (7, 8):
        folder = tmp_path / str(seven)
        folder.mkdir()
        (folder / "mg_seven.h").write_text(f"#define SEVEN {seven}\n")
        monkeypatch.setenv("CPATH", str(folder))
        new_process()
        assert results(source) == [seven]


@needs_compiler
def test_a_compiler_that_makes_nothing_is_told(cache, use_compiler):
    use_compiler('[ "$1" = --version ] || exit 0')
    with pytest.warns(mg.MinigraphWarning, match="could not compile kernels"):
        assert results(kernel(1)) == [None]
    assert not cache.exists()


# ---------------------------------------------------------------- the environment


def test_the_folder_is_that_of_the_environment_or_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert options.cache_folder() == Path("/home/me/.cache/minigraph")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert options.cache_folder() == Path("/home/me/.cache/minigraph")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/me")
    assert options.cache_folder() == Path("/var/me/minigraph")
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", "~/kernels")
    assert options.cache_folder() == Path("/home/me/kernels")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", "here")
    assert options.cache_folder() == tmp_path / "here"


@needs_compiler
def test_without_a_home_kernels_are_kept_in_memory(monkeypatch, new_process):
    monkeypatch.delenv("MINIGRAPH_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    new_process()
    with pytest.warns(mg.MinigraphWarning, match="there is no home folder, so nothing that is"):
        assert options.cache_folder() is None
    assert results(kernel(1), kernel(1)) == [1, 1]


@needs_compiler
def test_sources_and_objects_go_unless_the_user_keeps_them(cache, tmp_path, monkeypatch, caplog):
    work = tmp_path / "new" / "work"
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(work))
    monkeypatch.setattr(kernel_cache, "_temporary_root", None)  # nothing is written elsewhere
    results(kernel(1))
    assert list(work.iterdir()) == []
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "1")
    results(kernel(2))
    assert sorted(path.suffix for path in work.iterdir()) == [".c", ".log", ".so"]
    (source,) = work.glob("*.c")
    assert "return 2;" in source.read_text()
    assert not caplog.messages


@needs_compiler
def test_whoever_keeps_sources_gets_those_of_kernels_on_disk_too(
    cache, tmp_path, monkeypatch, new_process
):
    results(kernel(1))
    new_process()
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(tmp_path / "work"))
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "true")
    results(kernel(1))
    assert mg.jit.stats() == counts(compilations=1, loads=1)
    assert list((tmp_path / "work").glob("*.c"))


@needs_compiler
def test_a_temporary_folder_that_is_kept_is_told_once(cache, tmp_path, monkeypatch, caplog):
    kernel_cache._kept_folder.cache_clear()
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "1")
    results(kernel(1))
    results(kernel(2))
    kernel_cache._kept_folder.cache_clear()
    (message,) = caplog.messages
    folder = Path(message.split()[-1])
    assert folder.parent == tmp_path
    assert len(list(folder.glob("*.c"))) == 2


@needs_compiler
def test_a_folder_to_work_in_that_cannot_be_made_leaves_kernels_to_numpy(
    cache, nowhere, monkeypatch
):
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(nowhere))
    with pytest.warns(mg.MinigraphWarning, match=f"{nowhere.parent} is no folder"):
        assert results(kernel(1)) == [None]


def test_the_jit_backend_is_one_of_the_table(monkeypatch):
    monkeypatch.delenv("MINIGRAPH_JIT_BACKEND", raising=False)
    assert options.jit_backend() == ""
    for name in ("c", "halide", "none"):
        monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", name)
        assert options.jit_backend() == name
    monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", "gcc")
    with pytest.raises(
        mg.OptionError, match=r"MINIGRAPH_JIT_BACKEND.*'c', 'halide', 'nvrtc', 'none'"
    ):
        options.jit_backend()


@needs_compiler
def test_a_malformed_variable_is_an_error_each_time(cache, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "maybe")
    for _ in range(2):
        with pytest.raises(mg.OptionError, match="MINIGRAPH_JIT_KEEP_INTERM"):
            results(kernel(1))
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "0")
    assert results(kernel(1)) == [1]


@pytest.mark.parametrize(
    ("path", "version", "name"),
    [
        ("/usr/bin/gcc-12", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc 12.2.0"),
        ("/usr/bin/clang", "Debian clang version 14.0.6", "clang 14.0.6"),
        ("/opt/bin/icx", "Intel(R) oneAPI DPC++/C++ Compiler 2024.0.2 (2024.0.2.20231213)", None),
        ("/opt/bin/tcc", "unknown", "tcc"),
    ],
)
def test_a_compiler_has_a_short_name(monkeypatch, path, version, name):
    monkeypatch.setattr(compiler, "compiler", lambda: path)
    monkeypatch.setattr(compiler, "compiler_version", lambda: version)
    assert compiler.compiler_name.__wrapped__() == (name or "icx 2024.0.2.20231213")
