"""Losses against torch's of the same name and arguments."""

import numpy as np
import pytest
from beside_torch import rows
from torch_modules import assert_torchs, floats, integers, share

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")

X, Y = floats(4, 5), floats(4, 5, seed=1)
MAPS = floats(2, 5, 3)
PIXELS = integers(2, 3, below=5)
LABELS = integers(4, below=5)
HOLES = np.array([1, -100, 4, -100])
CLASSES = floats(5, seed=2, low=0.5, high=2)
LOG = np.log(share(4, 5))
RULED_OUT = np.array([[-np.inf, 1, 2], [3, -np.inf, -np.inf], [500, -500, 0]])

# Each line has what losses are called with, and the losses.
LOSSES = """
X, LABELS: CrossEntropyLoss(); CrossEntropyLoss(weight=CLASSES)
X, LABELS: CrossEntropyLoss(label_smoothing=0.2); CrossEntropyLoss(weight=CLASSES, reduction="sum")
X, LABELS: CrossEntropyLoss(reduction="sum"); NLLLoss(); NLLLoss(weight=CLASSES, ignore_index=1)
floats(2, 4, 3, 2), integers(2, 3, 2, below=4): CrossEntropyLoss()
RULED_OUT, np.array([1, 0, 0]): CrossEntropyLoss()
RULED_OUT, np.array([2, 0, 1]): CrossEntropyLoss()
RULED_OUT, np.array([0, 0, 0]): CrossEntropyLoss()
X, HOLES: CrossEntropyLoss(ignore_index=-100)
X, HOLES: CrossEntropyLoss(weight=CLASSES, ignore_index=-100, label_smoothing=0.1)
X, HOLES: CrossEntropyLoss(weight=CLASSES, ignore_index=-100, label_smoothing=0.1, reduction="none")
X, HOLES: NLLLoss(ignore_index=-100, reduction="sum")
MAPS, PIXELS: CrossEntropyLoss(ignore_index=2)
MAPS, PIXELS: CrossEntropyLoss(label_smoothing=0.2, reduction="none")
MAPS, PIXELS: CrossEntropyLoss(reduction="none"); NLLLoss(weight=CLASSES, reduction="none")
X, share(4, 5): CrossEntropyLoss(); BCEWithLogitsLoss()
X, share(4, 5): BCEWithLogitsLoss(reduction="none", weight=CLASSES)
X, share(4, 5): BCEWithLogitsLoss(reduction="sum", pos_weight=CLASSES)
MAPS, share(2, 5, 3): CrossEntropyLoss(weight=CLASSES, label_smoothing=0.1)
MAPS, share(2, 5, 3): CrossEntropyLoss(reduction="none"); CrossEntropyLoss(reduction="sum")
X, Y: MSELoss(reduction="mean"); MSELoss(reduction="sum"); MSELoss(reduction="none")
X, Y: L1Loss(reduction="mean"); L1Loss(reduction="sum"); L1Loss(reduction="none")
X, Y: SmoothL1Loss(reduction="mean"); SmoothL1Loss(reduction="sum"); SmoothL1Loss(reduction="none")
X, Y: SmoothL1Loss(reduction="mean", beta=0.3); SmoothL1Loss(reduction="sum", beta=0.3)
X, Y: SmoothL1Loss(reduction="none", beta=0.3); SmoothL1Loss(reduction="mean", beta=0)
X, Y: SmoothL1Loss(reduction="sum", beta=0); SmoothL1Loss(reduction="none", beta=0)
X, Y: HuberLoss(reduction="mean"); HuberLoss(reduction="sum"); HuberLoss(reduction="none")
X, Y: HuberLoss(reduction="mean", delta=0.7); HuberLoss(reduction="sum", delta=0.7)
X, Y: HuberLoss(reduction="none", delta=0.7)
LOG, share(4, 5): KLDivLoss(); KLDivLoss(reduction="batchmean"); KLDivLoss(reduction="none")
LOG, LOG: KLDivLoss(reduction="sum", log_target=True)
share(4, 5), share(4, 5): BCELoss(); BCELoss(reduction="sum")
share(4, 5), (Y > 0) * 1.0: BCELoss(reduction="none", weight=CLASSES)
100 * X, share(4, 5): BCEWithLogitsLoss()
"""


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # KLDivLoss in torch
@pytest.mark.parametrize(("xs", "call"), rows(LOSSES))
def test_losses_are_torchs(xs, call):
    assert_torchs(call, eval(f"[{xs}]"), CLASSES=CLASSES)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_plain_cross_entropy_is_one_op_at_level_2_whatever_its_reduction(reduction):
    x, labels = mg.input("x", (4, 5)), mg.input("labels", (4,), "int64")
    loss = ops.cross_entropy(x, labels, reduction=reduction).sum()
    cg = mg.comp_graph(options={"graph_opt_level": 2})
    step = cg.compile([x, labels], [loss, *mg.grad(loss, [x])])
    assert "cross_entropy_backward" in step.report().section("steps")


def test_a_class_of_probability_0_adds_nothing_to_a_divergence():
    target = np.where(X > 1, 0, share(4, 5))
    result = ops.kl_div(LOG, target, reduction="batchmean")
    want = torch.nn.functional.kl_div(
        torch.tensor(LOG), torch.tensor(target), reduction="batchmean"
    )
    np.testing.assert_allclose(Graph((), (result,))()[0], want.item(), rtol=1e-12)


def test_a_probability_of_0_or_1_has_a_finite_loss_as_in_torch():
    x, target = np.array([0, 0, 1, 1, 1e-30]), np.array([0.0, 1, 0, 1, 1])
    node = mg.input("x", x.shape, "float64")
    losses = ops.binary_cross_entropy(node, target, reduction="none")
    result, gradient = Graph((node,), (losses, *mg.grad(losses.sum(), [node])))(x)
    want = torch.nn.functional.binary_cross_entropy(
        torch.tensor(x), torch.tensor(target), reduction="none"
    )
    np.testing.assert_allclose(result, want)
    assert np.isfinite(gradient).all()
    assert np.isnan(Graph((node,), (losses,))(x * np.nan)[0]).all()
