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

    xs = QUERY, KEY, VALUE
    for got, want in zip(ours(Ours(), xs), theirs(Theirs(), xs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


SEQUENCE = floats(2, 5, 8)
HIDDEN = np.array([[False] * 5, [False, False, True, True, False]])


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": HIDDEN},
        {"attn_mask": ~np.tri(5, dtype=bool)},
        {"attn_mask": floats(4, 5, 5, seed=5), "average_attn_weights": False},
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
    got = module(node, node, node, **masks)
    (dx,) = mg.grad(ops.sum(got[0] * weights(got[0].shape)), [node])
    (want[0] * torch.from_numpy(weights(got[0].shape))).sum().backward()
    wanted = [y.detach().numpy() for y in (*want, t.grad)]
    for mine, other in zip(Graph((node,), (*got, dx))(x), wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True}, {"bias": False}],
)
def test_an_encoder_layer_is_torchs(kwargs, training):
    sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}
    assert_torchs("TransformerEncoderLayer", {**sizes, **kwargs}, [SEQUENCE], training, rtol=1e-7)


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
    got = Graph((x,), (module(x, **masks),))(SEQUENCE)[0]
    want = theirs_module(torch.tensor(SEQUENCE), **tensors).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12)


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
