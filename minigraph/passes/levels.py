"""The table of passes, the selection for a level, and running them."""

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
from minigraph.passes.rewrite.rule import has_op_of
from minigraph.passes.rewrite.simplification import share_common, simplify

Pass = Callable[[Graph, Notes], Graph]


class PassRow(NamedTuple):
    """A pass and the conditions under which it runs.

    rewrite    function of a graph, notes and parameters, which `pipeline` passes by name
    level      the lowest level that runs the pass
    among      classes of ops; the pass does not change a graph without these ops
    jit        values of graph_opt.jit that run the pass
    fast_math  whether only fast_math runs the pass
    off        the value of a parameter that turns the pass off
    """

    rewrite: Callable[..., Graph]
    level: int = 0
    among: tuple[type[Op], ...] = (Op,)
    jit: tuple[int, ...] = (0, 1, 2)
    fast_math: bool = False
    off: Any = None

    def bind(self, arguments: Mapping[str, Any]) -> Pass:
        """Return the pass with these arguments, for a graph and the bodies of its loops."""

        @functools.wraps(self.rewrite)
        def run(graph: Graph, notes: Notes) -> Graph:
            graph = map_bodies(graph, lambda body: run(body, notes))
            if not has_op_of(graph, *self.among):
                return graph
            return self.rewrite(graph, notes, **arguments)

        return run


# In the order of execution.  Library fusion precedes FMA fusion, which would replace the sums that
# library fusion needs.  Composed ops are decomposed before FMA fusion, but after the choice of
# layouts, on which the result depends.  An activation is fused into a library kernel only if it is
# in no generated kernel.
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

    parameters  parameters of passes by name: options such as `amp`, and properties of the device
                such as `horizontal_fusion`.  A pass with a missing parameter does not run
    """
    passes = []
    for row in TABLE:
        names = [*inspect.signature(row.rewrite).parameters][2:]
        arguments = {name: parameters.get(name, row.off) for name in names}
        is_enabled = level >= row.level and jit in row.jit and (fast_math or not row.fast_math)
        if is_enabled and row.off not in arguments.values():
            passes.append(row.bind(arguments))
    return passes


def optimize(graph: Graph, passes: Sequence[Pass]) -> list[tuple[Graph, PassRecord]]:
    """Run passes on a checked graph; return the graph and the record of each pass."""
    stages: list[tuple[Graph, PassRecord]] = []
    applications = set(map(application, graph))  # `stages` keeps the nodes alive
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
