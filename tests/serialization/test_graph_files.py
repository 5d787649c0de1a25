"""Graphs on disk: what was saved computes the same, and no file does anything else."""

import json
from pathlib import Path

import numpy as np
import pytest
from samples import SAMPLES

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import Graph, State
from minigraph.graph_file.writing import FUNCTIONS, KEY
from minigraph.ops.collective import Collective
from minigraph.ops.random import Random
from minigraph.serialization import tensor_file

FORMAT_1 = Path(__file__).parent / "format_1.graph"  # of `everything`, after two steps
ROWS = np.arange(24, dtype="float32").reshape(4, 6) / 10


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.graph"


def reference(**options):
    return mg.comp_graph("reference", options)


def everything():
    """Return a training step of any size, with layers, a loop, random numbers and options."""
    x, w = mg.input("x", (None, 6)), mg.Parameter(np.full((6, 3), 0.5, "float32"), "w")
    steps = ops.scan(lambda h, v: (h + v, h * v), ops.zeros((6,)), x)[1]
    hidden = ops.dropout(ops.tanh(steps @ w), 0.5)
    loss = (hidden - x.mean(1, keepdims=True)).var() + ops.tril(x @ x.T).sum() / 1e3
    updates = optim.SGD([w], 0.1, momentum=0.5).minimize(loss)
    compiler = reference(seed=7, graph_opt_level=1)
    return compiler.compile([x], {"loss": loss, "rows": hidden.shape[0] + ops.arange(2)}, updates)


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_a_function_comes_back_with_updates_options_and_the_lines_of_its_author(path):
    step = everything()
    mg.save_graph(path, step)
    stored = mg.load_graph(path)
    assert stored.options["seed"] == 7 and stored.options["graph_opt_level"] == 1
    assert "num_threads" not in stored.options  # it is the machine's
    assert list(stored.outputs) == ["loss", "rows"]
    again = stored.compile("reference")
    for _ in range(3):
        same(step(ROWS), again(ROWS))
    assert stored.parameters["w"].source.file == __file__
    assert "test_graph_files.py" in str(stored.outputs["loss"].source)
    mg.save_graph(path.with_suffix(".2"), mg.load_graph(path).compile("reference"))
    assert path.with_suffix(".2").read_bytes() == path.read_bytes()


def test_a_file_of_format_1_computes_what_it_did():
    step = everything()
    for _ in range(2):
        step(ROWS)
    stored = mg.load_graph(FORMAT_1)
    again = stored.compile("reference")
    again.calls = step.calls
    same(step(ROWS), again(ROWS))


def test_every_op_and_all_that_is_made_of_sizes_comes_back(path):
    inputs, outputs = [], []
    for name, (op, arrays) in SAMPLES.items():
        if not isinstance(op, Collective | Random):
            these = [mg.input(f"{name}.{i}", x.shape, x.dtype) for i, x in enumerate(arrays)]
            inputs += these
            outputs += op.results(*these)
    x = mg.input("images", ("n", 2, "h", "2*w"))
    n, _, h, _ = x.shape
    row = x[0, 0, 0]
    outputs += [
        *(ops.arange(n), ops.linspace(0, 1, n), ops.eye(n), ops.tril(x), x.mean(), x.var()),
        *(ops.interpolate(x, scale_factor=2), ops.pad(x, 1, mode="reflect"), x * (n / h)),
        *(ops.interpolate(x, scale_factor=2, mode="bilinear"), row[: n * h], row[ops.arange(n)]),
        *(x[-3:, :, h // 2 :], x[::2], x * h**-1, ops.full((n, 2), np.inf)),
    ]
    mg.save_graph(path, [*inputs, x], outputs)
    for name in FUNCTIONS:
        assert json.dumps({"function": name}) in json_of(path)
    stored = mg.load_graph(path)
    was = Graph((*inputs, x), tuple(outputs))
    assert str(Graph(tuple(stored.inputs), tuple(stored.outputs))) == str(was)


def test_a_graph_called_with_arrays_computes_and_its_arrays_load_as_weights(path):
    net, x = nn.Linear(6, 2), mg.input("x", (4, 6))
    mg.save_graph(path, x, net(x))
    np.testing.assert_allclose(
        mg.load_graph(path)(ROWS), reference().compile([x], net(x))(ROWS), 1e-5
    )
    nn.Linear(6, 2).load_state_dict(mg.load(path))


def test_parameters_that_share_a_value_share_it_again(path):
    state = State.of(np.ones(2, "float32"))
    a, b = (mg.Parameter.sharing(state, name) for name in "ab")
    mg.save_graph(path, [], [a, b, mg.Parameter(np.zeros(1), "a")])
    outputs = {p.name: p for p in mg.load_graph(path).outputs}
    assert [p.name for p in mg.load_graph(path).outputs] == ["a", "b", "a"]
    mg.load_graph(path).outputs[0].assign([5, 5])
    first, second, third = mg.load_graph(path).outputs
    first.assign([5, 5])
    assert second.numpy().tolist() == [5, 5] and third.numpy().tolist() == [0]
    assert outputs["b"].numpy().tolist() == [1, 1]


def json_of(path):
    return tensor_file.parse("", path, path.read_bytes())[1][KEY]


def changed(path, change):
    """Change the JSON of a file, with a checksum of what it holds then."""
    arrays, metadata = tensor_file.parse("", path, path.read_bytes())
    record = json.loads(metadata[KEY])
    change(record)
    tensor_file.write("", path, arrays, {KEY: json.dumps(record)})


def nodes(record):
    return record["graph"]["nodes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(format=2, minigraph="9.1"), "is of format 2, of minigraph 9.1; this"),
        (lambda r: r.update(format="2"), r"is wrong at format"),
        (lambda r: nodes(r)[-1].update(op="Teleport"), "Teleport: minigraph .* has no such op"),
        (lambda r: nodes(r)[-1].update(op="Elementwise"), "Elementwise: .* has no such op"),
        (lambda r: nodes(r)[-1].update(inputs=[99]), "no earlier node has the number 99"),
        (lambda r: nodes(r)[-1].update(inputs=[-1]), "no earlier node has the number -1"),
        (lambda r: nodes(r)[-1]["fields"].update(speed=3), "has no field speed"),
        (lambda r: nodes(r)[-1]["fields"].update(shape=["4", 6]), "'4' is not of type int"),
        (lambda r: nodes(r)[-1]["fields"].update(shape=[{"dtype": "int8"}]), "is not of type int"),
        (lambda r: nodes(r)[-1]["fields"].update(shape={"function": "os.system"}), "os.system"),
        (lambda r: nodes(r)[-1].update(results=[[[9], "float32"]]), r"the op infers float32\[24\]"),
        (lambda r: nodes(r)[-1]["fields"].update(shape=[True, 24]), "True is not of type int"),
        (lambda r: r.update(outputs=3), "its outputs do not match its graph"),
        (lambda r: r["options"].update(speed=3), "no option is called 'speed'"),
        (lambda r: r.update(more=3), "unknown field `more`"),
        (lambda r: r["graph"].update(inputs=[]), "depends on input x"),
    ],
)
def test_a_file_that_this_version_cannot_read_is_an_error_of_one_line(path, change, message):
    x = mg.input("x", (4, 6))
    mg.save_graph(path, x, x.reshape(24))
    changed(path, change)
    with pytest.raises(mg.GraphError, match=rf"^load_graph: \S*net.graph .*{message}") as caught:
        mg.load_graph(path)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_named(path):
    mg.save_graph(path, [], mg.Parameter(np.ones(3)))
    path.write_bytes(path.read_bytes()[:-1] + b"a")
    with pytest.raises(mg.GraphError, match=r"^load_graph: \S*net\.graph is damaged"):
        mg.load_graph(path)


def test_parameters_and_outputs_may_have_any_name(path):
    names = ("constant 0", "__metadata__", "w", "w", "other w")
    parameters = [mg.Parameter(np.full(2, i), name) for i, name in enumerate(names)]
    outputs = {"": parameters[0] + np.arange(2), "all": ops.stack(parameters)}
    mg.save_graph(path, [], outputs)
    results = mg.load_graph(path).compile("reference")()
    assert results["all"][:, 0].tolist() == [0, 1, 2, 3, 4] and results[""].tolist() == [0, 1]
    mg.save_graph(path, [], {})
    assert mg.load_graph(path).compile("reference")() == {}
