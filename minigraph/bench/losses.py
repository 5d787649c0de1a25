"""The losses of the first training steps, which show that two libraries train alike.

Both begin with the same parameters and see the same batches.  Dropout is left out: its masks are
of each library's own making.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from minigraph.bench import networks
from minigraph.bench.cases import Array, Training
from minigraph.bench.networks import Shape

STEPS = 20


def alike(subject: Training) -> Training:
    """Return a case without what libraries do not do alike."""
    return replace(subject, layers=networks.without_dropout(subject.layers))


def initial(name: str, shape: Shape) -> Array:
    """Return a parameter's first value, which its name and shape alone decide.

    Weights of convolutions and products are normal, those of BatchNorm ones, biases zeros.
    """
    if len(shape) < 2:
        return np.full(shape, name.endswith("weight"), np.float32)
    normal = np.random.default_rng([*name.encode()]).standard_normal(shape, np.float32)
    # The variance that PyTorch begins with.  With six times as much (He et al., 2015) the losses of
    # AlexNet in PyTorch's own two memory formats are 2% apart after these steps.
    return normal * np.float32(1 / math.sqrt(3 * math.prod(shape[1:])))


def first_losses(step: Callable[[], float]) -> list[float]:
    """Return what the first calls of a step give."""
    return [step() for _ in range(STEPS)]


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference over the second's loss; NaN if one of them has none."""
    a, b = np.array(ours), np.array(theirs)
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), np.finfo(np.float32).tiny)))
