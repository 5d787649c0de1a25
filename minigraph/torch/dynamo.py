"""`torch.compile(model, backend="minigraph")`: compile the graphs of PyTorch's compiler.

AOTAutograd makes the graphs of the forward and, with gradients, the backward pass, and handles
mutations and aliases itself.  Weights are inputs of the graphs, in PyTorch's memory, so changes
between calls are seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel

import minigraph as mg
from minigraph.errors import OptionError
from minigraph.torch.capture import decompositions
from minigraph.torch.graph_function import GraphFunction
from minigraph.torch.memory import CPU, device_name
from minigraph.torch.operators.backward import max_pool_gradient
from minigraph.torch.training import DEFAULTS

aten = torch.ops.aten


def minigraph(
    module: torch.fx.GraphModule,
    example: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return the function of a graph of Dynamo: a backend of `torch.compile`.

    options  of `minigraph.comp_graph`, from `torch.compile(..., options={...})`

    Random numbers are minigraph's; each call takes its seed from PyTorch's generator.  An operator
    that minigraph lacks runs in PyTorch, with a warning.
    """
    if mode not in (None, "default"):
        raise OptionError(f"torch.compile: mode={mode!r} is Inductor's; minigraph takes options")
    for node in module.graph.nodes:
        if node.target is F.adaptive_avg_pool2d and node.args[1:] in ((1,), ((1, 1),)):
            # As PyTorch decomposes it, except for channels last, where it uses as_strided.
            node.target, node.args = torch.mean, (node.args[0], (-2, -1), True)
    module.recompile()
    tensors = [x for x in example if isinstance(x, torch.Tensor)]
    device = next((x.device for x in tensors if not x.is_cpu), CPU)
    compiler = mg.comp_graph(device_name(device), {**DEFAULTS, **(options or {})})

    def compile(graph: torch.fx.GraphModule, example: Sequence[Any]) -> GraphFunction:
        return GraphFunction(graph, compiler, device)

    backend = aot_autograd(
        fw_compiler=compile,
        bw_compiler=compile,
        inference_compiler=compile,
        partition_fn=_partition,
        decompositions=decompositions(),
    )
    # PyTorch's attention kernels differ between GPUs; the operators of its decomposition have rows.
    is_cpu = device.type == "cpu"
    with contextlib.nullcontext() if is_cpu else sdpa_kernel(SDPBackend.MATH):
        return backend(module, example)


def _partition(joint: torch.fx.GraphModule, inputs: Any, **named: Any) -> Any:
    for pools in (aten.max_pool2d_with_indices_backward, aten.max_pool3d_with_indices_backward):
        for node in joint.graph.find_nodes(op="call_function", target=pools.default):
            # Without the indices of the maxima: recomputing the maxima is faster than saving them.
            node.target, node.args = max_pool_gradient, node.args[:-1]
    joint.graph.eliminate_dead_code()
    joint.recompile()
    return min_cut_rematerialization_partition(joint, inputs, **named)
