"""Which C compiler is used: that of `CC`, or the first that is found."""

import os

import pytest
from needs import needs_compiler
from numbered_kernels import GCC, kernel, results

import minigraph as mg
from minigraph import options
from minigraph.devices.cpu import compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("compiles_anew")]


def test_gcc_comes_before_what_is_called_cc(tmp_path, monkeypatch, new_process):
    for name in ("cc", "gcc", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    compilers = {}
    for setting in ("", "mine", "mine -m64"):
        monkeypatch.setenv("CC", setting)
        new_process()
        compilers[setting] = compiler.compiler()
    assert compilers == {
        setting: str(tmp_path / (setting or "gcc")) for setting in ("", "mine", "mine -m64")
    }


@pytest.mark.parametrize(
    "wanted", ["ccache {}", "ccache {} '-pipe'", "'the ccache' {}", "{} -DX='a b'"]
)
def test_the_compiler_that_is_wanted_may_have_arguments(
    cache, tmp_path, monkeypatch, new_process, wanted
):
    called, name = tmp_path / "called", compiler.compiler_name()
    for wrapper in ("ccache", "the ccache"):
        (tmp_path / wrapper).write_text(f'#!/bin/sh\necho "$@" >> {called}\nexec "$@"\n')
        (tmp_path / wrapper).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CC", wanted.format(GCC))
    new_process()
    assert results(kernel(7)) == [7]
    assert compiler.compiler_name() == name
    assert "ccache" not in wanted or "-O2" in called.read_text()


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("no-such-compiler", "the program was not found"),
        ("no-such-wrapper gcc", "the program was not found"),
        (" ", "the program was not found"),
        ("/etc/passwd", "the program was not found"),
        ("gcc 'and", "No closing quotation"),
        ("false", "its exit status is 1"),
        ("{}", "Exec format error"),
    ],
)
@pytest.mark.parametrize("level", [0, 3])
def test_a_wanted_compiler_that_does_not_run_is_an_error(
    cache, tmp_path, monkeypatch, new_process, wanted, why, level
):
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    wanted = wanted.format(tmp_path / "text")
    monkeypatch.setenv("CC", wanted)
    new_process()
    x = mg.input("x", (3,))
    with pytest.raises(mg.CompileError, match="which does not run") as raised:
        mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], x + 1)
    assert wanted in str(raised.value)
    assert why in str(raised.value)
    assert mg.comp_graph("reference").compile([x], x + 1)([1, 2, 3]).tolist() == [2, 3, 4]


def test_a_compiler_may_be_named_by_a_relative_path(cache, monkeypatch, use_compiler):
    monkeypatch.chdir(use_compiler(""))
    monkeypatch.setenv("CC", "./wrapper")
    assert results(kernel(7)) == [7]


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


@pytest.mark.parametrize(
    ("path", "version", "name"),
    [
        ("/usr/bin/gcc-12", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc 12.2.0"),
        ("/usr/bin/clang", "Debian clang version 14.0.6", "clang 14.0.6"),
        ("/opt/bin/icx", "Intel(R) oneAPI DPC++/C++ Compiler 2024.0.2 (2024.0.2.20231213)", None),
        (
            "/usr/bin/ccache",
            "Intel(R) oneAPI DPC++/C++ Compiler 2025.0.4 (2025.0.4)",
            "icx 2025.0.4",
        ),
        ("/opt/bin/tcc", "unknown", "tcc"),
        ("/opt/clang/bin/cc", "cc (Debian 12.2.0-14) 12.2.0", "cc 12.2.0"),
    ],
)
def test_a_compiler_has_a_short_name(monkeypatch, path, version, name):
    monkeypatch.setattr(compiler, "_compiler", lambda: compiler._Compiler((path,), version))
    assert compiler.compiler_name.__wrapped__() == (name or "icx 2024.0.2.20231213")
