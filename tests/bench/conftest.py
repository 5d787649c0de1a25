"""Fixtures of the tests of the benchmark."""

import pytest
from bench_plans import planned

from minigraph.bench import measure
from minigraph.bench import plan as plans
from minigraph.bench.plan import Plan


@pytest.fixture
def run(monkeypatch):
    """A function that runs a benchmark whose workers are scripted."""

    def run(commands, model="abc", *flags, progress=lambda what: None, save=lambda results: None):
        plan = planned("--models", model, *(flags or ["--quick"]))
        monkeypatch.setattr(Plan, "sides", lambda plan, model: commands)
        return measure.measure_cases(plan, {}, progress, save)

    return run


@pytest.fixture
def installed(monkeypatch):
    """Let all peers seem to be installed."""
    monkeypatch.setattr(plans, "find_spec", lambda name: name)
