"""Selection of memory layouts for the images of the whole network, from measured times.

Each region (see `region.py`) has one layout.  A convolution may use other layouts than those of its
regions, with `Reorder` in between.  The selection minimises the total time of convolutions and
reorders: the forward and both backward convolutions share images, so the best layout for one of
them may slow down the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from minigraph.graph import Array, Graph, Item, Node, Shape, Spec, input
from minigraph.ops.conv import Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, image_layout, packed
from minigraph.ops.reduction import Reduction
from minigraph.ops.shape import BroadcastTo, reshape
from minigraph.ops.slicing import Slice
from minigraph.passes.layout.pbqp import minimise, total_cost
from minigraph.passes.layout.region import CONVOLUTIONS, NORMALISATIONS, POOLINGS, Regions
from minigraph.passes.notes import Notes

MIN_GAIN_RATIO = 0.98  # another layout must be at least 2 % faster, reorders included
NUMPY_REORDER = 10.0  # time of a reorder in NumPy, relative to a library's

F32 = np.dtype(np.float32)


# Measured or estimated seconds of convolutions and reorders, each by the lanes of its two images;
# empty if neither is known.  The images of a convolution are those of `images_of`; the images of a
# reorder are its input and result, for all lanes, not only those of the node.
Costs = Callable[[Sequence[Node]], list[Mapping[tuple[int, int], float]]]


def assign_layouts(graph: Graph, notes: Notes, costs: Costs, blocks: Sequence[int]) -> Graph:
    """Return the graph with its images in the layouts with the shortest total time.

    blocks  lanes of the blocked layouts, the most first
    """
    convolutions = [node for node in graph if type(node.op) in CONVOLUTIONS]
    if not convolutions:
        return graph
    regions = Regions(graph, blocks)
    lanes, pairs = _Selection(regions, convolutions, costs).best()
    if {1}.issuperset(lanes) and all(pair == (1, 1) for pair in pairs.values()):
        return graph
    rewrite = _LayoutRewrite(regions, lanes, pairs, notes)
    new = graph.map(rewrite.node)
    outputs = zip(graph.outputs, new.outputs, strict=True)
    return Graph(graph.inputs, tuple(rewrite.image(old, y, 1) for old, y in outputs))


def images_of(node: Node) -> tuple[Node, Node]:
    """Return the two images of a convolution: dy and x for the weights' gradient, else x and y."""
    if isinstance(node.op, Conv2dBackwardWeights):
        return node.inputs[0], node.inputs[1]
    return node.inputs[0], node


class _Selection:
    """The possible layouts of regions and convolutions, and their costs.

    lanes  possible lanes of each region, and last of images outside of all regions
    """

    def __init__(self, regions: Regions, convolutions: Sequence[Node], costs: Costs) -> None:
        self.regions = regions
        self.convolutions = convolutions
        self.lanes = [*map(regions.lanes, regions.all), [1]]
        self.times = dict(zip(convolutions, costs(convolutions), strict=True))
        crossing = [x for r in regions.all for x in (*r.incoming, *r.outgoing)]
        images = [*(x for node in convolutions for x in images_of(node)), *crossing]
        all_specs = {x.spec for x in images} | {Spec(x.shape, F32) for x in images}
        specs = sorted(all_specs, key=str)
        reorders = [Reorder(1)(input("x", spec.shape, spec.dtype)) for spec in specs]
        self.reorders = dict(zip(specs, costs(reorders), strict=True))

    def best(self) -> tuple[list[int], dict[Node, tuple[int, int]]]:
        """Return the lanes of each region, and those of the images of each convolution."""
        outside = len(self.regions.all)
        single = [self._border_cost(r) for r in range(outside)]
        pairs: dict[tuple[int, int], Array] = {}
        for node in self.convolutions:
            first, second = map(self._region, images_of(node))
            table = np.array(
                [[self._fastest_lanes(node, a, b)[0] for b in self.lanes[second]]
                 for a in self.lanes[first]]
            )  # fmt: skip
            low, high = sorted((first, second))
            if low == outside:
                continue
            if low == high:
                single[low] = single[low] + table.diagonal()
            elif high == outside:
                single[low] = single[low] + table.reshape(-1)
            else:
                pairs[low, high] = pairs.get((low, high), 0) + (table if low == first else table.T)
        options, total = minimise(single, pairs)
        no_reorders = [0] * len(options)
        if total > MIN_GAIN_RATIO * total_cost(no_reorders, single, pairs):
            options = no_reorders
        lanes = [n[option] for n, option in zip(self.lanes, [*options, 0], strict=True)]
        lanes_by_node = {
            node: self._fastest_lanes(node, *(lanes[self._region(x)] for x in images_of(node)))[1]
            for node in self.convolutions
        }
        return lanes[:-1], lanes_by_node

    def _region(self, image: Node) -> int:
        return self.regions.of(image) if image in self.regions else len(self.regions.all)

    def _border_cost(self, number: int) -> Array:
        """Return the time of reorders at the border of a region for each of its layouts."""
        region = self.regions.all[number]
        into = [x for x in region.incoming if not isinstance(x.op, BroadcastTo)]
        return np.array(
            [
                sum(self._reorder_cost(x, 1, lanes) for x in into)
                + sum(self._reorder_cost(x, lanes, 1) for x in region.outgoing)
                for lanes in self.lanes[number]
            ],
            float,
        )

    def _reorder_cost(self, image: Node, source: int, target: int) -> float:
        if source == target:
            return 0.0
        seconds = self.reorders[image.spec].get((source, target))
        if seconds is not None:
            return seconds
        # NumPy reorders dtypes that the library does not support, if it supports float32.
        return NUMPY_REORDER * self.reorders[Spec(image.shape, F32)].get((source, target), np.inf)

    def _fastest_lanes(self, node: Node, a: int, b: int) -> tuple[float, tuple[int, int]]:
        """Return the shortest time of a convolution between images with lanes a and b.

        Also return the lanes with which the convolution itself takes this time.
        """
        first, second = images_of(node)
        is_result = second is node
        times = {}
        for (p, q), seconds in (self.times[node] or {(1, 1): 0.0}).items():
            source, target = (q, b) if is_result else (b, q)
            reorders = self._reorder_cost(first, a, p) + self._reorder_cost(second, source, target)
            times[p, q] = seconds + reorders
        best = min(times, key=times.__getitem__)
        if (a, b) in times and times[best] > MIN_GAIN_RATIO * times[a, b]:
            best = (a, b)
        return times[best], best


@dataclass(eq=False)
class _LayoutRewrite:
    """The rewrite of nodes: an image of a region with l lanes becomes [n, c / l, h, w, l]."""

    regions: Regions
    lanes: Sequence[int]
    pairs: Mapping[Node, tuple[int, int]]
    notes: Notes
    reordered: dict[tuple[Node, int], Node] = field(default_factory=dict)  # by new image and lanes

    def image(self, x: Node, new: Node, lanes: int) -> Node:
        """Return `new`, the replacement of the image `x`, reordered to these lanes."""
        shape = packed(x.shape, lanes)
        if new.shape == shape:
            return new
        if (new, lanes) not in self.reordered:
            if isinstance(new.op, BroadcastTo) and new.shape == x.shape:
                operand = _broadcast_operand(new.inputs[0], lanes)
                self.reordered[new, lanes] = BroadcastTo(shape)(operand)
            else:
                self.reordered[new, lanes] = Reorder(lanes)(new)
                self.notes.fired["reorder"] += 1
        return self.reordered[new, lanes]

    def node(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node in self.pairs:
            return self._convolution(node, inputs)
        if isinstance(node.op, Item):
            (bundle,) = inputs
            if bundle.specs == node.inputs[0].specs:
                return node.replace(inputs)
            y = node.op(bundle)
            return y if y.ndim == 5 else reshape(y, node.shape)  # a vector in blocks
        if isinstance(node.op, Reduction) and node.ndim == 4 and node.op.combine:
            lanes = self._lanes_of(node.inputs[0])
            if lanes > 1:
                return self._reduction(node.op, self.image(node.inputs[0], inputs[0], lanes))
        return self._rewrite_other(node, inputs)

    def _lanes_of(self, x: Node) -> int:
        return self.lanes[self.regions.of(x)] if x in self.regions else 1

    def _images(
        self, node: Node, inputs: tuple[Node, ...], lanes: Iterable[int] = itertools.repeat(1)
    ) -> tuple[Node, ...]:
        """Return the new inputs of a node, each with its lanes."""
        return tuple(map(self.image, node.inputs, inputs, lanes))

    def _convolution(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        first, second = self.pairs[node]
        is_weights_gradient = isinstance(node.op, Conv2dBackwardWeights)
        lanes_in = (first, second) if is_weights_gradient else (first, *(1 for _ in inputs[1:]))
        result_lanes = 1 if is_weights_gradient else second
        xs = self._images(node, inputs, lanes_in)
        if (first, second) == (1, 1):
            new = node.replace(xs)
        else:
            new = LaidOut(node.op, lanes_in, (result_lanes,))(*xs)
            images = zip(self.pairs[node], images_of(node), strict=True)
            names = sorted({image_layout(lanes, x.shape[1]).name for lanes, x in images})
            self.notes.fired[f"{node.name} in {' and '.join(names)}"] += 1
        lanes = self._lanes_of(node)
        if lanes == result_lanes:
            return new
        self.notes.fired["reorder"] += 1
        reordered = Reorder(lanes)(new)
        self.reordered[reordered, result_lanes] = new
        return reordered

    def _reduction(self, op: Reduction, x: Node) -> Node:
        """Reduce an image with lanes: the axis of channels is the axes of blocks and lanes."""
        axes = (*op.axes, 4) if 1 in op.axes else op.axes
        y = replace(op, axes=axes)(x)
        n, c, h, w, lanes = y.shape
        return reshape(y, (n, c * lanes, h, w)) if lanes == 1 or h == w == 1 else Reorder(1)(y)

    def _rewrite_other(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        same_layout = self.regions.same_layout_inputs(node)
        lanes = next((self._lanes_of(x) for x in same_layout if x in self.regions), 1)
        if lanes == 1:
            return node.replace(self._images(node, inputs))
        images = set(same_layout)
        xs = self._images(node, inputs, [lanes if x in images else 1 for x in node.inputs])
        op = node.op
        if type(op) in POOLINGS:
            op = LaidOut(op, (lanes,) * len(xs), (lanes,) * len(node.specs))
        elif type(op) in NORMALISATIONS:
            blocks = (node.inputs[0].shape[1] // lanes, lanes)
            xs = tuple(x if x.ndim == 5 else reshape(x, blocks) for x in xs)
        elif isinstance(op, Slice):
            op = _channel_slice(op, lanes, xs[0].shape)
        else:
            xs = tuple(x if x.ndim == 5 else _broadcast_operand(x, lanes) for x in xs)
        y, *_ = op.results(*xs)
        return y.inputs[0] if node.is_bundle else y


def _channel_slice(op: Slice, lanes: int, x: Shape) -> Slice:
    """Return the slice of channels `op` for images of shape x with these lanes."""
    start, stop = [0] * 5, [*x]
    start[1], stop[1] = op.start[1] // lanes, op.stop[1] // lanes
    return Slice(tuple(start), tuple(stop), (1,) * 5)


def _broadcast_operand(x: Node, lanes: int) -> Node:
    """Return `x`, which broadcasts to nchw images, in a shape that broadcasts to these lanes."""
    if x.ndim == 0:
        return x
    x = reshape(x, (*itertools.repeat(1, 4 - x.ndim), *x.shape))
    n, c, h, w = x.shape
    if c == 1:
        return reshape(x, (n, 1, h, w, 1))
    if h == w == 1:
        return reshape(x, (n, c // lanes, 1, 1, lanes))
    return Reorder(lanes)(x)
