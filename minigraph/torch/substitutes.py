"""Substitutes for functions of PyTorch that cannot be traced.

Most of those functions read values of tensors, to check a range or to choose a faster algorithm.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import math
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch._decomp.decompositions import lstm_impl
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from minigraph.torch import packed_sequences
from minigraph.torch.ctc import ctc_loss


def _covariance(
    x: torch.Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> torch.Tensor:
    if fweights is not None or aweights is not None:
        return torch.cov(x, correction=correction, fweights=fweights, aweights=aweights)
    rows = x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)
    centred = rows - rows.mean(1, keepdim=True)
    return (centred @ centred.mT / max(rows.shape[1] - correction, 0)).squeeze()


def _correlation(x: torch.Tensor) -> torch.Tensor:
    covariance = _covariance(x)
    if not covariance.ndim:
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    return (covariance / deviation[:, None] / deviation).clip(-1, 1)


def _gaussian_nll_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    var = var if isinstance(var, torch.Tensor) else torch.full_like(x, var)
    var = var[..., None] if var.shape == x.shape[:-1] else var
    var = var + (var.clamp(min=eps) - var).detach()
    losses = (var.log() + (x - target).square() / var + full * math.log(2 * math.pi)) / 2
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


def _fill_diagonal(x: torch.Tensor, value: float, wrap: bool = False) -> torch.Tensor:
    if x.ndim != 2 or wrap:
        return x.fill_diagonal_(value, wrap)
    x.diagonal().fill_(value)  # torch's own operator is one of strides
    return x


def _cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: Any = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Return the loss; in parts for rows that a mask selects, as torch's reads their number."""
    if label_smoothing or target.is_floating_point() or not has_free_unbacked_symbols(x):
        return F.cross_entropy(
            x, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    x = F.log_softmax(x, 1)
    return F.nll_loss(x, target, weight, size_average, ignore_index, reduce, reduction)


def _bincount(x: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
    """Return how often each integer occurs; the compiled step checks their range."""
    if not minlength:
        return torch.bincount(x, weights)
    each = torch.ones_like(x, dtype=torch.int64) if weights is None else weights.detach()
    each = each if each.dtype in (torch.int64, torch.float32) else each.double()
    return each.new_zeros(minlength).index_add(0, x.long(), each)


def _lstm(x: torch.Tensor, state: Any, weights: Any, *settings: Any) -> Any:
    """Return an LSTM's results; step by step if a projection gives h another width than c."""
    is_packed = isinstance(state, torch.Tensor)  # the second argument is then the batch sizes
    if is_packed or state[0].shape[-1] == state[1].shape[-1]:
        return torch._VF.lstm(x, state, weights, *settings)
    return lstm_impl(x, state, weights, *settings)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the selected elements by indexing, so that selections by one mask are compatible."""
    if x.shape != mask.shape:
        x, mask = torch.broadcast_tensors(x, mask)
    y = x[mask]
    y.padded = x, mask  # for `ctc_loss`, whose labels may be concatenated this way
    return y


def _isfinite(x: torch.Tensor) -> torch.Tensor:
    """Return which numbers are finite; branches on whether all are finite take the true side."""
    y = torch.isfinite(x)
    y.are_finite = True
    return y


def _all(x: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    y = torch.all(x, *args, **named)
    if hasattr(x, "are_finite"):
        y.are_finite = True
    return y


def _batch_norm(forward: Any, norm: Any, input: torch.Tensor) -> torch.Tensor:
    """Return a batch norm's result; with `momentum=None` statistics are means of all batches."""
    if norm.momentum is not None or not norm.training or norm.num_batches_tracked is None:
        return forward(norm, input)
    means = norm.running_mean, norm.running_var
    before = [mean.clone() for mean in means]
    norm.momentum = 1.0  # the statistics become those of the batch alone
    try:
        y = forward(norm, input)
    finally:
        norm.momentum = None
    for mean, old in zip(means, before, strict=True):
        mean.copy_(old + (mean - old) / norm.num_batches_tracked)
    return y


SUBSTITUTES: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.data.__get__: torch.Tensor.detach,
    torch.Tensor.fill_diagonal_: _fill_diagonal,
    torch.Tensor._is_all_true: lambda x: torch.tensor(True),  # only checks that raise call it
    torch.isfinite: _isfinite,
    torch.Tensor.isfinite: _isfinite,
    torch.all: _all,
    torch.Tensor.all: _all,
    torch.cov: _covariance,
    torch.Tensor.cov: _covariance,
    torch.corrcoef: _correlation,
    torch.Tensor.corrcoef: _correlation,
    torch._VF.lstm: _lstm,
    torch.bincount: _bincount,
    torch.Tensor.bincount: _bincount,
    torch.masked_select: _masked_select,
    torch.Tensor.masked_select: _masked_select,
    torch._VF._pack_padded_sequence: packed_sequences.pack,
    torch._VF._pad_packed_sequence: packed_sequences.pad,
    torch.Tensor.size: packed_sequences.size,
    F.ctc_loss: ctc_loss,
    F.cross_entropy: _cross_entropy,
    F.gaussian_nll_loss: _gaussian_nll_loss,
}
# Methods `forward` of modules; a substitute takes the original one first.
FORWARDS: dict[type[torch.nn.Module], Callable[..., Any]] = {
    _BatchNorm: _batch_norm,
    torch.nn.LSTM: packed_sequences.recurrent,
    torch.nn.GRU: packed_sequences.recurrent,
    torch.nn.RNN: packed_sequences.recurrent,
}


@contextlib.contextmanager
def substituted_forwards() -> Iterator[None]:
    """Let modules be traced with the methods of `FORWARDS`."""
    originals = {kind: kind.forward for kind in FORWARDS}
    for kind, substitute in FORWARDS.items():
        kind.forward = _substituted(substitute, kind.forward)
    try:
        yield
    finally:
        for kind, forward in originals.items():
            kind.forward = forward


def _substituted(substitute: Callable[..., Any], forward: Callable[..., Any]) -> Any:
    @functools.wraps(forward)  # torch.export reads the names of arguments
    def call(self: Any, *args: Any, **named: Any) -> Any:
        return substitute(forward, self, *args, **named)

    return call


def is_causal(mask: Any, hint: bool | None = None, size: int | None = None) -> bool:
    """Return whether the caller says that a mask of a transformer is causal.

    PyTorch reads the mask to use a faster kernel; the mask itself gives the same result.
    """
    return hint is True


def truth_without_error(frame: FrameType) -> bool | None:
    """Return the value of a frame's current condition for which no error is raised.

    None if neither branch raises an error: a graph cannot represent the choice.
    """
    code = [*dis.get_instructions(frame.f_code)]
    index = next(i for i, each in enumerate(code) if each.offset == frame.f_lasti)
    index += code[index].opname == "TO_BOOL"  # before the jump, since Python 3.13
    if "POP_JUMP" not in code[index].opname:
        return None
    jumps_if = code[index].opname.endswith("TRUE")
    target = next(i for i, each in enumerate(code) if each.offset == code[index].argval)
    for begin, truth in ((index + 1, not jumps_if), (target, jumps_if)):
        terminators = ("RAISE", "RETURN", "JUMP", "FOR_ITER", "SEND")
        last = next(each for each in code[begin:] if any(end in each.opname for end in terminators))
        if last.opname == "RAISE_VARARGS":
            return not truth
    return None
