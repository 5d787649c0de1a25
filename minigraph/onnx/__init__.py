"""ONNX models: read as expressions and compiled functions, and written for other programs."""

from minigraph.errors import install_command

try:
    import onnx as _onnx
except ImportError as error:
    raise ImportError(
        f"minigraph.onnx needs the package onnx: {install_command('onnx')}"
    ) from error

from minigraph.onnx import command
from minigraph.onnx.model import CallFunction, Model, function, load
from minigraph.onnx.save import save

__all__ = ["CallFunction", "Model", "function", "load", "save"]
