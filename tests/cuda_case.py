"""A generated CUDA kernel with operands, and what its launches should give."""

import cuda_on_cpu
import numpy as np
from cuda_device import close
from elementwise_samples import draw

import minigraph as mg
from minigraph.devices.cuda.generated import generated_kernel
from minigraph.graph import Node, as_dtype, compute

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def array(*shape, dtype="float32", seed=0):
    return draw(as_dtype(dtype), shape, -2, 2, seed)


def aligned(x):
    """Return a copy of x with the alignment of device memory; its views keep their strides."""
    copy, _ = cuda_on_cpu.room(x.shape, x.dtype)
    copy[...] = x
    return copy


class Case:
    """A node, arrays for its inputs, and the launches that compute it."""

    def __init__(self, op, *xs):
        self.xs = xs
        inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
        specs = op.infer(*(x.spec for x in inputs))
        self.node = Node(op, inputs, specs if isinstance(specs, tuple) else (specs,))
        filled = all(spec.size for spec in self.node.specs)
        self.kernel = generated_kernel(self.node, [x.strides for x in xs]) if filled else None

    @property
    def expected(self):
        with np.errstate(all="ignore"):
            results = compute(self.node, *self.xs)
        results = results if self.node.is_bundle else (results,)
        return [np.asarray(y, spec.dtype) for y, spec in zip(results, self.node.specs, strict=True)]

    def run(self, kernels, inplace=()):
        """Return what the launches give; `inplace`: pairs of an input and what overwrites it."""
        rooms = [cuda_on_cpu.room(spec.shape, spec.dtype) for spec in self.node.specs]
        ys, xs = [y for y, _ in rooms], list(self.xs)
        for k, i in inplace:
            xs[k] = ys[i].view(xs[k].dtype).reshape(xs[k].shape)
            xs[k][...] = self.xs[k]
        cuda_on_cpu.run(kernels, self.kernel.launches, xs, ys, self.kernel.scratch)
        assert all(untouched() for _, untouched in rooms)
        return ys

    def overwriting(self):
        """Return pairs of an input and an output that may overwrite it, each in one pair only."""
        pairs = {}
        for k, outputs in enumerate(self.kernel.inplace):
            free = [i for i in outputs if i not in pairs.values()]
            if free and self.xs[k].flags.c_contiguous:
                pairs[k] = free[0]
        return list(pairs.items())

    def check(self, kernels, same=None):
        """The launches give what the node means, also where they overwrite what they may."""
        expected = self.expected
        for inplace in {(), tuple(self.overwriting())}:
            for got, value in zip(self.run(kernels, inplace), expected, strict=True):
                same(got, value) if same else close(got, value, TOLERANCE.get(value.dtype.name, 0))
