"""Kernels for a CUDA device are compiled once, and found again on disk."""

import contextlib

import pytest

import minigraph as mg
from minigraph import ops
from minigraph.cache.counters import KernelStats

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from minigraph.devices.cuda import compiler, launches
from minigraph.jit.source import KernelSource


class Driver:
    """What the compiler asks of a driver."""

    arch = "sm_90"

    def __init__(self, device="cuda:0"):
        self.device = device
        self.loaded = []

    def current(self):
        return contextlib.nullcontext()

    def load(self, cubin, names):
        assert cubin.startswith(b"\x7fELF")
        self.loaded += names
        return [hash((self.device, name)) for name in names]


def sources(*functions):
    x = mg.input("x", (100,))
    nodes = [function(x) for function in functions]
    found = [launches.launches(node, [x.spec.strides]) for node in nodes]
    return [launch.source for each in found for launch in each.launches]


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """A function that makes this process forget what it has compiled and counted."""
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))

    def forget():
        monkeypatch.setattr(compiler, "_functions", {})
        compiler._stores.cache_clear()
        mg.jit.reset_stats()

    forget()
    yield forget
    compiler._stores.cache_clear()


def test_a_kernel_is_compiled_once_a_process_and_once_a_machine(begin):
    wanted, driver = sources(ops.exp, ops.tanh), Driver()
    first = compiler.load(wanted, driver, True)
    assert compiler.load(wanted, driver, True) == first
    assert mg.jit.stats() == KernelStats(compilations=2, memory_hits=2, disk_hits=0, loads=2)
    begin()
    assert compiler.load(wanted, driver, True) == first
    assert mg.jit.stats() == KernelStats(compilations=0, memory_hits=0, disk_hits=2, loads=2)


def test_a_second_device_loads_what_the_first_has_compiled(begin):
    wanted, other = sources(ops.exp), Driver("cuda:1")
    compiler.load(wanted, Driver(), True)
    compiler.load(wanted, other, True)
    assert other.loaded == [wanted[0].name]
    assert mg.jit.stats() == KernelStats(compilations=1, memory_hits=0, disk_hits=1, loads=2)


def test_another_architecture_compiles_anew(begin, monkeypatch):
    wanted = sources(ops.exp)
    compiler.load(wanted, Driver(), True)
    begin()
    monkeypatch.setattr(Driver, "arch", "sm_80")
    compiler.load(wanted, Driver(), True)
    assert mg.jit.stats().compilations == 1


def test_nothing_reaches_the_disk_where_that_is_not_wanted(begin, tmp_path):
    compiler.load(sources(ops.exp), Driver(), False)
    assert not (tmp_path / "cache").exists()


def test_kernels_travel_as_entries(begin, monkeypatch, tmp_path):
    wanted = sources(ops.exp, ops.tanh)
    compiler.load(wanted, Driver(), True)
    entries = compiler.export_kernels(wanted, "sm_90")
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "other"))
    begin()
    assert [compiler.import_kernels(entry) for entry in entries] == [""] * len(entries)
    compiler.load(wanted, Driver(), True)
    assert mg.jit.stats() == KernelStats(compilations=0, memory_hits=0, disk_hits=2, loads=2)


def test_a_text_that_is_refused_is_a_compile_error_in_one_line(begin):
    bad = KernelSource("struct NAME_args {}; void NAME( { }")
    with pytest.raises(mg.CompileError, match="NVRTC for sm_90") as error:
        compiler.load([bad], Driver(), True)
    assert "\n" not in str(error.value)
