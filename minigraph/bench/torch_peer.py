"""PyTorch's side of a case: eager or compiled, with default settings or the fastest ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, repeat
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from minigraph.bench.cases import (
    LEARNING_RATE,
    LOSSES,
    PRECISIONS,
    Expression,
    ModelFile,
    Prediction,
    TrainingCase,
    first_value,
)
from minigraph.bench.networks import with_blocks, without_dropout
from minigraph.bench.plan import FASTEST_TORCH_SETTING
from minigraph.bench.results import BY_MINIGRAPH, CHANNELS_LAST
from minigraph.bench.worker import Side, Task, serve, step_function

Training = Callable[[TrainingCase, Any, Task], Callable[[], float]]
ATTENTION = functional.scaled_dot_product_attention
LIBRARY = with_blocks(
    torch.nn, SimpleNamespace(concat=torch.concat, scaled_dot_product_attention=ATTENTION)
)


def torch_side(task: Task) -> Side:
    """Build the case; the setting may contain "compiled" and "channels last" (and a fused Adam)."""
    torch.set_num_threads(task.threads)
    torch.set_flush_denormal(True)
    if task.device != "cpu":
        torch.cuda.set_device(torch.device(task.device).index or 0)
    torch.backends.cudnn.benchmark = CHANNELS_LAST in task.setting
    torch.backends.cuda.matmul.allow_tf32 = task.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = task.precision == "tf32"
    subject = task.subject
    if isinstance(subject, Prediction):
        return _prediction(subject, task)
    assert not isinstance(subject, ModelFile)  # `Peer.runs` excludes them
    if isinstance(subject, Expression):
        return Side(_expression(subject, task), device_memory=lambda: _peak(task))
    return training_side(subject, task, _training, lambda: _peak(task))


def training_side(
    subject: TrainingCase, task: Task, training: Training, peak: Callable[[], int | None]
) -> Side:
    """Return the side of a training step.

    training  makes the step from the case and a network
    peak      returns the peak of a GPU's memory, in bytes; None for a CPU
    """

    def losses() -> list[float]:
        net = with_first_values(subject.network(without_dropout(LIBRARY)))
        train = training(subject, net, task)
        return [train() for _ in range(LOSSES)]

    step = training(subject, subject.network(LIBRARY), task)
    return Side(step, losses, peak)


def _peak(task: Task) -> int | None:
    return None if task.device == "cpu" else torch.cuda.max_memory_allocated()


def _wait(task: Task) -> None:
    if task.device != "cpu":
        torch.cuda.synchronize()


def _layout(task: Task) -> dict[str, Any]:
    return {"memory_format": torch.channels_last} if CHANNELS_LAST in task.setting else {}


def _small_dtype(task: Task) -> Any:
    """Return the 16-bit dtype for autocast; None without one."""
    return getattr(torch, task.precision) if PRECISIONS[task.precision].width < 4 else None


def _compiled(fn: Any, task: Task) -> Any:
    """Return a function, compiled if the setting asks for it.

    On a GPU it runs as CUDA graphs; only in the fastest setting Inductor also measures its kernels,
    which takes minutes.
    """
    if task.setting == BY_MINIGRAPH:
        return torch.compile(fn, backend="minigraph", options=task.options)
    if "compiled" not in task.setting:
        return fn
    if task.device == "cpu":
        return torch.compile(fn)
    return torch.compile(
        fn, mode="max-autotune" if task.setting == FASTEST_TORCH_SETTING else "reduce-overhead"
    )


def with_first_values(net: Any) -> Any:
    """Return a network with the parameters and running statistics of `first_value`."""
    state = {name: first_value(name, tuple(x.shape)) for name, x in net.state_dict().items()}
    net.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return net


def _expression(subject: Expression, task: Task) -> Callable[[], None]:
    def formula(*arrays: Any) -> Any:
        return subject.formula(torch, *arrays)

    fn = _compiled(formula, task)
    data = [torch.from_numpy(x).to(task.device) for x in subject.data()]
    for x in data if "compiled" in task.setting else ():
        torch._dynamo.mark_static_address(x)  # else a CUDA graph copies its inputs
    return step_function(torch.no_grad()(fn), repeat(data), lambda _: _wait(task))


def _prediction(subject: Prediction, task: Task) -> Side:
    """Return the side of a prediction, as PyTorch's documentation recommends.

    It runs without gradients; if compiled, parameters are constants, which folds batch norms.
    """
    net = with_first_values(subject.network(LIBRARY)).eval().to(task.device, **_layout(task))
    torch._inductor.config.freezing = True
    fn, small = _compiled(net, task), _small_dtype(task)
    batches = [torch.from_numpy(x).to(task.device, **_layout(task)) for x, _ in subject.data()]
    kind = task.device.partition(":")[0]

    def predict(images: Any) -> Any:
        with torch.inference_mode(), torch.autocast(kind, small, small is not None):
            return fn(images)

    def scores() -> list[float]:
        return [*map(float, predict(batches[0]).float().cpu().flatten())]

    step = step_function(predict, cycle([(images,) for images in batches]), lambda _: _wait(task))
    return Side(step, scores, lambda: _peak(task))


def _training(subject: TrainingCase, net: Any, task: Task) -> Callable[[], float]:
    """Return a step that trains a network and returns the loss.

    The fastest setting is channels last with a fused Adam; without images, only the fused Adam.
    """
    net = net.to(task.device, **_layout(task))

    def on_device(x: Any, y: Any) -> tuple[Any, Any]:
        layout = _layout(task) if x.ndim == 4 else {}
        return torch.from_numpy(x).to(task.device, **layout), torch.from_numpy(y).to(task.device)

    batches = cycle([on_device(*batch) for batch in subject.data()])
    fused = CHANNELS_LAST in task.setting or None
    adam = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=fused)
    small = _small_dtype(task)
    scaler = torch.amp.GradScaler(enabled=small is torch.float16)

    def loss_of(x: Any, y: Any) -> Any:
        return functional.cross_entropy(net(x), y)

    fn = _compiled(loss_of, task)
    if small is not None:
        fn = torch.autocast(task.device.partition(":")[0], small)(fn)

    def step() -> float:
        adam.zero_grad()
        loss = fn(*next(batches))
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
        _wait(task)
        return float(loss.item())

    return step


if __name__ == "__main__":
    serve(torch_side)
