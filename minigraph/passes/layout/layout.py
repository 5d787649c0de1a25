"""Memory layouts of images, chosen over the whole network from measured times.

Each region (see `region.py`) has one layout; a convolution takes whichever layouts are fastest for
it together with the reorders that its neighbours then need.  The sum of all that is minimised at
once: forward and both backward convolutions share tensors, so what is best for one may be worst for
all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from minigraph.graph import Array, Graph, Item, Node, Shape, Spec, in_place_of, input
from minigraph.ops.conv import Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, layout_name, packed
from minigraph.ops.reduction import Reduction
from minigraph.ops.shape import BroadcastTo, reshape
from minigraph.passes.layout.assignment import cost, minimise
from minigraph.passes.layout.region import CONVOLUTIONS, NORMALISATIONS, POOLINGS, Regions
from minigraph.passes.notes import Notes

CLEARLY = 0.98  # of the time without reorders that it may take with them to be worth it

NUMPY = 10.0  # times as long as a library NumPy takes to reorder

F32 = np.dtype(np.float32)
Lanes = tuple[int, ...]


class Costs(Protocol):
    """Measured times in seconds."""

    @property
    def block(self) -> int:
        """The lanes of the blocked layout; 1 where there is none."""

    @property
    def channels_last(self) -> bool:
        """Whether normalisations are fast with the channels last."""

    def measure(self, nodes: Sequence[Node]) -> None:
        """Find the times of convolutions and reorders."""

    def seconds(self, node: Node) -> Mapping[tuple[int, int], float]:
        """Return the times of a node by the lanes of its two images; empty if nothing is known.

        The images of a convolution are those of `images_of`, those of a reorder what it reads and
        what it writes, whichever lanes the node itself has.
        """


def lay_out(graph: Graph, notes: Notes, costs: Costs) -> Graph:
    """Return the graph with its images in the layouts in which it takes the least time."""
    convolutions = [node for node in graph if type(node.op) in CONVOLUTIONS]
    if not convolutions:
        return graph
    regions = Regions(graph)
    choices = _Choices(regions, convolutions, costs)
    options, pairs = choices.best()
    if not any(options) and all(pair == (1, 1) for pair in pairs.values()):
        return graph
    lanes = [choices.lanes[r][option] for r, option in enumerate(options)]
    rewrite = _Rewrite(regions, lanes, pairs, notes)
    for node in graph:
        with in_place_of(node):
            rewrite.node(node)
    return Graph(graph.inputs, tuple(rewrite.plain(y) for y in graph.outputs))


def images_of(node: Node) -> tuple[Node, Node]:
    """Return the two images of a convolution: dy and x of the weights' gradient, else x and y."""
    if isinstance(node.op, Conv2dBackwardWeights):
        return node.inputs[0], node.inputs[1]
    return node.inputs[0], node


class _Choices:
    """What there is to choose, and what it costs."""

    def __init__(self, regions: Regions, convolutions: Sequence[Node], costs: Costs) -> None:
        self.regions = regions
        self.convolutions = convolutions
        self.lanes = [r.lanes(costs.block, costs.channels_last) for r in regions.all]
        costs.measure(convolutions)
        self.times = {node: costs.seconds(node) for node in convolutions}
        crossing = [x for r in regions.all for x in (*r.arriving, *r.leaving)]
        images = [*(x for node in convolutions for x in images_of(node)), *crossing]
        specs = {x.spec for x in images} | {Spec(x.shape, F32) for x in images}
        moved = {spec: Reorder(1)(input("x", spec.shape, spec.dtype)) for spec in specs}
        if any(self.times.values()):
            costs.measure([moved[spec] for spec in sorted(specs, key=str)])
        self.reorders = {spec: costs.seconds(node) for spec, node in moved.items()}

    def best(self) -> tuple[list[int], dict[Node, tuple[int, int]]]:
        """Return an option for each region, and the lanes of the images of each convolution."""
        single = [self._crossing(r) for r in range(len(self.lanes))]
        pairs: dict[tuple[int, int], Array] = {}
        for node in self.convolutions:
            first, second = (self._region(x) for x in images_of(node))
            table = np.array(
                [[self._fastest(node, a, b)[0] for b in self._options(second)]
                 for a in self._options(first)]
            )  # fmt: skip
            if first == second and first is not None:
                single[first] = single[first] + table.diagonal()
            elif first is None or second is None:
                region = second if first is None else first
                if region is not None:
                    single[region] = single[region] + table.reshape(-1)
            elif first < second:
                pairs[first, second] = pairs.get((first, second), 0) + table
            else:
                pairs[second, first] = pairs.get((second, first), 0) + table.T
        options, total = minimise(single, pairs)
        plain = [0] * len(options)
        if total > CLEARLY * cost(plain, single, pairs):
            options = plain
        chosen = {}
        for node in self.convolutions:
            regions = (self._region(x) for x in images_of(node))
            a, b = (1 if r is None else self.lanes[r][options[r]] for r in regions)
            chosen[node] = self._fastest(node, a, b)[1]
        return options, chosen

    def _region(self, image: Node) -> int | None:
        return self.regions.of(image) if image in self.regions else None

    def _options(self, region: int | None) -> list[int]:
        return [1] if region is None else self.lanes[region]

    def _crossing(self, number: int) -> Array:
        """The cost of what crosses the border of a region, for each of its layouts."""
        region = self.regions.all[number]
        into = [x for x in region.arriving if not isinstance(x.op, BroadcastTo)]
        return np.array(
            [
                sum(self._moved(x, 1, lanes) for x in into)
                + sum(self._moved(x, lanes, 1) for x in region.leaving)
                for lanes in self.lanes[number]
            ],
            float,
        )

    def _moved(self, image: Node, source: int, target: int) -> float:
        if source == target:
            return 0.0
        own = self.reorders[image.spec].get((source, target))
        if own is not None:
            return own
        # What the library has no type for NumPy moves; what was not measured at all is not done.
        return NUMPY * self.reorders[Spec(image.shape, F32)].get((source, target), np.inf)

    def _fastest(self, node: Node, a: int, b: int) -> tuple[float, tuple[int, int]]:
        """The time of a convolution between images with these lanes, and the lanes it works in."""
        first, second = images_of(node)
        written = second is node
        ways = {}
        for (p, q), seconds in (self.times[node] or {(1, 1): 0.0}).items():
            there = self._moved(first, a, p)
            there += self._moved(second, q, b) if written else self._moved(second, b, q)
            ways[p, q] = seconds + there
        best = min(ways, key=ways.__getitem__)
        as_it_is = ways.get((a, b))
        if as_it_is is not None and ways[best] > CLEARLY * as_it_is:
            best = (a, b)
        return ways[best], best


class _Rewrite:
    """The new node for each old one, and images in other layouts as they are asked for."""

    def __init__(
        self,
        regions: Regions,
        lanes: Sequence[int],
        pairs: Mapping[Node, tuple[int, int]],
        notes: Notes,
    ) -> None:
        self.regions = regions
        self.lanes = lanes
        self.pairs = pairs
        self.notes = notes
        self.made: dict[tuple[Node, int], Node] = {}  # by old node and lanes
        self.bundles: dict[Node, tuple[Node, ...]] = {}  # results of those that were laid out

    def plain(self, x: Node) -> Node:
        """Return the new node of `x`, an image in nchw."""
        return self.image(x, 1)

    def image(self, x: Node, lanes: int) -> Node:
        """Return the new node of an image with these lanes."""
        found = self.made.get((x, lanes))
        if found is None:
            own = self._own(x)
            source = self.made[x, own]
            if own == 1 and isinstance(source.op, BroadcastTo):
                small = self._small(source.inputs[0], x.shape, lanes)
                found = BroadcastTo(packed(x.shape, lanes))(small)
            else:
                found = Reorder(lanes)(source)
                self.notes.fired["reorder"] += 1
            self.made[x, lanes] = found
        return found

    def _own(self, x: Node) -> int:
        """The lanes in which an image is made."""
        return self.lanes[self.regions.of(x)] if x in self.regions else 1

    def node(self, node: Node) -> None:
        """Make the new node for an old one."""
        lanes = self._own(node)
        if node in self.pairs:
            new = self._convolution(node)
        elif isinstance(node.op, Item):
            new = self._item(node)
        elif node.is_bundle or node.ndim != 4 or not isinstance(node.op, Reduction):
            new = self._other(node)
        else:
            new = self._reduction(node)
        self.made[node, lanes] = new

    def _convolution(self, node: Node) -> Node:
        first, second = self.pairs[node]
        if (first, second) == (1, 1):
            new = node.replace(tuple(map(self.plain, node.inputs)))
        else:
            x, *others = node.inputs
            ones = (1,) * len(others)
            if isinstance(node.op, Conv2dBackwardWeights):
                op = LaidOut(node.op, (first, second), (1,))
                new = op(self.image(x, first), self.image(others[0], second))
            else:
                op = LaidOut(node.op, (first, *ones), (second,))
                new = op(self.image(x, first), *map(self.plain, others))
            channels = [image.shape[1] for image in images_of(node)]
            names = {layout_name(n, c) for n, c in zip((first, second), channels, strict=True)}
            self.notes.fired[f"{node.name} in {' and '.join(sorted(names))}"] += 1
        own = self._own(node)
        if not isinstance(node.op, Conv2dBackwardWeights) and own != second:
            self.made[node, second] = new
            self.notes.fired["reorder"] += 1
            return Reorder(own)(new)
        return new

    def _item(self, node: Node) -> Node:
        (bundle,) = node.inputs
        results = self.bundles.get(bundle)
        if results is None:
            return node.replace((self.plain(bundle),))
        return results[node.op.index]  # type: ignore[attr-defined]

    def _reduction(self, node: Node) -> Node:
        """A reduction of an image: along the channels means along their blocks and lanes."""
        (x,) = node.inputs
        lanes = self._own(x)
        if lanes == 1 or not node.op.combine:  # type: ignore[attr-defined]
            return node.replace((self.plain(x),))
        axes: Lanes = node.op.axes  # type: ignore[attr-defined]
        axes = (*axes, 4) if 1 in axes else axes
        y = replace(node.op, axes=axes)(self.image(x, lanes))  # type: ignore[type-var]
        return reshape(y, node.shape) if 1 in axes or y.shape[2:4] == (1, 1) else Reorder(1)(y)

    def _other(self, node: Node) -> Node:
        tied = self.regions.tied(node)
        inside = [x for x in tied if x in self.regions]
        lanes = self._own(inside[0]) if inside else 1
        if lanes == 1:
            return node.replace(tuple(map(self.plain, node.inputs))) if node.inputs else node
        images = set(tied)
        kind = type(node.op)
        xs = [self.image(x, lanes) if x in images else self.plain(x) for x in node.inputs]
        if kind in POOLINGS:
            op = LaidOut(node.op, (lanes,) * len(xs), (lanes,) * len(node.specs))
            return self._results(node, op.results(*xs))
        if kind in NORMALISATIONS:
            blocks = (node.inputs[0].shape[1] // lanes, lanes)
            xs = [x if x.ndim == 5 else reshape(x, blocks) for x in xs]
            results = node.op.results(*xs)
            return self._results(
                node, [y if y.ndim == 5 else reshape(y, (y.size,)) for y in results]
            )
        xs = [x if x.ndim == 5 else self._small(x, node.shape, lanes) for x in xs]
        return node.op(*xs)

    def _results(self, node: Node, results: Sequence[Node]) -> Node:
        if not node.is_bundle:
            return results[0]
        self.bundles[node] = tuple(results)
        return node  # nothing reads it: its items do not

    def _small(self, x: Node, shape: Shape, lanes: int) -> Node:
        """Return what broadcasts against images as it does against them with these lanes."""
        if x.ndim == 0:
            return x
        x = reshape(x, (*itertools.repeat(1, 4 - x.ndim), *x.shape))
        n, c, h, w = x.shape
        if c == 1:
            return reshape(x, (n, 1, h, w, 1))
        if h == w == 1:
            return reshape(x, (n, c // lanes, 1, 1, lanes))
        return Reorder(lanes)(x)
