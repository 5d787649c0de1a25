"""The table of exports: what each op is in ONNX, one place an op."""

from minigraph.onnx.exports import elementwise, structural

EXPORTS = {**elementwise.EXPORTS, **structural.EXPORTS}
