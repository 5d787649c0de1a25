"""Batch normalisation with its relu, softmax with cross entropy, and the gradients: one op each."""

import numpy as np
import pytest
from samples import integer, real

import minigraph as mg
from minigraph import nn, ops
from minigraph.devices.cpu import compiler
from minigraph.graph import Graph, Item
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.normalization import BatchNorm, BatchNormBackward, BatchNormRelu
from minigraph.passes import levels
from minigraph.passes.library.batch_norm import fuse_batch_norm
from minigraph.passes.library.cross_entropy import fuse_cross_entropy
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.common_subexpressions import share_common
from minigraph.passes.rewrite.simplification import simplify

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-30, 1e30, -3e38]


def fused(rewrite, inputs, outputs):
    """The graph after the pass, which then has nothing left to do, and what it did."""
    notes, again = Notes(), Notes()
    graph = rewrite(Graph(tuple(inputs), tuple(outputs)), notes)
    graph.check()
    assert str(rewrite(graph, again)) == str(graph)
    assert not again.fired
    return graph, notes.fired


def assert_untouched(rewrite, inputs, outputs):
    graph, fired = fused(rewrite, inputs, outputs)
    assert not fired
    assert str(graph) == str(Graph(tuple(inputs), tuple(outputs)))


def assert_same_numbers(graph, inputs, outputs, xs, tolerance=0.0):
    """The graph computes what it was made from: to the bit, unless there is a tolerance."""
    for got, want in zip(graph(*xs), Graph(tuple(inputs), tuple(outputs))(*xs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        if not tolerance:
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def names(graph):
    return [node.op.name for node in graph if node.inputs and not isinstance(node.op, Item)]


def float32(*size, seed=0):
    return real(*size, seed=seed).astype(np.float32)


def with_gradients(loss, wrt):
    return [loss, *mg.grad(loss, wrt)]


# ---------------------------------------------------------------- batch normalisation

SHAPE = (4, 3, 2, 2)


@pytest.fixture
def norm():
    """x, weight, bias, a residual r, and (y, mean, var) of the batch norm of the first three."""
    inputs = [mg.input(*of) for of in (("x", SHAPE), ("w", 3), ("b", 3), ("r", SHAPE))]
    return inputs, ops.batch_norm_with_statistics(*inputs[:3])


def arguments(special=None):
    xs = [float32(*x, seed=seed) for seed, x in enumerate((SHAPE, (3,), (3,), SHAPE))]
    if special is not None:
        xs[0][1, 0, 1, 1] = xs[1][1] = xs[2][2] = xs[3][2, 2, 0, 1] = special
    return xs


def test_the_relu_of_a_batch_norm_is_one_op_with_it(norm):
    inputs, (y, mean, _) = norm
    graph, fired = fused(fuse_batch_norm, inputs, [ops.relu(y), mean * 2])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_relu[eps=1e-05, residual=False] x w b",
        "  %1: float32[4,3,2,2] = item[index=0] %0",
        "  %2: float32[3] = item[index=1] %0",
        "  %3: float32[] = const 2",
        "  %4: float32[3] = multiply %2 %3",
        "  return %1, %4",
    ]
    assert fired == {"batch_norm with relu": 1}


@pytest.mark.parametrize("first", [True, False])
def test_a_residual_is_added_in_the_same_op_whichever_operand_it_is(norm, first):
    inputs, (y, _, var) = norm
    r = inputs[3]
    graph, fired = fused(fuse_batch_norm, inputs, [var, ops.relu(r + y if first else y + r), var])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_relu[eps=1e-05, residual=True] x w b r",
        "  %1: float32[3] = item[index=2] %0",
        "  %2: float32[4,3,2,2] = item[index=0] %0",
        "  return %1, %2, %1",
    ]
    assert fired == {"batch_norm with residual and relu": 1}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("special", [None, *SPECIAL])
def test_batch_norm_with_relu_and_its_gradient_are_the_same_to_the_bit(norm, residual, special):
    inputs, (y, mean, var) = norm
    h = ops.relu(y + inputs[3] if residual else y)
    outputs = [h, mean, var, *with_gradients((h * inputs[3]).sum(), inputs)]
    graph, fired = fused(fuse_batch_norm, inputs, outputs)
    assert fired.total() == 2
    assert_same_numbers(graph, inputs, outputs, arguments(special))


def test_of_two_batch_norms_in_a_sum_one_is_fused_and_the_other_is_what_it_adds():
    x, z = mg.input("x", SHAPE), mg.input("z", SHAPE)
    h = ops.relu(ops.batch_norm_with_statistics(x)[0] + ops.batch_norm_with_statistics(z)[0])
    outputs = [h, *mg.grad((h * h).sum(), [x, z])]
    graph, _ = fused(fuse_batch_norm, [x, z], outputs)
    assert names(graph)[:2] == ["batch_norm", "batch_norm_relu"]
    assert names(graph)[-2:] == ["batch_norm_relu_backward", "batch_norm_backward"]
    assert {"relu", "where", "less_equal"}.isdisjoint(names(graph))
    assert_same_numbers(graph, [x, z], outputs, [float32(*SHAPE), float32(*SHAPE, seed=1)])


NORM_NOT_FUSED = {
    "y has another reader": lambda y, mean, var, r: [ops.relu(y), y * 2],
    "y is an output": lambda y, mean, var, r: [ops.relu(y), y],
    "y is added to itself": lambda y, mean, var, r: [ops.relu(y + y)],
    "y has two relus": lambda y, mean, var, r: [ops.relu(y), ops.relu(y)],
    "y is read twice": lambda y, mean, var, r: [ops.relu(y), ops.exp(Item(0)(y.inputs[0]))],
    "the sum has another reader": lambda y, mean, var, r: [ops.relu(z := y + r), z * 2],
    "the sum is an output": lambda y, mean, var, r: [ops.relu(z := y + r), z],
    "the residual is repeated": lambda y, mean, var, r: [ops.relu(y + r[:1])],
    "the residual is subtracted": lambda y, mean, var, r: [ops.relu(y - r)],
    "another function follows": lambda y, mean, var, r: [ops.sigmoid(y), ops.tanh(y + r)],
    "no function follows": lambda y, mean, var, r: [y + r],
    "the relu is that of the mean": lambda y, mean, var, r: [ops.relu(mean), ops.relu(mean + var)],
    "the residual needs the mean": lambda y, mean, var, r: [
        ops.relu(y + ops.exp(r + ops.reshape(mean, (1, 3, 1, 1))))
    ],
}


@pytest.mark.parametrize("why", NORM_NOT_FUSED)
def test_a_batch_norm_is_left_alone_where(norm, why):
    inputs, results = norm
    assert_untouched(fuse_batch_norm, inputs, NORM_NOT_FUSED[why](*results, inputs[3]))


def test_batch_norms_whose_residuals_need_the_mean_of_one_another_are_left_alone(norm):
    inputs, (y, mean, _) = norm
    x, _, _, r = inputs
    z, other, _ = ops.batch_norm_with_statistics(ops.exp(x))
    first = ops.relu(y + (r + ops.reshape(other, (1, 3, 1, 1))))
    second = ops.relu(z + (r * ops.reshape(mean, (1, 3, 1, 1))))
    assert_untouched(fuse_batch_norm, inputs, [first, second])


def test_inference_is_left_alone(norm):
    inputs, _ = norm
    assert_untouched(fuse_batch_norm, inputs, [ops.relu(ops.batch_norm(*inputs[:3]))])


# ---------------------------------------------------------------- gradients of batch normalisation


def backward(dz, x, w, mean, var):
    return BatchNormBackward(1e-3).results(dz, x, w, mean, var)


@pytest.fixture
def gradient():
    """dy, y, and x, weight, mean, var of a batch norm."""
    shapes = {"dy": SHAPE, "y": SHAPE, "x": SHAPE, "w": 3, "mean": 3, "var": 3}
    return [mg.input(name, shape) for name, shape in shapes.items()]


def test_the_gradients_of_a_relu_and_a_batch_norm_are_one_op(gradient):
    dy, y, *rest = gradient
    dx, dw, db = backward(ops.where(y <= 0, 0, dy), *rest)
    graph, fired = fused(fuse_batch_norm, gradient, [db, dx, dw])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_relu_backward[eps=0.001, residual=False] dy y x w mean var",
        "  %1: float32[3] = item[index=2] %0",
        "  %2: float32[4,3,2,2] = item[index=0] %0",
        "  %3: float32[3] = item[index=1] %0",
        "  return %1, %2, %3",
    ]
    assert fired == {"batch_norm_backward with relu": 1}


def test_the_gradient_between_them_is_a_result_where_others_read_it(gradient):
    dy, y, *rest = gradient
    dz = ops.where(y <= 0, 0, dy)
    first, second = backward(dz, *rest), backward(dz, *rest)
    graph, fired = fused(fuse_batch_norm, gradient, [dz * 2, first[0], second[0]])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3], float32[4,3,2,2] ="
        " batch_norm_relu_backward[eps=0.001, residual=True] dy y x w mean var",
        "  %1: float32[4,3,2,2] = item[index=3] %0",
        "  %2: float32[] = const 2",
        "  %3: float32[4,3,2,2] = multiply %1 %2",
        "  %4: float32[4,3,2,2] = item[index=0] %0",
        "  %5: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_backward[eps=0.001] %1 x w mean var",
        "  %6: float32[4,3,2,2] = item[index=0] %5",
        "  return %3, %4, %6",
    ]
    assert fired == {"batch_norm_backward with relu": 1}


def test_a_gradient_that_a_whole_image_shares_is_broadcast(gradient):
    dy, y, *rest = gradient
    outputs = backward(ops.where(y <= 0, 0, dy[:, :, :1, :1]), *rest)
    graph, fired = fused(fuse_batch_norm, gradient, outputs)
    assert "broadcast_to" in names(graph) and fired.total() == 1
    xs = [float32(*x.shape, seed=i) ** 2 for i, x in enumerate(gradient)]
    assert_same_numbers(graph, gradient, outputs, xs)


GRADIENT_NOT_FUSED = {
    "the limit is not 0": lambda dy, y, *rest: backward(ops.where(y <= 1, 0, dy), *rest),
    "the limit is excluded": lambda dy, y, *rest: backward(ops.where(y < 0, 0, dy), *rest),
    "the rest is not 0": lambda dy, y, *rest: backward(ops.where(y <= 0, 1, dy), *rest),
    "the choice is reversed": lambda dy, y, *rest: backward(ops.where(y <= 0, dy, 0), *rest),
    "y is repeated": lambda dy, y, *rest: backward(ops.where(y[:1] <= 0, 0, dy), *rest),
    "there is no relu": lambda dy, y, *rest: backward(dy, *rest),
    "x needs what others read": lambda dy, y, x, *rest: [
        backward(z := ops.where(y <= 0, 0, dy), ops.exp(z), *rest)[0],
        z,
    ],
}


@pytest.mark.parametrize("why", GRADIENT_NOT_FUSED)
def test_the_gradient_of_a_batch_norm_is_left_alone_where(gradient, why):
    assert_untouched(fuse_batch_norm, gradient, GRADIENT_NOT_FUSED[why](*gradient))


@pytest.mark.parametrize("op", [BatchNorm(1e-3), BatchNormRelu(1e-3, residual=False)], ids=str)
def test_a_gradient_is_built_for_those_results_only_that_are_read(norm, op):
    inputs, _ = norm
    y, mean, _ = op.results(*inputs[:3])
    (of_mean,), (of_y,) = (mg.grad(ops.sum(z * z), inputs[:1]) for z in (mean, y))
    assert {"batch_norm_backward", "where", "square"}.isdisjoint(names(Graph((), (of_mean,))))
    xs = arguments()
    (got,) = Graph(tuple(inputs), (of_mean,))(*xs)
    channel = xs[0].mean((0, 2, 3), keepdims=True) * (2 / (xs[0].size / 3))
    np.testing.assert_allclose(got, np.broadcast_to(channel, SHAPE), rtol=1e-5)
    zeros = [
        n for n in Graph((), (of_y,)) if n.op.name == "broadcast_to" and not n.inputs[0].inputs
    ]
    assert not zeros


# ---------------------------------------------------------------- networks


def residual_net(blocks):
    """(inputs, outputs): the loss, its gradients and the new running statistics."""
    nn.manual_seed(0)
    x, labels = mg.input("x", (2, 4, 3, 3)), mg.input("labels", (2,), "int64")
    h, norms = x, []
    for _ in range(blocks):
        norms += [nn.BatchNorm2d(4), nn.BatchNorm2d(4)]
        h = ops.relu(norms[-1](ops.relu(norms[-2](h * 2)) * 3) + h)
    loss = ops.cross_entropy(h.mean((2, 3)), labels)
    parameters = [p for norm in norms for p in norm.parameters()]
    updates = [v for norm in norms for v in norm.updates().values()]
    return [x, labels], [*with_gradients(loss, [x, *parameters]), *updates]


@pytest.mark.parametrize("before", [(), (simplify, share_common)], ids=["as written", "simplified"])
def test_all_batch_norms_of_a_residual_network_are_fused_and_the_loss_is(before):
    inputs, outputs = residual_net(3)
    graph = Graph(tuple(inputs), tuple(outputs))
    for rewrite in before:
        graph = rewrite(graph, Notes())
    graph, fired = fused(fuse_batch_norm, inputs, graph.outputs)
    assert fired == {
        "batch_norm with relu": 3,
        "batch_norm with residual and relu": 3,
        "batch_norm_backward with relu": 6,
    }
    assert {"relu", "where", "batch_norm", "batch_norm_backward"} & set(names(graph)) == {"where"}
    xs = [float32(2, 4, 3, 3), np.array([1, 3])]
    assert_same_numbers(graph, inputs, outputs, xs, 1e-5 if before else 0)
    graph, fired = fused(fuse_cross_entropy, inputs, graph.outputs)
    assert fired == {"cross_entropy": 1, "cross_entropy_backward": 1}
    assert {"where", "one_hot", "log_softmax", "exp"}.isdisjoint(names(graph))
    assert_same_numbers(graph, inputs, outputs, xs, 1e-5)


def test_depth_is_not_limited_by_the_python_stack():
    inputs, outputs = residual_net(300)
    _, fired = fused(fuse_batch_norm, inputs, outputs)
    assert fired.total() == 1200


def test_a_fused_op_has_the_line_of_the_norm_and_the_turn_of_the_relu(norm):
    inputs, (y, _, var) = norm
    h = ops.relu(y + inputs[3])
    graph, _ = fused(fuse_batch_norm, inputs, [var, h])
    made = graph.outputs[1].inputs[0]
    assert (made.source, made.turn[0]) == (y.source, h.turn[0])


# ---------------------------------------------------------------- softmax and cross entropy


@pytest.fixture
def classes():
    return [mg.input("x", (4, 3)), mg.input("labels", (4,), "int64"), mg.input("w", (4, 1))]


def picked(x, labels):
    """The logarithms of the labels' probabilities [n, 1], as `ops.cross_entropy` writes them."""
    chosen = ops.one_hot(labels, x.shape[-1], "bool")
    return ops.sum(ops.where(chosen, ops.log_softmax(x), 0), -1, keepdims=True)


def test_a_cross_entropy_is_one_op_and_so_is_its_gradient(classes):
    inputs = classes[:2]
    graph, fired = fused(
        fuse_cross_entropy, inputs, with_gradients(ops.cross_entropy(*inputs), inputs[:1])
    )
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,1] = cross_entropy x labels",
        "  %1: float32[1,1] = sum[axes=(0, 1)] %0",
        "  %2: float32[] = const 4",
        "  %3: float32[1,1] = divide %1 %2",
        "  %4: float32[] = reshape[shape=()] %3",
        "  %5: float32[] = const 1",
        "  %6: float32[1,1] = reshape[shape=(1, 1)] %5",
        "  %7: float32[1,1] = divide %6 %2",
        "  %8: float32[4,1] = broadcast_to[shape=(4, 1)] %7",
        "  %9: float32[4,3] = cross_entropy_backward %8 x labels",
        "  return %4, %9",
    ]
    assert fired == {"cross_entropy": 1, "cross_entropy_backward": 1}


def test_the_loss_and_its_gradient_are_fused_where_they_stand_alone(classes):
    inputs = classes[:2]
    loss, dx = with_gradients(ops.cross_entropy(*inputs), inputs[:1])
    assert fused(fuse_cross_entropy, inputs, [loss])[1] == {"cross_entropy": 1}
    assert fused(fuse_cross_entropy, inputs, [dx])[1] == {"cross_entropy_backward": 1}


@pytest.mark.parametrize("size", [(5, 3), (2, 3, 4), (2, 1, 2, 3), (0, 3)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_and_images_of_any_dtype_have_the_same_cross_entropy(size, dtype):
    rows = (size[0], *size[2:])
    inputs = [mg.input("x", size, dtype), mg.input("labels", rows, "uint8")]
    outputs = (
        with_gradients(ops.cross_entropy(*inputs), inputs[:1]) if size[0] else [-picked(*inputs)]
    )
    graph, fired = fused(fuse_cross_entropy, inputs, outputs)
    assert fired.total() == len(outputs)
    xs = [real(*size).astype(dtype), integer(*rows, high=size[1]).astype(np.uint8)]
    assert_same_numbers(graph, inputs, outputs, xs, 2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("where", ["label", "other", "all", "weight"])
def test_special_values_pass_as_in_the_ops_that_were_fused(classes, where, value):
    x, labels, w = classes
    outputs = [-picked(x, labels), *mg.grad((-picked(x, labels) * w).sum(), [x])]
    graph, fired = fused(fuse_cross_entropy, classes, outputs)
    assert fired == {"cross_entropy": 1, "cross_entropy_backward": 1}
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, 1, seed=1)]
    xs[0][2] = {"label": [1, value, 2], "other": [1, 2, value], "all": [value] * 3}.get(
        where, xs[0][2]
    )
    if where == "weight":
        xs[2][2] = value
    assert_same_numbers(graph, classes, outputs, xs, 1e-6)


def test_rows_may_have_weights(classes):
    x, labels, w = classes
    outputs = with_gradients((-picked(x, labels) * w).sum(), [x, w])
    graph, fired = fused(fuse_cross_entropy, classes, outputs)
    assert fired.total() == 2
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, 1, seed=1)]
    assert_same_numbers(graph, classes, outputs, xs, 1e-6)
    assert "negative" not in names(graph)


def test_the_factors_of_the_gradient_may_be_swapped(classes):
    x, labels, w = classes
    logs, chosen = ops.log_softmax(x), ops.one_hot(labels, 3, "bool")
    dlogs = ops.where(chosen, w, 0)
    outputs = [dlogs - ops.sum(dlogs, -1, keepdims=True) * ops.exp(logs)]
    graph, fired = fused(fuse_cross_entropy, classes, outputs)
    assert names(graph) == ["negative", "cross_entropy_backward"]
    assert fired == {"cross_entropy_backward": 1}
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, 1, seed=1)]
    assert_same_numbers(graph, classes, outputs, xs, 1e-6)


def log_likelihood(axis=-1, size=3, fill=0, total=-1, dtype="bool"):
    """As `picked`, but for one thing."""

    def build(x, labels, w):
        chosen = ops.one_hot(labels, size, dtype)
        return [-ops.sum(ops.where(chosen, ops.log_softmax(x, axis), fill), total, keepdims=True)]

    return build


def gradient_of(logs, dlogs, total=None):
    return dlogs - ops.exp(logs) * ops.sum(dlogs if total is None else total, -1, keepdims=True)


LOSS_NOT_FUSED = {
    "the softmax is another axis's": log_likelihood(axis=0),
    "the sum is another axis's": log_likelihood(total=0),
    "the rest is not 0": log_likelihood(fill=1),
    "the labels are repeated": lambda x, labels, w: log_likelihood()(x, labels[:1], w),
    "the choice is no one-hot": lambda x, labels, w: [
        -ops.sum(ops.where(x > 0, ops.log_softmax(x), 0), -1, keepdims=True)
    ],
    "the largest is taken": lambda x, labels, w: [
        -ops.max(
            ops.where(ops.one_hot(labels, 3, "bool"), ops.log_softmax(x), 0), -1, keepdims=True
        )
    ],
    "the sign is missing": lambda x, labels, w: [picked(x, labels)],
    "the sum has another reader": lambda x, labels, w: [-(z := picked(x, labels)), z * 2],
    "the sum is an output": lambda x, labels, w: [-(z := picked(x, labels)), z],
    "the logarithms are an output": lambda x, labels, w: [
        -ops.sum(ops.where(ops.one_hot(labels, 3, "bool"), z := ops.log_softmax(x), 0), -1),
        z,
    ],
    "the logarithms have another reader": lambda x, labels, w: [
        -(z := picked(x, labels)),
        z.inputs[0].inputs[1] * 2,
    ],
    "the logarithms have a gradient": lambda x, labels, w: mg.grad(
        (loss := ops.cross_entropy(x, labels)),
        [x, next(n for n in Graph((), (loss,)) if n.op.name == "log_softmax")],
    ),
    "the probabilities have another reader": lambda x, labels, w: [
        dx := mg.grad(ops.cross_entropy(x, labels), [x])[0],
        dx.inputs[1].inputs[0],
    ],
    "the weights differ in a row": lambda x, labels, w: [
        gradient_of(ops.log_softmax(x), ops.where(ops.one_hot(labels, 3, "bool"), x, 0))
    ],
    "another gradient is summed": lambda x, labels, w: [
        gradient_of(ops.log_softmax(x), ops.where(ops.one_hot(labels, 3, "bool"), w, 0), x)
    ],
}


@pytest.mark.parametrize("why", LOSS_NOT_FUSED)
def test_a_cross_entropy_is_left_alone_where(classes, why):
    assert_untouched(fuse_cross_entropy, classes, LOSS_NOT_FUSED[why](*classes))


# ---------------------------------------------------------------- kernels of the cross entropy


def compiled(op, xs, threads=2):
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    function = cg.compile(inputs, op(*inputs))
    if compiler.compiler():
        assert [kernel for _, kernel, _ in function.report().steps] == ["c"]
    return function


def assert_kernels_agree(logits, labels, threads=2):
    dy = real(*labels.shape, 1, seed=3).astype(logits.dtype)
    for op, xs in (
        (CrossEntropy(), [logits, labels]),
        (CrossEntropyBackward(), [dy, logits, labels]),
    ):
        with np.errstate(all="ignore"):
            want = op.forward(*(x.astype("float64") if x.dtype.kind == "f" else x for x in xs))
        got = compiled(op, xs, threads)(*xs)
        assert got.dtype == logits.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (2, 31), (2, 32), (5, 33), (2, 2500), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_agree_with_the_meaning(size, dtype):
    for scale in (1, 50):  # 50: differences beyond the range of exp
        logits = (real(*size) * scale).astype(dtype)
        assert_kernels_agree(logits, integer(*size[:-1], high=size[-1]))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_labels_are_integers_of_any_size(dtype):
    assert_kernels_agree(float32(4, 5), integer(4, high=5).astype(dtype))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernels_agree_with_any_number_of_threads(threads):
    assert_kernels_agree(float32(333, 200), integer(333, high=200), threads)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("size", [(8, 3), (8, 40)])
def test_kernels_pass_special_values_as_the_meaning(size, value):
    for share in (0.1, 0.5, 1.0):
        chosen = np.random.default_rng(0).random(size) < share
        logits = np.where(chosen, np.float32(value), float32(*size))
        assert_kernels_agree(logits, integer(8, high=3))


def test_a_gradient_may_be_written_over_the_logits(monkeypatch):
    monkeypatch.setattr(levels, "TABLE", (levels.Row(fuse_cross_entropy, 2),))
    x, labels = mg.input("x", (64, 100)), mg.input("labels", (64,), "int64")
    logits = ops.tanh(x) * 5
    outputs = [mg.grad(ops.cross_entropy(logits, labels), [logits])[0] * 2]
    function = mg.comp_graph("cpu", {"graph_opt_level": 2}).compile([x, labels], outputs)
    assert function.report().ops["cross_entropy_backward"] == 1
    xs = [float32(64, 100), integer(64, high=100)]
    (want,) = Graph((x, labels), tuple(outputs))(*xs)
    np.testing.assert_allclose(function(*xs)[0], want, rtol=1e-5, atol=1e-7)
    if compiler.compiler():
        assert function.report().memory.arena_bytes < 1.2 * xs[0].nbytes


# ---------------------------------------------------------------- labels out of range


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("label", [3, -1, 2**40])
@pytest.mark.parametrize("with_loss", [True, False])
def test_a_label_out_of_range_is_refused_and_changes_nothing(monkeypatch, device, label, with_loss):
    monkeypatch.setattr(levels, "TABLE", (levels.Row(fuse_cross_entropy, 2),))
    x, labels = mg.input("x", (4, 3)), mg.input("labels", (4,), "int64")
    w, count = mg.Parameter(np.eye(3, dtype="float32"), "w"), mg.Parameter(0, "count")
    loss = ops.cross_entropy(x @ w, labels)
    (dw,) = mg.grad(loss, [w])
    cg = mg.comp_graph(device, {"graph_opt_level": 2})
    outputs = [loss] if with_loss else []
    step = cg.compile([x, labels], outputs, {w: w - dw, count: count + 1})
    assert step.report().ops["one_hot"] == 0
    assert step.report().ops["cross_entropy_backward"] == 1
    step(float32(4, 3), [0, 1, 2, 0])
    before = w.numpy()
    with pytest.raises(
        mg.GraphError, match=rf"label {label} at \(1,\) is not in 0 \.\.\. 2"
    ) as error:
        step(float32(4, 3), [0, label, 2, 0])
    assert str(error.value).startswith("cross_entropy")
    np.testing.assert_array_equal(w.numpy(), before)
    assert count.numpy() == 1
    step(float32(4, 3), [0, 1, 2, 0])
    assert count.numpy() == 2
