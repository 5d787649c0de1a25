"""Which passes each level runs, and running them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minigraph.graph import Graph, Op, application, check_rewrite
from minigraph.ops.arithmetic import Multiply, Square
from minigraph.ops.batch_norm import BatchNorm, BatchNormBackward, BatchNormInference
from minigraph.ops.collective import AllReduce, Collective
from minigraph.ops.conv import Conv2d
from minigraph.ops.fma import Fma3, Fma4
from minigraph.ops.matmul import Matmul
from minigraph.ops.softmax import LogSoftmax
from minigraph.passes.kernels.decomposition import take_apart
from minigraph.passes.kernels.fma import contract_fma, fuse_fma
from minigraph.passes.kernels.fusion import fuse_elementwise, fuse_kernels
from minigraph.passes.kernels.gathering import Gathering, gather_updates
from minigraph.passes.kernels.products import Products, fuse_products
from minigraph.passes.kernels.saved_activations import save_small
from minigraph.passes.kernels.small_storage import store_small
from minigraph.passes.layout.region import CONVOLUTIONS
from minigraph.passes.layout.selection import Costs, lay_out
from minigraph.passes.library.batch_norm import fuse_batch_norm
from minigraph.passes.library.convolution import fold_batch_norm, fuse_activation, fuse_bias
from minigraph.passes.library.cross_entropy import fuse_cross_entropy
from minigraph.passes.library.mixed_precision import compute_small
from minigraph.passes.notes import Notes, PassRecord
from minigraph.passes.overlap import Travel, compress_gradients, overlap_collectives
from minigraph.passes.rewrite.common_subexpressions import share_common
from minigraph.passes.rewrite.facts import has
from minigraph.passes.rewrite.fast_math import relax
from minigraph.passes.rewrite.loops import map_bodies
from minigraph.passes.rewrite.simplification import simplify

Pass = Callable[[Graph, Notes], Graph]


class Row(NamedTuple):
    """A pass, and when it runs: at which level and above, at which values of graph_opt.jit.

    among  classes of ops; a graph that has none of them stays as it is
    """

    rewrite: Callable[..., Graph]
    level: int = 0
    among: tuple[type[Op], ...] = (Op,)
    jit: tuple[int, ...] = (0, 1, 2)
    fast_math: bool = False  # whether the option has to allow it
    needs: str = ""  # an argument of `pipeline` without which it does not run

    def given(self, value: Any) -> Pass:
        """Return the pass with the argument that it needs, for graphs and the bodies of loops."""
        needed = {self.needs: value} if self.needs else {}

        @functools.wraps(self.rewrite)
        def run(graph: Graph, notes: Notes) -> Graph:
            graph = map_bodies(graph, lambda body: run(body, notes))
            return self.rewrite(graph, notes, **needed) if has(graph, *self.among) else graph

        return run


# In the order in which they run.  Library fusion comes before FMA fusion, which takes its ops away.
# Composed ops are taken apart before FMA fusion, and after the choice of layouts, on which their
# parts depend.  An activation joins the op before it only if no generated kernel has taken it.
TABLE = (
    Row(compute_small, needs="amp"),
    Row(compress_gradients, 0, (AllReduce,), needs="travel"),
    Row(share_common, 1),
    Row(simplify, 1),
    Row(share_common, 1),
    Row(relax, 1, fast_math=True),
    Row(share_common, 1, fast_math=True),
    Row(fuse_bias, 2, (Conv2d, Matmul)),
    Row(fold_batch_norm, 2, (BatchNormInference,)),
    Row(fuse_batch_norm, 2, (BatchNorm, BatchNormBackward)),
    Row(fuse_cross_entropy, 2, (LogSoftmax,)),
    Row(lay_out, 2, tuple(CONVOLUTIONS), needs="costs"),
    Row(take_apart, jit=(2,)),
    Row(fuse_fma, 2, (Multiply, Square)),
    Row(contract_fma, among=(Fma3, Fma4), jit=(2,), fast_math=True),
    Row(fuse_elementwise, jit=(1,)),
    Row(fuse_kernels, jit=(2,)),
    Row(store_small, jit=(1, 2), needs="amp"),
    Row(gather_updates, jit=(1, 2), needs="limits"),
    Row(fuse_products, among=(Matmul,), jit=(2,), needs="products"),
    Row(fuse_activation, 2),
    Row(save_small, jit=(1, 2), needs="saved"),
    Row(overlap_collectives, 1, (Collective,), needs="travel"),
)


def pipeline(
    level: int,
    fast_math: bool,
    jit: int = 0,
    amp: str = "off",
    costs: Costs | None = None,
    limits: Gathering | None = None,
    travel: Travel | None = None,
    products: Products | None = None,
    saved: str = "float32",
) -> list[Pass]:
    """Return the passes for these settings, in order.

    amp       the small type of `compute_small`, or "off"
    costs     measured or estimated times, without which no layouts are chosen
    limits    the sizes of updates that run together; without them each has a launch of its own
    travel    how gradients travel between processes; without it nothing runs beside a collective
    products  which products their readers compute; without it libraries compute all of them
    saved     the type in which activations wait for the backward pass
    """
    small = None if amp == "off" else amp
    rounded = None if saved == "float32" else saved
    given: dict[str, Any] = {"amp": small, "costs": costs, "limits": limits, "": True}
    given |= {"travel": travel, "products": products, "saved": rounded}
    rows = [
        row
        for row in TABLE
        if level >= row.level
        and jit in row.jit
        and (fast_math or not row.fast_math)
        and given[row.needs]
    ]
    return [row.given(given[row.needs]) for row in rows]


def optimize(graph: Graph, passes: Sequence[Pass]) -> list[tuple[Graph, PassRecord]]:
    """Return the graph, which has been checked, after each pass, and what the pass did."""
    stages: list[tuple[Graph, PassRecord]] = []
    known = set(map(application, graph))  # all its nodes exist as long as `stages`
    for rewrite in passes:
        start = time.perf_counter()
        before, notes = len(graph.order), Notes()
        old, graph = graph, rewrite(graph, notes)
        if graph is not old:
            check_rewrite(rewrite.__name__, old, graph, known)
        seconds = time.perf_counter() - start
        for _, record in stages if notes.joined else ():
            record.stops[:] = [stop for stop in record.stops if stop.turns[0] not in notes.joined]
        name = rewrite.__name__
        record = PassRecord(name, before, len(graph.order), seconds, dict(notes.fired), notes.stops)
        stages.append((graph, record))
    return stages
