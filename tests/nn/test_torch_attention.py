"""Attention, and layers made of it, against torch's of the same name and arguments."""

import numpy as np
import pytest
from torch_modules import assert_torchs, floats, ours, theirs, weights

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")

QUERY, KEY, VALUE = floats(2, 3, 5, 4), floats(2, 3, 7, 4, seed=1), floats(2, 3, 7, 6, seed=2)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": np.tri(5, 7, 1, dtype=bool)},
        {"attn_mask": floats(2, 1, 5, 7, seed=4)},
    ],
)
def test_attention_is_torchs(kwargs):
    assert_attention_is_torchs((QUERY, KEY, VALUE), kwargs)


def assert_attention_is_torchs(xs, kwargs):
    class Ours(nn.Module):
        def forward(self, q, k, v):
            return ops.scaled_dot_product_attention(q, k, v, **kwargs)

    class Theirs(torch.nn.Module):
        def forward(self, q, k, v):
            tensors = {
                k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
                for k, v in kwargs.items()
            }
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **tensors)

    for result, want in zip(ours(Ours(), xs), theirs(Theirs(), xs), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("length", "keys"), [(256, 256), (515, 515), (300, 140), (300, 400)])
def test_a_causal_mask_of_many_queries_is_torchs(length, keys):
    xs = floats(1, 2, length, 4), floats(1, 2, keys, 4, seed=1), floats(1, 2, keys, 6, seed=2)
    assert_attention_is_torchs(xs, {"is_causal": True})


def test_keys_that_a_causal_mask_hides_from_a_block_of_queries_are_not_multiplied():
    x = mg.input("x", (2, 512, 16))
    y = ops.scaled_dot_product_attention(x, x, x, is_causal=True)
    inside = [node.shape for node in Graph((x,), (y, *mg.grad(y.sum(), [x]))) if node.ndim == 3]
    scores = {shape[1:] for shape in inside if shape[1] == 128 <= shape[2]}
    assert scores == {(128, 128), (128, 256), (128, 384), (128, 512)}
    assert (2, 512, 512) not in inside


NOWHERE = np.tri(5, 7, 1, dtype=bool) & (np.arange(7) > np.array([[[-1]], [[3]]])[:, None])
ADDED = np.where(NOWHERE, floats(2, 1, 5, 7, seed=4), -np.inf)
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-1}


@pytest.mark.parametrize(
    ("mask", "level", "dtype"),
    [
        *((NOWHERE, 0, "float64"), (NOWHERE, 3, "float32"), (NOWHERE, 3, "bfloat16")),
        *((ADDED, 0, "float32"), (ADDED, 3, "float64"), (ADDED, 3, "float16")),
    ],
)
def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients(mask, level, dtype):
    def as_tensor(x):
        return torch.tensor(x, requires_grad=True).to(getattr(torch, dtype))

    hidden = mask if mask.dtype == bool else mg.Parameter(mask, dtype=dtype)
    inputs = [mg.input(n, x.shape, dtype) for n, x in zip("qkv", (QUERY, KEY, VALUE), strict=True)]
    y = ops.scaled_dot_product_attention(*inputs, hidden)
    grads = mg.grad(ops.square(y).sum(), inputs)
    cg = mg.comp_graph(options={"graph_opt_level": level})
    result = cg.compile(inputs, [y, *grads])(*(x.astype(y.dtype) for x in (QUERY, KEY, VALUE)))
    operands = [as_tensor(x) for x in (QUERY, KEY, VALUE)]
    masked = torch.tensor(mask) if mask.dtype == bool else torch.tensor(mask).to(operands[0].dtype)
    want = torch.nn.functional.scaled_dot_product_attention(*operands, masked)
    wants = [want, *torch.autograd.grad(want.square().sum(), operands)]
    assert (result[0][1, :, :3] == 0).all()
    for mine, other in zip(result, wants, strict=True):
        other = other.detach().double().numpy()
        close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        np.testing.assert_allclose(mine.astype("float64"), other, **close)


def test_attention_to_no_keys_gives_zeros():
    key = mg.input("key", (2, 3, 0, 4), "float64")
    y = ops.scaled_dot_product_attention(QUERY, key, key, is_causal=True)
    np.testing.assert_array_equal(mg.comp_graph().compile([key], y)(KEY[:, :, :0]), 0 * QUERY)


@pytest.mark.parametrize("level", [0, 3])
def test_a_masked_softmax_is_zero_where_nothing_is_left(level):
    x, mask = mg.input("x", (3, 4), "float64"), np.arange(4) < [[4], [2], [0]]
    masked, plain = ops.softmax(x, where=mask), ops.softmax(ops.where(mask, x, -np.inf))
    (dx,) = mg.grad(ops.square(masked).sum(), [x])
    value = floats(3, 4)
    cg = mg.comp_graph(options={"graph_opt_level": level})
    result, dx, unmasked = cg.compile([x], [masked, dx, plain])(value)
    e = np.exp(value) * mask
    want = e / np.maximum(e.sum(1, keepdims=True), 1e-300)
    np.testing.assert_allclose(result, want, rtol=1e-12)
    np.testing.assert_allclose(
        dx, 2 * want * (want - (want * want).sum(1, keepdims=True)), rtol=1e-9, atol=1e-15
    )
    np.testing.assert_array_equal(unmasked[:2], result[:2])
    assert np.isnan(unmasked[2]).all()


def test_the_mask_of_a_softmax_adds_no_kernel():
    x = mg.input("x", (4, 16, 16))
    cg = mg.comp_graph(options={"graph_opt_level": 3})
    (kernel,) = cg.compile([x], ops.softmax(x, where=np.tri(16, dtype=bool))).report().kernels
    assert kernel.ops.count("maximum") == 2


SEQUENCE = floats(2, 5, 8)
HIDDEN = np.array([[False] * 5, [False, False, True, True, False]])
EMPTY = np.array([[True] * 5, [True, True, False, False, False]])


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": HIDDEN},
        {"attn_mask": ~np.tri(5, dtype=bool)},
        {"attn_mask": floats(4, 5, 5, seed=5), "average_attn_weights": False},
        {"key_padding_mask": EMPTY, "attn_mask": ~np.tri(5, dtype=bool)},
    ],
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_with_heads_is_torchs(batch_first, masks):
    x = SEQUENCE if batch_first else SEQUENCE.transpose(1, 0, 2).copy()
    theirs_module = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first, dtype="float64")
    assert list(module.state_dict()) == list(theirs_module.state_dict())
    module.load_state_dict(theirs_module.state_dict())
    tensors = {k: torch.from_numpy(v) if hasattr(v, "shape") else v for k, v in masks.items()}
    node = mg.input("x", x.shape, "float64")
    t = torch.tensor(x, requires_grad=True)
    want = theirs_module(t, t, t, **tensors)
    result = module(node, node, node, **masks)
    (dx,) = mg.grad(ops.sum(result[0] * weights(result[0].shape)), [node])
    (want[0] * torch.from_numpy(weights(result[0].shape))).sum().backward()
    expected = [y.detach().numpy() for y in (*want, t.grad)]
    for mine, other in zip(Graph((node,), (*result, dx))(x), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True}, {"bias": False}],
)
def test_an_encoder_layer_is_torchs(kwargs, training):
    sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}
    assert_torchs(f"TransformerEncoderLayer(**{sizes | kwargs})", [SEQUENCE], training, 1e-7)


@pytest.mark.parametrize("masks", [{}, {"mask": ~np.tri(5, dtype=bool), "is_causal": True}])
@pytest.mark.parametrize("has_norm", [True, False])
def test_an_encoder_is_torchs(has_norm, masks):
    def encoder(nn, **dtype):
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, **dtype)
        norm = nn.LayerNorm(8, **dtype) if has_norm else None
        return nn.TransformerEncoder(layer, num_layers=3, norm=norm)

    theirs_module = encoder(torch.nn, dtype=torch.float64)
    for i, parameter in enumerate(theirs_module.parameters()):
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(i))
    module = encoder(nn, dtype="float64")
    assert list(module.state_dict()) == list(theirs_module.state_dict())
    module.load_state_dict(theirs_module.state_dict())
    tensors = {k: torch.from_numpy(v) if hasattr(v, "shape") else v for k, v in masks.items()}
    x = mg.input("x", SEQUENCE.shape, "float64")
    result = Graph((x,), (module(x, **masks),))(SEQUENCE)[0]
    want = theirs_module(torch.tensor(SEQUENCE), **tensors).detach().numpy()
    np.testing.assert_allclose(result, want, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("padding", [EMPTY, np.where(EMPTY, -np.inf, 0.0)], ids=["bool", "added"])
def test_an_encoder_layer_with_an_empty_sentence_is_torchs(padding, level):
    sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "batch_first": True}
    theirs_module = torch.nn.TransformerEncoderLayer(**sizes).double()
    module = nn.TransformerEncoderLayer(**sizes, dtype="float64")
    module.load_state_dict(theirs_module.state_dict())
    x, t = mg.input("x", SEQUENCE.shape, "float64"), torch.tensor(SEQUENCE, requires_grad=True)
    want = theirs_module(t, ~torch.ones(5, 5).tril().bool(), torch.tensor(EMPTY))
    (want[1, 2:] ** 2).sum().backward()  # the loss leaves out what sees nothing
    y = module(x, src_key_padding_mask=padding, is_causal=True)
    grads = mg.grad(ops.square(y[1, 2:]).sum(), [x, *module.parameters()])
    cg = mg.comp_graph(options={"graph_opt_level": level})
    wants = [want.detach(), t.grad, *(p.grad for p in theirs_module.parameters())]
    for mine, other in zip(cg.compile([x], [y, *grads])(SEQUENCE), wants, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-7, atol=1e-11)


def test_the_layers_of_an_encoder_begin_alike_and_train_apart():
    layer = nn.TransformerEncoderLayer(8, 2, 12)
    encoder = nn.TransformerEncoder(layer, 2)
    first, second = (each.linear1.weight for each in encoder.layers)
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    first.assign(first.numpy() + 1)
    assert (first.numpy() != second.numpy()).all()
    assert (layer.linear1.weight.numpy() == second.numpy()).all()


def test_a_causal_encoder_layer_sees_no_later_places():
    module = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, dtype="float64")
    x = mg.input("x", SEQUENCE.shape, "float64")
    run = Graph((x,), (module(x, is_causal=True),))
    changed = SEQUENCE.copy()
    changed[:, 3:] += 1
    np.testing.assert_array_equal(run(SEQUENCE)[0][:, :3], run(changed)[0][:, :3])
