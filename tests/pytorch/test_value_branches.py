"""Functions of PyTorch that look at values are captured without the look."""

import pytest

torch = pytest.importorskip("torch")
from image_programs import Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_programs import floats  # noqa: E402
from trained_pair import assert_learns  # noqa: E402


@pytest.mark.parametrize("trains", [True, False])
def test_a_transformer_takes_masks(trains):
    def translate(m, source, target):
        masks = (
            torch.ones(5, 5, dtype=torch.bool).triu(1),
            nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64),
        )
        hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        return m.head(m.transformer(source, target, *masks, src_key_padding_mask=hidden))

    transformer = nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True)
    model = Net(translate, transformer=transformer, head=nn.Linear(8, 3)).train(trains)
    assert_learns(model, lambda: (floats(2, 5, 8), floats(2, 4, 8), floats(2, 4, 3)), F.mse_loss)


def test_covariances_and_correlations_have_gradients():
    def loss(y, target):
        parts = torch.cov(y.T), y.cov(correction=0), torch.cov(y[0]), torch.corrcoef(y.T)
        return F.mse_loss(y, target) + sum(part.square().sum() for part in parts) / 100

    assert_learns(nn.Linear(4, 3), lambda: (floats(5, 4), floats(5, 3)), loss)


@pytest.mark.parametrize("options", [{"full": True}, {"reduction": "sum", "eps": 0.5}])
def test_a_gaussian_likelihood_takes_variances_of_each_form(options):
    def loss(y, target):
        var = y[:, 2].square() + 0.1
        losses = (
            F.gaussian_nll_loss(y[:, 0], target, var, **options),
            F.gaussian_nll_loss(y[:, :2], target[:, None], var, **options),
            nn.GaussianNLLLoss(**options)(y[:, :2], target[:, None], var[:, None]),
            F.gaussian_nll_loss(y[:, 1], target, 0.7, reduction="none").mean(),
        )
        return sum(losses)

    assert_learns(nn.Linear(4, 3), lambda: (floats(5, 4), floats(5)), loss)


def test_an_lstm_may_project_its_state():
    model = Net(lambda m, x: m.rnn(x)[0][:, -1], rnn=nn.LSTM(4, 6, 2, True, True, 0.0, True, 3))
    assert_learns(model, lambda: (floats(2, 3, 4), floats(2, 6)), F.mse_loss)


def test_integers_and_parts_of_a_range_are_counted():
    def counted(m, x):
        places = (x[0] * 2).long().clamp(0, 4)
        counts = places.bincount(minlength=5), torch.bincount(places, x[1].exp(), minlength=6)
        parts = x.histc(4, -1, 1), torch.histc(x, 3), (x * 0).histc(3)
        return m.head(x).sum() * sum(each.double().square().sum() for each in (*counts, *parts))

    assert_learns(Net(counted, head=nn.Linear(4, 3)), lambda: (floats(2, 4), floats()), F.mse_loss)


def test_a_branch_on_whether_all_numbers_are_finite_is_that_of_finite_ones():
    """As encoders of detectors have it, which bound numbers that overflow."""

    def bounded(m, x):
        y = m.layer(x)
        torch._check_tensor_all(x.abs() < 100)
        if not torch.isfinite(y).all():
            y = y.clamp(-1e30, 1e30)
        y = y * 2 if torch.all(y.isfinite()) else y
        return y * F.linear(y, torch.arange(3.0).double())[:, None]  # an expectation, as they have

    assert_learns(
        Net(bounded, layer=nn.Linear(4, 3)), lambda: (floats(5, 4), floats(5, 3)), F.mse_loss
    )
