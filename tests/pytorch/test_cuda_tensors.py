"""Models of PyTorch on a GPU: `pytest -m cuda`.  Skipped where there is none."""

import copy

import pytest
from cuda_device import require

import minigraph as mg

torch = pytest.importorskip("torch")
mgt = pytest.importorskip("minigraph.torch")
from trained_pair import eager  # noqa: E402

nn, functional = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.cuda,
    # PyTorch's own: of a tensor that needs a gradient as a number, and of its compiler's threads.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*fork.*"),
]
OPTIONS = {"autotune": "off"}


@pytest.fixture(autouse=True)
def exact():
    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch._dynamo.reset()


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 16, 5),
    ).cuda()


class Block(nn.Module):
    """Attention behind a layer norm, as in a GPT."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, x):
        n, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).view(n, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, tokens, width)).mean(1)


def batch(device="cuda"):
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    return x.to(device), y.to(device)


def step_of(model, optimizer, example, **options):
    options = {**OPTIONS, **options}
    return mgt.training_step(model, functional.cross_entropy, optimizer, example, options=options)


def assert_close(actual, expected, tolerance=1e-4):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", ["Adam", "SGD", "RAdam"])  # the last one steps in PyTorch
def test_a_step_trains_the_model_where_it_lies(name, level):
    there = network()
    here = copy.deepcopy(there)
    theirs, ours = (getattr(torch.optim, name)(m.parameters(), 1e-2) for m in (there, here))
    places = [x.data_ptr() for x in here.state_dict().values()]
    step = step_of(here, ours, batch(), graph_opt_level=level)
    for _ in range(5):
        x, y = batch()
        loss = step(x, y)
        assert loss.is_cuda
        assert_close(loss, eager(there, theirs, (x, y)))
    assert_close(here.state_dict(), there.state_dict(), 1e-3)
    assert [x.data_ptr() for x in here.state_dict().values()] == places
    actual, expected = ours.state_dict()["state"], theirs.state_dict()["state"]
    for i, state in expected.items():
        for key, x in state.items():
            assert_close(actual[i][key].cpu(), x.cpu(), 1e-3)
    theirs.load_state_dict(ours.state_dict())  # each goes on from the other's state
    ours.load_state_dict(theirs.state_dict())
    there.load_state_dict(here.state_dict())
    x, y = batch()
    assert_close(step(x, y), eager(there, theirs, (x, y)))


def test_batches_may_come_from_the_host():
    model = network()
    adam = torch.optim.Adam(model.parameters(), 0.0)
    x, y = batch("cpu")
    step = step_of(model, adam, (x, y))
    first = step(x, y)
    assert_close(step(x.cuda(), y), first, 1e-6)


def test_a_step_comes_after_pytorchs_work_on_a_stream_and_before_what_follows():
    model = network()
    step = step_of(model, torch.optim.SGD(model.parameters(), 0.0), batch())
    x, y = batch()
    expected = step(x, y).item()
    large = torch.randn(6000, 6000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            late = torch.zeros_like(x)
            for _ in range(20):
                large = large @ large * 1e-4
            late += x  # after much work
            model[5].weight.data.mul_(1.0)
            doubled = step(late, y) * 2
            late.zero_()
            assert doubled.item() == pytest.approx(2 * expected, rel=1e-5)


def test_what_pytorch_changes_between_steps_counts():
    model = network()
    step = step_of(model, torch.optim.SGD(model.parameters(), 0.0), batch())
    x, y = batch()
    step(x, y)
    for change in (lambda w: w.data.zero_(), lambda w: setattr(w, "data", torch.ones_like(w))):
        change(model[5].weight)
        with torch.no_grad():
            running = copy.deepcopy(model[1].state_dict())
            expected = functional.cross_entropy(model(x), y)
            model[1].load_state_dict(running)
        assert_close(step(x, y), expected)


def test_a_converted_model_computes_on_the_device_of_its_tensors_alone():
    model = network().eval()
    x, _ = batch()
    net = mgt.convert(model, (x,))
    images = mg.input("images", tuple(x.shape))
    function = mg.comp_graph("cuda", OPTIONS).compile([images], net(images))
    with torch.no_grad():
        assert_close(torch.from_dlpack(function(x)), model(x))
        model[5].bias.fill_(3)
        assert_close(torch.from_dlpack(function(x)), model(x))
    with pytest.raises(mg.DeviceError, match="is in memory of another library on the cuda:0"):
        mg.comp_graph("cpu", OPTIONS).compile([images], net(images))


@pytest.mark.parametrize("make", [network, lambda: Block().cuda()], ids=["images", "attention"])
def test_pytorchs_compiler_runs_graphs_on_the_gpu(make):
    there = make()
    here = copy.deepcopy(there)
    theirs, ours = (torch.optim.SGD(m.parameters(), 1e-2) for m in (there, here))
    compiled = torch.compile(here, backend="minigraph", options=OPTIONS)
    for _ in range(3):
        x, y = batch()
        x = x if make is network else torch.randn(4, 6, 16, device="cuda")
        assert_close(eager(compiled, ours, (x, y)), eager(there, theirs, (x, y)))
    assert_close(here.state_dict(), there.state_dict())


def test_a_model_on_two_devices_is_refused():
    model = network()
    model[5].cpu()
    with pytest.raises(mg.DeviceError, match=r"5\.weight is on cpu, and the model on cuda:0"):
        step_of(model, torch.optim.SGD(model.parameters(), 0.1), batch())


require()
