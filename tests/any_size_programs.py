"""Random programs with symbolic sizes, compared with the same programs of fixed sizes.

A program is a few lines, of TEMPLATES, which are filled in by a seed.  For each size it is built
with this size too; both have to give the same, or both an error of one line.  Its inputs, its
results and what is between them lie beside pages that nobody may touch.
"""

import random
from functools import partial
from unittest import mock

import numpy as np
from attacks import fences

import minigraph as mg
from minigraph import nn, ops

# {a} and {b} are values, {i} and {j} ends of slices, {s} steps, {k} and {m} numbers from 1 on, {n}
# a size that is computed from one of {a}, {x} an axis.
TEMPLATES = [
    *["{a}[{i}:{j}]", "{a}[{i}:{j}:{s}]", "{a}[{n}:]", "{a}[:{n}]", "{a}[{i}:{n}:{s}]"] * 2,
    *["{a}[:, {i}:{j}]", "{a}[:, {i}:{j}:{s}]", "{a}[{i}:, :{j}]", "{a}[::{s}, {i}:]"],
    *["{a}[-{k}]", "{a}[{k}]", "{a}[{n}]", "{a}[{i}:, [0, -1]]", "{a}[[0, {k}]]", "{a}[-{k}:-1]"],
    *["{a} + {b}", "{a} * {b}", "ops.where({a} > 0, {a}, {b})", "{a}[-{k}:] + {a}[-{k}:]"],
    *["ops.tanh({a})", "{a} * {a}", "{a} / {a}.shape[0]", "{a} + {n}", "{a} - {a}.shape[-1]"],
    *["{a}.mean({x}, keepdims=True)", "{a}.sum({x})", "{a}.mean()", "ops.max({a}, {x})"],
    *["ops.var({a}, {x})", "ops.std({a}, 0, correction=1)", "ops.prod({a}, -1)", "ops.norm({a})"],
    *["ops.logsumexp({a}, {x})", "ops.softmax({a}, {x})", "ops.log_softmax({a}, {x})"],
    *["{a}.reshape(-1)", "{a}.reshape(-1, 2)", "{a}.reshape({a}.shape[0], -1)", "{a}.T"],
    *[
        "ops.flip({a}, {x})",
        "ops.roll({a}, {k}, {x})",
        "ops.roll({a}, -{k})",
        "ops.diff({a}, 0, {m})",
    ],
    *["ops.concat([{a}, {b}], {x})", "ops.concat([{a}[:{k}], {a}[{k}:]]) + {a}"],
    *["ops.split({a}, [{k}], 0)[{m} % 2]", "ops.stack([{a}, {a}], {x})[0]"],
    *["ops.pad({a}, ({k}, {m}))", "ops.pad({a}, ({k}, {m}), mode='reflect')"],
    *["ops.pad({a}, {k}, mode='edge')", "ops.pad({a}, ({m}, {k}), mode='wrap')"],
    *[
        "ops.repeat({a}, {m}, {x})",
        "ops.tile({a}, ({m}, 1))",
        "ops.broadcast_to({a}[:1], {a}.shape)",
    ],
    *["ops.cumsum({a}, {x})", "ops.cumprod({a}, {x})", "ops.sort({a}, {x})"],
    *["ops.topk({a}, {k}, {x})[0]", "ops.topk({a}, {n}, 0)[0]", "ops.take({a}, [0, -{k}], {x})"],
    *["ops.take_along_axis({a}, ops.argsort({a}, 0), 0)", "ops.index_put({a}, [[{k}]], {b}[0])"],
    *[
        "ops.index_add({a}, 0, [0, {m}], {a}[[0, {k}]])",
        "ops.tril({a})",
        "ops.argmax({a}, 0) * 0.5",
    ],
    *["ops.zeros({n})", "ops.ones(({n}, 4))", "ops.full(({a}.shape[0], {m}), 2.0)", "ops.eye({n})"],
    *["ops.linspace(0, 1, {n})", "ops.arange({n}) * 0.5", "ops.arange({k}, {n}, 2) * 0.5"],
    *["ops.one_hot(ops.arange({m}), {n}, 'float32')", "{a} * ({k} // {n})", "{a} * 2.0 ** {n}"],
    *["{a} @ {b}.T", "{a}.T @ {b}", "ops.matmul({a}, weights)", "linear({a})", "norm({a})"],
    *["ops.scaled_dot_product_attention({a}[None], {a}[None], {a}[None], is_causal=True)[0]"],
    *["ops.scan(lambda c, v: (c + v, c * v), ops.zeros({a}.shape[1:]), {a})[1]", "gru({a})[0]"],
    *["ops.max_pool2d({a}[None, None], 2, padding=1)[0, 0]", "conv({a}[None, None])[0, 0]"],
    *["ops.avg_pool2d({a}[None, None], (2, 1))[0, 0]", "transposed({a}[None, None])[0, 0]"],
    *["ops.adaptive_avg_pool2d({a}[None, None], 1)[0, 0]", "ops.interpolate({a}[None], {m})[0]"],
    *["ops.interpolate({a}.T[None], scale_factor=2, mode='linear')[0].T"],
    *["ops.mse_loss({a}, {b})", "ops.cross_entropy({a}, ops.argmax({a}, 1))", "batch_norm({a})"],
]
ENDS = ["", "", "0", "1", "2", "5", "12", "-1", "-2", "-5", "-12", "-100000000"]
SIZES = ["{a}.shape[0]", "{a}.shape[0] - 1", "{a}.shape[0] - {k}", "{a}.shape[0] // 2"]
SIZES += ["{a}.shape[0] - 100", "2 * {a}.shape[0]", "{k} - {a}.shape[0]", "{a}.shape[-1] - {k}"]


class Program:
    """A random program: its lines, and the layers that they use."""

    def __init__(self, seed):
        rng = random.Random(seed)
        nn.manual_seed(seed)
        self.names = {
            "ops": ops,
            "weights": np.ones((4, 3), np.float32),
            "linear": nn.Linear(4, 3),
            "norm": nn.LayerNorm(4),
            "batch_norm": nn.BatchNorm1d(4),
            "gru": nn.GRU(4, 3),
            "conv": nn.Conv2d(1, 1, 3, stride=2, padding=1),
            "transposed": nn.ConvTranspose2d(1, 1, 2, stride=2),
        }
        self.lines = []
        self.bounds = {1, 2, 3}
        values = ["x", "y"]
        inputs = self.inputs(None)
        known = dict(zip("xy", inputs, strict=True))
        while len(self.lines) < rng.choice((1, 2, 3, 4)):
            line = self.filled(rng, values)
            try:
                value = eval(line, self.names, known)
            except (mg.GraphError, IndexError):
                continue
            name = f"v{len(self.lines)}"
            known[name] = value
            self.lines.append((name, line))
            values.append(name)
            values[:2] = [name, name] if rng.random() < 0.5 else values[:2]

    def filled(self, rng, values):
        blanks = {
            "a": rng.choice(values),
            "b": rng.choice(values),
            "i": rng.choice(ENDS),
            "j": rng.choice(ENDS),
            "s": rng.choice((1, 2, 3, -1, -2, -3)),
            "k": rng.choice((1, 2, 3, 5, 7)),
            "m": rng.choice((1, 2, 3)),
            "x": rng.choice((0, 0, -1)),
        }
        ends = [abs(int(end)) for end in (blanks["i"], blanks["j"]) if end]
        bounds = [n for k in (*ends, blanks["k"]) for n in (k - 1, k, k + 1) if 0 < n < 20]
        self.bounds.update(rng.sample(bounds, min(2, len(bounds))))
        blanks["n"] = "(" + rng.choice(SIZES).format(**blanks) + ")"
        return rng.choice(TEMPLATES).format(**blanks)

    def inputs(self, n):
        return [mg.input(name, (n, 4)) for name in "xy"]

    def outputs(self, inputs):
        values = dict(zip("xy", inputs, strict=True))
        for name, line in self.lines:
            values[name] = eval(line, self.names, values)
        nodes = list(values.values())[2:]
        floats = [v for v in nodes if v.dtype == np.float32]
        loss = sum(ops.sum(ops.cos(v) * 0.5) for v in floats)
        return [*nodes, *(mg.grad(loss, inputs) if floats else [])]

    def function(self, n, device, level):
        inputs = self.inputs(n)
        cg = mg.comp_graph(device, {"graph_opt_level": level, "autotune": "off"})
        return cg.compile(inputs, self.outputs(inputs))

    def __str__(self):
        return "\n".join(f"{name} = {line}" for name, line in self.lines)


def values(n):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, 4)).astype(np.float32) for _ in range(2)]


def found(make):
    """Return a function's results, or its error."""
    try:
        return make()
    except ZeroDivisionError as error:  # of a line itself, whose sizes are numbers
        return mg.GraphError(str(error))
    except mg.GraphError as error:
        assert "\n" not in str(error), error
        return error


# Only one of both is an error where NumPy broadcasts one row, where `reshape` finds no size for -1
# beside 0, and where a shape depends on a decision about a size.
MAY_DIFFER = "was inferred", "do not fit shape", "no size for -1", "known only when"


def check(seed, levels):
    """Compare a program at all sizes; return for how many sizes there were results, and errors."""
    program = Program(seed)
    counts = [0, 0]
    functions = [found(partial(program.function, None, device, level)) for level, device in levels]
    if isinstance(functions[0], mg.GraphError):  # of a gradient, say
        return counts
    for n in sorted(program.bounds):
        arrays = [fences.copied(x) for x in values(n)]
        expected = found(lambda: program.function(n, "reference", 0)(*arrays))  # noqa: B023
        for function, (level, device) in zip(functions, levels, strict=True):
            with mock.patch("minigraph.devices.host.aligned_empty", fences.empty):
                outcome = found(lambda: function(*arrays))  # noqa: B023
            place = f"{program}\nseed {seed}, {n} rows, level {level} on {device}\n"
            failed = [v for v in (expected, outcome) if isinstance(v, mg.GraphError)]
            if failed:
                both = len(failed) == 2 or any(t in str(failed[0]) for t in MAY_DIFFER)
                assert both, f"{place}{expected}\n{outcome}"
                continue
            for one, other in zip(outcome, expected, strict=True):
                assert one.shape == other.shape, f"{place}{one.shape} {other.shape}"
                np.testing.assert_allclose(one, other, 2e-4, 2e-4, err_msg=place)
        counts[isinstance(expected, mg.GraphError)] += 1
    return counts
