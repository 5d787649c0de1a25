"""`dir` and `help` show the public interface."""

import ast
import inspect
import types
from pathlib import Path

import pytest

import minigraph as mg
from minigraph import data, nn, ops, optim


def test_the_package_shows_all_that_it_imports_for_users_and_nothing_else():
    tree = ast.parse(Path(mg.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    own = {"TYPE_CHECKING", "log_level", "start_log", "errors"}
    assert set(dir(mg)) == set(mg.__all__) == names - own


@pytest.mark.parametrize("package", [ops, nn, optim, data])
def test_packages_show_functions_and_classes(package):
    shown = dir(package)
    assert shown == sorted(package.__all__) and len(set(shown)) == len(shown)
    for name in shown:
        value = getattr(package, name)
        assert not isinstance(value, types.ModuleType) or name in ("init", "schedules")


def test_ops_have_real_signatures_and_a_docstring():
    for name in ops.__all__:
        function = getattr(ops, name)
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name
        assert inspect.getdoc(function), name
        assert function.__name__ == name


def test_methods_of_expressions_have_the_signatures_of_the_ops():
    x = mg.input("x", (2, 3))
    kinds = {
        name: {p.kind for p in inspect.signature(getattr(x, name)).parameters.values()}
        for name in dir(x)
        if name in ops.__all__ or name in ("detach", "unsqueeze")
    }
    assert len(kinds) > 40
    assert not [
        name for name, parameters in kinds.items() if inspect.Parameter.VAR_KEYWORD in parameters
    ]
    assert str(inspect.signature(x.clip)).startswith("(min: 'Operand | None' = None, max:")


def test_layers_have_real_signatures_and_a_docstring():
    for name in {*nn.__all__} - {"init"}:
        assert inspect.signature(getattr(nn, name)) and inspect.getdoc(getattr(nn, name)), name
