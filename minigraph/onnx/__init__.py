"""Models of ONNX: graphs of ours as files that other programs read."""

from minigraph.onnx.save import save
