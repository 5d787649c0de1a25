"""Pooling, borders and other sizes of images and sequences, as in `torch.nn`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from minigraph import ops
from minigraph.arguments import Count, Kind, Size, integers
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Node, as_node
from minigraph.nn.layer import FunctionLayer, layer_of
from minigraph.nn.module import Module
from minigraph.ops.interpolation import FACTORS, SIZES, Mode
from minigraph.ops.padding import Mode as BorderMode
from minigraph.ops.window import OutputSize, sides

SINGLE_ROW = {"kernel_size": 1, "stride": 1, "padding": 0, "output_size": 1}  # of a sequence


class PoolingLayer(FunctionLayer):
    """The base of poolings, with torch's arguments: the stride is the kernel size by default.

    axes  number of pooled axes: a sequence is an image of one row
    """

    axes: ClassVar[int] = 2
    stride: Any = None
    dilation: Any = 1
    return_indices: bool = False

    def __post_init__(self) -> None:
        if self.dilation not in (1, (1, 1)) or self.return_indices:
            raise GraphError(
                f"{type(self).__name__} supports only dilation=1 and return_indices=False"
            )
        if self.stride is None and hasattr(self, "kernel_size"):
            self.stride = self.kernel_size

    def forward(self, x: Any) -> Node:
        arguments = self._arguments()
        if self.axes == 2:
            return self.function(x, **arguments)
        x = as_node(x)
        if x.ndim != 3:
            raise ShapeError(f"the input is (n, c, length), not {x.shape}")
        for name in arguments.keys() & SINGLE_ROW.keys():
            arguments[name] = (SINGLE_ROW[name], arguments[name])
        return ops.squeeze(self.function(ops.expand_dims(x, 2), **arguments), 2)


@layer_of(ops.max_pool2d)
class MaxPool2d(PoolingLayer):
    kernel_size: Annotated[Any, sides(1)]
    stride: Annotated[Any, sides(1)] | None = None
    padding: Annotated[Any, sides(0)] = 0
    dilation: Annotated[Any, sides(1)] = 1
    return_indices: bool = False
    ceil_mode: bool = False

    _repr_format = (
        "kernel_size={kernel_size}, stride={stride}, padding={padding}, dilation={dilation}, "
        "ceil_mode={ceil_mode}"
    )


@layer_of(ops.avg_pool2d)
class AvgPool2d(PoolingLayer):
    kernel_size: Annotated[Any, sides(1)]
    stride: Annotated[Any, sides(1)] | None = None
    padding: Annotated[Any, sides(0)] = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    _repr_format = "kernel_size={kernel_size}, stride={stride}, padding={padding}"


@layer_of(ops.adaptive_avg_pool2d)
class AdaptiveAvgPool2d(PoolingLayer):
    output_size: OutputSize


@layer_of(ops.adaptive_max_pool2d)
class AdaptiveMaxPool2d(PoolingLayer):
    output_size: OutputSize
    return_indices: bool = False


@layer_of(ops.max_pool2d)
class MaxPool1d(PoolingLayer):
    """The largest element of each window of sequences (n, c, length); arguments as `MaxPool2d`.

    >>> nn.MaxPool1d(2)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 50)
    """

    axes = 1
    kernel_size: Count
    stride: Count | None = None
    padding: Size = 0
    dilation: Count = 1
    return_indices: bool = False
    ceil_mode: bool = False

    _repr_format = MaxPool2d._repr_format


@layer_of(ops.avg_pool2d)
class AvgPool1d(PoolingLayer):
    """The mean of each window of sequences (n, c, length); stride None is the kernel size.

    >>> nn.AvgPool1d(2)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 50)
    """

    axes = 1
    kernel_size: Count
    stride: Count | None = None
    padding: Size = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    _repr_format = "kernel_size=({kernel_size},), stride=({stride},), padding=({padding},)"


@layer_of(ops.adaptive_avg_pool2d)
class AdaptiveAvgPool1d(PoolingLayer):
    """A sequence of `output_size` elements, each the mean of its part of (n, c, length).

    >>> nn.AdaptiveAvgPool1d(4)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 4)
    """

    axes = 1
    output_size: Count


@layer_of(ops.adaptive_max_pool2d)
class AdaptiveMaxPool1d(PoolingLayer):
    """A sequence of `output_size` elements, each the largest of its part of (n, c, length).

    return_indices  exists for torch's order of arguments; only False is supported

    >>> nn.AdaptiveMaxPool1d(4)(mg.input("x", (8, 16, 100))).shape
    (8, 16, 4)
    """

    axes = 1
    output_size: Count
    return_indices: bool = False


def _border(axes: int) -> Kind:
    """Return the kind of widths of a border: one, or one for each side in torch's order."""

    def parse(value: Any) -> tuple[int, ...]:
        widths = integers(value)
        if len(widths) == 1 and not isinstance(value, list | tuple):
            widths *= 2 * axes
        if len(widths) != 2 * axes or min(widths) < 0:
            raise ValueError
        return widths

    sides = ", ".join(("left", "right", "top", "bottom")[: 2 * axes])
    return Kind(f"an integer >= 0 or {2 * axes} of them ({sides})", parse, ShapeError)


class Border(Module):
    """x (n, c, ...) with a border around its last axes.

    padding  the width of the border on all sides, or on each, those of the last axis first
    """

    axes: ClassVar[int]
    mode: ClassVar[BorderMode]
    padding: Any

    _repr_format = "{padding}"

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim != self.axes + 2:
            layout = "(n, c, length)" if self.axes == 1 else "(n, c, h, w)"
            raise ShapeError(f"the input is {layout}, not {x.shape}")
        sides = list(zip(self.padding[::2], self.padding[1::2], strict=True))[::-1]
        value = getattr(self, "value", 0.0)  # a class attribute would make the field optional
        return ops.pad(x, ((0, 0), (0, 0), *sides), value, mode=self.mode)


@layer_of()
class Border1d(Border):
    padding: Annotated[Any, _border(1)]

    axes = 1


@layer_of()
class Border2d(Border):
    padding: Annotated[Any, _border(2)]

    axes = 2


@layer_of()
class ReflectionPad1d(Border1d):
    """Sequences (n, c, length) with a border that mirrors them at their first and last element.

    >>> x = mg.input("x", (1, 1, 3))
    >>> cg.compile([x], nn.ReflectionPad1d(2)(x))([[[1.0, 2.0, 3.0]]])
    array([[[3., 2., 1., 2., 3., 2., 1.]]], dtype=float32)
    """

    mode = "reflect"


@layer_of()
class ReflectionPad2d(Border2d):
    """Images (n, c, h, w) with a border that mirrors them at their outermost pixels.

    >>> nn.ReflectionPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "reflect"


@layer_of()
class ReplicationPad1d(Border1d):
    """Sequences (n, c, length) with a border of their first and last element.

    >>> x = mg.input("x", (1, 1, 3))
    >>> cg.compile([x], nn.ReplicationPad1d(2)(x))([[[1.0, 2.0, 3.0]]])
    array([[[1., 1., 1., 2., 3., 3., 3.]]], dtype=float32)
    """

    mode = "replicate"


@layer_of()
class ReplicationPad2d(Border2d):
    """Images (n, c, h, w) with a border of their outermost pixels.

    >>> nn.ReplicationPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "replicate"


@layer_of()
class CircularPad2d(Border2d):
    """Images (n, c, h, w) with a border of the pixels of the opposite side.

    >>> nn.CircularPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "circular"


@layer_of()
class ZeroPad2d(Border2d):
    """Images (n, c, h, w) with a border of zeros.

    >>> nn.ZeroPad2d(1)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 34, 34)
    """

    mode = "constant"


@layer_of()
class ConstantPad2d(Border2d):
    """Images (n, c, h, w) with a border of `value`.

    >>> nn.ConstantPad2d((1, 2, 0, 0), 0.5)(mg.input("x", (8, 3, 32, 32))).shape
    (8, 3, 32, 35)
    """

    value: float

    mode = "constant"
    _repr_format = "padding={padding}, value={value}"


@layer_of(ops.interpolate)
class Upsample(FunctionLayer):
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
    """Images (n, c, h, w) of another size; each pixel copies the pixel of x that covers it.

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
