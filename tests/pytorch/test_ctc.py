"""Connectionist temporal classification learns what it learns in PyTorch."""

import functools

import pytest

torch = pytest.importorskip("torch")
from converted_cases import assert_agrees, converted  # noqa: E402
from image_programs import Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trained_pair import assert_learns  # noqa: E402


def batch():
    """Return sequences with labels, some of which are longer than can be said in their steps."""
    labels = torch.randint(1, 5, (4, 5))
    labels[0, :3] = torch.tensor([2, 2, 3])
    labels[1, 3:] = -1  # beyond the count
    counts, steps = torch.tensor([4, 3, 5, 0]), torch.tensor([9, 7, 4, 8])
    return torch.randn(4, 9, 6).double(), (labels, steps, counts)


def spoken(m, x):
    return m.head(m.rnn(x)[0]).log_softmax(-1).transpose(0, 1)


def padded(y, target, **options):
    labels, steps, counts = target
    return F.ctc_loss(y, labels, steps, counts, zero_infinity=True, **options)


def joined(y, target):
    labels = target[0][2]
    some = F.ctc_loss(y[:, :3], labels, (9, 7, 8), (2, 0, 3), blank=5)
    return some + F.ctc_loss(y[:, :2], labels, torch.tensor([9, 7]), torch.tensor([2, 3]))


def alone(y, target):
    labels, steps, counts = target
    return nn.CTCLoss()(y[:, 0], labels[0, :4], steps[:1], counts[:1])


def selected(y, target):
    """As in models of speech, which check labels before."""
    labels, steps, _ = target
    if labels.max() >= y.shape[-1]:
        raise ValueError(f"labels are at most {y.shape[-1] - 1}")
    mask = labels >= 0
    return F.ctc_loss(y, labels.masked_select(mask), steps, mask.sum(-1), zero_infinity=True)


def infinite(y, target):
    """The number of labels that cannot be said in their steps."""
    return F.ctc_loss(y, *target, reduction="none").isinf().double().sum() + 0 * y.sum()


LOSSES = {
    "mean": padded,
    "sum": functools.partial(padded, reduction="sum"),
    "each": lambda y, target: padded(y, target, reduction="none").square().mean(),
    "joined": joined,
    "alone": alone,
    "infinite": infinite,
}
OF_SCORES = {
    name: lambda x, *target, loss=loss: loss(x.log_softmax(-1).transpose(0, 1), target)
    for name, loss in LOSSES.items()
}


@pytest.fixture(scope="module")
def converted_losses():
    scores, target = batch()
    cases = [(loss, scores, *target) for loss in OF_SCORES.values()]
    return dict(zip(OF_SCORES, converted(cases), strict=True))


@pytest.mark.parametrize("name", OF_SCORES)
def test_losses_and_their_gradients_are_pytorch_s(name, converted_losses):
    scores, target = batch()
    assert_agrees(OF_SCORES[name], *converted_losses[name], (scores, *target))


def test_a_recognizer_learns_what_it_learns_in_pytorch():
    model = Net(spoken, rnn=nn.GRU(6, 5, batch_first=True), head=nn.Linear(5, 6))
    assert_learns(model, batch, selected)
