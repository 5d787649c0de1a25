"""The meaning of random graphs: values with NaN and signed zeros, and tolerances."""

import functools

import numpy as np
import pytest
from elementwise_samples import ANY_ZERO
from noise import explained, noisy

import minigraph as mg
from minigraph.graph import FLOATS, Graph, as_node
from minigraph.ops.random import SEED, STEP, number_streams


class Meaning:
    """NumPy's outputs and updates of graphs, with bounds of their rounding errors."""

    def __init__(self, graphs):
        self.graphs = graphs
        self.inputs = [x for graph in graphs for x in graph.inputs]
        self.outputs = [y for graph in graphs for y in graph.outputs]
        self.updates = {p: value for graph in graphs for p, value in graph.updates.items()}
        self.arrays = [array for graph in graphs for array in graph.arrays]
        new = [as_node(value).astype(p.dtype) for p, value in self.updates.items()]
        results = (*map(as_node, self.outputs), *new)
        self.written = number_streams(Graph((*self.inputs, SEED, STEP), results))
        self.args = [*self.arrays, np.uint64(0), np.uint64(0)]
        self.values = self.written(*self.args)
        # Which zero NumPy takes of +0 and -0 is left to the processor.
        names = {node.op.name for node in self.written}
        self.signs = names.isdisjoint({*ANY_ZERO, "max", "min"})

    def check(self, values, what, signs=False):
        """Fail, with the program, if `values` are not these to rounding."""
        owners = [graph for graph in self.graphs for _ in graph.outputs]
        owners += [graph for graph in self.graphs for _ in graph.updates]
        for i, (result, graph) in enumerate(zip(values, owners, strict=True)):
            wrong = self.wrong(i, result, signs and self.signs)
            if wrong.any():
                at = np.unravel_index(int(wrong.argmax()), wrong.shape)
                number = sum(owner is graph for owner in owners[:i])
                may_be = ", ".join(dict.fromkeys(str(run[at]) for run in self.runs(i)))
                pytest.fail(
                    f"{what}: value {number} of this program at {[*map(int, at)]} is {result[at]}; "
                    f"it may be {may_be}\n\n{graph}",
                    pytrace=False,
                )

    @functools.cached_property
    def noise(self):
        return noisy(self.written, self.args)

    def runs(self, i):
        return [run[i] for run in self.noise]

    def wrong(self, i, result, signs):
        """Where `found` is not value `i`; with `signs`, zero has one."""
        expected = self.values[i]
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        wrong = ~same(expected, result)
        if not wrong.any():
            return wrong
        other_zero = np.zeros_like(wrong)
        if signs and expected.dtype in FLOATS:
            zeros = np.stack([np.where(y == 0, np.signbit(y), 2) for y in self.runs(i)])
            other_zero = wrong & (result == 0) & (zeros == np.signbit(expected)).all(0)
        return other_zero | (wrong & ~explained(self.runs(i), expected, result))

    def compiled(self, device, options):
        """Return one function of all graphs."""
        graph = mg.comp_graph(device, options)
        return graph.compile(self.inputs, self.outputs, self.updates)

    def call(self, step, how=lambda step, arrays: step(*arrays)):
        """What a function of all graphs returns, and the new values of parameters.

        The parameters get their old values back.
        """
        old = [p.numpy() for p in self.updates]
        values = [*how(step, self.arrays), *(p.numpy() for p in self.updates)]
        for p, value in zip(self.updates, old, strict=True):
            p.assign(value)
        return values


def same(x, y):
    """Return the elements that are equal: NaN equals NaN, and -0.0 does not equal 0.0."""
    if x.dtype not in FLOATS:
        return np.asarray(x == y)
    return (x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))
