"""The architecture: allowed imports, their cost, and the files that may name an op."""

import ast
import functools
import json
from pathlib import Path

import pytest
from layers import LAYERS
from new_process import python

import minigraph
from minigraph.graph import Op

ROOT = Path(minigraph.__file__).parent
FILES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}

RANK = {
    package: {part: rank for rank, parts in enumerate(lists) for part in parts}
    for package, lists in LAYERS.items()
}
ENTRIES = ("__init__", "__main__")  # the names of a package, and running it, come last


def module_of(name):
    return ".".join(("minigraph", *Path(name).with_suffix("").parts))


def part_in(package, full):
    """Return the part of a package that a full name belongs to, or None."""
    inside = full.removeprefix(f"{package}.")
    return None if inside == full else inside.split(".")[0]


def part_of(name):
    return part_in("minigraph", module_of(name))


@functools.cache
def tree(name):
    return ast.parse(FILES[name].read_text())


@pytest.fixture(scope="module", autouse=True)
def forget():
    """Give back the trees, which take 80 MB, when all have been looked at."""
    yield
    tree.cache_clear()


@functools.cache
def imported(name):
    """Return the full names of what a file imports from the package."""
    imports = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}:{node.lineno} has a relative import"
            if (node.module or "").split(".")[0] == "minigraph":
                imports += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            imports += [a.name for a in node.names if a.name.split(".")[0] == "minigraph"]
    return imports


@functools.cache
def classes(name):
    """Return the names of the classes that a file defines."""
    return {node.name for node in ast.walk(tree(name)) if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("package", LAYERS)
def test_every_part_has_its_place_in_the_order(package):
    parts = {part_in(package, module_of(name)) for name in FILES}
    unplaced = parts - {*ENTRIES, None} ^ {*RANK[package]}
    assert not unplaced, (
        f"tests/layers.py: {package} has a part without a place, or a place too many"
    )


@pytest.mark.parametrize("package", LAYERS)
def test_parts_import_only_parts_before_them(package):
    rank = RANK[package]
    wrong = []
    for name in FILES:
        part = part_in(package, module_of(name))
        if part not in rank:
            continue
        for full in imported(name):
            target = part_in(package, full)
            if target in rank and target != part and rank[target] >= rank[part]:
                wrong.append(f"{name} imports {full}")
    assert wrong == []


def test_only_what_users_touch_imports_the_names_of_the_whole_package():
    rank = RANK["minigraph"]
    for name in FILES:
        whole = [full for full in imported(name) if part_in("minigraph", full) not in rank]
        if whole and part_of(name) not in ENTRIES:
            assert rank[part_of(name)] > rank["serialization"], f"{name} imports {whole}"


def import_cycle():
    """Return files that import one another, or an empty list."""
    modules = {".".join(("minigraph", *Path(n).with_suffix("").parts)): n for n in FILES}
    modules = {module.removesuffix(".__init__"): name for module, name in modules.items()}
    edges = {}
    for module, name in modules.items():
        files = {f if f in modules else f.rpartition(".")[0] for f in imported(name)}
        # A package that imports its own modules is what its __init__ is for.
        edges[module] = {f for f in files if f in modules and f != module}
    done, path = set(), []

    def visit(module):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        for target in sorted(edges[module]):
            if cycle := visit(target):
                return cycle
        path.pop()
        done.add(module)
        return []

    return next((cycle for module in edges if (cycle := visit(module))), [])


def test_no_file_imports_itself_by_way_of_others():
    assert import_cycle() == []


def test_no_import_is_hidden_in_a_function():
    for name in FILES:
        for fn in ast.walk(tree(name)):
            if isinstance(fn, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inside = ast.walk(fn)
                hidden = [n.lineno for n in inside if isinstance(n, ast.Import | ast.ImportFrom)]
                assert not hidden, f"{name}: imports in the function at line {fn.lineno}: {hidden}"


def test_libraries_are_imported_by_name_in_one_place_only():
    """Optional libraries, and what is slow to import and not always used."""
    users = []
    for name in FILES:
        for node in ast.walk(tree(name)):
            called = getattr(node, "attr", None) or getattr(node, "id", None)
            if called in ("import_module", "__import__"):
                users.append(name)
    allowed = (
        "__init__.py",
        "data/dataset.py",
        "devices/cpu/halide_compiler.py",
        "devices/cuda/communicator.py",
        "devices/factory.py",
        "distributed/world.py",
        "platform/messages.py",
    )
    assert set(users) <= set(map(str, map(Path, allowed)))


# ---------------------------------------------------------------- size


def test_no_file_is_longer_than_600_lines():
    lines = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > 600} == {}


# ---------------------------------------------------------------- names


def test_no_comprehension_hides_a_name_of_its_module():
    """Python 3.12 loses the module's name in the function around it: CPython issue 118513."""
    for name in FILES:
        names = set()
        for node in tree(name).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
        targets = [n.target for n in ast.walk(tree(name)) if isinstance(n, ast.comprehension)]
        bound = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        assert not names & bound, name


# ---------------------------------------------------------------- one op, one place


def final_ops():
    """The names of the op classes of `minigraph.ops` that stand for one op, with their modules."""
    return {
        f"{cls.__module__}.{cls.__name__}"
        for cls in Op.registry.values()
        if cls.__module__.startswith("minigraph.ops.") and not cls.__subclasses__()
    }


def ops_named(name):
    """The op classes that a file imports, or reaches as an attribute of what it imports."""
    bound = {"minigraph": "minigraph"}
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom):
            bound.update((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
    used = set(bound.values())
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            used.add(f"{bound.get(first)}.{rest}")
    return final_ops() & used


def test_only_passes_backends_and_the_writer_of_onnx_name_an_op_outside_of_ops():
    naming = ("ops", "devices", "passes", "onnx")
    others = [name for name in FILES if part_of(name) not in naming]
    assert {name: names for name in others if (names := ops_named(name))} == {}


def test_ops_are_found_where_they_are_named():
    """The test of the test: a backend does name some."""
    assert ops_named(str(Path("devices", "cpu", "primitives.py")))


@pytest.mark.parametrize("name", [name for name in FILES if part_of(name) == "ops"])
def test_an_op_has_one_file(name):
    for other in FILES:
        if other != name and part_of(other) in ("ops", "graph"):
            assert not classes(other) & classes(name)


# ---------------------------------------------------------------- what `import minigraph` costs

PROBE = """
import json, sys
started, calls = [], 0
def hook(event, args):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system"):
        started.append(event)
    elif event == "ctypes.dlopen" and args[0] is not None:
        started.append(f"{event} {args[0]}")
def count(frame, event, arg):
    global calls
    calls += event == "call" and frame.f_globals.get("__name__", "").startswith("minigraph")
import numpy
sys.addaudithook(hook)
sys.setprofile(count)
import minigraph
sys.setprofile(None)
import minigraph.data
try:
    with open("/proc/self/maps") as file:
        maps = file.read()
except OSError:
    maps = ""
print(json.dumps([calls, sorted(sys.modules), maps, started]))
"""


@pytest.fixture(scope="module")
def probe():
    """Import the package in a process of its own: its calls, modules, maps, what it started.

    The process prints these alone, so the import prints and warns nothing.
    """
    printed, warnings = python("-c", PROBE)
    assert warnings == ""
    return json.loads(printed)


def test_the_import_makes_fewer_than_20000_calls_of_the_package(probe):
    assert probe[0] < 20_000


def test_the_import_loads_no_large_library(probe):
    _, modules, maps, _ = probe
    absent = {"cupy", "cuda", "cudnn", "mpi4py", "torch", "sklearn", "scipy", "PIL", "halide"}
    absent |= {"onnx", "argparse"}
    assert not absent.intersection(name.split(".")[0] for name in modules)
    assert "minigraph.cli" not in modules
    for library in ("libdnnl", "libcuda", "libnvrtc", "libcudnn", "libHalide", "libgomp.so.1"):
        assert library not in maps


def test_the_import_starts_no_compiler_and_opens_no_library(probe):
    assert probe[-1] == []


def test_no_two_classes_have_one_name():
    """A layer may have the name of its op, which is in another package."""
    parts = {}
    for name in FILES:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ClassDef):
                parts.setdefault(node.name, []).append(part_of(name))
    shared = {name: where for name, where in parts.items() if len(where) > 1}
    assert all(sorted(where) == ["nn", "ops"] for where in shared.values()), shared
