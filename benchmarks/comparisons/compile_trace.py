"""Count the files and functions of the package that run to compile and to call a function."""

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph import ops

PACKAGE = Path(mg.__file__).parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", type=int, default=3, metavar="N")
    parser.add_argument("--list", action="store_true", help="list all functions, file by file")


def trace(args: argparse.Namespace) -> None:
    """Count the files and functions that run to compile and call `relu(x @ w + b)`.

    The cache folder is empty, so compiling tunes the product and compiles its kernel.  Importing
    the package, building the expression and other threads are not counted.  A function is a
    qualified name; up to Python 3.11 comprehensions count as functions.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINIGRAPH_CACHE_DIR"] = folder
        stages = dict(zip(("compile", "call"), _compile_and_call(args.level), strict=True))
    for stage, calls in stages.items():
        files = {file for file, _ in calls}
        functions = {name for _, name in calls}
        print(f"{stage}: {len(files)} files, {len(functions)} functions, {calls.total()} calls")
        for (file, name), count in sorted(calls.items()) if args.list else ():
            print(f"{count:7}  {file}: {name}")


def _traced(work: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Return how often `work` called each function of the package, by file and qualified name."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            calls[str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _compile_and_call(level: int) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return the calls while the function is compiled, and those of its first call."""
    x = mg.input("x", shape=(32, 64))
    w = mg.Parameter(np.ones((64, 16), "float32"), name="w")
    b = mg.Parameter(np.ones(16, "float32"), name="b")
    y = ops.relu(x @ w + b)
    cg = mg.comp_graph(device="cpu", options={"graph_opt_level": level})
    functions = []
    compiling = _traced(lambda: functions.append(cg.compile([x], y)))
    batch = np.ones(x.shape, "float32")
    return compiling, _traced(lambda: functions[0](batch))
