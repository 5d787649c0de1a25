"""Runs of the compiler: their number, units, failures and environment."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from needs import needs_compiler, needs_onednn
from numbered_kernels import GCC, counts, kernel, results

import minigraph as mg
from minigraph import ops, options
from minigraph.cache import Store
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import compiler, openmp
from minigraph.devices.cpu.kernel import SIGNATURE
from minigraph.jit.source import KernelSource
from minigraph.platform import toolchain

pytestmark = [needs_compiler, pytest.mark.usefixtures("compiles_anew")]

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
    split_units = kernel_cache.split(
        [kernel(i, padding) for i in range(kernels)], at_most, compiler.MIN_UNIT_LENGTH
    )
    assert len(split_units) == units


def test_as_many_compilers_run_at_once_as_there_are_cpus(cache, use_compiler, monkeypatch):
    """Each waits until there are three."""
    monkeypatch.setattr(options, "cpus", lambda: 3)
    monkeypatch.setattr(compiler.CKernels, "min_unit_length", compiler.MIN_UNIT_LENGTH)
    folder = use_compiler(
        '[ "$1" = --version ] || { touch ${0%/*}/run$$; '
        "while [ $(ls ${0%/*} | grep -c run) -lt 3 ]; do sleep 0.02; done; }"
    )
    assert results(*(kernel(i, 5000) for i in range(6))) == list(range(6))
    assert len(list(folder.glob("run*"))) == 3
    kernels = Store(cache).entries("jit")
    assert (len(kernels), len({entry.blob for entry in kernels})) == (6, 3)


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


def test_a_compiler_that_crashes_on_a_kernel_compiles_the_others(cache, use_compiler):
    use_compiler('for f in "$@"; do case $f in *.c) grep -q CRASH $f && kill -SEGV $$;; esac; done')
    bad = KernelSource(kernel(3).text + "/* CRASH */")
    with pytest.warns(mg.MinigraphWarning, match="killed by signal 11"):
        assert results(kernel(1), bad) == [1, None]


def test_clang_is_told_in_its_own_words_which_iterations_are_independent(cache, use_compiler):
    folder = use_compiler(
        '[ "$1" = --version ] && echo "clang version 18.1.0" && exit; cp *.c ${0%/*}; exit 1'
    )
    with pytest.warns(mg.MinigraphWarning):
        assert results(KernelSource(kernel(1).text + "/* #pragma GCC ivdep */")) == [None]
    (text,) = (path.read_text() for path in folder.glob("*.c"))
    assert "#pragma clang loop vectorize(assume_safety)" in text and "GCC ivdep" not in text


@pytest.mark.skipif(not (toolchain.zig() or shutil.which("clang")), reason="there is no clang")
def test_threads_of_clangs_kernels_are_those_of_gnus_library(cache, monkeypatch, new_process):
    monkeypatch.setenv("CC", f"{toolchain.zig()} cc" if toolchain.zig() else "clang")
    new_process()
    assert compiler.compiler_name().startswith("clang")
    threads = 3
    for how in ("static", "dynamic"):
        source = KernelSource(f"""
#include <omp.h>
int NAME(const int64_t *a, char **slots) {{
  int64_t *made = (int64_t *)slots[0];
  #pragma omp parallel num_threads(a[0]) if (a[0] > 1)
  {{
    made[100 + omp_get_thread_num()] = omp_get_num_threads();
    #pragma omp for schedule({how})
    for (int64_t i = 0; i < 100; i++) made[i] += i;
    #pragma omp for schedule({how})
    for (int64_t i = 0; i < 100; i++) made[i] += 1;
  }}
  int64_t sum = 0;
  #pragma omp parallel for num_threads(a[0]) if (a[0] > 1) schedule({how}) reduction(+ : sum)
  for (int64_t i = 0; i < 100; i++) sum += made[i];
  return sum == 50 * 101 ? 0 : 1;
}}
""")
        for count in (1, threads):
            openmp.start(count)
            memory = np.zeros(104, np.int64)
            block, slots = np.array([count]), np.array([memory.ctypes.data])
            function = SIGNATURE(compiler.KERNELS.functions([source])[source.name])
            assert function(block.ctypes.data, slots.ctypes.data) == 0
            np.testing.assert_array_equal(memory[:100], np.arange(100) + 1)
            assert memory[100:].tolist() == [count] * count + [0] * (4 - count)


ICX = "Intel(R) oneAPI DPC++/C++ Compiler 2025.0.4 (2025.0.4.20241205)"


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations"])
@pytest.mark.parametrize(("program", "version"), [("gcc", ""), ("clang", ""), ("clang", ICX)])
def test_no_flag_of_the_user_changes_bits(cache, use_compiler, program, flag, version):
    if not shutil.which(program):
        pytest.skip(f"there is no {program}")
    answer = f'[ "$1" = --version ] && echo "{version}" && exit; ' if version else ""
    use_compiler(f'{answer}exec {shutil.which(program)} {flag} -ffinite-math-only "$@"')
    assert compiler.compiler_name().startswith("icx" if version else program)
    source = KernelSource("""
int NAME(const int64_t *a, char **slots) {
  const double x = ((const double *)a)[0], y = ((const double *)a)[1];
  return (x != x) + 2 * (x + y - x != y);
}
""")
    function = SIGNATURE(compiler.KERNELS.functions([source])[source.name])
    x = np.array([np.nan, 1.0, 1e-20])
    assert [function(x[i:].ctypes.data, None) for i in range(2)] == [3, 2]
    assert np.array([1e-310]) * 1.0 != 0, "the library flushes denormals"


def test_a_compiler_that_hangs_is_given_up(cache, use_compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT", 0.2)
    late = tmp_path / "late"
    use_compiler(f'[ "$1" = --version ] || {{ sleep 30; touch {late}; }}')
    with pytest.warns(mg.MinigraphWarning, match=r"did not end within 0\.2 seconds"):
        assert results(kernel(1)) == [None]
    assert not late.exists()


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


def test_a_kernel_made_with_other_headers_is_not_used(cache, monkeypatch, new_process, tmp_path):
    source = KernelSource("#include <mg_seven.h>\nint NAME(void *a, void *b) { return SEVEN; }\n")
    for seven in (7, 8):
        folder = tmp_path / str(seven)
        folder.mkdir()
        (folder / "mg_seven.h").write_text(f"#define SEVEN {seven}\n")
        monkeypatch.setenv("CPATH", str(folder))
        new_process()
        assert results(source) == [seven]


def test_a_compiler_that_writes_no_library_is_warned_of(cache, use_compiler):
    use_compiler('[ "$1" = --version ] || exit 0')
    with pytest.warns(mg.MinigraphWarning, match="could not compile kernels"):
        assert results(kernel(1)) == [None]
    assert not cache.exists()


@needs_onednn
@pytest.mark.parametrize("fails", ["exit 1", "grep -q tanhf *.c && exit 1"], ids=["all", "tanh"])
def test_a_report_names_the_steps_that_did_not_compile(cache, use_compiler, fails):
    x = mg.input("x", (4, 4))
    y = ops.tanh(x) @ np.full((4, 4), 0.5, np.float32)
    use_compiler(f'[ "$1" = --version ] || {{ {fails}; }}')
    with pytest.warns(mg.MinigraphWarning, match="could not compile kernels"):
        report = mg.comp_graph("cpu", {"graph_opt_level": 0}).compile([x], y).report()
    (why,) = report.numpy
    assert why.startswith("tanh: float32[4,4] (") and "could not compile" in why
    assert report.makers == {"numpy": 1, "onednn": 1}


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


def test_without_a_home_kernels_are_kept_in_memory(monkeypatch, new_process):
    monkeypatch.delenv("MINIGRAPH_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    new_process()
    with pytest.warns(mg.MinigraphWarning, match="no home folder was found, so measurements"):
        assert options.cache_folder() is None
    assert results(kernel(1), kernel(1)) == [1, 1]


def test_sources_and_objects_go_unless_the_user_keeps_them(cache, tmp_path, monkeypatch, caplog):
    work = tmp_path / "new" / "work"
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(work))
    monkeypatch.setattr(kernel_cache, "_temporary_root", None)  # nothing is written elsewhere
    results(kernel(1))
    assert list(work.iterdir()) == []
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "1")
    results(kernel(2))
    suffixes = {path.suffix for path in work.iterdir()}
    assert suffixes - {".h"} == {".c", ".log", ".so"}  # clang has an omp.h of ours
    (source,) = work.glob("*.c")
    assert "return 2;" in source.read_text()
    assert not caplog.messages


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


def test_a_kept_temporary_folder_is_logged_once(cache, tmp_path, monkeypatch, caplog):
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


def test_a_folder_to_work_in_that_cannot_be_made_is_not_used(cache, nowhere, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(nowhere))
    text = f"MINIGRAPH_JIT_WORKDIR is not used .*{nowhere.parent} is no folder"
    with pytest.warns(mg.MinigraphWarning, match=text):
        assert results(kernel(1)) == [1]


def test_a_malformed_variable_is_an_error_each_time(cache, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "maybe")
    for _ in range(2):
        with pytest.raises(mg.OptionError, match="MINIGRAPH_JIT_KEEP_INTERM"):
            results(kernel(1))
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "0")
    assert results(kernel(1)) == [1]
