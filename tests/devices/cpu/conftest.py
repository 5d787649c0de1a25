"""Fixtures of the tests of kernels for the CPU."""

import pytest
from msgspec import structs
from new_process import begin
from numbered_kernels import GCC

from minigraph.autotune import measurement
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.device import CpuBackend
from minigraph.devices.problem import WEIGHTS
from minigraph.program import choices


@pytest.fixture
def prefer(monkeypatch):
    """A function that lets an algorithm be chosen wherever it has been measured and was right."""

    def prefer(name):
        def choose(measurements, allowed):
            measured = [m for m in measurements if m.name == name and not m.error]
            if measured:
                return structs.replace(measured[0], seconds=1e-9)
            choice = real(measurements, allowed)
            slow = choice is not None and str(WEIGHTS) in choice.layouts
            return structs.replace(choice, seconds=1.0) if slow else choice

        for module in (choices, measurement):
            monkeypatch.setattr(module, "choose", choose)
        monkeypatch.setattr(CpuBackend, "tunes", "exhaustive")

    real = choices.choose
    return prefer


@pytest.fixture
def new_process(monkeypatch):
    """A function that clears this process's compilers, kernels and counters."""
    yield lambda: begin(monkeypatch)
    begin(monkeypatch)  # what it found with another environment is not for the next test


@pytest.fixture
def cache(tmp_path, monkeypatch, new_process):
    """The folder, empty, of a process that begins; with headers that are compiled quickly."""
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "PRELUDE", "#include <stdint.h>\n")
    new_process()
    return tmp_path / "cache"


@pytest.fixture
def use_compiler(tmp_path, monkeypatch, new_process):
    """A function that puts a shell script before the compiler, in whose folder it runs."""

    def use(script):
        path = tmp_path / "wrapper"  # zig looks for headers by calling what is named cc
        path.write_text(f'#!/bin/sh\n{script}\nexec {GCC} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        new_process()
        return tmp_path

    return use
