"""Models of ONNX from the command line: described, run, shown and measured."""

import contextlib
import io
import json

import numpy as np
import pytest

from minigraph import cli
from minigraph.bench.cases import case

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
import onnx
from onnx import TensorProto
from written_models import HIDDEN, NET, WEIGHTS, X, info, model


@pytest.fixture
def file(tmp_path):
    onnx.save_model(model(NET, [info("x", ["n", 3])], **WEIGHTS), tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "net.onnx"


def command(*arguments, status=0):
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        assert cli.main([*map(str, arguments)]) == status
    return printed.getvalue(), errors.getvalue()


def test_run_writes_what_a_model_gives(file, tmp_path):
    options = ("--input", tmp_path / "x.npy", "--out", tmp_path / "y.npz", "--device", "reference")
    answer = json.loads(command("run", file, *options, "--json")[0])
    assert answer["outputs"] == {"y": "float32[2, 4]"}
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npz")["y"], np.maximum(X @ HIDDEN + 1, 0), 1e-5
    )
    assert command("run", file, status=1)[1] == (
        "minigraph: run: got 0 times --input for the inputs x\n"
    )
    (tmp_path / "z.npy").write_bytes(b"none")
    errors = command("run", file, *options, "--input", tmp_path / "z.npy", status=1)[1]
    assert errors.startswith(f"minigraph: run: {tmp_path / 'z.npy'} cannot be read (")
    np.save(tmp_path / "z.npy", X.T)
    errors = command("run", file, "--input", tmp_path / "z.npy", status=1)[1]
    assert errors == f"minigraph: input x takes float32[n,3], got shape (3, 2) at {file}:0\n"
    out = tmp_path / "nowhere" / "y.npz"
    errors = command("run", file, "--input", tmp_path / "x.npy", "--out", out, status=1)[1]
    assert errors == f"minigraph: run: {out} cannot be written (No such file or directory)\n"


def test_info_and_view_show_what_a_model_is(file, tmp_path):
    answer = json.loads(command("info", file, "--json")[0])
    assert answer["inputs"] == {"x": "float32[n,3]"}
    assert answer["operators"] == {"MatMul": 1, "Add": 1, "Relu": 1}
    assert answer["parameters"] == 16
    nodes = ["y, i = TopK(x, k)", "z = Relu(w)"]
    proto = model(
        nodes, [info("x", None), info("k", [1], TensorProto.INT64)], "yz", w=np.ones((2, 3), "f")
    )
    onnx.save_model(proto, tmp_path / "calls.onnx")  # which decide its shapes
    answer = json.loads(command("info", tmp_path / "calls.onnx", "--json")[0])
    assert answer["inputs"] == {"x": "decided by calls", "k": "int64[1]"}
    assert answer["outputs"] == {"y": "decided by calls", "z": "decided by calls"}
    assert answer["parameters"] == 6
    command("view", "--out", tmp_path / "page.html", file)
    assert "<html" in (tmp_path / "page.html").read_text()


def test_bench_measures_levels_beside_onnxruntime(file):
    pytest.importorskip("onnxruntime")
    short = ("--once", "--repeats", "1", "--minutes", "9", "--threads", "1", "--device", "cpu")
    options = (
        "--models",
        file,
        "--levels",
        "0",
        "--peers",
        "torch,onnxruntime",
        "--batch-size",
        "3",
    )
    (case,) = json.loads(command("bench", *options, *short, "--json")[0])["cases"].values()
    assert (case["title"], case["images"]) == ("net predicts 3", 3)
    assert case["sides"].keys() == {"level 0", "onnxruntime"}
    for side in case["sides"].values():
        assert side["seconds"] and not side["error"]
    assert case["sides"]["onnxruntime"]["difference"] < 1e-6


def test_bench_names_the_batch_that_a_file_fixes(tmp_path):
    proto = model(NET, [info("x", [32, 3])], **WEIGHTS)
    onnx.save_model(proto, tmp_path / "net.onnx")
    subject = case(str(tmp_path / "net.onnx"), batch_size=3)
    assert (subject.title, subject.images) == ("net predicts 32", 32)


def test_operators_are_listed():
    answer = json.loads(command("onnx", "operators", "--json")[0])
    assert {"Conv", "Resize", "com.microsoft.FusedMatMul"} <= {*answer["operators"]}
    assert "Attention" in answer["defined_by_onnx"]
