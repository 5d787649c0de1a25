"""Measurements: the choice among them, and tables as entries of the store."""

import dataclasses
import itertools

import numpy as np
import pytest
from msgspec import structs
from problems import MACHINE, entry_of, measurement

from minigraph.autotune.measurement import (
    QUARANTINE_PREFIX,
    Policy,
    ProblemTable,
    choose,
    merge,
    table,
)

pytestmark = pytest.mark.usefixtures("new_process")

# ---------------------------------------------------------------- which one is used


def chosen(*measurements, **policy):
    best = choose(measurements, Policy(**policy))
    return best and best.name


def test_the_incumbent_stays_unless_another_is_clearly_faster():
    a = measurement("a", 1.0)
    assert chosen(a, measurement("b", 0.98)) == "a"
    assert chosen(a, measurement("b", 0.96)) == "b"
    assert chosen(a, measurement("b", 0.9, spread=0.2)) == "a"
    assert chosen(measurement("a", 1.0, spread=0.2), measurement("b", 0.9)) == "a"
    assert chosen(measurement("a", 1.0, spread=5.0), measurement("b", 0.4)) == "b"
    assert chosen(a, measurement("b", 0.9), measurement("c", 0.89)) == "b"
    assert chosen(measurement("a", 0.0), measurement("b", 0.0)) == "a"


def test_ties_go_to_the_first_and_clear_ones_do_not_depend_on_the_order():
    tied = [measurement(name, 1.0 + i / 1000) for i, name in enumerate("cab")]
    for shuffled in itertools.permutations(tied):
        assert chosen(*shuffled) == shuffled[0].name
        assert chosen(*shuffled[:2], measurement("fast", 0.5), shuffled[2]) == "fast"


def test_noise_changes_no_choice():
    noise = np.random.default_rng(0).normal(1, 0.005, (500, 3))
    runs = [[measurement(n, t) for n, t in zip("abc", row, strict=True)] for row in noise]
    assert {chosen(*run) for run in runs} == {"a"}


def test_a_policy_says_why_it_does_not_allow_a_candidate():
    m = measurement("a", workspace=4096, deterministic=False, precision="tf32")
    reason = "needs 4096 bytes of workspace, the limit is 1024"
    assert Policy(workspace_limit=1024).allows(m) == reason
    assert Policy(deterministic=True, precision="tf32").allows(m) == "not deterministic"
    assert Policy().allows(m) == "precision tf32"
    assert Policy(workspace_limit=4096, precision="tf32").allows(m) == ""
    assert Policy().allows(structs.replace(m, error="wrong")) == "wrong"
    assert chosen(m, workspace_limit=0) is None
    assert chosen() is None


# ---------------------------------------------------------------- in an entry


def test_a_table_comes_back_from_its_entry():
    rows = (measurement("a", 1e-5, spread=0.1), measurement("b", None, error="wrong"))
    for whole in (ProblemTable("twice 5 7", rows), ProblemTable("twice", (), exhaustive=False)):
        assert table(whole.entry("onednn", MACHINE)) == whole


def test_a_candidate_fails_in_one_layout_alone():
    one, other = measurement("a"), measurement("a", layouts=("ba",))
    failed = ProblemTable("twice", (one, other)).with_error(other, "why")
    assert [m.error for m in failed.measurements] == ["", "why"]


def test_a_measurement_of_nan_seconds_is_rejected_with_a_reason():
    assert "neither a time" in table(entry_of(measurement("a", float("nan"))))


def test_an_error_that_no_file_can_hold_is_kept_as_well_as_it_can():
    kept = table(entry_of(measurement("a", None, error="no \udcff")))
    assert kept.measurements[0].error == "no \\udcff"


def test_a_malformed_entry_is_ignored_by_a_merge():
    bad, good = dataclasses.replace(entry_of(), body="{"), entry_of(measurement("a"))
    assert merge(bad, good) == merge(good, bad) == good


def test_merging_keeps_all_candidates_the_newer_times_and_what_failed_at_run_time():
    broken = measurement("b", error=f"{QUARANTINE_PREFIX}crashed")
    old = entry_of(measurement("a", 1.0), broken, measurement("c", 3.0))
    new = entry_of(measurement("d", 0.1), measurement("b", 0.2), measurement("a", 0.3))
    assert table(merge(old, new)).measurements == (
        measurement("d", 0.1),
        measurement("b", 0.2, error=f"{QUARANTINE_PREFIX}crashed"),
        measurement("a", 0.3),
        measurement("c", 3.0),
    )
    assert merge(new, new) == new
