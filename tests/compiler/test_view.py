"""`minigraph view` and `minigraph diff`."""

import json

import pytest

from minigraph import cli
from minigraph.inspect.page import from_file

PROGRAM = """
import sys
import numpy as np
import minigraph as mg
x = mg.input("x", (None, 3))
level = int(sys.argv[1])
function = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], mg.ops.exp(x) * 2 + 1)
function(np.ones((2, 3)))
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def look(capsys, *arguments, status=0):
    assert cli.main([*map(str, arguments)]) == status
    printed = capsys.readouterr()
    return printed.out if status == 0 else printed.err


def test_a_program_is_run_and_what_it_compiled_is_shown_and_compared(folder, capsys):
    for level in (1, 3):
        page = folder / f"{level}.html"
        errors = look(capsys, "view", "--out", page, folder / "program.py", level)
        assert errors.startswith(f"{page}: ")
        assert from_file(page)[0].options["graph_opt_level"] == level
    assert str(folder / "1.html") in look(capsys, "view", folder / "1.html")
    behind = look(capsys, "view", folder / "program.py", 1, "--out", folder / "2.html")
    assert "the program got --out" in behind and not (folder / "2.html").exists()
    text = look(capsys, "diff", folder / "1.html", folder / "3.html")
    assert "\noptions\n  graph_opt_level: 1 -> 3\n" in text
    assert "\n  fuse_kernels: none -> " in text
    same = json.loads(look(capsys, "diff", "--json", folder / "1.html", folder / "1.html"))
    assert same["differences"] == []


def test_descriptions_can_be_kept_as_json(folder, capsys):
    look(capsys, "view", "--out", folder / "kept.json", folder / "program.py", "2")
    look(capsys, "view", "--out", folder / "page.html", folder / "kept.json")
    assert from_file(folder / "page.html") == from_file(folder / "kept.json")


def test_what_cannot_be_looked_at_is_an_error_of_one_line(folder, capsys):
    (folder / "empty.py").write_text("")
    look(capsys, "view", "--out", folder / "kept.json", folder / "program.py", "1")
    for arguments, why in (
        (("view", folder / "none.py"), f"program {folder / 'none.py'} does not exist"),
        (("view", folder / "empty.py"), f"{folder / 'empty.py'} compiled no function"),
        (
            ("view", folder / "kept.json", "--out", folder / "page.html"),
            f"kept.json is no program, so it takes no --out {folder / 'page.html'}; put",
        ),
        (("view", folder / "none.html"), "none.html cannot be read: No such file or directory"),
        (("diff", folder / "kept.json"), "kept.json holds 1 function; give another file"),
    ):
        errors = look(capsys, *arguments, status=1)
        assert why in errors and errors.count("\n") == 1
