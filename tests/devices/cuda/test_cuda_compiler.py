"""Kernels for a CUDA device are compiled once, and found again on disk."""

import contextlib

import new_process
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.cache import open_store
from minigraph.cache.counters import KernelStats

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from minigraph.devices.cuda.generated import generated_kernel
from minigraph.devices.cuda.nvrtc import NvrtcKernels
from minigraph.jit.source import KernelSource


class Driver:
    """The methods of a driver that the compiler calls."""

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


KERNELS = {}  # of the devices of this process


def kernels_of(driver):
    return KERNELS.setdefault(driver.device, NvrtcKernels(driver))


def sources(*functions):
    x = mg.input("x", (100,))
    nodes = [function(x) for function in functions]
    kernels = [generated_kernel(node, [x.spec.strides]) for node in nodes]
    return [launch.source for each in kernels for launch in each.launches]


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """A function that clears this process's kernels and counters."""

    def forget():
        KERNELS.clear()
        new_process.begin(monkeypatch, tmp_path / "cache")

    forget()
    yield forget
    open_store.cache_clear()


def test_a_kernel_is_compiled_once_a_process_and_once_a_machine(begin):
    texts, driver = sources(ops.exp, ops.tanh), Driver()
    first = kernels_of(driver).functions(texts, True)
    assert kernels_of(driver).functions(texts, True) == first
    assert mg.jit.stats() == KernelStats(compilations=2, memory_hits=2, disk_hits=0, loads=2)
    begin()
    assert kernels_of(driver).functions(texts, True) == first
    assert mg.jit.stats() == KernelStats(compilations=0, memory_hits=0, disk_hits=2, loads=2)


def test_a_second_device_loads_what_the_first_has_compiled(begin):
    texts, other = sources(ops.exp), Driver("cuda:1")
    kernels_of(Driver()).functions(texts, True)
    kernels_of(other).functions(texts, True)
    assert other.loaded == [texts[0].name]
    assert mg.jit.stats() == KernelStats(compilations=1, memory_hits=0, disk_hits=1, loads=2)


def test_another_architecture_compiles_again(begin, monkeypatch):
    texts = sources(ops.exp)
    kernels_of(Driver()).functions(texts, True)
    begin()
    monkeypatch.setattr(Driver, "arch", "sm_80")
    kernels_of(Driver()).functions(texts, True)
    assert mg.jit.stats().compilations == 1


def test_nothing_reaches_the_disk_where_that_is_not_wanted(begin, tmp_path):
    kernels_of(Driver()).functions(sources(ops.exp), False)
    assert not (tmp_path / "cache").exists()


def test_a_text_that_is_refused_does_not_take_the_others_with_it(begin):
    bad, (good,) = KernelSource("struct NAME_args {}; void NAME( { }"), sources(ops.exp)
    for _ in range(2):
        with pytest.raises(mg.CompileError, match=r"^NVRTC for sm_90.*$"):
            kernels_of(Driver()).functions([bad, good])
    assert mg.jit.stats() == KernelStats(compilations=1, memory_hits=1, disk_hits=0, loads=1)


def test_sources_are_kept_if_the_user_asks(begin, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIGRAPH_JIT_WORKDIR", str(tmp_path / "work"))
    kernels_of(Driver()).functions(sources(ops.exp))
    assert not (tmp_path / "work").exists()
    monkeypatch.setenv("MINIGRAPH_JIT_KEEP_INTERM", "1")
    begin()
    kernels_of(Driver()).functions(sources(ops.exp))
    (source,) = (tmp_path / "work").iterdir()
    assert sources(ops.exp)[0].name in source.read_text()
    assert mg.jit.stats().compilations == 1
