"""Masks and branches that depend on constants alone are known when a model is traced."""

import pytest

import minigraph as mg

torch = pytest.importorskip("torch")
from captured import X, agrees, interpreted  # noqa: E402
from image_programs import Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trained_pair import assert_learns  # noqa: E402

CHOSEN = torch.tensor([True, False, True])


def contrasts(codes, unused):
    """The loss of two views of each image, as programs of SimCLR write it."""
    n = len(codes)
    labels = torch.cat([torch.arange(n // 2) for _ in range(2)])
    labels = (labels[None] == labels[:, None]).float()
    codes = F.normalize(codes, dim=1)
    similar, diagonal = codes @ codes.T, torch.eye(n, dtype=torch.bool)
    labels, similar = labels[~diagonal].view(n, -1), similar[~diagonal].view(n, -1)
    positive = similar[labels.bool()].view(n, -1)
    negative = similar[~labels.bool()].view(n, -1)
    scores = torch.cat([positive, negative], 1) / 0.5
    return F.cross_entropy(scores, torch.zeros(n, dtype=torch.long))


def test_contrastive_losses_select_by_masks_of_constants():
    model = Net(lambda m, x: m.linear(x), linear=nn.Linear(3, 4))
    assert_learns(model, lambda: (torch.randn(6, 3).double(), torch.zeros(1)), contrasts)


def test_a_mask_of_the_program_selects_nodes_of_a_graph():
    def loss(y, target):
        return F.nll_loss(y[CHOSEN].log_softmax(1), target[CHOSEN])

    model = Net(lambda m, x: m.linear(x), linear=nn.Linear(3, 4))
    batch = torch.randn(3, 3).double(), torch.tensor([1, 3, 0])
    assert_learns(model, lambda: batch, loss)


def test_branches_and_positions_of_constants_are_those_of_torch():
    def forward(model, x):
        mask = torch.zeros(3, dtype=torch.bool)
        mask[1:] = True
        (at,) = torch.where(mask)
        if mask.any() and torch.tensor([2, 3]).tolist() == [2, 3]:
            x = x[at] * int(mask.sum())
        return x, mask.nonzero(), at

    agrees(forward, X)


@pytest.mark.parametrize("write", ["view", "set", "random"])
def test_what_is_written_to_a_constant_is_not_known(write):
    def forward(model, x):
        mask = torch.zeros(3)
        part = mask[1:]
        if write == "view":
            part += x[0, :2]
        elif write == "set":
            mask[1] = x[0, 0]
        else:
            part.bernoulli_(0.5)
        return x * 2 if mask.sum() > 0 else x

    with pytest.raises(mg.GraphError, match="a size or a branch depends on values"):
        interpreted(forward, X)


def test_a_counter_of_the_program_is_not_known():
    counter = torch.zeros(())

    def forward(model, x):
        counter.add_(1)
        return x * 2 if counter > 0 else x

    with pytest.raises(mg.GraphError, match="a size or a branch depends on values"):
        interpreted(forward, X)
