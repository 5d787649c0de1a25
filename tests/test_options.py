"""Every option: its default, what it takes, and who may set it."""

import math

import numpy as np
import pytest

import minigraph as mg
from minigraph import options

DEFAULTS = {
    "graph_opt_level": 2,
    "graph_opt.jit": "auto",
    "graph_opt.fast_math": False,
    "graph_opt.memory_limit": None,
    "graph_opt.saved_activations": "float32",
    "autotune": "tune",
    "debug.check_finite": False,
    "sizes.kept": None,
    "autotune.workspace_limit": None,
    "autotune.deterministic": False,
    "autotune.budget": 30.0,
    "bulk": True,
    "precision": "float32",
    "amp": "off",
    "seed": 0,
    "num_threads": None,
    "distributed.bucket_bytes": 4 << 20,
    "distributed.compress": "off",
    "distributed.timeout": 300.0,
}
TAKEN = {
    "graph_opt_level": [-3, -2, -1, 0, 1, 2, 3],
    "graph_opt.jit": ["auto", 0, 1, 2],
    "graph_opt.fast_math": [True, False],
    "graph_opt.memory_limit": [0, 1 << 40, None],
    "graph_opt.saved_activations": ["float32", "bfloat16"],
    "autotune": ["off", "cached", "tune", "frozen"],
    "debug.check_finite": [True, False],
    "sizes.kept": [1, 100, None],
    "autotune.workspace_limit": [0, 1, 1 << 40, None],
    "autotune.deterministic": [True, False],
    "autotune.budget": [0, 0.5, 10, math.inf],
    "bulk": [True, False],
    "precision": ["float32", "tf32"],
    "amp": ["off", "bfloat16", "float16"],
    "seed": [0, 1, 2**64 - 1],
    "num_threads": [1, 2, None],
    "distributed.bucket_bytes": [0, 1, 1 << 40],
    "distributed.compress": ["off", "bfloat16"],
    "distributed.timeout": [0.5, 10, math.inf],
}
REFUSED = {
    "graph_opt_level": [-4, 4, True, 2.0, "2", None, [2]],
    "graph_opt.jit": [3, -1, True, "on", "2", None],
    "graph_opt.fast_math": [0, 1, "true", None],
    "graph_opt.memory_limit": [-1, 1.5, True, "1 GB"],
    "graph_opt.saved_activations": ["float16", True, None],
    "autotune": ["on", "Tune", True, 0, None],
    "debug.check_finite": [0, 1, "true", None],
    "sizes.kept": [0, 1.5, True],
    "autotune.workspace_limit": [-1, 1.5, True, "none", math.inf],
    "autotune.deterministic": [0, 1, "false", None],
    "autotune.budget": [-1, math.nan, -math.inf, True, "30", None],
    "bulk": [0, 1, "true", None],
    "precision": ["float16", "TF32", None],
    "amp": ["float32", True, None],
    "seed": [-1, 2**64, 1.0, True, "0", None],
    "num_threads": [0, -1, 1.0, True, "2", 10**6],
    "distributed.bucket_bytes": [-1, 1.5, True, "1 MB", None],
    "distributed.compress": ["float16", True, None],
    "distributed.timeout": [0, -1, math.nan, True, "30", None],
}
NUMPY = {
    "graph_opt_level": [np.int64(-3), np.int8(1), np.uint8(2)],
    "autotune": [np.str_("frozen")],
    "autotune.budget": [np.float32(0.5), np.float64(2.5), np.int32(3)],
    "bulk": [np.False_],
    "seed": [np.uint64(2**64 - 1)],
    "num_threads": [np.int16(2)],
}


def pairs(table):
    return [pytest.param(k, v, id=f"{k}={v!r}") for k, values in table.items() for v in values]


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
    assert [type(v) for v in cg.options.values()] == [type(v) for v in DEFAULTS.values()]
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
def test_autotune_is_on_by_default_from_level_2(level):
    cg = mg.comp_graph(options={"graph_opt_level": level})
    assert cg.get_option("autotune") == ("tune" if abs(level) >= 2 else "off")


def test_autotune_follows_a_level_that_is_set_later():
    cg = mg.comp_graph()
    cg.set_option("graph_opt_level", 1)
    assert cg.get_option("autotune") == "off"


def test_autotune_that_was_set_does_not_follow_the_level():
    cg = mg.comp_graph(options={"autotune": "frozen"})
    cg.set_option("graph_opt_level", 0)
    assert cg.get_option("autotune") == "frozen"


@pytest.mark.parametrize(("name", "value"), pairs(TAKEN))
def test_value_is_taken(name, value):
    cg = mg.comp_graph()
    cg.set_option(name, value)
    assert cg.get_option(name) == value
    assert cg.options == mg.comp_graph(options={name: value}).options


@pytest.mark.parametrize(("name", "value"), pairs(REFUSED))
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


@pytest.mark.parametrize(("name", "value"), pairs(NUMPY))
def test_numpy_scalar_is_taken_as_the_python_value(name, value):
    cg = mg.comp_graph(options={name: value})
    assert cg.get_option(name) == value.item()
    assert not isinstance(cg.get_option(name), np.generic)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("graph_opt_level", 9, "-3, -2, -1, 0, 1, 2, 3"),
        ("graph_opt.jit", 9, "'auto', 0, 1, 2"),
        ("autotune", 9, "'off', 'cached', 'tune', 'frozen'"),
        ("bulk", 9, "True or False"),
        ("autotune.budget", "9", "float >= 0"),
        ("autotune.workspace_limit", "9", "int >= 0 or None"),
        ("num_threads", 0, "int >= 1"),
    ],
)
def test_error_lists_the_allowed_values(name, value, allowed):
    with pytest.raises(mg.OptionError, match=f"allowed: {allowed}"):
        mg.comp_graph().set_option(name, value)


def test_a_value_that_was_removed_is_an_error_that_says_what_to_use(monkeypatch):
    text = 'option autotune does not take \'online\'; use "tune", .* or "off"'
    with pytest.raises(mg.OptionError, match=text):
        mg.comp_graph(options={"autotune": "online"})
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "autotune=online")
    with pytest.raises(mg.OptionError, match=f"MINIGRAPH_OPTIONS: {text}"):
        mg.comp_graph()


def test_a_whole_number_of_seconds_is_a_float():
    cg = mg.comp_graph(options={"autotune.budget": 3})
    assert isinstance(cg.get_option("autotune.budget"), float)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("graph_opt_levle", "graph_opt_level"),
        ("opt_level", "graph_opt_level"),
        ("jit", "graph_opt.jit"),
        ("workspace_limit", "autotune.workspace_limit"),
        ("threads", "num_threads"),
        ("SEED", "seed"),
    ],
)
def test_unknown_name_is_an_error_that_names_the_nearest(name, near):
    cg = mg.comp_graph()
    for use in (cg.get_option, lambda name: cg.set_option(name, 1), lambda n: options.find(n)):
        with pytest.raises(mg.OptionError, match=f"no option '{name}'") as error:
            use(name)
        assert near in str(error.value)
        assert one_line(error)
    with pytest.raises(mg.OptionError):
        mg.comp_graph(options={name: 1})


@pytest.mark.parametrize("name", ["", "zzzzzzzzzz"])
def test_name_that_resembles_none_is_an_error_that_names_all(name):
    with pytest.raises(mg.OptionError) as error:
        mg.comp_graph().get_option(name)
    assert all(known in str(error.value) for known in DEFAULTS)


@pytest.mark.parametrize("name", [None, 3, ["seed"]])
def test_name_that_is_no_string_is_an_error(name):
    with pytest.raises(mg.OptionError, match="no option"):
        mg.comp_graph().get_option(name)


def test_set_option_returns_the_old_value():
    cg = mg.comp_graph()
    assert cg.set_option("graph_opt_level", 3) == 2
    assert cg.set_option("graph_opt_level", -1) == 3
    assert cg.set_option("autotune", "cached") == "off"  # the default at level -1
    assert cg.set_option("num_threads", 1) is None


def test_options_is_a_copy():
    cg = mg.comp_graph()
    cg.options["seed"] = 5
    assert cg.get_option("seed") == 0


def test_options_given_are_copied():
    given = {"seed": 1}
    cg = mg.comp_graph(options=given)
    given["seed"] = 2
    assert cg.get_option("seed") == 1
    cg.set_option("seed", 3)
    assert given == {"seed": 2}


def test_comp_graphs_do_not_share_options():
    one, other = mg.comp_graph(), mg.comp_graph()
    one.set_option("seed", 1)
    assert other.get_option("seed") == 0


# ---------------------------------------------------------------- the environment


def test_environment_fills_what_the_program_did_not_set(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "graph_opt_level=3;graph_opt.jit=1;seed=7")
    cg = mg.comp_graph(options={"seed": 1})
    given = {"graph_opt_level": 3, "graph_opt.jit": 1, "seed": 1}
    assert cg.options == {**DEFAULTS, **given}
    assert cg.set_option("graph_opt_level", 0) == 3
    assert cg.get_option("graph_opt_level") == 0


def test_environment_does_not_replace_a_default_that_the_program_set(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "graph_opt_level=3")
    assert mg.comp_graph(options={"graph_opt_level": 2}).get_option("graph_opt_level") == 2


def test_autotune_follows_the_level_of_the_environment(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "graph_opt_level=1")
    assert mg.comp_graph().get_option("autotune") == "off"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (";", {}),
        (" ; ", {}),
        ("seed=1;", {"seed": 1}),
        (" seed = 1 ; bulk = false ", {"seed": 1, "bulk": False}),
        ("seed=1;seed=2", {"seed": 2}),
        ("graph_opt_level=-3", {"graph_opt_level": -3}),
        ("graph_opt.jit=auto", {"graph_opt.jit": "auto"}),
        ("graph_opt.fast_math=True", {"graph_opt.fast_math": True}),
        ("graph_opt.fast_math=1", {"graph_opt.fast_math": True}),
        ("bulk=0", {"bulk": False}),
        ("autotune.workspace_limit=1048576", {"autotune.workspace_limit": 1 << 20}),
        ("autotune.workspace_limit=None", {"autotune.workspace_limit": None}),
        ("autotune.budget=2", {"autotune.budget": 2.0}),
        ("autotune.budget=0.25", {"autotune.budget": 0.25}),
        ("autotune=frozen;precision=tf32", {"autotune": "frozen", "precision": "tf32"}),
        ("seed=18446744073709551615", {"seed": 2**64 - 1}),
        ("num_threads=none", {"num_threads": None}),
    ],
)
def test_environment_is_read(monkeypatch, text, expected):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", text)
    assert mg.comp_graph().options == {**DEFAULTS, **expected}


@pytest.mark.parametrize(
    "text",
    [
        "graph_opt_level",
        "graph_opt_level:3",
        "graph_opt_level=",
        "graph_opt_level=4",
        "graph_opt_level=high",
        "graph_opt_level=3,graph_opt.jit=1",
        "=3",
        "level=3",
        "graph_opt.fast_math=2",
        "autotune.budget=nan",
        "seed=1.5",
        "seed=1;bulk=maybe",
    ],
)
def test_malformed_environment_is_an_error_that_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("MINIGRAPH_OPTIONS", text)
    with pytest.raises(mg.OptionError, match="MINIGRAPH_OPTIONS") as error:
        mg.comp_graph()
    assert one_line(error)


def test_environment_names_the_device(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_DEVICE", "reference")
    assert mg.comp_graph().device == "reference"
    assert mg.comp_graph("cpu").device == "cpu"
    monkeypatch.setenv("MINIGRAPH_DEVICE", "")
    assert mg.comp_graph().device == "cpu"
    monkeypatch.setenv("MINIGRAPH_DEVICE", "abacus")
    with pytest.raises(mg.DeviceError, match="abacus"):
        mg.comp_graph()


def test_device_is_the_cpu_by_default():
    assert mg.comp_graph().device == "cpu"


def test_number_of_threads_is_the_option_then_the_environment_then_the_cores(monkeypatch):
    assert options.num_threads(None) >= 1
    monkeypatch.setenv("MINIGRAPH_NUM_THREADS", "3")
    assert options.num_threads(None) == 3
    assert options.num_threads(2) == 2
    monkeypatch.setenv("MINIGRAPH_NUM_THREADS", "none")
    assert options.num_threads(None) >= 1


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "true"])
def test_malformed_number_of_threads_is_an_error_that_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("MINIGRAPH_NUM_THREADS", text)
    x = mg.input("x", (3,))
    with pytest.raises(mg.OptionError, match="MINIGRAPH_NUM_THREADS") as error:
        mg.comp_graph("cpu").compile([x], x)
    assert one_line(error)


# ---------------------------------------------------------------- options and functions


def compiled(**given):
    x = mg.input("x", (3,))
    return mg.comp_graph("reference", options=given).compile([x], x + 1)


def test_report_has_the_options_that_were_compiled_with():
    x = mg.input("x", (3,))
    cg = mg.comp_graph("reference", options={"seed": 5})
    function = cg.compile([x], x + 1)
    expected = cg.options
    cg.set_option("seed", 6)
    assert function.report().options == expected
    assert expected["seed"] == 5


CUDA_ONLY = [option for option in options.OPTIONS.values() if option.cuda_only]


@pytest.mark.parametrize("option", CUDA_ONLY, ids=[option.name for option in CUDA_ONLY])
def test_report_says_which_options_have_no_effect_on_the_device(option):
    for value in TAKEN[option.name]:
        function = compiled(**{option.name: value})
        reasons = function.report().ineffective
        if value == option.default:
            assert option.name not in reasons
        else:
            assert reasons[option.name] == option.cuda_only
            assert f"{option.name}: {option.cuda_only}" in function.report().section("options")


def test_setting_an_option_does_not_change_a_function_that_was_compiled():
    x = mg.input("x", (64,))
    cg = mg.comp_graph("reference", options={"seed": 1})
    function = cg.compile([x], mg.ops.dropout(x))
    first = function(np.ones(64))
    before = function.report()
    for name, value in (("seed", 2), ("graph_opt_level", 0), ("num_threads", 1)):
        cg.set_option(name, value)
    function.calls = 0
    np.testing.assert_array_equal(function(np.ones(64)), first)
    assert function.report().fingerprint == before.fingerprint
    other = cg.compile([x], mg.ops.dropout(x))
    assert not np.array_equal(other(np.ones(64)), first)


def test_changing_the_environment_does_not_change_a_function_that_was_compiled(monkeypatch):
    x = mg.input("x", (64,))
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "seed=1")
    function = mg.comp_graph("reference").compile([x], mg.ops.dropout(x))
    first = function(np.ones(64))
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "seed=2")
    function.calls = 0
    np.testing.assert_array_equal(function(np.ones(64)), first)
