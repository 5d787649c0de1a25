"""Time every op and layer beside PyTorch's of the same name.

A cell is a call, a size, a dtype and a kind.  Calls are the elementwise ops without fields, and the
calls of other ops and layers in sweep.txt, which both libraries understand; `theirs` has the names
that PyTorch spells differently.
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
SLOW = 0.9  # cells with a smaller ratio are listed
MIN_SECONDS = 0.005  # of a turn, of which the fastest call counts: other programs slow the rest
CALLS = Path(__file__).with_suffix(".txt")


def add_arguments(parser):
    parser.add_argument("--only", default="", metavar="TEXT", help="calls that contain this")
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", nargs="+", default=[*choices], choices=choices)
    parser.add_argument(
        "--compiled", action="store_true", help="also time torch.compile, which is slow"
    )
    parser.add_argument("--threads", type=int, default=num_threads(None), metavar="N")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write results.json and cells.svg to this folder")


def ratio(seconds):
    ours, *others = map(statistics.median, seconds.values())
    return min(others) / ours


def sweep(args):
    """Time every op and layer at several sizes and dtypes, forwards and with gradients.

    A cell's ratio is the time of PyTorch's eager functions (with --compiled, of torch.compile's if
    faster) divided by minigraph's at level 3 with heuristics.  Sides take turns; their medians
    count.  Cells below 0.9 are listed, with the geometric mean of all.  The kind "gradient" is the
    result with the gradients of all float arguments and parameters of a call.
    """
    limit_cores(args.threads)
    torch = importlib.import_module("minigraph.torch").torch
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    options = {"graph_opt_level": 3, "autotune": "off", "num_threads": args.threads}
    cg, cells, refused = mg.comp_graph("cpu", options), [], {}
    peers = {"eager": lambda run: run, **({"compiled": torch.compile} if args.compiled else {})}
    selected = [entry for entry in calls() if args.only in entry[1]]
    for entry, *variant in itertools.product(selected, args.sizes, args.dtypes, args.kinds):
        (group, call, interval), (size, dtype, kind) = entry, variant
        values, gradient = arrays(size, dtype, interval), kind == "gradient"
        try:
            sides = {"minigraph": our_side(cg, call, values, dtype, gradient)}
            for name, wrap in peers.items():
                sides[name] = their_side(torch, wrap, call, values, dtype, gradient)
            if len({tuple(first(side()).shape) for side in sides.values()}) > 1:
                raise ValueError("the results have different shapes")
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            refused[f"{call}, {dtype}, {kind}"] = (
                str(error).partition("\n")[0].partition(" at /")[0]
            )
            continue
        turns = [lambda side=side: min(run_times(side, MIN_SECONDS)) for side in sides.values()]
        seconds = dict(zip(sides, take_turns(turns, args.turns).tolist(), strict=True))
        cells.append(((group, call, *variant), seconds))
        if ratio(seconds) < SLOW:
            print_row(f"{ratio(seconds):.2f}", call, *variant)
    ratios = [ratio(seconds) for _, seconds in cells]
    slow, mean = sum(r < SLOW for r in ratios), statistics.geometric_mean(ratios)
    print(f"{len(cells)} cells, {slow} < {SLOW}; geometric mean {mean:.2f}; {len(refused)} refused")
    if args.out:
        write(args, cells, refused)


def calls():
    """Yield each group and call, and the interval of x and y."""
    lines = [line.split(": ", 1) for line in CALLS.read_text().splitlines() if line[0] != "#"]
    entries = [(group, call) for group, text in lines for call in text.split("; ")]
    names = {call.partition("(")[0] for _, call in entries}
    for op in sorted(Op.registry.values(), key=lambda op: op.name):
        if issubclass(op, Elementwise) and op.name in {*ops.__all__} - names and not fields(op):
            yield "elementwise", f"{op.name}({', '.join('xyp'[: len(op.operands)])})", op.domain
    yield from ((group, call, (-2.0, 2.0)) for group, call in entries)


def arrays(size, dtype, interval):
    """Return the arrays and numbers that calls name."""
    rng, (rows, columns, side, images) = np.random.default_rng(0), SIZES[size]
    element = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)

    def random(*shape, low=interval[0], high=interval[1]):
        if element.kind == "i":
            return rng.integers(math.ceil(low), math.floor(high), shape, endpoint=True)
        return rng.uniform(low, high, shape).astype(element)

    shapes = {"x": (rows, columns), "y": (rows, columns), "v": (columns,), "m": images}
    shapes |= {"a": (side, side), "b": (side, side), "q": (4, images[0], 4 * images[1], 64)}
    return {name: random(*shape) for name, shape in shapes.items()} | {
        "p": random(rows, columns, low=0.1, high=1),
        "c": rng.random((rows, columns)) < 0.5,
        "i": rng.permutation(rows),
        "j": rng.integers(0, columns, (rows, columns)),
        "k": rng.integers(0, columns, rows),
        "s": np.sort(random(columns)),
        "K": columns,
        "C": images[1],
    }


def function(call, names):
    """Return the function of a call, its arguments as letters, and its layer or None."""
    layer_call = re.fullmatch(r"([A-Z]\w*\(.*?\))(\(.*)", call)
    text = f"layer{layer_call[2]}" if layer_call else call
    letters = "".join(sorted(set(re.findall(r"(?<![\w.\"])[a-z](?![\w\"(])", text))))
    names = {**names, "layer": eval(layer_call[1], dict(names)) if layer_call else None}
    return eval(f"lambda {', '.join(letters)}: {text}", names), letters, names["layer"]


def first(result):
    return first(result[0]) if isinstance(result, tuple | list) else result


def our_side(cg, call, values, dtype, gradient):
    """Return a function without arguments that computes a call with minigraph."""
    library = {name: getattr(ops, name) for name in ops.__all__} | values
    for name, layer in ((name, getattr(nn, name)) for name in {*nn.__all__} - {"init"}):
        has_dtype = "dtype" in inspect.signature(layer).parameters
        library[name] = partial(layer, dtype=dtype) if has_dtype else layer
    run, letters, layer = function(call, library)
    operands = [values[name] for name in letters]
    xs = [mg.input(name, x.shape, x.dtype) for name, x in zip(letters, operands, strict=True)]
    outputs = y = first(run(*xs))
    if gradient:
        wrt = [*(x for x in xs if x.dtype in FLOATS), *(layer.parameters() if layer else ())]
        xs.append(mg.input("dy", y.shape, y.dtype))
        operands.append(np.ones(y.shape, y.dtype))
        outputs = [y, *mg.grad(ops.sum(y * xs[-1]), wrt)]
    return partial(cg.compile(xs, outputs, layer.updates() if layer else {}), *operands)


def theirs(torch):
    """Return PyTorch's functions and layers by minigraph's names."""
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
    """Return x as a tensor that shares its memory: its alignment decides how fast it is read."""
    small = x.dtype == BFLOAT16
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if small else torch.from_numpy(x)


def their_side(torch, wrap, call, values, dtype, gradient):
    """Return a function without arguments that computes a call with PyTorch."""
    run, letters, layer = function(call, theirs(torch) | values)
    parameters = [*layer.to(getattr(torch, dtype)).parameters()] if layer else []
    run, xs = wrap(run), [tensor(torch, values[name]) for name in letters]

    def array(y):
        # A view takes no time, while minigraph's results are arrays: copy it.
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


def write(args, cells, refused):
    """Write the cells with machine, versions, medians and spreads in us, and a picture of them."""
    run = Results.begin({"threads": args.threads, "turns": args.turns}).data()
    header = {name: run[name] for name in ("date", "machine", "versions", "options")}
    columns = ["group", "call", "size", "dtype", "kind"]
    columns += [f"{side}{suffix}" for side in cells[0][1] for suffix in ("", " spread")]
    rows = []
    for cell, seconds in cells:
        quartiles = [np.quantile(times, (0.25, 0.5, 0.75)) * 1e6 for times in seconds.values()]
        numbers = [x for low, median, high in quartiles for x in (median, high - low)]
        rows.append(json.dumps([*cell, *(float(f"{x:.4g}") for x in numbers)]))
    head = json.dumps({**header, "refused": refused, "columns": columns}, indent=1)
    args.out.mkdir(parents=True, exist_ok=True)
    text = head[:-2] + ',\n "cells": [\n' + ",\n".join(rows) + "\n ]\n}\n"
    write_text(args.out / "results.json", text)
    write_text(args.out / "cells.svg", picture(cells))


def picture(cells):
    """Return an SVG with a row for each call, and a dot for each cell, its ratio on a log axis."""
    heights = {row: 45 + 11 * i for i, row in enumerate(dict.fromkeys(c[:2] for c, _ in cells))}
    bottom = 50 + 11 * len(heights)

    def position(x):
        return 450 + 60 * min(max(math.log2(x), -3), 6)

    powers = [(2.0**power, position(2.0**power), 0.3 if power else 1) for power in range(-3, 7)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="850" height="{bottom}" font-size="9">',
        '<g fill="#808080" stroke="#808080" stroke-width="0.1">',
        *(f'<path d="M{x} 35V{bottom}" stroke-width="{o}"/>' for _, x, o in powers),
        *(f'<text x="{x}" y="28">{r:g}</text>' for r, x, _ in powers),
        *(f'<text x="4" y="{y + 3}">{escape(": ".join(row))}</text>' for row, y in heights.items()),
        "</g>",
    ]
    for i, (dtype, colour) in enumerate(DTYPES.items()):
        parts.append(f'<g fill="{colour}"><text x="{270 + 90 * i}" y="12">{dtype}</text>')
        dots = [(position(ratio(s)), heights[cell[:2]]) for cell, s in cells if dtype in cell]
        parts += [*(f'<circle cx="{x:.0f}" cy="{y}" r="2"/>' for x, y in dots), "</g>"]
    return "\n".join([*parts, "</svg>\n"])
