"""`minigraph.torch.training_step` beside PyTorch's own loop."""

import copy
import functools
import pickle
import signal
import threading

import pytest

torch = pytest.importorskip("torch")
import minigraph.torch as mgt  # noqa: E402
from minigraph.errors import GraphError, MinigraphWarning  # noqa: E402

nn, functional, optim = torch.nn, torch.nn.functional, torch.optim


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, images):
        return self.fc(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attend = nn.Linear(8, 24)
        self.out = nn.Linear(8, 11)
        self.out.weight = self.embed.weight

    def forward(self, words):
        q, k, v = self.attend(self.embed(words)).chunk(3, -1)
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True)).mean(1)


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 6, batch_first=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


BATCHES = {
    Images: lambda: (torch.randn(4, 3, 6, 6), torch.randint(0, 5, (4,))),
    Words: lambda: (torch.randint(0, 11, (4, 6)), torch.randint(0, 11, (4,))),
    Series: lambda: (torch.randn(4, 7, 3), torch.randint(0, 5, (4,))),
}
QUICK = {"graph_opt_level": 1, "autotune": "off"}


def pair(network=Images, dtype=torch.float64):
    """Return a model, its copy, and a function that makes batches for them."""
    model = network().to(dtype)

    def batch():
        x, y = BATCHES[network]()
        return (x.to(dtype) if x.is_floating_point() else x), y

    return model, copy.deepcopy(model), batch


def eager(model, optimizer, batch, loss=functional.cross_entropy, clip=None):
    optimizer.zero_grad()
    value = loss(model(*batch[:-1]), batch[-1])
    value.backward()
    if clip:
        clip(model.parameters())
    optimizer.step()
    return value.detach()


def tensors(state):
    """Return the tensors and numbers of a state dict by their paths."""
    if isinstance(state, dict):
        return {
            f"{key}.{path}": x for key, part in state.items() for path, x in tensors(part).items()
        }
    if isinstance(state, list | tuple):
        return tensors(dict(enumerate(state)))
    return {"": state}


def same(ours, theirs, tolerance=1e-9):
    """Compare models or optimizers by all that their state dicts hold."""
    ours, theirs = tensors(ours.state_dict()), tensors(theirs.state_dict())
    assert ours.keys() == theirs.keys()
    for name, x in theirs.items():
        if isinstance(x, torch.Tensor):
            assert x.dtype == ours[name].dtype, name
            torch.testing.assert_close(ours[name], x, rtol=tolerance, atol=tolerance, msg=name)
        else:
            assert ours[name] == x, name


def in_groups(make):
    """Return an optimizer that has the first parameter in a group of its own."""

    def made(parameters):
        first, *others = parameters
        return make([{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 0.01}])

    return made


OPTIMIZERS = {
    "sgd": functools.partial(optim.SGD, lr=0.1),
    "momentum": functools.partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "dampening": functools.partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.3),
    "nesterov": functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": functools.partial(optim.Adam, lr=0.01, betas=(0.8, 0.95), weight_decay=0.01),
    "amsgrad": functools.partial(optim.Adam, lr=0.01, amsgrad=True, maximize=True),
    "adamw": functools.partial(optim.AdamW, lr=0.01, weight_decay=0.1, foreach=True),
    "decoupled": functools.partial(optim.Adam, decoupled_weight_decay=True, weight_decay=0.1),
    "fused": functools.partial(optim.AdamW, lr=0.01, fused=True),
    "tensor": lambda parameters: optim.Adam(parameters, lr=torch.tensor(0.01, dtype=torch.float64)),
    "groups": in_groups(optim.AdamW),
    "rmsprop": functools.partial(optim.RMSprop, lr=0.01),
    "centered": functools.partial(
        optim.RMSprop, lr=0.01, momentum=0.5, centered=True, weight_decay=0.1
    ),
    "adagrad": functools.partial(
        optim.Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.1
    ),
    "adamax": functools.partial(optim.Adamax, lr=0.01),  # torch's own step
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_those_of_torch(name):
    theirs, ours, batch = pair()
    their_optimizer, optimizer = (OPTIMIZERS[name](m.parameters()) for m in (theirs, ours))
    step = mgt.training_step(ours, functional.cross_entropy, optimizer, batch(), options=QUICK)
    same(optimizer, their_optimizer)  # making a step changes nothing
    same(ours, theirs)
    for _ in range(20):
        x = batch()
        loss = step(*x)
        assert loss.shape == () and not loss.requires_grad
        torch.testing.assert_close(loss, eager(theirs, their_optimizer, x), rtol=1e-9, atol=1e-9)
    same(ours, theirs)
    same(optimizer, their_optimizer)
    assert all(p.grad is None for p in ours.parameters()) or name == "adamax"


@pytest.mark.parametrize("network", [Words, Series])
def test_networks_of_other_kinds_train_as_in_torch(network):
    theirs, ours, batch = pair(network)
    optimizers = [optim.Adam(m.parameters(), 0.01) for m in (theirs, ours)]
    step = mgt.training_step(ours, nn.CrossEntropyLoss(), optimizers[1], batch())
    for _ in range(20):
        x = batch()
        torch.testing.assert_close(step(*x), eager(theirs, optimizers[0], x))
    same(ours, theirs)
    same(optimizers[1], optimizers[0])


SCHEDULES = {
    "one cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "lambda": lambda o: optim.lr_scheduler.LambdaLR(o, lambda t: 0.9**t),
    "plateau": lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10),
}


@pytest.mark.parametrize("make", [OPTIMIZERS["nesterov"], OPTIMIZERS["adamw"]])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_work_and_compile_nothing(name, make):
    theirs, ours, batch = pair()
    optimizers = [make(m.parameters()) for m in (theirs, ours)]
    step = mgt.training_step(ours, functional.cross_entropy, optimizers[1], batch(), options=QUICK)
    schedulers = [SCHEDULES[name](o) for o in optimizers]
    function = step.function
    for _ in range(10):
        x = batch()
        losses = eager(theirs, optimizers[0], x), step(*x)
        torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-9)
        for scheduler, loss in zip(schedulers, losses, strict=True):
            scheduler.step(*[float(loss)] * (name == "plateau"))
    same(ours, theirs)
    assert step.function is function


def test_what_changes_between_steps_counts():
    """The modes, groups, values and memory of what is trained: each as torch would see it."""
    theirs, ours, batch = pair()
    both = theirs, ours
    optimizers = [optim.SGD([*m.conv.parameters(), *m.fc.parameters()], 0.1) for m in both]
    step = mgt.training_step(ours, functional.cross_entropy, optimizers[1], batch(), options=QUICK)
    other = [copy.deepcopy(theirs.state_dict())] * 2
    kept = [{}, {}]

    def freeze(m, o, i):
        m.conv.weight.requires_grad_(False)

    def unfreeze(m, o, i):
        m.conv.weight.requires_grad_(True)

    def swap(m, o, i):
        kept[i]["fc"] = m.fc.weight.data
        m.fc.weight.data = torch.ones_like(m.fc.weight)

    def swap_back(m, o, i):
        torch.testing.assert_close(kept[i]["fc"], kept[0]["fc"])  # nobody has written there
        m.fc.weight.data = kept[i]["fc"]

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
        lambda m, o, i: m.load_state_dict(copy.deepcopy(other[i])),
        lambda m, o, i: m.to(memory_format=torch.channels_last),
        lambda m, o, i: o.state.clear(),
        lambda m, o, i: o.load_state_dict(copy.deepcopy(o.state_dict())),
        lambda m, o, i: setattr(m.conv.weight, "data", m.conv.weight.data.transpose(2, 3)),
    ]
    for number, change in enumerate(changes):
        for i, (model, optimizer) in enumerate(zip(both, optimizers, strict=True)):
            change(model, optimizer, i)
        for _ in range(2):
            x = batch()
            losses = step(*x), eager(theirs, optimizers[0], x)
            torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-9, msg=f"change {number}")
        same(ours, theirs)
        same(optimizers[1], optimizers[0])
    assert len(step._compiled) <= 4


@pytest.mark.parametrize("name", ["dampening", "adam", "centered", "adagrad"])
def test_a_training_goes_on_in_either_world(name):
    theirs, ours, batch = pair()
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (theirs, ours)]
    loss = functional.cross_entropy
    step = mgt.training_step(ours, loss, optimizers[1], batch(), options=QUICK)
    ten = [batch() for _ in range(10)]
    for x in ten:
        eager(theirs, optimizers[0], x)
    # To ours from torch's checkpoint, as a file has it; an old one counts steps by a number.
    saved = pickle.loads(pickle.dumps((theirs.state_dict(), optimizers[0].state_dict())))
    ours.load_state_dict(saved[0])
    optimizers[1].load_state_dict(saved[1])
    for x in ten:
        torch.testing.assert_close(step(*x), eager(theirs, optimizers[0], x))
    # And back: torch's own step on our memory, then ours again.
    for x in ten:
        eager(ours, optimizers[1], x)
        eager(theirs, optimizers[0], x)
    optimizers[1].zero_grad()
    for x in ten:
        step(*x)
        eager(theirs, optimizers[0], x)
    same(ours, theirs)
    same(optimizers[1], optimizers[0])


@pytest.mark.parametrize("make", [OPTIMIZERS["adam"], OPTIMIZERS["adamax"]])
def test_gradients_are_clipped_and_summed_as_in_torch(make):
    theirs, ours, batch = pair()
    optimizers = [make(m.parameters()) for m in (theirs, ours)]
    loss = functional.cross_entropy
    clips = {"clip_grad_norm": 0.01, "clip_grad_value": 0.02}
    options = {**clips, "accumulate": 3, "options": QUICK}
    step = mgt.training_step(ours, loss, optimizers[1], batch(), **options)
    for _ in range(4):
        optimizers[0].zero_grad()
        for i in range(3):
            before = copy.deepcopy(ours.fc.weight)
            x = batch()
            value = loss(theirs(x[0]), x[1])
            (value / 3).backward()
            torch.testing.assert_close(step(*x), value.detach(), rtol=1e-9, atol=1e-9)
            assert torch.equal(before, ours.fc.weight) == (i < 2)
        nn.utils.clip_grad_value_(theirs.parameters(), 0.02)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        optimizers[0].step()
    same(ours, theirs)
    same(optimizers[1], optimizers[0])
    step(*batch())
    ours.eval()
    with pytest.raises(GraphError, match="after 1 of 3 calls"):
        step(*batch())


def test_a_step_takes_batches_of_any_size():
    theirs, ours, batch = pair()
    optimizers = [optim.SGD(m.parameters(), 0.1) for m in (theirs, ours)]
    loss = functional.cross_entropy
    step = mgt.training_step(ours, loss, optimizers[1], batch(), options=QUICK, dynamic=True)
    for n in (4, 2, 7, 4, 1):
        x = torch.randn(n, 3, 6, 6, dtype=torch.float64), torch.randint(0, 5, (n,))
        torch.testing.assert_close(step(*x), eager(theirs, optimizers[0], x))
    same(ours, theirs)
    assert "batch" in repr(step.function)
    ours.fc.weight.data = ours.fc.weight.data.clone()
    torch.testing.assert_close(step(*x), eager(theirs, optimizers[0], x))
    with pytest.raises(GraphError, match="target"):
        step(torch.randn(3, 3, 6, 6, dtype=torch.float64), torch.randint(0, 5, (4,)))
    with pytest.raises(GraphError, match="dynamic is a bool"):
        mgt.training_step(ours, loss, optimizers[1], batch(), dynamic=[{0: "batch"}])


def test_two_steps_train_one_model():
    """As of a GAN: two optimizers, two losses, shared modules; in one thread and in two."""

    class Fooled(nn.Module):
        def __init__(self, generator, judge):
            super().__init__()
            self.generator, self.judge = generator, judge

        def forward(self, noise):
            return self.judge(self.generator(noise))

    class Judged(nn.Module):
        def __init__(self, generator, judge):
            super().__init__()
            self.generator, self.judge = generator, judge

        def forward(self, noise, real):
            with torch.no_grad():
                fake = self.generator(noise)
            return torch.cat([self.judge(fake), self.judge(real)])

    worlds = []
    generator, judge = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
    for parts in ((generator, judge), copy.deepcopy((generator, judge))):
        optimizers = [optim.Adam(part.parameters(), 0.01) for part in parts]
        worlds.append((*optimizers, Fooled(*parts), Judged(*parts)))
    loss = functional.binary_cross_entropy_with_logits
    noise, real = torch.randn(5, 3).double(), torch.randn(5, 4).double()
    one, half = torch.ones(5, 1).double(), torch.cat([torch.zeros(5, 1), torch.ones(5, 1)]).double()
    g, d, fooled, judged = worlds[1]
    learn = mgt.training_step(fooled, loss, g, (noise, one))
    judge = mgt.training_step(judged, loss, d, (noise, real, half))
    for _ in range(5):
        learn(noise, one)
        judge(noise, real, half)
        g, d, fooled, judged = worlds[0]
        eager(fooled, g, (noise, one), loss)
        eager(judged, d, (noise, real, half), loss)
    same(worlds[1][2], worlds[0][2])
    threads = [
        threading.Thread(target=lambda: [learn(noise, one) for _ in range(50)]),
        threading.Thread(target=lambda: [judge(noise, real, half) for _ in range(50)]),
        threading.Thread(target=lambda: [judge(noise, real, half) for _ in range(50)]),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {float(s["step"]) for s in worlds[1][0].state.values()} == {55}
    assert {float(s["step"]) for s in worlds[1][1].state.values()} == {105}


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

    theirs = Net().double()
    ours = copy.deepcopy(theirs)
    optimizers = [optim.SGD(m.parameters(), 0.1) for m in (theirs, ours)]
    x = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    step = mgt.training_step(ours, functional.mse_loss, optimizers[1], x)
    for _ in range(3):
        step(*x)
        eager(theirs, optimizers[0], x, functional.mse_loss)
    same(ours, theirs)


def test_a_teacher_of_a_closure_may_change():
    teacher, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    ours = copy.deepcopy(theirs)

    def loss(y, x):
        return ((y - teacher(x).detach()) ** 2).mean()

    optimizers = [optim.SGD(m.parameters(), 0.1) for m in (theirs, ours)]
    x = torch.randn(4, 3).double()
    step = mgt.training_step(ours, loss, optimizers[1], (x, x))
    for _ in range(3):
        step(x, x)
        eager(theirs, optimizers[0], (x, x), loss)
        with torch.no_grad():
            teacher.weight.mul_(0.5).add_(theirs.weight, alpha=0.5)
    same(ours, theirs)
    both = optim.SGD([*ours.parameters(), *teacher.parameters()], 0.1)
    with pytest.raises(GraphError, match="make the loss an nn"):
        mgt.training_step(ours, loss, both, (x, x))


def test_models_of_16_bits_and_channels_last_train():
    theirs, ours, batch = pair(dtype=torch.bfloat16)
    optimizers = [optim.AdamW(m.parameters(), 0.01) for m in (theirs, ours)]
    step = mgt.training_step(ours, functional.cross_entropy, optimizers[1], batch())
    for _ in range(5):
        x = batch()
        torch.testing.assert_close(step(*x), eager(theirs, optimizers[0], x), rtol=0.1, atol=0.1)
    same(ours, theirs, 0.1)
    same(optimizers[1], optimizers[0], 0.1)
    theirs, ours, batch = pair()
    ours = ours.to(memory_format=torch.channels_last)
    optimizers = [optim.SGD(m.parameters(), 0.1) for m in (theirs, ours)]
    step = mgt.training_step(ours, functional.cross_entropy, optimizers[1], batch())
    x, y = batch()
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(step(last, y), eager(theirs, optimizers[0], (x, y)))
    same(ours, theirs)


def test_memory_that_is_replaced_before_each_call_gives_a_warning():
    model, _, batch = pair()
    optimizer = optim.SGD(model.parameters(), 0.1)
    step = mgt.training_step(model, functional.cross_entropy, optimizer, batch(), options=QUICK)
    with pytest.warns(MinigraphWarning, match="change them in place"):
        for _ in range(3):
            model.fc.weight.data = model.fc.weight.data.clamp(-1, 1)
            step(*batch())


def test_autocast_around_a_call_counts():
    model, x = nn.Linear(64, 8), (torch.randn(4, 64), torch.randn(4, 8))
    optimizer = optim.SGD(model.parameters(), 0.0)
    step = mgt.training_step(model, functional.mse_loss, optimizer, x)
    exact = step(*x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(step(*x), functional.mse_loss(model(x[0]), x[1]).detach())
        assert float(step(*x)) != float(exact)
    assert float(step(*x)) == float(exact)


def test_dropout_begins_from_torch_s_seed():
    x = torch.ones(8, 6), torch.zeros(8, 6)
    seen = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        nn.init.ones_(model[0].weight)
        optimizer = optim.SGD(model.parameters(), 0.0)
        step = mgt.training_step(model, functional.mse_loss, optimizer, x)
        seen.append([float(step(*x)) for _ in range(3)])
        assert step.calls == 3
    assert seen[0] == seen[1] != seen[2] and len({*seen[0]}) == 3
    model.eval()
    assert float(step(*x)) == float(step(*x))
    model.train()
    step.calls = 0
    assert float(step(*x)) == seen[2][0]


def test_a_model_can_be_copied_and_looked_at_after_a_step(tmp_path):
    model, _, batch = pair(dtype=torch.float32)
    optimizer = optim.Adam(model.parameters())
    step = mgt.training_step(model, functional.cross_entropy, optimizer, batch(), options=QUICK)
    step(*batch())
    other = pickle.loads(pickle.dumps(copy.deepcopy((model, optimizer))))
    same(other[0], model)
    same(other[1], optimizer)
    before = copy.deepcopy(other[0])
    step(*batch())
    same(other[0], before)
    assert "conv" in str(step.report().section("layers"))
    assert "conv" in str(step.profile(*batch(), calls=2))
    assert {float(s["step"]) for s in optimizer.state.values()} == {3}
    step.to_html(tmp_path / "page.html")
    assert "conv" in (tmp_path / "page.html").read_text()
    with pytest.raises(GraphError, match="make another one"):
        copy.copy(step)


def test_bad_uses_are_one_clear_line():
    model, _, batch = pair()
    x, y = batch()
    optimizer = optim.Adam(model.parameters())
    loss = functional.cross_entropy
    step = mgt.training_step(model, loss, optimizer, (x, y), options=QUICK)

    def says(match, call):
        with pytest.raises(GraphError, match=match) as error:
            call()
        assert "\n" not in str(error.value)

    says("takes a batch of 2 tensors", lambda: step(x))
    says(r"batch\[0\] \(images\) was of torch.float64", lambda: step(x.float(), y))
    says(r"batch\[1\] \(target\) had shape \(4,\)", lambda: step(x, y[:3]))
    says("is a tensor, not ndarray", lambda: step(x.numpy(), y))
    says("requires a gradient", lambda: step(x.clone().requires_grad_(), y))
    says("on meta", lambda: step(x.to("meta"), y))
    says("torch.sparse_coo", lambda: step(x.to_sparse(), y))
    step(x, y)
    weight = model.fc.weight.data
    model.fc.weight.data = weight[:2]
    says(r"fc.weight was float64\[5,4\].* and is float64\[2,4\] now", lambda: step(x, y))
    model.fc.weight.data = weight.float()
    says("fc.weight was float64.* and is float32", lambda: step(x, y))
    model.fc.weight.data = weight
    mean = model.norm.running_mean
    model.norm.running_mean = mean[:2]
    for _ in range(2):
        says("norm.running_mean was float64", lambda: step(x, y))
    model.norm.running_mean = mean
    average = optimizer.state[model.fc.bias]["exp_avg"]
    optimizer.state[model.fc.bias]["exp_avg"] = average[:1]
    for _ in range(2):
        says("exp_avg.fc.bias was float64", lambda: step(x, y))
    optimizer.state[model.fc.bias]["exp_avg"] = average
    optimizer.param_groups[0]["differentiable"] = True
    for _ in range(2):
        says("Adam with differentiable=True", lambda: step(x, y))
    optimizer.param_groups[0]["differentiable"] = False
    step(x, y)
    fc = model.fc
    model.fc = copy.deepcopy(fc)
    says("fc was replaced", lambda: step(x, y))
    model.fc = fc
    step(x, y)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    says("conv.weight was replaced", lambda: step(x, y))

    def make(change=str):
        model, _, batch = pair()
        with torch.no_grad():
            change(model)
        parameters = [*model.parameters()]
        return lambda kind=optim.Adam, of=loss, given=None, **more: mgt.training_step(
            model, of, kind(parameters), given or batch(), options=QUICK, **more
        )

    def train(model, of=loss, kind=None):
        return lambda: mgt.training_step(model, of, kind or optimizer, (x, y))

    says("model is <function .*; it takes a torch.nn", train(loss))
    says("optimizer is 'sgd'; it takes one of torch.optim", train(model, kind="sgd"))
    says("loss is 'mse'; it takes a function", train(model, "mse"))
    says("weight has no shape yet", train(nn.LazyLinear(2)))
    says("dynamic takes of an example", lambda: make()(given=(x[:1], y[:1]), dynamic=True))
    says("LBFGS computes the loss several times", lambda: make()(optim.LBFGS))
    says("the loss is .*; it is one number", lambda: make()(of=lambda p, y: p))
    says("inputs and a target", lambda: make()(given=(x,)))
    says("accumulate is 0", lambda: make()(accumulate=0))
    says("clip_norm is -1", lambda: make()(clip_grad_norm=-1.0))
    says("fc has backward hooks", make(lambda m: m.fc.register_full_backward_hook(print)))
    says("fc.weight has a hook", make(lambda m: m.fc.weight.register_hook(print)))
    says("norm.weight is on meta", make(lambda m: m.norm.to("meta")))
    says("two tensors in the same memory", make(lambda m: m.norm.bias.set_(m.norm.weight.data)))


def test_other_optimizers_get_gradients_and_hooks_are_called():
    theirs, ours, batch = pair()
    optimizers = [optim.Adam(m.parameters(), 0.01) for m in (theirs, ours)]
    step = mgt.training_step(ours, functional.cross_entropy, optimizers[1], batch(), options=QUICK)
    called = []
    for when in ("native", "hook"):
        for _ in range(3):
            x = batch()
            torch.testing.assert_close(step(*x), eager(theirs, optimizers[0], x))
        assert len(called) == (3 if when == "hook" else 0)
        optimizers[1].register_step_post_hook(lambda *_: called.append(1))
    same(ours, theirs)
    same(optimizers[1], optimizers[0])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_interrupts_leave_a_whole_number_of_steps(accumulate):
    theirs = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    ours = copy.deepcopy(theirs)
    optimizers = [optim.Adam(m.parameters(), 0.001) for m in (theirs, ours)]
    x = torch.randn(4, 6).double(), torch.randn(4, 2).double()
    loss = functional.mse_loss
    step = mgt.training_step(ours, loss, optimizers[1], x, options=QUICK, accumulate=accumulate)
    step(*x)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    try:
        for i in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.00003 * i)
                while True:
                    step(*x)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    while step._current.sums is not None and step._current.sums.weight:
        step(*x)
    (done,) = {int(state["step"]) for state in optimizers[1].state.values()}
    assert interrupted == 60 and done > 0
    for _ in range(done):
        eager(theirs, optimizers[0], x, loss)
    same(ours, theirs)
    same(optimizers[1], optimizers[0])
