"""Kernels are compiled once, found again by every process, and right whatever is on disk."""

import contextlib
import dataclasses
import os
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from needs import needs_c, needs_compiler
from numbered_kernels import GCC, counts, kernel, results

import minigraph as mg
from minigraph.cache import Store
from minigraph.cache.counters import kernel_counters
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import compiler
from minigraph.jit.source import KernelSource

pytestmark = needs_compiler

# ---------------------------------------------------------------- found again


@needs_c  # of Halide's, both ops have the function that calls their kernels in common
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


def test_a_kernel_is_found_in_memory_then_on_disk(cache, new_process):
    assert results(kernel(1), kernel(2), kernel(1)) == [1, 2, 1]
    assert mg.jit.stats() == counts(compilations=2, loads=2)
    assert results(kernel(2), kernel(3)) == [2, 3]
    assert mg.jit.stats() == counts(compilations=3, loads=3, memory_hits=1)
    new_process()
    assert results(kernel(3), kernel(1)) == [3, 1]
    assert mg.jit.stats() == counts(disk_hits=2, loads=2)


def test_only_what_is_missing_is_compiled(cache, new_process):
    results(kernel(1))
    new_process()
    assert results(kernel(1), kernel(2)) == [1, 2]
    assert mg.jit.stats() == counts(compilations=1, disk_hits=1, loads=2)


def test_functions_that_a_kernel_calls_are_part_of_it(cache):
    body = "int NAME(const int64_t *a, char **slots) { return mg_test(); }\n"
    one, two = (
        KernelSource(body, (f"static int mg_test(void) {{ return {n}; }}",)) for n in (1, 2)
    )
    assert results(one) == [1]
    assert results(two) == [2]


# ---------------------------------------------------------------- what a binary depends on


@pytest.mark.parametrize("what", ["version", "path", "flags", "processor", "prelude", "math"])
def test_a_kernel_of_another_toolchain_is_not_used(
    cache, use_compiler, new_process, monkeypatch, what
):
    use_compiler("")
    results(kernel(1))
    if what == "version":
        name, *_ = compiler.compiler_name().split()
        use_compiler(f'[ "$1" = --version ] && echo "{name} 99" && exit 0')
    elif what == "path":
        monkeypatch.setenv("CC", GCC)
    elif what == "flags":
        monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-O1"))
    elif what == "processor":
        monkeypatch.setattr(compiler, "processor", lambda: "x86_64 of another kind")
    elif what == "prelude":
        monkeypatch.setattr(compiler, "PRELUDE", compiler.PRELUDE + "\n#define MG_OTHER\n")
    else:
        monkeypatch.setattr(compiler, "vector_math", lambda *_: "double cbrt(double);\n")
    new_process()
    assert results(kernel(1)) == [1]
    assert mg.jit.stats() == counts(compilations=1, loads=1)
    new_process()
    results(kernel(1))
    assert mg.jit.stats() == counts(disk_hits=1, loads=1)


def test_an_entry_says_in_clear_text_what_it_is_for(cache):
    results(kernel(1))
    (entry,) = Store(cache).entries("jit")
    fields = dict(entry.environment)
    assert entry.subject == kernel(1).name
    assert fields["compiler"] == GCC
    assert fields["version"] == compiler.compiler_version()
    assert "-march=native" in fields["flags"]
    assert os.uname().machine in fields["processor"]


# ---------------------------------------------------------------- threads


def test_threads_that_ask_together_compile_a_kernel_once(cache, use_compiler):
    folder = use_compiler("echo $$ >> runs; sleep 0.2".replace("runs", "${0%/*}/runs"))
    compiler.compiler_version()
    (folder / "runs").unlink()
    kernels = [kernel(n) for n in range(10)]
    with ThreadPoolExecutor(8) as pool:
        requests = [kernels[i : i + 3] for i in range(8)]
        answers = list(pool.map(lambda some: results(*some), requests))
    assert answers == [[i, i + 1, i + 2] for i in range(8)]
    assert mg.jit.stats() == counts(compilations=10, loads=10, memory_hits=14)
    assert len((folder / "runs").read_text().split()) <= 8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_compiles_what_its_parent_is_compiling(cache, use_compiler):
    folder = use_compiler(
        '[ "$1" = --version ] || '
        "{ cd ${0%/*}; mkdir first && until test -e go; do sleep 0.01; done; cd -; }"
    )
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


def test_a_kernel_does_not_wait_for_another_one(cache, use_compiler):
    folder = use_compiler(
        "grep -q '/\\* SLOW' *.c 2>/dev/null && while [ ! -e ${0%/*}/go ]; do sleep 0.02; done"
    )
    slow = KernelSource(kernel(1).text + "/* SLOW */")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(results, slow)
        while not compiler.KERNELS._pending:
            time.sleep(0.01)
        second = pool.submit(results, slow)
        assert results(kernel(2)) == [2]
        assert not (first.done() or second.done())
        (folder / "go").touch()
        assert first.result() == second.result() == [1]
    assert mg.jit.stats().compilations == 2


def test_a_kernel_whose_compilation_was_interrupted_is_compiled_by_who_waits(cache, monkeypatch):
    usual, begun, go_on = compiler.run_commands, threading.Event(), threading.Event()

    def interrupted(*args):
        monkeypatch.setattr(compiler, "run_commands", usual)
        begun.set()
        go_on.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler, "run_commands", interrupted)
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


@pytest.mark.parametrize("table", ["entries", "blobs"])
def test_a_kernel_that_is_damaged_on_disk_is_compiled_again(cache, new_process, table):
    results(kernel(1))
    whole = Store(cache).entries("jit")
    new_process()
    with contextlib.closing(sqlite3.connect(cache / "cache.db")) as db, db:
        db.execute(f"UPDATE {table} SET {'blob' if table == 'blobs' else 'body'} = 'x'")
    assert results(kernel(1)) == [1]
    assert mg.jit.stats() == counts(compilations=1, loads=1)
    assert Store(cache).entries("jit") == whole


def test_a_unit_that_lacks_its_kernel_or_is_no_library_is_compiled_again(cache, new_process):
    results(kernel(1))
    (other,) = compiler.KERNELS.stored([kernel(1)])
    for unit in (other.blob, b"no library", b""):
        kernel_cache.keep_kernels([compiler.KERNELS.entry(kernel(2), unit)])
        new_process()
        assert results(kernel(2)) == [2]
        assert mg.jit.stats() == counts(compilations=1, loads=1)
        new_process()
        assert results(kernel(2)) == [2]
        assert mg.jit.stats() == counts(disk_hits=1, loads=1)


def test_a_kernel_of_the_same_name_and_another_text_is_compiled_again(cache, new_process):
    results(kernel(1))
    (entry,) = compiler.KERNELS.stored([kernel(1)])
    kernel_cache.keep_kernels([dataclasses.replace(entry, body="{}")])
    new_process()
    assert results(kernel(1)) == [1]
    assert mg.jit.stats() == counts(compilations=1, loads=1)


def test_kernels_from_elsewhere_do_not_take_the_place_of_those_that_are_there(cache):
    results(kernel(1))
    (entry,) = compiler.KERNELS.stored([kernel(1)])
    others = [
        dataclasses.replace(entry, blob=b"other", subject=name) for name in (entry.subject, "b")
    ]
    kernel_cache.keep_kernels(others, replace=False)
    assert {e.subject: e.blob for e in Store(cache).entries("jit")} == {
        entry.subject: entry.blob,
        "b": b"other",
    }
