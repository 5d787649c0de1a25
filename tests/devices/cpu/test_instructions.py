"""A limit on the processor's instructions: ONEDNN_MAX_CPU_ISA holds for generated kernels, too."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from needs import needs_both
from new_process import python

from minigraph import options
from minigraph.cache.machine import features
from minigraph.devices.cpu import compiler, onednn
from minigraph.devices.factory import open_backend

pytestmark = [needs_both, pytest.mark.skipif("avx2" not in features(), reason="there is no AVX2")]
BITS = {"AVX2": onednn.AVX2, "AVX": onednn.AVX, "SSE41": 1}
PROGRAM = Path(__file__).with_name("limited.py")


def limited(limit, *trained):
    """Train the program's network under a limit; return what it prints."""
    return json.loads(python(PROGRAM, json.dumps(trained), ONEDNN_MAX_CPU_ISA=limit)[0])


@pytest.mark.parametrize(
    ("limit", "has", "lacks"),
    [
        ("AVX2", ("AVX2", "FMA"), ("AVX512F", "AVX512VL", "AVX512BF16")),
        ("AVX", ("AVX",), ("AVX2", "FMA", "AVX512F")),
        ("SSE41", ("SSE4_1",), ("AVX", "AVX2", "FMA", "AVX512F")),
    ],
)
def test_the_compiler_has_no_instructions_that_onednn_does_without(monkeypatch, limit, has, lacks):
    monkeypatch.setattr(onednn.Library, "instructions", BITS[limit])
    command = [*shlex.split(compiler.compiler()), *compiler.flags(), "-dM", "-E", "-x", "c", "-"]
    macros = subprocess.run(
        command, input="", capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"__{name}__" for name in has} <= {*macros}
    assert {f"__{name}__" for name in lacks}.isdisjoint(macros)


@pytest.mark.skipif("gcc" not in compiler.compiler_name(), reason="the compiler is not gcc")
def test_without_a_limit_kernels_have_all_instructions_of_the_processor():
    program = "from minigraph.devices.cpu import compiler; print(*compiler.flags())"
    flags = python("-c", program, ONEDNN_MAX_CPU_ISA="ALL")[0].split()
    absent = [] if "avx512bw" in features() else ["-mno-avx512f"]
    assert flags == [
        *compiler.FLAGS,
        *compiler.GCC_FLAGS,
        compiler.WIDE_VECTORS,
        *compiler.LINKER_WRAPS,
        *absent,
    ]


def test_what_is_compiled_and_measured_under_a_limit_is_kept_apart(monkeypatch):
    def environments():
        compiler.environment.cache_clear()
        backend = open_backend("cpu", options.resolve({}))
        # Of kernels on disk, of measurements, and of what processes share.
        return [backend.environment("jit"), backend.environment("onednn"), backend.versions]

    free = environments()
    monkeypatch.setattr(onednn.Library, "instructions", BITS["SSE41"])
    limited = environments()
    compiler.environment.cache_clear()
    assert all(a != b for a, b in zip(free, limited, strict=True))


def test_kernels_of_avx2_agree_with_level_0():
    facts = limited("AVX2", (3, {}))
    assert facts["block"] == 8
    assert not facts["bfloat16"]
    assert any(flag.endswith("-avx512f") for flag in facts["flags"])
    assert not [name for name in facts["candidates"] if "avx512" in name]
    assert "winograd 4x4" in facts["candidates"]


@pytest.mark.long
@pytest.mark.parametrize("limit", BITS)
def test_every_level_agrees_with_level_0_under_every_limit(limit):
    facts = limited(limit, (1, {}), (2, {}), (3, {}))
    assert facts["block"] == 8
