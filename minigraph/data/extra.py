"""The optional libraries, those of `pip install minigraph[data]`.

They are imported when a data set that needs one is made, so that `minigraph.data` works without
them and imports fast.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from minigraph.errors import GraphError


def library(module: str, user: str) -> ModuleType:
    """Return `module`, imported; a GraphError that says what `user` lacks if it is absent."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphError(
            f"{user} needs {module}, which cannot be imported ({error}); "
            "pip install minigraph[data]"
        ) from error
