"""Evaluation of a network: means of metrics over all examples of a loader.

Evaluation does not change the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np

import minigraph as mg
from minigraph import nn, ops
from minigraph.arguments import Kind, checked, instance_of, short_repr, with_predicate
from minigraph.devices.factory import open_backend
from minigraph.distributed.world import Processes, World
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Node, Operand, as_node, builder
from minigraph.graph_compiler import CompGraph
from minigraph.ops.loss import check_labels
from minigraph.runtime.inputs import array_of

Metric = Callable[..., Node | tuple[Node, Node]]


@builder
def accuracy(scores: Operand, labels: Operand) -> Node:
    """Return the share of labels (n, ...) whose class has the highest score (n, classes, ...).

    Labels are integers, and scores have two classes or more; for one score that separates two
    classes, use `((scores[:, 0] > 0) == labels).mean()`.  Raises ShapeError for labels of another
    shape.

    >>> cg.compile([], accuracy(ops.full((1, 2), [0.1, 0.9]), [1]))()
    array(1.)
    """
    scores, labels = as_node(scores), as_node(labels)
    check_labels(scores, labels)
    if scores.shape[1] == 1:
        raise ShapeError(
            f"scores {scores.shape} have one class; if one score separates two classes, use "
            "((scores[:, 0] > 0) == labels).mean()"
        )
    return (ops.argmax(scores, axis=1) == labels).mean()


METRICS: dict[str, Metric] = {"loss": ops.cross_entropy, "accuracy": accuracy}


NAMED = with_predicate(
    lambda metrics: all(type(k) is str and callable(f) for k, f in metrics.items()), dict
)
Loader = Annotated[Iterable[Any], instance_of(Iterable, "an iterable of batches")]
Network = Annotated[nn.Module, instance_of(nn.Module, "a module")]
Compiler = Annotated[CompGraph, instance_of(CompGraph, "what mg.comp_graph returned")]
Metrics = Annotated[
    Mapping[str, Metric], Kind("a mapping of names to functions of (outputs, target)", NAMED)
]


class Evaluation:
    """Evaluate `net` on loaders, as `evaluate` does, with functions that are compiled once.

    Make it before the first epoch, and call it with a loader after each epoch: it uses the
    parameters' current values.

    net      a module, called with all parts of a batch but the last
    metrics  functions of the module's result and the last part of the batch, as for `evaluate`
    cg       compiles the functions; by default `mg.comp_graph()` at level 3
    world    the processes that share the examples, each with a loader

    >>> from minigraph.training.evaluation import Evaluation
    >>> measure = Evaluation(nn.Identity(), {"loss": ops.mse_loss}, cg)
    >>> measure([(np.ones((4, 3)), np.zeros((4, 3)))])
    {'loss': 1.0}
    """

    @checked
    def __init__(
        self,
        net: Network,
        metrics: Metrics | None = None,
        cg: Compiler | None = None,
        world: Processes | None = None,
    ) -> None:
        self._net = net
        self._world = world or World()
        self._metrics = METRICS if metrics is None else dict(metrics)
        self._cg = mg.comp_graph(options={"graph_opt_level": 3}) if cg is None else cg
        self._backend = open_backend(self._cg.device, self._cg.options)
        self._functions: dict[Any, Any] = {}
        floats = (p.dtype for p in net.parameters() if p.dtype.kind == "f")
        self._float = next(floats, np.dtype("float32"))

    @checked
    def __call__(self, loader: Loader) -> dict[str, float]:
        """Return the mean of each metric over all examples of a loader."""
        sums = np.zeros((1 + len(self._metrics), 2))  # examples, then metrics
        for number, batch in enumerate(loader):
            arrays = self._arrays(number, batch)
            means_and_weights = self._function(arrays)(*arrays)
            pairs = np.array([1, arrays[0].shape[0], *map(float, means_and_weights)]).reshape(-1, 2)
            pairs[pairs[:, 1] == 0, 0] = 0  # the mean of no elements is NaN
            pairs[:, 0] *= pairs[:, 1]
            sums += pairs
        (examples, _), *totals = np.sum(self._world.gather(sums), axis=0).tolist()
        if not examples:
            raise GraphError("evaluate: the loader has no batches")
        means = {}
        for name, (total, weight) in zip(self._metrics, totals, strict=True):
            if not weight:
                raise GraphError(f"evaluate: the weights of metric {name!r} are 0 in all batches")
            means[name] = total / weight
        return means

    def _arrays(self, number: int, batch: Any) -> list[Array]:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise GraphError(
                f"evaluate: batch {number} is {short_repr(batch)}; it takes tuples of inputs and a "
                "target, which a loader's batch_transform can make"
            )
        try:
            arrays = [*map(self._array, batch)]
        except DTypeError as error:
            raise DTypeError(f"evaluate: batch {number}: {error}") from None
        if len({array.shape[:1] for array in arrays}) > 1 or not arrays[0].shape:
            raise ShapeError(
                f"evaluate: the parts of batch {number} have shapes "
                f"{', '.join(str(array.shape) for array in arrays)}; "
                "the first axis of each counts the examples"
            )
        return arrays

    def _array(self, part: Any) -> Array:
        array = array_of(part, self._backend)
        return self._backend.cast(array, self._float) if array.dtype.kind == "f" else array

    def _function(self, arrays: Sequence[Array]) -> Any:
        """Return a function that computes the metrics of batches like these, of any size."""
        key = tuple((array.shape[1:], array.dtype) for array in arrays)
        if key not in self._functions:
            inputs = [
                mg.input(f"part {number}", ("batch", *shape), dtype)
                for number, (shape, dtype) in enumerate(key)
            ]
            with evaluating(self._net):
                outputs = self._net(*inputs[:-1])
            pairs = [self._mean(name, outputs, inputs[-1]) for name in self._metrics]
            self._functions[key] = self._cg.compile(inputs, [*itertools.chain(*pairs)])
        return self._functions[key]

    def _mean(self, name: str, outputs: Any, target: Node) -> tuple[Node, Node]:
        result = self._metrics[name](outputs, target)
        match result:
            case Node():
                return (result.mean() if result.ndim else result), as_node(target.shape[0])
            case (Node() as value, Node() as weight):
                total = weight.astype("float64").sum()
                if not value.ndim:
                    return value, total
                if weight.shape == value.shape:
                    return ops.where(weight == 0, 0, value * weight).sum() / total, total
                text = f"values of shape {value.shape} and weights of shape {weight.shape}"
                raise ShapeError(f"evaluate: metric {name!r} returned {text}")
        raise GraphError(
            f"evaluate: metric {name!r} returned {short_repr(result)}; it takes expressions and "
            "returns one, or a pair of values and weights"
        )


@checked
def evaluate(
    net: Network,
    loader: Loader,
    metrics: Metrics | None = None,
    cg: Compiler | None = None,
    world: Processes | None = None,
) -> dict[str, float]:
    """Return the mean loss and accuracy of a network over all examples of a loader, by name.

    The network is called in evaluation mode (`net.eval()`), and its mode is restored.  A batch
    counts by the number of its examples, so the size of the last one does not matter.

    net      a module that is called with all parts of a batch but the last
    loader   a `DataLoader`, or any other iterable of batches: tuples of inputs and, as the last
             part, the target, arrays whose first axis counts examples
    metrics  functions by name, by default `{"loss": ops.cross_entropy, "accuracy": accuracy}`; each
             takes the network's result and the target, as expressions, and returns a mean over the
             batch as an expression; or the mean and its weight, if it is not a mean over examples
    cg       compiles the functions; by default `mg.comp_graph()` at level 3
    world    `mg.distributed.world()` if each process has a share of the examples, from a
             `DataLoader` with `shard=world`: all processes get the means over all examples

    A mean over tokens returns their number as its weight; otherwise it would depend on how the
    sentences are batched::

        def loss(logits, tokens):
            return ops.cross_entropy(logits, tokens, ignore_index=0), tokens != 0

    If the first of the pair is not a scalar, each of its elements has its own weight.

    To evaluate after each epoch, make an `Evaluation` and call it, which compiles once.  Raises
    GraphError for batches of another kind, and for a loader without batches.

    >>> from minigraph import nn, ops
    >>> from minigraph.data import DataLoader
    >>> from minigraph.training import evaluate
    >>> x, y = np.ones((5, 3), "float32"), np.zeros((5, 3), "float32")
    >>> evaluate(nn.Identity(), DataLoader((x, y), batch_size=2), {"squared error": ops.mse_loss})
    {'squared error': 1.0}
    """
    return Evaluation(net, metrics, cg, world)(loader)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode for a block."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
