"""Errors of ops say what was asked of what, and where."""

import re

import numpy as np
import pytest
from op_values import F32

import minigraph as mg
from minigraph import GraphError, ShapeError, ops
from minigraph.graph import Graph, constant

X = mg.input("x", (2, 3))
I = mg.input("i", (2, 3), "int32")  # noqa: E741
IMAGE = mg.input("image", (1, 3, 4, 4))

ERRORS = """
ShapeError add: X + np.ones(4); ops.add(X, ops.reshape(X, (3, 2)))
DTypeError add: I + 2**40; X + "text"
DTypeError subtract: (X > 0) - (X < 0)
DTypeError bitwise_and: X & X
DTypeError bitwise_invert: ~X
DTypeError clip: ops.clip(X > 0, 0, 1)
DTypeError where: ops.where(X, X, X)
ShapeError where: ops.where(X > 0, X, np.ones(2))
DTypeError astype: X.astype("complex64"); X.astype("nonsense")
ShapeError matmul: X @ X; X @ 2.0; ops.matmul(np.ones((2, 4, 3)), np.ones((3, 3, 4)))
ShapeError linear: ops.linear(X, np.ones(3)); ops.linear(X, np.ones((5, 3)), np.ones(4))
ShapeError sum: X.sum(2); X.sum((0, -2)); X.sum("columns")
ShapeError max: ops.max(X[:0])
ShapeError argmax: ops.argmax(X[:, :0], 1)
ShapeError mean: X[:0].mean()
ShapeError var: ops.var(X, 0, correction=2)
ShapeError reshape: X.reshape(4); X.reshape(-1, 4); X.reshape(-1, -1); X.reshape(-2, -3)
ShapeError reshape: X.reshape(2.0, 3)
ShapeError permute_dims: X.transpose(0, 0); ops.permute_dims(X, (0, 1, 2))
ShapeError broadcast_to: ops.broadcast_to(X, (2, 4)); ops.broadcast_to(X, (3,))
ShapeError squeeze: ops.squeeze(X, 0)
ShapeError expand_dims: ops.expand_dims(X, 4)
ShapeError concat: ops.concat([X, X], 2); ops.concat([X, X[0]]); ops.concat([X, X[:, :2]])
GraphError concat: ops.concat([])
ShapeError stack: ops.stack([X, X[0]])
GraphError stack: ops.stack([])
ShapeError split: ops.split(X, 2, 1); ops.split(X, 0)
ShapeError slice: ops.slice(X, (0, 0, 0), (1, 1, 1)); ops.slice(X, 0, 1, 0)
ShapeError getitem: X[2]; X[0, 0, 0]; X[..., ...]; X[::0]; X[[0, 2]]; X[:, [0, -4]]; X[2, [0, 1]]
ShapeError getitem: X[[0], [1], [0]]; X[[0, 1], [0, 1, 2]]
GraphError getitem: X[X > 0]; X[True]; X[{0}]; X[[True, False]]
DTypeError getitem: X[[0.5]]; X[X]
GraphError index_put: ops.index_put(X, [], 1); ops.index_put(X, I, 1)
ShapeError index_put: ops.index_put(X, ([0], [1], [0]), 1); ops.index_put(X, ([0],), X)
DTypeError index_put: ops.index_put(I, ([0],), X[:1])
ShapeError index_add: ops.index_add(X, 0, I, X); ops.index_add(X, 0, [1], X)
ShapeError gather: ops.gather(X, 1, np.zeros((3, 3), int)); ops.gather(X, 1, I[0])
ShapeError scatter: ops.scatter(X, 1, I, X[:1]); ops.scatter(X, 1, np.zeros((3, 1), int), 1)
DTypeError scatter_add: ops.scatter_add(X, 1, X, X)
ShapeError argsort: ops.argsort(X, 2)
ShapeError topk: ops.topk(X, 4); ops.topk(X, -1)
ShapeError searchsorted: ops.searchsorted(X, np.ones(3))
DTypeError searchsorted: ops.searchsorted([False, True], True)
ShapeError pad: ops.pad(X, -1); ops.pad(X, (1, 2, 3)); ops.pad(X, 0.5)
DTypeError pad: ops.pad(I, 1, constant_values=2**40)
ShapeError flip: ops.flip(X, 2)
DTypeError take: ops.take(X, X, 0)
ShapeError take: ops.take(X, 0, 2)
DTypeError one_hot: ops.one_hot(X, 3)
ShapeError one_hot: ops.one_hot(I, 0)
ShapeError conv2d: ops.conv2d(X, X); ops.conv2d(IMAGE, np.ones((8, 4, 3, 3), F32))
ShapeError conv2d: ops.conv2d(IMAGE, np.ones((8, 3, 5, 5), F32))
ShapeError conv2d: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), np.ones(7, F32))
ShapeError conv2d: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), stride=0)
ShapeError conv2d: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), groups=2)
ShapeError conv2d: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), groups=0)
ShapeError conv2d: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), padding=(1, -1))
DTypeError conv2d: ops.conv2d(IMAGE.astype("int32"), np.ones((8, 3, 1, 1), "i4"))
ShapeError max_pool2d: ops.max_pool2d(X, 2); ops.max_pool2d(IMAGE, 5)
ShapeError max_pool2d: ops.max_pool2d(IMAGE, 2, padding=2)
DTypeError max_pool2d: ops.max_pool2d(IMAGE > 0, 2)
DTypeError avg_pool2d: ops.avg_pool2d(IMAGE.astype("int8"), 2)
ShapeError adaptive_avg_pool2d: ops.adaptive_avg_pool2d(X, 2)
ShapeError adaptive_avg_pool2d: ops.adaptive_avg_pool2d(IMAGE, (2, 0))
ShapeError adaptive_avg_pool2d: ops.adaptive_avg_pool2d(IMAGE[:, :, :0], 2)
ShapeError batch_norm: ops.batch_norm(IMAGE, np.ones(3, F32), np.ones(2, F32))
ShapeError batch_norm_with_statistics: ops.batch_norm_with_statistics(X[0])
ShapeError layer_norm: ops.layer_norm(X, 2); ops.layer_norm(X, 3, weight=np.ones(2))
ShapeError local_response_norm: ops.local_response_norm(X, 2); ops.local_response_norm(IMAGE, 0)
DTypeError local_response_norm: ops.local_response_norm(IMAGE.astype("int8"), 2)
ShapeError softmax: ops.softmax(X, 2)
ShapeError log_softmax: ops.log_softmax(X[:, :0])
ShapeError cross_entropy: ops.cross_entropy(X, I)
DTypeError cross_entropy: ops.cross_entropy(X, X[:, 0])
ShapeError mse_loss: ops.mse_loss(X, X[0])
GraphError gelu: ops.gelu(X, "fast")
ShapeError take_along_axis: ops.take_along_axis(X, I[:1])
ShapeError zeros: ops.zeros(-1)
DTypeError full: ops.full(2, "text")
ShapeError arange: ops.arange(0, 1, 0); ops.arange(float("inf"))
ShapeError linspace: ops.linspace(0, 1, -1)
ShapeError eye: ops.eye(2**40, 2**40)
ShapeError tril: ops.tril(X[0])
ShapeError tile: ops.tile(X, -1)
ShapeError repeat: ops.repeat(X, -1)
ShapeError roll: ops.roll(X, (1, 2, 3), (0, 1))
ShapeError moveaxis: ops.moveaxis(X, (0, 1), 0)
ShapeError swapaxes: ops.swapaxes(X, 0, 2)
ShapeError matrix_transpose: ops.matrix_transpose(X[0])
ShapeError unstack: ops.unstack(X, 2)
ShapeError flatten: ops.flatten(X, 1, 0)
ShapeError vecdot: ops.vecdot(X, X[0, :2])
ShapeError outer: ops.outer(X, X)
ShapeError tensordot: ops.tensordot(X, X, 1); ops.tensordot(X, X, -1)
GraphError einsum: ops.einsum("ii", X[:, :2]); ops.einsum("ij->k", X); ops.einsum("i1", X)
GraphError einsum: ops.einsum("ij,jk", X)
ShapeError einsum: ops.einsum("ijk", X); ops.einsum("ij,ik->jk", X, X.T)
GraphError norm: ops.norm(X, 3)
ShapeError norm: ops.norm(X[:0], float("inf"))
GraphError normalize: ops.normalize(X, 3)
ShapeError cosine_similarity: ops.cosine_similarity(X, X[:, :2])
ShapeError argmin: ops.argmin(X[:, :0], 1)
ShapeError cumulative_sum: ops.cumulative_sum(X)
ShapeError cumsum: ops.cumsum(X, 2)
GraphError dropout: ops.dropout(X, 1.5)
DTypeError random_normal: ops.random_normal((2,), dtype="int32")
ShapeError random_uniform: ops.random_uniform((-1,))
GraphError random_uniform: ops.random_uniform((1,), low=-3e38, high=3e38)
GraphError random_uniform: ops.random_uniform((1,), 0, 7e4, dtype="float16")
"""


def wrong_calls():
    """Yield the kind of error, the name of what was called, and the call, of each of `ERRORS`."""
    for line in ERRORS.strip().splitlines():
        kind, name, calls = re.fullmatch(r"(\w+) (\w+): (.*)", line).groups()
        for call in calls.split("; "):
            yield getattr(mg, kind), name, call


@pytest.mark.parametrize(("kind", "name", "call"), list(wrong_calls()))
def test_errors_say_what_was_asked_of_what_and_where(kind, name, call):
    with pytest.raises(GraphError) as caught:
        eval(compile(call, __file__, "eval"))
    assert type(caught.value) is kind
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert text.endswith(f"at {__file__}:1")


def test_errors_show_the_operands():
    with pytest.raises(ShapeError, match=r"float32\[2,3\].*float64\[4\]"):
        ops.add(X, constant(np.ones(4)))
    with pytest.raises(ShapeError, match=r"conv2d: .*image: float32\[1,3,4,4\]"):
        ops.conv2d(IMAGE, w=np.ones((8, 4, 3, 3), F32))
    with pytest.raises(ShapeError, match=r"concat: .*float32\[2,3\].*float32\[3\]"):
        ops.concat([X, X[0]])


@pytest.mark.parametrize(
    ("name", "fn", "value"),
    [
        ("take", lambda i: ops.take(np.zeros((2, 3)), i, 0), "2"),
        ("take", lambda i: ops.take(np.zeros((3, 2)), i - 4, 1), "-3"),
        ("one_hot", lambda i: ops.one_hot(i, 2), "2"),
        ("one_hot", lambda i: ops.one_hot(i - 3, 2), "-2"),
        ("one_hot", lambda i: ops.cross_entropy(np.zeros((3, 2)), i), "2"),
    ],
)
def test_index_out_of_range_is_an_error_at_the_call(name, fn, value):
    y = mg.input("i", (3,), "int64")
    graph = Graph((y,), (fn(y),))
    with pytest.raises(GraphError) as caught:
        graph(np.array([1, 2, 1]))
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert f" {value} at (" in text
    assert text.endswith(f"at {__file__}:{fn.__code__.co_firstlineno}")
