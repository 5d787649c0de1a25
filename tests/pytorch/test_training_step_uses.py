"""Uses of `minigraph.torch.training_step`: threads, autocast, and errors."""

import copy
import functools
import pickle
import signal
import sys

import pytest
from at_once import in_threads

torch = pytest.importorskip("torch")
from trained_pair import QUICK, Pair, adam, eager, images, same  # noqa: E402

import minigraph.torch as mgt  # noqa: E402
from minigraph.errors import GraphError  # noqa: E402

nn, functional, optim = torch.nn, torch.nn.functional, torch.optim


def test_two_steps_train_one_model():
    """As of a GAN: two optimizers, two losses, shared modules; in one thread and in two."""

    class Judged(nn.Module):
        def __init__(self, generator, judge):
            super().__init__()
            self.generator, self.judge = generator, judge

        def forward(self, noise, real):
            with torch.no_grad():
                fake = self.generator(noise)
            return torch.cat([self.judge(fake), self.judge(real)])

    parts = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
    theirs, ours = (
        (*[adam(part.parameters()) for part in two], nn.Sequential(*two), Judged(*two))
        for two in (parts, copy.deepcopy(parts))
    )
    loss = functional.binary_cross_entropy_with_logits
    noise, real = torch.randn(5, 3).double(), torch.randn(5, 4).double()
    one, half = (
        torch.ones(5, 1).double(),
        torch.cat([torch.zeros(5, 1), torch.ones(5, 1)]).double(),
    )
    g, d, fooled, judged = ours
    learn = mgt.training_step(fooled, loss, g, (noise, one))
    judge = mgt.training_step(judged, loss, d, (noise, real, half))
    for _ in range(5):
        learn(noise, one)
        judge(noise, real, half)
        eager(theirs[2], theirs[0], (noise, one), loss)
        eager(theirs[3], theirs[1], (noise, real, half), loss)
    same(fooled, theirs[2])

    def learns():
        for _ in range(50):
            learn(noise, one)

    def judges():
        for _ in range(50):
            judge(noise, real, half)

    in_threads(learns, judges, judges)
    assert {float(s["step"]) for s in g.state.values()} == {55}
    assert {float(s["step"]) for s in d.state.values()} == {105}


def test_autocast_around_a_call_counts():
    model, x = nn.Linear(64, 8), (torch.randn(4, 64), torch.randn(4, 8))
    optimizer = optim.SGD(model.parameters(), 0.0)
    step = mgt.training_step(model, functional.mse_loss, optimizer, x)
    exact = step(*x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(step(*x), functional.mse_loss(model(x[0]), x[1]).detach())
        assert float(step(*x)) != float(exact)
    assert float(step(*x)) == float(exact)


def test_forward_hooks_count_from_the_next_call():
    pair = Pair(adam)
    pair.train()
    for factor in (2, 0.5):
        hooks = [
            model.conv.register_forward_hook(lambda conv, given, y, factor=factor: y * factor)
            for model in pair.both
        ]
        pair.train(2)
        for hook in hooks:
            hook.remove()
    pair.train()
    pair.same()


class Recorded(nn.Module):
    """A layer whose results hooks record, which the first call adds, as transformers does."""

    def __init__(self):
        super().__init__()
        self.layer, self.found = nn.Linear(3, 3), []

    def forward(self, x):
        if not getattr(self, "has_hooks", False):
            self.layer.register_forward_hook(lambda layer, given, y: self.found.append(y))
            self.has_hooks = True
        self.found.clear()
        y = self.layer(torch.sin(self.layer(x)))
        return y + len(self.found) * sum(self.found)


def test_hooks_that_the_first_call_adds_are_added_once():
    pair = Pair(adam, Recorded(), lambda: (torch.randn(2, 3).double(),) * 2, functional.mse_loss)
    pair.train(2)
    pair.close(*(model(torch.ones(2, 3).double()) for model in reversed(pair.both)))


def test_dropout_begins_from_torch_s_seed():
    x = torch.ones(8, 6), torch.zeros(8, 6)
    losses = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        nn.init.ones_(model[0].weight)
        optimizer = optim.SGD(model.parameters(), 0.0)
        step = mgt.training_step(model, functional.mse_loss, optimizer, x, options=QUICK)
        losses.append([float(step(*x)) for _ in range(3)])
        assert step.calls == 3
    assert losses[0] == losses[1] != losses[2] and len({*losses[0]}) == 3
    model.eval()
    assert float(step(*x)) == float(step(*x))
    model.train()
    step.calls = 0
    assert float(step(*x)) == losses[2][0]


def test_a_model_can_be_copied_and_looked_at_after_a_step(tmp_path):
    pair = Pair(adam, dtype=torch.float32)
    model, optimizer, step = pair.ours, pair.optimizers[1], pair.step
    step(*pair.batch())
    other = pickle.loads(pickle.dumps(copy.deepcopy((model, optimizer))))
    same(other[0], model)
    same(other[1], optimizer)
    before = copy.deepcopy(other[0])
    step(*pair.batch())
    same(other[0], before)
    assert "conv" in str(step.report().section("layers"))
    assert "conv" in str(step.profile(*pair.batch(), calls=2))
    assert {float(s["step"]) for s in optimizer.state.values()} == {3}
    step.to_html(tmp_path / "page.html")
    assert "conv" in (tmp_path / "page.html").read_text()
    with pytest.raises(GraphError, match="make another one"):
        copy.copy(step)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_bad_uses_are_one_clear_line():
    x, y = images()
    pair = Pair(adam)
    model, optimizer, step = pair.ours, pair.optimizers[1], pair.step

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
    for register, match in (
        (model.conv.register_full_backward_hook, "conv has backward hooks"),
        (model.norm.weight.register_hook, "norm.weight has a hook on its gradient"),
    ):
        hook = register(print)
        for _ in range(2):
            says(match, lambda: step(x, y))
        hook.remove()
        step(x, y)
    fc = model.fc
    model.fc = copy.deepcopy(fc)
    says("fc was replaced", lambda: step(x, y))
    model.fc = fc
    step(x, y)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    says("conv.weight was replaced", lambda: step(x, y))


def test_errors_of_a_loss_name_the_line_of_the_user():
    def squares(p, y):
        return (p.detach() - y).square().mean()

    inside, call = squares.__code__.co_firstlineno + 1, sys._getframe().f_lineno + 4
    model, x = nn.Linear(6, 6), torch.ones(2, 6)
    for loss, line in ((squares, inside), (functools.partial(squares), call)):
        with pytest.raises(GraphError, match=rf"test_training_step_uses.py:{line}\) has no grad"):
            mgt.training_step(model, loss, optim.SGD(model.parameters()), (x, x))


def test_operators_that_are_missing_are_named_with_their_layer():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)[1]

    model, x = nn.Sequential(nn.Linear(4, 4), Spectrum()), torch.ones(4, 4)
    sgd = optim.SGD(model.parameters())
    with pytest.raises(
        GraphError, match=r"unsupported operators: aten._linalg_svd.default \(1 in layer 1, at"
    ):
        mgt.training_step(model, functional.mse_loss, sgd, (x, x[0]))


def test_distributions_are_captured_and_check_values_again_afterwards():
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile leaves it off

    def loss(mean, x):
        return -torch.distributions.Normal(mean, mean.exp()).log_prob(x).mean()

    pair = Pair(adam, nn.Linear(3, 2), lambda: (torch.ones(4, 3).double(),) * 2, loss=lambda p, x:
                loss(p, x[:, :2]))  # fmt: skip
    pair.train(2)
    pair.same()
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(0.0, -1.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_interrupts_leave_a_whole_number_of_steps(accumulate):
    x = torch.randn(4, 6).double(), torch.randn(4, 2).double()
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    pair = Pair(adam, model, lambda: x, functional.mse_loss, accumulate=accumulate)
    step = pair.step
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
    (steps,) = {int(state["step"]) for state in pair.optimizers[1].state.values()}
    assert interrupted == 60 and steps > 0
    for _ in range(steps):
        pair.eager(0, x)
    pair.same()
