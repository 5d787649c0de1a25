"""minigraph's side of a case, at one level."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench import losses
from minigraph.bench.cases import LEARNING_RATE, Expression, Training
from minigraph.bench.networks import module
from minigraph.bench.precision import PRECISIONS
from minigraph.bench.results import UNTUNED
from minigraph.bench.worker import Side, Task, serve

PROFILES = 5  # of which each kernel's time is the median


class Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Any) -> Any:
        return ops.relu(self.body(x) + self.shortcut(x))


def make(task: Task) -> Side:
    """Compile the case; its setting is a level, which may be untuned."""
    subject, level = task.subject, task.setting.removesuffix(UNTUNED)
    options: dict[str, Any] = {"graph_opt_level": int(level), "num_threads": task.threads}
    options |= {"autotune.budget": task.budget, **PRECISIONS[task.precision].options}
    if level != task.setting:
        options["autotune"] = "off"
    cg = mg.comp_graph(task.device, options)
    if isinstance(subject, Expression):
        call, arguments = _expression(cg, subject)
    else:
        call, arguments = _training(cg, subject, module(nn, subject.layers, Residual))
    last: list[Any] = [None]  # a caller's result lives until the next

    def step() -> None:
        last[0] = call(*arguments())
        if task.device != "cpu":
            last[0].device.synchronize()

    def details() -> dict[str, Any]:
        profiles = [call.profile(*arguments()) for _ in range(PROFILES)]
        found: dict[str, Any] = {"kernels": _by_kernel(profiles)}
        if task.device != "cpu":
            found["peak"] = call.report().memory.peak_bytes
        return found

    def first_losses() -> list[float]:
        assert isinstance(subject, Training)
        same = losses.alike(subject)
        net = module(nn, same.layers, Residual)
        for name, parameter in net.named_parameters():
            parameter.assign(losses.initial(name, parameter.shape))
        call, arguments = _training(cg, same, net)
        return losses.first_losses(lambda: float(call(*arguments())))

    return Side({"step": step}, details, first_losses)


Arguments = Callable[[], tuple[Any, ...]]  # of the next call


def _expression(cg: Any, subject: Expression) -> tuple[Any, Arguments]:
    # Parameters, as they are on the device: an input is copied there in each call.
    arrays = [mg.Parameter(array) for array in subject.data()]
    return cg.compile([], subject.formula(ops, *arrays)), lambda: ()


def _training(cg: Any, subject: Training, net: nn.Module) -> tuple[Any, Arguments]:
    x = mg.input("x", (subject.images, *subject.shape))
    labels = mg.input("labels", (subject.images,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    adam = optim.Adam(net.parameters(), lr=LEARNING_RATE)
    call = cg.compile([x, labels], loss, {**adam.minimize(loss), **net.updates()})
    brought = cg.compile([x], x)  # to the device, before any step counts
    batches = cycle([(brought(images), labels) for images, labels in subject.data()])
    return call, lambda: next(batches)


def _by_kernel(profiles: Sequence[mg.function.profile.Profile]) -> dict[str, float]:
    """Return the seconds of each kind of kernel, medians of the profiles, the longest first."""
    spent: dict[str, list[float]] = {}
    for profile in profiles:
        once = Counter[str]()
        for k in profile.kernels:
            once[f"{k.name}: {k.kernel}" if k.kernel else k.name] += k.seconds  # type: ignore[assignment]
        for name, seconds in once.items():
            spent.setdefault(name, []).append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in spent.items()}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    serve(make)
