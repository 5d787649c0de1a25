"""PyTorch's side of a case: eager or compiled, as a user first writes it or in its best setting."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from torch.nn import functional

from minigraph.bench.cases import LEARNING_RATE, Expression, Training
from minigraph.bench.networks import module
from minigraph.bench.worker import Side, Task, serve


class Residual(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, body: Any, shortcut: Any) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.shortcut(x))


def make(task: Task) -> Side:
    """Build the case; its setting may hold "compiled" and "channels last" (with a fused Adam)."""
    torch.set_num_threads(task.threads)
    torch.set_flush_denormal(True)
    subject, compiled = task.subject, "compiled" in task.setting
    if isinstance(subject, Expression):
        step = _expression(subject, task.device, compiled)
    else:
        step = _training(subject, task.device, compiled, "channels last" in task.setting)

    def synchronized() -> None:
        step()
        if task.device != "cpu":
            torch.cuda.synchronize()

    def details() -> dict[str, Any]:
        return {} if task.device == "cpu" else {"peak": torch.cuda.max_memory_allocated()}

    return Side({"step": synchronized}, details)


def _expression(subject: Expression, device: str, compiled: bool) -> Any:
    def formula(*arrays: Any) -> Any:
        return subject.formula(torch, *arrays)

    fn = torch.compile(formula) if compiled else formula
    data = [torch.from_numpy(x).to(device) for x in subject.data()]
    last = [None]

    def step() -> None:
        with torch.no_grad():
            last[0] = fn(*data)

    return step


def _training(subject: Training, device: str, compiled: bool, best: bool) -> Any:
    net = module(torch.nn, subject.layers, Residual).to(device)
    data = [
        (torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in subject.data()
    ]
    if best:
        net = net.to(memory_format=torch.channels_last)
        data = [(x.to(memory_format=torch.channels_last), y) for x, y in data]
    adam = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=best or None)
    batches = cycle(data)

    def loss_of(x: Any, y: Any) -> Any:
        return functional.cross_entropy(net(x), y)

    fn = torch.compile(loss_of) if compiled else loss_of

    def step() -> None:
        adam.zero_grad()
        loss = fn(*next(batches))
        loss.backward()
        adam.step()
        loss.item()

    return step


if __name__ == "__main__":
    serve(make)
