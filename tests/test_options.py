"""Every option: its default, its values, and the ways to set it.

Wrong names, and what the environment may not say, are in `tests/wrong_calls/options.txt`.
"""

import math

import numpy as np
import pytest

import minigraph as mg
from minigraph import options
from minigraph.devices.cpu import CpuBackend

# docs/reference/options.md has them in words.
DEFAULTS = {name: option.default for name, option in options.OPTIONS.items()} | {"autotune": "tune"}
# What every option of a kind refuses, beside None and numbers out of its bounds.
ODD = {
    bool: [0, 1, "true"],
    int: [1.5, True, "2", math.inf],
    float: [math.nan, -math.inf, True, "30"],
    object: [9, 2.0, True, "no such", [2]],  # of options with choices
}


def taken(option):
    """Values that the row of an option allows."""
    if option.kind is bool:
        return [True, False]
    bounds = [option.minimum, option.minimum + 1, min(option.maximum, 1 << 40)]
    if option.kind is float:
        bounds += [0.5, math.inf]
    return [*(option.choices or bounds), *[None] * (option.default is None)]


def refused(option):
    """Values that the row of an option does not allow."""
    numbers = [option.minimum - 1, option.maximum + 1] if option.kind in (int, float) else []
    return [
        *ODD[option.kind],
        *(n for n in numbers if n < math.inf),
        *[None][option.default is None :],
    ]


def values(of):
    return [
        pytest.param(option.name, value, id=f"{option.name}={value!r}")
        for option in options.OPTIONS.values()
        for value in of(option)
    ]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("MINIGRAPH_OPTIONS", "MINIGRAPH_DEVICE", "MINIGRAPH_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def one_line(error):
    return "\n" not in str(error.value)


# ---------------------------------------------------------------- defaults and values


def test_options_are_those_of_the_table_with_their_defaults():
    cg = mg.comp_graph()
    assert cg.options == DEFAULTS
    assert {name: cg.get_option(name) for name in DEFAULTS} == DEFAULTS


def test_every_option_has_sentences():
    for option in options.OPTIONS.values():
        assert option.sentence[0].isupper() and option.sentence[-1] == ".", option.name


def test_a_table_shows_the_defaults_in_words():
    words = {option.name: option.default_words for option in options.OPTIONS.values()}
    assert words["graph_opt.jit"] == '"auto"' and words["autotune.budget"] == "30.0"
    assert words["autotune"] == '"tune" at levels 2 and 3, else "off"'
    assert not any("lambda" in text or text == "None" for text in words.values())


@pytest.mark.parametrize("level", range(-3, 4))
def test_autotune_follows_the_level_unless_it_was_set(level, monkeypatch):
    by_level = "tune" if abs(level) >= 2 else "off"
    assert mg.comp_graph(options={"graph_opt_level": level}).get_option("autotune") == by_level
    for given, autotune in (({}, by_level), ({"autotune": "frozen"}, "frozen")):
        cg = mg.comp_graph(options=given)
        cg.set_option("graph_opt_level", level)
        assert cg.get_option("autotune") == autotune
    monkeypatch.setenv("MINIGRAPH_OPTIONS", f"graph_opt_level={level}")
    assert mg.comp_graph().get_option("autotune") == by_level


@pytest.mark.parametrize(("name", "value"), values(taken))
def test_value_is_taken(name, value, monkeypatch):
    cg = mg.comp_graph()
    cg.set_option(name, value)
    assert cg.get_option(name) == value
    assert options.OPTIONS[name].kind is not float or isinstance(cg.get_option(name), float)
    assert cg.options == mg.comp_graph(options={name: value}).options
    monkeypatch.setenv("MINIGRAPH_OPTIONS", f"{name}={value}")
    assert mg.comp_graph().options == cg.options


@pytest.mark.parametrize(("name", "value"), values(refused))
def test_value_is_refused_and_the_allowed_ones_are_listed(name, value):
    cg = mg.comp_graph()
    with pytest.raises(mg.OptionError, match=rf"{name} does not take") as error:
        cg.set_option(name, value)
    assert repr(value) in str(error.value)
    assert "allowed: " in str(error.value)
    assert one_line(error)
    assert cg.options == DEFAULTS
    with pytest.raises(mg.OptionError):
        mg.comp_graph(options={name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("graph_opt_level", np.int8(-3)),
        ("autotune", np.str_("frozen")),
        ("autotune.budget", np.float64(2.5)),
        ("bulk", np.False_),
        ("seed", np.uint64(2**64 - 1)),
    ],
)
def test_numpy_scalar_is_taken_as_the_python_value(name, value):
    cg = mg.comp_graph(options={name: value})
    assert cg.get_option(name) == value.item()
    assert not isinstance(cg.get_option(name), np.generic)


def test_set_option_returns_the_old_value():
    cg = mg.comp_graph()
    assert cg.set_option("graph_opt_level", 3) == 2
    assert cg.set_option("graph_opt_level", -1) == 3
    assert cg.set_option("autotune", "cached") == "off"  # the default at level -1
    assert cg.set_option("num_threads", 1) is None


def test_comp_graphs_do_not_share_options():
    given = {"seed": 1}
    cg, other = mg.comp_graph(options=given), mg.comp_graph()
    given["seed"] = 2
    cg.options["seed"] = 5
    assert cg.get_option("seed") == 1
    cg.set_option("seed", 3)
    assert given == {"seed": 2} and other.get_option("seed") == 0


# ---------------------------------------------------------------- the environment


def test_environment_fills_what_the_program_did_not_set(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "graph_opt_level=3;graph_opt.jit=1;seed=7")
    cg = mg.comp_graph(options={"seed": 0})  # its default
    given = {"graph_opt_level": 3, "graph_opt.jit": 1}
    assert cg.options == {**DEFAULTS, **given}
    assert cg.set_option("graph_opt_level", 0) == 3
    assert cg.get_option("graph_opt_level") == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (";", {}),
        (" ; ", {}),
        ("seed=1;", {"seed": 1}),
        (" seed = 1 ; bulk = false ", {"seed": 1, "bulk": False}),
        ("seed=1;seed=2", {"seed": 2}),
        ("graph_opt.fast_math=1", {"graph_opt.fast_math": True}),
        ("bulk=0", {"bulk": False}),
        ("autotune.budget=2", {"autotune.budget": 2.0}),
        ("autotune=frozen;precision=tf32", {"autotune": "frozen", "precision": "tf32"}),
        ("num_threads=none", {"num_threads": None}),
    ],
)
def test_environment_is_read(monkeypatch, text, expected):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", text)
    assert mg.comp_graph().options == {**DEFAULTS, **expected}


def test_environment_names_the_device(monkeypatch):
    assert mg.comp_graph().device == "cpu"
    monkeypatch.setenv("MINIGRAPH_DEVICE", "reference")
    assert mg.comp_graph().device == "reference"
    assert mg.comp_graph("cpu").device == "cpu"
    monkeypatch.setenv("MINIGRAPH_DEVICE", "")
    assert mg.comp_graph().device == "cpu"


def test_number_of_threads_is_the_option_then_the_environment_then_the_cores(monkeypatch):
    assert options.num_threads(None) >= 1
    monkeypatch.setenv("MINIGRAPH_NUM_THREADS", "3")
    assert options.num_threads(None) == 3
    assert options.num_threads(2) == 2
    monkeypatch.setenv("MINIGRAPH_NUM_THREADS", "none")
    assert options.num_threads(None) >= 1


# ---------------------------------------------------------------- options and functions


X = mg.input("x", (64,))


def test_report_has_the_options_that_were_compiled_with():
    cg = mg.comp_graph("reference", options={"seed": 5})
    function = cg.compile([X], X + 1)
    expected = cg.options
    cg.set_option("seed", 6)
    assert function.report().options == expected
    assert expected["seed"] == 5


@pytest.mark.parametrize(("value", "ignored"), [("float32", False), ("tf32", True)])
def test_report_says_which_options_have_no_effect_on_the_device(value, ignored):
    why = CpuBackend.ignored_options["precision"]
    report = mg.comp_graph(options={"precision": value}).compile([X], X + 1).report()
    assert report.ineffective == ({"precision": why} if ignored else {})
    assert (f"precision: {why}" in report.section("options")) == ignored


def test_a_function_keeps_the_options_that_it_was_compiled_with(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "seed=1")
    cg = mg.comp_graph("reference")
    function = cg.compile([X], mg.ops.dropout(X))
    first = function(np.ones(64))
    before = function.report()
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "seed=2")
    function.calls = 0
    np.testing.assert_array_equal(function(np.ones(64)), first)
    for name, value in (("seed", 2), ("graph_opt_level", 0), ("num_threads", 1)):
        cg.set_option(name, value)
    function.calls = 0
    np.testing.assert_array_equal(function(np.ones(64)), first)
    assert function.report().fingerprint == before.fingerprint
    other = cg.compile([X], mg.ops.dropout(X))
    assert not np.array_equal(other(np.ones(64)), first)
