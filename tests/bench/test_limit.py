"""A bench of a processor that is limited to AVX2: it limits all sides alike, and says so."""

from types import SimpleNamespace

import pytest

import minigraph as mg
from minigraph.bench import limit
from minigraph.bench.measure import _environment
from minigraph.bench.page import about
from minigraph.bench.plan import PEERS, Plan
from minigraph.bench.results import Results

PLAN = Plan(
    models=("mlp", "resnet18-1"),
    levels=(3,),
    peers=tuple(PEERS),
    device="cpu",
    threads=1,
    processes=1,
    batch_size=None,
    quick=True,
    precision="float32",
    budget=1.0,
    untuned=False,
    repeats=1,
    minutes=None,
    twice=False,
)


@pytest.fixture
def allowed(monkeypatch):
    """A function: the bits of what oneDNN may use on a processor with AVX-512."""

    def allow(bits):
        library = SimpleNamespace(instructions=bits, version="3.2.0")
        monkeypatch.setattr(limit.onednn, "library", lambda: library)
        monkeypatch.setattr(limit, "features", lambda: {"avx", "avx2", "avx512f"})

    return allow


def test_every_side_gets_the_variables_that_limit_its_library(allowed, monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_foo=1")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    allowed(limit.onednn.AVX2)
    found = _environment(PLAN, tmp_path)
    assert found["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert found["ATEN_CPU_CAPABILITY"] == "avx2"
    assert found["XLA_FLAGS"] == "--xla_foo=1 --xla_cpu_max_isa=AVX2"


def test_without_a_limit_sides_get_no_such_variables(allowed, monkeypatch, tmp_path):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for bits in (limit.onednn.AVX512, limit.onednn.AVX512_BF16):
        allowed(bits)
        assert not {"XLA_FLAGS", *limit.VARIABLES} & _environment(PLAN, tmp_path).keys()
        assert "limited" not in about(Results.begin({}))[0]


def test_a_processor_without_avx512_is_not_limited(allowed, monkeypatch):
    allowed(limit.onednn.AVX2)
    monkeypatch.setattr(limit, "features", lambda: {"avx", "avx2"})
    assert limit.limit() == ""


def test_the_page_names_the_limit_and_the_library_that_knows_none(allowed):
    allowed(limit.onednn.AVX2)
    assert ", limited to AVX2, " in about(Results.begin({}))[0]
    reasons = PLAN.missing()
    assert reasons["onnxruntime"] in ("cannot be limited to AVX2", "is not installed")
    assert "cannot be limited to AVX2" not in (reasons.get(x) for x in ("torch", "jax"))


def test_a_limit_that_not_every_peer_can_have_is_an_error(allowed):
    allowed(limit.onednn.AVX)
    with pytest.raises(mg.OptionError, match="ONEDNN_MAX_CPU_ISA has to be AVX2 or more"):
        Results.begin({})
