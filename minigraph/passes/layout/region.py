"""Regions: sets of images with the same layout.

A convolution may read one layout and write another.  Elementwise ops, normalisations, poolings, and
concatenations and slices of channels may not, so the images that they read and write belong to one
region.  Convolutions separate regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minigraph.graph import Graph, Item, Node, Op
from minigraph.jit.expression import takes_index
from minigraph.ops.batch_norm import (
    BatchNorm,
    BatchNormBackward,
    BatchNormInference,
    BatchNormRelu,
    BatchNormReluBackward,
)
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.joining import Concat
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward, MaxPool2d, MaxPool2dBackward
from minigraph.ops.reduction import Reduction
from minigraph.ops.slicing import Slice

# The indices of an op's inputs that are images.
CONVOLUTIONS: dict[type[Op], tuple[int, ...]] = {
    Conv2d: (0,),
    Conv2dBackwardData: (0,),
    Conv2dBackwardWeights: (0, 1),
}
NORMALISATIONS: dict[type[Op], tuple[int, ...]] = {
    BatchNorm: (0,),
    BatchNormBackward: (0, 1),
    BatchNormInference: (0,),
    BatchNormRelu: (0, 3),
    BatchNormReluBackward: (0, 1, 2),
}
POOLINGS: dict[type[Op], tuple[int, ...]] = {
    AvgPool2d: (0,),
    AvgPool2dBackward: (0,),
    MaxPool2d: (0,),
    MaxPool2dBackward: (0, 1),
}
SAME_LAYOUT_OPS = {**NORMALISATIONS, **POOLINGS}


def channel_bounds(node: Node) -> list[int]:
    """Return the channels at which a concatenation or slice of only channels divides its images.

    Empty for other nodes.
    """
    match node.op:
        case Concat(axis=1):
            return [x.shape[1] for x in node.inputs]
        case Slice(start=(_, first, _, _), step=(1, 1, 1, 1)):
            (x,) = node.inputs
            whole = x.shape[:1] + x.shape[2:] == node.shape[:1] + node.shape[2:]
            return [first, x.shape[1], node.shape[1]] if whole else []
    return []


@dataclass
class Region:
    """A set of images with the same layout.

    channels  numbers of channels of its images, and channels at which these are divided
    incoming  images outside of the region that ops of the region read
    outgoing  images of the region that ops outside of it read
    """

    channels: set[int] = field(default_factory=set)
    incoming: dict[Node, None] = field(default_factory=dict)
    outgoing: dict[Node, None] = field(default_factory=dict)

    def fits(self, block: int) -> bool:
        """Whether blocks of so many channels divide all its images."""
        return not any(c % block for c in self.channels)


class Regions:
    """The regions of a graph.

    blocks  lanes of the blocked layouts, the most first
    """

    def __init__(self, graph: Graph, blocks: Sequence[int]) -> None:
        self._blocks = blocks
        self._parent: dict[Node, Node] = {}
        for node in graph:
            self._join(node)
        self.all: list[Region] = []
        self._number: dict[Node, int] = {}
        for value in self._parent:
            root = self._root(value)
            if root not in self._number:
                self._number[root] = len(self.all)
                self.all.append(Region())
            self.all[self._number[root]].channels.add(value.shape[1])
        for node in graph:
            self._connect(node)
        for y in graph.outputs:
            if y in self._parent:
                self.all[self.of(y)].outgoing[y] = None
        # A smaller block serves only networks with an image that the larger ones do not divide.
        largest = {next(filter(region.fits, blocks), 0) for region in self.all}
        self._used_blocks = [block for block in blocks if block in largest]

    def __contains__(self, node: Node) -> bool:
        return node in self._parent

    def of(self, image: Node) -> int:
        """Return the number of an image's region."""
        return self._number[self._root(image)]

    def lanes(self, region: Region) -> list[int]:
        """Return the lanes that the images of a region may have: first 1, which is nchw."""
        lanes = dict.fromkeys([1, *filter(region.fits, self._used_blocks)])
        if len(region.channels) == 1:
            lanes |= dict.fromkeys(region.channels)
        return [*lanes]

    def same_layout_inputs(self, node: Node) -> list[Node]:
        """Return the inputs whose layout the results must have; [] if none is in a region."""
        if type(node.op) in SAME_LAYOUT_OPS:
            xs = [x for i, x in enumerate(node.inputs) if i in SAME_LAYOUT_OPS[type(node.op)]]
        elif node.is_bundle or node.ndim != 4:
            return []
        elif isinstance(node.op, Elementwise) and not takes_index(node.op):
            xs = [x for x in node.inputs if not x.is_bundle and x.shape == node.shape]
        elif (bounds := channel_bounds(node)) and self._blocks:
            xs = [] if any(c % self._blocks[-1] for c in bounds) else [*node.inputs]
        else:
            return []
        return xs if any(x in self for x in xs) else []

    def _join(self, node: Node) -> None:
        if type(node.op) in CONVOLUTIONS:
            if not isinstance(node.op, Conv2dBackwardWeights):
                self._parent[node] = node
            return
        if node.is_bundle or node.ndim != 4:
            return
        maker = node.inputs[0] if isinstance(node.op, Item) else node
        members = [x for x in self.same_layout_inputs(maker) if x in self]
        if members:
            self._parent[node] = node
        for x in members:
            self._parent[self._root(x)] = node

    def _root(self, value: Node) -> Node:
        while self._parent[value] is not value:
            self._parent[value] = self._parent[self._parent[value]]
            value = self._parent[value]
        return value

    def _connect(self, node: Node) -> None:
        """Record the images that cross the border of a region at `node`."""
        if isinstance(node.op, Item) or type(node.op) in CONVOLUTIONS:
            return
        same_layout = self.same_layout_inputs(node)
        if same_layout:
            region = self.all[self.of(next(x for x in same_layout if x in self))]
            region.channels.update(x.shape[1] for x in same_layout)
            region.channels.update(channel_bounds(node))
            region.incoming.update((x, None) for x in same_layout if x not in self)
        if not (isinstance(node.op, Reduction) and node.op.combine):  # they reduce any layout
            for x in node.inputs:
                if x in self and x not in {*same_layout}:
                    self.all[self.of(x)].outgoing[x] = None
