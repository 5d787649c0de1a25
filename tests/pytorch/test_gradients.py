"""Gradients of a converted model at the points where an operator has a convention of its own."""

import numpy as np
import pytest

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
F = torch.nn.functional


class Model(torch.nn.Module):
    """A module that computes what a function does."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def agrees(function, *tensors):
    """Assert that a function and its gradients for all tensors of floats are those of torch."""
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in tensors]
    y = function(*given)
    wanted = torch.autograd.grad(y.sum(), [x for x in given if x.requires_grad])
    net = mgt.convert(Model(function), tensors)
    inputs = [mg.input(f"x{i}", tuple(x.shape), x.numpy().dtype) for i, x in enumerate(tensors)]
    made = net(*inputs)
    floats = [x for x, given in zip(inputs, tensors, strict=True) if given.is_floating_point()]
    compiled = mg.comp_graph("reference").compile(inputs, [made, *mg.grad(made.sum(), floats)])
    found = compiled(*(x.numpy() for x in tensors))
    for ours, theirs in zip(found, (y.detach(), *wanted), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_a_padding_token_is_not_learnt():
    tokens = torch.tensor([[0, 2, 4], [2, 2, 0]])
    for padding in (None, 0, 2, -1):
        agrees(
            lambda w, x, p=padding: F.embedding(x, w, p) ** 2, torch.randn(5, 3).double(), tokens
        )


def test_a_gradient_that_depends_on_how_often_a_token_occurs_is_refused():
    layer = torch.nn.Embedding(5, 3, scale_grad_by_freq=True)
    tokens = torch.tensor([0, 2])
    with pytest.raises(mg.GraphError, match=r"aten.embedding.*no scale_grad_by_freq"):
        mgt.convert(layer, (tokens,))(mg.input("tokens", (2,), "int64"))


def test_a_negative_token_is_an_error():
    tokens = mg.input("tokens", (2,), "int64")
    made = mgt.convert(torch.nn.Embedding(5, 3), (torch.tensor([0, 2]),))(tokens)
    with pytest.raises(mg.GraphError, match="-1"):
        mg.comp_graph("reference").compile([tokens], made)(np.array([0, -1]))


HALVES = torch.arange(-6, 7).double() / 2
X, Y = HALVES[:, None].expand(13, 13).contiguous(), HALVES.expand(13, 13).contiguous()
FAR = torch.tensor([-1e30, -1e3, 0.0, 1e3, 1e30], dtype=torch.float64)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_left_of_a_multiple_grows_with_it(sign):
    apart = Y[:, Y[0] != 0]
    agrees(lambda x, y: torch.fmod(x, y) + sign * x, X[:, : apart.shape[1]], apart)
    agrees(lambda x: torch.fmod(x, sign * 1.5), HALVES)


def test_one_of_equals_along_an_axis_gets_the_gradient():
    for axis in (0, 1, -1):
        agrees(lambda x, axis=axis: torch.max(x, axis)[0] * 2, torch.trunc(X * Y))
        agrees(lambda x, axis=axis: torch.min(x, axis, keepdim=True)[0] * x, torch.trunc(X * Y))


@pytest.mark.parametrize(
    "function",
    [
        F.hardtanh,
        F.relu6,
        F.selu,
        F.celu,
        F.elu,
        F.hardswish,
        F.hardshrink,
        F.softshrink,
        torch.sinc,
    ]
    + [torch.relu, F.leaky_relu, F.softplus, F.mish, F.silu, F.gelu, F.logsigmoid],
    ids=lambda function: function.__name__,
)
def test_activations_have_the_slopes_of_torch_at_their_bounds(function):
    agrees(function, torch.cat((HALVES * 2, FAR)))


def test_bounds_that_are_reached_pass_the_gradient():
    agrees(lambda x: torch.clamp_min(x, 0.5) + torch.clamp_max(x, -1), HALVES)
    agrees(torch.clamp_min, X, Y)
    agrees(torch.clamp_max, X, Y)
    agrees(lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x), 0.5), X, Y)


def test_the_deviation_of_equals_has_a_gradient():
    x = torch.tensor([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]], dtype=torch.float64)
    agrees(lambda x: torch.std(x, 1) + torch.var(x, 1), x)
    agrees(lambda x: torch.add(*torch.std_mean(x, 1)), x)
    agrees(lambda x: torch.add(*torch.var_mean(x, 1, correction=0)), x)


def test_the_first_of_equals_that_are_no_nan_gets_the_gradient():
    agrees(torch.fmax, X, Y)
    agrees(torch.fmin, X, Y)


def test_xlogy_is_zero_at_zero_and_has_a_gradient_there():
    positive = Y[:, 7:]
    agrees(torch.xlogy, X[:, : positive.shape[1]], positive)
    agrees(lambda x: torch.xlogy(x, 2.0), HALVES)
    agrees(lambda x: torch.xlogy(x, 0.0), torch.zeros(2).double())


def test_the_first_of_the_largest_in_a_window_gets_the_gradient():
    x = torch.randint(0, 3, (1, 2, 5, 6, 5), generator=torch.Generator().manual_seed(0)).double()
    agrees(lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 2), padding=1) ** 2, x)
    agrees(lambda x: F.max_pool2d(x[0], 2, 1, dilation=(1, 2), ceil_mode=True) ** 2, x)
    agrees(lambda x: F.max_pool1d(x[0, 0], 3, 1, dilation=2) ** 2, x)


def test_padding_may_be_negative():
    x = torch.randn(2, 3, 5, 4).double()
    for widths in ((-1, -1, -2, 1), (1, -2), (0, -1, -1, 0, 1, -1)):
        agrees(lambda x, widths=widths: F.pad(x, widths, value=2.0) ** 2, x)
    agrees(lambda x: F.fold(F.unfold(x, 3, padding=1), (5, 4), 3, padding=1), x)


def test_windows_along_an_axis_may_overlap():
    x = torch.randn(3, 7, 2).double()
    for axis, size, step in ((1, 3, 2), (0, 3, 1), (-1, 1, 3)):
        agrees(lambda x, a=axis, n=size, k=step: x.unfold(a, n, k) ** 2, x)


def test_what_a_mask_chooses_may_be_set_to_a_number():
    def set_some(x, mask, y):
        x = x.clone()
        x[mask] = 3.0
        x[:, mask[:, 0]] = y
        x[x > 1] = y * 2
        return x * x

    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    agrees(set_some, torch.randn(3, 3, 4).double(), mask, torch.tensor(0.5).double())


def test_losses_of_pairs_and_powers_of_two():
    x, y = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    same = torch.tensor([1.0, -1, 1, 1, -1, -1]).double()
    agrees(lambda x, y: F.cosine_embedding_loss(x, y, same, margin=0.1), x, y)
    agrees(lambda x: F.hinge_embedding_loss(x, same[:, None].expand(6, 4)), x)
    agrees(lambda x, y: torch.exp2(x) + torch.logaddexp2(x, y), x, y)


def test_the_largest_of_parts_of_an_image_that_do_not_divide_it():
    x = torch.randint(0, 4, (2, 3, 7, 5), generator=torch.Generator().manual_seed(0)).double()
    agrees(lambda x: F.adaptive_max_pool2d(x, (3, 2)) ** 2, x)
    agrees(lambda x: F.adaptive_max_pool2d(x[0], 4) ** 2, x)
    agrees(lambda x: F.adaptive_max_pool1d(x[0], 3) ** 2, x)


def test_a_result_that_is_not_computed_is_an_error_and_not_none():
    def places(x):
        return F.adaptive_max_pool2d(x, (3, 2), return_indices=True)

    x = torch.randn(2, 3, 7, 5)
    net = mgt.convert(Model(places), (x,))
    with pytest.raises(mg.GraphError, match=r"returns getitem_1, which is not computed here, .*py"):
        net(mg.input("x", (2, 3, 7, 5)))
    compiled = torch.compile(places, backend="minigraph")
    with pytest.warns(mg.MinigraphWarning, match="does not make all of its results"):
        made = compiled(x)
    for ours, theirs in zip(made, places(x), strict=True):
        assert torch.equal(ours, theirs)


def test_what_is_made_of_a_result_that_is_not_computed_is_neither():
    def sequence(x, returned):
        made = F.adaptive_max_pool1d(x, 3, return_indices=True)  # the places are squeezed
        return made if returned else made[0]

    x, node = torch.randn(2, 3, 7), mg.input("x", (2, 3, 7))
    with pytest.raises(mg.GraphError, match="which is not computed here"):
        mgt.convert(Model(lambda x: sequence(x, True)), (x,))(node)
    mgt.convert(Model(lambda x: sequence(x, False)), (x,))(node)
