"""`torch.nn.functional.ctc_loss`: the likelihood of labels, over all places that they may have.

Graves et al., 2006: connectionist temporal classification.
"""

from __future__ import annotations

from typing import Any

import torch

from minigraph import ops
from minigraph.graph import Node
from minigraph.torch.operators import OPERATORS, ROWS

NEVER = -1e30  # the logarithm of a probability of 0, whose differences are numbers
MISCOUNTED = "target_lengths are not the numbers of labels that the mask selects"


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any,
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return the loss; `targets` are padded rows, or labels one sequence after the other."""
    device, is_one = log_probs.device, log_probs.ndim == 2
    steps, counts = (
        torch.as_tensor(x, device=device).long().reshape(-1)
        for x in (input_lengths, target_lengths)
    )
    log_probs = log_probs[:, None] if is_one else log_probs
    if hasattr(targets, "padded") and targets.padded[1].ndim == 2:
        padded, mask = targets.padded
        first = (~mask).long().sort(dim=1, stable=True).indices
        counted = mask.sum(1) == counts
        targets = torch.ops.minigraph.check(padded.gather(1, first), counted, MISCOUNTED)
    elif targets.ndim == 1 and not is_one:
        known = isinstance(target_lengths, list | tuple)
        places = torch.arange(max(target_lengths) if known else len(targets), device=device)
        places = (counts.cumsum(0) - counts)[:, None] + places
        targets = targets[places.clamp(max=len(targets) - 1)]
    targets = targets.long().reshape(log_probs.shape[1], -1)
    counted = torch.arange(targets.shape[1], device=device) < counts[:, None]
    targets = torch.where(counted, targets, blank)
    losses = torch.ops.minigraph.ctc_loss(log_probs, targets, steps, counts, blank)
    losses = torch.where(losses > -NEVER / 2, 0 if zero_infinity else torch.inf, losses)
    if reduction == "mean":
        return (losses / counts.clamp(min=1)).mean()
    losses = losses[0] if is_one else losses
    return losses.sum() if reduction == "sum" else losses


def _losses(log_probs: Node, targets: Node, steps: Node, counts: Node, blank: int) -> Node:
    """Return the negative log likelihood of each sequence.

    log_probs  (length, n, classes)
    targets    (n, labels), of which each row has `counts`
    steps      numbers of steps, of `log_probs` (n,)
    """
    length, n, _ = log_probs.shape
    labels = ops.pad(ops.expand_dims(targets, -1), [(0, 0), (0, 0), (1, 0)], blank)
    labels = ops.pad(ops.reshape(labels, (n, -1)), [(0, 0), (0, 1)], blank)  # blanks between them
    places = labels.shape[1]
    emitted = ops.gather(log_probs, 2, ops.broadcast_to(labels[None], (length, n, places)))
    # A blank may be left out between labels that differ.
    may_skip = labels != _moved(labels, 2, blank)
    first = ops.where(ops.arange(places) < 2, emitted[0], NEVER)
    later = ops.arange(1, length)[:, None] < steps  # (length - 1, n)

    def step(before: Node, at: Any) -> tuple[Node, None]:
        emitted, is_counted = at
        skipping = ops.where(may_skip, _moved(before, 2, NEVER), NEVER)
        total = ops.logaddexp(ops.logaddexp(before, _moved(before, 1, NEVER)), skipping)
        total = ops.maximum(total + emitted, NEVER)
        return ops.where(is_counted, total, before), None

    last, _ = ops.scan(step, first, (emitted[1:], ops.expand_dims(later, -1)))
    ends = 2 * ops.expand_dims(counts, -1)  # at the last blank, or at the label before it
    of_blank, of_label = (ops.gather(last, 1, ops.maximum(ends - k, 0))[:, 0] for k in (0, 1))
    # PyTorch's gradient is that of logits, which a softmax before it does not change.
    counted = ops.where((ops.arange(length)[:, None] < steps)[..., None], ops.exp(log_probs), 0)
    one = ops.sum(counted, (0, 2))
    likely = ops.logaddexp(of_blank, ops.where(counts > 0, of_label, NEVER))
    return one - ops.stop_gradient(one) - likely


def _moved(x: Node, by: int, value: float) -> Node:
    """Return x moved along its last axis, with a value before it."""
    return ops.pad(x, [(0, 0), (by, 0)], value)[:, : x.shape[1]]


ROWS["minigraph.ctc_loss.default"] = _losses
OPERATORS.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor steps, Tensor counts, int blank) -> Tensor"
)
OPERATORS.impl(
    "ctc_loss",
    lambda x, targets, *unused: x.new_empty(targets.shape[0]),
    "CompositeExplicitAutograd",
)
