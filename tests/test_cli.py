"""The command line, as a user runs it."""

import importlib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from command_runs import answer, fill, process, run
from needs import NO_BFLOAT16, needs_no_zig

import minigraph as mg
from minigraph import cli
from minigraph.bench.results import Results

# ---------------------------------------------------------------- the machine


@pytest.fixture
def variables(monkeypatch):
    """Set environment variables, and forget which warnings were given."""
    monkeypatch.setattr("minigraph.errors._warned", set())
    return lambda settings: [monkeypatch.setenv(*setting) for setting in settings.items()]


NOWHERE = {"MINIGRAPH_CACHE_DIR": "", "HOME": "nowhere", "XDG_CACHE_HOME": ""}


def test_info_tells_versions_and_settings(tmp_path, variables):
    settings = {
        "MINIGRAPH_OPTIONS": "graph_opt_level=3",
        "MINIGRAPH_NUM_THREADS": "3",
        "MINIGRAPH_CACHE_DIR": str(tmp_path / "new"),
    }
    printed, errors = process("info", "--json", **settings)
    fields = json.loads(printed)
    assert (fields["minigraph"], fields["device"], errors) == (mg.__version__, "cpu", "")
    assert (fields["threads"], fields["options"]) == (3, {"graph_opt_level": 3})
    assert fields["cache_folder"] == str(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    variables(settings)
    lines = dict(line.split("  ", 1) for line in run("info")[0].splitlines())
    assert lines["options"].strip() == "graph_opt_level=3"
    assert lines["processor"].strip() == fields["processor"]
    assert lines.keys() == {name.replace("_", " ") for name in fields}


def test_info_names_the_compiler_of_kernels_or_why_there_is_none(monkeypatch):
    for backend in ("", "c"):
        monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", backend)
        jit = answer("info")["jit"]
        assert re.fullmatch(rf"{backend or 'auto'} \((gcc|clang) [\d.]+\)", jit)
    monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", "nvrtc")
    jit = answer("info")["jit"]
    assert jit == "none: MINIGRAPH_JIT_BACKEND is nvrtc, which is for CUDA devices"


def test_info_says_why_nvrtc_compiles_nothing_without_a_gpu(monkeypatch):
    def absent(device):
        if device == "cuda":
            raise mg.DeviceError("there is no driver")

    monkeypatch.setattr(cli, "check_device", absent)
    assert answer("info")["jit_nvrtc"] == "none: there is no driver"


@needs_no_zig
@pytest.mark.parametrize(
    ("settings", "jit", "text", "status"),
    [
        (
            {"PATH": "nowhere", "CC": "", "MINIGRAPH_JIT_BACKEND": "c"},
            "there is no C compiler",
            "no C compiler",
            0,
        ),
        ({"CC": "no-compiler"}, "CC does not run", "CC is 'no-compiler', which does not run", 1),
    ],
)
def test_info_says_which_compiler_is_missing_and_fails_where_it_was_asked_for(
    settings, jit, text, status
):
    printed, errors = process("info", "--json", status=status, **settings)
    fields = json.loads(printed)
    assert fields["compiler"] is None
    assert fields["jit"] == fields["jit_c"] == f"none: {jit}"
    assert errors.startswith(f"minigraph: {text}") and errors.count("\n") == 1


def test_info_says_whether_the_processor_multiplies_in_bfloat16():
    limited = process("info", "--json", ONEDNN_MAX_CPU_ISA="AVX2")[0]
    assert json.loads(limited)["amp"] is None
    assert answer("info")["amp"] == (None if NO_BFLOAT16 else "bfloat16")


@pytest.mark.parametrize(
    ("settings", "field", "text", "status"),
    [
        ({"MINIGRAPH_DEVICE": "tpu"}, ("device", "tpu"), "there is no device 'tpu'", 1),
        (NOWHERE, ("cache_folder", None), "no home folder was found, so measurements", 0),
    ],
)
def test_info_shows_all_and_warns_of_what_does_not_exist(variables, settings, field, text, status):
    variables(settings)
    printed, errors = run("info", "--json", status=status)
    assert json.loads(printed)[field[0]] == field[1]
    assert errors.startswith(f"minigraph: {text}") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "settings", "text"),
    [
        ("info", {"MINIGRAPH_OPTIONS": "nonsense"}, "MINIGRAPH_OPTIONS"),
        ("cache info", NOWHERE, "set MINIGRAPH_CACHE_DIR"),
    ],
)
def test_a_setting_that_is_malformed_is_an_error_of_one_line(variables, command, settings, text):
    variables(settings)
    _, errors = run(*command.split(), status=1)
    assert errors.startswith("minigraph: ") and text in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "minigraph: the following arguments are required: COMMAND; see minigraph --help"),
        ("cache export", "minigraph cache export: the following arguments are required: FILE; "),
        ("cache list --kind x", "minigraph cache list: argument --kind: invalid choice: 'x'"),
        ("cache info x", "minigraph cache info: unrecognized arguments: x; see minigraph cache"),
    ],
)
def test_arguments_that_do_not_fit_are_an_error_of_one_line(arguments, text):
    printed, errors = run(*arguments.split(), status=2)
    assert not printed
    assert errors.startswith(text) and errors.count("\n") == 1


def test_the_version_is_that_of_the_package():
    printed, errors = run("--version")
    assert printed == f"minigraph {mg.__version__}\n" and not errors


# ---------------------------------------------------------------- what documents say


def documented():
    """Return the description and the fields of each command in docs/reference/commands.md."""
    text = (Path(__file__).parent.parent / "docs" / "reference" / "commands.md").read_text()
    rows = re.findall(r"^\| `minigraph ([^`]*)` \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    return {name: (about, fields.strip("`").split("`, `")) for name, about, fields in rows}


def test_the_documents_have_every_command_and_what_its_help_says(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no line is broken
    listing = []
    for group in ("", "cache ", "onnx "):
        printed = run(*group.split(), "--help")[0]
        commands = re.findall(r"^    (\w+)\s+(.*)", printed, re.M)
        listing += [(group + name, about) for name, about in commands]
    listing.remove(("cache", "show or change the caches"))
    listing.remove(("onnx", "show the support for ONNX"))
    assert listing == [(name, about) for name, (about, _) in documented().items()]


def test_the_documents_have_the_fields_of_every_answer(tmp_path, monkeypatch):
    fill(tmp_path / "cache", monkeypatch)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    Results.begin({}).write(tmp_path)
    x = mg.input("x", (2,))
    page = tmp_path / "page.html"
    mg.comp_graph("reference").compile([x], x + 1).to_html(page)
    answers = documented()
    if find_spec("onnx.helper"):
        onnx = importlib.import_module("onnx")
        model = (
            '<ir_version: 10, opset_import: ["" : 21]> f (float[2] x) => (float[2] y) {y=Relu(x)}'
        )
        onnx.save(onnx.parser.parse_model(model), tmp_path / "f.onnx")
        np.save(tmp_path / "x.npy", np.ones(2, "float32"))
    else:
        del answers["run"], answers["onnx operators"]
    arguments = {
        "run": (tmp_path / "f.onnx", "--input", tmp_path / "x.npy", "--device", "reference"),
        "bench": ("--render", tmp_path),
        "view": (page,),
        "diff": (page, page),
        "cache export": (tmp_path / "kept",),
        "cache import": (tmp_path / "kept",),
    }
    for name, (_, fields) in answers.items():
        options = ("--json", *arguments.get(name, ()))
        assert list(json.loads(run(*name.split(), *options)[0])) == fields, name
