"""Graphs as models of ONNX: what onnxruntime computes of them, and what they are called."""

import importlib

import numpy as np
import pytest
from elementwise_samples import F32, F64
from example_networks import load
from samples import SAMPLES

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.bench import networks
from minigraph.bench.ours import LIBRARY

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
import onnx
from written_models import info, model

runtime = pytest.importorskip("onnxruntime")

# What ONNX has no operators for.
UNSAID = {
    *("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", "check", "print"),
    *("avg_pool2d_backward", "blend_backward", "max_pool2d_backward", "take_backward"),
    *("bitwise_left_shift", "bitwise_right_shift", "nextafter", "searchsorted", "reorder"),
    "conv2d_backward_weights",
    *("random_normal", "random_uniform", "result 1 of max_pool2d"),
}
# What onnxruntime has no kernels for.
NO_KERNEL = {"sum-uint16", "prod-uint16"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def session(path):
    runtime.set_default_logger_severity(3)
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(path, inputs, arrays):
    feeds = {x.name: array for x, array in zip(inputs, arrays, strict=True)}
    return session(path).run(None, feeds)


def inputs_of(name, arrays):
    return [mg.input(f"{name}.{i}", x.shape, x.dtype) for i, x in enumerate(arrays)]


def all_samples(chosen):
    """Return the inputs, arrays, results and values of samples, all in float32 but for loops."""
    inputs, arrays, results, values = [], [], {}, {}
    for name, (op, operands) in SAMPLES.items():
        if not chosen(name):
            continue
        loop = name.startswith("scan")
        xs = [np.asarray(x, F32 if x.dtype == F64 and not loop else None) for x in operands]
        these = inputs_of(name, xs)
        with np.errstate(all="ignore"):
            made = op.forward(*xs)
        made = made if isinstance(made, tuple) else (made,)
        for i, (y, value) in enumerate(zip(op.results(*these), made, strict=True)):
            if i == 0 or op.name != "max_pool2d":
                results[f"{name}.y{i}"], values[f"{name}.y{i}"] = y, np.asarray(value)
        inputs += these
        arrays += xs
    return inputs, arrays, results, values


def unsaid(path, chosen):
    """Return the ops that ONNX does not have, of samples that are written together."""
    inputs, _, results, _ = all_samples(chosen)
    try:
        mg.onnx.save(path, inputs, results)
    except mg.GraphError as error:
        message = str(error).partition(";")[0]
        _, separator, listed = message.partition("ONNX cannot express these ops of the graph: ")
        assert separator, error
        return {each.rpartition(" (")[0] for each in listed.split(", ")}
    return set()


def test_every_op_computes_the_same_in_onnxruntime_or_is_listed_as_missing(path):
    assert unsaid(path, lambda name: True) == UNSAID
    said = {name for name in SAMPLES if not unsaid(path, {name}.__contains__)} - NO_KERNEL
    inputs, arrays, results, values = all_samples(said.__contains__)
    mg.onnx.save(path, inputs, results)
    for (name, want), result in zip(values.items(), run(path, inputs, arrays), strict=True):
        assert (result.dtype, result.shape) == (want.dtype, want.shape), name
        np.testing.assert_allclose(result, want, 1e-5, 1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["atan2", "floor_divide", "hypot", "log1p", "remainder"])
def test_no_digits_and_no_special_values_are_lost(path, name):
    sizes = [0, 1e-25, 3e-4, 0.1, 0.3, 2.5, 1e9, 1e25, np.inf, np.nan]
    numbers = np.array([*sizes, *np.negative(sizes)], F32)
    arrays = [numbers] if name == "log1p" else [a.ravel() for a in np.meshgrid(numbers, numbers)]
    inputs = inputs_of(name, arrays)
    result = getattr(ops, name)(*inputs)
    mg.onnx.save(path, inputs, result)
    with np.errstate(all="ignore"):
        want = mg.comp_graph("reference").compile(inputs, result)(*arrays)
        for (got,) in run(path, inputs, arrays), [mg.onnx.function(path)(*arrays)]:
            np.testing.assert_allclose(got, want, 1e-6)


def vision_transformer():
    """A network of tokens of patches."""
    patches = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.Flatten(2))  # as many as their width
    layers = [nn.TransformerEncoderLayer(16, 4, 64, 0.0, "gelu", batch_first=True)] * 2
    return nn.Sequential(patches, *layers, nn.Flatten(), nn.Linear(256, 10))


IMAGES = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype("float32")
TOKENS = np.random.default_rng(0).integers(0, networks.VOCABULARY, (2, networks.CONTEXT))
NETWORKS = {
    "gpt": (lambda: networks.gpt(LIBRARY, 2), TOKENS),
    "lstm": (lambda: networks.lstm(LIBRARY, 16, 1), TOKENS),
    "mobilenetv2": (lambda: networks.mobilenetv2(LIBRARY), IMAGES),
    "resnet18": (lambda: load("resnet", "model").resnet18(10), IMAGES),
    "unet": (lambda: networks.unet(LIBRARY, 8), IMAGES),
    "vit": (vision_transformer, IMAGES),
}


@pytest.mark.parametrize("any_size", [False, True], ids=["fixed", "any_size"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_the_same_in_onnxruntime(name, any_size, path):
    make, arrays = NETWORKS[name]
    net = make().eval()
    x = mg.input("x", (None, *arrays.shape[1:]) if any_size else arrays.shape, arrays.dtype)
    step = mg.comp_graph("reference").compile([x], net(x))
    mg.onnx.save(path, step)
    (result,) = run(path, [x], [arrays])
    want = step(arrays)
    np.testing.assert_allclose(result, want, 1e-5, 1e-5 * np.abs(want).max())


def test_nodes_have_the_names_of_layers_and_tensors_those_of_their_authors(path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.Flatten()).eval()
    head = nn.Linear(4 * 36, 2)
    x = mg.input("images", (None, 3, 8, 8))
    y = head(net(x))
    mg.onnx.save(path, [x], {"scores": y, "same": x})
    graph = onnx.load(path).graph
    assert [node.name for node in graph.node] == [
        *("0/Conv", "1/BatchNormalization", "2/Clip", "3/Reshape", "Gemm", "same/y")
    ]
    assert {"0.weight", "0.bias", "1.running_mean"} < {each.name for each in graph.initializer}
    assert [y.name for y in graph.output] == ["scores", "same"]
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_product_that_is_a_result_stays_beside_its_sum_with_a_bias(path):
    x, w, bias = mg.input("x", (2, 3)), mg.input("w", (4, 3)), mg.input("bias", (4,))
    product = x @ w.T
    mg.onnx.save(path, [x, w, bias], [product, product + bias])
    arrays = [np.ones((2, 3), "float32"), np.ones((4, 3), "float32"), np.ones(4, "float32")]
    result = run(path, [x, w, bias], arrays)
    assert [y.tolist() for y in result] == [[[3.0] * 4] * 2, [[4.0] * 4] * 2]


def test_a_training_step_has_the_new_values_of_parameters_as_results(path):
    x, w = mg.input("x", (4, 3)), mg.Parameter(np.ones((3,), "float32"), "w")
    loss = ((x @ w) ** 2).mean()
    updates = optim.SGD([w], 0.5).minimize(loss)
    step = mg.comp_graph("reference").compile([x], loss, updates)
    mg.onnx.save(path, step)
    array = np.arange(12, dtype="float32").reshape(4, 3) / 8
    named = zip([y.name for y in session(path).get_outputs()], run(path, [x], [array]), strict=True)
    results = dict(named)
    np.testing.assert_allclose(results.pop("output"), step(array), 1e-5)
    np.testing.assert_allclose(results.pop("w.new"), w.numpy(), 1e-5)


def test_casts_of_amp_are_kept(path):
    x = mg.input("x", (2, 3))
    net = nn.Linear(3, 4)
    step = mg.comp_graph("reference", {"amp": "float16"}).compile([x], net(x))
    mg.onnx.save(path, step)
    nodes = onnx.load(path).graph.node
    kinds = [(n.op_type, *(a.i for a in n.attribute if a.name == "to")) for n in nodes]
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert kinds.count(("Cast", half)) == 2 and kinds.count(("Cast", single)) == 1
    array = np.array([[1, 2, 3], [4, 5, 6]], "float32") / 8
    np.testing.assert_allclose(run(path, [x], [array])[0], step(array), 2e-3, 2e-3)


def test_sizes_of_calls_are_computed_by_the_model(path):
    rows, columns = mg.input("x", ("rows", "4*columns")), mg.input("y", ("columns", 2))
    n, m = rows.shape
    results = [
        *(rows.reshape((m, n)), rows.reshape((-1,)), rows[1:, ::2], rows.mean(), rows.var(0)),
        *(
            ops.tril(rows),
            ops.eye(n, m, 1),
            ops.arange(n) + 1,
            ops.broadcast_to(columns.sum(), (m, n)),
            rows[:3],
        ),
        *(ops.pad(rows, 1), ops.concat([columns, columns[:1]]), rows.reshape((n * 2, m // 2))),
        *(ops.flip(rows, 1), rows.sum() / n, ops.zeros((n, 3)), columns @ columns.T),
        mg.grad(ops.square(rows[1::2, ::3]).sum(), [rows])[0],
        *(ops.roll(rows, shift, 0) for shift in (1, -1, -7)),
    ]
    step = mg.comp_graph("reference").compile([rows, columns], results)
    mg.onnx.save(path, step)
    for n, m in ((5, 1), (3, 4)):
        arrays = [
            np.random.default_rng(0).random((n, 4 * m), "float32"),
            np.ones((m, 2), "float32"),
        ]
        for result, want in zip(run(path, [rows, columns], arrays), step(*arrays), strict=True):
            assert result.dtype == want.dtype
            np.testing.assert_allclose(result, want, 1e-5, 1e-6)


def test_a_size_that_a_model_reads_is_written_again(path):
    proto = model(["n = Shape(x)", "y = Tile(w, n)"], [info("x", ["n"])], ("y", "n"), w=np.ones(2))
    loaded = mg.onnx.load(proto)
    mg.onnx.save(path, loaded.inputs, loaded.outputs)
    y, n = run(path, loaded.inputs, [np.ones(3, "f")])
    assert y.shape == (6,) and n == [3] and n.dtype == np.int64


def test_a_loop_may_be_there_twice(path):
    op, (h, x, w) = SAMPLES["scan"]
    inputs = inputs_of("x", (h, x, w))
    first = op.results(*inputs)
    second = op.results(first[0], *inputs[1:])
    mg.onnx.save(path, inputs, [*first, *second])
    one = op.forward(h, x, w)
    for result, want in zip(
        run(path, inputs, (h, x, w)), [*one, *op.forward(one[0], x, w)], strict=True
    ):
        np.testing.assert_allclose(result, want, 1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_may_have_no_results_but_its_last_carry(path, reverse):
    x = mg.input("x", (3, 2))
    last, _ = ops.scan(lambda h, row: (h * 2 + row, None), ops.zeros((2,)), x, reverse=reverse)
    mg.onnx.save(path, [x], last)
    rows = [[1, 2], [3, 4], [5, 6]][:: -1 if reverse else 1]
    result = run(path, [x], [np.array([[1, 2], [3, 4], [5, 6]], "f")])[0]
    np.testing.assert_array_equal(result, np.array([4, 2, 1]) @ rows)


def test_large_arrays_are_in_a_file_beside_the_model(path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("minigraph.onnx.save"), "MAX_EMBEDDED_BYTES", 4000)
    x = mg.input("x", (2, 40))
    net = nn.Linear(40, 30)
    mg.onnx.save(path, [x], net(x))
    assert path.stat().st_size < 2000 < (path.parent / "net.onnx.data").stat().st_size
    array = np.ones((2, 40), "float32")
    want = mg.comp_graph("reference").compile([x], net(x))(array)
    np.testing.assert_allclose(run(path, [x], [array])[0], want, 1e-5, 1e-5)


@pytest.mark.parametrize("opset", [18, 20, onnx.defs.onnx_opset_version()])
def test_a_model_has_the_opset_that_was_asked_for(opset, path):
    x = mg.input("x", (1, 3, 32, 32))
    mg.onnx.save(path, [x], NETWORKS["vit"][0]()(x), opset=opset)
    model = onnx.load(path)
    assert [each.version for each in model.opset_import] == [opset]
    onnx.checker.check_model(model, full_check=True)


def test_tensorrt_gets_its_command_or_an_error_with_all_that_it_lacks(path, capsys):
    x = mg.input("x", (None, "2*w"))
    mg.onnx.save(path, [x], ops.tanh(x), check="tensorrt")
    out = capsys.readouterr().out
    assert out.startswith(f"trtexec --onnx={path} --saveEngine={path.with_suffix('.engine')} ")
    assert f"--timingCacheFile={path.with_suffix('.timing')} --minShapes=x:1x2" in out
    path.unlink()
    whole = mg.input("n", (2,), "int32")
    wrong = [whole & 1, whole | 2, ops.exp(mg.input("d", (2,), "float64"))]
    with pytest.raises(mg.GraphError) as error:
        mg.onnx.save(path, [whole, *inputs_in(wrong[2])], wrong, check="tensorrt")
    step = mg.comp_graph("reference").compile([whole], whole)
    with pytest.raises(mg.GraphError, match=r'in "jit", .* check="tensorrt"\) prints the line'):
        step.save_cache(path, "tensorrt")
    lacks = "BitwiseAnd (1), BitwiseOr (1), Exp of double (1)"
    assert str(error.value) == f"onnx.save: onnx-tensorrt 10.15 does not take {lacks}"
    assert not path.exists()


def inputs_in(y):
    return list(y.inputs)


def test_what_cannot_be_saved_is_an_error_that_says_so(path, tmp_path):
    x = mg.input("x", (2,))
    for arguments, message in (
        (([x],), "outputs are needed, or a compiled function"),
        (([], x), "depends on input x"),
        (
            ([x], ops.random_uniform((2,)) + ops.check(x > 0, "0", x)),
            r"check \(1\), random_.*; .* eval\(\)",
        ),
    ):
        with pytest.raises(mg.GraphError, match=message):
            mg.onnx.save(path, *arguments)
    step = mg.comp_graph("reference").compile([x], x)
    with pytest.raises(mg.GraphError, match="pass it alone"):
        mg.onnx.save(path, step, x)
    with pytest.raises(mg.GraphError, match=r"opset is 17; it takes an integer from 18 to"):
        mg.onnx.save(path, [x], x, opset=17)
    with pytest.raises(mg.GraphError, match="cannot be written"):
        mg.onnx.save(tmp_path, [x], x)
    y = mg.input("y", (None,))
    with pytest.raises(mg.GraphError, match=r"of the graph: from_sizes \(1\)"):
        mg.onnx.save(path, [y], ops.arange(0, y.shape[0], 0.5))


@pytest.mark.parametrize(
    "value", [np.float32(0), np.float32(-np.inf), np.int64(2**60), np.bool_(1)]
)
def test_a_border_of_a_number_in_the_file_is_one_node(path, value):
    array = np.zeros((2, 3), value.dtype)
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    proto = model(["y = Pad(x, p, v)"], [info("x", [2, 3], kind)], p=[0, 1, 2, 0], v=value)
    loaded = mg.onnx.load(proto)
    assert loaded.outputs[0].inputs == (loaded.inputs[0],)
    mg.onnx.save(path, loaded.inputs, loaded.outputs)
    expected = np.pad(array, ((0, 2), (1, 0)), constant_values=value)
    found = mg.onnx.function(proto, "reference")(array)
    for result in (found, run(path, loaded.inputs, [array])[0]):
        np.testing.assert_array_equal(result, expected)
