"""Write the network of a prediction, as the PyTorch side has it, to an ONNX file."""

from __future__ import annotations

import sys
import warnings

import torch

from minigraph.bench.cases import Prediction
from minigraph.bench.torch_peer import LIBRARY, with_first_values
from minigraph.bench.worker import TASK, Task
from minigraph.records import decode


def export(task: Task, path: str) -> None:
    """Write the network of a task to a file."""
    subject = task.subject
    assert isinstance(subject, Prediction)
    net = with_first_values(subject.network(LIBRARY)).eval()
    images = torch.zeros((subject.images, *subject.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the newer exporter takes far longer
        torch.onnx.export(net, (images,), path, dynamo=False)


if __name__ == "__main__":
    export(decode(TASK, sys.argv[1]), sys.argv[2])
