"""Each pass on small graphs, before and after, as text: the files in `cases/`.

    pytest tests/passes/test_cases.py --update-golden

writes what the passes make now; read the diff.  A file begins with the passes that run, their
`parameters` if they have any, the inputs, and what its cases have in common.  A case is

    == its name
    Python, the last line of which is the result, or a tuple of results; none if the name is that
    ->
    the graph that the passes make of it, or `unchanged`
    fired: how often each rewrite was applied

In a file that `shows: kernels`, what stands for a graph is what it executes, in order: [an op], or
a generated kernel's ops and, if there are several, the number of its results.  `apart` is followed
by neighbours that were not fused, and why.

Each case is also checked to stay as it is when the passes run again, and to compute what it did:
special values included, bit for bit, but for files that say how `values` may differ.
"""

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from elementwise_samples import draw
from fused_units import of, units
from rewriting import F64, assert_bits, run, values

import minigraph as mg
from minigraph import ops
from minigraph.graph import Op, as_dtype, constant
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import specialise
from minigraph.ops.reduction import Reduction
from minigraph.passes.kernels.fusion import fuse_elementwise, fuse_kernels
from minigraph.passes.levels import TABLE
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite import fast_math, simplification

PASSES = {row.rewrite.__name__: row.rewrite for row in TABLE}
NAMES = {**vars(ops), **Op.registry, "np": np, "mg": mg, "constant": constant}
INPUT = re.compile(r"(\w+): (\w+)\[([\d,]*)\](?: in (\S+) \.\. (\S+))?")
ORDINARY = 0.5, 3.0
TOLERANCES = {"close": 1e-5, "ordinary": 1e-5, "rounded": 0.05}


@dataclass
class Case:
    """A case: the passes, inputs and common lines of its file, its lines, the expected results."""

    passes: list
    values: str
    shows: str
    inputs: dict
    ranges: dict
    code: str
    expected: str

    def graph(self):
        names = {**NAMES, **self.inputs}
        *lines, last = ast.parse(self.code).body
        exec(compile(ast.Module(lines, []), "<case>", "exec"), names)
        results = eval(compile(ast.Expression(last.value), "<case>", "eval"), names)
        results = tuple(results) if isinstance(results, tuple | list) else (results,)
        return of(*results)

    def rewritten(self, graph):
        """Return the graph after the passes, each checked, and their notes."""
        notes = Notes()
        for rewrite in self.passes:
            graph = rewrite(graph, notes)
            graph.check()
        for node in graph:
            if isinstance(node.op, Fused):  # check that the kernel can be generated
                specialise(node.op.graph, [x.spec.strides for x in node.inputs])
        return graph, notes

    def arrays(self, graph):
        return [self.array(x) for x in graph.inputs]

    def array(self, x):
        low, high = self.ranges.get(x.name, ORDINARY)
        if self.values == "bits" and x.name not in self.ranges:
            return values(x.dtype, x.shape)
        return draw(x.dtype, x.shape, float(low), float(high), seed=len(x.name) + ord(x.name[0]))


def cases(path):
    """Yield the name and text of each part of a file; the first part is its head."""
    head, *parts = re.split(r"^== ", path.read_text(), flags=re.M)
    yield "", head
    for part in parts:
        yield part.split("\n", 1)


@functools.cache
def parts(path):
    return dict(cases(path))


def parsed(path, title):
    head, text = parts(path)[""], parts(path)[title]
    passes, how, shows, inputs, ranges, common = [], "bits", "graph", {}, {}, []
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        if line.startswith("#") or not line:
            continue
        if key == "passes":
            passes = [PASSES[name] for name in value.split()]
        elif key == "parameters":
            passes = [functools.partial(rewrite, **eval(f"dict({value})")) for rewrite in passes]
        elif key == "values":
            how = value
        elif key == "shows":
            shows = value
        elif match := INPUT.fullmatch(line):
            name, dtype, shape, *limits = match.groups()
            size = tuple(map(int, filter(None, shape.split(","))))
            inputs[name] = mg.input(name, size, as_dtype(dtype))
            if limits[0]:
                ranges[name] = limits
        else:
            common.append(line)
    code, _, expected = text.partition("->")
    return Case(
        passes, how, shows, inputs, ranges, "\n".join([*common, code or title]), expected.strip()
    )


FOLDER = Path(__file__).parent / "cases"
FILES = sorted(FOLDER.glob("*.txt"))
CASES = [(path, name) for path in FILES for name, _ in cases(path) if name]


def shown(case, before, after, notes):
    """Return the text in a file for a graph and the graph after the passes."""
    if case.shows == "kernels":
        apart = {f"apart: {x.producer}, {x.consumer}: {x.reason}": 0 for x in notes.stops}
        return "\n".join([*units(after), *apart])
    if str(after) == str(before):
        return "unchanged"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(notes.fired.items()))
    _, *lines = str(after).splitlines()
    return "\n".join([*(line.strip() for line in lines), f"fired: {counts}"])


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{p.stem}: {n}" for p, n in CASES])
def test_a_graph_becomes_what_stands_in_the_file(path, name, request):
    case = parsed(path, name)
    before = case.graph()
    after, notes = case.rewritten(before)
    again, nothing = case.rewritten(after)
    assert str(again) == str(after) and not nothing.fired
    assert [y.spec for y in after.outputs] == [y.spec for y in before.outputs]
    assert bool(notes.fired) == (str(after) != str(before))
    printed = shown(case, before, after, notes)
    if request.config.getoption("--update-golden"):
        text = path.read_text()
        start = text.index(f"== {name}\n")
        end = text.find("\n== ", start)
        code, _, _ = parts(path)[name].partition("->")
        rest = text[end:] if end > 0 else ""
        path.write_text(f"{text[:start]}== {name}\n{code}->\n{printed}\n{rest}")
    else:
        assert printed == case.expected
    xs = case.arrays(before)
    for new, old in zip(after(*xs), before(*xs), strict=True):
        if case.values == "bits":
            assert_bits(new, old)
        else:
            tolerance = TOLERANCES[case.values] if new.dtype != np.float16 else 2e-3
            np.testing.assert_allclose(new.astype(F64), old.astype(F64), tolerance, tolerance)


def test_elementwise_ops_become_the_same_kernels_where_reductions_stay_out():
    for path, name in CASES:
        graph = parsed(path, name).graph()
        if path.stem == "fusion" and not any(isinstance(x.op, Reduction) for x in graph):
            kernels, elementwise = (
                units(run(by, graph)[0]) for by in (fuse_kernels, fuse_elementwise)
            )
            assert elementwise == kernels, name


@pytest.mark.parametrize(
    ("file", "rules"), [("simplify", simplification.EXACT), ("fast_math", fast_math.RULES)]
)
def test_every_rule_fires_in_a_case(file, rules):
    lines = re.findall(r"^fired: (.*)", (FOLDER / f"{file}.txt").read_text(), flags=re.M)
    fired = {each.rpartition(" ")[0] for line in lines for each in line.split(", ")}
    # Patterns of expressions fire in `test_a_rule_changes_no_bit`.
    assert {rule.name for rule in rules if file == "fast_math" or not rule.sides} <= fired
