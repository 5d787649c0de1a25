"""Programs bound to a stand-in for the driver, which writes down its calls."""

import numpy as np
import pytest

from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Graph
from minigraph.ops.elementwise import Elementwise
from minigraph.program import Backend
from minigraph.program.lower import lower
from minigraph.program.memory import plan

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import StandIn

from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.kernels import HANDWRITTEN
from minigraph.devices.cuda.program import CudaProgram


class Kernels(Backend):
    """A device on which each node is one launch of a kernel of its own.

    by_numpy  ops that have none
    idle      ops that take no launch
    """

    def __init__(self, driver, by_numpy=(), idle=()):
        self.driver = driver
        self.by_numpy = by_numpy
        self.idle = idle

    def kernel(self, node, strides, choice=None):
        if node.op.name in self.by_numpy:
            return NumpyKernel(node)
        if node.op.name in self.idle:
            return CudaKernel(node, [])
        launch = self.driver.launch_of(node, strides)
        make = HANDWRITTEN.get(type(node.op))
        handwritten = make(node.op, node) if make else None
        range = handwritten.range if handwritten else None
        inplace = [(0,)] * len(node.inputs) if isinstance(node.op, Elementwise) else ()
        return CudaKernel(node, [launch], inplace=inplace, range=range)

    def bind(self, program, arenas=(), bulk=True):
        return CudaProgram(program, self.driver, {name: name for name in self.driver.kernels}, bulk)


def bind(inputs, outputs, updates=(), by_numpy=(), idle=(), bulk=True, **settings):
    """Return a program that is ready to run."""
    driver = StandIn(**settings)
    graph = Graph(tuple(inputs), (*outputs, *(y for _, y in updates)))
    parameters = [w for w, _ in updates]
    kernels = Kernels(driver, by_numpy, idle)
    lowered = plan(lower(graph, len(outputs), parameters, kernels, lambda node, strides: None))
    run = kernels.bind(lowered, bulk=bulk)
    driver.log.clear()
    return run


def call(run, *inputs):
    """Return the outputs of a call, and what the driver was asked for in it."""
    run.driver.log.clear()
    return [y.array for y in run(inputs)], list(run.driver.log)


def entries(log, *names):
    """Return the names in a log of calls that are among these, in order."""
    return [name for name, *_ in map(str.split, log) if name in names]


def natives(log):
    return entries(log, "launch", "launch_graph")


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
