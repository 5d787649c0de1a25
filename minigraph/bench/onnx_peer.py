"""onnxruntime's side of an ONNX model."""

from __future__ import annotations

from typing import Any

import onnxruntime

from minigraph.bench.cases import ModelFile
from minigraph.bench.worker import Side, Task, serve


def onnx_side(task: Task) -> Side:
    subject = task.subject
    assert isinstance(subject, ModelFile)  # `Peer.runs` excludes the others
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    providers = ["CPUExecutionProvider"]
    arrays = subject.data()  # reads the file, so before the network takes memory
    session = onnxruntime.InferenceSession(subject.path, options, providers=providers)

    def step() -> list[Any]:
        return session.run(None, arrays)

    return Side(step, lambda: subject.numbers(step()))


if __name__ == "__main__":
    serve(onnx_side)
