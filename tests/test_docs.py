"""The examples in docstrings and in the README are run; what documents name exists."""

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
from pathlib import Path

import pytest

import minigraph
from minigraph.options import OPTIONS

ROOT = Path(__file__).parent.parent
FOUND = pkgutil.walk_packages(minigraph.__path__, "minigraph.")
MODULES = [m.name for m in FOUND if not m.name.endswith("__main__")]  # that one runs
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")]


OPTIONAL = ("devices.cuda.", "bench.jax_peer", "bench.torch_peer", "bench.plot")  # libraries


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name):
    try:
        module = importlib.import_module(name)
    except (ImportError, minigraph.DeviceError) as error:
        if not name.removeprefix("minigraph.").startswith(OPTIONAL):
            raise
        pytest.skip(str(error))
    failed, _ = doctest.testmod(module, verbose=False)
    assert not failed


def test_the_program_in_the_readme_runs_and_so_does_what_is_said_of_it_later(tmp_path, monkeypatch):
    parts = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    program = "\n".join(parts)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    assert float(re.search(r"loss ([\d.]+)", printed.getvalue())[1]) < 0.1


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_link_to_files_that_exist(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_the_readme_names_every_option_or_its_family():
    text = (ROOT / "README.md").read_text()
    for name in OPTIONS:
        assert name in text or f"`{name.partition('.')[0]}`" in text, name


def test_the_readme_has_one_command_that_measures_and_one_that_tests():
    commands = re.findall(r"^    (python3 -m venv .*)$", (ROOT / "README.md").read_text(), re.M)
    assert [c.split("/")[-1] for c in commands] == ["minigraph bench --quick", "pytest"]
