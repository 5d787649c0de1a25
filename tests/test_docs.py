"""The examples in docstrings and in documents are run; what documents name exists."""

import contextlib
import doctest
import functools
import importlib.util
import io
import json
import os
import pkgutil
import re
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from attacks.table import ATTACKS

import minigraph
import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench.results import Results
from minigraph.devices.cpu import candidates
from minigraph.graph import Graph
from minigraph.graph_compiler import CompGraph
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.rewrite import simplification
from minigraph.runtime.function import Function

ROOT = Path(__file__).parent.parent
FOUND = pkgutil.walk_packages(minigraph.__path__, "minigraph.")
MODULES = [m.name for m in FOUND if not m.name.endswith("__main__")]  # that one runs
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]
DOCUMENTS += ROOT.glob("tools/*.md")
HOOKS = [*ROOT.glob("docs/hooks/*.py")]
NOTEBOOKS = [*ROOT.glob("docs/notebooks/*.ipynb")]
# Modules that need a library.
OPTIONAL = ("devices.cuda.", "jit.halide.", "bench.jax_peer", "bench.onnx_peer", "bench.torch_")
OPTIONAL += ("onnx", "torch")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Which asks for the time of each file that this process has read, once for each docstring.
    monkeypatch.setattr("linecache.checkcache", lambda name=None: None)
    try:
        module = importlib.import_module(name)
    except (ImportError, minigraph.DeviceError) as error:
        if not name.removeprefix("minigraph.").startswith(OPTIONAL):
            raise
        pytest.skip(str(error))
    known = {"np": np, "mg": mg, "nn": nn, "ops": ops, "optim": optim}  # docs/reference/index.md
    runner = doctest.DocTestRunner()
    found = doctest.DocTestFinder().find(
        module, extraglobs={**known, "cg": mg.comp_graph("reference")}
    )
    for docstring in found:
        if docstring.examples:  # to run one visits the source of all modules
            runner.run(docstring)
    assert not runner.failures


@pytest.mark.parametrize("path", HOOKS, ids=lambda path: path.name)
def test_examples_in_the_hooks_of_the_site_are_right(path):
    for library in ("griffe", "hatchling", "mkdocs", "nbclient"):
        pytest.importorskip(library)
    failed, tried = doctest.testmod(loaded(path))
    assert tried and not failed


def loaded(path):
    """Return a file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_package_names_files_and_links_to_none():
    pytest.importorskip("hatchling")
    metadata = {}
    loaded(ROOT / "docs/hooks/package.py").Page(str(ROOT), {}).update(metadata)
    text = metadata["readme"]["text"]
    assert "Next: your own pictures (docs/pictures.md)" in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link] == []
    code = "```python\n(.*?)```"
    assert re.findall(code, text, re.S) == re.findall(code, (ROOT / "README.md").read_text(), re.S)


def test_the_first_screen_of_the_readme_says_the_time_and_the_memory_that_were_measured():
    first = " ".join((ROOT / "README.md").read_text().split("##")[0].split())
    (figures,) = re.findall(
        r"takes ([\d.]+) s and ([\d,]+) MiB; .*? takes ([\d.]+) s and ([\d,]+)", first
    )
    case = Results.read(ROOT / "benchmarks/results/cpu/networks/zen5").cases["resnet18"]
    sides = case.highest[1], case.best_peer[1]
    measured = [f"{x.median:.2f} {x.peak / 2**20:,.0f}" for x in sides]
    assert " ".join(measured).split() == [*figures]


def test_every_op_layer_and_optimizer_has_an_example():
    for package in (ops, nn, optim):
        for name, value in vars(package).items():
            ours = callable(value) and value.__module__.startswith(package.__name__)
            assert name[0] == "_" or not ours or ">>> " in value.__doc__, name


def run_program_of(name, options="autotune=off"):
    """Run the Python of a document and return what it prints; the site's programs tune, too."""
    blocks = re.findall(r"```python(?: output=\w+)?\n(.*?)```", (ROOT / name).read_text(), re.S)
    program = "\n".join(blocks)
    printed = io.StringIO()
    environment = mock.patch.dict(os.environ, MINIGRAPH_OPTIONS=options)
    with environment, contextlib.redirect_stdout(printed):
        exec(compile(program, name, "exec"), {})
    return printed.getvalue()


def test_the_program_in_the_readme_runs_and_learns():
    assert float(re.search(r"loss ([\d.]+)", run_program_of("README.md"))[1]) < 0.1


def test_the_lines_of_the_perceptrons_readme_learn_the_digits(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    printed = run_program_of("examples/mlp/README.md")
    assert float(re.search(r"best test accuracy ([\d.]+)%", printed)[1]) > 90
    assert (tmp_path / "best.safetensors").exists()


def test_the_program_of_the_tutorial_learns_and_finds_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = run_program_of("docs/tutorial.md")
    assert float(re.findall(r"accuracy ([\d.]+)%", printed)[-1]) > 96
    shown, predicted = re.search(r"shows a (\d); predicted (\d)", printed).groups()
    assert shown == predicted


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("troubleshooting", ["log made NaN in 1 of 2 elements of float32[2] from -1 to 1"]),
        ("tour", ["fuse_bias: 6 -> 5 nodes", "fuse_activation: 5 -> 4 nodes", ", 1 kernel, comp"]),
        (
            "exercises",
            [
                *("\n3 [0.05", "\n-3 graph_opt_level -3 differs"),
                "pass simplify made sigmoid of subtract",  # the wrong rule
            ],
        ),
    ],
)
def test_the_programs_of_a_document_print_what_it_says(name, lines, monkeypatch):
    monkeypatch.setattr(simplification, "EXACT", simplification.EXACT)  # the exercises add to it
    printed = run_program_of(f"docs/{name}.md")
    assert [line for line in lines if line not in printed] == []


def test_the_recipes_train_what_they_say(monkeypatch):
    updated = []
    kind = type(mg.comp_graph())
    compile = kind.compile

    def recorded(self, inputs, outputs, updates=None, **kwargs):
        updated.append(set(updates or {}))
        return compile(self, inputs, outputs, updates, **kwargs)

    monkeypatch.setattr(kind, "compile", recorded)
    printed = run_program_of("docs/recipes.md")
    before, after = map(float, re.match(r"([\d.]+) ([\d.]+)\n", printed).groups())
    assert after < before  # of the new head
    assert re.search(r"\n\[\d \d\] \[\d\]\n$", printed)
    head, judge, make = updated[0], *updated[-3:-1]
    assert {p.name for p in head if p.trainable} == {"5.weight", "5.bias"}
    assert not {p for p in judge & make if p.trainable}
    statistics = {p.name for p in make if ".running" in p.name}
    assert statistics == {"1.running_mean", "1.running_var"}


def test_the_solutions_of_the_exercises_do_what_is_asked(monkeypatch):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", "")  # the program sets it
    monkeypatch.setattr(candidates, "CANDIDATES", candidates.CANDIDATES)  # and adds to these
    printed = run_program_of("docs/own.md", options="")
    for line in (
        "pseudo_huber, fma3; 1 in, 1 out",
        "[-0.89442719  0.4472136   0.9486833 ] [-0.89442719  0.4472136   0.9486833 ]",
        "{'one minus sigmoid': 1}",
        "pool_first: 4 -> 4 nodes (pool first 1)",
        "\nTrue\n",
        "pool_first: 20 -> 20 nodes\n",
    ):
        assert line in printed
    assert len(re.findall(r"    three loops: [\d.]+ µs \n", printed)) == 3


@pytest.mark.parametrize("level", range(4))
def test_the_picture_of_the_levels_shows_their_kernels(level):
    x, target = mg.input("x", (32, 8)), mg.input("target", (32, 4))
    w = mg.Parameter(np.ones((8, 4), "float32"), name="w")
    b = mg.Parameter(np.zeros(4, "float32"), name="b")
    graph = Graph((x, target), (ops.mse_loss(ops.sigmoid(x @ w + b) * 1.0, target),))
    stages = optimize(graph, pipeline(level, False, jit=2 if level == 3 else 0))
    printed = str(stages[-1][0] if stages else graph)
    kernels = re.findall(r" = (?!parameter|const|reshape)(fused\[.*?\]|[\w+]+)(.*)", printed)
    names = []
    for name, operands in kernels:
        with_bias = name.startswith("matmul") and len(operands.split()) == 3
        names += re.findall(r"\w+", name.replace("matmul", "matmul" + " bias" * with_bias))
    picture = (ROOT / "docs" / "images" / "levels.svg").read_text()
    places = re.findall(r'<text x="(\d+)".*?>(.*?)</text>', picture)
    column = sorted({int(place) for place, _ in places})[level]
    shown = [text for place, text in places if int(place) == column]
    drawn = [name for name in names if name != "fused"]
    assert shown == [f"level {level}", f"{len(kernels)} kernels", *drawn]


def test_a_model_of_pytorch_learns_in_the_documents(tmp_path, monkeypatch, torch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    printed = run_program_of("docs/pytorch.md")
    losses = [float(x) for x in re.findall(r"epoch \d: loss ([\d.]+)", printed)]
    assert len(losses) == 3 and losses[2] < 0.2
    assert float(re.search(r"([\d.]+)% right", printed)[1]) > 90
    for line in ("details   report", "aten._linalg_svd.default", "prims.bessel_j0.default"):
        assert line in printed
    classes, labels = re.findall(r"\[([\d ]+)\]", printed)[-2:]
    same = sum(a == b for a, b in zip(classes.split(), labels.split(), strict=True))
    assert same >= 7 and mg.load("digits.safetensors")


def test_a_model_of_onnx_runs_and_learns_in_the_documents(tmp_path, monkeypatch):
    pytest.importorskip("onnx.defs")
    monkeypatch.chdir(tmp_path)
    printed = run_program_of("docs/onnx.md")
    assert "(5, 10) (2, 10)" in printed and "Unique (1)" in printed
    before, after = map(float, re.search(r"([\d.]+) -> ([\d.]+)", printed).groups())
    assert after < before / 2


def test_both_sides_of_coming_from_pytorch_compute_the_same(tmp_path, monkeypatch, torch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "pytorch.md").read_text()
    theirs, ours = (
        re.findall(rf'```python title="{side}"\n(.*?)```', text, re.S)
        for side in ("PyTorch", "minigraph")
    )
    there, here = {}, {}
    torch.manual_seed(0)
    exec(theirs[0], there)
    exec(ours[0], here)
    here["net"].load_state_dict(there["net"].state_dict())
    x, y = np.float32(np.random.default_rng(0).normal(size=(16, 1, 8, 8))), np.arange(16) % 10
    for side, evaluation in ((there, theirs[1]), (here, ours[1])):
        side |= {"x": x, "losses": [side["step"](x, y) for _ in range(10)]}
        exec(evaluation, side)
    np.testing.assert_allclose(here["losses"], there["losses"], rtol=1e-4)
    np.testing.assert_allclose(here["logits"], there["logits"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_every_exercise_has_an_answer_and_the_sheet_has_none():
    sheet, answers = (
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("exercises", "answers")
    )
    numbers = [str(n) for n in range(1, 17)]
    assert re.findall(r"^(\d+)\. ", sheet, re.M) == numbers
    assert re.findall(r"^\*\*(\d+)\.\*\* ", answers, re.M) == numbers
    assert "Answer" not in sheet


@pytest.fixture
def networks_of_examples(monkeypatch):
    """Pages may import the modules of an example; other tests import those of other examples."""
    for name in ("look", "model"):
        monkeypatch.setitem(sys.modules, name, None)  # so that it is removed at the end
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.long  # the site runs the page, too
@pytest.mark.usefixtures("networks_of_examples")
def test_the_answers_are_found_in_a_training_step():
    printed = run_program_of("docs/answers.md")
    for line in (
        "{'cross_entropy': 1, 'cross_entropy_backward': 1}",
        "has a separate kernel",
        "the result is needed before the kernel can run",
    ):
        assert line in printed
    kernels = dict(re.findall(r"level (\d), all: (\d+),", printed))
    assert int(kernels["3"]) < int(kernels["2"]) / 2


@pytest.mark.long  # the site runs the page, too
@pytest.mark.usefixtures("networks_of_examples")
def test_a_network_learns_ones_own_pictures(tmp_path, monkeypatch):
    for library in ("PIL", "sklearn"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples/resnet")
    model = importlib.import_module("model")  # with half of the blocks; the site has all
    smaller = functools.partial(model.ResNet, model.BasicBlock, (1, 1, 1, 1))
    monkeypatch.setattr(model, "resnet18", smaller)
    printed = run_program_of("docs/pictures.md")
    assert max(map(int, re.findall(r"accuracy (\d+)%", printed))) > 80
    state = mg.load("photos.safetensors")
    assert state["fc.weight"].shape == (2, 512)


def test_the_tour_is_twelve_files_of_as_many_lines_as_it_says():
    text = (ROOT / "docs" / "tour.md").read_text()
    paths = re.findall(r"^## \d+\. \[`(.*)`\]\(\.\./\1\)$", text, re.M)
    count = int(re.search(r"in some ([\d,]+) lines", text)[1].replace(",", ""))
    lines = sum(len((ROOT / path).read_text().splitlines()) for path in paths)
    assert len(paths) == 12 and abs(lines - count) < 150


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_link_to_files_that_exist(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


SOURCES = {".py", ".c", ".cu", ".h", ".sh", ".toml", ".yml"}
PATH = re.compile(r"[\w./*-]+\.(?:py|md|c|cu|h|sh|toml)|[\w./-]+/|\.ci/\w+")
PLACEHOLDER = re.compile(r"[A-Z]+")  # FILE
NAMES = {"mg": minigraph, "ops": ops, "nn": nn, "optim": optim, "cg": CompGraph, "step": Function}


@functools.cache
def words_of_sources():
    """Return all words of the sources; an environment beside them, in `.venv`, is not looked at."""
    isas = {"AVX512_CORE"}  # oneDNN's name
    for root in ROOT.iterdir():
        if not root.name.startswith("."):
            for path in root.rglob("*") if root.is_dir() else [root]:
                if path.suffix in SOURCES:
                    isas.update(re.findall(r"\w+", path.read_text()))
    return isas


def is_known(code, folder):
    """Return whether code in a document is a file, or made of names that sources have."""
    if PATH.fullmatch(code):
        return any(any(root.glob(code)) for root in (ROOT, ROOT / "minigraph", folder))
    if "://" in code:
        return True
    owner, *attributes = re.match(r"[\w.]*", code)[0].rstrip(".").split(".")
    value = NAMES.get(owner)
    for attribute in attributes if value else ():
        if not hasattr(value, attribute):
            return False
        value = getattr(value, attribute)
    words = set(re.findall(r"[A-Za-z_]\w+", code))
    return all(PLACEHOLDER.fullmatch(word) for word in words - words_of_sources())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_names_in_documents_exist(path):
    prose = re.sub(r"```.*?```|^    .*?$", "", path.read_text(), flags=re.S | re.M)
    pieces = re.findall(r"`([^`]+)`", prose)
    assert [code for code in pieces if not is_known(code, path.parent)] == []


def test_the_readme_is_short_and_has_one_command_that_measures_and_one_that_tests():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 120
    commands = re.findall(r"^    (python3 -m venv .*)$", text, re.M)
    assert [c.split("/")[-1] for c in commands] == ["minigraph bench --quick", "pytest"]


def test_the_tests_that_hold_promises_exist():
    text = (ROOT / "docs" / "reliability.md").read_text()
    defined = {
        name
        for path in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named and defined.issuperset(named), row
    parts = {part for row in rows for part in re.findall(r"`(\w+)`", row.split("|")[3])}
    assert parts == set(ATTACKS)
