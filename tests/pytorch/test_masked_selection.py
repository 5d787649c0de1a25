"""What a mask selects may be changed row by row, added up, and put back."""

import functools

import pytest

torch = pytest.importorskip("torch")
from image_programs import Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from trained_pair import Pair, assert_learns, sgd  # noqa: E402

import minigraph as mg  # noqa: E402


def batch(classes=3):
    x = torch.randn(5, 4, dtype=torch.float64)
    x[0, 0] = 0
    mask = torch.rand(5) > 0.4
    mask[1] = True
    target = torch.randint(0, classes, (5,))
    target[1] = 1  # a label that counts
    return x, target, mask, torch.randn(5, 3, dtype=torch.float64)


def of_pixels(y, target, mask, z):
    pixels = torch.stack([y, y * 2], 2)
    both = torch.stack([mask, ~mask | (target > 0)], 1)
    selected = pixels.movedim(1, -1)[both]
    return F.cross_entropy(selected, target[:, None].expand(-1, 2)[both])


def of_elements(y, target, mask, z):
    both = mask[:, None] & (z < 5)
    return F.l1_loss(y.masked_select(both), torch.masked_select(z, both))


def written(y, target, mask, z):
    y = y.clone()
    y[mask] *= 2
    y[mask] = y[mask] + z[mask].exp() * torch.tensor([1.0, 2.0, 3.0])
    y[:, 0][mask] = 1
    return y.square().mean()


def logarithms(y, target, mask, z):
    y = y.square() * mask[:, None]
    return y[mask].log().mean() + y[mask].sqrt().sum() / y[mask].numel()


def of_positives(y, target, mask, z):
    """The loss of boxes of objects, as in Fast R-CNN."""
    at = torch.where(target > 0)[0]
    boxes = torch.stack([y, y * 2], 2)[at, target[at]]
    wide = torch.cat([boxes.view(-1, 2, 1), z[at, None, :2].view(-1, 2, 1)], 2)
    return F.smooth_l1_loss(boxes, z[at][:, [0, 2]], reduction="sum") + wide.square().mean()


def put_at_positions(y, target, mask, z):
    at, none = mask.nonzero().squeeze(1), (target > 5).nonzero(as_tuple=True)[0]
    total = z.clone().index_add(0, at, y[at] * 2, alpha=0.5)
    total[at] += y.index_select(0, at) * z[at, target[at], None]
    total[at, target[at]] = y[at, 0]
    total[none] = y[none]
    total.index_add_(0, none, y[none])
    return (total * y.detach()).sum() + (z.square() + at.numel()).mean()


LOSSES = {
    "cross entropy": lambda y, target, mask, z: F.cross_entropy(y[mask], target[mask]),
    "weights": lambda y, target, mask, z: F.nll_loss(
        *(F.log_softmax(y, 1)[mask], target[mask], z.new_tensor([1, 2, 3])), ignore_index=2
    ),
    "each": lambda y, target, mask, z: (
        F.cross_entropy(y[mask], target[mask], reduction="none").square().mean()
    ),
    "elements": of_elements,
    "mse": lambda y, target, mask, z: F.mse_loss(y[mask], z[mask]),
    "smooth": lambda y, target, mask, z: (
        F.smooth_l1_loss(y[mask], z[mask], beta=0.3)
        + F.huber_loss(y[mask], z[mask], reduction="sum")
    ),
    "binary": lambda y, target, mask, z: (
        F.binary_cross_entropy(y[mask].sigmoid()[:, 0], (target[mask] > 1).double())
        + F.binary_cross_entropy_with_logits(y[mask][:, 1], target[mask].double() / 2)
    ),
    "norms": lambda y, target, mask, z: (
        y[mask].norm(dim=1).sum() / mask.sum() + F.normalize(y[mask], dim=1).amax(1).mean()
    ),
    "extrema": lambda y, target, mask, z: y[mask].max() - y[mask].amin((0, 1)) + y[mask].amax(0)[1],
    "means": lambda y, target, mask, z: (
        (y[mask].mean(0, keepdim=True) - y[mask].sum(0)).std() + y[mask].mean(1).sum()
    ),
    "gather": lambda y, target, mask, z: y[mask].softmax(1).gather(1, target[mask][:, None]).mean(),
    "masked_select": lambda y, target, mask, z: y.square().masked_select(y > y.mean()).mean(),
    "pixels": of_pixels,
    "positives": of_positives,
    "positions": put_at_positions,
    "masks": lambda y, target, mask, z: F.cross_entropy(y[target != 0], target[target != 0]),
    "written": written,
    "logarithms": logarithms,
}


TOGETHER = [[*LOSSES][i::5] for i in range(5)]  # which takes a fraction of one by one


@pytest.mark.parametrize("names", TOGETHER, ids=", ".join)
def test_losses_of_what_a_mask_selects_are_pytorch_s(names):
    def loss(outputs, unused):
        return sum(LOSSES[name](*outputs) for name in names)

    def forward(m, x, *others):
        return m.linear(x), *others

    model = Net(forward, linear=nn.Linear(4, 3))
    assert_learns(model, lambda: (*batch(), torch.zeros(1)), loss)


def test_experts_learn_from_the_tokens_that_are_routed_to_them():
    def forward(m, x):
        tokens = x.flatten(0, 1)
        weights, chosen = m.gate(tokens).softmax(1).topk(2)
        y, z = torch.zeros_like(tokens), torch.zeros_like(x)
        for i, expert in enumerate(m.experts):
            at, nth = torch.where(chosen == i)
            y.index_add_(0, at, expert(tokens[at]) * weights[at, nth, None])
            of_image = (chosen == i).any(1).view(x.shape[:2])
            z[of_image] += expert(tokens[of_image.view(-1)]) * weights[of_image.view(-1), :1]
        return y.view_as(x) + z

    parts = {"gate": nn.Linear(4, 3), "experts": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))}
    batch = torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double()
    assert_learns(Net(forward, **parts), lambda: batch, F.mse_loss)


def test_layers_take_rows_that_a_mask_selects():
    def forward(m, x, target, mask, z):
        h = F.relu(m.norm(m.first(x[mask])) + 1)
        y = torch.zeros_like(z)
        y[mask] = m.head(h)
        return y

    parts = {"first": nn.Linear(4, 6), "norm": nn.LayerNorm(6), "head": nn.Linear(6, 3)}
    assert_learns(Net(forward, **parts), lambda: (*batch(), batch()[1]), F.cross_entropy)


@pytest.mark.parametrize(
    "use",
    [
        lambda y, mask: y[mask].cumsum(0).sum(),
        lambda y, mask: y[mask].sort(0)[0].sum(),
        lambda y, mask: y[mask].logsumexp(0).sum(),
        lambda y, mask: (y[mask].T @ y[mask]).sum(),
        lambda y, mask: F.linear(y, y[mask]).square().sum(),
        lambda y, mask: y[mask].gather(1, torch.arange(2)[:, None]).sum(),
        lambda y, mask: y.index_put((mask,), y[mask], accumulate=True).sum(),
        lambda y, mask: y[mask.nonzero()[:, 0], torch.arange(5) % 3].sum(),
        lambda y, mask: y.T[:, mask.nonzero()[:, 0]].sum(),
        lambda y, mask: y.T.index_add(1, mask.nonzero()[:, 0], y.T).sum(),
        lambda y, mask: y[mask].view(2, -1).sum(),
        lambda y, mask: (y[mask] + y[~mask]).sum(),
    ],
)
def test_what_needs_the_selected_rows_together_is_refused(use):
    x, y, mask, _ = batch()
    make = functools.partial(Pair, sgd, Net(lambda m, x, k: (m.l(x), k), l=nn.Linear(4, 3)))
    with pytest.raises(mg.GraphError, match=r"a mask of bool|values of a tensor"):
        make(lambda: (x, mask, y), lambda found, unused: use(*found))
