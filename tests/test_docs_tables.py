"""`docs/tables.py` writes tables of results into documents, or says that they are out of date."""

import runpy
from pathlib import Path

import pytest

from minigraph.bench.results import CaseResult, Results, SideResult

TABLES = runpy.run_path(str(Path(__file__).parent.parent / "docs" / "tables.py"))


@pytest.fixture
def document(tmp_path):
    """A document with the place of a table of results, and these results beside it."""
    results = Results.begin({"threads": 2})
    sides = {"level 0": SideResult([2.0, 2.0]), "level 3": SideResult([1.0, 1.0])}
    results.cases["abc"] = CaseResult("a * b * c", 0, sides)
    results.write(tmp_path / "cpu")
    path = tmp_path / "README.md"
    path.write_text("before\n\n<!-- bench: cpu levels -->\nold\n<!-- end -->\n\nafter\n")
    return path


def make_tables(document, *flags):
    return TABLES["main"]([*flags, "--results", str(document.parent), str(document)])


def test_tables_of_a_document_come_from_the_results(document, capsys):
    assert make_tables(document, "--check") == 1
    assert "old" in document.read_text()
    assert "out of date" in capsys.readouterr().err
    assert make_tables(document) == 0
    text = document.read_text()
    assert text.startswith("before\n\n<!-- bench: cpu levels -->\n| ") and "(2.00 x)" in text
    assert text.endswith("|\n<!-- end -->\n\nafter\n") and "old" not in text
    assert make_tables(document, "--check") == 0


@pytest.mark.parametrize(
    "mark", ["bench: cpu nothing", "bench: gpu levels", "bench: cpu/levels", "table: nothing"]
)
def test_a_table_that_does_not_exist_is_an_error_of_one_line(document, mark, capsys):
    document.write_text(f"<!-- {mark} -->\n<!-- end -->\n")
    assert make_tables(document, "--check") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_table_without_an_end_replaces_nothing(document, capsys):
    text = f"<!-- bench: cpu levels -->\nkept\n\n{document.read_text()}"
    document.write_text(text)
    assert make_tables(document) == 1
    assert document.read_text() == text
    assert "has no <!-- end -->" in capsys.readouterr().err
