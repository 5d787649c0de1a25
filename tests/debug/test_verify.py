"""Negative levels: a function runs together with level 0, and raises if the two differ."""

import linecache
import re

import numpy as np
import pytest
from needs import needs_compiler
from residual_block import ResidualBlock
from small_functions import real

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.debug import verify
from minigraph.debug.verify import VerifiedFunction
from minigraph.devices.reference import Interpreter, NumpyKernel
from minigraph.ops.arithmetic import Add, Multiply, Subtract
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.indexing import OneHot
from minigraph.ops.reduction import Sum
from minigraph.passes import levels

DEVICES = ["cpu", "reference"]


class Halved(Elementwise):
    """x / 2, of which C makes x / 3."""

    c = "{0} / 3"
    accepts = "f"

    def forward(self, x):
        return x / 2


def rewriting(change, name):
    """A pass: `change(op, inputs)` gives a new node, or None for one that stays."""

    def rewrite(graph, notes):
        def new(node, inputs):
            replacement = change(node.op, inputs)
            return node.replace(inputs) if replacement is None else replacement

        return graph.map(new)

    rewrite.__name__ = name
    return rewrite


@pytest.fixture
def run_pass(monkeypatch):
    """Make level 2 consist of one pass, called "swap"."""

    def install(change):
        monkeypatch.setattr(levels, "TABLE", (levels.PassRow(rewriting(change, "swap"), 2),))

    return install


def subtract_for_add(op, inputs):
    return Subtract()(*inputs) if isinstance(op, Add) else None


def halved(op, inputs):
    return Halved()(inputs[0]) if isinstance(op, Multiply) else None


def compiled(device, level, *args, **kwargs):
    return mg.comp_graph(device, {"graph_opt_level": level}).compile(*args, **kwargs)


def message(function, *args):
    with pytest.raises(mg.CompileError) as error:
        function(*args)
    return str(error.value)


def user_line(text):
    (number,) = set(re.findall(rf"{re.escape(__file__)}:(\d+)", text))
    return linecache.getline(__file__, int(number)).strip()


# ---------------------------------------------------------------- what is right stays quiet


def resnet():
    nn.init.manual_seed(0)  # the same network whichever tests run before
    head = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *head, ResidualBlock(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_training_goes_as_at_the_level_itself(device, level):
    x, labels = mg.input("x", (4, 3, 8, 8)), mg.input("labels", (4,), "int64")
    trained = []
    for sign in (1, -1):
        net = resnet()
        loss = ops.cross_entropy(net(x), labels)
        updates = {**optim.Adam(net.parameters(), lr=0.01).minimize(loss), **net.updates()}
        step = compiled(device, sign * level, [x, labels], loss, updates)
        losses = [step(real(4, 3, 8, 8, seed=i), np.arange(4) + i % 2) for i in range(4)]
        trained.append([losses, *(p.numpy() for p in updates)])
    for plain, verified in zip(*trained, strict=True):
        np.testing.assert_array_equal(plain, verified)


def test_a_gradient_that_is_zero_but_for_rounding_takes_no_numpy(run_pass, monkeypatch):
    """That of a convolution's bias before a batch norm, where a pass sums columns first."""

    def transpose(op, inputs):
        is_over_images = isinstance(op, Sum) and inputs[0].ndim == 4
        return op(ops.permute_dims(inputs[0], (0, 1, 3, 2))) if is_over_images else None

    run_pass(transpose)
    monkeypatch.setattr(verify, "check_steps", None)
    monkeypatch.setattr(verify, "find_pass_changing_meaning", None)
    monkeypatch.setattr(verify, "EXPLAINED_FACTOR", 0)
    differences = []
    look = VerifiedFunction._unexplained
    monkeypatch.setattr(
        VerifiedFunction, "_unexplained", lambda *args: differences.append(args[3]) or look(*args)
    )
    x, net = mg.input("x", (4, 3, 32, 32)), resnet()
    loss = ops.square(net(x)).sum()
    updates = {**optim.SGD(net.parameters(), lr=0.1, momentum=0.9).minimize(loss), **net.updates()}
    step = compiled("cpu", -2, x, loss, updates)
    for i in range(2):
        step(real(4, 3, 32, 32, seed=i))
    assert differences


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_that_cancels_may_be_grouped_otherwise(run_pass, device, monkeypatch):
    """(x + 1e8) - 1e8 rounds to multiples of 8: elementwise ops keep that, sums need not."""

    def regroup(op, inputs):
        if isinstance(op, Subtract):
            x, large = inputs[0].inputs
            return x + (large - inputs[1])
        return None

    run_pass(regroup)
    x = mg.input("x", (64,))
    value = real(64) * 10
    step = compiled(device, -2, x, ((x + 1e8) - 1e8).reshape((32, 2)).sum(1))
    np.testing.assert_allclose(step(value), value.reshape(32, 2).sum(1), rtol=1e-6)
    monkeypatch.setattr(verify, "check_steps", None)
    step(value)  # what was rounding before is not looked at again
    wrong = (x + 1e8) - 1e8
    text = message(compiled(device, -2, x, [wrong, x * 2]), value)
    assert "pass swap made add of subtract" in text
    assert user_line(text) == "wrong = (x + 1e8) - 1e8"


@pytest.mark.parametrize("device", DEVICES)
def test_the_sign_of_a_rounding_error_may_differ(run_pass, device):
    """As of a gradient that is 0 but for rounding, which Adam divides by its own size."""
    run_pass(lambda op, inputs: inputs[0] * (1 / 3) if op.name == "divide" else None)
    x = mg.input("x", (64,))
    ones = np.ones((64, 1), "float32")
    ys = [ops.sign(x / 3 - x * (1 / 3)), ops.floor(x / 3 * 3)]
    compiled(device, -2, x, [ops.reshape(y, (64, 1)) @ ones.T for y in ys])(real(64) * 10)


def test_a_closer_look_prints_nothing(capsys, monkeypatch):
    monkeypatch.setattr(verify, "TOLERANCES", dict.fromkeys(verify.TOLERANCES, -1.0))
    x = mg.input("x", (2, 3))
    compiled("reference", -2, x, ops.print(x @ x.T, "here").sum())(real(2, 3))
    assert capsys.readouterr().out.count("here") == 2  # once at each level


def test_it_is_the_function_of_the_level(tmp_path):
    x, w = mg.input("x", (3,)), mg.Parameter(np.zeros(3, "float32"), "w")
    kept = mg.Parameter(np.zeros(3, "float32"), "w")
    step, plain = (
        mg.comp_graph("cpu", {"graph_opt_level": level, "seed": 7}).compile(
            [x], ops.dropout(x, 0.5) * 1 + 0 * p, {p: p + x}
        )
        for level, p in ((-2, w), (2, kept))
    )
    assert step.report().ops == plain.report().ops
    assert [p.name for p in step.report().passes] == [p.name for p in plain.report().passes]
    assert step.report().options["graph_opt_level"] == -2
    for _ in range(3):
        np.testing.assert_array_equal(step(x=np.ones(3)), plain(np.ones(3)))
    step.calls = plain.calls = 10
    np.testing.assert_array_equal(step(np.ones(3)), plain(np.ones(3)))
    assert step.calls == 11
    assert step.profile(np.ones(3)).kernels
    assert step.calls == 12
    np.testing.assert_array_equal(w.numpy(), [5, 5, 5])
    step.to_dot(tmp_path / "step.dot")
    step.to_html(tmp_path / "step.html")


def test_a_bad_input_is_the_same_error_as_ever():
    labels, w = mg.input("labels", (2,), "int64"), mg.Parameter(np.zeros(()), "w")
    step = compiled("cpu", -2, labels, ops.one_hot(labels, 3), {w: w + 1})
    with pytest.raises(mg.GraphError, match="label 3") as error:
        step([0, 3])
    assert not isinstance(error.value, mg.CompileError)
    assert (w.numpy(), step.calls) == (0, 0)
    step([0, 2])
    assert (w.numpy(), step.calls) == (1, 1)


def test_fast_math_may_make_a_number_of_what_is_none(run_pass):
    run_pass(lambda op, inputs: inputs[1] if isinstance(op, Multiply) else None)
    x = mg.input("x", (3,))
    y = x * np.zeros(3, "float32")
    value = np.array([1, np.inf, np.nan], "float32")
    assert "2 of 3 elements" in message(compiled("cpu", -2, x, y), value)
    fast = mg.comp_graph("cpu", {"graph_opt_level": -2, "graph_opt.fast_math": True})
    np.testing.assert_array_equal(fast.compile(x, y)(value), [0, 0, 0])


# ---------------------------------------------------------------- what is wrong is named


@pytest.mark.parametrize("device", DEVICES)
def test_a_wrong_pass_is_named_with_the_node_the_line_and_both_values(run_pass, device):
    run_pass(subtract_for_add)
    x, w = mg.input("x", (4,)), mg.Parameter(real(4), "w")
    before = ops.exp(x)
    wrong = before + w
    step = compiled(device, -2, [x], [before, ops.tanh(wrong)], {w: wrong * 2})
    old = w.numpy()
    text = message(step, [0, 1, np.nan, np.inf])
    np.testing.assert_array_equal(w.numpy(), old)
    assert step.calls == 0
    assert user_line(text) == "wrong = before + w"
    first, *rest = text.splitlines()
    assert "graph_opt_level -2" in first
    assert "pass swap made subtract of add, float32[4]" in first
    (written, optimised, count, most, relative) = rest[:5]
    e = np.exp(np.array([0, 1], "float32")).astype("float64")
    for line, y in ((written, e + old[:2]), (optimised, e - old[:2])):
        for statistic in (f"min {y.min():.6g}", f"max {y.max():.6g}", f"mean {y.mean():.6g}"):
            assert statistic in line
        assert "1 NaN, 1 infinite" in line
    assert "2 of 4 elements differ" in count
    at = int(np.abs(old[:2]).argmax())
    assert f"by {2 * abs(old[at]):.3g} at [{at}]" in most
    assert "at [" in relative


def test_what_a_pass_replaced_by_an_old_node_is_named(run_pass):
    run_pass(lambda op, inputs: inputs[0] if isinstance(op, Subtract) else None)
    x = mg.input("x", (3,))
    wrong = ops.tanh(x) - 0.5
    text = message(compiled("reference", -2, x, ops.exp(wrong).sum()), real(3))
    assert user_line(text) == "wrong = ops.tanh(x) - 0.5"
    assert "pass swap made tanh of subtract" in text


SUMS = {
    "product": (lambda x, w: x.reshape((4, 32)) @ w.reshape((32, 4)), "matmul"),
    "convolution": (lambda x, w: ops.conv2d(x, w, padding=1), "conv2d"),
    "sum": (lambda x, w: (x * w).sum(2), "sum"),
    "its gradient": (lambda x, w: mg.grad((x * x).sum(), [x])[0] + x.sum(), "sum"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SUMS)
def test_a_pass_that_is_off_by_a_thousandth_is_named(run_pass, device, name):
    build, op = SUMS[name]
    run_pass(lambda found, inputs: found(*inputs) * 1.001 if found.name == op else None)
    x, w = mg.input("x", (2, 4, 4, 4)), mg.input("w", (2, 4, 4, 4))
    text = message(compiled(device, -2, [x, w], build(x, w)), real(2, 4, 4, 4), real(2, 4, 4, 4))
    assert f"pass swap made multiply of {op}" in text


@pytest.mark.parametrize("name", SUMS)
def test_a_kernel_that_is_off_by_a_thousandth_is_named(name, monkeypatch):
    build, op = SUMS[name]
    x, w = mg.input("x", (2, 4, 4, 4)), mg.input("w", (2, 4, 4, 4))
    step = compiled("reference", -1, [x, w], build(x, w))
    run = NumpyKernel.run

    def run_wrong(self, inputs, outputs, scratch):
        run(self, inputs, outputs, scratch)
        if self.node.op.name == op and any(self is s.kernel for s in step._program.steps):
            outputs[0][...] *= np.float32(1.001)

    monkeypatch.setattr(NumpyKernel, "run", run_wrong)
    text = message(step, real(2, 4, 4, 4), real(2, 4, 4, 4))
    assert f"at level 1 the kernel 'numpy' on reference for {op}" in text


def test_the_first_pass_that_is_wrong_is_named(monkeypatch):
    keep = rewriting(lambda op, inputs: None, "keep")
    spoil = rewriting(subtract_for_add, "spoil")
    rows = ((keep, 1), (keep, 2), (spoil, 2), (keep, 2))
    monkeypatch.setattr(levels, "TABLE", [levels.PassRow(*row) for row in rows])
    x = mg.input("x", (3,))
    assert "pass spoil" in message(compiled("reference", -2, x, x + 1), real(3))
    compiled("reference", -1, x, x + 1)(real(3))


def test_depth_is_not_limited_by_the_python_stack(run_pass):
    run_pass(subtract_for_add)
    x = mg.input("x", (3,))
    y = x
    for _ in range(2000):
        y = ops.tanh(y)
    wrong = y + 1
    text = message(compiled("reference", -2, x, wrong * 2), real(3))
    assert user_line(text) == "wrong = y + 1"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_one_special_value_that_is_lost_is_found(run_pass, device, special):
    run_pass(
        lambda op, inputs: (
            ops.where(ops.isfinite(inputs[0]), inputs[0] * 2, 0) if isinstance(op, Add) else None
        )
    )
    x = mg.input("x", (50, 7))
    step = compiled(device, -2, x, x + x)
    value = real(50, 7)
    step(value)
    value[31, 4] = special
    text = message(step, value)
    assert "1 of 350 elements" in text
    assert f"at [31, 4]: {special} and 0.0" in text


def test_integers_and_bools_are_compared_exactly(run_pass):
    run_pass(lambda op, inputs: ops.less_equal(*inputs) if op.name == "less" else None)
    n, x = mg.input("n", (3,), "int64"), mg.input("x", (3,))
    text = message(compiled("cpu", -2, [n, x], [n < 2, x]), [1, 2, 3], real(3))
    assert "1 of 3 elements differ" in text
    assert "at [1]: False and True" in text


def test_an_update_is_compared_too(run_pass):
    run_pass(subtract_for_add)
    x, w = mg.input("x", (3,)), mg.Parameter(np.ones(3, "float32"), "w")
    step = compiled("cpu", -2, [x], x * 2, {w: w + x})
    assert "made subtract of add" in message(step, real(3))
    np.testing.assert_array_equal(w.numpy(), [1, 1, 1])


def test_an_error_of_the_optimised_function_alone_is_reported(run_pass):
    run_pass(lambda op, inputs: OneHot(2, op.dtype)(inputs[0]) if op.name == "one_hot" else None)
    labels, w = mg.input("labels", (2,), "int64"), mg.Parameter(np.zeros(()), "w")
    step = compiled("cpu", -2, labels, ops.one_hot(labels, 3)[:, :2], {w: w + 1})
    assert "label 2" in message(step, [0, 2])
    assert w.numpy() == 0


# ---------------------------------------------------------------- wrong kernels


@needs_compiler
def test_a_wrong_kernel_is_named(run_pass):
    run_pass(halved)
    x = mg.input("x", (4, 3))
    wrong = (x + 1) * 0.5
    text = message(compiled("cpu", -2, x, ops.exp(wrong).sum(0)), real(4, 3))
    assert "at level 2 the kernel 'c' on cpu for halved: float32[4,3]" in text
    assert "differs from NumPy" in text
    assert user_line(text) == "wrong = (x + 1) * 0.5"
    compiled("reference", -2, x, ops.exp(wrong).sum(0))(real(4, 3))


@needs_compiler
def test_a_wrong_kernel_that_only_level_0_runs_is_named_so(run_pass):
    run_pass(lambda op, inputs: inputs[0] * 0.5 if isinstance(op, Halved) else None)
    x = mg.input("x", (4,))
    text = message(compiled("cpu", -2, x, Halved()(x)), real(4))
    assert "at level 0 the kernel 'c' on cpu for halved" in text


def test_a_device_that_runs_right_kernels_wrong_is_told_from_them(run_pass, monkeypatch):
    run_pass(lambda op, inputs: inputs[0] * 0.5 if op.name == "divide" else None)
    profile = Interpreter.profile

    def forgetful(self, arrays, commit):
        timings = profile(self, arrays, commit)
        if len(timings) > 1 and timings[0].step.node.op.name == "multiply":
            arrays[-1][...] = 0
        return timings

    monkeypatch.setattr(Interpreter, "profile", forgetful)
    x = mg.input("x", (4,))
    y = ops.exp(x / 2)
    text = message(compiled("reference", -2, x, [y]), real(4))
    assert "output 0, exp float32[4]" in text
    assert "how the device runs the kernels" in text
