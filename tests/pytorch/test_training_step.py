"""`minigraph.torch.training_step` learns what PyTorch's own loop learns."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from trained_pair import (  # noqa: E402
    OPTIMIZERS,
    Images,
    Pair,
    adam,
    images,
    sgd,
)

import minigraph.torch as mgt  # noqa: E402
from minigraph.errors import GraphError  # noqa: E402
from minigraph.torch.capture import capture as captured  # noqa: E402

nn, functional, optim = torch.nn, torch.nn.functional, torch.optim
TRACED = []


@pytest.fixture
def traced_once(monkeypatch):
    """Let PyTorch trace the model of images once: what differs are optimizers and schedules."""

    def capture(*args, **named):
        if not TRACED:
            TRACED.append(captured(*args, **named))
        return TRACED[0]

    monkeypatch.setattr("minigraph.torch.training.capture", capture)


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_those_of_torch(name):
    pair = Pair(OPTIMIZERS[name])
    pair.same()  # making a step changes nothing
    loss = pair.train(20)
    assert loss.shape == () and not loss.requires_grad
    pair.same()
    assert all(p.grad is None for p in pair.ours.parameters()) or name == "adamax"


SCHEDULES = {
    "one cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "lambda": lambda o: optim.lr_scheduler.LambdaLR(o, lambda t: 0.9**t),
    "plateau": lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10),
}


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("one cycle", "nesterov"), ("one cycle", "adamw"), ("cosine", "adamw")]
    + [("lambda", "nesterov"), ("plateau", "adamw")],
)
def test_schedulers_work_and_compile_nothing(name, optimizer):
    """One cycle changes momentum or betas, too; the others change the learning rate alone."""
    pair = Pair(OPTIMIZERS[optimizer])
    schedulers = [SCHEDULES[name](o) for o in pair.optimizers]
    function = pair.step.function
    for _ in range(10):
        loss = pair.train()
        for scheduler in schedulers:
            scheduler.step(*[float(loss)] * (name == "plateau"))
    pair.same()
    assert pair.step.function is function


def without_norm(parameters):
    conv, _, _, *fc = parameters
    return optim.SGD([conv, *fc], 0.1)


def test_what_changes_between_steps_counts():
    """The modes, groups, values and memory of what is trained: each as torch would see it."""
    pair = Pair(without_norm)
    other = copy.deepcopy(pair.theirs.state_dict())
    weights = [{}, {}]

    def freeze(m, o, i):
        m.conv.weight.requires_grad_(False)

    def unfreeze(m, o, i):
        m.conv.weight.requires_grad_(True)

    def swap(m, o, i):
        weights[i]["fc"] = m.fc.weight.data
        m.fc.weight.data = torch.ones_like(m.fc.weight)

    def swap_back(m, o, i):
        torch.testing.assert_close(weights[i]["fc"], weights[0]["fc"])  # nobody has written there
        m.fc.weight.data = weights[i]["fc"]

    def assign(m, o, i):
        with torch.no_grad():
            m.conv.weight.copy_(m.conv.weight * 0.5)
            m.fc.bias.data.mul_(2)

    def statistics(m, o, i):
        m.norm.running_mean = torch.full_like(m.norm.running_mean, 0.25)

    changes = [
        assign,
        swap,
        swap_back,
        statistics,
        lambda m, o, i: m.eval(),
        lambda m, o, i: m.train(),
        lambda m, o, i: m.norm.eval(),
        freeze,
        lambda m, o, i: o.param_groups[0].update(weight_decay=0.1),
        unfreeze,
        lambda m, o, i: o.param_groups[0].update(momentum=0.9, nesterov=True),
        lambda m, o, i: o.add_param_group({"params": [*m.norm.parameters()], "lr": 0.01}),
        lambda m, o, i: m.load_state_dict(copy.deepcopy(other)),
        lambda m, o, i: m.to(memory_format=torch.channels_last),
        lambda m, o, i: o.state.clear(),
        lambda m, o, i: o.load_state_dict(copy.deepcopy(o.state_dict())),
        lambda m, o, i: setattr(m.conv.weight, "data", m.conv.weight.data.transpose(2, 3)),
    ]
    for change in changes:
        for i, (model, optimizer) in enumerate(zip(pair.both, pair.optimizers, strict=True)):
            change(model, optimizer, i)
        pair.train(2)
        pair.same()
    assert len(pair.step._compiled) <= 4


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("name", ["dampening", "adam", "centered", "adagrad"])
def test_a_training_goes_on_in_either_world(name):
    pair = Pair(OPTIMIZERS[name])
    ten = [images() for _ in range(10)]
    for x in ten:
        pair.eager(0, x)
    # To ours from torch's checkpoint, as a file has it; an old one counts steps by a number.
    saved = pickle.loads(pickle.dumps((pair.theirs.state_dict(), pair.optimizers[0].state_dict())))
    pair.ours.load_state_dict(saved[0])
    pair.optimizers[1].load_state_dict(saved[1])
    for x in ten:
        pair.train(batch=x)
    # And back: torch's own step on our memory, then ours again.
    for x in ten:
        pair.eager(0, x)
        pair.eager(1, x)
    pair.optimizers[1].zero_grad()
    for x in ten:
        pair.train(batch=x)
    pair.same()


@pytest.mark.parametrize("make", [OPTIMIZERS["adam"], OPTIMIZERS["adamax"]])
def test_gradients_are_clipped_and_summed_as_in_torch(make):
    pair = Pair(make, clip_grad_norm=0.01, clip_grad_value=0.02, accumulate=3)
    theirs, ours, step = pair.theirs, pair.ours, pair.step
    for _ in range(4):
        pair.optimizers[0].zero_grad()
        for i in range(3):
            before = copy.deepcopy(ours.fc.weight)
            x = images()
            value = pair.loss(theirs(x[0]), x[1])
            (value / 3).backward()
            pair.close(step(*x), value.detach())
            assert torch.equal(before, ours.fc.weight) == (i < 2)
        nn.utils.clip_grad_value_(theirs.parameters(), 0.02)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        pair.optimizers[0].step()
    pair.same()
    step(*images())
    ours.eval()
    with pytest.raises(GraphError, match="after 1 of 3 calls"):
        step(*images())


def test_a_step_takes_batches_of_any_size():
    pair = Pair(sgd, dynamic=True)
    for n in (4, 2, 7, 4, 1):
        pair.train(batch=images(n))
    pair.same()
    assert "batch" in repr(pair.step.function)
    pair.ours.fc.weight.data = pair.ours.fc.weight.data.clone()
    pair.train(batch=images(1))
    with pytest.raises(GraphError, match="target"):
        pair.step(images(3)[0], images(4)[1])
    with pytest.raises(GraphError, match="dynamic is a bool"):
        Pair(sgd, dynamic=[{0: "batch"}])


def test_what_no_gradient_is_to_pass_gets_none():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            with torch.no_grad():
                fixed = self.b(x)
                with torch.enable_grad():
                    live = self.a(x)
            return live * fixed + self.a(x).detach() * self.b(x)

    x = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    pair = Pair(sgd, Net(), lambda: x, functional.mse_loss, options=None)
    pair.train(3)
    pair.same()


def test_a_batch_norm_without_momentum_keeps_the_means_of_all_batches():
    model = Images()
    model.norm.momentum = None
    pair = Pair(sgd, model)
    pair.train(3)
    for each in pair.both:
        each.eval()
    pair.train()
    pair.same()


def test_a_teacher_of_a_closure_may_change():
    teacher, x = nn.Linear(3, 2).double(), torch.randn(4, 3).double()

    def loss(y, x):
        return ((y - teacher(x).detach()) ** 2).mean()

    pair = Pair(sgd, nn.Linear(3, 2), lambda: (x, x), loss, options=None)
    for _ in range(3):
        pair.train()
        with torch.no_grad():
            teacher.weight.mul_(0.5).add_(pair.theirs.weight, alpha=0.5)
    pair.same()
    with pytest.raises(GraphError, match="make the loss an nn"):
        both = optim.SGD([*pair.ours.parameters(), *teacher.parameters()], 0.1)
        mgt.training_step(pair.ours, loss, both, (x, x))


def test_models_of_16_bits_train():
    pair = Pair(OPTIMIZERS["adamw"], dtype=torch.bfloat16, tolerance=0.1, options=None)
    pair.train(5)
    pair.same()


def test_models_and_batches_of_channels_last_train():
    pair = Pair(sgd, options=None)
    pair.ours.to(memory_format=torch.channels_last)
    x, y = images()
    pair.train(batch=(x, y))
    pair.close(pair.step(x.to(memory_format=torch.channels_last), y), pair.eager(0, (x, y)))
    pair.same()


def test_other_optimizers_get_gradients_and_hooks_are_called():
    pair, called = Pair(adam), []
    for when in ("native", "hook"):
        pair.train(3)
        assert len(called) == (3 if when == "hook" else 0)
        pair.optimizers[1].register_step_post_hook(lambda *_: called.append(1))
    pair.same()


def test_what_is_frozen_keeps_still_where_torch_s_own_optimizer_steps():
    pair = Pair(OPTIMIZERS["adamax"])
    pair.train(2)
    for model in pair.both:
        model.conv.requires_grad_(False)
    pair.train(2)
    pair.same()
    assert pair.ours.conv.weight.grad is None
    assert pair.ours.fc.weight.grad is not None
