"""Images and sequences of another size, as in `torch.nn`."""

from __future__ import annotations

from typing import Any

from minigraph import ops
from minigraph.nn.layer import FunctionLayer, layer_of
from minigraph.ops.interpolation import FACTORS, SIZES, Mode


@layer_of(ops.interpolate)
class Upsample(FunctionLayer):
    """`ops.interpolate` of x (n, c, ...): to `size`, or by `scale_factor`.

    >>> nn.Upsample(scale_factor=2, mode="bilinear")(mg.input("x", (8, 3, 16, 16))).shape
    (8, 3, 32, 32)
    """

    size: SIZES | None = None
    scale_factor: FACTORS | None = None
    mode: Mode = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def __post_init__(self) -> None:
        for name in ("size", "scale_factor"):  # one number for all axes is shown as a number
            numbers: Any = getattr(self, name)
            if numbers is not None and len(numbers) == 1:
                setattr(self, name, numbers[0])

    def extra_repr(self) -> str:
        name = "size" if self.scale_factor is None else "scale_factor"
        return f"{name}={getattr(self, name)!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Images (n, c, h, w) of another size, each pixel that of x which covers it.

    >>> nn.UpsamplingNearest2d(scale_factor=2)(mg.input("x", (8, 3, 16, 16))).shape
    (8, 3, 32, 32)
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Images (n, c, h, w) of another size by bilinear interpolation, with aligned corners.

    >>> nn.UpsamplingBilinear2d(size=(20, 30))(mg.input("x", (8, 3, 16, 16))).shape
    (8, 3, 20, 30)
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
