"""A small share of the samples of PyTorch's own tests, and what counts as equal."""

import contextlib
import importlib
import warnings
from unittest import mock

import numpy as np
import pytest
from torch_rounding import difference

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

FEW = {  # whose samples differ in types, axes or indices as no model of these tests has them
    "__getitem__", "add", "addmm", "amax", "argmax", "clamp", "constant_pad_nd", "cummax", "cummin",
    "cumsum", "diagonal_scatter", "div", "gather", "index_put", "matmul", "max", "mean",
    "nn.functional.pdist", "pow", "prod", "remainder", "scatter_reduce", "sort", "take", "var",
    "where",
}  # fmt: skip


def counted(*arguments, **named):
    """Run the script; what it imports of torch takes seconds.

    PyTorch looks through the stack, twice a sample, for a test of its own; there is none.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.ExitStack() as patches:
        warnings.simplefilter("ignore")
        script = importlib.import_module("torch_samples")
        for module in ("common_utils", "opinfo.core"):
            target = f"torch.testing._internal.{module}.extract_test_fn"
            patches.enter_context(mock.patch(target, return_value=None))
        return script.counted(*arguments, **named)


# Generators that make samples may end while another sample is traced.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "names, limit", [(FEW, 2), ({"linalg.vector_norm"}, 3)], ids=["few", "norm"]
)
def test_operators_compute_what_pytorch_does(names, limit):
    counts = counted(names, ["float32", "int64", "bool"], ["ops"], limit=limit)
    assert not counts.wrong
    assert {name for name, *_ in counts.passed} == names
    assert {order for _, _, order, _ in counts.passed} > {"values", "gradients"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("level", ["0", "3"])
def test_compiled_functions_compute_what_pytorch_does(level):
    counts = counted([], ["float32", "bfloat16", "int32"], [level], limit=4)
    assert not counts.wrong
    assert sum(counts.passed.values()) > 1000


F32, F16 = np.float32, np.float16


@pytest.mark.parametrize(
    ("found", "wide", "own", "equal"),
    [
        (F32([1, 2]), [1, 2], F32([1, 2]), True),
        (F32([1, 2]), [1, 2, 3], F32([1, 2, 3]), False),
        (np.int64([1, 2]), [1, 2], F32([1, 2]), False),
        (np.array([True]), [1], np.uint8([1]), False),
        (np.int32([7]), [7], np.int64([7]), True),
        (np.int32([7]), [8], np.int32([8]), False),
        (F32([1 + 1e-6]), [1], F32([1]), True),
        (F32([1 + 1e-4]), [1], F32([1]), False),
        (F32([1 + 1e-4]), [1], F32([1 + 1e-4]), True),
        (F32([1e-9]), [2e-9], F32([2e-9]), False),
        (F32([np.nan, np.inf]), [np.nan, np.inf], F32([np.nan, np.inf]), True),
        (F32([np.nan]), [0], F32([0]), False),
        (F32([1]), [np.nan], F32([np.nan]), False),
        (F32([np.inf]), [3e38], F32([3e38]), False),
        (F16([np.inf]), [1e5], F16([np.inf]), True),
    ],
)
def test_what_counts_as_equal(found, wide, own, equal):
    wrong = difference(found, np.asarray(wide, "float64"), own, scale=0.0)
    assert (wrong is None) == equal, wrong


def test_sums_that_cancel_are_compared_with_their_terms():
    found, zero = F32([1e-6]), np.zeros(1)
    assert difference(found, zero, F32(zero), scale=0.0)
    assert difference(found, zero, F32(zero), scale=1.0) is None
