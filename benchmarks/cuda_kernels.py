"""Print what the generated CUDA kernels of a training step cost, without a GPU.

    python benchmarks/cuda_kernels.py [resnet50 ...] [--precision bfloat16] [--level 3]
        [--batch 128] [--arch sm_90] [--processors 132] [--rows 20]

NVRTC compiles the kernels, `nvdisasm` of the optional wheel nvidia-cuda-nvdisasm takes them apart;
without it the table has no instructions.  Nothing is measured: layouts are those that
estimated times speak for, and the kernels that cuDNN would bring are left out.

A row is one generated kernel.  Kernels of one text share a row, the figures are then sums or those
of the largest; parts of a launch of several kernels stand alone.

    runs       how many kernels of the step have this text
    MB         bytes that they move: of each run over its loops a kernel reads and writes its
               operands once, as if no cache served the next run
    bytes      the same for each element of the kernel's iteration space
    registers  of a thread; stack bytes and spilling instructions, where there are any, after it
    shared     bytes of a block
    instr.     instructions that a thread issues for an element, where its loops have whole groups
    share      of the copy bandwidth to expect: with t the time of moving the bytes at COPIED bytes
               a second, and i the time in which SCHEDULERS warp schedulers of each multiprocessor
               issue the instructions, one each cycle, it is t / (t + i).  The two do overlap, so
               more is possible; waiting for memory and for other threads is not in it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sass

import minigraph as mg
from minigraph import options as settings
from minigraph.autotune.session import Session
from minigraph.bench.cases import NETWORKS, PRECISIONS, TrainingStep, case
from minigraph.bench.ours import LIBRARY, learning
from minigraph.compile.context import jit_level
from minigraph.devices.cuda import nvrtc
from minigraph.devices.cuda.candidates import CudaProblems
from minigraph.devices.cuda.cudnn_kernel import Exactness
from minigraph.devices.cuda.device import GATHERING
from minigraph.devices.cuda.kernel import CudaKernel, cuda_kernel
from minigraph.devices.factory import policy_of
from minigraph.devices.kernel_cache import CompilationUnit
from minigraph.devices.parts import kernel_parts
from minigraph.graph import Graph, Node, Shape
from minigraph.jit.cuda.prelude import PRELUDE
from minigraph.jit.cuda.text import text
from minigraph.jit.cuda.walk import Walk, walk
from minigraph.jit.loops import LoopNest
from minigraph.jit.source import KernelSource
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.rewrite.loops import merge_loops, unroll_loops
from minigraph.program import Kernel, Program
from minigraph.program.choices import Choices
from minigraph.program.lower import lower

# Of an H200.  No one has measured them here: a copy is taken to reach 85 % of 4.8 TB/s.
COPIED = 4.1e12  # bytes a second
CLOCK = 1.75e9  # cycles a second, under load
SCHEDULERS, LANES = 4, 32  # of a multiprocessor, and threads for which one issues at once


# ---------------------------------------------------------------- a program without a device


class Library(Kernel):
    """A kernel that cuDNN would bring."""

    maker = "cudnn"


class Unopened:
    """What lowering asks of a CUDA device, of which there is none."""

    device, block, channels_last, why_no_jit = "cuda:0", 1, True, ""

    def __init__(self, values: Mapping[str, Any], processors: int) -> None:
        exactness = Exactness(values["precision"] == "tf32", values["graph_opt.fast_math"])
        problems = CudaProblems(None, None, None, exactness)  # nothing is measured
        self.tunable = problems.tunable
        self.product = problems.product
        self.processors = processors

    def kernel(self, node: Node, strides: Sequence[Shape], choice: object = None) -> Kernel:
        if self.product(node) is not None:
            return Library()
        return cuda_kernel(node, strides, self.processors) or Kernel()


def program_of(step: TrainingStep, options: Mapping[str, Any], processors: int) -> Program:
    """Return the program of a training step as it is compiled for CUDA, but for what is tuned."""
    values = settings.resolve(options)
    shape = (step.images, *step.shape)
    x, labels = mg.input("x", shape), mg.input("labels", (step.images,), "int64")
    loss, updates = learning(step.network(LIBRARY), x, labels)
    graph = Graph((x, labels, SEED, STEP), (loss, *updates.values()))
    graph = unroll_loops(merge_loops(number_streams(graph)))
    backend = Unopened(values, processors)
    level = values["graph_opt_level"]
    passes = pipeline(
        level,
        values["graph_opt.fast_math"],
        jit_level(values, backend),
        values["amp"],
        Choices(backend, Session("off", policy_of(values), 0, {})) if level >= 2 else None,
        GATHERING,
    )
    stages = optimize(graph, passes)
    final = stages[-1][0] if stages else graph
    return lower(final, 1, list(updates), backend, lambda node, strides: None)


# ---------------------------------------------------------------- what its kernels move and issue


@dataclass(frozen=True)
class Part:
    """A generated kernel of the program."""

    walk: Walk
    layout: LoopNest

    @property
    def elements(self) -> int:
        return self.layout.count * self.layout.length

    def moved(self, stage: int) -> int:
        """Return the bytes that a thread moves for a group in a run over the loops."""
        size = self.walk.group
        return sum(
            dtype.itemsize * (size if access == "unit" else 1)
            for dtype, access in self._touched(stage)
            if access != "fixed"
        )

    def _touched(self, stage: int) -> Iterator[tuple[Any, str]]:
        pattern = self.walk.pattern
        for k in sorted({*pattern.loaded(pattern.run(stage)), *pattern.stored(stage)}):
            yield pattern.dtypes[k], pattern.accesses[k]

    @property
    def bytes(self) -> int:
        pattern, axes = self.walk.pattern, (*self.layout.units, *self.layout.loops)

        def size(k: int) -> int:
            return pattern.dtypes[k].itemsize * math.prod(n for n, s in axes if s[k])

        runs = [
            {*pattern.loaded(pattern.run(stage)), *pattern.stored(stage)}
            for stage in range(pattern.stages)
        ]
        once = set(range(self.walk.operands)).difference(*runs)
        return sum(size(k) for run in (*runs, once) for k in run)

    @property
    def title(self) -> str:
        made = [v.op.name for v in self.walk.pattern.values if v.op is not None]
        shown = " ".join(made[:6]) + (f" and {len(made) - 6} more" if len(made) > 6 else "")
        return f"{shown or 'copy'} ({self.walk.pattern.form})"

    def instructions(self, code: sass.MachineCode) -> float:
        """Return how many instructions a thread issues for an element, in all stages."""
        stages, group = self.walk.pattern.stages, self.walk.group
        least = min(map(self.moved, range(stages)))
        # Others are for single elements, or join what several blocks have.
        whole = [loop for loop in code.loops if loop.bytes >= least > 0]
        if not whole:
            return code.instructions / group
        each = -(-len(whole) // stages)
        total = 0.0
        for stage in range(stages):
            # A stage may have a loop for several groups at once, and one for those that are left.
            own = whole[stage * each : (stage + 1) * each] or whole[-1:]
            best = max(own, key=lambda loop: loop.bytes)
            total += best.instructions / max(1, round(best.bytes / self.moved(stage)))
        return total / group


def parts_of(program: Program) -> Iterator[Part]:
    """Yield the generated kernels of a program, also those that share a launch."""
    for step in program.steps:
        if not isinstance(step.kernel, CudaKernel):
            continue
        made = kernel_parts(step.node, [view.strides for view in step.inputs])
        for part in made.parts if made else ():
            yield Part(*walk(part.kernel))


@dataclass
class Row:
    """The kernels of one text."""

    parts: list[Part]
    code: sass.MachineCode = field(init=False)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts)

    @property
    def instructions(self) -> float:
        return self.parts[0].instructions(self.code) if self.code.instructions else math.nan

    def seconds(self, processors: int) -> tuple[float, float]:
        """Return the seconds to move the bytes, and those to issue the instructions."""
        rate = processors * SCHEDULERS * LANES * CLOCK
        return self.bytes / COPIED, self.instructions * self.elements / rate


def rows_of(program: Program, arch: str) -> list[Row]:
    """Return a row for each text, those that move the most first."""
    by_text: dict[Any, Row] = {}
    for part in parts_of(program):
        by_text.setdefault(text(part.walk), Row([])).parts.append(part)
    sources = {KernelSource(whole, support): row for (support, whole), row in by_text.items()}
    program_text = CompilationUnit(tuple(sources)).text(PRELUDE)
    codes = sass.machine_code(nvrtc.compile_program(program_text, arch), sass.nvdisasm())
    for source, row in sources.items():
        row.code = codes[source.name]
    return sorted(by_text.values(), key=lambda row: -row.bytes)


# ---------------------------------------------------------------- tables


HEAD = ("kernel", "runs", "MB", "bytes", "registers", "shared", "instr.", "share")


def cells(row: Row, processors: int) -> list[str]:
    """Return a row of the table."""
    code, (moving, issuing) = row.code, row.seconds(processors)
    stack = f" + {code.stack} stack, {code.spills} spilling" if code.stack or code.spills else ""
    return [
        row.parts[0].title,
        str(len(row.parts)),
        f"{row.bytes / 1e6:,.1f}",
        f"{row.bytes / row.elements:.2f}",
        f"{code.registers}{stack}",
        str(code.shared),
        _known(row.instructions, ".1f"),
        _known(moving / (moving + issuing), ".0%"),
    ]


def _known(value: float, form: str) -> str:
    return "?" if math.isnan(value) else format(value, form)


def table(rows: Sequence[Row], shown: int, processors: int) -> Iterator[str]:
    """Yield the lines of a Markdown table, the last of which sums all rows up."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"| --- | {' | '.join(['---:'] * (len(HEAD) - 1))} |"
    for row in rows[:shown]:
        yield f"| {' | '.join(cells(row, processors))} |"
    moving, issuing = (sum(t) for t in zip(*(r.seconds(processors) for r in rows), strict=True))
    bytes_, runs = sum(row.bytes for row in rows), sum(len(row.parts) for row in rows)
    share = _known(moving / (moving + issuing), ".0%")
    name = f"all {len(rows)} texts"
    yield f"| {' | '.join([name, str(runs), f'{bytes_ / 1e6:,.1f}', '', '', '', '', share])} |"


def main() -> None:
    about, _, rest = __doc__.partition("\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, epilog=rest, formatter_class=form)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--precision", choices=[*PRECISIONS], default="float32")
    parser.add_argument("--level", type=int, choices=range(4), default=3)
    parser.add_argument("--batch", type=int, help="default: as `minigraph bench` has it for CUDA")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--processors", type=int, default=132, help="multiprocessors")
    parser.add_argument("--rows", type=int, default=20, help="kernels to show, the largest first")
    asked = parser.parse_args()
    if sass.nvdisasm() is None:
        print(f"no instructions: pip install {sass.PACKAGE} brings nvdisasm", file=sys.stderr)
    for name in asked.networks or ["resnet50"]:
        step = case(name, asked.batch, device="cuda", precision=asked.precision)
        options = {"graph_opt_level": asked.level, **PRECISIONS[asked.precision].options}
        rows = rows_of(program_of(step, options, asked.processors), asked.arch)
        versions = f"minigraph {mg.__version__}, NVRTC {nvrtc.nvrtc_version()}, {asked.arch}"
        print(f"{step.title}, {asked.precision}, level {asked.level}; {versions}\n")
        print("\n".join(table(rows, asked.rows, asked.processors)), end="\n\n")


if __name__ == "__main__":
    main()
