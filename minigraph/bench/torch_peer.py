"""PyTorch's side of a case: eager or compiled, as a user first writes it or in its best setting."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch.nn import functional

from minigraph.bench import losses
from minigraph.bench.cases import LEARNING_RATE, Expression, Training
from minigraph.bench.networks import module
from minigraph.bench.precision import PRECISIONS
from minigraph.bench.results import LAST
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
    if task.device != "cpu":
        torch.cuda.set_device(task.device)
    best = LAST in task.setting
    torch.backends.cudnn.benchmark = best
    torch.backends.cuda.matmul.allow_tf32 = task.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = task.precision == "tf32"
    subject = task.subject
    step: Callable[[], object]
    if isinstance(subject, Expression):
        step = _expression(subject, task)
    else:
        step = _training(subject, module(torch.nn, subject.layers, Residual), task)

    def synchronized() -> None:
        step()
        if task.device != "cpu":
            torch.cuda.synchronize()

    def details() -> dict[str, Any]:
        return {} if task.device == "cpu" else {"peak": torch.cuda.max_memory_allocated()}

    def first_losses() -> list[float]:
        assert isinstance(subject, Training)
        same = losses.alike(subject)
        net = module(torch.nn, same.layers, Residual)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.copy_(torch.from_numpy(losses.initial(name, tuple(parameter.shape))))
        return losses.first_losses(_training(same, net, task))

    return Side({"step": synchronized}, details, first_losses)


def _compiled(fn: Any, task: Task) -> Any:
    """Return a function as the setting asks for it."""
    if "compiled" not in task.setting:
        return fn
    return torch.compile(fn, mode="default" if task.device == "cpu" else "max-autotune")


def _expression(subject: Expression, task: Task) -> Callable[[], None]:
    def formula(*arrays: Any) -> Any:
        return subject.formula(torch, *arrays)

    fn = _compiled(formula, task)
    data = [torch.from_numpy(x).to(task.device) for x in subject.data()]
    for x in data if "compiled" in task.setting else ():
        torch._dynamo.mark_static_address(x)  # a CUDA graph copies its inputs but for these
    last = [None]

    def step() -> None:
        with torch.no_grad():
            last[0] = fn(*data)

    return step


def _training(subject: Training, net: Any, task: Task) -> Callable[[], float]:
    """Return a step that trains a network, and gives the loss."""
    device, best = task.device, LAST in task.setting
    net = net.to(device)
    data = [
        (torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in subject.data()
    ]
    if best:
        net = net.to(memory_format=torch.channels_last)
        data = [(x.to(memory_format=torch.channels_last), y) for x, y in data]
    adam = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=best or None)
    small = getattr(torch, task.precision) if PRECISIONS[task.precision].small else None
    scaler = torch.amp.GradScaler(enabled=small is torch.float16)
    batches = cycle(data)

    def loss_of(x: Any, y: Any) -> Any:
        return functional.cross_entropy(net(x), y)

    fn = _compiled(loss_of, task)
    if small is not None:
        fn = torch.autocast("cuda", small)(fn)

    def step() -> float:
        adam.zero_grad()
        loss = fn(*next(batches))
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
        return float(loss.item())

    return step


if __name__ == "__main__":
    serve(make)
