"""Compare `minigraph.torch` with PyTorch on its own sample inputs of operators and modules.

    python tools/torch_samples.py [NAME ...] [--levels 0 3] [--dtypes float32] [--json FILE]

The samples are those of `op_db` and `module_db` in `torch.testing._internal` (which needs
expecttest).  Each is captured and interpreted as a PyTorch model is; values, gradients and second
derivatives are compared with what PyTorch computes from the same inputs, in float64 and in the
inputs' type.  The counts:

passed   agree in shape and dtype, and up to rounding
wrong    another value, shape or dtype, or an error other than GraphError
refused  a GraphError

The level "ops" computes ops in NumPy, without a compiled function.
"""

import argparse
import collections
import itertools
import json
import logging
import re
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch_calls import families, numpy_of, tensors_of, weights
from torch_rounding import difference, largest

import minigraph as mg
from minigraph import ops
from minigraph.graph import FLOATS, Graph
from minigraph.torch import capture as captured
from minigraph.torch import interpret as interpreted
from minigraph.torch.operators import ROWS

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
LEVELS = ("ops", "0", "1", "2", "3")
ORDERS = ("values", "gradients", "second derivatives")
GROUP_SIZE = 32  # samples that are captured and compiled as one function
NUMBERS = itertools.count()  # of inputs

# Results of less precision than float64: PyTorch computes with constants of float32.
COARSE_IN_TORCH = {
    "nn.functional.hardsigmoid",
    "nn.functional.binary_cross_entropy",
    "nn.BCELoss",
}
# PyTorch's second derivatives are NaN though those of minigraph exist: of 0 ** y, of a norm at 0,
# and of the logarithm of an empty sum.
NAN_IN_TORCH = {"pow", "linalg.norm", "masked.logaddexp"}
# Values and derivatives near 0 are differences of numbers near 1, with the rounding error of these.
FLAT = {"logaddexp", "nn.functional.logsigmoid", "special.ndtr"}

TIES = {"argsort", "kthvalue", "sort", "topk"}  # PyTorch does not define the order of equals


# ---------------------------------------------------------------- minigraph's results


class Group(torch.nn.Module):
    """Several modules as one; its inputs are theirs, one after another."""

    def __init__(self, samples):
        super().__init__()
        self.parts = torch.nn.ModuleList(s.module for s in samples)
        self.counts = [len(s.tensors) for s in samples]

    def forward(self, *tensors):
        remaining = iter(tensors)
        return [
            tensors_of(part(*itertools.islice(remaining, n)))
            for part, n in zip(self.parts, self.counts, strict=True)
        ]


def build(samples):
    """Set the results of samples: for each order the nodes, or an error.

    If samples cannot be captured together, each half is tried alone.
    """
    tensors = [x for s in samples for x in s.tensors]
    try:
        with mock.patch.object(captured, "refuse_missing"):
            program = captured.capture("sample", Group(samples), tensors)
        modules = [s.module for s in samples]
        states = [dict(m.named_parameters()) | dict(m.named_buffers()) for m in modules]
        for s, named in zip(samples, states, strict=True):
            values = [*s.tensors, *named.values()]
            s.arrays = [numpy_of(x) for x in values]
            s.inputs = [mg.input(f"x{next(NUMBERS)}", x.shape, x.dtype) for x in s.arrays]
        inputs = [x for s in samples for x in s.inputs[: len(s.tensors)]]
        state = {
            f"parts.{i}.{name}": node
            for i, (s, named) in enumerate(zip(samples, states, strict=True))
            for name, node in zip(named, s.inputs[len(s.tensors) :], strict=True)
        }
        with mock.patch.object(interpreted, "call", tolerant(interpreted.call)):
            outputs = interpreted.interpret("sample", program, inputs, state).outputs
    except Exception as error:
        if len(samples) == 1:
            samples[0].results = [outcome(error)]
        else:
            half = len(samples) // 2
            build(samples[:half])
            build(samples[half:])
        return
    for s, ys in zip(samples, outputs, strict=True):
        errors = [y.error for y in ys if isinstance(y, Failed)]
        if errors:
            s.results = [outcome(errors[0])]
        else:
            differentiate(s, ys)


class Failed:
    """The result of an operator that failed, or that needs the result of one."""

    def __init__(self, error):
        self.error = error


def tolerant(call):
    """Wrap `interpreted.call` to return Failed for an error, so that other samples continue."""

    def attempt(node, values):
        failed = [v for x in node.all_input_nodes if isinstance(v := values[x], Failed)]
        if failed:
            return failed[0]
        name = captured.name_of(node.target)
        try:
            if name not in ROWS:
                raise mg.GraphError(f"there is no row for {name}")
            return call(node, values)
        except Exception as error:
            return Failed(error)

    return attempt


def outcome(error):
    """Return the reason of a GraphError as text, and any other error as it is."""
    return reason(error) if isinstance(error, mg.GraphError) else error


def differentiate(sample, ys):
    named = [*sample.tensors, *sample.module.parameters()]
    xs = [x for x, t in zip(sample.inputs, named, strict=False) if t.requires_grad]
    for order, pairs in enumerate(sample.expected):
        try:
            if order:
                parts = [
                    ops.sum(ops.astype(y * weights(y.shape, order + i).astype(y.dtype), y.dtype))
                    for i, y in enumerate(ys)
                    if y.dtype in FLOATS
                ]
                ys = mg.grad(sum(parts[1:], parts[0]), xs)
            if len(ys) != len(pairs):
                raise AssertionError(f"{len(ys)} results, not {len(pairs)}")
            sample.results.append(list(ys))
        except mg.GraphError as error:
            return sample.results.append(reason(error))
        except Exception as error:
            return sample.results.append(error)
    return None


def reason(error):
    """Return the first line of a GraphError, without the numbers of this sample."""
    text = str(error).split("\n")[0].removeprefix("sample: ")
    text = re.sub(r" at \S+\.py:\d+", "", text)
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)| at \S+:\d+$", "…", text)
    text = re.sub(r"\binput x\d+", "x", text)
    return re.sub(r"(?<!\w)-?\d+(\.\d+)?(?!\w)", "N", text.strip(" …"))[:200]


# ---------------------------------------------------------------- comparing


def computed(samples, level):
    """Yield each sample with its results as arrays, or with the error that was raised."""
    ready = [s for s in samples if s.results and isinstance(s.results[0], list)]
    if not ready:
        return
    try:
        yield from zip(ready, run(ready, level), strict=True)
    except Exception as error:
        if len(ready) == 1:
            yield ready[0], error
            return
        half = len(ready) // 2
        yield from computed(ready[:half], level)
        yield from computed(ready[half:], level)


def run(samples, level):
    """Compute all results of samples in one function."""
    inputs = [x for s in samples for x in s.inputs]
    arrays = [a for s in samples for a in s.arrays]
    nodes = [y for s in samples for order in s.results if isinstance(order, list) for y in order]
    if level == "ops":
        values = iter(Graph(tuple(inputs), tuple(nodes))(*arrays))
    else:
        options = {"graph_opt_level": int(level), "autotune": "off"}
        values = iter(mg.comp_graph("cpu", options).compile(inputs, nodes)(*arrays))
    return [
        [[next(values) for _ in order] for order in s.results if isinstance(order, list)]
        for s in samples
    ]


class Counts:
    """The outcomes of the comparisons."""

    def __init__(self):
        self.passed = collections.Counter()  # by name, dtype, order and level
        self.refused = collections.Counter()  # samples, by name and reason
        self.wrong = []

    def fail(self, sample, order, level, message):
        self.wrong.append(f"level {level}: {sample}: {ORDERS[order]}: {message}")
        print("WRONG", self.wrong[-1], flush=True)

    def build(self, samples):
        for i in range(0, len(samples), GROUP_SIZE):
            build(samples[i : i + GROUP_SIZE])
        for sample in samples:
            for order, results in enumerate(sample.results):
                if isinstance(results, str):
                    self.refused[sample.name, results] += 1
                elif isinstance(results, Exception):
                    self.fail(sample, order, "-", f"{type(results).__name__}: {results}")

    def compare(self, samples, level):
        for sample, orders in computed(samples, level):
            if isinstance(orders, mg.GraphError):
                self.refused[sample.name, reason(orders)] += 1
            elif isinstance(orders, Exception):
                self.fail(sample, 0, level, f"{type(orders).__name__}: {orders}")
            else:
                self._compare(sample, orders, level)

    def _compare(self, sample, orders, level):
        scale = 0.0
        for order, (values, pairs) in enumerate(zip(orders, sample.expected, strict=False)):
            if not sample.elementwise or sample.dtype == "float64" or sample.name in FLAT:
                scale = max(scale, largest([wide for wide, _ in pairs]))
            ties = sample.name in TIES and "'stable': True" not in sample.text
            if ties and sample.dtype not in ("float32", "float64"):
                values, pairs = values[:-1], pairs[:-1]
            for value, (wide, theirs) in zip(values, pairs, strict=True):
                if value.dtype != theirs.dtype:
                    return self.fail(sample, order, level, f"{value.dtype}, not {theirs.dtype}")
                if sample.name in NAN_IN_TORCH:
                    value = np.where(np.isnan(wide), wide.astype(value.dtype), value)
                if sample.name in COARSE_IN_TORCH and sample.dtype == "float64":
                    value, wide, theirs = (a.astype("float32") for a in (value, wide, theirs))
                if message := difference(value, wide, theirs, scale):
                    return self.fail(sample, order, level, message)
            self.passed[sample.name, sample.dtype, ORDERS[order], level] += 1
        return None

    def record(self, limit):
        """Return the counts in the form that `docs/tables.py` reads."""
        passed = collections.Counter()
        for (_, dtype, order, level), count in self.passed.items():
            passed[level, dtype, order] += count
        names = {name for name, *_ in self.passed}
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "torch": torch.__version__,
            "samples": limit,  # at most, of each op and dtype
            "compared": sorted(names),
            "absent": sorted({name for name, _ in self.refused} - names),
            "passed": [[*key, count] for key, count in passed.items()],
            "refused": [[*key, count] for key, count in self.refused.most_common()],
            "wrong": self.wrong,
            **operators(),
        }


def operators():
    """Return the operators with rows, by subject; the number of core ATen, and those without."""
    subjects = {}
    for name, row in ROWS.items():
        library, _, overload = name.partition(".")
        if library == "aten":
            subject = getattr(row, "func", row).__module__.rpartition(".")[2].replace("_", " ")
            subjects.setdefault(subject, set()).add(overload.removesuffix(".default"))
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    core = [str(op) for op in overloads if torch.Tag.core in op.tags]
    missing = [name.removeprefix("aten.") for name in core if name not in ROWS]
    return {
        "operators": {subject: sorted(names) for subject, names in sorted(subjects.items())},
        "core": [len(core), missing],
    }


# ---------------------------------------------------------------- the program


def counted(names, dtypes, levels, limit=None):
    """Compare `names` (none: all); return the counts."""
    counts, samples, named = Counts(), [], []

    def compare():
        start = time.monotonic()
        counts.build(samples)
        for level in levels:
            counts.compare(samples, level)
        seconds = time.monotonic() - start
        print(f"{', '.join(named)}: {len(samples)} samples, {seconds:.1f} s", flush=True)
        samples.clear()
        named.clear()

    for name, kinds, make in families():
        if not names or name in names:
            named.append(name)
            for dtype in dtypes:
                if getattr(torch, dtype) in kinds:
                    samples += make(dtype, limit)
            if len(samples) >= GROUP_SIZE:
                compare()
    if samples:
        compare()
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--levels", nargs="+", default=["0", "3"], choices=LEVELS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--samples", type=int, help="at most, of each op and dtype")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to FILE")
    args = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        counts = counted(args.names, args.dtypes, args.levels, args.samples)
    for (name, text), count in sorted(counts.refused.items()):
        print(f"refused {count:6,} {name}: {text}")
    record = counts.record(args.samples)
    for level, dtype, order, count in record["passed"]:
        print(f"level {level}, {dtype}: {count:,} {order} passed")
    print(f"{len(counts.wrong)} wrong")
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
