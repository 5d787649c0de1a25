"""The operators of ONNX that minigraph computes."""

from minigraph.onnx.operators import elementwise, images, layers, quantization, reductions, tensors
from minigraph.onnx.operators.table import COUNTING, MICROSOFT, ROWS, WORDS, Row

__all__ = ["COUNTING", "MICROSOFT", "ROWS", "WORDS", "Row"]
