"""What people try who know PyTorch is answered in one line that says what to do here."""

import operator
import re
import warnings

import numpy as np
import pytest

import minigraph as mg
from minigraph import data, nn, ops, optim, torch_hints

NET = nn.Sequential(nn.Linear(4, 3))
X = mg.input("x", (2, 4))
ADAM = optim.Adam(NET.parameters())
SIZED = mg.input("sized", (None, 4))
CG = mg.comp_graph("reference")
STEP, ANY_STEP = CG.compile([X], X * 2), CG.compile([SIZED], SIZED * 2)
PARTS = {"mg": mg, "nn": nn, "ops": ops, "optim": optim}

HABITS = [
    (lambda: ADAM.step(), AttributeError, "Adam has no step: minimize(loss) of an optimizer gives"),
    (lambda: ADAM.zero_grad(), AttributeError, "Adam has no zero_grad: gradients are expressions"),
    (lambda: ADAM.param_groups, AttributeError, "optimizer.lr is the learning rate"),
    (lambda: NET.to("cuda"), AttributeError, "Sequential has no to: functions are compiled for"),
    (lambda: NET.cuda(), AttributeError, 'mg.comp_graph(device="cuda")'),
    (lambda: NET.half(), AttributeError, "layers are made in a dtype"),
    (lambda: NET.zero_grad(), AttributeError, "there is nothing to clear; minimize(loss)"),
    (lambda: NET.register_parameter("w", None), AttributeError, "attributes register themselves"),
    (lambda: NET[0].weight.data, AttributeError, "p.assign(value) sets it"),
    (lambda: NET(X).item(), AttributeError, "compile it, mg.comp_graph().compile("),
    (lambda: optim.SGD(NET.parameters, 0.1), mg.GraphError, "is the method parameters, which is"),
    (lambda: mg.grad(NET(X).sum(), NET.parameters), mg.GraphError, "parameters, which is not call"),
    (
        lambda: mg.comp_graph().compile([X], NET(X), updates=NET.updates),
        mg.GraphError,
        "updates is the method updates, which is not called",
    ),
    (lambda: optim.Adam(NET), mg.GraphError, "Sequential is a module; give what its parameters()"),
    (
        lambda: nn.functional,
        AttributeError,
        "functions of expressions are in minigraph.ops: ops.relu",
    ),
    (lambda: nn.utils, AttributeError, "minimize(loss, clip_norm=1.0) of an optimizer clips"),
    (lambda: ops.cat, AttributeError, "minigraph.ops has no cat: ops.concat joins arrays"),
    (
        lambda: ops.matmult,
        AttributeError,
        "has no attribute 'matmult'; the nearest is matmul",
    ),
    (
        lambda: optim.lr_scheduler,
        AttributeError,
        "has schedules, such as cosine(adam, T_max=10)",
    ),
    (lambda: X.flip(0), AttributeError, "an expression has no flip: it is the function ops.flip"),
    (lambda: X.masked_fill(X > 0, 0), AttributeError, "ops.where(mask, value, x) replaces"),
    (lambda: X.add_(1), AttributeError, "never change; it is the function ops.add"),
    (lambda: X.clamp_(0), AttributeError, "never change; ops.clip keeps elements within"),
    (lambda: X.scatter_(0, 1, 2), AttributeError, "never change; x.scatter(...) gives a new one"),
    (lambda: X.zero_(), AttributeError, "never change; `updates` of `compile` gives parameters"),
    (lambda: ops.randn(3), AttributeError, "ops.random_normal(shape) draws numbers in each call"),
    (lambda: ops.nonzero(X), AttributeError, "depends on the values, and shapes do not"),
    (lambda: mg.relu(X), AttributeError, "minigraph has no relu: it is ops.relu"),
    (lambda: mg.Module, AttributeError, "minigraph has no Module: it is nn.Module"),
    (lambda: mg.float32, AttributeError, 'types are named by texts, "float32"'),
    (lambda: ops.while_loop, AttributeError, "ops.scan loops over an axis, or `length` times"),
    (lambda: ops.cond, AttributeError, "ops.where(condition, x, y) takes elements of both"),
    (lambda: ops.grad, AttributeError, "mg.grad(loss, [...]) gives gradients as expressions"),
    (lambda: ops.vmap, AttributeError, "ops take axes in front of those that they compute along"),
    (lambda: mg.export, AttributeError, "mg.save(path, net) keeps the weights"),
    (lambda: X in (SIZED[:, :3], X), mg.ShapeError, "expressions themselves are compared by `is`"),
    (lambda: np.asarray(X), mg.DTypeError, "is no array: an expression has no value before a call"),
    (lambda: nn.TransformerDecoderLayer, AttributeError, "takes query, key and value"),
    (lambda: nn.CTCLoss, AttributeError, "ops.scan over time, of ops.logaddexp, sums over"),
    (lambda: nn.Dropout1d, AttributeError, "nn.Dropout2d(p)(x[..., None])[..., 0]"),
    (lambda: ops.bincount(X), AttributeError, "ops.one_hot(x, n).sum(axis=0) counts n values"),
    (lambda: X.scatter_reduce, AttributeError, "index_add(0, segments, x) adds up rows by seg"),
    (lambda: ops.checkpoint, AttributeError, "the option graph_opt.memory_limit"),
    (lambda: ops.linalg, AttributeError, "np.linalg and np.fft do, before a call"),
    (lambda: ops.inf, AttributeError, "np.inf, np.pi and np.e are Python numbers"),
    (lambda: mg.set_option("seed", 1), AttributeError, "cg.set_option(name, value)"),
    (lambda: mg.load_state_dict, AttributeError, "net.load_state_dict(mg.load(path))"),
    (lambda: data.TensorDataset, AttributeError, "DataLoader((images, labels)) takes arrays"),
    (lambda: data.random_split, AttributeError, "[dataset[i] for i in indices], and arrays"),
    (lambda: data.MNIST, AttributeError, "nothing is downloaded; DataLoader takes arrays"),
    (lambda: data.DataLoder, AttributeError, "the nearest is DataLoader"),
    (
        lambda: mg.save("x", {"net": NET}),
        mg.DTypeError,
        '{f"net.{k}": x for k, x in v.state_dict()',
    ),
    (lambda: STEP.explain(), AttributeError, "print(step.report()); its section(name) has"),
    (lambda: STEP.eval(), AttributeError, "write the expression after net.train() or net.eval()"),
    (lambda: STEP.reprot(), AttributeError, "has no attribute 'reprot'; the nearest is report"),
    (lambda: STEP.kernels, AttributeError, "step.report() has it, as in step.report().kernels"),
    (lambda: ANY_STEP.graph, AttributeError, "step.to_html(path) shows the graph after each pass"),
    (lambda: ANY_STEP.parameters(), AttributeError, "belong to modules, net.parameters()"),
    (lambda: CG.function([X], X), AttributeError, "compile(inputs, outputs, updates) makes a"),
    (lambda: CG.set_options(seed=1), AttributeError, "set_option(name, value), one at a time"),
    (lambda: NET(X).eval(), AttributeError, "compile it, mg.comp_graph().compile("),
    (
        lambda: ADAM.minimize(NET(X).sum(), NET.parameters()),
        mg.GraphError,
        "it takes a mapping of parameters to gradients",
    ),
    (lambda: optim.NAdam, AttributeError, "mg.grad gives gradients, of which updates={p: new"),
    (lambda: optim.schedules.MultiStepLR, AttributeError, "it is optim.schedules.multi_step"),
    (lambda: optim.schedules.LambdaLR, AttributeError, "setting adam.lr between calls makes any"),
    (lambda: np.exp(X), mg.DTypeError, "np.exp computes arrays, and input x: float32[2,4] has no"),
    (lambda: np.power(X, 2), mg.DTypeError, "functions of expressions: ops.pow, or x ** y"),
    (lambda: np.mean(X), mg.DTypeError, "functions of expressions: ops.mean"),
    (lambda: np.concatenate([X, X]), mg.DTypeError, "expressions: ops.concat joins arrays"),
    (lambda: np.add.reduce(X), mg.DTypeError, "functions of expressions: ops.add"),
    (lambda: f"{X.sum():.3f}", mg.GraphError, "is no number: an expression has no value before"),
    (lambda: X.__setitem__(0, 1), mg.GraphError, "ops.where(mask, value, x) and ops.index_put("),
    (lambda: X.sum(dim=1), TypeError, "got an unexpected keyword argument 'dim'; use axis"),
    (lambda: ops.mean(X, 1, keepdim=True), TypeError, "argument 'keepdim'; use keepdims"),
    (lambda: nn.Conv2d(3, 8, 3, pad=1), TypeError, "keyword argument 'pad'; use padding"),
    (lambda: optim.SGD([], maximize=True), TypeError, "'maximize'; use minimize(-loss)"),
    (
        lambda: optim.SGD(iter(())),
        mg.GraphError,
        "no parameters; an iterator such as net.parameters()",
    ),
    (lambda: setattr(NET[0], "weight", np.ones(3)), mg.GraphError, "weight.assign(value) sets its"),
    (lambda: ops.concat(SIZED, SIZED), mg.GraphError, "it takes a sequence of one array or more"),
    (lambda: np.zeros(SIZED.shape), mg.ShapeError, "ops.zeros(x.shape) and the like take sizes"),
    (
        lambda: ADAM.minimize((ops.argmax(NET(X), 1) == 0).astype("float32").mean()),
        mg.GraphError,
        "has no gradient: it depends on the parameters only through ops that change in steps",
    ),
    (lambda: mg.no_grad(), AttributeError, "minigraph has no no_grad: gradients are only computed"),
    (lambda: mg.manual_seed(0), AttributeError, "nn.manual_seed(seed) is for layers"),
    (lambda: mg.comp_graph("gpu"), mg.DeviceError, 'an NVIDIA GPU is "cuda"'),
    (lambda: mg.comp_graph("GPU:0"), mg.DeviceError, 'an NVIDIA GPU is "cuda"'),
    (lambda: mg.comp_graph("mps"), mg.DeviceError, "Apple's GPUs are not supported"),
    (lambda: mg.comp_graph("cuda:x"), mg.DeviceError, 'use "cpu", "cuda", "cuda:1"'),
]


@pytest.mark.parametrize(("habit", "error", "text"), HABITS)
def test_a_habit_is_answered_with_what_serves_here(habit, error, text):
    with pytest.raises(error, match=re.escape(text)) as raised:
        habit()
    assert "\n" not in str(raised.value)


def test_a_wrong_name_is_an_attribute_error_with_the_nearest_one():
    for owner, name, near in ((NET, "parametres", "parameters"), (ADAM, "minimise", "minimize")):
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as raised:
            getattr(owner, name)
        assert (raised.value.obj, raised.value.name) == (owner, name)
        assert hasattr(owner, near)


def test_an_array_beside_an_expression_makes_an_expression():
    array = np.full((2, 4), 3, "float32")
    total = np.float32(2) * X
    total += array
    made = (array - X, array**X, array @ X.T, array < X, array == X, total, np.add(array, X))
    found = mg.comp_graph("reference").compile([X], made)(array * 2)
    x = array * 2
    expected = (array - x, array**x, array @ x.T, array < x, array == x, 2 * x + array, array + x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    with_array = array.copy()
    with_array += X
    assert isinstance(with_array, type(X))


def test_no_name_that_is_not_for_users_is_suggested():
    for owner, name in ((ADAM, "statee"), (mg, "functions"), (nn, "contaner"), (NET, "calls_")):
        with pytest.raises(AttributeError) as raised:
            getattr(owner, name)
        nearest = str(raised.value).partition("the nearest is ")[2]
        assert not nearest.startswith("_")
        assert not nearest or nearest in dir(owner)


def test_every_answer_names_what_exists():
    of_all = (v for name, v in vars(torch_hints).items() if name.startswith("OF_"))
    answers = " ".join(answer for answers in of_all for answer in answers.values())
    names = re.findall(r"\b((?:mg|nn|ops|optim)\.\w+(?:\.\w+)*)", answers)
    assert len(names) > 50
    for name in names:
        operator.attrgetter(name.partition(".")[2])(PARTS[name.partition(".")[0]])


def test_what_is_answered_for_sums_and_maxima_by_segment_computes_them():
    n, shape = 3, (3, 2)
    segments, x = mg.input("segments", (4,), "int64"), mg.input("x", (4, 2))
    known = {"ops": ops, "np": np, "n": n, "shape": shape, "segments": segments, "x": x}
    sums, maxima = torch_hints.OF_OPS["segment_max"].split("; ")
    formulas = sums.partition(" adds")[0], maxima.partition(" has")[0]
    made = [eval(formula, known) for formula in (*formulas, "ops.one_hot(segments, n).sum(axis=0)")]
    ids, rows = np.array([2, 0, 2, 1]), np.arange(8, dtype="float32").reshape(4, 2)
    total, most, counts = mg.comp_graph("reference").compile([segments, x], made)(ids, rows)
    np.testing.assert_array_equal(total, [[2, 3], [6, 7], [4, 6]])
    np.testing.assert_array_equal(most, [[2, 3], [6, 7], [4, 5]])
    np.testing.assert_array_equal(counts, [1, 1, 2])


def test_a_network_called_with_an_array_warns_of_it_once_for_a_line(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    with pytest.warns(mg.MinigraphWarning, match="Sequential was called with arrays only") as all_:
        for _ in range(2):
            y = NET(np.ones((2, 4), "float32"))
    assert len(all_) == 1
    assert isinstance(y, type(X + 1))


def test_arrays_beside_expressions_or_inside_a_module_or_of_integers_are_fine():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x, y):
            return x + y + self.fc(np.ones((2, 4), "float32"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net()(X, np.ones((2, 4), "float32"))
        nn.Embedding(5, 3)(np.arange(4))
        ops.relu(np.ones(3))
