"""Which passes each level runs, and running them."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from minigraph.graph import Graph, Op, application, check_rewrite
from minigraph.ops.arithmetic import Multiply, Square
from minigraph.ops.batch_norm import BatchNorm, BatchNormBackward, BatchNormInference
from minigraph.ops.collective import AllReduce, Collective
from minigraph.ops.conv import Conv2d
from minigraph.ops.fma import Fma3, Fma4
from minigraph.ops.matmul import Matmul
from minigraph.passes.kernels.fma import contract_fma, fuse_fma
from minigraph.passes.kernels.fusion import decompose, fuse_elementwise, fuse_kernels
from minigraph.passes.kernels.horizontal_fusion import fuse_horizontally
from minigraph.passes.kernels.narrow_storage import narrow_storage
from minigraph.passes.layout.region import CONVOLUTIONS
from minigraph.passes.layout.selection import assign_layouts
from minigraph.passes.library.batch_norm import fuse_batch_norm
from minigraph.passes.library.convolution import fold_batch_norm, fuse_activation, fuse_bias
from minigraph.passes.library.mixed_precision import autocast
from minigraph.passes.notes import Notes, PassRecord
from minigraph.passes.overlap import compress_gradients, overlap_collectives
from minigraph.passes.rewrite.fast_math import apply_fast_math
from minigraph.passes.rewrite.loops import map_bodies
from minigraph.passes.rewrite.rule import has
from minigraph.passes.rewrite.simplification import share_common, simplify

Pass = Callable[[Graph, Notes], Graph]


class PassRow(NamedTuple):
    """A pass, and when it runs: at which level and above, at which values of graph_opt.jit.

    The pass takes a graph, notes, and perhaps parameters, which `pipeline` gives it by name.

    among      classes of ops; a graph that has none of them stays as it is
    fast_math  whether the option has to allow the pass
    off        the value of its parameter that stands for a graph without the pass
    """

    rewrite: Callable[..., Graph]
    level: int = 0
    among: tuple[type[Op], ...] = (Op,)
    jit: tuple[int, ...] = (0, 1, 2)
    fast_math: bool = False
    off: Any = None

    def bind(self, arguments: Mapping[str, Any]) -> Pass:
        """Return the pass with these arguments, for graphs and the bodies of loops."""

        @functools.wraps(self.rewrite)
        def run(graph: Graph, notes: Notes) -> Graph:
            graph = map_bodies(graph, lambda body: run(body, notes))
            return self.rewrite(graph, notes, **arguments) if has(graph, *self.among) else graph

        return run


# In the order in which they run.  Library fusion comes before FMA fusion, which takes its ops away.
# Composed ops are taken apart before FMA fusion, and after the choice of layouts, on which their
# parts depend.  An activation joins the op before it only if no generated kernel has taken it.
TABLE = (
    PassRow(autocast, off="off"),
    PassRow(compress_gradients, among=(AllReduce,), off="off"),
    PassRow(share_common, 1),
    PassRow(simplify, 1),
    PassRow(share_common, 1),
    PassRow(apply_fast_math, 1, fast_math=True),
    PassRow(share_common, 1, fast_math=True),
    PassRow(fuse_bias, 2, (Conv2d, Matmul)),
    PassRow(fold_batch_norm, 2, (BatchNormInference,)),
    PassRow(fuse_batch_norm, 2, (BatchNorm, BatchNormBackward)),
    PassRow(assign_layouts, 2, tuple(CONVOLUTIONS)),
    PassRow(decompose, jit=(2,)),
    PassRow(fuse_fma, 2, (Multiply, Square)),
    PassRow(contract_fma, among=(Fma3, Fma4), jit=(2,), fast_math=True),
    PassRow(fuse_elementwise, jit=(1,)),
    PassRow(fuse_kernels, jit=(2,)),
    PassRow(narrow_storage, jit=(1, 2), off="off"),
    PassRow(fuse_horizontally, jit=(1, 2)),
    PassRow(fuse_activation, 2),
    PassRow(overlap_collectives, 1, (Collective,)),
)


def pipeline(level: int, fast_math: bool = False, jit: int = 0, **parameters: Any) -> list[Pass]:
    """Return the passes for these settings, in order.

    parameters  of the passes, by name: options such as `amp`, and what the device says, such as
                `horizontal_fusion`.  A pass without a value for its parameter does not run
    """
    passes = []
    for row in TABLE:
        own = [*inspect.signature(row.rewrite).parameters][2:]
        arguments = {name: parameters.get(name, row.off) for name in own}
        allowed = level >= row.level and jit in row.jit and (fast_math or not row.fast_math)
        if allowed and row.off not in arguments.values():
            passes.append(row.bind(arguments))
    return passes


def optimize(graph: Graph, passes: Sequence[Pass]) -> list[tuple[Graph, PassRecord]]:
    """Return the graph, which has been checked, after each pass, and what the pass did."""
    stages: list[tuple[Graph, PassRecord]] = []
    applications = set(map(application, graph))  # all its nodes exist as long as `stages`
    for rewrite in passes:
        start = time.perf_counter()
        before, notes = len(graph.order), Notes()
        old, graph = graph, rewrite(graph, notes)
        if graph is not old:
            check_rewrite(rewrite.__name__, old, graph, applications)
        seconds = time.perf_counter() - start
        name = rewrite.__name__
        record = PassRecord(name, before, len(graph.order), seconds, dict(notes.fired), notes.stops)
        stages.append((graph, record))
    return stages
