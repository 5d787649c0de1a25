"""Measurements whose checksums are right and whose contents are not: misses, measured again."""

import dataclasses
import json

import numpy as np
import pytest
from needs import needs_both
from new_process import forget_measurements

import minigraph as mg
from minigraph import ops
from minigraph.autotune.measurement import table
from minigraph.cache import Store, file
from minigraph.devices.cpu.candidates import CpuProblems

pytestmark = needs_both

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 16, 6, 6)).astype(np.float32)
W = RNG.normal(size=(16, 16, 3, 3)).astype(np.float32)


def compiled(cg=None):
    """Return a convolution, compiled; its layouts are chosen too."""
    x, w = mg.input("x", X.shape), mg.input("w", W.shape)
    return (cg or mg.comp_graph(device="cpu")).compile(
        [x, w], ops.relu(ops.conv2d(x, w, padding=1))
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The entries of the function, and its result."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("good")
        forget_measurements(patch, folder)
        result = compiled()(X, W)
        return Store(folder).entries(), result


def with_rows(entry, change):
    """Return the entry, its checksum right, after a change of the rows of its table."""
    body = json.loads(entry.body)
    change(body["measurements"])
    return dataclasses.replace(entry, body=json.dumps(body))


def setting(name, value):
    """Return a function that changes a field of the first row."""
    return lambda rows: rows[0].update({name: value})


LAYOUTS = [
    ["nowhere", "oihw", "nchw"],
    *([f"nChw{lanes}c", "oihw", "nchw"] for lanes in ("", "x", "7", "0", "-8")),
    ["nchw"],
    ["nchw", "oihw", "nchw", "nchw"],
    [],
    ["rows", "rows", "rows"],  # of another problem
    ["nchw", "nchw", "nchw"],
    ["oihw", "oihw", "oihw"],
    ["oihw", "nchw", "nchw"],
    "nchw",
    [1, 2, 3],
    [["nchw"], ["oihw"], ["nchw"]],
]
RECIPES = [
    {"way": "", "engine": "1", "knobs": {}},
    {"way": "", "engine": -1, "knobs": {}},
    {"way": "", "engine": 1, "knobs": [1]},
    {"way": "", "engine": 1, "knobs": {"A": 0.5}},
    {"way": "", "engine": 1, "knobs": {}, "more": 1},
]
ODD = {
    "name": [None, 1, ["a"], "", {}],
    "layouts": [None, 3, {}, *LAYOUTS],
    "workspace": [-1, 1.5, 10**30, 10**400, "12", True, None, []],
    "deterministic": [0, 1, "true", None],
    "precision": [None, 32, "", "float33", "FLOAT32"],
    "seconds": [-1.0, -1e-300, 1e308, "1e-5", True, [1.0], {}],
    "spread": [-0.5, None, "0", False, [0.0]],
    "rounds": [-1, 2.5, 10**30, "3", None, True],
    "error": [None, 0, False, ["wrong"], {"why": "wrong"}],
    "recipe": [1, "engine 1", [], {}, {"way": 1}, *RECIPES],
    "unknown": [1, None],
}
CHANGES = {
    **{f"{name} {str(value)[:40]}": setting(name, value) for name in ODD for value in ODD[name]},
    **{f"no {name}": lambda rows, name=name: rows[0].pop(name) for name in list(ODD)[:5]},
    "a candidate twice": lambda rows: rows.append(rows[0]),
}
BODIES = ["", "null", "{}", "[]]", "[" * 100_000, "[1]", '"a"', "\x00", "[{}]", "9" * 5000]
BODIES += [
    f'{{"exhaustive": {whole}, "measurements": {rows}}}'
    for whole, rows in (("null", "[]"), ("1", "[]"), ("true", "[[]]"), ("true", "{}"))
]


def of_convolution(entries):
    """Return the entry of the convolution, and the others, which are of reorders."""
    (own,) = (e for e in entries if e.subject.startswith("conv2d"))
    return own, [e for e in entries if e != own]


@pytest.fixture(scope="module")
def problem():
    """The problem of the convolution."""
    x, w = mg.input("x", X.shape), mg.input("w", W.shape)
    node = ops.conv2d(x, w, padding=1)
    found = CpuProblems(1, on_disk=False).tunable(node, [x.spec.strides, w.spec.strides])
    return found.problem


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_odd_measurement_is_rejected_with_a_reason(good, problem, change):
    own, _ = of_convolution(good[0])
    assert not isinstance(problem.read(own), str)
    assert 0 < len(rejected(problem, with_rows(own, change))) < 200


@pytest.mark.parametrize("body", BODIES, ids=[body[:50] for body in BODIES])
def test_an_odd_body_is_rejected_with_a_reason(good, problem, body):
    own, _ = of_convolution(good[0])
    assert 0 < len(rejected(problem, dataclasses.replace(own, body=body))) < 200


def rejected(problem, entry):
    """Return why an entry is no table of a problem."""
    reason = problem.read(entry)
    assert isinstance(reason, str), reason
    return reason


def stored(folder, entries):
    """Keep entries as they are."""
    assert Store(folder).keep(entries, lambda old, new: new)


def keys(entry):
    """Return the candidates in an entry."""
    return {measurement.key for measurement in table(entry).measurements}


def test_an_odd_measurement_is_a_miss_that_is_measured_again(good, tmp_path, monkeypatch):
    entries, result = good
    own, others = of_convolution(entries)
    stored(tmp_path, [with_rows(own, CHANGES["layouts None"]), *others])
    forget_measurements(monkeypatch, tmp_path)
    np.testing.assert_allclose(compiled()(X, W), result, rtol=1e-4, atol=1e-4)
    assert mg.autotune.stats().misses == mg.autotune.stats().rejected == 1
    assert list(map(keys, Store(tmp_path).entries())) == list(map(keys, entries))


def test_an_odd_measurement_of_a_file_gives_way_to_what_is_stored(good, tmp_path, monkeypatch):
    entries, result = good
    own, others = of_convolution(entries)
    path = tmp_path / "net.cache"
    odd = with_rows(own, setting("layouts", LAYOUTS[0]))
    file.write(path, {}, [odd, *others], lambda old, new: new)
    stored(tmp_path, entries)
    forget_measurements(monkeypatch, tmp_path)
    cg = mg.comp_graph(device="cpu")
    cg.load_cache(path, "onednn")
    step = compiled(cg)
    np.testing.assert_allclose(step(X, W), result, rtol=1e-4, atol=1e-4)
    assert (mg.autotune.stats().misses, mg.autotune.stats().rejected) == (0, 1)
    step.save_cache(path, "onednn")
    forget_measurements(monkeypatch)
    cg = mg.comp_graph(device="cpu")
    assert cg.load_cache(path, "onednn").rejected == []
    compiled(cg)
    assert (mg.autotune.stats().misses, mg.autotune.stats().rejected) == (0, 0)
