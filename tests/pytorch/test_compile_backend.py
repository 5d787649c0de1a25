"""`torch.compile(model, backend="minigraph")`: beside the same model run by PyTorch itself."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

OPTIONS = {"autotune": "off"}

# PyTorch's own: of a tensor that needs a gradient as a number, and of its compiler's threads.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*fork.*")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, **named):
    named.setdefault("options", OPTIONS)
    return torch.compile(model, backend="minigraph", **named)


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.RMSNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16, bias=False)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16))

    def forward(self, x):
        n, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.mlp(self.norm2(x))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.0),
        nn.Linear(4, 5),
    )


def turned(x):
    """Return pairs of columns turned by an angle, written into an empty tensor, as by some GPTs."""
    y, (a, b) = torch.empty_like(x), (x[:, ::2], x[:, 1::2])
    y[:, ::2], y[:, 1::2] = a * 0.8 - b * 0.6, a * 0.6 + b * 0.8
    return y


def unusual():
    return nn.Sequential(
        nn.Linear(6, 8, bias=False),
        Lambda(turned),
        nn.BatchNorm1d(8, affine=False),
        nn.PReLU(),
        Lambda(lambda x: torch.cat([x.sin(), x.clamp(-0.5, 0.5).cumsum(1)], 1).t()),
        Lambda(lambda x: x.contiguous().t().softmax(1) * x.max()),
        nn.Linear(16, 10),
        nn.GLU(),
        nn.Hardtanh(-0.3, 0.3),
        Lambda(lambda x: x + (x > 0) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])),
    )


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(9, 16, padding_idx=0), layer, nn.Linear(16, 5))


NETWORKS = {
    "cnn": (cnn, lambda: torch.randn(4, 3, 8, 8), (4,)),
    "cnn in evaluation": (lambda: cnn().eval(), lambda: torch.randn(4, 3, 8, 8), (4,)),
    "u-net": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.LocalResponseNorm(3),
            Lambda(lambda x: torch.cat([x, F.interpolate(F.max_pool2d(x, 2), scale_factor=2)], 1)),
            nn.Conv2d(8, 5, 1),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            Lambda(lambda x: x.permute(0, 2, 3, 1)[:, [0, 3, 3]][..., [4, 1, 0, 2, 4]]),
        ),
        lambda: torch.randn(2, 3, 4, 4),
        (2, 3, 8),
    ),
    "encoder": (encoder, lambda: torch.randint(0, 9, (3, 7)), (3, 7)),
    "blocks of queries": (Block, lambda: torch.randn(1, 300, 16), (1, 300)),
    "unusual": (unusual, lambda: torch.randn(6, 6), (6,)),
}


def step(model, optimizer, x, labels):
    optimizer.zero_grad()
    y = model(x)
    loss = F.cross_entropy(y.flatten(0, -2), labels.flatten())
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", NETWORKS)
def test_training_is_that_of_pytorch(name, recwarn):
    make, inputs, labels = NETWORKS[name]
    model = make().double() if name == "unusual" else make()
    ours = copy.deepcopy(model)
    function = compiled(ours, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, ours)]
    for _ in range(5):
        x, t = inputs(), torch.randint(0, 5, labels)
        x = x.double() if name == "unusual" else x
        losses = [step(*pair, x, t) for pair in zip((model, function), optimizers, strict=True)]
        np.testing.assert_allclose(*losses, rtol=2e-6)
        for p, q in zip(model.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=5e-6)
    for p, q in zip(model.state_dict().values(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    assert [str(w.message) for w in recwarn if "run in PyTorch" in str(w.message)] == []


def test_a_compiled_step_of_an_optimizer_is_minigraph_s(recwarn):
    ours, theirs = (torch.arange(4.0, requires_grad=True) for _ in range(2))

    def train(x):
        optimizer = torch.optim.AdamW([x], lr=0.1)
        compiled = torch.compile(optimizer.step, backend="minigraph") if x is ours else None
        for _ in range(2):
            x.grad = torch.cos(x.detach())
            (compiled or optimizer.step)()
        return x.detach()

    torch.testing.assert_close(train(ours), train(theirs))
    assert not [each for each in recwarn if "run in PyTorch" in str(each.message)]


def test_inference_reads_the_weights_that_there_are():
    model = cnn().eval()
    function, x = compiled(model), torch.randn(2, 3, 8, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)
            for p in model.parameters():
                p.data = p.data * 1.5  # other memory
            torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)


def test_results_of_all_kinds_are_those_of_pytorch():
    def everything(x, i):
        y = x * 2
        view = y.t()
        x.add_(1)  # a mutation of an input, which PyTorch's compiler writes back
        return (
            x,
            x[1:],
            view,
            y.sum(),
            None,
            3,
            i + 1,
            y > 0,
            y[:, None].expand(2, 3, 3),
            y.bfloat16(),
        )

    x, i = torch.randn(2, 3), torch.arange(3)
    mine = x.clone()
    with torch.no_grad():
        expected, actual = everything(x, i), compiled(everything, fullgraph=True)(mine, i)
    torch.testing.assert_close(mine, x)
    for a, b in zip(expected, actual, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            torch.testing.assert_close(a, b)
        else:
            assert a == b
    assert actual[0] is mine and actual[1].data_ptr() == mine[1:].data_ptr()


def test_results_belong_to_the_caller():
    function = compiled(lambda x: x + 1)
    first = function(torch.zeros(3))
    results = [function(torch.full((3,), float(i))) for i in range(1, 5)]
    assert [first.tolist(), *[y.tolist() for y in results]] == [[float(i)] * 3 for i in range(1, 6)]


def test_an_operator_without_a_row_runs_in_pytorch():
    @torch.library.custom_op("minigraph_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    doubled.register_fake(lambda x: torch.empty_like(x))
    doubled.register_autograd(lambda ctx, dy: dy * 2)

    def function(x):
        return torch.fft.rfft(doubled(x.sin()).relu()).abs().exp()

    x = torch.randn(4, 6, requires_grad=True)
    mine = x.detach().clone().requires_grad_()
    function(x).sum().backward()
    with pytest.warns(match="these operators run in PyTorch") as caught:
        y = compiled(function, fullgraph=True)(mine)
        y.sum().backward()
    torch.testing.assert_close(mine.grad, x.grad, rtol=1e-4, atol=1e-5)
    first = str(caught[0].message)
    assert "minigraph_tests.doubled.default (1: at " in first and "aten._fft_r2c.default" in first
    assert "aten.sin" not in first


def test_a_graph_checks_labels(recwarn):
    def function(x, labels):
        return x.softmax(-1) * F.one_hot(labels, 5)

    x, labels = torch.randn(3, 5), torch.tensor([4, 0, 1])
    ours = compiled(function)
    torch.testing.assert_close(ours(x, labels), function(x, labels))
    with pytest.raises(ValueError, match=r"Class values must be smaller than num_classes"):
        ours(x, labels + 1)
    assert [str(w.message) for w in recwarn if "run in PyTorch" in str(w.message)] == []


def test_a_row_that_takes_less_than_the_operator_runs_in_pytorch():
    def function(x):
        return F.max_pool2d(x.relu(), 65, return_indices=True)

    x = torch.randn(1, 2, 66, 66)
    with pytest.warns(match=r"max_pool2d_with_indices.default \(1: its row does not compute all"):
        torch.testing.assert_close(compiled(function)(x), function(x))


def test_python_between_two_graphs_runs():
    def function(x):
        y = x * 2
        return y.exp() if y.sum().item() > 0 else y.sin()

    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(function)(x), function(x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_another_shape_compiles_again(dynamic):
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), Lambda(lambda x: x.view(-1) * len(x)))
    function = compiled(model, dynamic=dynamic)
    for n in (2, 5, 7, 2, *range(3, 14), 2):
        x = torch.randn(n, 4)
        expected = torch.autograd.grad(model(x).tanh().sum(), model.parameters())
        actual = torch.autograd.grad(function(x).tanh().sum(), model.parameters())
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_channels_stay_last_in_another_size():
    model = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)

    def function(x):
        y = model(x) * 2
        return y, y.permute(0, 2, 3, 1).view(-1), y.flatten(2)

    ours = compiled(function, dynamic=True)
    for n, size in ((2, 6), (3, 8), (5, 7)):
        x = torch.randn(n, 2, size, size).to(memory_format=torch.channels_last)
        for a, b in zip(function(x), ours(x), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


def test_dropout_follows_the_seed_of_pytorch():
    function = compiled(nn.Dropout(0.5))
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(1)
    first, second = function(x), function(x)
    assert (
        400 < int((first == 2).sum()) < 600 and int((first == 0).sum() + (first == 2).sum()) == 1000
    )
    assert (first != second).any()
    torch.manual_seed(1)
    torch.testing.assert_close(function(x), first)
    second.sum().backward()
    torch.testing.assert_close(x.grad, second.detach())


def test_autocast_is_kept(recwarn):
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
    model, x = nn.Sequential(*layers), torch.randn(4, 3, 6, 6)
    results = []
    for function in (model, compiled(model)):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x)
        assert y.dtype is torch.bfloat16
        results.append((y, *torch.autograd.grad(y.sum(), model.parameters())))
    torch.testing.assert_close(*results, rtol=5e-2, atol=0.1)
    assert [str(w.message) for w in recwarn if "in PyTorch" in str(w.message)] == []


def test_options_are_those_of_comp_graph():
    x = torch.ones(2)
    assert compiled(torch.neg, options={"graph_opt_level": 0})(x).tolist() == [-1, -1]
    with pytest.raises(Exception, match="no option is called 'graph_level'"):
        compiled(torch.neg, options={"graph_level": 0})(x)
    with pytest.raises(Exception, match="mode='max-autotune' is Inductor's"):
        torch.compile(torch.neg, backend="minigraph", mode="max-autotune")(x)


def test_the_entry_point_is_found():
    assert "minigraph" in torch._dynamo.list_backends()
