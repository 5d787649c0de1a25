"""Print the bytes and the registers of a training step's generated CUDA kernels, without a GPU.

    python benchmarks/cuda_kernels.py [resnet50 ...] [--precision bfloat16] [--level 3]
        [--batch 128] [--arch sm_90] [--processors 132] [--rows 20]

NVRTC compiles the kernels.  Nothing is measured: layouts are chosen by estimated times, and kernels
of cuDNN are not listed.

A row is one generated kernel.  Kernels with the same text share a row, whose figures are sums.
Kernels that share a launch have a row each.

    runs       the number of kernels of the step with this text
    MB         the megabytes that they move: in each run over its loops a kernel reads and writes
               its operands once, as if no cache served the next run
    bytes      the same, in bytes for each element of the kernel's iteration space
    registers  of a thread, followed by the bytes of its stack and of spills if it has any
    shared     bytes of shared memory of a block
"""

from __future__ import annotations

import argparse
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import minigraph as mg
from minigraph import options as settings
from minigraph.autotune.measurement import policy_of
from minigraph.autotune.session import Session
from minigraph.bench.cases import NETWORKS, PRECISIONS, TrainingCase, case
from minigraph.bench.ours import LIBRARY, loss_and_updates
from minigraph.devices.cuda import nvrtc
from minigraph.devices.cuda.candidates import CudaProblems
from minigraph.devices.cuda.cudnn_kernel import Exactness
from minigraph.devices.cuda.device import CudaBackend
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.kernels import cuda_kernel
from minigraph.devices.kernel_cache import CompilationUnit
from minigraph.devices.parts import kernel_parts
from minigraph.graph import Graph, Node, Shape
from minigraph.jit.cuda.text import PRELUDE, cuda_source
from minigraph.jit.cuda.thread_mapping import ThreadMapping, map_to_threads
from minigraph.jit.loops import LoopNest
from minigraph.jit.source import KernelSource
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.rewrite.loops import merge_loops, unroll_loops
from minigraph.program import Kernel, Program
from minigraph.program.choices import Choices
from minigraph.program.lower import lower
from minigraph.program.memory import plan

# ---------------------------------------------------------------- a program without a device


class Library(Kernel):
    """A kernel of cuDNN."""

    maker = "cudnn"


class Unopened:
    """A stand-in for a CUDA device: the attributes and methods that lowering uses."""

    device, blocks, channels_last = "cuda:0", (), True

    def __init__(self, values: Mapping[str, Any], processors: int) -> None:
        exactness = Exactness(values["precision"] == "tf32", values["graph_opt.fast_math"])
        problems = CudaProblems(None, None, exactness)  # nothing is measured
        self.tunable = problems.tunable
        self.product = problems.product
        self.processors = processors

    def kernel(self, node: Node, strides: Sequence[Shape], choice: object = None) -> Kernel:
        if self.product(node) is not None:
            return Library()
        return cuda_kernel(node, strides, self.processors) or Kernel()


def program_of(step: TrainingCase, options: Mapping[str, Any], processors: int) -> Program:
    """Return the program of a training step as compiled for CUDA, without tuning."""
    values = settings.resolve(options)
    x, labels = (
        mg.input(name, batch.shape, batch.dtype)
        for name, batch in zip(("x", "labels"), step.data()[0], strict=True)
    )
    loss, updates = loss_and_updates(step.network(LIBRARY), x, labels)
    graph = Graph((x, labels, SEED, STEP), (loss, *updates.values()))
    graph = unroll_loops(merge_loops(number_streams(graph)))
    backend = Unopened(values, processors)
    level = values["graph_opt_level"]
    choices = Choices(backend, Session("off", policy_of(values), 0, {}))
    passes = pipeline(
        level,
        values["graph_opt.fast_math"],
        jit=2 if level == 3 else 0,
        amp=values["amp"],
        costs=choices.seconds,
        blocks=backend.blocks,
        horizontal_fusion=CudaBackend.horizontal_fusion,
    )
    stages = optimize(graph, passes)
    final = stages[-1][0] if stages else graph
    return plan(lower(final, 1, list(updates), backend, lambda node, strides: None))


# ---------------------------------------------------------------- bytes and registers of kernels


@dataclass(frozen=True)
class Part:
    """A generated kernel of the program."""

    mapping: ThreadMapping
    layout: LoopNest

    @property
    def elements(self) -> int:
        return self.layout.count * self.layout.length

    @property
    def bytes(self) -> int:
        pattern, axes = self.mapping.pattern, (*self.layout.units, *self.layout.loops)

        def size(k: int) -> int:
            return pattern.dtypes[k].itemsize * math.prod(n for n, s in axes if s[k])

        runs = [
            {*pattern.loaded(pattern.run(stage)), *pattern.stored(stage)}
            for stage in range(pattern.stages)
        ]
        once = set(range(self.mapping.operands)).difference(*runs)
        return sum(size(k) for run in (*runs, once) for k in run)

    @property
    def title(self) -> str:
        ops = [v.op.name for v in self.mapping.pattern.values if v.op is not None]
        names = " ".join(ops[:6]) + (f" and {len(ops) - 6} more" if len(ops) > 6 else "")
        return f"{names or 'copy'} ({self.mapping.pattern.form})"


def parts_of(program: Program) -> Iterator[Part]:
    """Yield the generated kernels of a program, each kernel of a launch alone."""
    for step in program.steps:
        if not isinstance(step.kernel, CudaKernel):
            continue
        division = kernel_parts(step.node, [view.strides for view in step.inputs])
        for part in division.parts if division else ():
            yield Part(*map_to_threads(part.kernel))


def resources(unit: str, arch: str) -> dict[str, tuple[str, str]]:
    """Return registers, with stack and spills, and shared memory of a unit's kernels, by name."""
    messages: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    verbose = mock.patch.object(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "--ptxas-options=-v"))
    nvrtc.log.setLevel(logging.INFO)
    nvrtc.log.addHandler(handler)
    with verbose:
        nvrtc.compile_program(unit, arch)
    kernels = {}
    for part in "\n".join(messages).split("Compiling entry function '")[1:]:
        numbers = {what: number for number, what in NUMBERS.findall(part)}
        registers = numbers["registers"]
        if stack := int(numbers["bytes stack frame"]):
            registers += f" + {stack} stack, {numbers['bytes spill loads']} spilled"
        kernels[part.partition("'")[0]] = registers, numbers.get("bytes smem", "0")
    return kernels


NUMBERS = re.compile("([0-9]+) (bytes stack frame|bytes spill loads|registers|bytes smem)")


def rows_of(program: Program, arch: str) -> list[list[str]]:
    """Return the rows of the table, by falling number of bytes, and the sum last."""
    sources: dict[KernelSource, list[Part]] = {}
    for part in parts_of(program):
        sources.setdefault(cuda_source(part.mapping), []).append(part)
    usage = resources(CompilationUnit(tuple(sources)).text(PRELUDE), arch)
    rows = []
    for source, parts in sources.items():
        moved, elements = sum(part.bytes for part in parts), sum(part.elements for part in parts)
        row = [parts[0].title, str(len(parts)), f"{moved / 1e6:,.1f}", f"{moved / elements:.2f}"]
        rows.append((moved, [*row, *usage[source.name]]))
    rows.sort(key=lambda row: -row[0])
    runs = sum(map(len, sources.values()))
    total = [f"all {len(rows)} texts", str(runs), f"{sum(row[0] for row in rows) / 1e6:,.1f}"]
    return [*(row for _, row in rows), [*total, "", "", ""]]


HEAD = ("kernel", "runs", "MB", "bytes", "registers", "shared")


def main() -> None:
    summary, _, details = __doc__.partition("\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=form)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--precision", choices=[*PRECISIONS], default="float32")
    parser.add_argument("--level", type=int, choices=range(4), default=3)
    parser.add_argument("--batch", type=int, help="default: that of `minigraph bench` on CUDA")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--processors", type=int, default=132, help="multiprocessors")
    parser.add_argument("--rows", type=int, default=20, help="kernels to show, the largest first")
    args = parser.parse_args()
    for name in args.networks or ["resnet50"]:
        step = case(name, args.batch, device="cuda")
        options = {"graph_opt_level": args.level, **PRECISIONS[args.precision].options}
        *rows, total = rows_of(program_of(step, options, args.processors), args.arch)
        versions = f"minigraph {mg.__version__}, NVRTC {nvrtc.nvrtc_version()}, {args.arch}"
        print(f"{step.title}, {args.precision}, level {args.level}; {versions}\n")
        table = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)], *rows[: args.rows], total]
        print("\n".join(f"| {' | '.join(row)} |" for row in table), end="\n\n")


if __name__ == "__main__":
    main()
