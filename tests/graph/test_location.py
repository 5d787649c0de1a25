"""Locations of nodes: the user's line, layer and function, in reports and errors."""

import functools
import importlib
import linecache
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from lines import line
from new_process import python

import minigraph as mg
from minigraph import DTypeError, GraphError, ShapeError, ops
from minigraph.errors import MAX_MESSAGE
from minigraph.graph import Location, builder, here, toposort
from minigraph.graph.location import gradient_of, layer


def test_a_node_knows_the_line_of_the_user():
    x, at = mg.input("x", (2, 3)), line()
    assert x.source == Location(__file__, at)
    y, at = ops.cross_entropy(x * 2, np.array([0, 1])), line()
    assert {n.source for n in toposort([y])} - {x.source} == {Location(__file__, at)}
    z = (
        x + 1  # a line of its own
    )
    assert at < z.source.line <= line()


def test_a_program_in_a_folder_whose_name_begins_as_the_packages_is_the_users():
    """For example ~/minigraph/minigraph_demo.py, with the repository in ~/minigraph."""
    program = Path(f"{Path(mg.__file__).parent}_demo.py")
    names = {"mg": mg}
    exec(compile("def made():\n    return mg.input('x', (2,))\n", program, "exec"), names)
    assert names["made"]().source == Location(str(program), 2)


def test_a_program_whose_name_no_encoding_gives_can_be_shown(tmp_path):
    names = {"mg": mg}
    exec(compile("x = mg.input('x', (2,))", os.fsdecode(b"/home/\xe4.py"), "exec"), names)
    x = names["x"]
    assert x.source == Location("/home/\N{REPLACEMENT CHARACTER}.py", 1)
    function = mg.comp_graph("reference").compile([x], x + 1)
    function.to_html(tmp_path / "page.html")
    str(function.report()).encode()


def test_a_call_through_a_library_is_at_the_line_of_its_user(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "layers_on_top"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def made(build):\n    return build()\n")
    monkeypatch.syspath_prepend(package.parent)
    build = importlib.import_module("layers_on_top").made
    x, at = build(functools.partial(mg.input, "x", (2,))), line()
    assert x.source == Location(__file__, at)
    assert build(lambda: x + 1).source == Location(__file__, at + 2)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: x + 1).result().source.line == at + 4
        # No user code called it.
        inside = threads.submit(build, x.exp).result().source
    assert inside == Location(str(package / "__init__.py"), 2)


def test_code_of_a_text_is_named_by_who_runs_it_unless_its_source_is_known():
    names = {"x": mg.input("x", (2,))}
    exec("y = x + 1", names)
    assert names["y"].source == Location(__file__, line() - 1)
    linecache.cache["<cell>"] = 9, None, ["\n", "z = x + 2\n"], "<cell>"
    exec(compile("\nz = x + 2\n", "<cell>", "exec"), names)
    assert names["z"].source == Location("<cell>", 2)
    program = "import minigraph as mg\nprint(mg.input('x', (2,)).source)"
    assert python("-c", program)[0] == "at <string>:2\n"


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in (
    "import minigraph as mg",
    "def made():\\n    return mg.input('x', (2,))",
    "x = made()\\ny = [\\n x + 1]",
    "%time z = x + 1",
    "exec('w = x - 1')\\nx @ mg.input('y', (3, 3))",
):
    shell.run_cell(cell, store_history=True)
print([str(each.source) for each in shell.ev("[x, y[0], z, w]")])
"""


def test_ipython_calls_a_cell_by_its_number(tmp_path):
    pytest.importorskip("IPython")
    # IPython warns of an active environment that is not the one it is in.
    variables = {"IPYTHONDIR": str(tmp_path), "VIRTUAL_ENV": sys.prefix}
    printed, _ = python("-c", CELLS, PYTHONWARNINGS="ignore", **variables)
    assert "['at In [2]:2', 'at In [3]:3', 'at In [4]:1', 'at In [5]:1']" in printed
    assert " at In [5]:2\n" in printed


def test_a_warning_points_at_the_line_of_the_user(tmp_path):
    with pytest.warns(mg.MinigraphWarning, match="will be a safetensors file") as warned:
        mg.save(tmp_path / "x.npy", {"a": np.ones(1)})
    assert warned[0].filename == __file__
    assert warned[0].lineno == line() - 2


def test_a_node_knows_the_layer_that_was_called():
    with layer("net"), layer(""), layer("conv1"):
        x, at = mg.input("x", (2,)), line()
    assert x.source == Location(__file__, at, "net.conv1")
    assert str(x.source) == f"in layer net.conv1, at {__file__}:{at}"
    assert here().layer == ""


def test_a_gradient_is_made_in_the_name_of_the_users_line():
    place = Location("train.py", 3, "net")
    with gradient_of(place):
        with gradient_of(Location("other.py", 1)):
            pass
        x = mg.input("x", (2,)) + 1
    assert x.source == place._replace(backward=True)
    assert here().file == __file__


X = mg.input("x", (2, 3))


def test_an_error_is_located_once_by_what_the_user_called_last():
    @builder
    def outer(x):
        return ops.add(x, np.ones(5))

    with layer("net"), pytest.raises(ShapeError) as caught:
        outer(mg.input("x", (2,)))
    text = str(caught.value)
    assert text.startswith("add: shapes (2,) and (5,) do not broadcast: along an axis, ")
    assert text.count("(operands input x: float32[2]") == 1
    assert f"in layer net, at {__file__}:" in text
    assert text.count(__file__) == 1


def test_a_long_message_keeps_what_was_asked_and_where():
    """For many operands, a user's constant or name, and an op with a long attribute."""
    name, many = "y" * 300_000, [X] * 5000
    for build in (
        lambda: ops.concat([*many, mg.input("y", (3, 2))], axis=1),
        lambda: ops.add(X, mg.input(name, (7, 7))),
        lambda: ops.matmul(ops.pad(X, [(1, 1)] * 2), mg.input("y", (name, 2))),
        lambda: X[tuple(range(30_000))],
    ):
        with pytest.raises(GraphError) as caught:
            build()
        text = str(caught.value)
        assert len(text) <= MAX_MESSAGE
        assert re.match(r"(concat|add|matmul|getitem): .{20}", text)
        assert re.search(rf" at {__file__}:\d+$", text)
    with pytest.raises(AttributeError) as missing:
        getattr(X, name)
    assert len(str(missing.value)) < 200


def test_every_error_is_a_value_error():
    for kind in (ShapeError, DTypeError, mg.OptionError, mg.CompileError, mg.CacheError):
        assert issubclass(kind, GraphError)
    assert issubclass(GraphError, ValueError)
    assert issubclass(mg.DeviceError, GraphError)
