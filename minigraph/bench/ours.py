"""minigraph's side of a case, at one level."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, repeat
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import ops, optim
from minigraph.bench.arithmetic import LIBRARY
from minigraph.bench.cases import (
    LEARNING_RATE,
    LOSSES,
    PRECISIONS,
    Expression,
    Prediction,
    TrainingStep,
    first_value,
)
from minigraph.bench.networks import without_dropout
from minigraph.bench.results import UNFROZEN, UNTUNED
from minigraph.bench.worker import Side, Task, hidden, serve
from minigraph.distributed import World, world
from minigraph.graph import Shape
from minigraph.inspect.profile import Profile

PROFILES = 5  # the time of a kernel is its median in so many


def minigraph_side(task: Task) -> Side:
    """Compile a case; the setting is a level, which may be untuned or unfrozen."""
    subject, level = task.subject, task.setting.partition(",")[0]
    cg = graph_for(task, int(level))
    if task.setting.endswith(UNTUNED):
        cg.set_option("autotune", "off")
    if isinstance(subject, Expression):
        call, batches = _expression(cg, subject)
    elif isinstance(subject, Prediction):
        call, batches = prediction(cg, subject, freeze=not task.setting.endswith(UNFROZEN))
    else:
        call, batches = training(cg, subject, subject.network(LIBRARY))
    step = until_done(call, batches, task)

    def details() -> dict[str, Any]:
        if isinstance(subject, TrainingStep) and world().size > 1:
            net = subject.network(LIBRARY)
            alone, same = training(cg, subject, net, reduce=False)
            talk = exchange(cg, [p.shape for p in net.parameters()])
            alike = (until_done(alone, same, task), until_done(talk, repeat(()), task))
            return {"hidden": hidden(step, *alike)}
        kernels = _by_kernel([call.profile(*next(batches)) for _ in range(PROFILES)])
        if task.device == "cpu":
            return {"kernels": kernels}
        return {"kernels": kernels, "peak": call.report().memory.peak_bytes}

    def losses() -> list[float]:
        assert isinstance(subject, TrainingStep)
        net = subject.network(without_dropout(LIBRARY))
        for name, parameter in net.named_parameters():
            parameter.assign(first_value(name, parameter.shape))
        call, batches = training(cg, subject, net)
        return [float(call(*next(batches))) for _ in range(LOSSES)]

    def scores() -> list[float]:
        images, _ = subject.data()[0]
        return [*map(float, np.ravel(call(images)))]

    return Side({"step": step}, details, losses, scores)


def graph_for(task: Task, level: int) -> Any:
    """Return what compiles a task's functions."""
    options: dict[str, Any] = {"graph_opt_level": level, "num_threads": task.threads}
    options |= {"autotune.budget": task.budget, **PRECISIONS[task.precision].options}
    return mg.comp_graph(task.device, options)


def until_done(call: Any, batches: Iterator[tuple[Any, ...]], task: Task) -> Callable[[], None]:
    """Return a step that calls a function with the next batch and waits for the result."""
    last: list[Any] = [None]  # a caller keeps a result until the next one

    def step() -> None:
        last[0] = call(*next(batches))
        if task.device != "cpu":
            last[0].device.synchronize()

    return step


def _expression(cg: Any, subject: Expression) -> tuple[Any, Iterator[tuple[Any, ...]]]:
    # Parameters, since they stay on the device: each call copies its inputs there.
    arrays = [mg.Parameter(array) for array in subject.data()]
    return cg.compile([], subject.formula(ops, *arrays)), repeat(())


def prediction(cg: Any, subject: Prediction, freeze: bool) -> tuple[Any, Iterator[tuple[Any, ...]]]:
    """Return a function that predicts and its batches, with parameters as constants or not."""
    net = subject.network(LIBRARY).eval()
    for name, state in (*net.named_parameters(), *net.named_buffers()):
        state.assign(first_value(name, state.shape).astype(state.dtype))
    batches = [images for images, _ in subject.data()]
    x = mg.input("x", batches[0].shape, batches[0].dtype)
    call = cg.compile([x], net(x), freeze=freeze)
    to_device = cg.compile([x], x)
    return call, cycle([(to_device(images),) for images in batches])


def training(
    cg: Any, subject: TrainingStep, net: Any, reduce: bool = True
) -> tuple[Any, Iterator[tuple[Any, ...]]]:
    """Return a step and its batches, of which each process has a share.

    reduce  whether processes take the mean of their gradients
    """
    team = world()
    batches = [tuple(np.array_split(x, team.size)[team.rank] for x in b) for b in subject.data()]
    x, labels = (
        mg.input(n, y.shape, y.dtype) for n, y in zip(("x", "labels"), batches[0], strict=True)
    )
    call = cg.compile([x, labels], *learning(net, x, labels, team if reduce else None))
    to_device = cg.compile([x], x)  # before any step is timed
    return call, cycle([(to_device(images), labels) for images, labels in batches])


def learning(
    net: Any, x: Any, labels: Any, team: World | None = None
) -> tuple[Any, dict[Any, Any]]:
    """Return the loss of a network and the updates of a step of Adam."""
    loss = ops.cross_entropy(net(x), labels)
    updates = optim.Adam(net.parameters(), lr=LEARNING_RATE).minimize(loss, reduce=team)
    return loss, {**updates, **net.updates()}


def exchange(cg: Any, shapes: Iterable[Shape]) -> Any:
    """Return a function that takes the means of float32 arrays over all processes, and no more.

    It returns the first of them, for which one can wait.
    """
    arrays = [mg.Parameter(np.zeros(shape, np.float32)) for shape in shapes]
    means = {x: ops.all_reduce(x, world(), "mean") for x in arrays}
    return cg.compile([], means[arrays[0]], means)


def _by_kernel(profiles: Sequence[Profile]) -> dict[str, float]:
    """Return the seconds of each kind of kernel, medians over the profiles, the longest first."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(profiles))
    for i, profile in enumerate(profiles):
        for k in profile.kernels:
            totals[f"{k.name}: {k.kernel}" if k.kernel else k.name][i] += k.seconds
    medians = {name: statistics.median(seconds) for name, seconds in totals.items()}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    serve(minigraph_side)
