"""Mutation testing finds the parts of the package and the tests that its table names."""

from pathlib import Path

import mutation

TESTS = Path(__file__).parent


def test_the_parts_and_the_tests_of_the_table_are_there():
    package = TESTS.parent / "minigraph"
    assert all((package / p).is_dir() or (package / f"{p}.py").is_file() for p in mutation.TESTS)
    named = {f"test_{name}" for names in mutation.TESTS.values() for name in names.split()}
    assert named <= {path.stem for path in TESTS.rglob("test_*.py")}
