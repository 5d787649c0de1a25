"""Gradients of a converted model at the points where an operator has a convention of its own."""

import functools
import itertools

import numpy as np
import pytest

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
from converted_cases import Functions, assert_agrees, converted  # noqa: E402

F = torch.nn.functional


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()


def equals(stop, *shape):
    """Integers less than `stop`, of which many are equal."""
    return torch.randint(0, stop, shape, generator=torch.Generator().manual_seed(0)).double()


HALVES = torch.arange(-6, 7).double() / 2
X, Y = HALVES[:, None].expand(13, 13).contiguous(), HALVES.expand(13, 13).contiguous()
APART = Y[:, Y[0] != 0]
FAR = torch.tensor([-1e30, -1e3, 0.0, 1e3, 1e30], dtype=torch.float64)
BOUNDS = torch.cat((HALVES * 2, FAR))
TRUNCATED = torch.trunc(X * Y)
DEVIATING = torch.tensor([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]], dtype=torch.float64)
MASK = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
SIGNS = torch.tensor([1.0, -1, 1, 1, -1, -1]).double()
PAIRS = random(6, 4), random(7, 4)[1:]
VOLUME, IMAGE, WINDOWS = equals(3, 1, 2, 5, 6, 5), equals(4, 2, 3, 7, 5), random(3, 7, 2)
SAME = F.affine_grid(torch.eye(3, 4).double()[None], (1, 1, 5, 6, 5), align_corners=True)
PLACES = torch.cat([SAME, random(1, 5, 6, 5, 3)], 1)
TOKENS = torch.tensor([[0, 2, 4], [2, 2, 0]])


SCORES = torch.arange(-5, 7).double().view(3, 4) / 5
LABELS = torch.tensor([[2, -1, -1, 1], [0, 3, 1, -1], [-1, 0, 0, 0]])


def set_parts(x):
    y = x.clone()
    y[:, 0] = 5
    y[1] += 1
    y[:, 1:3].mul_(2)
    return y * x


def set_some(x, mask, y):
    x = x.clone()
    x[mask] = 3.0
    x[:, mask[:, 0]] = y
    x[x > 1] = y * 2
    return x * x


ACTIVATIONS = (
    *(F.hardtanh, F.relu6, F.selu, F.celu, F.elu, F.hardswish, F.hardshrink, F.softshrink),
    *(torch.relu, torch.sinc, F.leaky_relu, F.softplus, F.mish, F.silu, F.gelu, F.logsigmoid),
)
# What is shown, and functions with their tensors.
CASES = {
    **{f"{f.__name__} has torch's slopes at its bounds": [(f, BOUNDS)] for f in ACTIVATIONS},
    "a padding token is not learnt": [
        (lambda w, x, p=padding: F.embedding(x, w, p) ** 2, random(5, 3), TOKENS)
        for padding in (None, 0, 2, -1)
    ],
    "what is left of a multiple grows with it": [
        (lambda x, y: torch.fmod(x, y) + x, X[:, : APART.shape[1]], APART),
        (lambda x, y: torch.fmod(x, y) - x, X[:, : APART.shape[1]], APART),
        (lambda x: torch.fmod(x, 1.5), HALVES),
        (lambda x: torch.fmod(x, -1.5), HALVES),
    ],
    "one of equals along an axis gets the gradient": [
        case
        for axis in (0, 1, -1)
        for case in (
            (lambda x, axis=axis: torch.max(x, axis)[0] * 2, TRUNCATED),
            (lambda x, axis=axis: torch.min(x, axis, keepdim=True)[0] * x, TRUNCATED),
        )
    ],
    "bounds that are reached pass the gradient": [
        (lambda x: torch.clamp_min(x, 0.5) + torch.clamp_max(x, -1), HALVES),
        (torch.clamp_min, X, Y),
        (torch.clamp_max, X, Y),
        (lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x), 0.5), X, Y),
    ],
    "the deviation of equals has a gradient": [
        (lambda x: torch.std(x, 1) + torch.var(x, 1), DEVIATING),
        (lambda x: torch.add(*torch.std_mean(x, 1)), DEVIATING),
        (lambda x: torch.add(*torch.var_mean(x, 1, correction=0)), DEVIATING),
    ],
    "the first of equals that are no NaN gets the gradient": [
        (torch.fmax, X, Y),
        (torch.fmin, X, Y),
    ],
    "xlogy is zero at zero and has a gradient there": [
        (torch.xlogy, X[:, :6], Y[:, 7:]),
        (lambda x: torch.xlogy(x, 2.0), HALVES),
        (lambda x: torch.xlogy(x, 0.0), torch.zeros(2).double()),
    ],
    "the first of the largest in a window gets the gradient": [
        (lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 2), padding=1) ** 2, VOLUME),
        (lambda x: F.max_pool2d(x[0], 2, 1, dilation=(1, 2), ceil_mode=True) ** 2, VOLUME),
        (lambda x: F.max_pool1d(x[0, 0], 3, 1, dilation=2) ** 2, VOLUME),
    ],
    "padding may be negative": [
        *(
            (lambda x, widths=widths: F.pad(x, widths, value=2.0) ** 2, random(2, 3, 5, 4))
            for widths in ((-1, -1, -2, 1), (1, -2), (0, -1, -1, 0, 1, -1))
        ),
        (lambda x: F.fold(F.unfold(x, 3, padding=1), (5, 4), 3, padding=1), random(2, 3, 5, 4)),
    ],
    "windows along an axis may overlap": [
        (lambda x, a=axis, n=size, k=step: x.unfold(a, n, k) ** 2, WINDOWS)
        for axis, size, step in ((1, 3, 2), (0, 3, 1), (-1, 1, 3))
    ],
    "what a mask chooses may be set to a number": [
        (set_some, random(3, 3, 4), MASK, torch.tensor(0.5).double())
    ],
    "writes to parts of a tensor become values": [
        (set_parts, SCORES),
        (lambda x: (y := x * 2).fill_diagonal_(7.0) + y, SCORES),
        (lambda x: x[[0, 2]][:, None, ::2], SCORES),
        (lambda x: torch.where(x > 0, x, 0.0), SCORES),
    ],
    "labels after the first that is none have no margin": [
        *(
            (lambda x, kind=kind: F.multilabel_margin_loss(x, LABELS, reduction=kind), SCORES)
            for kind in ("none", "mean", "sum")
        ),
        (lambda x: F.multilabel_margin_loss(x[0], LABELS[0]), SCORES),
    ],
    "random slopes are their mean in evaluation": [
        (lambda x: F.rrelu(x, 0.1, 0.5), SCORES + 0.1),
    ],
    "a transposed convolution may be padded beyond its stride": [
        (
            lambda x, w: F.conv_transpose2d(x, w, dilation=2, output_padding=1),
            *(random(1, 2, 4, 5), random(2, 3, 3, 3)),
        ),
        (
            lambda x, w: F.conv_transpose3d(x, w, None, 2, 1, 1, 2, (1, 2, 2)),
            *(random(1, 4, 3, 2, 3), random(4, 3, 3, 2, 3)),
        ),
    ],
    "losses of pairs, and powers of two": [
        (lambda x, y: F.cosine_embedding_loss(x, y, SIGNS, margin=0.1), *PAIRS),
        (lambda x: F.hinge_embedding_loss(x, SIGNS[:, None].expand(6, 4)), PAIRS[0]),
        (lambda x, y: torch.exp2(x) + torch.logaddexp2(x, y), *PAIRS),
    ],
    "the largest of parts of an image that do not divide it": [
        (lambda x: F.adaptive_max_pool2d(x, (3, 2)) ** 2, IMAGE),
        (lambda x: F.adaptive_max_pool2d(x[0], 4) ** 2, IMAGE),
        (lambda x: F.adaptive_max_pool1d(x[0], 3) ** 2, IMAGE),
    ],
    "volumes are read at places, on their borders and outside, too": [
        (lambda x, at, how=how: F.grid_sample(x, at, *how) ** 2, VOLUME, PLACES)
        for how in (
            *itertools.product(("bilinear", "nearest"), ("zeros", "border"), (True, False)),
            ("bilinear", "reflection", False),
        )
    ],
}


@functools.cache
def converted_by_name():
    """Return the input nodes and the result of each function, by the names of the cases."""
    converted_cases = iter(converted([*itertools.chain(*CASES.values())]))
    return {name: [*itertools.islice(converted_cases, len(CASES[name]))] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_function_and_its_gradients_are_those_of_torch(name):
    for (function, *tensors), (nodes, result) in zip(
        CASES[name], converted_by_name()[name], strict=True
    ):
        assert_agrees(function, nodes, result, tensors)


def test_a_gradient_that_depends_on_how_often_a_token_occurs_is_refused():
    layer = torch.nn.Embedding(5, 3, scale_grad_by_freq=True)
    tokens = torch.tensor([0, 2])
    with pytest.raises(mg.GraphError, match=r"aten.embedding.*scale_grad_by_freq is not"):
        mgt.convert(layer, (tokens,))(mg.input("tokens", (2,), "int64"))


def test_a_negative_token_is_an_error():
    tokens = mg.input("tokens", (2,), "int64")
    rows = mgt.convert(torch.nn.Embedding(5, 3), (torch.tensor([0, 2]),))(tokens)
    with pytest.raises(mg.GraphError, match="-1"):
        mg.comp_graph("reference").compile([tokens], rows)(np.array([0, -1]))


def test_a_result_that_is_not_computed_is_an_error_and_not_none():
    def places(x):
        return F.adaptive_max_pool2d(x, (3, 2), return_indices=True)

    x = torch.randn(2, 3, 7, 5)
    net = mgt.convert(Functions(places), ((x,),))
    with pytest.raises(mg.GraphError, match=r"returns getitem_1, which minigraph cannot .*py"):
        net((mg.input("x", (2, 3, 7, 5)),))
    compiled = torch.compile(places, backend="minigraph")
    with pytest.warns(mg.MinigraphWarning, match="does not compute all of its results"):
        results = compiled(x)
    for ours, theirs in zip(results, places(x), strict=True):
        assert torch.equal(ours, theirs)


def test_what_is_made_of_a_result_that_is_not_computed_is_neither():
    def sequence(x, returned):
        results = F.adaptive_max_pool1d(x, 3, return_indices=True)  # the places are squeezed
        return results if returned else results[0]

    x, node = (torch.randn(2, 3, 7),), (mg.input("x", (2, 3, 7)),)
    with pytest.raises(mg.GraphError, match="which minigraph cannot compute"):
        mgt.convert(Functions(lambda x: sequence(x, True)), (x,))(node)
    mgt.convert(Functions(lambda x: sequence(x, False)), (x,))(node)
