"""The command line, as a user runs it."""

import contextlib
import importlib
import io
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from needs import NO_BFLOAT16, needs_no_zig
from new_process import python

import minigraph as mg
from minigraph import cli
from minigraph.bench.results import Results
from minigraph.cache import KINDS, Entry, Store, environment_of, file

HERE = environment_of({"oneDNN": "3.2.0", "processor": "x86_64 of some kind"})
UNIT = bytes(range(256)) * 20
MEASURED = [Entry("onednn", "convolution 3 64", HERE, "[]"), Entry("cudnn", "product", HERE, "[]")]
KERNELS = [Entry("jit", name, HERE, "{}", UNIT) for name in ("mg_one", "mg_two")]


def unused(old, new):
    raise AssertionError("there is nothing to merge")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder with an entry of each kind."""
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    assert Store(tmp_path / "cache").keep([*MEASURED, *KERNELS], unused)
    return tmp_path / "cache"


def process(*arguments, status=0, **environment):
    """Run a command in a process of its own, as a user does; return what `run` does."""
    return python("-m", "minigraph", *arguments, status=status, **environment)


def run(*arguments, status=0):
    """Run a command and return what it prints, and what it says of what went wrong."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            ended = cli.main([*map(str, arguments)])
        except SystemExit as stopped:
            ended = stopped.code
    assert ended == status, said.getvalue()
    return printed.getvalue(), said.getvalue()


def answer(*arguments, status=0):
    """Return the JSON of a command that finds nothing to complain of."""
    printed, said = run(*arguments, "--json", status=status)
    assert not said
    return json.loads(printed)


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
    printed, said = process("info", "--json", **settings)
    found = json.loads(printed)
    assert (found["minigraph"], found["device"], said) == (mg.__version__, "cpu", "")
    assert (found["threads"], found["options"]) == (3, {"graph_opt_level": 3})
    assert found["cache_folder"] == str(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    variables(settings)
    lines = dict(line.split("  ", 1) for line in run("info")[0].splitlines())
    assert lines["options"].strip() == "graph_opt_level=3"
    assert lines["processor"].strip() == found["processor"]
    assert lines.keys() == {name.replace("_", " ") for name in found}


def test_info_names_the_compiler_of_kernels_or_why_there_is_none(monkeypatch):
    for backend in ("", "c"):
        monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", backend)
        said = answer("info")["jit"]
        assert re.fullmatch(rf"{backend or 'auto'} \((gcc|clang) [\d.]+\)", said)
    monkeypatch.setenv("MINIGRAPH_JIT_BACKEND", "nvrtc")
    said = answer("info")["jit"]
    assert said == "none: MINIGRAPH_JIT_BACKEND is nvrtc, which is for CUDA devices"


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
    printed, said = process("info", "--json", status=status, **settings)
    found = json.loads(printed)
    assert found["compiler"] is None
    assert found["jit"] == found["jit_c"] == f"none: {jit}"
    assert said.startswith(f"minigraph: {text}") and said.count("\n") == 1


def test_info_says_whether_the_processor_multiplies_in_bfloat16():
    limited = process("info", "--json", ONEDNN_MAX_CPU_ISA="AVX2")[0]
    assert json.loads(limited)["amp"] is None
    assert answer("info")["amp"] == (None if NO_BFLOAT16 else "bfloat16")


@pytest.mark.parametrize(
    ("settings", "field", "text", "status"),
    [
        ({"MINIGRAPH_DEVICE": "tpu"}, ("device", "tpu"), "there is no device 'tpu'", 1),
        (NOWHERE, ("cache_folder", None), "there is no home folder, so nothing that is", 0),
    ],
)
def test_info_shows_all_and_warns_of_what_does_not_exist(variables, settings, field, text, status):
    variables(settings)
    printed, said = run("info", "--json", status=status)
    assert json.loads(printed)[field[0]] == field[1]
    assert said.startswith(f"minigraph: {text}") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "settings", "text"),
    [
        ("info", {"MINIGRAPH_OPTIONS": "nonsense"}, "MINIGRAPH_OPTIONS"),
        ("cache info", NOWHERE, "set MINIGRAPH_CACHE_DIR"),
    ],
)
def test_a_setting_that_is_malformed_is_an_error_of_one_line(variables, command, settings, text):
    variables(settings)
    _, said = run(*command.split(), status=1)
    assert said.startswith("minigraph: ") and text in said and said.count("\n") == 1


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
    printed, said = run(*arguments.split(), status=2)
    assert not printed
    assert said.startswith(text) and said.count("\n") == 1


def test_the_version_is_that_of_the_package():
    printed, said = run("--version")
    assert printed == f"minigraph {mg.__version__}\n" and not said


def test_the_package_does_not_load_the_command_line():
    program = (
        "import sys, minigraph; print('minigraph.cli' in sys.modules, 'argparse' in sys.modules)"
    )
    assert python("-c", program)[0].split() == ["False", "False"]


# ---------------------------------------------------------------- what documents say


def documented():
    """Return the description and the fields of each command in docs/reference/commands.md."""
    text = (Path(__file__).parent.parent / "docs" / "reference" / "commands.md").read_text()
    rows = re.findall(r"^\| `minigraph ([^`]*)` \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    return {name: (about, fields.strip("`").split("`, `")) for name, about, fields in rows}


def test_the_documents_have_every_command_and_what_its_help_says(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no line is broken
    found = []
    for group in ("", "cache ", "onnx "):
        printed = run(*group.split(), "--help")[0]
        commands = re.findall(r"^    (\w+)\s+(.*)", printed, re.M)
        found += [(group + name, about) for name, about in commands]
    found.remove(("cache", "show or change what is kept between processes"))
    found.remove(("onnx", "show what of ONNX is computed"))
    assert found == [(name, about) for name, (about, _) in documented().items()]


def test_the_documents_have_the_fields_of_every_answer(folder, tmp_path, monkeypatch):
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


# ---------------------------------------------------------------- what is kept


def test_an_empty_cache_is_reported_and_not_created(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    found = answer("cache", "info")
    assert (found["trusted"], found["folder"]) == (True, str(tmp_path / "cache"))
    assert set(found["kinds"]) == {"onednn", "cudnn", "jit"}
    assert all(kind == {"entries": 0, "bytes": 0} for kind in found["kinds"].values())
    assert answer("cache", "list") == {"entries": [], "rejected": []}
    assert answer("cache", "verify") == {"damaged": []}
    assert answer("cache", "clear")["removed"] == {"onednn": 0, "cudnn": 0, "jit": 0}
    assert not (tmp_path / "cache").exists()


def test_info_counts_and_list_names_the_entries_of_each_kind(folder):
    kinds = answer("cache", "info")["kinds"]
    assert {kind: found["entries"] for kind, found in kinds.items()} == {
        "onednn": 1,
        "cudnn": 1,
        "jit": 2,
    }
    assert len(UNIT) < kinds["jit"]["bytes"] < 2 * len(UNIT)
    entries = answer("cache", "list")["entries"]
    assert [e["kind"] for e in entries] == ["onednn", "cudnn", "jit", "jit"]
    assert (entries[0]["subject"], entries[0]["environment"]) == ("convolution 3 64", dict(HERE))


def test_entries_stand_below_what_they_hold_for_in_lines_of_a_terminal(folder):
    other = environment_of({**dict(HERE), "oneDNN": "3.3.0", "compiler": "c" * 30, "flags": ""})
    more = [Entry("onednn", f"convolution {i} " * 9, other, "[]") for i in range(2)]
    assert Store(folder).keep(more, unused)
    lines = run("cache", "list", "--kind", "onednn")[0].splitlines()
    titles = [line for line in lines if "KiB" not in line]
    assert titles == [
        f"onednn, 2 entries: compiler {'c' * 23}…, oneDNN 3.3.0, processor",
        "  x86_64 of some kind",
        "onednn, 1 entry: oneDNN 3.2.0, processor x86_64 of some kind",
    ]
    numbers = [line.split()[2:4] for line in lines if "KiB" in line]
    assert numbers == [["convolution", n] for n in ("0", "1", "3")]


def test_a_folder_that_others_can_change_is_not_trusted(folder):
    folder.chmod(0o777)
    printed, said = run("cache", "info", "--json")
    found = json.loads(printed)
    assert (found["trusted"], found["kinds"]["onednn"]["entries"]) == (False, 0)
    assert "can be written by other users" in found["reason"]
    assert all(line.startswith("minigraph: ") for line in said.splitlines())
    run("cache", "clear")
    folder.chmod(0o700)
    assert len(Store(folder).entries(*KINDS)) == 4


def test_verify_finds_a_damaged_entry(folder):
    assert answer("cache", "verify") == {"damaged": []}
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as db, db:
        db.execute("UPDATE blobs SET blob = x'00'")
    damaged = answer("cache", "verify", status=1)["damaged"]
    assert [found["entry"] for found in damaged] == ["mg_one", "mg_two"]
    line = "mg_one: is damaged: its checksum is not that of its contents"
    assert run("cache", "verify", status=1)[0].splitlines()[0] == line


def test_clear_removes_the_entries_of_a_kind_or_all(folder):
    assert answer("cache", "clear", "--kind", "jit")["removed"] == {"jit": 2}
    assert [e["kind"] for e in answer("cache", "list")["entries"]] == ["onednn", "cudnn"]
    assert run("cache", "clear")[0].splitlines()[0] == "onednn  1 entry removed"
    assert answer("cache", "list") == {"entries": [], "rejected": []}


def test_what_was_exported_and_cleared_is_there_again_after_import(folder, tmp_path):
    before = answer("cache", "list")
    exported = answer("cache", "export", tmp_path / "all.cache")
    assert answer("cache", "list", tmp_path / "all.cache") == before
    assert exported == {"file": str(tmp_path / "all.cache"), "exported": 4}
    assert file.read(tmp_path / "all.cache").fields == {"minigraph": mg.__version__}
    run("cache", "clear")
    assert answer("cache", "import", tmp_path / "all.cache")["accepted"] == 4
    assert answer("cache", "list") == before
    assert Store(folder).entries("jit") == KERNELS
    assert answer("cache", "import", tmp_path / "all.cache")["accepted"] == 4  # twice is no harm
    assert answer("cache", "list") == before


def test_one_kind_is_exported_and_imported_alone(folder, tmp_path):
    assert answer("cache", "export", tmp_path / "a", "--kind", "jit")["exported"] == 2
    assert answer("cache", "export", tmp_path / "a", "--kind", "onednn")["exported"] == 1
    assert len(file.read(tmp_path / "a").entries) == 3
    (only,) = answer("cache", "list", tmp_path / "a", "--kind", "onednn")["entries"]
    assert only["subject"] == "convolution 3 64"
    run("cache", "clear")
    assert answer("cache", "import", tmp_path / "a", "--kind", "onednn")["accepted"] == 1
    assert [e["kind"] for e in answer("cache", "list")["entries"]] == ["onednn"]


def test_machine_code_from_a_file_that_others_can_change_is_refused(folder, tmp_path):
    run("cache", "export", tmp_path / "all")
    run("cache", "clear")
    (tmp_path / "all").chmod(0o666)
    found = answer("cache", "import", tmp_path / "all")
    (name, why), _ = (rejected.values() for rejected in found["rejected"])
    assert found["accepted"] == 2
    assert name == "mg_one"
    assert why.startswith("is machine code that others may change: ")
    assert "can be written by other users" in why
    assert Store(folder).entries("jit") == []


@pytest.mark.parametrize("damage", ["missing", "entry"])
def test_a_broken_file_is_refused_with_the_reason(folder, tmp_path, damage):
    path = tmp_path / "some.cache"
    if damage == "entry":
        file.write(path, {}, MEASURED[:1], unused)
        path.write_bytes(path.read_bytes().replace(b"3 64", b"3 65"))
    found = answer("cache", "import", path, status=1)
    ((name, why),) = (rejected.values() for rejected in found["rejected"])
    assert found["accepted"] == 0 and why
    assert name == ("convolution 3 65" if damage == "entry" else str(path))
    said = f"0 entries accepted, 1 rejected\n{name}: {why}\n"
    assert run("cache", "import", path, status=1) == (said, "")
    assert answer("cache", "list", path, status=1)["rejected"] == found["rejected"]
    assert run("cache", "list", path, status=1)[0] == f"{name}: {why}\n"


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(folder, tmp_path):
    printed, said = run("cache", "export", tmp_path / "missing" / "a", status=1)
    assert not printed
    assert said == f"minigraph: {tmp_path / 'missing' / 'a'} cannot be written: " + (
        "No such file or directory\n"
    )


def test_a_name_from_a_file_does_nothing_to_the_terminal(folder, tmp_path):
    file.write(tmp_path / "a", {}, [Entry("onednn", "\x1b[2J\nü", HERE, "{}")], unused)
    run("cache", "import", tmp_path / "a")
    assert r"\x1b[2J" in process("cache", "list", PYTHONIOENCODING="utf-8")[0]


def test_a_reader_that_has_seen_enough_ends_it_quietly_and_a_full_disk_does_not(folder, tmp_path):
    command = [sys.executable, "-m", "minigraph", "cache", "list"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    largest = 1 << 20

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    with open(tmp_path / "list", "ab") as full:  # as large as a file may be
        full.truncate(largest)
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limited
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "File too large" in done.stderr
