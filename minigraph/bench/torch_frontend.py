"""A PyTorch model that minigraph runs: by `minigraph.torch.training_step` or `convert`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch.nn import functional

import minigraph.torch as mgt
from minigraph.bench.cases import LEARNING_RATE, Prediction, TrainingCase
from minigraph.bench.ours import graph_for, prediction, wait
from minigraph.bench.torch_peer import LIBRARY, training_side, with_first_values
from minigraph.bench.worker import Side, Task, serve, step_function

LEVEL = 3


def frontend_side(task: Task) -> Side:
    """Build a network's step or prediction at the highest level."""
    torch.set_num_threads(task.threads)
    torch.set_flush_denormal(True)
    subject = task.subject
    if isinstance(subject, Prediction):
        return _prediction(subject, task)
    assert isinstance(subject, TrainingCase)  # `Peer.runs` excludes the others
    steps: list[mgt.TrainingStep] = []

    def training(subject: TrainingCase, net: torch.nn.Module, task: Task) -> Callable[[], float]:
        net = net.to(task.device)
        batches = [
            (torch.from_numpy(x).to(task.device), torch.from_numpy(y).to(task.device))
            for x, y in subject.data()
        ]
        adam = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
        options = {"graph_opt_level": LEVEL, **task.options}
        step = mgt.training_step(net, functional.cross_entropy, adam, batches[0], options=options)
        steps.append(step)
        inputs = cycle(batches)
        return lambda: float(step(*next(inputs)))

    def peak() -> int | None:
        return None if task.device == "cpu" else steps[0].report().memory.peak_bytes

    return training_side(subject, task, training, peak)


def _prediction(subject: Prediction, task: Task) -> Side:
    net = with_first_values(subject.network(LIBRARY)).eval()
    images, _ = subject.data()[0]
    converted = mgt.convert(net, (torch.from_numpy(images),))
    call, batches = prediction(graph_for(task, LEVEL), subject, converted)
    return Side(step_function(call, batches, wait), lambda: [*map(float, call(images).ravel())])


if __name__ == "__main__":
    serve(frontend_side)
