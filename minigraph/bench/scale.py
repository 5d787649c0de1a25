"""The sizes of what is measured, by kind of device: what keeps a CPU busy a GPU hardly notices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PRODUCT = "product"  # of matrices: the step of the probe that computes


@dataclass(frozen=True)
class Scale:
    """What fits a kind of device.

    floats   of each array of an expression
    square   rows, and columns, of what softmax takes
    batches  images a step of each network
    quick    the same in a quick run
    copied   floats that the probe copies: read and written, they are as many as the expressions of
             four arrays move, since fewer may stay in a cache
    matrix   rows, and columns, of the matrices that it multiplies
    speed    operations a second, roughly; it tells the progress bar how long a turn takes
    starts   seconds of a side's start, roughly, and of one that PyTorch compiles
    """

    floats: int
    square: int
    batches: Mapping[str, int]
    quick: Mapping[str, int]
    copied: int
    matrix: int
    speed: float
    starts: tuple[float, float]

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The bytes that each step of the probe moves and the operations that it computes."""
        return {
            **dict.fromkeys(("copy", "copy by NumPy"), (8 * self.copied, 0)),
            PRODUCT: (0, 2 * self.matrix**3),
        }


SCALES = {
    "cpu": Scale(
        floats=1 << 24,
        square=1 << 12,
        batches={"mlp": 32, "alexnet": 32, "resnet18": 16, "resnet50": 8},
        quick={"mlp": 32, "alexnet": 8, "resnet18": 4, "resnet50": 2},
        copied=1 << 25,
        matrix=1536,
        speed=1e11,
        starts=(4, 20),
    ),
    # Each step of the probe takes at least a millisecond where 4 TB and 800 TFLOP a second are
    # reached; casting its operands to 16 bits is then a tenth of it or less.
    "cuda": Scale(
        floats=1 << 28,
        square=1 << 14,
        batches={"mlp": 32, "alexnet": 256, "resnet18": 256, "resnet50": 128},
        quick={"mlp": 32, "alexnet": 64, "resnet18": 32, "resnet50": 16},
        copied=1 << 29,
        matrix=1 << 14,
        speed=2e13,
        starts=(15, 60),
    ),
}


def scale(device: str) -> Scale:
    """Return the sizes for a device, of which "cuda:1" is as "cuda"."""
    return SCALES[device.partition(":")[0]]
