"""Copies of batches on a device, made in a thread while the program uses the batch before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minigraph import options
from minigraph.data.collation import rebuild
from minigraph.devices.factory import open_backend
from minigraph.graph import DTYPES, Array


def uploader(device: str) -> Callable[[Any], Any] | None:
    """Return a function that copies the arrays of a batch to a device.

    It returns tuples, lists and dicts like those of the batch.  Texts and objects stay as they are.
    None if the device uses the host's memory.
    """
    upload = open_backend(device, options.resolve({})).uploader()
    return upload and (lambda batch: _uploaded(batch, upload))


def _uploaded(batch: Any, upload: Callable[[Array], Array]) -> Any:
    match batch:
        case np.ndarray() if batch.dtype in DTYPES:
            return upload(batch)
        case list():
            return [_uploaded(part, upload) for part in batch]
        case Mapping() | tuple():
            items = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
            return rebuild(batch, {key: _uploaded(part, upload) for key, part in items})
    return batch
