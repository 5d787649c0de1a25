"""Models of which capture has no graph: the errors."""

import pytest

import minigraph as mg

torch = pytest.importorskip("torch")
from captured import X, interpreted, makes_a_parameter  # noqa: E402


def packs(model, x):
    packed = torch.nn.utils.rnn.pack_padded_sequence(x[None, :, :], torch.tensor([2]), True)
    return model.recurrent(packed)[0].data


def assigns_data(model, x):
    model.mean.data = x.mean(0)
    return x + model.mean


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(2))
        return x


def branches(model, x):
    return x + 1 if x.sum() > 0 else x - 1


def changes_input(model, x):
    return x.add_(1) * 2


def changes_parameter(model, x):
    with torch.no_grad():
        model.linear.weight[0].zero_()
    return model.linear(x)


def rotates(model, x):
    z = torch.view_as_complex(x.reshape(3, 2, 2))
    return torch.view_as_real(z.sin()).flatten(1) + torch.linalg.svd(x)[1].sum()


def jacobian(model, x):
    return torch.vmap(torch.func.jacrev(model.linear))(x)


def weighted(model, x):
    return torch.cov(x, fweights=torch.tensor([1, 2, 3, 1]))


def loops(model, x):
    below, step = lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5)
    return torch._higher_order_ops.while_loop(below, step, (torch.tensor(0), model.linear(x)))


def sized(model, x):
    n = x.sum().long().item()
    torch._check(n >= 0)
    return x.new_ones(n).sum() + x


def normed(model, x):
    return model.norm(x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            branches,
            r"refused_models.py:\d+: a size or a branch depends on values",
        ),
        (changes_input, r"changes \w+ in place, which is not a buffer, at .*captured.py:\d+"),
        (changes_parameter, r"changes linear.weight in place, which is not a buffer"),
        (rotates, r"unsupported operators: aten.sin.* at .*svd.*complex numbers"),
        (
            lambda model, x: torch.linalg.inv(x @ x.T),
            r"operators: aten.linalg_inv_ex.default \(1 .*aten._linalg_check_errors.default \(1",
        ),
        (lambda model, x: x[x > 0], r"a mask of bool .*captured.py"),
        (lambda model, x: model.linear(x).register_hook(print), "a hook on a tensor's gradient"),
        (lambda model, x: InPlace.apply(x * 2), "Function that changes its input is not supported"),
        (lambda model, x: torch.vmap(InPlace.apply)(x), "in a transform of torch.func is not"),
        (packs, r"a mask of bool selects an unknown number .*captured.py"),
        (assigns_data, "assignment to x.data is not supported; use"),
        (lambda model, x: model.linear(x).sum().backward(), r"backward\(\) in a model is not"),
        (sized, r"\.item\(\) gives a size that is unknown"),
        (weighted, "a size or a branch depends on values"),
        (lambda model, x: model.linear(x) @ x, "a and b must have same reduction dim"),
        (lambda model, x: model.linear(x.double()), "the tensors have dtypes float64 and"),
        (jacobian, r"refused_models.py:\d+: torch.func's grad, vjp"),
        (lambda model, x: torch.func.grad(lambda y: model.linear(y).sum())(x), "torch.func's grad"),
        (loops, "unsupported operators: while_loop"),
        (makes_a_parameter, "`forward` adds linear.scale, which `__init__` must add"),
        (lambda model, x: (x, mg), r"the model returns a module, which torch.export does not know"),
        (normed, r"in layer norm, at .*refused_models.py:\d+: a size or a branch"),
    ],
)
def test_what_has_no_graph_is_an_error_of_one_line(function, said, capfd):
    with pytest.raises(mg.GraphError, match=said) as caught:
        interpreted(function, X)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
