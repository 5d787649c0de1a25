"""onnxruntime's side of a prediction: the network of the PyTorch side, exported.

Another process exports it, once, so that this one has no PyTorch in its memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime

from minigraph.bench.cases import Prediction
from minigraph.bench.worker import Side, Task, predicting, serve
from minigraph.platform.records import encode


def onnx_side(task: Task) -> Side:
    """Load the network, which the first process of a side exports beside its caches."""
    subject = task.subject
    assert isinstance(subject, Prediction)
    path = Path(os.environ["MINIGRAPH_CACHE_DIR"], "network.onnx")
    if not path.exists():
        program = [sys.executable, "-m", "minigraph.bench.torch_peer"]
        made = subprocess.run(
            [*program, encode(task), str(path)], stderr=subprocess.PIPE, text=True
        )
        if made.returncode:
            errors = re.findall(r"^[\w.]*Error: .*", made.stderr, re.M)
            raise RuntimeError(f"the export failed: {(errors or ['it printed no error'])[-1]}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    return predicting(
        [x for x, _ in subject.data()], lambda x: session.run(None, {images.name: x})[0]
    )


if __name__ == "__main__":
    serve(onnx_side)
