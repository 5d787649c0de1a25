"""minigraph's side of a case, at one level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench.cases import LEARNING_RATE, Expression
from minigraph.bench.networks import module
from minigraph.bench.worker import Side, Task, serve


class Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Any) -> Any:
        return ops.relu(self.body(x) + self.shortcut(x))


def make(task: Task) -> Side:
    """Compile the case."""
    subject = task.subject
    batches: Iterator[Sequence[Any]]
    options = {"graph_opt_level": int(task.setting), "num_threads": task.threads}
    cg = mg.comp_graph(task.device, {**options, "autotune.budget": task.budget})
    if isinstance(subject, Expression):
        inputs = [mg.input(f"x{i}", shape) for i, shape in enumerate(subject.shapes)]
        call = cg.compile(inputs, subject.formula(ops, *inputs))
        batches = cycle([subject.data()])
    else:
        net = module(nn, subject.layers, Residual)
        x = mg.input("x", (subject.images, *subject.shape))
        labels = mg.input("labels", (subject.images,), "int64")
        loss = ops.cross_entropy(net(x), labels)
        adam = optim.Adam(net.parameters(), lr=LEARNING_RATE)
        call = cg.compile([x, labels], loss, {**adam.minimize(loss), **net.updates()})
        batches = cycle(subject.data())
    on_gpu = task.device != "cpu"
    last: list[Any] = [None]  # a caller's result lives until the next

    def step() -> None:
        last[0] = call(*next(batches))
        if on_gpu:
            last[0].device.synchronize()

    def details() -> dict[str, Any]:
        found: dict[str, Any] = {"kernels": _by_kernel(call.profile(*next(batches)))}
        if on_gpu:
            found["peak"] = call.report().memory.peak_bytes
        return found

    return Side({"step": step}, details)


def _by_kernel(profile: mg.profile.Profile) -> dict[str, float]:
    """Return the seconds of each kind of kernel, the longest first."""
    spent = Counter[str]()
    for k in profile.kernels:
        spent[f"{k.name}: {k.kernel}" if k.kernel else k.name] += k.seconds  # type: ignore[assignment]
    return dict(spent.most_common())


if __name__ == "__main__":
    serve(make)
