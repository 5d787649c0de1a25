"""`torch.nn.functional.ctc_loss`: the likelihood of labels, over all their alignments.

Graves et al., 2006: connectionist temporal classification.
"""

from __future__ import annotations

from typing import Any

import torch

from minigraph import ops
from minigraph.graph import Node
from minigraph.torch.operators import define

LOG_ZERO = -1e30  # the logarithm of a probability of 0; finite, so differences are not NaN
MISCOUNTED = "target_lengths are not the numbers of labels that the mask selects"


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any,
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return the loss; `targets` are padded rows, or labels one sequence after the other."""
    device, is_unbatched = log_probs.device, log_probs.ndim == 2
    steps, counts = (
        torch.as_tensor(x, device=device).long().reshape(-1)
        for x in (input_lengths, target_lengths)
    )
    log_probs = log_probs[:, None] if is_unbatched else log_probs
    if hasattr(targets, "padded") and targets.padded[1].ndim == 2:
        padded, mask = targets.padded
        first = (~mask).long().sort(dim=1, stable=True).indices
        matches = mask.sum(1) == counts
        targets = torch.ops.minigraph.check(padded.gather(1, first), matches, MISCOUNTED)
    elif targets.ndim == 1 and not is_unbatched:
        is_list = isinstance(target_lengths, list | tuple)
        positions = torch.arange(max(target_lengths) if is_list else len(targets), device=device)
        positions = (counts.cumsum(0) - counts)[:, None] + positions
        targets = targets[positions.clamp(max=len(targets) - 1)]
    targets = targets.long().reshape(log_probs.shape[1], -1)
    has_label = torch.arange(targets.shape[1], device=device) < counts[:, None]
    targets = torch.where(has_label, targets, blank)
    losses = torch.ops.minigraph.ctc_loss(log_probs, targets, steps, counts, blank)
    losses = torch.where(losses > -LOG_ZERO / 2, 0 if zero_infinity else torch.inf, losses)
    if reduction == "mean":
        return (losses / counts.clamp(min=1)).mean()
    losses = losses[0] if is_unbatched else losses
    return losses.sum() if reduction == "sum" else losses


def _losses(log_probs: Node, targets: Node, steps: Node, counts: Node, blank: int) -> Node:
    """Return the negative log likelihood of each sequence.

    log_probs  (length, n, classes)
    targets    (n, labels), of which each row has `counts`
    steps      numbers of steps of the sequences in `log_probs` (n,)
    """
    length, n, _ = log_probs.shape
    labels = ops.pad(ops.expand_dims(targets, -1), [(0, 0), (0, 0), (1, 0)], blank)
    labels = ops.pad(ops.reshape(labels, (n, -1)), [(0, 0), (0, 1)], blank)  # blanks between them
    states = labels.shape[1]
    emitted = ops.gather(log_probs, 2, ops.broadcast_to(labels[None], (length, n, states)))
    # A blank may be left out between labels that differ.
    may_skip = labels != _shifted(labels, 2, blank)
    first = ops.where(ops.arange(states) < 2, emitted[0], LOG_ZERO)
    is_step = ops.expand_dims(ops.arange(length)[:, None] < steps, -1)  # (length, n, 1)

    def step(scores: Node, inputs: Any) -> tuple[Node, None]:
        emitted, is_valid = inputs
        skipped = ops.where(may_skip, _shifted(scores, 2, LOG_ZERO), LOG_ZERO)
        total = ops.logaddexp(ops.logaddexp(scores, _shifted(scores, 1, LOG_ZERO)), skipped)
        total = ops.maximum(total + emitted, LOG_ZERO)
        return ops.where(is_valid, total, scores), None

    last, _ = ops.scan(step, first, (emitted[1:], is_step[1:]))
    last_state = 2 * ops.expand_dims(counts, -1)  # at the last blank, or at the label before it
    of_blank, of_label = (ops.gather(last, 1, ops.maximum(last_state - k, 0))[:, 0] for k in (0, 1))
    # PyTorch's gradient is that of logits, which a softmax before it does not change.
    probabilities = ops.sum(ops.where(is_step, ops.exp(log_probs), 0), (0, 2))
    log_likelihood = ops.logaddexp(of_blank, ops.where(counts > 0, of_label, LOG_ZERO))
    return probabilities - ops.stop_gradient(probabilities) - log_likelihood


def _shifted(x: Node, by: int, value: float) -> Node:
    """Return x shifted right along its last axis by some elements, which get `value`."""
    return ops.pad(x, [(0, 0), (by, 0)], value)[:, : x.shape[1]]


define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor steps, Tensor counts, int blank) -> Tensor",
    lambda x, targets, *unused: x.new_empty(targets.shape[0]),
    _losses,
)
