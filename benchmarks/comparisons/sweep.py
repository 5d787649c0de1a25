"""Every op and layer beside PyTorch's of the same name, in cells: a call, a size, a dtype, a kind.

An elementwise op without fields joins by itself.  Any other op or layer is a call in sweep.txt that
both libraries understand; `theirs` has what PyTorch calls otherwise.
"""

import importlib
import inspect
import itertools
import json
import math
import re
import statistics
import warnings
from dataclasses import fields
from functools import partial
from html import escape
from pathlib import Path

import numpy as np
from comparisons.steps import print_row, take_turns

import minigraph as mg
from minigraph import nn, ops
from minigraph.bench.results import Results
from minigraph.bench.worker import limit_cores, run_times
from minigraph.graph import BFLOAT16, FLOATS, Op
from minigraph.ops.elementwise import Elementwise
from minigraph.options import num_threads
from minigraph.platform.regular_file import write_text

# Rows and columns, the sides of matrices, and the images, channels, height and width.
SIZES = {
    "small": (32, 64, 16, (2, 8, 8, 8)),
    "medium": (4096, 64, 128, (8, 32, 28, 28)),
    "large": (2048, 2048, 768, (16, 64, 56, 56)),
    "odd": (997, 131, 97, (3, 12, 29, 31)),
}
DTYPES = {"float32": "#4c8fd0", "float64": "#58a06b", "bfloat16": "#e08a3c", "int64": "#a070c0"}
CHOICES = {"sizes": SIZES, "dtypes": DTYPES, "kinds": ("forward", "gradient")}
SLOW = 0.9  # cells of a smaller ratio are listed
LEAST = 0.005  # seconds of a turn: of its calls the fastest counts, as other programs run, too
CALLS = Path(__file__).with_suffix(".txt")


def add_arguments(parser):
    parser.add_argument("--only", default="", metavar="TEXT", help="calls that contain this")
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", nargs="+", default=[*choices], choices=choices)
    parser.add_argument("--compiled", action="store_true", help="torch.compile, too; it is slow")
    parser.add_argument("--threads", type=int, default=num_threads(None), metavar="N")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write results.json and cells.svg to this folder")


def ratio(seconds):
    ours, *others = map(statistics.median, seconds.values())
    return min(others) / ours


def sweep(asked):
    """Time every op and layer at several sizes and dtypes, forwards and with gradients.

    A cell's ratio is the time of PyTorch's eager functions, or of torch.compile's where they are
    faster and asked for, divided by minigraph's at level 3 with heuristics.  Sides take turns, of
    which the medians count.  Cells below 0.9 are listed, with the geometric mean of all.  Gradients
    are those of all floats that a call takes and of its parameters, beside the result.
    """
    limit_cores(asked.threads)
    torch = importlib.import_module("minigraph.torch").torch
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    options = {"graph_opt_level": 3, "autotune": "off", "num_threads": asked.threads}
    cg, cells, refused = mg.comp_graph("cpu", options), [], {}
    peers = {"eager": lambda run: run, **({"compiled": torch.compile} if asked.compiled else {})}
    chosen = [each for each in calls() if asked.only in each[1]]
    for each, *at in itertools.product(chosen, asked.sizes, asked.dtypes, asked.kinds):
        (group, call, interval), (size, dtype, kind) = each, at
        given, gradient = arrays(size, dtype, interval), kind == "gradient"
        try:
            sides = {"minigraph": our_side(cg, call, given, dtype, gradient)}
            for name, wrap in peers.items():
                sides[name] = their_side(torch, wrap, call, given, dtype, gradient)
            if len({tuple(first(side()).shape) for side in sides.values()}) > 1:
                raise ValueError("the results have different shapes")
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            refused[f"{call}, {dtype}, {kind}"] = (
                str(error).partition("\n")[0].partition(" at /")[0]
            )
            continue
        turns = [lambda side=side: min(run_times(side, LEAST)) for side in sides.values()]
        seconds = dict(zip(sides, take_turns(turns, asked.turns).tolist(), strict=True))
        cells.append(((group, call, *at), seconds))
        if ratio(seconds) < SLOW:
            print_row(f"{ratio(seconds):.2f}", call, *at)
    ratios = [ratio(seconds) for _, seconds in cells]
    slow, mean = sum(r < SLOW for r in ratios), statistics.geometric_mean(ratios)
    print(f"{len(cells)} cells, {slow} < {SLOW}; geometric mean {mean:.2f}; {len(refused)} refused")
    if asked.out:
        write(asked, cells, refused)


def calls():
    """Yield each group and call, and the interval of x and y."""
    lines = [line.split(": ", 1) for line in CALLS.read_text().splitlines() if line[0] != "#"]
    listed = [(group, call) for group, text in lines for call in text.split("; ")]
    named = {call.partition("(")[0] for _, call in listed}
    for op in sorted(Op.registry.values(), key=lambda op: op.name):
        if issubclass(op, Elementwise) and op.name in {*ops.__all__} - named and not fields(op):
            yield "elementwise", f"{op.name}({', '.join('xyp'[: len(op.operands)])})", op.domain
    yield from ((group, call, (-2.0, 2.0)) for group, call in listed)


def arrays(size, dtype, interval):
    """Return what calls name."""
    rng, (rows, columns, side, images) = np.random.default_rng(0), SIZES[size]
    element = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)

    def drawn(*shape, low=interval[0], high=interval[1]):
        if element.kind == "i":
            return rng.integers(math.ceil(low), math.floor(high), shape, endpoint=True)
        return rng.uniform(low, high, shape).astype(element)

    shapes = {"x": (rows, columns), "y": (rows, columns), "v": (columns,), "m": images}
    shapes |= {"a": (side, side), "b": (side, side), "q": (4, images[0], 4 * images[1], 64)}
    return {name: drawn(*shape) for name, shape in shapes.items()} | {
        "p": drawn(rows, columns, low=0.1, high=1),
        "c": rng.random((rows, columns)) < 0.5,
        "i": rng.permutation(rows),
        "j": rng.integers(0, columns, (rows, columns)),
        "k": rng.integers(0, columns, rows),
        "s": np.sort(drawn(columns)),
        "K": columns,
        "C": images[1],
    }


def function(call, names):
    """Return the function of a call, the letters that it takes, and its layer, if it has one."""
    made = re.fullmatch(r"([A-Z]\w*\(.*?\))(\(.*)", call)
    text = f"layer{made[2]}" if made else call
    taken = "".join(sorted(set(re.findall(r"(?<![\w.\"])[a-z](?![\w\"(])", text))))
    names = {**names, "layer": eval(made[1], dict(names)) if made else None}
    return eval(f"lambda {', '.join(taken)}: {text}", names), taken, names["layer"]


def first(result):
    return first(result[0]) if isinstance(result, tuple | list) else result


def our_side(cg, call, given, dtype, gradient):
    """Return a function without arguments that gives our result of a call."""
    library = {name: getattr(ops, name) for name in ops.__all__} | given
    for name, layer in ((name, getattr(nn, name)) for name in {*nn.__all__} - {"init"}):
        takes = "dtype" in inspect.signature(layer).parameters
        library[name] = partial(layer, dtype=dtype) if takes else layer
    run, taken, layer = function(call, library)
    values = [given[name] for name in taken]
    xs = [mg.input(name, x.shape, x.dtype) for name, x in zip(taken, values, strict=True)]
    outputs = y = first(run(*xs))
    if gradient:
        wrt = [*(x for x in xs if x.dtype in FLOATS), *(layer.parameters() if layer else ())]
        xs.append(mg.input("dy", y.shape, y.dtype))
        values.append(np.ones(y.shape, y.dtype))
        outputs = [y, *mg.grad(ops.sum(y * xs[-1]), wrt)]
    return partial(cg.compile(xs, outputs, layer.updates() if layer else {}), *values)


def theirs(torch):
    """Return PyTorch's functions and layers by our names."""
    modules = torch.linalg, torch.special, torch.nn.functional, torch.nn, torch
    return {name: value for module in modules for name, value in vars(module).items()} | {
        "bitwise_invert": torch.bitwise_not,
        "equal": torch.eq,
        "fma": lambda a, b, c: torch.addcmul(c, a, b),
        "max": torch.amax,
        "min": torch.amin,
        "permute_dims": torch.permute,
        "repeat": torch.repeat_interleave,
        "split": torch.tensor_split,
        "take": lambda x, indices, axis: torch.index_select(x, axis, indices),
    }


def tensor(torch, x):
    """Return x as a tensor on the same memory: where it begins decides how fast vectors read it."""
    small = x.dtype == BFLOAT16
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if small else torch.from_numpy(x)


def their_side(torch, wrap, call, given, dtype, gradient):
    """Return a function without arguments that gives PyTorch's result of a call."""
    run, taken, layer = function(call, theirs(torch) | given)
    parameters = [*layer.to(getattr(torch, dtype)).parameters()] if layer else []
    run, xs = wrap(run), [tensor(torch, given[name]) for name in taken]

    def array(y):
        # A view costs nothing and holds nothing: it becomes an array, as ours are.
        return y.clone(memory_format=torch.contiguous_format) if y._is_view() or y is dy else y

    @torch.no_grad()
    def forward():
        return array(first(run(*xs)))

    def with_gradient():
        y = first(run(*xs))
        grads = torch.autograd.grad(y, wrt, dy, allow_unused=True)
        return [array(x) for x in (y, *grads) if x is not None]

    dy = None
    dy = torch.ones_like(forward())
    wrt = [x.requires_grad_() for x in xs if gradient and x.is_floating_point()] + parameters
    return with_gradient if gradient else forward


def write(asked, cells, refused):
    """Write the cells with machine and versions, medians and spreads in us; and a picture."""
    run = Results.begin({"threads": asked.threads, "turns": asked.turns}).data()
    known = {name: run[name] for name in ("date", "machine", "versions", "options")}
    columns = ["group", "call", "size", "dtype", "kind"]
    columns += [f"{side}{what}" for side in cells[0][1] for what in ("", " spread")]
    rows = []
    for cell, seconds in cells:
        each = [np.quantile(times, (0.25, 0.5, 0.75)) * 1e6 for times in seconds.values()]
        numbers = [x for low, median, high in each for x in (median, high - low)]
        rows.append(json.dumps([*cell, *(float(f"{x:.4g}") for x in numbers)]))
    head = json.dumps({**known, "refused": refused, "columns": columns}, indent=1)
    asked.out.mkdir(parents=True, exist_ok=True)
    text = head[:-2] + ',\n "cells": [\n' + ",\n".join(rows) + "\n ]\n}\n"
    write_text(asked.out / "results.json", text)
    write_text(asked.out / "cells.svg", picture(cells))


def picture(cells):
    """Return an SVG with a row for each call, and a dot for each cell, its ratio on a log axis."""
    places = {row: 45 + 11 * i for i, row in enumerate(dict.fromkeys(c[:2] for c, _ in cells))}
    bottom = 50 + 11 * len(places)

    def at(x):
        return 450 + 60 * min(max(math.log2(x), -3), 6)

    powers = [(2.0**power, at(2.0**power), 0.3 if power else 1) for power in range(-3, 7)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="850" height="{bottom}" font-size="9">',
        '<g fill="#808080" stroke="#808080" stroke-width="0.1">',
        *(f'<path d="M{x} 35V{bottom}" stroke-width="{o}"/>' for _, x, o in powers),
        *(f'<text x="{x}" y="28">{r:g}</text>' for r, x, _ in powers),
        *(f'<text x="4" y="{y + 3}">{escape(": ".join(row))}</text>' for row, y in places.items()),
        "</g>",
    ]
    for i, (dtype, colour) in enumerate(DTYPES.items()):
        parts.append(f'<g fill="{colour}"><text x="{270 + 90 * i}" y="12">{dtype}</text>')
        dots = [(at(ratio(s)), places[cell[:2]]) for cell, s in cells if dtype in cell]
        parts += [*(f'<circle cx="{x:.0f}" cy="{y}" r="2"/>' for x, y in dots), "</g>"]
    return "\n".join([*parts, "</svg>\n"])
