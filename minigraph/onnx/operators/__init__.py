"""The operators of ONNX that minigraph computes."""

from minigraph.onnx.operators import elementwise, images, layers, quantization, reductions, tensors
from minigraph.onnx.operators.old_opsets import FIRST_STABLE_OPSET, modern, row_of
from minigraph.onnx.operators.table import COUNTING, MICROSOFT, ROWS, WORDS, Row

__all__ = [
    "COUNTING",
    "FIRST_STABLE_OPSET",
    "MICROSOFT",
    "ROWS",
    "WORDS",
    "Row",
    "modern",
    "row_of",
]
