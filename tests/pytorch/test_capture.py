"""Captured models: supported programs and results."""

import dataclasses
import itertools
import random

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops

torch = pytest.importorskip("torch")
from captured import Model, X, agrees, interpreted, makes_a_parameter  # noqa: E402

from minigraph.torch.capture import capture  # noqa: E402
from minigraph.torch.operators import ROWS  # noqa: E402

SHARES = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")
ROW_OF_EACH, DY = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]]), np.eye(4, 3, dtype="float32")
MATRICES = np.arange(18, dtype="float32").reshape(3, 2, 3)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


torch.export.register_dataclass(Pair)


def test_arguments_and_results_may_be_nested():
    def function(model, inputs, *, scale, flag=True):
        return {"a": inputs["x"] * scale, "b": (inputs["y"][0] + 2 if flag else 0, None, 3)}

    result = agrees(function, {"x": X, "y": [X + 1]}, scale=2.0)
    assert result.outputs["b"][1:] == (None, 3)
    assert isinstance(agrees(lambda model, x: Pair(x + 1, x * 2), X).outputs, Pair)


def test_tensors_that_a_model_holds_are_constants_or_state():
    agrees(lambda model, x: x * model.held + torch.tensor([1.0, 2, 3, 4]) + model.ones, X)


def test_changes_of_buffers_and_what_they_are_assigned_are_results():
    def changes(model, x):
        model.mean.add_(x.mean(0)).mul_(2)
        return x + model.mean

    def assigns(model, x):
        model.mean = model.mean * 0.5 + x.mean(0)
        return x + model.mean

    for function in (changes, assigns):
        assert list(agrees(function, X).changes) == ["mean"]


def assert_first_factor_is_fixed(function):
    """Assert that the gradient of `linear(x) * x` is `linear(x)`."""
    (x,), result, model = interpreted(function, X)
    gradient = mg.comp_graph("reference").compile([x], mg.grad(result.outputs.sum(), [x])[0])
    with torch.no_grad():
        np.testing.assert_allclose(gradient(X.numpy()), model.linear(X).numpy(), rtol=1e-5)


def test_graphs_in_graphs_are_computed_in_place():
    def without_gradient(model, x):
        with torch.no_grad():
            y = model.linear(x)
        return y * x

    def in_bfloat16(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model.linear(x)
        return y.float() * 0 + y.dtype.itemsize

    agrees(without_gradient, X)
    agrees(in_bfloat16, X)
    assert_first_factor_is_fixed(without_gradient)


def test_results_of_inference_mode_have_no_gradient():
    @torch.inference_mode()
    def fixed(model, x):
        return model.linear(x)

    def function(model, x):
        with torch.inference_mode(False):
            return fixed(model, x) * x

    assert_first_factor_is_fixed(function)
    with torch.inference_mode():
        assert (X + 1).is_inference()


def test_what_forward_assigns_or_draws_once_is_warned_of_and_does_not_stay(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())

    def counts(model, x):
        model.calls += 1
        model.state = x if model.state is None else model.state + x
        model.held = model.held * 2
        model.last = x
        return x * model.calls + model.held * random.random()

    model = Model(counts)
    model.calls, model.state = 0, None
    held = model.held
    with pytest.warns(mg.MinigraphWarning) as warned:
        capture("test", model, (X,))
    assert "`forward` assigns held, calls, state, which happens" in str(warned[0].message)
    assert "drawn from `random` or `numpy.random`" in str(warned[1].message)
    assert (model.calls, model.state, model.held) == (0, None, held) and not hasattr(model, "last")
    with pytest.raises(mg.GraphError):
        capture("test", other := Model(makes_a_parameter), (X,))
    assert not hasattr(other.linear, "scale")


def test_random_integers_are_in_their_range():
    def function(model, x):
        return torch.randint(3, 6, (500,)), torch.randint(2, (500,)), torch.normal(5.0, 0.1, (500,))

    _, result, _ = interpreted(function, X)
    some, bits, near = mg.comp_graph("reference").compile([], result.outputs)()
    assert {*some} == {3, 4, 5} and {*bits} == {0, 1} and abs(near.mean() - 5) < 0.1


def test_numbers_of_tensors_are_values():
    def function(model, x):
        n, a = x.argmax().item(), x.sum().item()
        torch._check(n < x.numel())
        places = torch.arange(5, dtype=torch.float64)
        return x * a + n * 2, x.clamp(max=a / 2), places < n, torch.arange(5) < a

    agrees(function, X, others=[(X.flip(1) * 0.3,)])


def test_branches_that_only_raise_errors_are_left_out():
    def function(model, x):
        if x.max() > 100 or (x < -100).any():
            raise ValueError(f"values such as {x.max()}")
        if not x.isfinite().all():
            raise ValueError
        if x[0, 0] < 100:
            y = x * 2
        else:
            raise ValueError
        return y + 1

    agrees(function, X)


def test_rows_are_multiplied_by_the_matrix_of_their_group():
    """By rows of the table: PyTorch traces its operator in bfloat16 only."""
    xs = [mg.input(name, x.shape) for name, x in (("x", ROW_OF_EACH), ("w", MATRICES), ("dy", DY))]
    x, weights, dy = xs
    ends = ops.astype(np.array([1, 1, 3]), "int32")
    y = ROWS["aten._grouped_mm.default"](x, weights, ends)
    backward = ROWS["transformers.grouped_mm_fallback_backward.default"](x, weights, ends, dy)
    results = mg.comp_graph("reference").compile(xs, [y, *backward])(ROW_OF_EACH, MATRICES, DY)
    matrices = MATRICES[[0, 2, 2]]
    np.testing.assert_allclose(results[0][:3], np.einsum("ij,ijk->ik", ROW_OF_EACH[:3], matrices))
    np.testing.assert_allclose(results[1][:3], np.einsum("ik,ijk->ij", DY[:3], matrices))
    np.testing.assert_allclose(results[2][2], ROW_OF_EACH[1:3].T @ DY[1:3])
    assert not results[0][3].any() and not results[1][3].any() and not results[2][1].any()


def test_the_gamma_function_and_its_derivatives_are_torch_s_also_below_zero():
    x = torch.cat([torch.linspace(-4.6, 30, 50).double(), torch.tensor([1.0, 2.0, 1e-6, 1e6])])
    poles = torch.tensor([0.0, -0.0, -1.0])

    def function(model, x, poles):
        derivatives = x.digamma(), x.polygamma(1), x.polygamma(2)
        return x.lgamma(), *derivatives, poles.lgamma(), poles.digamma()

    agrees(function, x, poles)


def test_a_range_of_integers_steps_as_in_torch_between_floats():
    def function(model, x):
        ranges = ((0.1, -7.9, -4.0), (2.1, -2.9, -1.0), (-0.9, 2.1, 2.0))
        return [torch.arange(*each, dtype=torch.int32) for each in ranges]

    agrees(function, X)


def test_maxima_that_are_put_at_one_place_share_the_gradient():
    """Also where they are infinite, and among what is there before."""
    start = torch.tensor([[1.0, 2.0, -torch.inf], [4.0, 0.0, 3.0]])
    source = torch.tensor([[1.0, 1.0, 5.0, 5.0], [4.0, torch.inf, torch.inf, -2.0]])
    index = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]])
    ways = [*itertools.product(("amax", "amin"), (True, False))]

    def function(model, x, y):
        return [
            x.scatter_reduce(1, index, y, how, include_self=include_self)
            for how, include_self in ways
        ]

    inputs, result, _ = interpreted(function, start, source)
    nodes = [n for z in result.outputs for n in (z, *mg.grad(ops.sum(z * SHARES), inputs))]
    arrays = iter(mg.comp_graph().compile(inputs, nodes)(start.numpy(), source.numpy()))
    x, y = (t.clone().requires_grad_() for t in (start, source))
    for z in function(None, x, y):
        grads = torch.autograd.grad((z * torch.from_numpy(SHARES)).sum(), [x, y])
        np.testing.assert_array_equal(next(arrays), z.detach().numpy())
        for t, gradient in zip((start, source), grads, strict=True):
            finite = torch.isfinite(t).numpy()
            np.testing.assert_allclose(next(arrays)[finite], gradient.numpy()[finite])


def test_a_tensor_that_the_example_has_twice_is_two_inputs():
    agrees(lambda model, x, y: x - y * 2, X, X, others=[(X, X + 1)])


def test_divisions_that_round_toward_zero_know_the_least_integer():
    x = torch.tensor([-128, -127, -7, 7, 127], dtype=torch.int8)[:, None]
    y = torch.tensor([-128, -3, -2, 2, 3, 127], dtype=torch.int8)
    agrees(lambda model, x, y: (torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")), x, y)


def test_a_dimension_may_have_any_size():
    def shapes(model, x):
        n, m = x.shape
        y = x.view(n * 2, m // 2).reshape(n, -1) + torch.arange(n)[:, None] + x.size(0) * 2
        y = torch.cat(torch.chunk(y, 2, 1)[::-1], 1) + x.new_zeros(x.shape)
        return (torch.ones(n, n).tril() @ y).expand(2, -1, -1).sum(0), x.flatten()

    def recurrent(model, x):
        return model.recurrent(x.unsqueeze(1).expand(-1, 5, -1))[0][:, -1]

    sizes = (({0: torch.export.Dim("n")},),)
    for function in (shapes, recurrent):
        agrees(function, X, sizes=sizes, others=[(torch.randn(n, 4),) for n in (1, 5)])
