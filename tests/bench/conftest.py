"""What the tests of the benchmark share."""

import pytest
from bench_plans import planned, silent

from minigraph.bench import measure
from minigraph.bench import plan as plans
from minigraph.bench.plan import Plan


@pytest.fixture
def run(monkeypatch):
    """A function that runs a benchmark whose workers are scripted."""

    def run(commands, progress=silent, models=("abc",), flags=("--quick",), keep=lambda _: None):
        plan = planned(*flags, "--device", "cpu", "--models", ",".join(models))
        monkeypatch.setattr(Plan, "sides", lambda plan, model: commands)
        return measure.measure_cases(plan, {}, progress, keep)

    return run


@pytest.fixture
def installed(monkeypatch):
    """Let all peers seem to be installed."""
    monkeypatch.setattr(plans, "find_spec", lambda name: name)
