"""Empty batches give empty results; where there is no answer, see `wrong_calls/empty.txt`."""

import numpy as np
import pytest
from samples import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

EMPTY = [
    lambda x: ops.relu(x * 2 + x[:, :1]),
    lambda x: ops.conv2d(x, real(5, 3, 2, 2), real(5), padding=1),
    lambda x: ops.max_pool2d(x, 2, ceil_mode=True, padding=1),
    lambda x: ops.avg_pool2d(x, 2, stride=1),
    lambda x: ops.adaptive_avg_pool2d(x, 2),
    lambda x: ops.adaptive_avg_pool2d(x, 3),
    lambda x: ops.batch_norm(x, real(3), real(3) ** 2),
    lambda x: ops.layer_norm(x, (4, 5)),
    lambda x: ops.local_response_norm(x, 3),
    lambda x: ops.linear(ops.reshape(x, (0, 60)), real(2, 60), real(2)),
    lambda x: x @ real(5, 2),
    lambda x: ops.softmax(x),
    lambda x: ops.softmax(x, 0),
    lambda x: ops.softmax(x, 0, where=x > 0),
    lambda x: ops.log_softmax(x, 1),
    lambda x: ops.log_softmax(x, 0),
    lambda x: ops.group_norm(x, 3),
    lambda x: ops.max(x, 1) + ops.min(x, (1, 2), keepdims=True)[:, 0] + ops.prod(x, 1),
    lambda x: ops.mean(x, (1, 2)) + ops.var(x, (1, 2)),
    lambda x: ops.logsumexp(x, -1),
    lambda x: ops.take(x, [[1, 0]], 1),
    lambda x: ops.concat([x, x]),
    lambda x: ops.flip(ops.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0))))[:, ::2],
    lambda x: ops.gelu(ops.permute_dims(x, (3, 1, 2, 0))),
    lambda x: sum(ops.split(x, 3, 1)),
]


@pytest.mark.parametrize("fn", EMPTY)
def test_an_empty_batch_gives_empty_results_and_gradients(fn):
    x = mg.input("x", (0, 3, 4, 5), "float64")
    y = fn(x)
    (dx,) = mg.grad(ops.sum(y), [x])
    graph = Graph((x,), (y, dx))
    graph.check()
    values = graph(np.zeros(x.shape))
    assert [v.shape for v in values] == [y.shape, x.shape]
    assert not y.size
