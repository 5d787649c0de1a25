"""Errors of ops say what was asked of what, and where."""

import numpy as np
import pytest
from op_values import F32

import minigraph as mg
from minigraph import DTypeError, GraphError, ShapeError, ops
from minigraph.graph import Graph, constant

X = mg.input("x", (2, 3))
I = mg.input("i", (2, 3), "int32")  # noqa: E741


IMAGE = mg.input("image", (1, 3, 4, 4))


ERRORS = [
    (ShapeError, "add", lambda: X + np.ones(4)),
    (ShapeError, "add", lambda: ops.add(X, ops.reshape(X, (3, 2)))),
    (DTypeError, "add", lambda: I + 2**40),
    (DTypeError, "add", lambda: X + "text"),
    (DTypeError, "subtract", lambda: (X > 0) - (X < 0)),
    (DTypeError, "bitwise_and", lambda: X & X),
    (DTypeError, "bitwise_invert", lambda: ~X),
    (DTypeError, "clip", lambda: ops.clip(X > 0, 0, 1)),
    (DTypeError, "where", lambda: ops.where(X, X, X)),
    (ShapeError, "where", lambda: ops.where(X > 0, X, np.ones(2))),
    (DTypeError, "astype", lambda: X.astype("complex64")),
    (DTypeError, "astype", lambda: X.astype("nonsense")),
    (ShapeError, "matmul", lambda: X @ X),
    (ShapeError, "matmul", lambda: X @ 2.0),
    (ShapeError, "matmul", lambda: ops.matmul(np.ones((2, 4, 3)), np.ones((3, 3, 4)))),
    (ShapeError, "linear", lambda: ops.linear(X, np.ones(3))),
    (ShapeError, "linear", lambda: ops.linear(X, np.ones((5, 3)), np.ones(4))),
    (ShapeError, "sum", lambda: X.sum(2)),
    (ShapeError, "sum", lambda: X.sum((0, -2))),
    (ShapeError, "sum", lambda: X.sum("columns")),
    (ShapeError, "max", lambda: ops.max(X[:0])),
    (ShapeError, "argmax", lambda: ops.argmax(X[:, :0], 1)),
    (ShapeError, "mean", lambda: X[:0].mean()),
    (ShapeError, "var", lambda: ops.var(X, 0, correction=2)),
    (ShapeError, "reshape", lambda: X.reshape(4)),
    (ShapeError, "reshape", lambda: X.reshape(-1, 4)),
    (ShapeError, "reshape", lambda: X.reshape(-1, -1)),
    (ShapeError, "reshape", lambda: X.reshape(-2, -3)),
    (ShapeError, "reshape", lambda: X.reshape(2.0, 3)),
    (ShapeError, "permute_dims", lambda: X.transpose(0, 0)),
    (ShapeError, "permute_dims", lambda: ops.permute_dims(X, (0, 1, 2))),
    (ShapeError, "broadcast_to", lambda: ops.broadcast_to(X, (2, 4))),
    (ShapeError, "broadcast_to", lambda: ops.broadcast_to(X, (3,))),
    (ShapeError, "squeeze", lambda: ops.squeeze(X, 0)),
    (ShapeError, "expand_dims", lambda: ops.expand_dims(X, 4)),
    (ShapeError, "concat", lambda: ops.concat([X, X], 2)),
    (ShapeError, "concat", lambda: ops.concat([X, X[0]])),
    (ShapeError, "concat", lambda: ops.concat([X, X[:, :2]])),
    (GraphError, "concat", lambda: ops.concat([])),
    (ShapeError, "stack", lambda: ops.stack([X, X[0]])),
    (GraphError, "stack", lambda: ops.stack([])),
    (ShapeError, "split", lambda: ops.split(X, 2, 1)),
    (ShapeError, "split", lambda: ops.split(X, 0)),
    (ShapeError, "slice", lambda: ops.slice(X, (0, 0, 0), (1, 1, 1))),
    (ShapeError, "slice", lambda: ops.slice(X, 0, 1, 0)),
    (ShapeError, "getitem", lambda: X[2]),
    (ShapeError, "getitem", lambda: X[0, 0, 0]),
    (ShapeError, "getitem", lambda: X[..., ...]),
    (ShapeError, "getitem", lambda: X[::0]),
    (GraphError, "getitem", lambda: X[X > 0]),
    (GraphError, "getitem", lambda: X[True]),
    (GraphError, "getitem", lambda: X[{0}]),
    (GraphError, "getitem", lambda: X[[True, False]]),
    (DTypeError, "getitem", lambda: X[[0.5]]),
    (DTypeError, "getitem", lambda: X[X]),
    (ShapeError, "getitem", lambda: X[[0, 2]]),
    (ShapeError, "getitem", lambda: X[:, [0, -4]]),
    (ShapeError, "getitem", lambda: X[2, [0, 1]]),
    (ShapeError, "getitem", lambda: X[[0], [1], [0]]),
    (ShapeError, "getitem", lambda: X[[0, 1], [0, 1, 2]]),
    (GraphError, "index_put", lambda: ops.index_put(X, [], 1)),
    (GraphError, "index_put", lambda: ops.index_put(X, I, 1)),
    (ShapeError, "index_put", lambda: ops.index_put(X, ([0], [1], [0]), 1)),
    (ShapeError, "index_put", lambda: ops.index_put(X, ([0],), X)),
    (DTypeError, "index_put", lambda: ops.index_put(I, ([0],), X[:1])),
    (ShapeError, "index_add", lambda: ops.index_add(X, 0, I, X)),
    (ShapeError, "index_add", lambda: ops.index_add(X, 0, [1], X)),
    (ShapeError, "gather", lambda: ops.gather(X, 1, np.zeros((3, 3), int))),
    (ShapeError, "gather", lambda: ops.gather(X, 1, I[0])),
    (ShapeError, "scatter", lambda: ops.scatter(X, 1, I, X[:1])),
    (ShapeError, "scatter", lambda: ops.scatter(X, 1, np.zeros((3, 1), int), 1)),
    (DTypeError, "scatter_add", lambda: ops.scatter_add(X, 1, X, X)),
    (ShapeError, "argsort", lambda: ops.argsort(X, 2)),
    (ShapeError, "topk", lambda: ops.topk(X, 4)),
    (ShapeError, "topk", lambda: ops.topk(X, -1)),
    (ShapeError, "searchsorted", lambda: ops.searchsorted(X, np.ones(3))),
    (DTypeError, "searchsorted", lambda: ops.searchsorted([False, True], True)),
    (ShapeError, "pad", lambda: ops.pad(X, -1)),
    (ShapeError, "pad", lambda: ops.pad(X, (1, 2, 3))),
    (ShapeError, "pad", lambda: ops.pad(X, 0.5)),
    (DTypeError, "pad", lambda: ops.pad(I, 1, constant_values=2**40)),
    (ShapeError, "flip", lambda: ops.flip(X, 2)),
    (DTypeError, "take", lambda: ops.take(X, X, 0)),
    (ShapeError, "take", lambda: ops.take(X, 0, 2)),
    (DTypeError, "one_hot", lambda: ops.one_hot(X, 3)),
    (ShapeError, "one_hot", lambda: ops.one_hot(I, 0)),
    (ShapeError, "conv2d", lambda: ops.conv2d(X, X)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 4, 3, 3), F32))),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 5, 5), F32))),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), np.ones(7, F32))),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), stride=0)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), groups=2)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), groups=0)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), padding=(1, -1))),
    (DTypeError, "conv2d", lambda: ops.conv2d(IMAGE.astype("int32"), np.ones((8, 3, 1, 1), "i4"))),
    (ShapeError, "max_pool2d", lambda: ops.max_pool2d(X, 2)),
    (ShapeError, "max_pool2d", lambda: ops.max_pool2d(IMAGE, 5)),
    (ShapeError, "max_pool2d", lambda: ops.max_pool2d(IMAGE, 2, padding=2)),
    (DTypeError, "max_pool2d", lambda: ops.max_pool2d(IMAGE > 0, 2)),
    (DTypeError, "avg_pool2d", lambda: ops.avg_pool2d(IMAGE.astype("int8"), 2)),
    (ShapeError, "adaptive_avg_pool2d", lambda: ops.adaptive_avg_pool2d(X, 2)),
    (ShapeError, "adaptive_avg_pool2d", lambda: ops.adaptive_avg_pool2d(IMAGE, (2, 0))),
    (ShapeError, "adaptive_avg_pool2d", lambda: ops.adaptive_avg_pool2d(IMAGE[:, :, :0], 2)),
    (ShapeError, "batch_norm", lambda: ops.batch_norm(IMAGE, np.ones(3, F32), np.ones(2, F32))),
    (ShapeError, "batch_norm_with_statistics", lambda: ops.batch_norm_with_statistics(X[0])),
    (ShapeError, "layer_norm", lambda: ops.layer_norm(X, 2)),
    (ShapeError, "layer_norm", lambda: ops.layer_norm(X, 3, weight=np.ones(2))),
    (ShapeError, "local_response_norm", lambda: ops.local_response_norm(X, 2)),
    (DTypeError, "local_response_norm", lambda: ops.local_response_norm(IMAGE.astype("int8"), 2)),
    (ShapeError, "local_response_norm", lambda: ops.local_response_norm(IMAGE, 0)),
    (ShapeError, "softmax", lambda: ops.softmax(X, 2)),
    (ShapeError, "log_softmax", lambda: ops.log_softmax(X[:, :0])),
    (ShapeError, "cross_entropy", lambda: ops.cross_entropy(X, I)),
    (DTypeError, "cross_entropy", lambda: ops.cross_entropy(X, X[:, 0])),
    (ShapeError, "mse_loss", lambda: ops.mse_loss(X, X[0])),
    (GraphError, "gelu", lambda: ops.gelu(X, "fast")),
    (ShapeError, "take_along_axis", lambda: ops.take_along_axis(X, I[:1])),
    (ShapeError, "zeros", lambda: ops.zeros(-1)),
    (DTypeError, "full", lambda: ops.full(2, "text")),
    (ShapeError, "arange", lambda: ops.arange(0, 1, 0)),
    (ShapeError, "arange", lambda: ops.arange(float("inf"))),
    (ShapeError, "linspace", lambda: ops.linspace(0, 1, -1)),
    (ShapeError, "eye", lambda: ops.eye(2**40, 2**40)),
    (ShapeError, "tril", lambda: ops.tril(X[0])),
    (ShapeError, "tile", lambda: ops.tile(X, -1)),
    (ShapeError, "repeat", lambda: ops.repeat(X, -1)),
    (ShapeError, "roll", lambda: ops.roll(X, (1, 2, 3), (0, 1))),
    (ShapeError, "moveaxis", lambda: ops.moveaxis(X, (0, 1), 0)),
    (ShapeError, "swapaxes", lambda: ops.swapaxes(X, 0, 2)),
    (ShapeError, "matrix_transpose", lambda: ops.matrix_transpose(X[0])),
    (ShapeError, "unstack", lambda: ops.unstack(X, 2)),
    (ShapeError, "flatten", lambda: ops.flatten(X, 1, 0)),
    (ShapeError, "vecdot", lambda: ops.vecdot(X, X[0, :2])),
    (ShapeError, "outer", lambda: ops.outer(X, X)),
    (ShapeError, "tensordot", lambda: ops.tensordot(X, X, 1)),
    (ShapeError, "tensordot", lambda: ops.tensordot(X, X, -1)),
    (GraphError, "einsum", lambda: ops.einsum("ii", X[:, :2])),
    (GraphError, "einsum", lambda: ops.einsum("ij->k", X)),
    (GraphError, "einsum", lambda: ops.einsum("i1", X)),
    (GraphError, "einsum", lambda: ops.einsum("ij,jk", X)),
    (ShapeError, "einsum", lambda: ops.einsum("ijk", X)),
    (ShapeError, "einsum", lambda: ops.einsum("ij,ik->jk", X, X.T)),
    (GraphError, "norm", lambda: ops.norm(X, 3)),
    (ShapeError, "norm", lambda: ops.norm(X[:0], float("inf"))),
    (GraphError, "normalize", lambda: ops.normalize(X, 3)),
    (ShapeError, "cosine_similarity", lambda: ops.cosine_similarity(X, X[:, :2])),
    (ShapeError, "argmin", lambda: ops.argmin(X[:, :0], 1)),
    (ShapeError, "cumulative_sum", lambda: ops.cumulative_sum(X)),
    (ShapeError, "cumsum", lambda: ops.cumsum(X, 2)),
    (GraphError, "dropout", lambda: ops.dropout(X, 1.5)),
    (DTypeError, "random_normal", lambda: ops.random_normal((2,), dtype="int32")),
    (ShapeError, "random_uniform", lambda: ops.random_uniform((-1,))),
    (GraphError, "random_uniform", lambda: ops.random_uniform((1,), low=-3e38, high=3e38)),
    (GraphError, "random_uniform", lambda: ops.random_uniform((1,), 0, 7e4, dtype="float16")),
]


@pytest.mark.parametrize(
    ("kind", "name", "fn"), ERRORS, ids=[f"{n}-{f.__code__.co_firstlineno}" for _, n, f in ERRORS]
)
def test_errors_say_what_was_asked_of_what_and_where(kind, name, fn):
    with pytest.raises(GraphError) as caught:
        fn()
    assert type(caught.value) is kind
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert text.endswith(f"at {__file__}:{fn.__code__.co_firstlineno}")


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
