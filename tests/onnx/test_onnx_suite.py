"""ONNX's own tests of its operators: each passes, or stands in a table with the reason."""

import fnmatch
import functools
import warnings
from pathlib import Path

import numpy as np
import pytest
from long_runs import long

import minigraph as mg

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

REASONS = {
    "the sizes of its results depend on values": "nonmaxsuppression_* unique_*",
    "bits are not taken for those of another dtype": "bitcast_*",
    "pictures are read elsewhere": "image_decoder_*",
    "it draws other random numbers, which a seed of ONNX's reference gives": (
        "bernoulli_seed bernoulli_seed_expanded training_dropout training_dropout_mask "
        "training_dropout_default training_dropout_default_mask"
    ),
    "rounding errors of ONNX's reference stand where zeros are": "dft_inverse dft_inverse_opset19",
    "it is rare": (
        "basic_deform_conv_* deform_conv_* roialign_* col2im* melweightmatrix tfidfvectorizer_* "
        "maxunpool_* det_*"
    ),
}
CODES = "FLOAT INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL"
KINDS = {getattr(TensorProto, name) for name in CODES.split()}
OPTIONS = {"autotune": "off", "num_threads": 1}


def graphs_in(nodes):
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return any(a.type in kinds for node in nodes for a in node.attribute)


def is_chosen(model):
    """Return whether a model is of the main domain, of tensors of our dtypes, without subgraphs."""
    types = [x.type for x in (*model.graph.input, *model.graph.output)]
    return (
        all(t.HasField("tensor_type") and t.tensor_type.elem_type in KINDS for t in types)
        and all(node.domain in ("", "ai.onnx") for node in model.graph.node)
        and not any(graphs_in(f.node) for f in (model.graph, *model.functions))
    )


@functools.cache
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        testcases = collect_testcases(None)
    return {c.name.removeprefix("test_"): c for c in testcases if is_chosen(c.model)}


def as_array(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def fault(model, data, device, level, rtol, atol):
    """Return the mistake in a model's results, or an empty text."""
    try:
        options = {**OPTIONS, "graph_opt_level": level}
        function = mg.onnx.function(model, device, options)
        for inputs, expected in data:
            results = function(*inputs)
            results = results if isinstance(results, list) else [results]
            for x, y in zip(results, map(as_array, expected), strict=True):
                assert (x.dtype, x.shape) == (y.dtype, y.shape)
                np.testing.assert_allclose(x, y, rtol, atol)
    except (mg.GraphError, AssertionError) as error:
        return f"{type(error).__name__} {error}"
    return ""


@pytest.mark.filterwarnings("ignore::minigraph.MinigraphWarning")
@pytest.mark.parametrize(("device", "level"), [("reference", 0), long("cpu", 0), long("cpu", 3)])
def test_all_tests_of_operators_pass_but_those_with_a_reason(device, level):
    excused = {
        name
        for names in REASONS.values()
        for p in names.split()
        for name in fnmatch.filter(cases(), p)
    }
    results = {
        name: fault(c.model, c.data_sets, device, level, c.rtol, c.atol)
        for name, c in cases().items()
    }
    faults = {name: text for name, text in results.items() if text}
    assert {name: text for name, text in faults.items() if name not in excused} == {}
    assert excused - {*faults} == set()
    text = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text()
    assert f"of the {len(cases()):,} of the main domain" in text
    assert f"all pass but the {len(excused)} that" in text


DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def arrays(folder, kind):
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in files]


@pytest.mark.parametrize(("device", "level"), [("reference", 0), long("cpu", 3)])
def test_all_models_that_onnx_converted_from_pytorch_pass(device, level):
    models = [*DATA.glob("pytorch-*/*/model.onnx")]
    assert len(models) == 117
    faults = {}
    for path in models:
        data = [(arrays(f, "input"), arrays(f, "output")) for f in path.parent.glob("test_data*")]
        assert data
        faults[path.parent.name] = fault(path, data, device, level, 1e-3, 1e-7)
    assert {name: text for name, text in faults.items() if text} == {}
