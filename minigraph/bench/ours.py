"""minigraph's side of a case, at one level."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench.cases import (
    LEARNING_RATE,
    LOSSES,
    Expression,
    ModelFile,
    Prediction,
    TrainingCase,
    first_value,
)
from minigraph.bench.networks import with_blocks, without_dropout
from minigraph.bench.results import UNFROZEN_SUFFIX, UNTUNED_SUFFIX
from minigraph.bench.worker import Side, Task, serve, step_function
from minigraph.distributed import World, world

LIBRARY = with_blocks(nn, ops)
Step = tuple[Any, Iterator[tuple[Any, ...]]]  # a function, and the batches that it is called with


def minigraph_side(task: Task) -> Side:
    """Compile a case; the setting is a level, which may be untuned or unfrozen."""
    subject, level = task.subject, task.setting.partition(",")[0]
    cg = graph_for(task, int(level))
    if task.setting.endswith(UNTUNED_SUFFIX):
        cg.set_option("autotune", "off")
    if isinstance(subject, Expression):
        call, batches = _expression(cg, subject)
    elif isinstance(subject, ModelFile):
        arrays = (*subject.data().values(),)  # reads the file, so before the network takes memory
        call, batches = mg.onnx.function(subject.path, task.device, cg.options), repeat(arrays)
    elif isinstance(subject, Prediction):
        net = with_first_values(subject.network(LIBRARY)).eval()
        call, batches = prediction(cg, subject, net, not task.setting.endswith(UNFROZEN_SUFFIX))
    else:
        call, batches = training(cg, subject, subject.network(LIBRARY))

    def outputs() -> list[float]:
        if isinstance(subject, TrainingCase):
            net = with_first_values(subject.network(without_dropout(LIBRARY)))
            step, batches = training(cg, subject, net)
            return [float(step(*next(batches))) for _ in range(LOSSES)]
        if isinstance(subject, ModelFile):
            return subject.numbers(call(*arrays))
        images, _ = subject.data()[0]
        return [*map(float, np.ravel(call(images)))]

    def device_memory() -> int | None:
        return None if task.device == "cpu" else call.report().memory.peak_bytes

    def roofline() -> float | None:
        if not hasattr(call, "profile"):  # of a model whose shapes depend on values
            return None
        costs = call.profile(*next(batches)).by_kernel
        return sum(cost.seconds * (cost.roofline or 0.0) for cost in costs) or None

    return Side(step_function(call, batches, wait), outputs, device_memory, roofline)


def graph_for(task: Task, level: int) -> Any:
    searched = {"autotune": "exhaustive"} if level >= 2 else {}
    return mg.comp_graph(task.device, {"graph_opt_level": level, **searched, **task.options})


def wait(result: Any) -> None:
    """Wait for the arrays that a function returned if they are on a GPU."""
    for array in result if isinstance(result, list) else [result]:
        if not isinstance(array, np.ndarray):
            array.device.synchronize()


def with_first_values(net: Any) -> Any:
    """Return a network with the parameters and running statistics of `first_value`."""
    for name, state in (*net.named_parameters(), *net.named_buffers()):
        state.assign(first_value(name, state.shape).astype(state.dtype))
    return net


def _expression(cg: Any, subject: Expression) -> Step:
    # Parameters stay on the device, whereas each call would copy inputs to it.
    arrays = [mg.Parameter(array) for array in subject.data()]
    return cg.compile([], subject.formula(ops, *arrays)), repeat(())


def prediction(cg: Any, subject: Prediction, net: Any, freeze: bool = True) -> Step:
    batches = [images for images, _ in subject.data()]
    x = mg.input("x", batches[0].shape, batches[0].dtype)
    call = cg.compile([x], net(x), freeze=freeze)
    to_device = cg.compile([x], x)
    return call, cycle([(to_device(images),) for images in batches])


def training(cg: Any, subject: TrainingCase, net: Any, reduce: bool = True) -> Step:
    """Return a step and this process's shares of its batches.

    reduce  whether processes average their gradients
    """
    team = world()
    batches = [tuple(np.array_split(x, team.size)[team.rank] for x in b) for b in subject.data()]
    x, labels = (
        mg.input(n, y.shape, y.dtype) for n, y in zip(("x", "labels"), batches[0], strict=True)
    )
    call = cg.compile([x, labels], *loss_and_updates(net, x, labels, team if reduce else None))
    to_device = cg.compile([x, labels], [x, labels])  # before any step is timed
    return call, cycle([to_device(*batch) for batch in batches])


def loss_and_updates(
    net: Any, x: Any, labels: Any, team: World | None = None
) -> tuple[Any, dict[Any, Any]]:
    loss = ops.cross_entropy(net(x), labels)
    updates = optim.Adam(net.parameters(), lr=LEARNING_RATE).minimize(loss, reduce=team)
    return loss, {**updates, **net.updates()}


if __name__ == "__main__":
    serve(minigraph_side)
