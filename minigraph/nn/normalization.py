"""Normalisation over batches, layers and channels, as in `torch.nn`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from minigraph import ops
from minigraph.arguments import Count, Size
from minigraph.distributed.world import Processes
from minigraph.errors import ShapeError
from minigraph.graph import Node, Parameter, Shape, Sizes, as_node
from minigraph.nn import init
from minigraph.nn.init import Weights
from minigraph.nn.layer import Flag, FunctionLayer, layer_of, set_bias
from minigraph.nn.module import ModuleState


class Affine(FunctionLayer):
    """A normalisation that scales by `weight`, and then shifts by `bias`, unless they are None."""

    weight: Any
    bias: Any
    dtype: Any

    def _add_weights(self, shape: Shape, affine: bool, bias: bool = True) -> None:
        self.weight = Parameter(init.full(shape, 1, self.dtype)) if affine else None
        zeros = Parameter(init.full(shape, 0, self.dtype)) if affine and bias else None
        set_bias(self, zeros)

    def extra_repr(self) -> str:
        return self._repr_format.format(**{**vars(self), "bias": self.bias is not None})


@dataclass(eq=False, repr=False)
class BatchNormLayer(Affine):
    """Normalise x (n, num_features, ...) per channel.

    Training uses the statistics of the batch, which `updates()` mixes into the running ones;
    evaluation uses the running ones at the time of the call.

    momentum             share of the batch in the running statistics; None: equal shares of all
                         batches
    affine, bias         whether to scale by `weight`, and then to shift by `bias`
    track_running_stats  whether to have running statistics; else evaluation uses the batch's
    synchronize          `mg.distributed.world()`: statistics are of the batches of all processes
                         together, as in `torch.nn.SyncBatchNorm`; None: of each process's own
    """

    num_features: Size
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    _: KW_ONLY
    bias: Flag = True
    dtype: Weights = "float32"
    synchronize: Processes | None = None

    ndims: ClassVar[tuple[int, ...]]
    layout: ClassVar[str]
    _repr_format = (
        "{num_features}, eps={eps}, momentum={momentum}, affine={affine}, bias={bias}, "
        "track_running_stats={track_running_stats}"
    )

    def __post_init__(self) -> None:
        shape = (self.num_features,)
        self._add_weights(shape, self.affine, self.bias)
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if self.track_running_stats:
            self.running_mean = ModuleState(init.full(shape, 0, self.dtype))
            self.running_var = ModuleState(init.full(shape, 1, self.dtype))
            self.num_batches_tracked = ModuleState(0)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim not in self.ndims:
            layout = self.layout.format(self.num_features)
            raise ShapeError(f"the input is {layout}, not {x.shape}")
        mean, var, batches = self.running_mean, self.running_var, self.num_batches_tracked
        if mean is None or var is None or batches is None:
            return self._normalize_by_batch(x)[0]
        if not self.training:
            return ops.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        y, new_mean, new_var = self._normalize_by_batch(x)
        count = self.updated(batches) + 1
        self.update(batches, count)
        share = (1 / count).astype(x.dtype) if self.momentum is None else self.momentum
        values = x.size // x.shape[1]  # of a channel; the running variance is the unbiased one
        values *= self.synchronize.size if self.synchronize else 1
        unbiased = share * (values / (values - 1))
        self.update(mean, self.updated(mean) * (1 - share) + new_mean * share)
        self.update(var, self.updated(var) * (1 - share) + new_var * unbiased)
        return y

    def _normalize_by_batch(self, x: Node) -> tuple[Node, Node, Node]:
        """Return x normalised by the statistics of the batch, its mean and its variance."""
        return ops.batch_norm_with_statistics(x, self.weight, self.bias, self.eps, self.synchronize)

    def extra_repr(self) -> str:
        shared = f", synchronize={self.synchronize}" if self.synchronize else ""
        return super().extra_repr() + shared


@layer_of()
class BatchNorm1d(BatchNormLayer):
    """Batch normalisation of vectors (n, num_features) or sequences (n, num_features, length).

    >>> norm = nn.BatchNorm1d(16)
    >>> y = norm(mg.input("x", (8, 16)))
    >>> [state.name for state in norm.updates()]
    ['num_batches_tracked', 'running_mean', 'running_var']
    """

    ndims, layout = (2, 3), "(n, {0}) or (n, {0}, length)"


@layer_of()
class BatchNorm2d(BatchNormLayer):
    """Batch normalisation of images (n, num_features, h, w).

    >>> nn.BatchNorm2d(16).eval()(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 32, 32)
    """

    ndims, layout = (4,), "(n, {}, h, w)"


@layer_of()
class GroupNorm(Affine):
    """Normalise each of `num_groups` groups of the channels of x (n, num_channels, ...).

    >>> nn.GroupNorm(4, 16)(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 32, 32)
    """

    num_groups: Count
    num_channels: Size
    eps: float = 1e-5
    affine: bool = True
    _: KW_ONLY
    bias: Flag = True
    dtype: Weights = "float32"

    _repr_format = "{num_groups}, {num_channels}, eps={eps}, affine={affine}, bias={bias}"

    def __post_init__(self) -> None:
        groups, channels = self.num_groups, self.num_channels
        if channels % groups:
            raise ShapeError(f"GroupNorm: {groups} groups cannot hold {channels} channels")
        self._add_weights((channels,), self.affine, self.bias)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.shape[1:2] != (self.num_channels,):
            raise ShapeError(f"the input is (n, {self.num_channels}, ...), not {x.shape}")
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


@layer_of()
class InstanceNorm2d(Affine):
    """Normalise each channel of each image (n, num_features, h, w) by its own statistics.

    >>> nn.InstanceNorm2d(16)(mg.input("x", (8, 16, 32, 32))).shape
    (8, 16, 32, 32)
    """

    num_features: Size
    eps: float = 1e-5
    _: KW_ONLY
    affine: bool = False
    dtype: Weights = "float32"

    _repr_format = "{num_features}, eps={eps}, affine={affine}"

    def __post_init__(self) -> None:
        self._add_weights((self.num_features,), self.affine)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim != 4 or x.shape[1] != self.num_features:
            raise ShapeError(f"the input is (n, {self.num_features}, h, w), not {x.shape}")
        return ops.group_norm(x, max(self.num_features, 1), self.weight, self.bias, self.eps)


@layer_of(ops.rms_norm)
class RMSNorm(FunctionLayer):
    normalized_shape: Sizes
    eps: float | None = None
    elementwise_affine: bool = True
    dtype: Weights = "float32"

    _repr_format = "{normalized_shape}, eps={eps}, elementwise_affine={elementwise_affine}"

    def __post_init__(self) -> None:
        ones = init.full(self.normalized_shape, 1, self.dtype)
        self.weight = Parameter(ones) if self.elementwise_affine else None

    def forward(self, x: Any) -> Node:
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)


@layer_of(ops.layer_norm)
class LayerNorm(Affine):
    normalized_shape: Sizes
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: Flag = True
    dtype: Weights = "float32"

    _repr_format = RMSNorm._repr_format + ", bias={bias}"

    def __post_init__(self) -> None:
        self._add_weights(self.normalized_shape, self.elementwise_affine, self.bias)

    def forward(self, x: Any) -> Node:
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


@layer_of(ops.local_response_norm)
class LocalResponseNorm(FunctionLayer):
    size: Count
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    _repr_format = "{size}, alpha={alpha}, beta={beta}, k={k}"
