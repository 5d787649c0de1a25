"""PyTorch's side of a case: eager or compiled, as a user first writes it or in its best setting.

With the path of a file behind the task, the program exports the network to ONNX instead.
"""

from __future__ import annotations

import socket
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from minigraph.bench.cases import (
    LEARNING_RATE,
    LOSSES,
    PRECISIONS,
    Expression,
    Prediction,
    TrainingStep,
    first_value,
)
from minigraph.bench.networks import with_blocks, without_dropout
from minigraph.bench.results import CHANNELS_LAST
from minigraph.bench.worker import TASK, Side, Task, hidden, predicting, serve
from minigraph.distributed import world
from minigraph.platform.launcher import local_rank
from minigraph.platform.records import decode

ATTENTION = functional.scaled_dot_product_attention
LIBRARY = with_blocks(
    torch.nn, SimpleNamespace(concat=torch.concat, scaled_dot_product_attention=ATTENTION)
)


def torch_side(task: Task) -> Side:
    """Build the case; the setting may hold "compiled" and "channels last" (with a fused Adam)."""
    torch.set_num_threads(task.threads)
    torch.set_flush_denormal(True)
    if task.device != "cpu":
        own = local_rank() % torch.cuda.device_count()
        torch.cuda.set_device(torch.device(task.device).index or own)
    torch.backends.cudnn.benchmark = CHANNELS_LAST in task.setting
    torch.backends.cuda.matmul.allow_tf32 = task.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = task.precision == "tf32"
    subject, net = task.subject, None
    step: Callable[[], object]
    if isinstance(subject, Expression):
        step = _expression(subject, task)
    elif isinstance(subject, Prediction):
        return _predicting(subject, task)
    else:
        net = _in_processes(subject.network(LIBRARY), task)
        step = _training(subject, net, task)

    def until_done() -> None:
        step()
        if task.device != "cpu":
            torch.cuda.synchronize()

    def details() -> dict[str, Any]:
        if isinstance(net, DistributedDataParallel):
            talk = _exchange(net, task)
            return {"hidden": hidden(step, partial(_without_sync, net, step), talk)}
        return _peak(task)

    def losses() -> list[float]:
        assert isinstance(subject, TrainingStep)
        net = with_first_values(subject.network(without_dropout(LIBRARY)))
        train = _training(subject, net, task)
        return [train() for _ in range(LOSSES)]

    return Side({"step": until_done}, details, losses)


def _peak(task: Task) -> dict[str, Any]:
    return {} if task.device == "cpu" else {"peak": torch.cuda.max_memory_allocated()}


def with_first_values(net: Any) -> Any:
    """Return a network whose parameters and running statistics are those of every library."""
    state = {name: first_value(name, tuple(x.shape)) for name, x in net.state_dict().items()}
    net.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return net


def _predicting(subject: Prediction, task: Task) -> Side:
    """Return the side of a prediction, as users are told to make it fast.

    Without gradients; compiled, with parameters as constants, which folds batch norms.
    """
    layout = {"memory_format": torch.channels_last} if CHANNELS_LAST in task.setting else {}
    net = with_first_values(subject.network(LIBRARY)).eval().to(task.device, **layout)
    torch._inductor.config.freezing = True
    fn = _compiled(net, task)
    small = getattr(torch, task.precision) if PRECISIONS[task.precision].width < 4 else None
    batches = [torch.from_numpy(x).to(task.device, **layout) for x, _ in subject.data()]

    kind = task.device.partition(":")[0]

    def predict(images: Any) -> Any:
        with torch.inference_mode(), torch.autocast(kind, small, small is not None):
            scores = fn(images)
        if task.device != "cpu":
            torch.cuda.synchronize()
        return scores

    return predicting(batches, predict, lambda: _peak(task), lambda scores: scores.float().cpu())


def _in_processes(net: Any, task: Task) -> Any:
    """Return a network whose gradients are means over the processes, if there are several."""
    team = world()
    if team.size == 1:
        return net
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = team.broadcast(free.getsockname()[1])
    store = torch.distributed.TCPStore("127.0.0.1", port, team.size, team.rank == 0)
    backend = "gloo" if task.device == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=store, rank=team.rank, world_size=team.size)
    net = net.to(task.device, memory_format=torch.channels_last)
    # Statistics of BatchNorm are each process's own here too.
    return DistributedDataParallel(net, broadcast_buffers=False, gradient_as_bucket_view=True)


def _without_sync(net: Any, step: Callable[[], object]) -> None:
    with net.no_sync():
        step()


def _exchange(net: Any, task: Task) -> Callable[[], None]:
    """Return a function that takes the means of what DDP sends: buckets of 25 MB."""
    sizes = [p.numel() for p in net.parameters()]
    buckets = torch.zeros(sum(sizes), device=task.device).split(25 * (1 << 20) // 4)

    def exchange() -> None:
        for bucket in buckets:
            torch.distributed.all_reduce(bucket)
        if task.device != "cpu":
            torch.cuda.synchronize()

    return exchange


def _compiled(fn: Any, task: Task) -> Any:
    """Return a function, compiled if the setting asks for it."""
    if "compiled" not in task.setting:
        return fn
    return torch.compile(fn, mode="default" if task.device == "cpu" else "max-autotune")


def _expression(subject: Expression, task: Task) -> Callable[[], None]:
    def formula(*arrays: Any) -> Any:
        return subject.formula(torch, *arrays)

    fn = _compiled(formula, task)
    data = [torch.from_numpy(x).to(task.device) for x in subject.data()]
    for x in data if "compiled" in task.setting else ():
        torch._dynamo.mark_static_address(x)  # else a CUDA graph copies its inputs
    last = [None]  # a caller keeps a result until the next one

    def step() -> None:
        with torch.no_grad():
            last[0] = fn(*data)

    return step


def _training(subject: TrainingStep, net: Any, task: Task) -> Callable[[], float]:
    """Return a step that trains a network and returns the loss.

    What has no channels has no memory format either: then only a fused Adam is what is best.
    """
    best = CHANNELS_LAST in task.setting
    layout = {"memory_format": torch.channels_last} if best else {}
    if not isinstance(net, DistributedDataParallel):
        net = net.to(task.device, **layout)
    batches = cycle(
        [
            (
                torch.from_numpy(x).to(task.device, **(layout if x.ndim == 4 else {})),
                torch.from_numpy(y).to(task.device),
            )
            for x, y in (map(_share, batch) for batch in subject.data())
        ]
    )
    adam = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=best or None)
    small = getattr(torch, task.precision) if PRECISIONS[task.precision].width < 4 else None
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
        return float(loss.item())

    return step


def _share(array: Any) -> Any:
    """Return the part of a batch that this process trains on."""
    return np.array_split(array, world().size)[world().rank]


def export(task: Task, path: str) -> None:
    """Write the network of a prediction to an ONNX file."""
    subject = task.subject
    assert isinstance(subject, Prediction)
    net = with_first_values(subject.network(LIBRARY)).eval()
    images = torch.zeros((subject.images, *subject.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the newer exporter takes far longer
        torch.onnx.export(net, (images,), path, dynamo=False)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(torch_side)
    else:
        export(decode(TASK, sys.argv[1]), sys.argv[2])
